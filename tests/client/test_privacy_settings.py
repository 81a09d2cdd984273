"""What an owner writes about privacy holds or is refused; what is refused costs nothing, even if many ask at once."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
from flwr.app import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from client.answer_record import asked_hash, record_from_config
from client.app import app
from client.budget import QueryBudget, QueryBudgetError, Request, budget_from_config
from client.privacy import privacy_from_config
from protocol import wire
from protocol.hashes import code_hash, model_hash
from protocol.mechanisms import all_digits, mechanism_of
from protocol.models import model_arrays
from protocol.questions import LossQuery
from protocol.secure.questions import KeysQuery
from riskband.flower.testing import InProcessGrid
from tests.client.test_privacy import MODEL, ask, left, question


@pytest.fixture(name="own")
def _own(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.normal(size=(40, 3)), y=rng.integers(0, 2, size=40))
    own = {"client-id": "a", "data": str(tmp_path / "data.npz"), "privacy-budget": "laplace:2"}
    return own | {"privacy-budget-file": str(tmp_path / "client.sqlite")}


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"privacy_budget": "laplace:2"}, "must be privacy-budget or privacy-budget-file, got another"),
        ({"Privacy-Budget": "laplace:2"}, "must be privacy-budget or privacy-budget-file, got another"),
        ({"privacybudget": "laplace:2"}, "must be privacy-budget or privacy-budget-file, got another"),
        ({"privcy-budget": "laplace:2"}, "a privacy-budget-file needs a privacy-budget, got none"),
        ({"privacy-budget": None}, "must be a text such as 'laplace:2' or 'gaussian:0.5', got NoneType"),
    ],
    ids=str,
)
def test_a_client_that_is_meant_to_be_private_does_not_answer_without_noise(own, changes, rule):
    del own["privacy-budget"]
    own |= changes
    for privacy in ("", "laplace:0.5"):
        assert rule in ask(own, question(privacy)).replace("\\'", "'")
    with pytest.raises(ValueError, match=rule):
        privacy_from_config(own | {"client-id": "a"})


def reply_to(own, content, message_type):
    config = {"dataset": "digits", "seed": 1, "examples-per-client": 30}
    grid = InProcessGrid(app, num_clients=1, run_config=config, node_configs={0: own})
    (node,) = grid.get_node_ids()
    (reply,) = grid.send_and_receive([Message(content, node, message_type)], timeout=30)
    return reply


@pytest.mark.parametrize(
    ("key", "rule"), [("privacy-budget", "a client with a privacy-budget"), ("privacy_budget", "got another")]
)
def test_a_private_client_neither_trains_nor_sends_keys_for_a_secure_histogram(tmp_path, key, rule):
    own = {key: "laplace:2", "privacy-budget-file": str(tmp_path / "p.sqlite")}
    keys = wire.encode_query(KeysQuery()), "query.secure_keys"
    weights = wire.encode_query(LossQuery("brier", "mlp", (1, 8, 8), 10), model_arrays(MODEL)), "train"
    for message in (keys, weights):
        assert rule in reply_to(own, *message).error.reason
    assert not reply_to({}, *keys).has_error()


def test_a_sum_below_nothing_is_not_a_gift(own, tmp_path):
    ask(own, question("laplace:1"))
    with sqlite3.connect(tmp_path / "client.sqlite") as connection:
        connection.execute("UPDATE privacy SET spent = '-1000'")
    connection.close()
    assert "must hold sums, got another thing" in ask(own, question("laplace:1"))


def test_what_the_query_budget_refuses_does_not_spend_the_privacy_budget(own):
    own |= {"query-budget": 1, "query-budget-file": own["privacy-budget-file"]}
    ask(own, question("laplace:0.5"))
    assert "must fit the client's query budget of 1 values" in ask(own, question("laplace:0.5"))
    assert left(own) == Fraction("1.5")


def test_of_many_who_ask_at_once_for_the_last_of_the_privacy_budget_one_is_counted(own):
    """What the others are refused is not on the account of the query budget, nor noted as paid for."""
    own |= {"query-budget": 99, "query-budget-file": own["privacy-budget-file"]}
    own |= {"answer-record-file": own["privacy-budget-file"]}
    queries = [question("laplace:2", loss) for loss in ("zero_one", "brier", "margin", "abstain:0.6")]
    with ThreadPoolExecutor(len(queries)) as pool:
        answers = list(pool.map(lambda query: ask(own, query), queries))
    assert sum(not isinstance(answer, str) for answer in answers) == 1
    assert left(own) == 0
    assert budget_from_config(own | {"client-id": "a"}).left() == 98
    hashes = {"model_hash": model_hash(model_arrays(MODEL)), "code_hash": code_hash()}
    record = record_from_config(own | {"client-id": "a"})
    noted = [record.has_noted(asked_hash(query, **hashes)) for query in queries]
    assert noted == [not isinstance(answer, str) for answer in answers]


@settings(max_examples=30)  # each of them writes files
@given(
    costs=st.lists(st.integers(0, 4), max_size=5), question=st.sampled_from([None, "a", "b"]), limit=st.integers(0, 9)
)
def test_what_would_be_refused_is_known_before_and_without_counting(tmp_path_factory, costs, question, limit):
    budget = QueryBudget("a", limit, tmp_path_factory.mktemp("budget") / "b.sqlite")
    for cost in costs:
        before, outcomes = budget.left(), []
        for act in (budget.require_left, budget.spend):
            try:
                act(Request(losses=cost), question=question)
                outcomes.append(None)
            except QueryBudgetError as error:
                outcomes.append(str(error))
            if act == budget.require_left:
                assert budget.left() == before
        assert outcomes[0] == outcomes[1]


@given(whole=st.integers(1, 10**12 - 1), decimals=st.integers(0, 10**12 - 1), spent=st.integers(1, 10**6))
def test_the_digits_of_a_budget_are_not_rounded(whole, decimals, spent):
    text = f"{whole}.{decimals:012}"
    budget = mechanism_of(f"laplace:{text}").budget
    assert all_digits(budget) == text.rstrip("0").rstrip(".")
    left = budget - mechanism_of(f"laplace:{spent}.000000000001e-6").budget
    assert Fraction(all_digits(left)) == left
