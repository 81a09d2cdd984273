"""A repeated question costs nothing and gets the same bytes; a changed one is a new question."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import sqlite3
import stat
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message

from client.answer_record import AnswerRecord, asked_hash, question_hash, record_from_config
from client.app import app
from client.budget import QueryBudget, QueryBudgetError, Request
from protocol import wire
from protocol.hashes import code_hash, model_hash, model_source_hash
from protocol.models import build_model, model_arrays
from protocol.questions import Candidate, CandidatesQuery, HelloAnswer, HelloQuery, LossQuery
from protocol.weight_sets import joined
from riskband.flower.testing import InProcessGrid
from tests.client.record_worker import spend_and_keep
from tests.transport import adversarial_query, changed

MODEL = build_model("mlp", x_shape=(3,), num_classes=2, seed=1)
LOSS = LossQuery("brier", "mlp", (3,), 2)
ADVERSARIAL = adversarial_query("zero_one", "mlp", (3,), 2, order=2, radii=(0.0, 0.5, 2.0), multipliers=(0.1,))
CANDIDATES = CandidatesQuery("mlp", (3,), 2, (Candidate("a", 0, "brier"), Candidate("b", 0, "zero_one")))
SIZES = {LOSS: 1, ADVERSARIAL: 6, CANDIDATES: 2}


def write_data(path, *, seed=0):
    rng = np.random.default_rng(seed)
    np.savez(path, x=rng.normal(size=(40, 3)), y=rng.integers(0, 2, size=40))


@pytest.fixture(name="own")
def _own(tmp_path):
    write_data(tmp_path / "data.npz")
    return {
        "client-id": "a",
        "data": str(tmp_path / "data.npz"),
        "query-budget": 100,
        "query-budget-file": str(tmp_path / "client.sqlite"),
        "answer-record-file": str(tmp_path / "client.sqlite"),
    }


def ask(own, query=LOSS, model=MODEL):
    """The answer's content and what has been spent; each call is a new process as far as the client can tell."""
    arrays = joined([model_arrays(model)]) if isinstance(query, CandidatesQuery) else model_arrays(model)
    grid = InProcessGrid(app, num_clients=1, run_config={"dataset": "none"}, node_configs={0: own})
    (node,) = grid.get_node_ids()
    message = Message(wire.encode_query(query, arrays), node, wire.message_type(query))
    (reply,) = grid.send_and_receive([message], timeout=30)
    if reply.has_error():
        return reply.error.reason
    return wire.decode_answer(reply.content, wire.answer_type(query))


def spent(own):
    budget = QueryBudget(own["client-id"], own["query-budget"], Path(own["query-budget-file"]))
    return sum(budget.spent().values())


@pytest.mark.parametrize("query", list(SIZES), ids=lambda query: type(query).__name__)
@pytest.mark.parametrize("is_shared", [True, False], ids=["one file", "two files"])
def test_a_repeated_question_is_free_and_has_the_same_answer(own, query, is_shared, tmp_path):
    if not is_shared:
        own["answer-record-file"] = str(tmp_path / "answers.sqlite")
    first = ask(own, query)
    assert spent(own) == SIZES[query]
    assert [ask(own, query) for _ in range(3)] == [first] * 3  # budget-left too
    assert spent(own) == SIZES[query]
    unlimited = {"client-id": "b", "data": own["data"]}
    changes = {"client_id": "a"} | ({} if query is LOSS else {"budget_left": 100 - SIZES[query]})
    assert dataclasses.replace(ask(unlimited, query), **changes) == first  # what a client without a record computes


def test_the_record_still_answers_when_the_budget_is_spent(own):
    first = ask(own | {"query-budget": 1})
    assert "with 0 left" in ask(own | {"query-budget": 1}, dataclasses.replace(LOSS, loss="zero_one"))
    assert ask(own | {"query-budget": 1}) == first


def test_without_a_place_every_question_costs(own):
    del own["answer-record-file"]
    ask(own)
    ask(own)
    assert spent(own) == 2


