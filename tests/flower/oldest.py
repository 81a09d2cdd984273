"""Run by `test_oldest.py` below the oldest version of flwr: FedAvg over a Grid that calls the ClientApp."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

import riskband as rb
from riskband.flower import KeepRisks

NUM_CLIENTS, SIZE, FIRST_NODE = 40, 50, 100
ERRORS = [partition % 5 / SIZE for partition in range(NUM_CLIENTS)]

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    content = {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    right = 1 - ERRORS[int(context.node_config["partition-id"])]
    return Message(RecordDict({"metrics": MetricRecord({"eval_acc": right, "num-examples": SIZE})}), reply_to=message)


class DirectGrid(Grid):
    """A Grid of what every version has."""

    run: Any = None

    def get_node_ids(self) -> Iterable[int]:
        return range(FIRST_NODE, FIRST_NODE + NUM_CLIENTS)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return [self._answer(number, message) for number, message in enumerate(messages)]

    def _answer(self, number: int, message: Message) -> Message:
        message.metadata.__dict__["_message_id"] = str(number)
        node = message.metadata.dst_node_id
        return app(message, Context(1, node, {"partition-id": node - FIRST_NODE}, RecordDict(), {}))

    def set_run(self, *args: Any) -> None: ...
    def create_message(self, *args: Any) -> Any: ...
    def push_messages(self, messages: Any) -> Any: ...
    def pull_messages(self, message_ids: Any) -> Any: ...


class WithoutTraining(FedAvg):
    """In old versions fraction_train=0.0 trains min_train_nodes all the same."""

    def configure_train(self, *args: Any) -> list[Message]:
        return []


def kept_by(strategy: type[FedAvg]) -> KeepRisks:
    kept = KeepRisks(accuracy="eval_acc")
    watched = kept.watch(strategy(evaluate_metrics_aggr_fn=kept, min_available_nodes=NUM_CLIENTS))
    watched.start(DirectGrid(), ArrayRecord([np.zeros(2)]), num_rounds=2)
    return kept


def main() -> None:
    fresh = kept_by(WithoutTraining)
    certificate = fresh.certify(delta=0.05, answered_by="fresh")
    assert certificate.validity == "certificate"
    assert rb.verify(certificate).ok
    assert np.allclose(sorted(fresh.risks().values), sorted(ERRORS))
    trainers = kept_by(FedAvg)
    assert trainers.certify(delta=0.05).validity == "estimate"
    refused = ""
    try:
        trainers.certify(delta=0.05, answered_by="fresh")
    except ValueError as error:
        refused = str(error)
    assert f"got {NUM_CLIENTS} that were sent training messages" in refused
    print("works with flwr", version("flwr"))


if __name__ == "__main__":
    main()
