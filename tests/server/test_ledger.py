import copy
import json
import math
import multiprocessing
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.questions import (
    AdversarialAnswer,
    Answer,
    Candidate,
    CandidatesAnswer,
    CandidatesQuery,
    LossAnswer,
    LossQuery,
    Query,
)
from server.run.ledger import Ledger, read_ledger
from strategies.asking.exchange import Sender
from strategies.asking.failures import Failure, FailureReason, node_hash
from strategies.asking.resume import EarlierAnswer, OpenedSum
from tests.transport import adversarial_query

HEADER = {"hashes": {"model": "m"}, "config": {"seed": 0}}


QUERY = LossQuery("zero_one", "mlp", (3,), 2)
ADVERSARIAL = adversarial_query("zero_one", "mlp", (3,), 2, order=1, radii=(0.0, 1 / 3), multipliers=(0.7,))


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


def test_an_answer_is_on_the_disk_when_it_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash of the machine then loses none: what was written was handed on with fsync, whole."""
    synced = [0]
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fsync", noting)
    with Ledger(tmp_path / "ledger.jsonl", header=HEADER) as ledger:
        for number in range(3):
            assert synced[-1] == ledger.path.stat().st_size > synced[-2]
            ledger.append(QUERY, answer(number))
            assert len(read_ledger(ledger.path)[1]) == number + 1
        assert synced[-1] == ledger.path.stat().st_size


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


def test_a_ledger_says_when_its_configuration_was_recorded_also_to_the_run_that_resumes_it(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.jsonl", header=HEADER) as ledger:
        first = ledger.recorded
    assert first is not None
    assert datetime.fromisoformat(first).tzinfo is not None
    text = ledger.path.read_text()
    ledger.path.write_text(text.replace(first, "2020-01-01T00:00:00+00:00"))
    with Ledger(ledger.path, header=HEADER, resume=True) as resumed:
        assert resumed.recorded == "2020-01-01T00:00:00+00:00"
    ledger.path.write_text(text.replace(f'"recorded": "{first}", ', ""))  # as earlier versions wrote it
    with Ledger(ledger.path, header=HEADER, resume=True) as resumed:
        assert resumed.recorded is None


def test_answers_about_candidates_come_back_as_they_were(tmp_path: Path) -> None:
    named = {"client_id": "a", "loss": "zero_one,abstain:0.8", "code_hash": "code", "model_hash": "model"}
    written = tuple(
        CandidatesAnswer(risks=(0.1, 1 / 3), num_examples=30, **named, budget_left=left, group=group)
        for left, group in ((None, None), (7, "rural"))
    )
    query = CandidatesQuery("mlp", (3,), 2, (Candidate("a", 0, "zero_one"), Candidate("b", 0, "abstain:0.8")))
    with Ledger(tmp_path / "ledger.jsonl", header=HEADER) as ledger:
        for one in written:
            ledger.append(query, one)
    with Ledger(ledger.path, header=HEADER, resume=True) as resumed:
        assert resumed.earlier == tuple(EarlierAnswer(one) for one in written)
    assert len(set(read_ledger(ledger.path)[1])) == 2  # hashable, as the answers of a resumed run must be


def test_opened_sums_come_back_as_they_were(tmp_path: Path) -> None:
    gone = Failure("c", FailureReason.NO_REPLY, "silent", node_name="c", node=node_hash(2**63 + 1))
    late = Failure("a", FailureReason.CLIENT_RAISED, "no", claimed_name="x")
    written = (OpenedSum(("a", "b"), ((1, 2**32 - 1), (2, 0)), (gone,), (late,), 3), OpenedSum(("b",), (), (), (), 1))
    with Ledger(tmp_path / "ledger.jsonl", header=HEADER) as ledger:
        for one in written:
            ledger.append(LossQuery("zero_one", "mlp", (3,), 2), one)
    with Ledger(ledger.path, header=HEADER, resume=True) as resumed:
        assert resumed.earlier == tuple(map(EarlierAnswer, written))
    assert resumed.earlier[0].answer.failures[0].node == gone.node


@pytest.mark.parametrize("clients", [[], ["b", "a"], ["a", "a"]], ids=str)
def test_a_sum_of_nobody_or_of_one_client_twice_is_a_damaged_line(tmp_path: Path, clients: list[str]) -> None:
    line = {"clients": clients, "counts": [[1]], "failures": [], "late_failures": [], "num_asked": 2}
    path = tmp_path / "ledger.jsonl"
    with Ledger(path, header=HEADER):
        pass
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(ValueError, match=r"line 2 of .*each once"):
        read_ledger(path)


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


def lines_of_every_kind(folder: Path) -> list[bytes]:
    """A header and one answer of each kind, as a ledger writes them."""
    candidates = CandidatesQuery("mlp", (3,), 2, (Candidate("a", 0, "zero_one"), Candidate("b", 0, "abstain:0.8")))
    curves = {"values_lower": (0.1, 0.3), "values_upper": (0.1, 0.3), "adversarial_unit": 2.5, "guarantee": "exact"}
    curves |= {"conjugates_lower": (0.25,), "conjugates_upper": (0.25,), "clean_risk": 0.1, "num_examples": 9}
    with Ledger(folder / "whole.jsonl", header=HEADER) as ledger:
        ledger.append(QUERY, answer(0))
        named = {"client_id": "a", "loss": "zero_one", "code_hash": "c", "model_hash": "m"}
        ledger.append(ADVERSARIAL, AdversarialAnswer(**named, **curves, budget_left=3, group="north"))
        named["loss"] = "zero_one,abstain:0.8"
        of_both = CandidatesAnswer(risks=(0.1, 0.2), num_examples=30, **named, budget_left=7, group="north")
        ledger.append(candidates, of_both)
    return ledger.path.read_bytes().splitlines(keepends=True)


OTHERS = (
    None,
    True,
    -1,
    0.5,
    10**400,
    float("nan"),
    float("inf"),
    "",
    "x",
    [],
    [[]],
    [None],
    ["x"],
    [True],
    {},
    {"x": 1},
)


def changed_entries(entry: Any) -> Iterator[Any]:
    """Every value of a line, at every depth, replaced by one of another JSON type; every key left out; one added."""
    yield from OTHERS
    keys = list(entry) if isinstance(entry, dict) else list(range(len(entry))) if isinstance(entry, list) else []
    for key in keys:
        left_out = {k: v for k, v in entry.items() if k != key} if isinstance(entry, dict) else entry[:key]
        yield left_out
        for other in changed_entries(entry[key]):
            whole = copy.deepcopy(entry)
            whole[key] = other
            yield whole
    if isinstance(entry, dict):
        yield {**entry, "x": 1}


def assert_read_or_refused(path: Path) -> bool:
    """Whether a ledger is refused: by ValueError in words with file and line. Read, its numbers are finite numbers."""
    problem, answers = "", ()
    try:
        _, answers = read_ledger(path)
        with Ledger(path, header=HEADER, resume=True):
            pass
    except ValueError as error:
        problem = str(error)
    if not answers:
        assert re.search(rf"line \d+ of {re.escape(str(path))}", problem), problem
        assert "\n" not in problem
        return True
    for one in answers:
        flat = [v for value in asdict(one).values() for v in (value if isinstance(value, tuple) else (value,))]
        assert all(v is None or type(v) in (str, int) or math.isfinite(v) for v in flat), one
        assert type(one.num_examples) is int
        hash(one)  # as the answers of a resumed run must be
    return False


@pytest.mark.guard
@pytest.mark.parametrize("number", range(4))
def test_a_line_with_another_type_at_any_place_is_refused_in_words(tmp_path: Path, number: int) -> None:
    lines = lines_of_every_kind(tmp_path)
    path = tmp_path / "ledger.jsonl"
    refused = []
    for entry in changed_entries(json.loads(lines[number])):
        path.write_bytes(b"".join([*lines[:number], json.dumps(entry).encode() + b"\n", *lines[number + 1 :]]))
        refused.append(assert_read_or_refused(path))
    assert sum(refused) > (50 if number == 0 else 100)


def test_cut_lines_and_binary_junk_are_refused_in_words(tmp_path: Path) -> None:
    lines = lines_of_every_kind(tmp_path)
    path = tmp_path / "ledger.jsonl"
    rng = np.random.default_rng(0)
    for number, line in enumerate(lines):
        junk = [line[:size] + b"\n" for size in range(0, len(line) - 1, 9)] + [
            rng.bytes(40).replace(b"\n", b"") + b"\n"
        ]
        junk += [b"[" * 100_000 + b"\n", b'{"risk": ' + b"1" * 5000 + b"}\n", b"\xff\xfe{}\n", b"\0" * 64 + b"\n"]
        for other in junk:
            path.write_bytes(b"".join([*lines[:number], other, *lines[number + 1 :]]))
            assert assert_read_or_refused(path), other


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
        ledger.append(QUERY, answer(0), Sender(2**64 - 1))
        ledger.append(QUERY, answer(1))  # as ledgers had it before
    assert json.loads(path.read_text().splitlines()[1])["node"] == node_hash(2**64 - 1)
    with Ledger(path, header=HEADER, resume=True) as ledger:
        assert ledger.earlier is not None
        assert [entry.node for entry in ledger.earlier] == [node_hash(2**64 - 1), None]
        assert [entry.answer for entry in ledger.earlier] == [answer(0), answer(1)]


def test_a_damaged_node_is_a_damaged_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path, header=HEADER) as ledger:
        ledger.append(QUERY, answer(0), Sender(7))
    path.write_text(path.read_text().replace(f'"{node_hash(7)}"', "7"))
    with pytest.raises(ValueError, match="not an answer"):
        read_ledger(path)
