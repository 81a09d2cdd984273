"""One wrong vector: the clients are asked once more, in groups; those with the liar are named, the others certified."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import riskband as rb
from protocol import wire
from protocol.secure.cryptography import SEED_BYTES
from riskband.answers.risks import default_eta
from riskband.flower.testing import Delivery
from strategies.asking.query import QuorumError
from strategies.asking.resume import EarlierAnswer
from tests.strategies.network import name_of
from tests.strategies.secure_network import NUM_EXAMPLES, Recording, adding, changing, raising_in, risk_of, run
from tests.strategies.test_secure_histogram import plain_counts

NUM, SIZE = 16, 4
FIRST, AGAIN = range(1, 6), range(6, 100)
LIE = adding({0: 1})


def during(rounds, behave):
    """Behave so in some rounds of a run only."""

    def sometimes(message, answer):
        return (
            behave(message, answer)
            if int(wire.round_of(message.metadata.group_id)) in rounds
            else [Delivery(answer(message))]
        )

    return sometimes


def asked_in_groups(behaviours, *, num=NUM, **changes):
    """What came of it, the grid, and the sums that were opened."""
    opened = []
    keep = {"on_answer": lambda query, answer, node_id: opened.append(answer)}
    settings = {"group_size": SIZE, "quorum": 0.2, "num_neighbours": 6} | keep
    found, grid = run(num, behaviours, **(settings | changes))
    return found, grid, opened


def group_of(found, partition):
    (group,) = (group for group in found.outcome.groups if name_of(partition) in group)
    return group


def reasons(found):
    return {failure.client_id: failure.reason.value for failure in found.outcome.failures}


def assert_counted(found, names):
    """Those of these names are counted, each once, and nobody else is."""
    assert [answer.client_id for answer in found.outcome.answers] == sorted(names)
    partitions = [k for k in range(NUM) if name_of(k) in names]
    assert found.outcome.counts == (tuple(plain_counts(partitions).tolist()),)


def wrong_shares(record):
    record["seed-shares"] = [bytes(SEED_BYTES)] * len(record["seed-shares"])


EVERYBODY = frozenset(map(name_of, range(NUM)))
LIES = {
    "one more": LIE,
    "one less": adding({0: -1}),
    "a lot": adding({3: 2**31}),
    "wrong shares": changing("secure_unmask", wrong_shares),
    "below zero, and the total is right": adding({NUM_EXAMPLES: -1, 0: 1}),
}


@pytest.mark.guard
@pytest.mark.parametrize("lie", LIES)
def test_one_liar_among_16_is_in_the_one_group_of_4_that_is_named_and_12_are_certified(lie):
    """Before, the run ended with "the counts do not add up" and named nobody."""
    found, _, _ = asked_in_groups({5: LIES[lie]})
    assert found.outcome.wrong_groups == (group_of(found, 5),)
    assert list(map(len, found.outcome.groups)) == [SIZE] * 4
    assert reasons(found) == dict.fromkeys(group_of(found, 5), "wrong-sum")
    assert_counted(found, EVERYBODY - {*group_of(found, 5)})
    assert all(rb.verify(certificate).ok for certificate in found.certificates.values())


def test_who_is_in_a_wrong_group_counts_as_the_worst():
    found, _, _ = asked_in_groups({5: LIE})
    plain = rb.ClientRisks(
        [risk_of(k) for k in range(NUM) if name_of(k) not in group_of(found, 5)],
        NUM_EXAMPLES,
        True,
        num_missing=SIZE,
        missing="worst",
    )
    band, points = rb.band(plain, delta=0.1 / 2, method="dkw"), np.linspace(0, 1, 101)
    np.testing.assert_allclose(found.band.lower(points), band.lower(points), atol=1e-9)
    assert found.band.answers.responses.contamination == 0


def test_two_liars_are_in_the_groups_that_are_named():
    found, _, _ = asked_in_groups({5: LIE, 6: adding({2: 7})})
    liars = {group_of(found, 5), group_of(found, 6)}
    assert {*found.outcome.wrong_groups} == liars
    assert_counted(found, EVERYBODY - {*chain(*liars)})


def test_two_lies_that_cancel_in_all_are_not_seen_and_alone_they_are():
    """What is not detected: a sum that could be one of histograms."""
    assert not asked_in_groups({5: LIE, 6: adding({0: -1})})[0].outcome.groups


def test_a_liar_that_is_honest_in_its_group_is_counted_and_one_answer_may_be_wrong():
    found, _, _ = asked_in_groups({5: during(FIRST, LIE)})
    assert not found.outcome.failures
    assert not found.outcome.wrong_groups
    assert_counted(found, EVERYBODY)
    assert found.band.answers.responses.contamination == 1


def test_a_liar_that_begins_in_its_group_makes_a_second_wrong_group():
    found, _, _ = asked_in_groups({5: during(FIRST, LIE), 6: during(AGAIN, LIE), 7: LIE})
    assert {*found.outcome.wrong_groups} == {group_of(found, 6), group_of(found, 7)}


@pytest.mark.parametrize("action", ["secure_keys", "secure_shares", "secure_histogram"])
def test_of_a_group_that_one_drops_out_of_nothing_is_opened(action):
    """The sum of all less those of the groups would be that of the one that is missing."""
    found, grid, opened = asked_in_groups({5: LIE, 6: during(AGAIN, raising_in(action))})
    lost = {*group_of(found, 6)}
    assert reasons(found)[name_of(6)] == "client-raised"
    if name_of(5) not in lost:
        assert {reasons(found)[name] for name in lost - {name_of(6)}} == {"no-sum"}
        assert_counted(found, EVERYBODY - lost - {*group_of(found, 5)})
    assert not any(lost & {*each.clients} for each in opened[1:])
    if action != "secure_histogram":  # nobody pays for a sum that is not opened
        asked = [r for r in grid.replies if r.metadata.message_type == "query.secure_histogram"]
        assert len(asked) == 2 * NUM - SIZE


def test_who_drops_out_when_the_vectors_are_there_is_counted():
    found, _, _ = asked_in_groups({5: LIE, 6: during(AGAIN, raising_in("secure_consistency"))}, num=15, group_size=7)
    assert [failure.client_id for failure in found.outcome.late_failures] == [name_of(6)] * (
        name_of(6) not in group_of(found, 5)
    )


def test_of_no_right_group_nothing_is_certified():
    with pytest.raises(QuorumError, match="16 x wrong-sum"):
        asked_in_groups(dict.fromkeys(range(NUM), LIE))


def test_the_quorum_is_asked_of_those_who_answered():
    """Those in the wrong group did; what is certified says itself what they cost."""
    assert len(asked_in_groups({5: LIE}, quorum=1.0)[0].outcome.answers) == NUM - SIZE


@pytest.mark.parametrize("size", [0, 9])
def test_without_two_groups_the_run_ends_as_before(size):
    with pytest.raises(ValueError, match=f"do not add up.*secure-group-size {size}"):
        asked_in_groups({5: LIE}, group_size=size)


def test_a_client_of_which_groups_would_say_too_much_refuses_at_once():
    grid = Recording(NUM, node_config={"secure-min-clients": SIZE + 1})
    with pytest.raises(QuorumError, match="groups that are asked again must have at least 5 clients, got 4"):
        asked_in_groups({}, grid=grid)
    assert len(grid.replies) == NUM  # of the first round


def test_limits_that_contradict_each_other_are_a_lie_too():
    """Each row has one count a client: the liar's upper limit is in the first bin, but no measured risk is."""
    bins = NUM_EXAMPLES + 1
    edges, eta = np.linspace(0, 1, bins + 1), default_eta(NUM)
    own = rb.risk_histogram([risk_of(5)], NUM_EXAMPLES, edges=edges, binary=True, eta=eta)
    num_without_loss = sum(risk_of(k) == 0 for k in range(NUM))
    moved = {2 * bins: -num_without_loss, 3 * bins - 1: num_without_loss}
    found, _, _ = asked_in_groups({5: adding({0: 1, int(own[0].argmax()): -1} | moved)}, num_examples=None)
    assert found.outcome.wrong_groups == (group_of(found, 5),)


