"""Time of an exact adversarial answer with 50 radii against a plain loss on the same examples, in the same run.

    python -m benchmarks.adversarial_query [--examples 100] [--repeats 200]

Both answers come from the same model on one thread. "answer" is what a client does with one message: build the model,
load the weights, draw its examples, evaluate. "evaluation" is the last step alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from protocol.models import build_model, load_arrays, model_arrays
from riskband.adversaries.evaluation import DEVICES, chosen_device, mean_loss
from riskband.adversaries.problem import TransportProblem
from riskband.adversaries.registry import adversarial_curves
from worlds.population import Population, PopulationSpec
from worlds.shifts import AffineShift

RADII = np.linspace(0.0, 5.0, 50)
X_SHAPE, NUM_CLASSES = (1, 8, 8), 10


def in_turn(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median milliseconds of each function, called one after the other so that both see the same machine."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - start)
    return {name: 1e3 * float(np.median(times)) for name, times in seconds.items()}


def main() -> None:
    """Print times and ratios for the evaluation alone and for the whole answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="where the models compute (default: cpu)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    spec = PopulationSpec(examples_per_client=arguments.examples, shifts=(AffineShift(0.15),))
    model = build_model("cnn", x_shape=X_SHAPE, num_classes=NUM_CLASSES, seed=0)
    device = chosen_device(arguments.device)
    weights, examples = model_arrays(model.to(device)), Population(spec).client(0)

    def plain(model: torch.nn.Module, x: np.ndarray, y: np.ndarray) -> object:
        return mean_loss(model, x, y, loss="zero_one")

    def adversarial(model: torch.nn.Module, x: np.ndarray, y: np.ndarray) -> object:
        return adversarial_curves(model, x, y, TransportProblem("zero_one", order=2)).values(RADII)

    def answer(evaluate: Callable[..., object]) -> object:
        built = build_model("cnn", x_shape=X_SHAPE, num_classes=NUM_CLASSES, seed=0)
        load_arrays(built.to(device), weights)
        own = Population(spec).client(0)
        return evaluate(built, own.x, own.y)

    for what, functions in (
        ("evaluation", {f.__name__: lambda f=f: f(model, examples.x, examples.y) for f in (plain, adversarial)}),
        ("answer", {f.__name__: lambda f=f: answer(f) for f in (plain, adversarial)}),
    ):
        times = in_turn(functions, arguments.repeats)
        ratio = times["adversarial"] / times["plain"]
        print(
            f"{what:>10}: {arguments.examples} examples, plain {times['plain']:.2f} ms, "
            f"adversarial with {len(RADII)} radii {times['adversarial']:.2f} ms, ratio {ratio:.2f}"
        )


if __name__ == "__main__":
    main()
