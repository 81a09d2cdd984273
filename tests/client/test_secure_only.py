"""A client whose owner wants a minimum of company answers nothing in the open; a histogram is counted every time."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from client.__main__ import main
from client.answering import answered
from client.budget import QueryBudgetError
from client.secure.part import HistogramAmong
from client.secure.rounds import is_secure_only, refuse_in_the_open
from protocol.examples import Examples
from protocol.secure.questions import HistogramQuery
from riskband.checks import RefusedError
from riskband.flower.testing import InProcessGrid
from strategies.asking.replies import QuorumError
from tests.strategies import secure_network

OTHERS = [
    "train",
    "evaluate",
    "query",
    "query.loss",
    "query.adversarial_loss",
    "query.candidates",
]
SECURE = [f"query.{each}" for each in ("hello", *secure_network.ACTIONS)]


def passed_on(node_config, message_type):
    """Whether the ClientApp's functions get to see a message."""
    InProcessGrid(lambda message, context: message, num_clients=1, run_config={})  # tells flwr who sends
    message = Message(RecordDict(), 7, message_type)
    context = Context(run_id=1, node_id=7, node_config=node_config, state=RecordDict(), run_config={})
    return refuse_in_the_open(message, context, lambda received, _: received) is message


@pytest.mark.parametrize("node_config", [{"secure-only": True}, {"secure-min-clients": 20}], ids=str)
def test_a_secure_only_client_answers_a_hello_and_secure_questions_and_no_others(node_config):
    assert all(passed_on(node_config, message_type) for message_type in SECURE)
    for message_type in OTHERS:
        with pytest.raises(ValueError, match="secure histograms only"):
            passed_on(node_config, message_type)


@pytest.mark.parametrize(
    "node_config", [{}, {"secure-only": False}, {"secure-only": False, "secure-min-clients": 20}], ids=str
)
def test_other_clients_are_asked_anything(node_config):
    assert all(passed_on(node_config, message_type) for message_type in [*SECURE, *OTHERS])


@pytest.mark.parametrize("value", ["true", 1, 0.0])
def test_a_setting_that_is_neither_true_nor_false_is_refused(value):
    with pytest.raises(ValueError, match="true or false"):
        is_secure_only({"secure-only": value})


@pytest.mark.parametrize("key", ["secure_only", "Secure-Only", "secure-min-client"])
def test_a_client_that_is_meant_to_be_secure_only_does_not_answer_in_the_open(key):
    for message_type in [*SECURE, *OTHERS]:
        with pytest.raises(RefusedError, match="must be secure-only or secure-min-clients or secure-complete-graph"):
            passed_on({key: True}, message_type)


@pytest.mark.parametrize("setting", ["secure-only=true", "secure-min-clients=20"])
def test_a_dry_run_says_that_a_plain_question_is_refused(tmp_path, capsys, setting):
    path = tmp_path / "own.npz"
    np.savez(path, x=np.zeros((5, 1, 8, 8), dtype=np.float32), y=np.arange(5))
    status = main(["--dry-run", "--model", "mlp", "--node-config", f'client-id="a" data="{path}" {setting}'])
    assert status == 1
    assert "secure histograms only" in capsys.readouterr().out


# The query budget.

QUERY = HistogramQuery(loss="zero_one", model="mlp", x_shape=(2,), num_classes=2, edges=(0.0, 0.5, 1.0), num_examples=4)


def test_an_answer_record_repeats_no_histogram_in_another_company(tmp_path):
    own = {"client-id": "a", "query-budget": 2, "query-budget-file": str(tmp_path / "budget")}
    context = Context(
        run_id=1,
        node_id=1,
        node_config=own | {"answer-record-file": str(tmp_path / "record")},
        state=RecordDict(),
        run_config={},
    )
    examples = Examples(np.zeros((4, 2), dtype=np.float32), np.zeros(4, dtype=np.int64))

    def ask(company):
        query = HistogramAmong(**vars(QUERY), partners=company)
        return answered(query, {"w": np.zeros(2)}, examples, context, lambda *_: {"risk": 0.25, "num_examples": 4})[1]

    assert [ask("first"), ask("first"), ask("second")] == [1, 1, 0]
    with pytest.raises(QueryBudgetError):
        ask("third")


def test_a_client_with_another_number_of_examples_counts_the_question_before_it_refuses(monkeypatch):
    """Else a server could try numbers of examples at no cost, run by run."""
    counted = []
    monkeypatch.setattr(secure_network, "risk_of", lambda partition: counted.append(partition) or 0.0)
    with pytest.raises(QuorumError, match="another number"):
        secure_network.run(4, num_examples=secure_network.NUM_EXAMPLES + 1)
    assert sorted(counted) == [0, 1, 2, 3]
