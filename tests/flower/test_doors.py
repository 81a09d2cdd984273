"""`KeepRisks` under Flower's older strategies, and what it says of whose the answers are."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import Code, EvaluateRes, FitRes, Status, ndarrays_to_parameters
from flwr.server import Server, ServerConfig, SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg, FedMedian
from flwr.serverapp.strategy import FedAvg as NewFedAvg

import riskband as rb
from riskband.flower import KeepRisks
from riskband.flower.testing import InProcessGrid, node_unavailable

SIZES = [20 + k for k in range(8)]
ACCURACIES = [1 - (5 * k % 9) / SIZES[k] for k in range(8)]


class Proxy(ClientProxy):
    """A client of `flwr.server` in this process, with what `ClientProxy` wants and an evaluation never calls."""

    def __init__(self, k, is_gone=False):
        super().__init__(f"node-{k}")
        self.k, self.node_id, self.is_gone = k, 100 + k, is_gone

    def get_properties(self, ins, timeout, group_id):
        raise NotImplementedError

    def get_parameters(self, ins, timeout, group_id):
        raise NotImplementedError

    def reconnect(self, ins, timeout, group_id):
        raise NotImplementedError

    def fit(self, ins, timeout, group_id):
        return FitRes(Status(Code.OK, ""), ins.parameters, SIZES[self.k], {})

    def evaluate(self, ins, timeout, group_id):
        status = Status(Code.EVALUATE_NOT_IMPLEMENTED, "no data today") if self.is_gone else Status(Code.OK, "")
        return EvaluateRes(status, 0.5, SIZES[self.k], {"accuracy": ACCURACIES[self.k]})


def run(strategy, gone=()):
    manager = SimpleClientManager()
    for k in range(8):
        manager.register(Proxy(k, is_gone=k in gone))
    server = Server(client_manager=manager, strategy=strategy)
    assert ServerConfig(num_rounds=2).num_rounds == 2
    return server.fit(num_rounds=2, timeout=None)[0]


def legacy(kept, strategy=FedAvg):
    start = ndarrays_to_parameters([np.zeros(2)])
    return strategy(initial_parameters=start, evaluate_metrics_aggregation_fn=kept, min_available_clients=8)


@pytest.mark.parametrize("strategy", [FedAvg, FedMedian])
def test_strategies_of_flwr_server_keep_their_answers_and_clients(strategy):
    kept = KeepRisks(accuracy="accuracy")
    history = run(kept.watch(legacy(kept, strategy)))
    assert history.metrics_distributed == {}  # what it is without
    risks = kept.risks()
    assert set(risks.names) == {f"node-{k}" for k in range(8)}
    order = [int(name.removeprefix("node-")) for name in risks.names]
    assert risks.num_examples.tolist() == [SIZES[k] for k in order]
    np.testing.assert_allclose(risks.values, [(5 * k % 9) / SIZES[k] for k in order], atol=1e-15)
    assert risks.binary
    assert risks.num_missing == 0
    with pytest.raises(ValueError, match="got 8 that were sent training messages"):
        kept.risks(answered_by="fresh")


def test_who_failed_under_flwr_server_is_missing_and_why():
    kept = KeepRisks(accuracy="accuracy")
    with pytest.warns(UserWarning, match=r"2 of 8 clients .*: node-2 \(no data today\), node-5 \(no data today\)$"):
        run(kept.watch(legacy(kept)), gone=(2, 5))
    assert kept.rounds[-1].missing == dict.fromkeys(("node-2", "node-5"), "no data today")
    assert kept.risks().num_missing == 2


def test_an_average_of_ones_own_is_made_of_the_same_pairs():
    def weighted(pairs):
        total = sum(n for n, _ in pairs)
        return {"accuracy": sum(n * metrics["accuracy"] for n, metrics in pairs) / total}

    plain = run(legacy(weighted)).metrics_distributed
    ours = run(legacy(KeepRisks(accuracy="accuracy", aggregate=weighted))).metrics_distributed
    (_, last), (_, known) = ours["accuracy"][-1], plain["accuracy"][-1]
    assert last == pytest.approx(known, abs=1e-12)


class LosesReplies(InProcessGrid):
    """A network in which the replies of node number 5 never arrive."""

    def send_and_receive(self, messages, *, timeout=None):
        lost = list(self.get_node_ids())[5]
        return [each for each in super().send_and_receive(messages) if each.metadata.src_node_id != lost]


def test_a_node_that_is_gone_is_missing_though_another_one_says_so():
    app = ClientApp()

    @app.evaluate()
    def evaluate(message, context):
        return Message(records([0.9 - context.node_config["partition-id"] / 100], [100])[0], reply_to=message)

    grid = LosesReplies(app, num_clients=8, behaviours={0: node_unavailable}, seed=1)
    nodes = list(grid.get_node_ids())
    kept = KeepRisks(accuracy="acc")
    strategy = kept.watch(NewFedAvg(fraction_train=0.0, min_available_nodes=8, evaluate_metrics_aggr_fn=kept))
    with pytest.warns(UserWarning, match="2 of 8 clients that were asked count as missing"):
        strategy.start(grid, ArrayRecord(), num_rounds=1)
    (last,) = kept.rounds
    assert last.missing[str(nodes[5])] == "no reply"
    assert "unavailable" in last.missing[str(nodes[0])].lower()
    assert set(last.names) == {str(node) for k, node in enumerate(nodes) if k not in (0, 5)}
    assert kept.risks(answered_by="fresh").num_missing == 2


def test_another_taker_of_metrics_is_refused():
    with pytest.raises(
        ValueError, match=r"whose evaluate_metrics_aggr_fn is this KeepRisks.*evaluate_metrics_aggregation"
    ):
        KeepRisks(accuracy="accuracy").watch(legacy(lambda pairs: {}))
    with pytest.raises(ValueError, match="is this KeepRisks, got another"):
        KeepRisks(accuracy="accuracy").watch(NewFedAvg())


def records(accuracies, sizes, **told):
    made = []
    for k, (accuracy, size) in enumerate(zip(accuracies, sizes, strict=True)):
        record = RecordDict({"metrics": MetricRecord({"acc": accuracy, "num-examples": size})})
        if told:
            record["who"] = ConfigRecord({key: values[k] for key, values in told.items()})
        made.append(record)
    return made


def test_every_record_twice_is_noticed_without_names():
    twice = records(np.arange(101, 142) / 200, [200] * 41) * 2
    kept = KeepRisks(accuracy="acc")
    with pytest.warns(UserWarning, match="got each of 41 pairs of loss and number of examples 2 times"):
        kept(twice, "num-examples")
    with pytest.raises(ValueError, match="one row a client is the rule"):
        kept.risks(num_missing=0)


def test_percent_is_read_as_at_the_other_doors():
    accuracies, sizes = [85.0, 90.0, 77.5, 60.0], [20, 30, 40, 50]
    kept = KeepRisks(accuracy="acc", percent=True, name="name", group="ward")
    names, wards = ["a", "b", "c", "d"], ["x", "x", "y", "y"]
    kept(records(accuracies, sizes, name=names, ward=wards), "num-examples")
    table = {"acc": accuracies, "n": sizes, "name": names, "ward": wards}
    of_frame = rb.ClientRisks.from_frame(
        table, accuracy="acc", percent=True, num_examples="n", client="name", group="ward", answered_by="trainers"
    )
    assert kept.risks(num_missing=0) == of_frame
    np.testing.assert_allclose(of_frame.values, [3 / 20, 3 / 30, 9 / 40, 20 / 50], atol=1e-15)
    with pytest.raises(ValueError, match="percent=True is for accuracies"):
        KeepRisks(error="err", percent=True)


def test_clients_without_the_metric_are_dropped_and_counted_as_at_the_other_doors():
    made = records([0.9, 0.8, np.nan, 0.5], [10, 20, 30, 40], name=["a", "b", "c", "d"])
    made[3]["metrics"] = MetricRecord({"num-examples": 40})
    kept = KeepRisks(accuracy="acc", name="name", drop_missing=True, aggregate=lambda records, key: MetricRecord())
    kept(made, "num-examples")
    assert kept.rounds[0].missing == {"c": "no 'acc'", "d": "no 'acc'"}
    table = {"acc": [0.9, 0.8, None, None], "n": [10, 20, 30, 40], "name": ["a", "b", "c", "d"]}
    of_frame = {"accuracy": "acc", "num_examples": "n", "client": "name", "drop_missing": True, "num_missing": 1}
    assert kept.risks(num_missing=1) == rb.ClientRisks.from_frame(table, **of_frame, answered_by="trainers")
    strict = KeepRisks(accuracy="acc", name="name", aggregate=lambda records, key: MetricRecord())
    with pytest.warns(UserWarning, match="say drop_missing=True, or let such a client raise"):
        strict(made[:3], "num-examples")
