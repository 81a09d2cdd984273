"""A round about several candidates, on an honest network and on one that misbehaves."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from flwr.app import Message
from flwr.clientapp import ClientApp

import riskband as rb
from client.app import app as real_app
from protocol import wire
from protocol.codec import to_array_record
from protocol.hashes import code_hash, model_hash
from protocol.models import build_model, model_arrays
from protocol.questions import Candidate, CandidatesAnswer, CandidatesQuery, LossAnswer
from protocol.weight_sets import packed
from riskband.flower.testing import Delivery, InProcessGrid, node_unavailable
from strategies.asking.query import QuorumError
from strategies.asking.resume import EarlierAnswer
from strategies.selection import SelectionStrategy
from tests.strategies import network as shared
from tests.strategies.network import raising

NUM_CLIENTS = 12
CANDIDATES = (Candidate("errors", 0, "zero_one"), Candidate("scores", 1, "brier"), Candidate("sure", 0, "abstain:0.8"))
ARRAYS = {"0/w": np.zeros(2, dtype=np.float32), "1/w": np.ones(2, dtype=np.float32)}
RISKS = np.random.default_rng(0).integers(0, 11, (NUM_CLIENTS, 3)) / 10 * [1.0, 0.5, 0.25]

app = ClientApp()


@app.query("candidates")
def honest_client(message, context):
    query, arrays = wire.decode_query(message.content, CandidatesQuery), wire.decode_weights(message.content)
    partition = int(context.node_config["partition-id"])
    return Message(wire.encode_answer(answer_of(partition, query, arrays)), reply_to=message)


def answer_of(partition, query=None, arrays=ARRAYS):
    return CandidatesAnswer(
        client_id=f"client-{partition:05d}",
        risks=tuple(RISKS[partition].tolist()),
        num_examples=10,
        loss="zero_one,brier,abstain:0.8" if query is None else query.loss,
        code_hash=code_hash(),
        model_hash=model_hash(arrays),
    )


def strategy(*, candidates=CANDIDATES, x_shape=(3,), num_classes=2, privacy="", **settings):
    query = CandidatesQuery("mlp", x_shape, num_classes, tuple(candidates), privacy)
    defaults = {
        "objective": "mean+0.5*gini",
        "delta": 0.1,
        "num_clients": NUM_CLIENTS,
        "quorum": 0.5,
        "node_timeout": 0.05,
        "reply_timeout": 5.0,
        "poll_interval": 0.001,
    }
    return SelectionStrategy(query, **(defaults | settings))


network = partial(shared.network, client=app, num_clients=NUM_CLIENTS)
claiming = partial(shared.claiming, CandidatesAnswer)


def ask(behaviours=None, **settings):
    return strategy(**settings).start(network(behaviours), to_array_record(ARRAYS)).conclusion


def test_every_candidate_is_judged_by_every_client_in_one_round():
    found = ask()
    assert found.outcome.num_asked == NUM_CLIENTS
    assert found.outcome.answers == tuple(answer_of(k) for k in range(NUM_CLIENTS))
    assert list(found.by_candidate) == ["errors", "scores", "sure"]
    for column, name in enumerate(found.by_candidate):
        np.testing.assert_array_equal(found.by_candidate[name].values, RISKS[:, column])
        assert found.by_candidate[name].binary == (name == "errors")
        assert found.by_candidate[name].num_examples.tolist() == [10] * NUM_CLIENTS
    expected = rb.select(found.by_candidate, objective="mean+0.5*gini", delta=0.1)
    assert found.selection.best == expected.best
    assert found.selection.certificate.to_json() == expected.certificate.to_json()
    assert rb.verify(found.selection.certificate).ok


@pytest.mark.guard
@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"risks": (0.3, 0.3)}, "wrong-length"),
        ({"risks": (0.3, 0.3, 0.2, 0.1)}, "wrong-length"),
        ({"risks": ()}, "wrong-length"),
        ({"risks": (0.3, math.nan, 0.2)}, "not-finite"),
        ({"risks": (0.3, 0.2, math.inf)}, "not-finite"),
        ({"risks": (0.3, -0.1, 0.2)}, "out-of-range"),
        ({"risks": (0.3, 0.3, 1.5)}, "out-of-range"),
        ({"risks": (0.35, 0.3, 0.2)}, "impossible-count"),
        ({"num_examples": 0}, "no-examples"),
        ({"loss": "zero_one,abstain:0.8,brier"}, "wrong-loss"),
        ({"loss": "zero_one,brier,abstain:0.7"}, "wrong-loss"),
        ({"model_hash": "0" * 64}, "wrong-model"),
        ({"code_hash": "0" * 64, "risks": ()}, "wrong-code"),
        ({"client_id": "client-00004"}, "claimed-twice"),
    ],
)
def test_a_claim_that_cannot_be_true_is_refused_and_named(claims, reason):
    found = ask({3: claiming(**claims)})
    assert {failure.reason.value for failure in found.outcome.failures} == {reason}
    refused = {"client-00003", "client-00004"} if reason == "claimed-twice" else {"client-00003"}
    answered = {answer.client_id for answer in found.outcome.answers}
    assert answered == {f"client-{k:05d}" for k in range(NUM_CLIENTS)} - refused


def test_risks_that_are_no_counts_are_fine_for_losses_that_are_not_binary():
    found = ask({3: claiming(risks=(0.3, 0.123, 0.456))})
    assert found.outcome.answers[3].risks == (0.3, 0.123, 0.456)


def plain_answer(message, answer):
    """An answer to another question."""
    honest = answer_of(3)
    fields = ("client_id", "num_examples", "loss", "code_hash", "model_hash")
    other = LossAnswer(risk=0.3, **{name: getattr(honest, name) for name in fields})
    return [Delivery(Message(wire.encode_answer(other), reply_to=message))]


@pytest.mark.usefixtures("idle_clock")
def test_whoever_fails_is_missing_for_every_candidate():
    behaviours = {1: raising, 3: plain_answer, 5: node_unavailable, 7: lambda message, answer: []}
    found = ask(behaviours, reply_timeout=1.0, missing="worst")
    reasons = sorted(failure.reason.value for failure in found.outcome.failures)
    assert reasons == ["client-raised", "malformed", "no-reply", "node-unavailable"]
    for risks in found.by_candidate.values():
        assert (risks.num_clients, risks.num_missing, risks.missing) == (8, 4, "worst")
    assert rb.verify(found.selection.certificate).ok
    ignoring = ask(behaviours, reply_timeout=1.0)
    for worse, better in zip(found.selection.candidates, ignoring.selection.candidates, strict=True):
        assert worse.terms["mean"] > better.terms["mean"]


def test_too_few_answers_give_no_selection():
    with pytest.raises(QuorumError):
        ask(dict.fromkeys(range(7), raising))


def test_a_target_that_no_candidate_meets_gives_no_certificate():
    found = ask(selection_settings={"method": "fixed_sequence", "target": 1e-6})
    assert (found.selection.best, found.selection.certificate) == (None, None)


def test_losses_travel_under_their_own_names():
    asked = strategy(candidates=[Candidate("a", 0, "abstain:.80")]).query
    assert asked.loss == "abstain:0.8"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"candidates": ()}, "one or more"),
        ({"candidates": [Candidate("a", 0, "accuracy")]}, "loss must be one of"),
        ({"objective": "variance"}, "term of an objective"),
        ({"delta": 0.0}, "delta must be in"),
        ({"selection_settings": {"method": "fixed_sequence"}}, "needs a target"),
        ({"selection_settings": {"order": ["errors"]}}, "every candidate once"),
        ({"quorum": 0}, "quorum must be in"),
    ],
)
def test_wrong_settings_are_refused_before_anyone_is_asked(settings, text):
    with pytest.raises(ValueError, match=text):
        strategy(**settings)


MODELS = {seed: build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=seed) for seed in (1, 2)}
CONFIG = {
    "dataset": "digits",
    "seed": 4,
    "examples-per-client": 20,
    "affine-sigma": 0.2,
    "dirichlet-concentration": 1.0,
}


def test_the_real_clients_spend_one_value_per_candidate_and_who_cannot_is_left_out(tmp_path):
    models = {f"seed-{seed}": (model_arrays(model), "zero_one") for seed, model in MODELS.items()}
    candidates, arrays = packed(models | {"sure": (model_arrays(MODELS[1]), "abstain:0.2")})
    budgets = {k: {"query-budget": 2 + 3 * k, "query-budget-file": str(tmp_path / f"{k}.sqlite")} for k in range(4)}
    grid = InProcessGrid(real_app, num_clients=4, run_config=CONFIG, node_configs=budgets)
    asking = strategy(
        candidates=candidates, x_shape=(1, 8, 8), num_classes=10, num_clients=4, quorum=0.5, respect_budgets=True
    )
    found = asking.start(grid, to_array_record(arrays)).conclusion
    assert [(f.client_id, f.reason.value) for f in found.outcome.failures] == [("client-00000", "budget-spent")]
    assert [answer.budget_left for answer in found.outcome.answers] == [2, 5, 8]
    assert found.selection.best in {"seed-1", "seed-2", "sure"}


def test_a_resumed_run_asks_only_those_whose_answer_is_missing(tmp_path):
    candidates, arrays = packed({f"seed-{s}": (model_arrays(model), "zero_one") for s, model in MODELS.items()})
    budgets = {k: {"query-budget": 10, "query-budget-file": str(tmp_path / f"{k}.sqlite")} for k in range(4)}

    def run(**settings):
        grid = InProcessGrid(real_app, num_clients=4, run_config=CONFIG, node_configs=budgets)
        asking = strategy(candidates=candidates, x_shape=(1, 8, 8), num_classes=10, num_clients=4, **settings)
        return asking.start(grid, to_array_record(arrays)).conclusion

    first = run()
    again = run(earlier=[EarlierAnswer(answer) for answer in first.outcome.answers[:3]])
    assert [answer.budget_left for answer in again.outcome.answers] == [8, 8, 8, 6]
    assert again.selection.certificate.to_json() == first.selection.certificate.to_json()
