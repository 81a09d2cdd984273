"""One message about a new and an old model: what the real ClientApp answers, and what never leaves it."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from client.budget import QueryBudget
from protocol import wire
from protocol.hashes import model_hash
from protocol.models import build_model, model_arrays, save_checkpoint
from protocol.questions import ComparisonAnswer, ComparisonQuery
from protocol.weight_sets import joined
from strategies.asking.rules import broken_rules
from tests.client import test_app
from tests.client.test_app import CONFIG
from tests.protocol.test_wire import sent
from worlds.population import Population, spec_from_config
from worlds.training import train_epochs

NEW, OLD = (build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=seed) for seed in (1, 2))
QUERY = ComparisonQuery("zero_one", "mlp", (1, 8, 8), 10)
SIGNED = {"client_id": "a", "loss": "zero_one", "code_hash": "c", "model_hash": "m"}
OF_LOCAL = dataclasses.replace(QUERY, is_old_local=True)
BOTH, ALONE = joined([model_arrays(NEW), model_arrays(OLD)]), joined([model_arrays(NEW)])
send = partial(test_app.send, action="query.comparison")


def answers(query, arrays, *, num_clients=4, **settings):
    replies = send(test_app.network(num_clients, **settings), wire.encode_query(query, arrays))
    found = (wire.decode_answer(sent(reply.content), ComparisonAnswer) for reply in replies)
    return sorted(found, key=lambda answer: answer.client_id)


def refusal(query, arrays, *, num_clients=1, **settings):
    (reply,) = send(test_app.network(num_clients, **settings), wire.encode_query(query, arrays))
    assert reply.error.code == 2
    return reply.error.reason


def wrong_on(model, examples):
    """Which examples a model gets wrong, by torch alone."""
    with torch.no_grad():
        return (model.eval()(torch.from_numpy(examples.x)).argmax(dim=1).numpy() != examples.y).astype(int)


def num_better(answer):
    """What the server can work out."""
    return answer.num_worse - round((answer.new_risk - answer.old_risk) * answer.num_examples)


def check(answer, old, new):
    assert (answer.old_risk, answer.new_risk, answer.num_examples) == (old.mean(), new.mean(), len(old))
    assert answer.num_worse == sum(o == 0 and n == 1 for o, n in zip(old, new, strict=True))
    assert num_better(answer) == sum(o == 1 and n == 0 for o, n in zip(old, new, strict=True))


def test_a_client_counts_what_got_worse_and_better_on_its_own_examples():
    population = Population(spec_from_config(CONFIG))
    found = answers(QUERY, BOTH)
    assert (
        min(sum(each.num_worse for each in found), sum(num_better(each) for each in found)) > 0
    )  # so that the test shows something
    for k, answer in enumerate(found):
        held = population.client(k)
        check(answer, wrong_on(OLD, held), wrong_on(NEW, held))
        assert answer.model_hash == model_hash(BOTH)


def test_a_model_that_nobody_changed_answers_zeros():
    same = joined([model_arrays(NEW), model_arrays(NEW)])
    assert {(a.num_worse, num_better(a), a.new_risk - a.old_risk) for a in answers(QUERY, same)} == {(0, 0, 0.0)}


def test_another_loss_has_no_counts():
    population, found = Population(spec_from_config(CONFIG)), answers(dataclasses.replace(QUERY, loss="brier"), BOTH)
    for k, answer in enumerate(found):
        held, risks = population.client(k), []
        for model in (OLD, NEW):
            with torch.no_grad():
                p = torch.softmax(model(torch.from_numpy(held.x)).double(), 1).numpy()
            risks.append(float(((p - np.eye(10)[held.y]) ** 2).sum(axis=1).mean() / 2))
        assert (answer.old_risk, answer.new_risk) == pytest.approx(risks)
        assert answer.num_worse is None


def test_nothing_but_numbers_of_all_examples_together_leaves_a_client():
    """The order of a client's examples, and so which of them got worse, is in no bit of its reply."""
    names = {"protocol-version", "client-id", "old-risk", "new-risk", "num-worse", "num-examples", "loss"}
    (reply,) = send(test_app.network(1), wire.encode_query(QUERY, BOTH))
    assert list(reply.content) == ["answer"]
    assert set(reply.content["answer"]) == names | {"code-hash", "model-hash"}
    assert not any(isinstance(value, list | bytes) for value in reply.content["answer"].values())


def test_in_a_simulation_the_old_model_may_be_the_clients_own():
    population, found = Population(spec_from_config(CONFIG)), answers(OF_LOCAL, ALONE, num_clients=2)
    for k, answer in enumerate(found):
        own = build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=CONFIG["seed"])
        trained_on, held = population.training_examples(k), population.client(k)
        seed = int(np.random.SeedSequence(4, spawn_key=(3, 0, k)).generate_state(1, np.uint64)[0] >> np.uint64(1))
        train_epochs(own, trained_on.x, trained_on.y, seed=seed, num_epochs=2, learning_rate=0.01)
        check(answer, wrong_on(own, held), wrong_on(NEW, held))
        assert answer.model_hash == model_hash(ALONE)
    assert found[0].old_risk != found[1].old_risk