# Budgets, and a run that is resumed.


def spent(grid):
    return [r for r in grid.replies if r.metadata.message_type == "query.secure_histogram" and not r.has_error()]


@cache
def uninterrupted():
    return asked_in_groups({5: LIE})[0]


class KilledError(Exception):
    """What ends a run in the middle."""


@pytest.mark.parametrize("num_opened", range(1, 5))
def test_a_run_that_is_killed_and_resumed_asks_only_groups_that_are_not_opened(num_opened):
    whole = uninterrupted()
    opened = []

    def keep(query, answer, node_id):
        opened.append(answer)
        if len(opened) == num_opened:
            raise KilledError

    with pytest.raises(KilledError):
        asked_in_groups({5: LIE}, on_answer=keep)
    earlier = [EarlierAnswer(answer) for answer in opened]
    resumed, grid, again = asked_in_groups({5: LIE}, earlier=earlier)
    assert len(spent(grid)) == NUM - SIZE * (num_opened - 1)
    assert not {answer.clients for answer in again} & {answer.clients for answer in opened}
    assert resumed.outcome == whole.outcome
    assert [c.to_json() for c in resumed.certificates.values()] == [c.to_json() for c in whole.certificates.values()]


def test_a_run_whose_sum_was_right_is_resumed_without_a_question():
    _, _, opened = asked_in_groups({})
    found, grid, again = asked_in_groups({}, earlier=[EarlierAnswer(opened[0])])
    assert not spent(grid)
    assert not again
    assert_counted(found, EVERYBODY)


