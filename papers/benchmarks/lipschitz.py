"""Models that are Lipschitz by design beside others: what is proved of the same images, and what attacks reach.

    python -m papers.benchmarks.lipschitz digits [--images 500]
    python -m papers.benchmarks.lipschitz mnist --data mnist.npz --checkpoint mnist.pt
    python -m papers.benchmarks.lipschitz cifar10 --data cifar10.npz --checkpoint cifar10.pt --weights cifar10_cnn.npz

The checkpoints are those of `python -m worlds.lipschitz`; without one the model is trained by the same recipe first.
The other models are `mlp` and `cnn`, trained here, and for CIFAR-10 that of `worlds.cifar10`. The first table says
which share of the images keeps its label within an l2 distance: at least (certified), and at most (attacked, by APGD).
The second one says the risk [reached by `min-norm`, certified] within a mean l2 distance (order 1, 0-1 loss). Under
attack pixels stay in [0, 1]. Seconds are of one core.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import nn

from protocol.models import build_model, load_weights
from riskband.adversaries import LipschitzAdversary, TransportProblem, adversarial_curves, margin_constants
from riskband.adversaries.attacks.apgd import Apgd
from riskband.adversaries.base import Batch
from riskband.adversaries.spaces import point_batches
from riskband.models.evaluation import DEVICES, chosen_device, on_cpu
from worlds.cifar10 import load_network
from worlds.datasets import BaseData, load_dataset
from worlds.lipschitz import DISTANCES, RECIPES, trained
from worlds.training import train_centrally

BOX = (0.0, 1.0)
BUDGETS = {"digits": (0.05, 0.1, 0.2), "mnist": (0.1, 0.2, 0.4), "cifar10": (0.01, 0.03, 0.1)}
_ROUNDING = 1.0 + 1e-4  # images are in single precision


def models(options: argparse.Namespace, data: BaseData) -> Iterator[tuple[str, nn.Module]]:
    """Yield the models that are compared, with what they are called in the tables."""
    x_shape = data.x_train.shape[1:]
    if options.checkpoint:
        model = build_model("lipschitz-cnn", x_shape=x_shape, num_classes=data.num_classes, seed=0)
        load_weights(model, options.checkpoint)
    else:
        model = trained(data, RECIPES[options.recipe], seed=0)
    yield "lipschitz-cnn", model.eval()
    if options.recipe == "cifar10":
        if options.weights:
            yield "worlds.cifar10", load_network(options.weights)
        return
    epochs, rate, size = (10, 0.003, 32) if options.recipe == "digits" else (3, 0.001, 128)
    for name in ("mlp", "cnn"):
        model = train_centrally(data, model=name, seed=0, num_epochs=epochs, learning_rate=rate, batch_size=size)
        yield name, model.eval()


def flip_distances(adversary: LipschitzAdversary | Apgd, batches: Sequence[Batch]) -> tuple[np.ndarray, float]:
    """Return distances from which on examples may be, or are, misclassified, and the seconds that took."""
    started = time.process_time()
    evidence = [adversary.examine(batch) for batch in batches]
    # For the 0-1 loss a proof has one point for each example: where the loss may be 1.
    found = [each.flip_costs if each.bounding is None else each.bounding.costs[:, 0] for each in evidence]
    return torch.cat(found).numpy(), time.process_time() - started


def rows(name: str, model: nn.Module, x: np.ndarray, y: np.ndarray, recipe: str) -> tuple[str, str]:
    """Return the rows of a model in the two tables."""
    batches = list(point_batches(model, x, y, loss="zero_one", batch_size=250))
    clean = 1.0 - float(torch.cat([batch.losses for batch in batches]).mean())
    constant = float(margin_constants(on_cpu(model), x.shape[1:], norm="l2").max())
    problem = TransportProblem("zero_one", 1, "l2", "input", box=BOX)
    certified, proving = flip_distances(LipschitzAdversary(model, problem), batches)
    cells, attacking = [], 0.0
    for distance in DISTANCES[recipe]:
        within = TransportProblem("zero_one", 1, "l2", "input", box=BOX, distances=(distance,))
        reached, seconds = flip_distances(Apgd(model, within), batches)
        attacking += seconds
        limit = distance * _ROUNDING
        cells.append(f"{np.mean(certified > limit):.3f}, {np.mean(reached > limit):.3f}")
    first = [name, f"{clean:.3f}", f"{constant:.4g}", *cells, f"{proving:.1f}, {attacking:.0f}"]
    started = time.process_time()
    sandwich = TransportProblem("zero_one", 1, "l2", "input", "sandwich:min-norm", box=BOX)
    lower, upper = adversarial_curves(model, x, y, sandwich).values([0.0, *BUDGETS[recipe]])
    both = [f"[{low:.3f}, {high:.3f}]" for low, high in zip(lower, upper, strict=True)]
    return _row(first), _row([name, *both, f"{time.process_time() - started:.0f}"])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m papers.benchmarks.lipschitz", description="Lipschitz models beside others."
    )
    parser.add_argument("recipe", choices=RECIPES)
    parser.add_argument("--data", metavar="FILE", help="images as .npz; not needed for digits")
    parser.add_argument("--checkpoint", metavar="FILE", help="weights of the lipschitz-cnn")
    parser.add_argument("--weights", metavar="FILE", help="weights of the model of worlds.cifar10, as .npz")
    parser.add_argument("--images", type=int, default=500, help="how many are examined (default: 500)")
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="where the models compute (default: cpu)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = load_dataset(f"npz:{options.data}" if options.data else "digits")
    x, y = data.x_pool[: options.images], data.y_pool[: options.images]
    distances = " | ".join(f"certified, attacked within {distance:.3g}" for distance in DISTANCES[options.recipe])
    budgets = " | ".join(f"risk within {budget:g}" for budget in BUDGETS[options.recipe])
    device = chosen_device(options.device)
    found = [rows(name, model.to(device), x, y, options.recipe) for name, model in models(options, data)]
    print(f"{len(y)} images of {options.recipe}")
    print(f"| model | accuracy | constant | {distances} | seconds: proof, attack |")
    print("\n".join(first for first, _ in found))
    print(f"| model | risk, no move | {budgets} | seconds |")
    print("\n".join(second for _, second in found))


if __name__ == "__main__":
    main()