def test_what_changes_the_answer_makes_a_new_question(own, tmp_path):
    ask(own, ADVERSARIAL)
    for number, query in enumerate(
        [
            dataclasses.replace(ADVERSARIAL, radii=(0.0, 0.5, 3.0)),
            dataclasses.replace(ADVERSARIAL, multipliers=(0.2,)),
            changed(ADVERSARIAL, order=1),
        ],
        start=2,
    ):
        ask(own, query)
        assert spent(own) == SIZES[ADVERSARIAL] * number
    ask(own, ADVERSARIAL, build_model("mlp", x_shape=(3,), num_classes=2, seed=2))
    assert spent(own) == 5 * SIZES[ADVERSARIAL]
    write_data(tmp_path / "data.npz", seed=1)
    ask(own, ADVERSARIAL)
    assert spent(own) == 6 * SIZES[ADVERSARIAL]
    ask(own | {"client-id": "b"}, ADVERSARIAL)  # another client in the same file has a count of its own
    assert spent(own) == 6 * SIZES[ADVERSARIAL]
    assert spent(own | {"client-id": "b"}) == SIZES[ADVERSARIAL]
    write_data(tmp_path / "data.npz", seed=0)
    ask(own, ADVERSARIAL)
    assert spent(own) == 6 * SIZES[ADVERSARIAL]


def test_every_part_of_a_question_counts():
    hashes = {"model_hash": "m", "code_hash": "c", "examples_hash": "e"}
    questions = {question_hash(query, **hashes) for query in SIZES}
    questions |= {question_hash(LOSS, **hashes | {key: "x"}) for key in hashes}
    assert len(questions) == 6
    assert question_hash(dataclasses.replace(LOSS), **hashes) in questions


def test_a_group_may_change_without_a_new_question(own):
    ask(own)
    assert ask(own | {"group": "rural"}).group == "rural"
    assert spent(own) == 1


def test_only_answers_and_hashes_are_on_the_disk(own):
    answer = ask(own)
    with sqlite3.connect(own["answer-record-file"]) as connection:
        rows = connection.execute("SELECT * FROM answers").fetchall()
    connection.close()
    ((client, question, text),) = rows
    assert client == "a"
    assert len(question) == 64
    assert json.loads(text) == {"risk": answer.risk, "num_examples": 40}


def test_the_first_answer_stays(tmp_path):
    record = AnswerRecord("a", tmp_path / "r.sqlite")
    assert record.find("q") is None
    assert record.keep("q", {"risks": [0.1, 0.3]}) == {"risks": (0.1, 0.3)}
    assert record.keep("q", {"risks": [0.2, 0.3]}) == {"risks": (0.1, 0.3)}
    assert AnswerRecord("b", tmp_path / "r.sqlite").find("q") is None


def test_a_question_that_was_paid_for_and_never_answered_is_not_paid_again(tmp_path):
    budget = QueryBudget("a", 5, tmp_path / "b.sqlite")
    assert budget.spend(Request(losses=4), question="q") == 1
    assert budget.spend(Request(losses=4), question="q") == 1  # the process ended before it had the answer
    with pytest.raises(QueryBudgetError):
        budget.spend(Request(losses=4), question="other")
    assert budget.spend(Request(losses=1), question="third") == 0
    with pytest.raises(QueryBudgetError):  # what was refused was not noted as paid
        budget.spend(Request(losses=4), question="other")