def test_a_client_that_is_gone_when_a_run_is_resumed_leaves_its_group_unopened():
    _, _, opened = asked_in_groups({5: LIE})
    gone = {6: during([0], raising_in("hello"))}
    found, _, again = asked_in_groups({5: LIE} | gone, earlier=[EarlierAnswer(opened[0])])
    assert reasons(found)[name_of(6)] == "node-missing"
    assert not any(name_of(6) in answer.clients for answer in again)


# What the sums that are opened say together.


def smallest_isolated(sums):
    """The least number of clients whose own sum follows from these: by every set, and exact elimination."""
    clients = sorted(set().union(*sums))
    atoms = {}
    for client in clients:
        atoms.setdefault(tuple(client in each for each in sums), []).append(client)
    kinds = list(atoms)
    sizes = [
        sum(len(atoms[kind]) for kind in chosen)
        for size in range(1, len(kinds) + 1)
        for chosen in combinations(kinds, size)
        if follows([float(kind in chosen) for kind in kinds], [[float(k[i]) for k in kinds] for i in range(len(sums))])
    ]
    return min(sizes)


def follows(target, rows):
    """Whether a row is a combination of others."""
    exact = [[Fraction(value) for value in row] for row in rows]
    return rank(exact) == rank([*exact, [Fraction(value) for value in target]])


def rank(rows):
    rows, found = [list(row) for row in rows], 0
    for column in range(len(rows[0])):
        pivot = next((i for i in range(found, len(rows)) if rows[i][column]), None)
        if pivot is None:
            continue
        rows[found], rows[pivot] = rows[pivot], rows[found]
        for i in range(found + 1, len(rows)):
            factor = rows[i][column] / rows[found][column]
            rows[i] = [a - factor * b for a, b in zip(rows[i], rows[found], strict=True)]
        found += 1
    return found


def test_the_measure_itself_finds_one_client_between_two_sums():
    assert smallest_isolated([{1, 2, 3, 4}, {1, 2, 3}]) == 1
    assert smallest_isolated([{1, 2, 3, 4, 5, 6}, {1, 2, 3}]) == 3
    assert smallest_isolated([{1, 2, 3, 4, 5, 6}, {1, 2}, {4, 5, 6}]) == 1


actions = st.sampled_from(["secure_keys", "secure_shares", "secure_histogram", "secure_consistency", "secure_unmask"])


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.dictionaries(st.integers(0, 11), st.tuples(actions, st.booleans()), max_size=3), st.integers(0, 3))
@example({}, 0)
def test_no_difference_of_opened_sums_isolates_fewer_than_a_group(dropped, seed):
    """Whoever drops out, in the first histogram or in the groups, and whatever is opened again when resumed."""
    behaviours = {k: during(AGAIN if late else FIRST, raising_in(action)) for k, (action, late) in dropped.items()}
    behaviours.setdefault(11, LIE)
    opened = []

    def keep(query, answer, node_id):
        opened.append(answer)

    settings = {"num": 12, "group_size": 3, "seed": seed, "on_answer": keep}
    for _ in range(2):  # the second time it is resumed
        earlier = {"earlier": [EarlierAnswer(answer) for answer in opened]} if opened else {}
        try:
            asked_in_groups(behaviours, **settings, **earlier)
        except (QuorumError, ValueError):
            continue
    assume(opened)
    assert dropped or len(opened) == 1 + 12 // 3  # all, and the groups after the lie
    assert smallest_isolated([{*answer.clients} for answer in opened]) >= 3
