"""CPU time of an exact adversarial answer with 50 radii against a plain loss on the same examples, in the same run.

    python -m benchmarks.adversarial_query [--examples 100] [--repeats 200]

Both answers come from the same model on one thread. "answer" is what a client does with one message: build the model,
load the weights, draw its examples, evaluate. "evaluation" is the last step alone. The least of the repetitions counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from benchmarks.timing import least_seconds
from protocol.models import build_model, load_arrays, model_arrays
from riskband.adversaries.problem import TransportProblem
from riskband.adversaries.registry import adversarial_curves
from riskband.models.evaluation import DEVICES, chosen_device, mean_loss
from worlds.population import Population, PopulationSpec
from worlds.shifts import AffineShift

RADII = np.linspace(0.0, 5.0, 50)
X_SHAPE, NUM_CLASSES = (1, 8, 8), 10


@dataclass(frozen=True)
class Costs:
    """CPU seconds of a plain loss, and of all radii."""

    plain: float
    adversarial: float

    @property
    def ratio(self) -> float:
        """What the radii cost beside the plain loss."""
        return self.adversarial / self.plain


def measured(*, num_examples: int = 100, repeats: int = 200, device: str = "cpu") -> dict[str, Costs]:
    """Return the costs of the "evaluation" alone and of the whole "answer"."""
    torch.set_num_threads(1)
    spec = PopulationSpec(examples_per_client=num_examples, shifts=(AffineShift(0.15),))
    model = build_model("cnn", x_shape=X_SHAPE, num_classes=NUM_CLASSES, seed=0)
    place = chosen_device(device)
    weights, examples = model_arrays(model.to(place)), Population(spec).client(0)

    def plain(model: torch.nn.Module, x: np.ndarray, y: np.ndarray) -> object:
        return mean_loss(model, x, y, loss="zero_one")

    def adversarial(model: torch.nn.Module, x: np.ndarray, y: np.ndarray) -> object:
        return adversarial_curves(model, x, y, TransportProblem("zero_one", order=2)).values(RADII)

    def answer(evaluate: Callable[..., object]) -> object:
        built = build_model("cnn", x_shape=X_SHAPE, num_classes=NUM_CLASSES, seed=0)
        load_arrays(built.to(place), weights)
        own = Population(spec).client(0)
        return evaluate(built, own.x, own.y)

    ways: dict[str, Callable[[Callable[..., object]], object]] = {
        "evaluation": lambda evaluate: evaluate(model, examples.x, examples.y),
        "answer": answer,
    }
    both = (plain, adversarial)
    return {
        what: Costs(**least_seconds({each.__name__: partial(way, each) for each in both}, repeats=repeats))
        for what, way in ways.items()
    }


def main() -> None:
    """Print times and ratios for the evaluation alone and for the whole answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="where the models compute (default: cpu)")
    options = parser.parse_args()
    found = measured(num_examples=options.examples, repeats=options.repeats, device=options.device)
    for what, costs in found.items():
        print(
            f"{what:>10}: {options.examples} examples, plain {1e3 * costs.plain:.2f} ms, "
            f"adversarial with {len(RADII)} radii {1e3 * costs.adversarial:.2f} ms, ratio {costs.ratio:.2f}"
        )


if __name__ == "__main__":
    main()