@pytest.fixture
def own(tmp_path):
    """The node config of a client with data, a model and a budget of its own."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "own.npz", x=rng.random((40, 1, 8, 8), dtype=np.float32), y=rng.integers(0, 10, 40))
    save_checkpoint(OLD, tmp_path / "local.pt")
    files = {key: str(tmp_path / "book.sqlite") for key in ("query-budget-file", "answer-record-file")}
    place = {"data": str(tmp_path / "own.npz"), "local-model": str(tmp_path / "local.pt")}
    return {"client-id": "a", "query-budget": 6, **files, **place}


OWN_DATA = {"config": {"dataset": "none"}, "num_clients": 1}


def test_elsewhere_it_is_in_its_owners_file_and_another_file_is_another_question(own, tmp_path):
    def ask():
        (answer,) = answers(OF_LOCAL, ALONE, node_configs={0: own}, **OWN_DATA)
        return answer

    class Held:
        x, y = (np.load(own["data"])[name] for name in ("x", "y"))

    check(ask(), wrong_on(OLD, Held), wrong_on(NEW, Held))
    assert ask().budget_left == 3  # from the record
    save_checkpoint(NEW, tmp_path / "local.pt")
    assert (ask().num_worse, ask().budget_left) == (0, 0)
    assert "must fit the client's query budget" in refusal(QUERY, BOTH, node_configs={0: own}, **OWN_DATA)
    assert QueryBudget("a", 6, tmp_path / "book.sqlite").spent() == {"loss": 4, "count": 2}


@pytest.mark.guard
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"local-model": None}, "the node config must have the key 'local-model'"),
        ({"local-model": "local.pt"}, "loading this client's own model failed with ValueError"),
        ({"local-model": "/no/such/patient-4711.pt"}, "loading this client's own model failed with ValueError"),
        ({"local-model": "smaller.pt"}, "a model that does not fit"),
        ({"privacy-budget": "laplace:1"}, "answers with laplace noise only"),
    ],
    ids=str,
)
def test_a_model_of_its_own_that_cannot_be_had_is_refused_without_its_place(own, tmp_path, changes, words):
    save_checkpoint(build_model("mlp", x_shape=(3,), num_classes=2, seed=0), tmp_path / "smaller.pt")
    if changes.get("local-model") == "smaller.pt":
        changes = {"local-model": str(tmp_path / "smaller.pt")}
    private = {"privacy-budget-file": str(tmp_path / "p.sqlite")} if "privacy-budget" in changes else {}
    config = {key: value for key, value in (own | private | changes).items() if value is not None}
    text = refusal(OF_LOCAL, ALONE, node_configs={0: config}, **OWN_DATA)
    assert words in text
    assert str(tmp_path) not in text
    assert "4711" not in text


@pytest.mark.guard
@pytest.mark.parametrize(
    ("query", "arrays", "words"),
    [
        (QUERY, ALONE, "fit"),
        (OF_LOCAL, BOTH, "one of 1 sets of weights"),
        (QUERY, joined([model_arrays(NEW), {"w": np.zeros(2)}]), "a model that does not fit"),
        (dataclasses.replace(QUERY, model="none"), BOTH, "without a model only plain losses"),
        (dataclasses.replace(QUERY, loss="accuracy"), BOTH, "loss must be one of"),
    ],
)
def test_what_are_not_two_models_is_refused(query, arrays, words):
    assert words in refusal(query, arrays)


def test_there_is_no_noise_on_a_comparison():
    with pytest.raises(ValueError, match="two models must have no noise"):
        dataclasses.replace(QUERY, privacy="laplace:1")


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=12), st.integers(-1, 13))
def test_the_server_believes_exactly_the_counts_that_some_examples_have(pairs, num_worse):
    """Of all examples with as many errors of either model, found by trying all, some have so many that got worse."""
    n, old, new = len(pairs), sum(o for o, _ in pairs), sum(n for _, n in pairs)
    possible = {new - both for both in range(n + 1) if both <= min(old, new) and old + new - both <= n}
    answer = ComparisonAnswer(old_risk=old / n, new_risk=new / n, num_worse=num_worse, num_examples=n, **SIGNED)
    broken = list(broken_rules(answer, QUERY, model_hash="m"))
    assert (broken == []) == (num_worse in possible)
    assert sum(n and not o for o, n in pairs) in possible


def test_counts_are_there_for_counts_alone():
    answer = ComparisonAnswer(old_risk=0.5, new_risk=0.5, num_worse=None, num_examples=2, **SIGNED)
    assert [reason for reason, _ in broken_rules(answer, QUERY, model_hash="m")] == ["contradiction"]
    other = dataclasses.replace(answer, loss="brier", num_worse=1)
    query = dataclasses.replace(QUERY, loss="brier")
    assert [reason for reason, _ in broken_rules(other, query, model_hash="m")] == ["contradiction"]
    assert not list(broken_rules(dataclasses.replace(other, num_worse=None), query, model_hash="m"))
