"""The query budget holds whatever happens to the processes that count on it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.book import opened
from client.budget import QueryBudget, QueryBudgetError, Request, budget_from_config
from riskband.checks import RefusedError


def test_every_value_counts_and_a_query_is_answered_whole_or_not_at_all(tmp_path):
    budget = QueryBudget("a", 10, tmp_path / "budget.sqlite")
    assert budget.spend(Request(losses=1)) == 9
    assert budget.spend(Request(losses=1, radii=4, multipliers=1, units=1)) == 2
    with pytest.raises(QueryBudgetError, match="query budget of 10 values, got 3 with 2 left"):
        budget.spend(Request(losses=1, radii=2))
    assert budget.spend(Request(radii=2)) == 0
    with pytest.raises(QueryBudgetError, match="got 1 with 0 left"):
        budget.spend(Request(losses=1))
    assert budget.spent() == {"loss": 2, "radius": 6, "multiplier": 1, "unit": 1}


def test_another_object_on_the_same_file_goes_on_counting(tmp_path):
    path = tmp_path / "budget.sqlite"
    QueryBudget("a", 10, path).spend(Request(radii=7))
    with pytest.raises(QueryBudgetError):
        QueryBudget("a", 10, path).spend(Request(radii=4))
    # An owner may raise or lower the limit; what was given away stays given away.
    assert QueryBudget("a", 20, path).spend(Request(radii=4)) == 9
    with pytest.raises(QueryBudgetError, match="with 0 left"):
        QueryBudget("a", 5, path).spend(Request(losses=1))


def test_clients_that_share_a_file_have_their_own_budgets(tmp_path):
    path = tmp_path / "budget.sqlite"
    QueryBudget("a", 3, path).spend(Request(radii=3))
    assert QueryBudget("b", 3, path).spend(Request(radii=2)) == 1


def test_without_a_limit_nothing_is_counted_and_no_file_is_made(tmp_path):
    path = tmp_path / "budget.sqlite"
    budget = QueryBudget("a", None, path)
    assert budget.spend(Request(radii=10**9)) is None
    assert budget.spent() == {}
    assert not path.exists()


@given(sizes=st.lists(st.integers(0, 20), max_size=12), limit=st.integers(0, 60))
def test_what_is_answered_never_exceeds_the_limit(tmp_path_factory, sizes, limit):
    budget = QueryBudget("a", limit, tmp_path_factory.mktemp("budget") / "budget.sqlite")
    answered = 0
    for size in sizes:
        if answered + size <= limit:
            answered += size
            assert budget.spend(Request(radii=size)) == limit - answered
        else:
            with pytest.raises(QueryBudgetError):
                budget.spend(Request(radii=size))
    assert sum(budget.spent().values()) == answered


def spend_many(path, queue):
    budget = QueryBudget("a", 100, path)
    num_answered = 0
    for _ in range(60):
        try:
            budget.spend(Request(losses=1))
            num_answered += 1
        except QueryBudgetError:
            pass
    queue.put(num_answered)


def test_processes_that_ask_at_once_share_one_budget(tmp_path):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=spend_many, args=(tmp_path / "b.sqlite", queue)) for _ in range(3)]
    for process in processes:
        process.start()
    answered = [queue.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert sum(answered) == 100


def spend_and_die(path):
    QueryBudget("a", 10, path).spend(Request(radii=4))
    with opened(path, in_one=True) as book:
        book.execute("UPDATE answered SET number = 0")
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_leaves_the_count_as_it_was(tmp_path):
    path = tmp_path / "budget.sqlite"
    process = multiprocessing.get_context("spawn").Process(target=spend_and_die, args=(path,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert QueryBudget("a", 10, path).spend(Request(losses=1)) == 5


def test_a_file_that_is_no_database_is_an_error_and_not_a_free_pass(tmp_path):
    path = tmp_path / "budget.sqlite"
    path.write_text("this is not a database, and long enough to be sure of it" * 10)
    with pytest.raises(sqlite3.DatabaseError):
        QueryBudget("a", 10, path).spend(Request(losses=1))


@pytest.mark.parametrize("number", ["'many'", "NULL", "-5", "2.5", "x'00'"])
def test_a_damaged_count_is_an_error_and_not_a_free_pass(tmp_path, number):
    budget = QueryBudget("a", 10, tmp_path / "budget.sqlite")
    budget.spend(Request(losses=3))
    with opened(tmp_path / "budget.sqlite") as book:
        book.execute(f"UPDATE answered SET number = {number}")
    for refused in (budget.left, lambda: budget.require_left(Request(losses=1)), lambda: budget.spend(Request())):
        with pytest.raises(ValueError, match="query-budget-file must hold counts, got another thing"):
            refused()


def test_a_book_that_is_made_through_a_link_is_for_its_owner_alone(tmp_path):
    link, file = tmp_path / "link.sqlite", tmp_path / "budget.sqlite"
    link.symlink_to(file)
    QueryBudget("a", 10, link).spend(Request(losses=3))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert QueryBudget("a", 10, file).left() == 7


def test_the_budget_is_read_from_the_node_config(tmp_path):
    path = tmp_path / "b.sqlite"
    config = {"query-budget": 7, "query-budget-file": str(path), "partition-id": 3}
    assert budget_from_config(config | {"client-id": "a"}) == QueryBudget("a", 7, path)
    assert budget_from_config({"partition-id": 3, "client-id": "a"}) == QueryBudget("a")


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        ({"query-budget": 7}, "needs a query-budget-file"),
        ({"query-budget-file": "/b"}, "a query-budget-file needs a query-budget, got none; give one"),
        ({"query_budget": 7, "query_budget_file": "/b"}, "must be query-budget or query-budget-file, got another"),
        ({"query-budgt": 7}, "must be query-budget or query-budget-file, got another"),
        ({"query-budget": -1, "query-budget-file": "/b"}, "query-budget must be at least 0, got -1"),
        ({"query-budget": "7", "query-budget-file": "/b"}, 'whole number, "NUMBER/month" or "none", got str'),
        ({"query-budget": True, "query-budget-file": "/b"}, 'whole number, "NUMBER/month" or "none", got bool'),
        ({"query-budget": 7.5, "query-budget-file": "/b"}, 'whole number, "NUMBER/month" or "none", got float'),
        ({"query-budget": 7, "query-budget-file": "b.sqlite"}, "must be an absolute path"),
    ],
)
def test_a_budget_that_could_not_hold_is_refused(config, rule):
    with pytest.raises(ValueError, match=rule):
        budget_from_config(config | {"client-id": "a"})


def test_what_is_left_can_be_asked_without_spending(tmp_path):
    path = tmp_path / "b.sqlite"
    assert QueryBudget("a").left() is None
    assert QueryBudget("a", 7, path).left() == 7
    assert not path.exists()
    with pytest.raises(RefusedError, match="folder of query-budget-file"):  # a budget that could not be kept is none
        QueryBudget("a", 7, tmp_path / "absent" / "b.sqlite").left()
    QueryBudget("a", 7, path).spend(Request(radii=5))
    assert [QueryBudget("a", limit, path).left() for limit in (7, 7, 3)] == [2, 2, 0]
