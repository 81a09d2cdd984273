import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from client.wire import (
    AdversarialAnswer,
    AdversarialQuery,
    Answer,
    Candidate,
    CandidatesAnswer,
    CandidatesQuery,
    LossAnswer,
    LossQuery,
    Query,
)
from server.ledger import Ledger, read_ledger
from strategies.earlier import EarlierAnswer

HEADER = {"hashes": {"model": "m"}, "config": {"seed": 0}}


QUERY = LossQuery("zero_one", "mlp", (3,), 2)
ADVERSARIAL = AdversarialQuery("zero_one", "mlp", (3,), 2, order=1, radii=(0.0, 1 / 3), multipliers=(0.7,))


def question(one: Answer) -> Query:
    return QUERY if isinstance(one, LossAnswer) else ADVERSARIAL


def answer(number: int) -> LossAnswer:
    return LossAnswer(f"client-{number:05d}", 1 / (number + 3), 100 + number, "zero_one", "code", "model")


def test_answers_come_back_in_order_of_arrival(tmp_path: Path) -> None:
    path = tmp_path / "new" / "ledger.jsonl"
    answers = tuple(answer(number) for number in (3, 1, 2))
    with Ledger(path, header=HEADER) as ledger:
        for one in answers:
            ledger.append(question(one), one)
    header, read = read_ledger(path)
    assert read == answers
    assert header["config"] == {"seed": 0}


def test_adversarial_answers_come_back_too(tmp_path: Path) -> None:
    answers = (
        AdversarialAnswer(
            client_id="client-00001",
            num_examples=100,
            loss="zero_one",
            clean_risk=0.1,
            values_lower=(0.1, 0.3),
            values_upper=(0.1, 1 / 3),
            conjugates_lower=(0.25,),
            conjugates_upper=(0.25,),
            adversarial_unit=2.5,
            guarantee="exact",
            code_hash="code",
            model_hash="model",
            budget_left=budget_left,
        )
        for budget_left in (None, 7)
    )
    written = (*answers, answer(1))
    with Ledger(tmp_path / "ledger.jsonl", header=HEADER) as ledger:
        for one in written:
            ledger.append(question(one), one)
    assert read_ledger(ledger.path)[1] == written
    with Ledger(ledger.path, header=HEADER, resume=True) as resumed:
        asked = (ADVERSARIAL.radii, ADVERSARIAL.multipliers)
        assert resumed.earlier == (*(EarlierAnswer(one, *asked) for one in written[:-1]), EarlierAnswer(answer(1)))


def test_groups_are_kept_and_ledgers_from_before_there_were_any_can_be_read(tmp_path: Path) -> None:
    grouped = LossAnswer("client-00007", 0.5, 10, "zero_one", "code", "model", group="rural")
    with Ledger(tmp_path / "ledger.jsonl", header=HEADER) as ledger:
        ledger.append(QUERY, grouped)
    assert read_ledger(ledger.path)[1] == (grouped,)
    entry = {"client_id": "a", "risk": 0.5, "num_examples": 10, "loss": "brier", "code_hash": "c", "model_hash": "m"}
    header = {"schema": "riskband.ledger/2", **HEADER}
    ledger.path.write_text("".join(json.dumps(line) + "\n" for line in (header, entry)))
    assert read_ledger(ledger.path)[1] == (LossAnswer("a", 0.5, 10, "brier", "c", "m"),)


def test_answers_about_candidates_come_back_as_they_were(tmp_path: Path) -> None:
    written = tuple(
        CandidatesAnswer("client-00001", (0.1, 1 / 3), 30, "zero_one,abstain:0.8", "code", "model", left, group)
        for left, group in ((None, None), (7, "rural"))
    )
    query = CandidatesQuery("mlp", (3,), 2, (Candidate("a", 0, "zero_one"), Candidate("b", 0, "abstain:0.8")))
    with Ledger(tmp_path / "ledger.jsonl", header=HEADER) as ledger:
        for one in written:
            ledger.append(query, one)
    with Ledger(ledger.path, header=HEADER, resume=True) as resumed:
        assert resumed.earlier == tuple(EarlierAnswer(one) for one in written)
    assert len(set(read_ledger(ledger.path)[1])) == 2  # hashable, as the answers of a resumed run must be


