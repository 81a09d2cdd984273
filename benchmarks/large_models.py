"""What a bisection with a large model sends, with clients that keep the weights and with clients that do not.

    python -m benchmarks.large_models [--clients 100] [--model preact-resnet-18]

Whole clients in one process, each with ten handwritten digits; the weights are random. The messages are those of a
network, serialised by Flower's own code. Clients with an answer record keep the weights beside it.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from client.app import app as client_app
from protocol.codec import to_array_record
from protocol.models import build_model, model_arrays
from protocol.questions import AdversarialQuery
from riskband.adversaries.problem import TransportProblem
from riskband.flower.testing import InProcessGrid
from server.config import load_config
from server.run.traffic import MeteredGrid
from simulations.options import default_run_config
from strategies.wasserstein import BISECTION, Wasserstein

X_SHAPE, NUM_CLASSES, NUM_EXAMPLES = (1, 8, 8), 10, 10


@dataclass(frozen=True)
class Traffic:
    """What a bisection sent, and what the whole took here, clients included."""

    num_rounds: int
    num_messages: int
    first_bytes: int  # of the first round
    bytes_sent: int
    grid_seconds: float  # CPU seconds of sending: counting, hashing and serialising
    memory: int  # bytes, the most that this process has had so far


class _TimedGrid(MeteredGrid):
    """Notes the CPU seconds that pushes take."""

    seconds = 0.0

    def push_messages(self, messages: Any) -> Any:
        started = time.process_time()
        pushed = super().push_messages(messages)
        self.seconds += time.process_time() - started
        return pushed


def measured(*, num_clients: int, model: str, keep: Path | None) -> Traffic:
    """Return the traffic of a bisection; `keep` is a folder where the clients have their record, None: nowhere."""
    settings = {"num-clients": num_clients, "num-unseen": 0, "examples-per-client": NUM_EXAMPLES, "model": model}
    run_config = load_config(default_run_config() | settings).to_run_config()
    own = {} if keep is None else {"answer-record-file": str(keep / "record.sqlite")}
    node_configs = dict.fromkeys(range(num_clients), own)
    nodes = InProcessGrid(client_app, num_clients=num_clients, run_config=run_config, node_configs=node_configs, seed=0)
    sent: list[int] = []
    grid = _TimedGrid(nodes, on_push=lambda **pushed: sent.append(pushed["bytes_sent"]))
    weights = model_arrays(build_model(model, x_shape=X_SHAPE, num_classes=NUM_CLASSES, seed=0))
    strategy = Wasserstein(
        AdversarialQuery(model, X_SHAPE, NUM_CLASSES, TransportProblem("zero_one", order=1)),
        num_clients=num_clients,
        delta=0.05,
        cost_budgets=np.array([0.1, 0.4]),
        cost_thresholds=np.array([0.5]),
        num_radii=10,
        num_multipliers=6,
        protocol=BISECTION,
        bisection_tolerance=0.001,
        cost_bound=0.0,
        breakdown_target=0.9,
    )
    strategy.start(grid, to_array_record(weights))
    total = grid.metrics()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Traffic(total["num_rounds"], total["num_messages"], sent[0], total["bytes_sent"], grid.seconds, most)


def main() -> None:
    """Print what either kind of client fetches, and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--model", default="preact-resnet-18")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, keep in (("keep the weights", Path(folder)), ("fetch them each time", None)):
            traffic = measured(num_clients=options.clients, model=options.model, keep=keep)
            found[name] = traffic.bytes_sent
            print(
                f"clients that {name}: {traffic.num_rounds} rounds, {traffic.num_messages} messages, "
                f"{traffic.first_bytes / 1e9:.2f} GB in the first round, {traffic.bytes_sent / 1e9:.2f} GB in all, "
                f"sending took {traffic.grid_seconds:.1f} s, memory {traffic.memory / 1e9:.1f} GB"
            )
    print(f"ratio {found['fetch them each time'] / found['keep the weights']:.1f}")


if __name__ == "__main__":
    main()