def test_processes_that_answer_at_once_spend_once_and_say_the_same(tmp_path):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=spend_and_keep, args=(tmp_path, k, queue)) for k in range(2)]
    for process in processes:
        process.start()
    first, second = (queue.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    assert first == second
    assert QueryBudget("a", 1000, tmp_path / "b.sqlite").spent()["loss"] == 30


@pytest.mark.parametrize("content", ["no database at all, but long enough to be sure of it" * 10, None])
def test_a_damaged_record_is_never_sent(own, tmp_path, content):
    path = tmp_path / "answers.sqlite"
    own["answer-record-file"] = str(path)
    if content is None:
        ask(own)
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE answers SET answer = 'secret'")
        connection.close()
    else:
        path.write_text(content)
    before = spent(own)
    text = ask(own)
    assert "reading the answer record failed with DatabaseError" in text or "must hold answers" in text
    assert "secret" not in text
    assert spent(own) == before


@pytest.mark.guard
@pytest.mark.parametrize(
    "content",
    [
        {"secret": 1},
        {"risk": "secret", "num_examples": 40},
        {"risk": 0.5, "num_examples": 40, "secret": 1},
        {"risk": [0.5], "num_examples": 40},
        {"risk": 0.5, "num_examples": "secret"},
        {"risk": 10**400, "num_examples": True},
    ],
)
def test_a_record_of_other_numbers_is_refused_in_fixed_words(own, content):
    ask(own)
    with sqlite3.connect(own["answer-record-file"]) as connection:
        connection.execute("UPDATE answers SET answer = ?", (json.dumps(content),))
    connection.close()
    text = ask(own)
    assert "the file of answer-record-file must hold answers, got another thing" in text
    assert "secret" not in text
    assert spent(own) == 1


def test_a_record_of_as_many_other_numbers_is_refused_too(own):
    first = ask(own, ADVERSARIAL)
    with sqlite3.connect(own["answer-record-file"]) as connection:
        (text,) = connection.execute("SELECT answer FROM answers").fetchone()
        for change in ({"guarantee": "secret"}, {"values_upper": [0.5]}, {"values_upper": ["secret"] * 3}):
            connection.execute("UPDATE answers SET answer = ?", (json.dumps(json.loads(text) | change),))
            connection.commit()
            refusal = ask(own, ADVERSARIAL)
            assert "must hold answers, got another thing" in refusal
            assert "secret" not in refusal
        connection.execute("UPDATE answers SET answer = ?", (text,))
    connection.close()
    assert ask(own, ADVERSARIAL) == first


def test_only_the_owner_reads_what_is_recorded_and_counted(own, tmp_path):
    own["answer-record-file"] = str(tmp_path / "answers.sqlite")
    ask(own)
    for name in ("client.sqlite", "answers.sqlite"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    (tmp_path / "answers.sqlite").chmod(0o640)  # the owner's choice stays
    ask(own)
    assert stat.S_IMODE((tmp_path / "answers.sqlite").stat().st_mode) == 0o640


def test_a_model_whose_source_changed_is_another_model(tmp_path, monkeypatch):
    source = tmp_path / "recorded_nets.py"
    source.write_text("answer = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    hashes = {"model_hash": "m", "code_hash": "c", "examples_hash": "e"}
    query = dataclasses.replace(LOSS, model="recorded_nets:Net")
    before = question_hash(query, **hashes)
    assert question_hash(query, **hashes) == before
    assert model_source_hash("recorded_nets:Net") is not None
    source.write_text("answer = 2\n")
    assert question_hash(query, **hashes) != before
    assert [model_source_hash(name) for name in ("cnn", "mlp", "no_such_module:Net", "no.such:Net")] == [None] * 4


def test_a_model_whose_package_changed_is_another_model(tmp_path, monkeypatch):
    helper = tmp_path / "recorded_package" / "parts" / "layers.py"
    helper.parent.mkdir(parents=True)
    for folder in (helper.parent, helper.parent.parent):
        (folder / "__init__.py").touch()
    (tmp_path / "recorded_package" / "nets.py").write_text("from recorded_package.parts.layers import Net\n")
    helper.write_text("answer = 1\n")
    beside = tmp_path / "beside.py"
    beside.write_text("answer = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    hashes = {"model_hash": "m", "code_hash": "c", "examples_hash": "e"}
    query = dataclasses.replace(LOSS, model="recorded_package.nets:Net")
    found = [question_hash(query, **hashes)]
    for change in (
        lambda: helper.write_text("answer = 2\n"),
        lambda: helper.rename(helper.with_name("renamed.py")),
        lambda: (helper.parent / "added.py").touch(),
        lambda: beside.write_text("answer = 2\n"),  # of no concern
    ):
        change()
        found.append(question_hash(query, **hashes))
    assert len(set(found)) == 4
    assert found[-1] == found[-2]


def test_a_place_that_cannot_be_costs_nothing(own, tmp_path):
    text = ask(own | {"answer-record-file": str(tmp_path / "absent" / "r.sqlite")})
    assert "the folder of answer-record-file must exist" in text
    assert str(tmp_path) not in text
    assert spent(own) == 0


def test_which_labels_occur_is_not_told_for_free(own, tmp_path):
    np.savez(tmp_path / "data.npz", x=np.zeros((9, 3)), y=np.arange(9) % 3)  # the model tells 2 classes apart
    text = ask(own)
    assert "evaluating the model failed with ValueError" in text
    assert spent(own) == 1


def test_what_fails_for_any_example_costs_nothing(own):
    text = ask(own, changed(ADVERSARIAL, head="7"))
    assert "its linear layers are 1, 3" in text
    assert spent(own) == 0


def test_the_place_is_the_owners_and_absolute():
    assert record_from_config({"client-id": "a"}) == AnswerRecord("a")
    with pytest.raises(ValueError, match="answer-record-file must be an absolute path"):
        record_from_config({"answer-record-file": "r.sqlite", "client-id": "a"})


def greeted(own, asked):
    grid = InProcessGrid(app, num_clients=1, run_config={"dataset": "none"}, node_configs={0: own})
    (node,) = grid.get_node_ids()
    (reply,) = grid.send_and_receive([Message(wire.encode_query(HelloQuery(asked)), node, "query.hello")])
    return wire.decode_answer(reply.content, HelloAnswer).on_record


@pytest.mark.parametrize("query", [LOSS, ADVERSARIAL])
def test_a_hello_says_what_is_on_record(own, query, tmp_path):
    asked = asked_hash(query, model_hash(model_arrays(MODEL)), code_hash())
    assert not greeted(own, asked)
    assert not (tmp_path / "client.sqlite").exists()  # asking leaves no trace
    ask(own, query)
    of_another_loss = (changed if query is ADVERSARIAL else dataclasses.replace)(query, loss="margin")
    for other in (of_another_loss, dataclasses.replace(query, num_classes=3)):
        assert not greeted(own, asked_hash(other, model_hash(model_arrays(MODEL)), code_hash()))
    assert not greeted(own, asked_hash(query, "0" * 64, code_hash()))
    assert not greeted(own, "")
    assert not greeted(own | {"client-id": "b"}, asked)
    assert greeted(own, asked)
    before = spent(own)
    ask(own, query)
    assert spent(own) == before  # as it said: for nothing


def test_without_a_record_nothing_is_on_record(own):
    del own["answer-record-file"]
    ask(own)
    assert not greeted(own, asked_hash(LOSS, model_hash(model_arrays(MODEL)), code_hash()))


def test_what_is_paid_for_is_on_record_though_the_answer_was_lost(own, tmp_path):
    np.savez(tmp_path / "data.npz", x=np.zeros((4, 3)), y=np.full(4, 7))  # no class of the model: its evaluation fails
    assert "evaluating the model failed" in ask(own)
    assert spent(own) == 1
    assert greeted(own, asked_hash(LOSS, model_hash(model_arrays(MODEL)), code_hash()))


def test_how_a_client_was_drawn_may_change_without_a_new_question(own):
    ask(own)
    answer = ask(own | {"stratum": "rural", "cluster": "chain", "sampling-weight": 2})
    assert (answer.stratum, answer.cluster, answer.sampling_weight) == ("rural", "chain", 2.0)
    assert spent(own) == 1
