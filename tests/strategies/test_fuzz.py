"""Thousands of hostile replies: the round ends, the honest answers are all there, and nothing else is."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from flwr.app import Error, Message
from flwr.clientapp import ClientApp

from protocol import wire
from protocol.codec import to_array_record
from protocol.hashes import code_hash, model_hash
from protocol.questions import (
    AdversarialAnswer,
    AdversarialQuery,
    Candidate,
    CandidatesAnswer,
    CandidatesQuery,
    ComparisonAnswer,
    ComparisonQuery,
    HelloAnswer,
    LossAnswer,
    LossQuery,
)
from riskband.adversaries.problem import TransportProblem
from riskband.answers.concave_curves import knapsack_curve
from riskband.flower.testing import Delivery, InProcessGrid
from strategies.dispersion import Dispersion
from strategies.f_divergence import FDivergence
from strategies.wasserstein import Wasserstein
from tests.strategies.mutations import HARMFUL, HARMLESS, pick
from tests.strategies.network import Asking, name_of
from tests.transport import adversarial_query

NUM_CLIENTS = 10
NUM_HOSTILE = 8
ARRAYS = {"0/w": np.arange(6, dtype=np.float32), "1/w": np.ones(2, dtype=np.float32)}
CANDIDATES = (Candidate("a", 0, "zero_one"), Candidate("b", 1, "brier"))
QUERIES = {
    "loss": LossQuery("zero_one", "tiny", (3,), 2),
    "adversarial_loss": adversarial_query(
        "zero_one", "tiny", (3,), 2, order=1, radii=(0.0, 0.1, 0.2, 0.5), multipliers=(0.25, 0.5, 2.0)
    ),
    "candidates": CandidatesQuery("tiny", (3,), 2, CANDIDATES),
    "comparison": ComparisonQuery("zero_one", "tiny", (3,), 2),
}

app = ClientApp()


def honest_answer(kind, partition):
    """What client k of a small network answers."""
    identity = {
        "client_id": name_of(partition),
        "code_hash": code_hash(),
        "model_hash": model_hash(ARRAYS),
        "num_examples": 10,
    }
    if kind == "hello":
        return HelloAnswer(name_of(partition), code_hash(), 7)
    if kind == "loss":
        return LossAnswer(risk=partition / 10, loss="zero_one", **identity)
    if kind == "candidates":
        return CandidatesAnswer(risks=(partition / 10, 0.123), loss="zero_one,brier", budget_left=5, **identity)
    if kind == "comparison":
        return ComparisonAnswer(old_risk=0.4, new_risk=0.3, num_worse=2, loss="zero_one", budget_left=5, **identity)
    query = QUERIES[kind]
    curve = knapsack_curve(0.1 * (partition + 1) * np.arange(10))  # one example in ten is wrong from the start
    values, conjugates = tuple(curve(query.radii).tolist()), tuple(curve.conjugate(query.multipliers).tolist())
    return AdversarialAnswer(
        clean_risk=0.1,
        values_lower=values,
        values_upper=values,
        conjugates_lower=conjugates,
        conjugates_upper=conjugates,
        adversarial_unit=0.4,
        guarantee="exact",
        loss="zero_one",
        budget_left=3,
        **identity,
    )


def answering(kind):
    def answer(message, context):
        found = honest_answer(kind, context.node_config["partition-id"])
        content = wire.encode_answer(found)
        return Message(content, reply_to=message)

    return answer


for each in HARMFUL:
    app.query(each)(answering(each))


def edited(mutation, rng, partition):
    def behave(message, answer):
        reply = answer(message)
        mutation(rng, reply.content, name_of(partition))
        return [Delivery(Message(reply.content, reply_to=message), int(rng.integers(3)))]

    return behave


def stealing(victim):
    def behave(message, answer):
        content = answer(message).content
        content["answer"]["client-id"] = name_of(victim)
        return [Delivery(Message(content, reply_to=message))]

    return behave


def failing(rng):
    reason = pick(rng, ["", "x" * 100_000, "\x1b[31m\n\n", "🙂" * 1000, "Traceback (most recent call last)"])
    code = pick(rng, [0, 1, 2, 3, 5, 8, 99])
    return lambda message, answer: [Delivery(Message(Error(code, reason), reply_to=message))]


def answering_twice(rng, *, is_same):
    def behave(message, answer):
        first, second = answer(message), answer(message)
        if not is_same:
            second.content["answer"]["code-hash"] = "0"
        # Nobody waits for a second reply: it can contradict the first only if it comes with it.
        return [Delivery(first), Delivery(second, int(rng.integers(3)) if is_same else 0)]

    return behave


def raising(message, answer):
    raise KeyError("\x00" * 1000)


def hostile_network(kind, rng):
    """Behaviours of the hostile nodes, and the clients that must be believed: (behaviours, names, what was done)."""
    hostile = rng.permutation(NUM_CLIENTS)[:NUM_HOSTILE].tolist()
    honest = sorted(set(range(NUM_CLIENTS)) - set(hostile))
    believed = set(honest)
    behaviours, done = {}, []
    for partition in hostile:
        draw = rng.random()
        if draw < 0.85:
            mutation = pick(rng, HARMFUL[kind])
            behaviours[partition] = edited(mutation, rng, partition)
            done.append(mutation.__name__)
        elif draw < 0.88:
            victim = pick(rng, honest)
            behaviours[partition] = stealing(victim)
            believed -= {victim}
            done.append("stealing")
        elif draw < 0.92:
            behaviours[partition] = pick(rng, [failing(rng), answering_twice(rng, is_same=False), raising])
            done.append("failing")
        else:
            mutation = pick(rng, HARMLESS)
            is_repeat = rng.random() < 0.5
            behaviours[partition] = (
                answering_twice(rng, is_same=True) if is_repeat else edited(mutation, rng, partition)
            )
            believed |= {partition}
            done.append("harmless")
    return behaviours, believed, done


@pytest.mark.parametrize("num_rounds", [50, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("number", "kind"), list(enumerate(HARMFUL)))
def test_hostile_replies_are_refused_and_honest_ones_believed(number, kind, num_rounds):
    """4 kinds of question x 100 rounds x 8 hostile replies: 3,200 messages; the names are known, as in a simulation."""
    rng = np.random.default_rng(np.random.SeedSequence(11, spawn_key=(number,)))
    names = frozenset(name_of(k) for k in range(NUM_CLIENTS))
    counts = Counter()
    for _ in range(num_rounds):
        behaviours, believed, done = hostile_network(kind, rng)
        recorded = []
        strategy = Asking(
            QUERIES["loss"],
            num_clients=NUM_CLIENTS,
            quorum=0.001,
            node_timeout=0.05,
            reply_timeout=20.0,
            poll_interval=0.001,
            expected_client_ids=names,
            on_answer=lambda query, answer, node_id, recorded=recorded: recorded.append(answer),
        )
        grid = InProcessGrid(
            app, num_clients=NUM_CLIENTS, run_config={}, behaviours=behaviours, seed=int(rng.integers(99))
        )
        if kind == "hello":
            outcome = strategy.meet(grid)
        elif believed:
            outcome = strategy.ask(grid, QUERIES[kind], ARRAYS)
        else:
            with pytest.raises(RuntimeError, match="quorum") as caught:
                strategy.ask(grid, QUERIES[kind], ARRAYS)
            outcome = caught.value.outcome
        assert outcome.answers == tuple(honest_answer(kind, k) for k in sorted(believed)), done
        assert len(outcome.answers) + len(outcome.failures) == NUM_CLIENTS
        assert all(len(f.detail) < 500 and f.detail.isprintable() for f in outcome.failures)
        # What a ledger was handed is honest too: the names that are contested are settled later.
        assert {answer.client_id for answer in recorded} <= names
        assert all(
            answer in [honest_answer(kind, k) for k in range(NUM_CLIENTS)]
            or "stealing" in done  # a liar's own numbers under a name that is then contested
            for answer in recorded
        )
        counts.update(done)
    assert sum(counts.values()) == num_rounds * NUM_HOSTILE
    often = num_rounds // 20
    assert all(counts[mutation.__name__] > often for mutation in HARMFUL[kind])
    assert min(counts["stealing"], counts["failing"], counts["harmless"]) > often


SETTINGS = {
    "num_clients": NUM_CLIENTS,
    "quorum": 0.5,
    "node_timeout": 0.05,
    "reply_timeout": 5.0,
    "poll_interval": 0.001,
}
SETTINGS |= {"delta": 0.1}
QUERY = LossQuery("zero_one", "tiny", (3,), 2)
LOSS_STRATEGIES = {
    "f_divergence": lambda: FDivergence(
        QUERY,
        band="dkw",
        local="marginal",
        divergences=("kl", "chi2"),
        budgets=(0.05,),
        thresholds=(0.2, 0.5),
        breakdown_threshold=0.3,
        **SETTINGS,
    ),
    "dispersion": lambda: Dispersion(QUERY, band="dkw", local="marginal", measures=("gini",), **SETTINGS),
}


def lying(kind, **claims):
    def behave(message, answer):
        honest = wire.decode_answer(answer(message).content, kind)
        return [Delivery(Message(wire.encode_answer(dataclasses.replace(honest, **claims)), reply_to=message))]

    return behave


@pytest.mark.parametrize("name", LOSS_STRATEGIES)
@pytest.mark.parametrize(
    "lie",
    [
        {"risk": 1.0, "num_examples": 1},
        {"risk": 0.0, "num_examples": 10**12},
        {"risk": 1.0, "num_examples": 2**53},
        {"risk": 0.5, "num_examples": 2**62},
        {"group": "x" * 100},
    ],
    ids=str,
)
def test_a_lie_that_could_be_true_does_not_stop_a_strategy(name, lie):
    behaviours = {3: lying(LossAnswer, **lie)}
    grid = InProcessGrid(app, num_clients=NUM_CLIENTS, run_config={}, behaviours=behaviours)
    result = LOSS_STRATEGIES[name]().start(grid, to_array_record(ARRAYS))
    assert len(result.outcome.answers) >= NUM_CLIENTS - 1
    assert all(np.all(np.isfinite(c.value)) for c in result.conclusion.certificates.values())


@pytest.mark.guard
@pytest.mark.parametrize(
    "lie",
    [
        {"num_examples": 2**62},
        {"adversarial_unit": 1.7e308},
        {"adversarial_unit": 5e-324},
        {"guarantee": "lower"},
        {"guarantee": "upper"},
        {"budget_left": 2**62},
        {"budget_left": 0},
        dict.fromkeys(("conjugates_lower", "conjugates_upper"), (0.96, 0.98, 1.0)),
        dict.fromkeys(("conjugates_lower", "conjugates_upper"), (0.96, 0.96 + 9e-7, 0.96)),  # as if rounded
        {"values_lower": (0.1, 0.2, 0.4, 0.9, 0.9)},
        {"values_lower": (0.0, 0.0, 0.0, 0.0, 0.0)},
        {"clean_risk": 0.2},
    ],
    ids=str,
)
def test_a_lie_about_a_curve_does_not_stop_a_strategy(lie):
    strategy = Wasserstein(
        AdversarialQuery("tiny", (3,), 2, TransportProblem("zero_one", order=1)),
        cost_budgets=(0.0, 0.1, 0.5),
        cost_thresholds=(0.5,),
        num_radii=5,
        num_multipliers=3,
        protocol="one-round",
        bisection_tolerance=0.001,
        cost_bound=0.0,
        breakdown_target=0.1,
        **SETTINGS,
    )
    curve = knapsack_curve(0.1 * np.arange(10))
    values = tuple(curve(strategy.query.radii).tolist())
    conjugates = tuple(curve.conjugate(strategy.query.multipliers).tolist())
    true = dict.fromkeys(("values_lower", "values_upper"), values)
    true |= dict.fromkeys(("conjugates_lower", "conjugates_upper"), conjugates)
    behaviours = {k: lying(AdversarialAnswer, **(true | (lie if k in (3, 4) else {}))) for k in range(NUM_CLIENTS)}
    grid = InProcessGrid(app, num_clients=NUM_CLIENTS, run_config={}, behaviours=behaviours)
    result = strategy.start(grid, to_array_record(ARRAYS))
    assert len(result.outcome.answers) >= NUM_CLIENTS - 2
    assert all(np.all(np.isfinite(c.value)) for c in result.conclusion.certificates.values())
