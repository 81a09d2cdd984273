"""Clients asked in batches until what is required is decided: who is asked, in which order, and what is certified."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Message
from flwr.clientapp import ClientApp

import riskband as rb
from protocol import wire
from protocol.codec import to_array_record
from protocol.hashes import code_hash, model_hash
from protocol.questions import HelloAnswer, LossAnswer
from riskband.answers.rows import seeded_order
from riskband.flower.testing import Delivery, InProcessGrid
from riskband.worst_cases.requirements import Requirement
from strategies.asking.query import QuorumError
from strategies.asking.resume import EarlierAnswer
from strategies.f_divergence import FDivergence
from strategies.until_decided import UntilDecided
from tests.strategies.network import ARRAYS, QUERY, late, name_of, raising, reasons

NUM_CLIENTS = 30
PASSES, FAILS, NEVER = "mean<=0.75", "mean<=0.2", "mean<=0.5"  # clients measure 0, .1, …, 1 in turn
NAMES = [name_of(k) for k in range(NUM_CLIENTS)]
ORDER = seeded_order(NAMES, seed=0)

app = ClientApp()


def answer_of(k):
    return LossAnswer(name_of(k), (k % 11) / 10, 10, "zero_one", code_hash(), model_hash(ARRAYS))


@app.query("loss")
def plain(message, context):
    return Message(wire.encode_answer(answer_of(context.node_config["partition-id"])), reply_to=message)


@app.query("hello")
def hello(message, context):
    said = HelloAnswer(name_of(context.node_config["partition-id"]), code_hash(), context.node_config.get("left"))
    return Message(wire.encode_answer(said), reply_to=message)


class Network:
    """Nodes that note which of them get the question, in which order; each that behaves in its own way greets first."""

    def __init__(self, behaviours=None, num_nodes=NUM_CLIENTS, **settings):
        self.asked = []
        noting = {k: self._noting(k, (behaviours or {}).get(k)) for k in range(num_nodes)}
        self.grid = InProcessGrid(app, num_clients=num_nodes, run_config={}, behaviours=noting, **settings)

    def _noting(self, k, behaviour):
        def behave(message, answer):
            is_hello = message.metadata.message_type == "query.hello"
            self.asked += [] if is_hello else [name_of(k)]
            return [Delivery(answer(message))] if is_hello or behaviour is None else behaviour(message, answer)

        return behave


def run(requirement, network, *, batch_size=5, max_clients=0, **settings):
    asking = {
        "num_clients": NUM_CLIENTS,
        "node_timeout": 0.02,
        "reply_timeout": 5.0,
        "poll_interval": 0.001,
        "delta": 0.05,
        "requirements": [requirement],
        "seed": 0,
        **settings,
    }
    curves = {"divergences": (), "budgets": (), "thresholds": (0.5,), "breakdown_threshold": 0.5}
    looks = {name: asking.pop(name) for name in ("on_look", "looked_at") if name in asking}
    reader = FDivergence(QUERY, band="dkw", local="marginal", **curves, **asking)
    strategy = UntilDecided(QUERY, reader=reader, batch_size=batch_size, max_clients=max_clients, **asking, **looks)
    return strategy.start(network.grid, to_array_record(ARRAYS)).conclusion


def verdict_of(conclusion, requirement):
    return Requirement.of(requirement).verdict(
        conclusion.required["mean"].lower, float(conclusion.required["mean"].value)
    )


def partition(name):
    return int(name.removeprefix("client-"))


def those(names, behaviour):
    return {partition(name): behaviour for name in names}


def order_of(conclusion):
    return [answer.client_id for answer in conclusion.outcome.answers]


@pytest.mark.parametrize(("requirement", "verdict"), [(PASSES, "PASS"), (FAILS, "FAIL")])
def test_it_stops_with_the_first_batch_that_decides_and_leaves_the_others_alone(requirement, verdict):
    network = Network()
    found = run(requirement, network)
    asked = order_of(found)
    assert asked == ORDER[: len(asked)]
    assert sorted(network.asked) == sorted(asked)
    assert 5 < len(asked) < NUM_CLIENTS
    assert sorted([*asked, *found.outcome.unasked]) == NAMES
    assert found.outcome.num_asked == len(asked)
    assert verdict_of(found, requirement) == verdict
    # One client after the other, by hand: it is decided within the last batch, and not before.
    sequence, decided = rb.Sequence(requirement, delta=0.05, order="committed", binary=True), []
    for name in asked:
        decided.append(sequence.add(values=(partition(name) % 11) / 10, num_examples=10))
    assert decided.index(True) >= len(asked) - 5
    mean = found.required["mean"]
    assert (mean.lower, mean.value) == (sequence.certificates["mean"].lower, sequence.certificates["mean"].value)
    assert mean.recipe["answers"]["values"] == [(partition(name) % 11) / 10 for name in asked]
    assert rb.verify(mean).ok


def test_what_no_number_of_clients_decides_ends_with_all_of_them_or_with_the_most_that_are_allowed():
    for max_clients, num_asked in ((0, NUM_CLIENTS), (13, 13)):
        network = Network()
        found = run(NEVER, network, max_clients=max_clients)
        assert len(network.asked) == len(set(network.asked)) == len(found.outcome.answers) == num_asked
        assert len(found.outcome.unasked) == NUM_CLIENTS - num_asked
        assert verdict_of(found, NEVER) == "NOT DECIDED"


def test_the_order_is_the_seeds_whoever_is_there_and_whatever_arrives_first():
    first = run(NEVER, Network(seed=1), max_clients=20)
    assert order_of(first) == ORDER[:20] != sorted(ORDER[:20])
    rng = np.random.default_rng(0)
    delays = {k: late(int(rng.integers(0, 30))) for k in range(NUM_CLIENTS)}
    slow = Network(delays, seed=2, nodes_ready_after={k: k for k in range(8)})
    again = run(NEVER, slow, max_clients=20, batch_size=7, node_timeout=5.0)
    assert order_of(again) == ORDER[:20]
    assert again.required["mean"].to_dict() == first.required["mean"].to_dict()
    fewer = run(NEVER, Network(num_nodes=28), max_clients=10)  # without the last two
    assert order_of(fewer) == [name for name in ORDER if partition(name) < 28][:10]


def test_every_order_is_equally_likely():
    """Of 6,000 seeds: by chi-square with 5 degrees of freedom fair orders of three are above 25.7 once in 10,000."""
    orders = [tuple(seeded_order(["a", "b", "client-00003"], seed=seed)) for seed in range(6_000)]
    counts = np.array([orders.count(each) for each in set(orders)])
    assert len(counts) == 6
    assert np.sum((counts - 1_000.0) ** 2 / 1_000.0) < 25.7


def test_a_client_that_fails_is_missing_and_the_others_decide():
    found = run(PASSES, Network(those(ORDER[1:3], raising)), quorum=0.8)
    asked = [name for name in ORDER if name not in ORDER[1:3]]
    assert order_of(found) == asked[: len(order_of(found))]
    assert [name for name, _ in reasons(found.outcome)] == sorted(ORDER[1:3])
    assert found.outcome.num_asked == len(order_of(found)) + 2
    assert any("the 2 clients that were asked" in line for line in found.required["mean"].assumptions)


def test_a_batch_that_fails_ends_the_run_only_if_the_quorum_is_out_of_reach():
    failing = those(ORDER[:5], raising)
    found = run(PASSES, Network(failing), quorum=0.5)
    assert order_of(found) == ORDER[5 : 5 + len(order_of(found))]
    # With a fifth that may fail, 20 more are asked, though it is decided before.
    assert len(run(PASSES, Network(failing), quorum=0.8).outcome.answers) == 20
    network = Network(those(NAMES, raising))
    with pytest.raises(QuorumError, match=r"5 of 5 clients must answer validly .*, got 0 valid answers"):
        run(PASSES, network, quorum=0.9)
    assert sorted(network.asked) == sorted(ORDER[:5])


def test_too_few_nodes_are_asked_nothing():
    network = Network(num_nodes=20)
    with pytest.raises(QuorumError, match="27 of 30 clients"):
        run(PASSES, network)
    assert network.asked == []


def test_who_has_nothing_left_is_passed_over_and_loses_nothing():
    network = Network(node_configs=those(ORDER[:3], {"left": 0}))
    found = run(PASSES, network, respect_budgets=True)
    assert order_of(found) == ORDER[3 : 3 + len(network.asked)]
    assert reasons(found.outcome) == [(name, "budget-spent") for name in sorted(ORDER[:3])]


def test_a_resumed_run_goes_on_in_the_same_order_and_asks_nobody_twice():
    whole = run(PASSES, Network(seed=1))
    answers = whole.outcome.answers
    held = [answers[k] for k in (0, 1, 2, 3, 4, 6)]  # as they arrived before it was killed in the second batch
    network = Network(seed=3)
    again = run(PASSES, network, earlier=list(map(EarlierAnswer, held)))
    assert sorted(network.asked) == sorted(each.client_id for each in answers if each not in held)
    assert again.outcome == whole.outcome
    assert again.required["mean"].to_dict() == whole.required["mean"].to_dict()
    nobody = Network()
    assert run(PASSES, nobody, earlier=list(map(EarlierAnswer, answers))).outcome == whole.outcome
    assert nobody.asked == []


def until_decided(requirement, network, **settings):
    """Run as `run`, and return with the conclusion the clients at whose turn the answers were looked at."""
    looked_at = []
    found = run(requirement, network, on_look=lambda client_id: looked_at.append(client_id), **settings)
    return found, looked_at


def test_what_was_looked_at_stays_the_beginning_of_what_is_looked_at_again():
    """A client that failed in the first batch, and is back when the second is asked again, would come in between."""
    whole, looked_at = until_decided(PASSES, Network(), quorum=0.8)
    answers = whole.outcome.answers
    assert looked_at[0] == ORDER[4]
    network = Network()
    held = [EarlierAnswer(answers[k]) for k in (0, 1, 2, 4, 6)]
    again = run(PASSES, network, earlier=held, looked_at=looked_at[:1], quorum=0.8)
    assert ORDER[3] not in {*network.asked, *order_of(again)}
    assert ORDER[5] in network.asked  # the second batch was not looked at
    assert reasons(again.outcome) == [(ORDER[3], "no-reply")]


def test_who_failed_in_the_last_batch_has_no_second_chance_once_a_report_was_made():
    """Else whoever dislikes a report could ask again those who are missing from it."""
    failing = those(ORDER[11:13], raising)
    first, looked_at = until_decided(NEVER, Network(failing), max_clients=15, quorum=0.8)
    held = list(map(EarlierAnswer, first.outcome.answers))
    network = Network()
    again = run(NEVER, network, max_clients=15, quorum=0.8, earlier=held, looked_at=looked_at)
    assert network.asked == []
    assert again.required["mean"].to_dict() == first.required["mean"].to_dict()
    more = run(NEVER, network, max_clients=20, quorum=0.8, earlier=held, looked_at=looked_at)
    assert {*ORDER[11:13]}.isdisjoint(network.asked)
    assert order_of(more) == [*order_of(first), *ORDER[15:20]]


def test_who_failed_is_asked_again_as_long_as_nobody_looked():
    """A run that misses its quorum says nothing of the others, and goes on once the clients are repaired."""
    looked_at = []
    with pytest.raises(QuorumError):
        run(
            PASSES,
            Network(those(ORDER[:5], raising)),
            quorum=0.9,
            on_look=lambda client_id: looked_at.append(client_id),
        )
    assert looked_at == []
    assert order_of(run(PASSES, Network(), quorum=0.9, earlier=(), looked_at=looked_at))[:5] == ORDER[:5]


def test_of_a_client_whose_answer_is_held_nobody_says_that_its_budget_is_whole():
    held = [EarlierAnswer(answer_of(partition(name))) for name in ORDER[:7]]
    found = run("mean<=0.01", Network(), earlier=held, max_clients=5, quorum=0.1)
    assert order_of(found) == ORDER[:5]
    assert {*ORDER[5:7]}.isdisjoint(found.outcome.unasked)
    assert ORDER[7] in found.outcome.unasked


@pytest.mark.parametrize("requirement", ["count:0.3@next:20<=4", "nonsense<=0.2"])
def test_what_a_sequence_cannot_decide_is_refused_before_anybody_is_asked(requirement):
    network = Network()
    with pytest.raises(ValueError, match="must"):
        run(requirement, network)
    assert network.asked == []
