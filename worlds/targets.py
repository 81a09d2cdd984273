"""Target networks: unseen clients that were moved once more, or clients whose shifts follow other distributions.

A moved client holds the images of an unseen client, moved further by an affine shift of its own. Its
transport cost from that unseen client is measured, not assumed (`transport_cost`); since the unseen clients are drawn
from μ itself, the mean of these costs bounds the transport cost between μ and the target network's meta-distribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import scipy  # loads its modules on use
from numpy.typing import NDArray

from protocol.checks import checked_number
from worlds.population import ClientDistribution, Population, PopulationSpec, spec_from_config
from worlds.shifts import AffineShift

_METRICS: dict[str, Literal["cityblock", "euclidean", "chebyshev"]] = {
    "l1": "cityblock",
    "l2": "euclidean",
    "linf": "chebyshev",
}
REVERSED = "reversed"
CHANGED_KEYS = ("affine-sigma", "dirichlet-concentration")
HOW_TO_CHANGE = (
    f'give "{REVERSED}" (the ranges of resolution and colour shifts change places), changed settings such as '
    '"dirichlet-concentration:0.2", both with a comma in between, or "" for no target network'
)

_STREAM = 2  # of no network of `Population`
_MAX_STEPS = 10_000_000  # POT stops after 100,000 by default, too few for classes of some thousand images


def target_changes(text: str) -> tuple[bool, dict[str, float]]:
    """Read what makes a target network another one: whether shifts are reversed, and changed keys of the run config.

    "reversed", "affine-sigma:0.3", "dirichlet-concentration:0.2", or several with commas; "" changes nothing. Raises
    ValueError for anything else, or a key that is named twice.
    """
    is_reversed, changes = False, dict[str, float]()
    for part in filter(None, map(str.strip, text.split(","))):
        key, _, value = part.partition(":")
        if key in changes or (key == REVERSED and (value or is_reversed)) or key not in (REVERSED, *CHANGED_KEYS):
            raise ValueError(f"a target network must be other shifts, each named once, got {text!r}; {HOW_TO_CHANGE}")
        if key == REVERSED:
            is_reversed = True
            continue
        try:
            changes[key] = checked_number(key, float(value), minimum=0, maximum=1e6, remedy="0 means no such shift")
        except ValueError:
            raise ValueError(f"{key} must be a number from 0 to 1e6, got {text!r}; {HOW_TO_CHANGE}") from None
    return is_reversed, changes


def target_spec(config: Mapping[str, Any], *, target: str) -> PopulationSpec:
    """Return the population of a target network: that of a run config with the changes of `target_changes`.

    Its clients have random streams of their own. Raises ValueError as `target_changes` and
    `worlds.population.spec_from_config`, if no shift has a reverse, or a change would change nothing.
    """
    is_reversed, changes = target_changes(target)
    if "affine-sigma" in changes and config.get("group-sigmas"):
        raise ValueError(
            f"affine-sigma of a target network must not be given with group-sigmas, which replaces it, got {target!r}; "
            "change dirichlet-concentration"
        )
    spec = spec_from_config({**config, **changes}, network="target")
    if not is_reversed:
        return spec
    found = spec.reversed()
    if found == spec:
        raise ValueError(f"a reversed target network needs a resolution or colour shift, got none; {HOW_TO_CHANGE}")
    return found


def moved_further(population: Population, k: int, *, sigma: float) -> ClientDistribution:
    """Return client k ≥ 0 of a population after a further affine shift, with the same labels and weights.

    The direction of the shift depends on the population's seed and on k alone; `sigma`, see
    `worlds.shifts.AffineShift`, only scales it.
    """
    shift = AffineShift(sigma)
    client = population.distribution(k)
    rng = np.random.default_rng(np.random.SeedSequence(population.spec.seed, spawn_key=(_STREAM, k)))
    drawn = shift.draw(rng, x_shape=client.x.shape[1:], num_classes=population.data.num_classes)
    return ClientDistribution(x=drawn.moved(client.x), y=client.y, weights=client.weights)


def transport_cost(
    points: NDArray[np.float64],
    moved: NDArray[np.float64],
    y: NDArray[np.int64],
    weights: NDArray[np.float64],
    *,
    order: int,
    norm: str,
) -> float:
    """Return the optimal transport cost between two client distributions with the same labels and weights.

    A label never moves, so every class is a problem of its own, solved exactly by POT (network simplex). Moving every
    example to its own image is one of the plans, so its cost is an upper bound. Points before and after the move are
    representations (num_examples, num_features); weights are probabilities that sum to 1. Moving by a distance t in the
    norm "l1", "l2" or "linf" costs t**order. Raises ValueError if there are not as many points before and after as
    labels and weights, or the norm is unknown.
    """
    import ot  # seconds to load, and only this function needs it

    if points.shape != moved.shape or not len(points) == len(y) == len(weights):
        raise ValueError(
            f"each example must have a point, an image of it, a label and a weight, got {points.shape}, {moved.shape}, "
            f"{y.shape} and {weights.shape}; give the rows of one client"
        )
    if norm not in _METRICS:
        raise ValueError(f"norm must be one of {', '.join(_METRICS)}, got {norm!r}")
    cost = 0.0
    for label in np.unique(y[weights > 0]):
        own = y == label
        costs = scipy.spatial.distance.cdist(points[own], moved[own], _METRICS[norm]) ** order
        mass = weights[own].sum()
        share = weights[own] / mass
        cost += float(mass * ot.emd2(share, share, costs, numItermax=_MAX_STEPS))
    return cost
