"""What is asked shares the delta that was asked for, and no more, however many clients answered."""

from __future__ import annotations

import numpy as np
import pytest

import riskband as rb
from riskband.report.asked import Asked, certified
from riskband.report.compared import certified_on_scale
from riskband.report.findings import findings

DELTAS = (0.01, 0.05, 0.2)
LOSSES = np.random.default_rng(2).binomial(100, 0.1, 60) / 100
CASES = [(k, DELTAS[k % 3]) for k in range(2, 61, 2)]
ALL = [pytest.param(k, delta, marks=pytest.mark.slow) for k in range(2, 61) for delta in DELTAS]


def of_all_kinds(num_clients, delta):
    """What is found where nothing is asked: of risks, with a band and groups beside, of changes and of scores."""
    risks = rb.ClientRisks(
        LOSSES[:num_clients], 100, groups=["a", "b"] * (num_clients // 2) + ["a"] * (num_clients % 2)
    )
    yield certified(risks, Asked(delta))
    yield certified(risks, Asked(delta, band="two", groups=True))
    changes = rb.ClientChanges.from_counts([1] * num_clients, [2] * num_clients, 100)
    yield certified_on_scale(changes, delta=delta)
    yield certified_on_scale(rb.ClientScores(LOSSES[:num_clients], False), delta=delta)


@pytest.mark.parametrize(("num_clients", "delta"), [*CASES[::5], *ALL])
def test_what_holds_together_fails_no_more_often_than_was_asked(num_clients, delta):
    for found in of_all_kinds(num_clients, delta):
        assert found.delta == pytest.approx(delta, rel=1e-9)
        assert found.delta <= delta * (1.0 + 1e-12)
        assert found.statement.startswith(f"with probability at least {1.0 - delta:g} ")
        for name, one in found.beside.items():  # the largest of K is below the next one with probability 1/(K + 1)
            assert one.delta == pytest.approx(1.0 / (num_clients + 1))
            assert name not in {each for event in found.events for each in event.certificates}
        assert findings(found.certificates).delta == found.delta  # as a page finds it
        assert list(findings(found.certificates).beside) == list(found.beside)


@pytest.mark.parametrize("delta", DELTAS)
def test_the_number_of_clients_that_is_said_to_be_needed_is_the_true_one(delta):
    def default(num_clients):
        return certified(rb.ClientRisks(np.full(num_clients, 0.1), 100), Asked(delta))

    few = default(2)
    beside, alone = (int(word) for word in few.more_clients.split() if word.isdigit())
    assert f"needs {beside} clients or more beside" in few.more_clients
    at_last, before = default(beside).certificates, default(beside - 1).certificates
    assert at_last["quantile:0.9"].value < 1.0
    assert before.keys() == {"mean", "next_client"}
    for num_clients, is_bounded in ((alone - 1, False), (alone, True)):
        risks = rb.ClientRisks(np.full(num_clients, 0.1), 100)
        assert (rb.quantile(risks, 0.9, delta=delta).value < 1.0) == is_bounded


def test_a_bound_by_rank_alone_is_said_at_its_own_level():
    one = rb.next_clients(rb.ClientRisks(LOSSES[:9], 100), 1, rank=1)
    found = findings({"one": one})
    assert (found.delta, found.beside) == (pytest.approx(0.1), {})


@pytest.mark.parametrize(
    ("required", "limits"),
    [
        (["mean<=0.3"], [(0.3, None)]),
        (["mean@chi2:0.1<=0.4"], [(0.4, None)]),
        (["share:0.3@chi2:0.1<=0.5"], [(0.5, 0.3)]),
        (["quantile:0.9<=0.5", "count:0.3@next:5<=4"], []),
        (["quantile:0.9@chi2:0.1<=0.5", "cvar:0.9@chi2:0.1<=0.9"], []),  # shifted, and no mean
    ],
)
def test_only_limits_of_the_mean_and_of_shares_are_followed_over_budgets(required, limits):
    found = certified(rb.ClientRisks(LOSSES, 100), Asked(0.05, require=tuple(required)))
    assert list(found.limits) == limits
