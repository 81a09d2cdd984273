"""The ServerApp of Flower's quickstart; the lines with `kept` make the certificate."""

from collections.abc import Iterable
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import riskband as rb
from quickstart_certified.task import Net
from riskband.flower import KeepRisks

app = ServerApp()


class HoldOut(FedAvg):
    """FedAvg without some clients, drawn before the first round, that only evaluate, and only in the last round."""

    def __init__(self, *, num_clients: int, num_held_out: int, num_rounds: int, **settings: object) -> None:
        super().__init__(min_available_nodes=num_clients, **settings)
        self.num_held_out, self.num_rounds = num_held_out, num_rounds
        self.held_out: set[int] = set()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Train on the others."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        if not self.held_out:  # node ids are random and FedAvg shuffles them: the first ones are a draw
            self.held_out = {message.metadata.dst_node_id for message in messages[: self.num_held_out]}
        return [message for message in messages if message.metadata.dst_node_id not in self.held_out]

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Evaluate on the others too, but in the last round on those that are held out."""
        messages = super().configure_evaluate(server_round, arrays, config, grid)
        is_last = server_round == self.num_rounds
        return [message for message in messages if (message.metadata.dst_node_id in self.held_out) == is_last]


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and certify what the last round measured."""
    config = context.run_config
    num_rounds = int(config["num-server-rounds"])
    local = KeepRisks(accuracy="local_acc")
    kept = KeepRisks(accuracy="eval_acc", aggregate=local)  # both are told of every evaluation
    strategy = HoldOut(
        num_clients=int(config["num-clients"]),
        num_held_out=int(config["num-held-out"]),
        num_rounds=num_rounds,
        evaluate_metrics_aggr_fn=kept,
    )
    kept.watch(strategy)
    local.watch(strategy)
    strategy.start(grid=grid, initial_arrays=ArrayRecord(Net().state_dict()), num_rounds=num_rounds)
    certificate = kept.certify(delta=float(config["delta"]), answered_by="fresh")
    print(certificate.statement)
    certificate.save(Path(str(config["certificate"])))
    # Is the federated model worse than the one that each client trains alone?
    changes = kept.changes_since(local, answered_by="fresh")
    print(rb.compare(changes, delta=float(config["delta"]), require=["change<=0.15"]).gate)