def test_answers_are_readable_while_the_ledger_is_open(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.jsonl", header=HEADER) as ledger:
        ledger.append(QUERY, answer(0))
        assert read_ledger(ledger.path)[1] == (answer(0),)


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path, header=HEADER) as ledger:
        ledger.append(QUERY, answer(0))
        ledger.append(QUERY, answer(1))
    whole = path.read_bytes()
    end_of_first = whole.rindex(b"\n", 0, len(whole) - 1) + 1
    for size in range(end_of_first, len(whole)):  # cut at every byte of the last line
        path.write_bytes(whole[:size])
        assert read_ledger(path)[1] == (answer(0),)


def test_a_damaged_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path, header=HEADER) as ledger:
        ledger.append(QUERY, answer(0))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:10], lines[1], ""]))
    with pytest.raises(ValueError, match="line 2"):
        read_ledger(path)


def test_a_line_that_is_no_answer_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path, header=HEADER):
        pass
    path.write_text(path.read_text() + json.dumps({"client_id": "a"}) + "\n")
    with pytest.raises(ValueError, match="not an answer"):
        read_ledger(path)


@pytest.mark.parametrize("text", ["", "{}\n", '{"schema": "something/1"}\n'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match="header"):
        read_ledger(path)


def test_an_earlier_ledger_is_kept_under_a_number(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    for number in range(3):
        with Ledger(path, header=HEADER) as ledger:
            ledger.append(QUERY, answer(number))
    assert read_ledger(path)[1] == (answer(2),)
    assert read_ledger(tmp_path / "ledger-1.jsonl")[1] == (answer(0),)
    assert read_ledger(tmp_path / "ledger-2.jsonl")[1] == (answer(1),)


def append_and_die(path: Path) -> None:
    ledger = Ledger(path, header=HEADER)
    ledger.append(QUERY, answer(0))
    ledger.append(QUERY, answer(1))
    os.kill(os.getpid(), signal.SIGKILL)


def test_answers_survive_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    process = multiprocessing.get_context("fork").Process(target=append_and_die, args=(path,))
    process.start()
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    assert read_ledger(path)[1] == (answer(0), answer(1))


def test_a_resumed_ledger_grows_behind_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    append_and_leave(path, numbers=(0, 1))
    path.write_bytes(path.read_bytes()[:-5])
    with Ledger(path, header=HEADER, resume=True) as ledger:
        assert ledger.earlier == (EarlierAnswer(answer(0)),)
        ledger.append(QUERY, answer(2))
    assert read_ledger(path)[1] == (answer(0), answer(2))
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.jsonl"]


def append_and_leave(path: Path, *, numbers: tuple[int, ...]) -> None:
    with Ledger(path, header=HEADER) as ledger:
        for number in numbers:
            ledger.append(QUERY, answer(number))


def test_a_ledger_of_another_run_is_not_resumed_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    append_and_leave(path, numbers=(0,))
    before = path.read_bytes()
    other = {"hashes": {"model": "n"}, "config": {"seed": 1, "reply-timeout": 5.0}}
    with pytest.raises(ValueError, match=r"seed was 0 and is now 1; the hash of the model was 'm' and is now 'n'") as e:
        Ledger(path, header=other, resume=True)
    assert "reply-timeout" not in str(e.value)
    assert path.read_bytes() == before


def test_nothing_can_be_resumed_without_a_ledger(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is none"):
        Ledger(tmp_path / "ledger.jsonl", header=HEADER, resume=True)


def test_the_node_of_an_answer_is_kept_and_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path, header=HEADER) as ledger:
        ledger.append(QUERY, answer(0), node_id=2**64 - 1)
        ledger.append(QUERY, answer(1))  # as ledgers had it before
    assert json.loads(path.read_text().splitlines()[1])["node_id"] == str(2**64 - 1)
    with Ledger(path, header=HEADER, resume=True) as ledger:
        assert ledger.earlier is not None
        assert [entry.node_id for entry in ledger.earlier] == [2**64 - 1, None]
        assert [entry.answer for entry in ledger.earlier] == [answer(0), answer(1)]


def test_a_damaged_node_is_a_damaged_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path, header=HEADER) as ledger:
        ledger.append(QUERY, answer(0), node_id=7)
    path.write_text(path.read_text().replace('"7"', '"seven"'))
    with pytest.raises(ValueError, match="not an answer"):
        read_ledger(path)
