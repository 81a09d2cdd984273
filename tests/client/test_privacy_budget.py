"""The privacy budget adds up exactly, on disk, whatever happens to the processes that spend it."""

from __future__ import annotations

import multiprocessing
import stat
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.privacy import PrivacyBudget, PrivacyBudgetError, privacy_from_config
from protocol.mechanisms import mechanism_of
from tests.client.privacy_worker import spend_many


@given(costs=st.lists(st.integers(1, 40), max_size=6), limit=st.integers(1, 100))
def test_the_sum_is_exact_and_never_exceeds_the_budget(tmp_path_factory, costs, limit):
    total = mechanism_of(f"gaussian:{limit / 10!r}")
    budget = PrivacyBudget("a", total, tmp_path_factory.mktemp("budget") / "p.sqlite")
    spent = 0
    for cost in costs:
        if spent + cost <= limit:
            budget.spend(mechanism_of(f"gaussian:{cost / 10!r}"))
            spent += cost
        else:
            with pytest.raises(PrivacyBudgetError, match="rho = "):
                budget.spend(mechanism_of(f"gaussian:{cost / 10!r}"))
        assert budget.left() == Fraction(limit - spent, 10)


def test_processes_that_ask_at_once_share_one_budget(tmp_path):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=spend_many, args=(tmp_path / "p.sqlite", queue)) for _ in range(3)]
    for process in processes:
        process.start()
    answered = [queue.get(timeout=90) for _ in processes]
    for process in processes:
        process.join()
    assert sum(answered) == 50


def test_the_file_is_private_and_made_only_when_something_is_spent(tmp_path):
    budget = PrivacyBudget("a", mechanism_of("laplace:1"), tmp_path / "p.sqlite")
    assert budget.left() == 1
    budget.require_left(mechanism_of("laplace:1"))
    assert not (tmp_path / "p.sqlite").exists()
    budget.spend(mechanism_of("laplace:1"))
    assert stat.S_IMODE((tmp_path / "p.sqlite").stat().st_mode) == 0o600
    PrivacyBudget("b", mechanism_of("laplace:1"), tmp_path / "p.sqlite").spend(mechanism_of("laplace:1"))
    with pytest.raises(PrivacyBudgetError):
        budget.spend(mechanism_of("laplace:0.1"))


def test_what_was_spent_stays_spent_when_the_owner_changes_the_budget(tmp_path):
    path = tmp_path / "p.sqlite"
    PrivacyBudget("a", mechanism_of("laplace:1"), path).spend(mechanism_of("laplace:1"))
    assert PrivacyBudget("a", mechanism_of("laplace:3"), path).left() == 2
    assert PrivacyBudget("a", mechanism_of("laplace:0.5"), path).left() == 0
    with pytest.raises(PrivacyBudgetError, match="epsilons and rhos do not add up"):
        PrivacyBudget("a", mechanism_of("gaussian:3"), path).spend(mechanism_of("gaussian:1"))


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        ({"privacy-budget": "laplace:1"}, "needs a privacy-budget-file"),
        ({"privacy-budget": "laplace:1", "privacy-budget-file": "p.sqlite"}, "must be an absolute path"),
        ({"privacy-budget": 2.0, "privacy-budget-file": "/p"}, "must be a text such as 'laplace:2'.*, got float"),
        ({"privacy-budget": "laplace", "privacy-budget-file": "/p"}, "privacy-budget: privacy must be"),
        ({"privacy-budget": "laplace:inf", "privacy-budget-file": "/p"}, "privacy-budget: privacy must be"),
    ],
)
def test_a_budget_that_could_not_hold_is_refused(config, rule):
    with pytest.raises(ValueError, match=rule):
        privacy_from_config(config | {"client-id": "a"})
