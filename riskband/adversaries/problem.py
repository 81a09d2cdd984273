"""The transport problem: where examples may move, at what cost, and who moves them; one object, checked once.

And the numbers that answer it, which a server reads without torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from riskband.adversaries.names import REPRESENTATION, Smoothing, best_guarantee, check_names, layer_name
from riskband.checks import LARGEST_COST, SMALLEST_COST
from riskband.models.losses import get_loss

if TYPE_CHECKING:
    from torch import Tensor


def checked_box(box: Sequence[float]) -> tuple[float, float]:
    """Return (low, high), finite and low < high, as floats; raises ValueError for anything else."""
    try:
        low, high = (float(end) for end in box)
    except (TypeError, ValueError):
        raise ValueError(f"box must be two numbers (low, high), got {box!r}; such as (0, 1) for images") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"box must be finite with low < high, got ({low:g}, {high:g}); or give None for no box")
    return low, high


def checked_grid(name: str, values: Iterable[float]) -> tuple[float, ...]:
    """Return costs, prices or distances as floats, each 0 or from 1e-150 to 1e150, increasing strictly.

    Raises ValueError if they are not; the message begins with the name.
    """
    try:
        grid = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a list of numbers, got {values!r}") from None
    if not all(entry == 0.0 or SMALLEST_COST <= entry <= LARGEST_COST for entry in grid):
        raise ValueError(
            f"{name} must be 0 or from {SMALLEST_COST:g} to {LARGEST_COST:g}; they are in units of the transport "
            "cost, prices of one, or distances"
        )
    if any(after <= before for before, after in pairwise(grid)):
        raise ValueError(f"{name} must increase strictly; sort them and ask each once")
    return grid


@dataclass(frozen=True)
class TransportProblem:
    """How bad a loss gets when examples may move: what a client is asked, at all cost budgets at once.

    Attributes
    ----------
    loss : str
        A name in `riskband.models.losses.LOSSES`.
    order : int
        1: moving by a distance t costs t; 2: it costs t squared (norm "l2" only).
    norm : str
        Of the distance between what moves: "l1", "l2" or "linf".
    space : str
        Where examples move: "representation", the space before the model's last linear layer; "input"; or
        "layer:NAME", the output of the layer of this name in an `nn.Sequential`.
    adversary : str
        In representation space "exact", "ascent", or "auto": exact where there is an exact one. Elsewhere a name in
        `riskband.adversaries.names.INPUT_ADVERSARIES`, or "foolbox:NAME" for an attack of Foolbox. "lipschitz"
        proves a bound, "sandwich:ATTACK" does so above an attack, "sandwich" above "wda-knapsack"; "auto" is "sandwich"
        where a bound is known for the loss and the layers, else "wda-knapsack". "smoothing:SIGMA" and
        "smoothing:SIGMA:SAMPLES" prove one of the smoothed model (0-1 loss, norm "l2", inputs), see `Smoothing`; with
        "sandwich:" before them it is attacked, too.
    head : str or None
        Name of the last linear layer; None: it is found. Representation space only, unlike what follows.
    box : (float, float) or None
        Smallest and largest value that an entry of what moves may have; None: any. Attacks stay within it; what is
        proved is about the whole space, and so about the box too.
    distances : tuple of float
        Distances > 0, increasing strictly, at which attacks within a ball look; none: they choose some for each
        example.
    seed : int
        Of the random starts of attacks, and the noise of smoothing, from 0 to 2**63 - 1; the same seed gives the same
        answer.
    free_distance : float
        So far every example may move at no cost; only what is beyond costs. At budget 0 the ball is then the one of the
        distance W_infinity (math §4.6). 0-1 loss, without smoothing.

    Raises
    ------
    ValueError
        If a name is unknown, a number is out of its range, or they do not go together.
    """

    loss: str
    order: int
    norm: str = "l2"
    space: str = REPRESENTATION
    adversary: str = "auto"
    head: str | None = None
    box: tuple[float, float] | None = None
    distances: tuple[float, ...] = ()
    seed: int = 0
    free_distance: float = 0.0

    def __post_init__(self) -> None:
        check_names(loss=self.loss, order=self.order, norm=self.norm, space=self.space, adversary=self.adversary)
        # Any sequence is welcome; a problem must be hashable, and two equal ones the same bytes.
        object.__setattr__(self, "box", None if self.box is None else checked_box(self.box))
        object.__setattr__(self, "distances", checked_grid("distances", self.distances))
        if 0.0 in self.distances:
            raise ValueError("distances must be above 0, got 0; attacks look within a ball of this radius")
        if isinstance(self.seed, bool) or not (isinstance(self.seed, int | np.integer) and 0 <= self.seed < 2**63):
            raise ValueError(f"seed must be a whole number from 0 to 2**63 - 1, got {self.seed!r}; it decides restarts")
        object.__setattr__(self, "seed", int(self.seed))
        object.__setattr__(self, "free_distance", checked_grid("free_distance", (self.free_distance,))[0])
        self._check_extras()

    def _check_extras(self) -> None:
        """`head` goes with the representation space, box and distances with every other."""
        if self.space == REPRESENTATION and (self.box is not None or len(self.distances) > 0):
            raise ValueError(
                "box and distances must not be given in representation space; they are for attacks on inputs or at a "
                "layer"
            )
        if self.space != REPRESENTATION and self.head is not None:
            raise ValueError(
                f"head must be None in the space {self.space!r}, got {self.head!r}; no layer is the head there"
            )
        if self.free_distance > 0.0 and not self.is_binary:
            raise ValueError(
                f"free_distance must be 0 but for the 0-1 loss of a model without smoothing, got {self.free_distance:g}"
            )

    def costs(self, distances: Tensor) -> Tensor:
        """Return what it costs to move by distances: what is beyond the free one, to the power of the order."""
        return (distances - self.free_distance).clamp(min=0.0).pow(self.order)

    @property
    def layer(self) -> str | None:
        """Name of the layer at whose output examples move; None in every other space."""
        return layer_name(self.space)

    @property
    def smoothing(self) -> Smoothing | None:
        """The noise, if the losses are those of the smoothed model."""
        return Smoothing.of(self.adversary)

    @property
    def best_guarantee(self) -> str:
        """The strongest guarantee that an answer may have, see `riskband.adversaries.names.best_guarantee`."""
        return best_guarantee(loss=self.loss, order=self.order, space=self.space, adversary=self.adversary)

    @property
    def is_binary(self) -> bool:
        """Whether an example that did not move has loss 0 or 1; that of a smoothed model is a share."""
        return get_loss(self.loss).binary and self.smoothing is None


@dataclass(frozen=True)
class CurveNumbers:
    """A client's adversarial risk at some radii and multipliers: what it answers."""

    num_examples: int
    """Number of examples behind the means."""
    clean_risk: float
    """Mean loss without any movement."""
    values_lower: tuple[float, ...]
    values_upper: tuple[float, ...]
    """Bounds of the adversarial risk, one for each radius; equal if the guarantee is "exact"."""
    conjugates_lower: tuple[float, ...]
    conjugates_upper: tuple[float, ...]
    """Bounds, one for each multiplier, of the mean over examples of the supremum of loss - multiplier * cost."""
    adversarial_unit: float
    """Mean cost of the cheapest misclassified point, in units of the cost; 0 if no movement misclassifies anything."""
    guarantee: str
    """What the upper bounds are, one of `riskband.answers.adversarial.GUARANTEES`; if "lower", only the lower ones mean
    something."""
    num_without_gradient: int | None = None
    """Examples at which the model showed the attack no gradient to follow, or one that misled it: lower bounds say
    little of them. None: no attack, one that needs no gradients, or an answer with noise."""
    is_unsteady: bool = False
    """Whether the model that was attacked has other logits for an example in another batch, or when asked again."""

    @property
    def values(self) -> tuple[float, ...]:
        """What is proved at the radii, or else what an attack reached."""
        return self.values_lower if self.guarantee == "lower" else self.values_upper

    @property
    def conjugates(self) -> tuple[float, ...]:
        """What belongs to `values` at the multipliers."""
        return self.conjugates_lower if self.guarantee == "lower" else self.conjugates_upper
