"""How far a target network is from the source network, as far as the risks of their clients tell (math §3.6).

Both numbers are about the distributions of risks. Data processing makes the divergence of these, and of their bins, at
most that of the networks themselves, which no sample bounds from above.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from riskband.answers.risks import ClientRisks
from riskband.bands.band import Band, band, band_alone, own_delta
from riskband.certificate import Certificate, recipe
from riskband.checks import FloatArray, as_number, check_count, check_losses, check_numbers
from riskband.worst_cases.divergences import FDivergence, resolve_divergence

_ROUNDING = 1e-12  # relative and absolute: the bound is lowered by so much
_ALIKE = "clients of both networks measure alike: how risks are measured does not depend on the network"


def divergence_estimate(
    source: npt.ArrayLike, target: npt.ArrayLike, *, divergence: str | FDivergence, bins: int = 10
) -> float:
    """Divergence of a histogram of the target's risks from one of the source's: an *estimate*, as [RE] §5 draws it.

    Parameters
    ----------
    source, target : array_like, shape (num_clients,)
        Risks of the clients of each network, in [0, 1].
    divergence : str or FDivergence
        A name in `DIVERGENCES`, or your own.
    bins : int
        Number of equal bins between the smallest and the largest risk of both, >= 1.

    Returns
    -------
    float
        >= 0; `inf` if a bin holds clients of the target and none of the source, for KL and χ². With ever more clients
        it tends to a number that is at most the divergence of the networks; with few, chance makes it larger, by about
        (bins - 1)(1/num_source + 1/num_target) for χ² and equal networks. Source: math §3.6.

    Raises
    ------
    ValueError
        If a risk is out of range, the divergence is unknown, or there are no bins.
    """
    before, after = check_losses(source), check_losses(target)
    bins = check_count("bins", bins, minimum=1, remedy="10 is that of the paper")
    f = resolve_divergence(divergence)
    ends = (min(before.min(), after.min()), max(before.max(), after.max()))
    p, q = (np.histogram(risks, bins=bins, range=ends)[0] / risks.size for risks in (before, after))
    return float(f.between(q, p))


def divergence_lower_bound(
    source: Band | ClientRisks, target: Band | ClientRisks, *, divergence: str | FDivergence, delta: float | None = None
) -> Certificate:
    """Lower confidence bound of the divergence of the target network from the source network.

    The smallest divergence of any member of the target's band from any member of the source's, found exactly: the taut
    string between both bands, which is the same for every divergence.

    Parameters
    ----------
    source, target : ClientRisks, or Band
        Answers of clients of each network, or two-sided bands of them, both for true risks, or both with
        ``local="observed"``: sharper, and as good where the clients of both networks measure on equally many examples.
        Of answers such bands are made, the sharper ones if all have the same number of examples. Nothing is assumed of
        how the two samples depend on each other.
    divergence : str or FDivergence
        A name in `DIVERGENCES`, or your own.
    delta : float, optional
        With answers: probability that the bound fails, in (0, 1), for any number of divergences at once. Each band has
        half of it. Bands given have their own.

    Returns
    -------
    Certificate
        Its `lower` is the bound; its `value` is `inf`. There is no such upper bound: clients that no sample shows can
        make the divergence as large as one likes. `details["estimate"]` is `divergence_estimate`, where it is finite
        and the answers are as measured. Source: math §3.6.

    Raises
    ------
    ValueError
        If a band has one side only, the bands are about different risks, or about risks that were measured on different
        numbers of examples, the divergence is unknown, or delta is given with bands or not with answers.
    """
    if isinstance(source, ClientRisks) and isinstance(target, ClientRisks):
        source, target = bands_of_both(source, target, delta=own_delta(delta))
        delta = None
    source, target = (band_alone(each, delta=delta) for each in (source, target))
    for each in (source, target):
        for side in ("lower", "upper"):
            each.require(side)
    if source.subject != target.subject:
        raise ValueError(
            f"both bands must be about the same risks, got {source.subject!r} and {target.subject!r}; "
            "make both with local='observed', or none"
        )
    if source.local == "observed":
        _check_alike(source.risks, target.risks)
    f = resolve_divergence(divergence)
    width, height = np.diff(taut_string(*_obstacles(source, target)), axis=0).T
    found = float(f.between(height, width))
    alike = (_ALIKE,) if source.local == "observed" else ()
    estimate = np.inf
    if source.risks.are_as_measured and target.risks.are_as_measured:
        estimate = divergence_estimate(source.risks.values, target.risks.values, divergence=f)
    return Certificate(
        quantity=f"the {f.title} of the target network from the source network",
        value=np.inf,
        lower=max(found - _ROUNDING * (1.0 + found), 0.0),  # finite, as the sides of bands lie strictly within (0, 1)
        delta=source.delta + target.delta,
        method=f"taut string, {source.method} band and {target.method} band",
        assumptions=tuple(dict.fromkeys((*source.assumptions, *target.assumptions, *alike))),
        details={"estimate": np.array(estimate)} if np.isfinite(estimate) else {},
        recipe=recipe("divergence_lower_bound", {"divergence": f.name, "target": target.provenance()}, source),
    )


def bands_of_both(source: ClientRisks, target: ClientRisks, *, delta: float) -> tuple[Band, Band]:
    """Return bands of two networks that can be compared, with half of delta each: the sharper ones where they may be.

    These are of measured risks, which all clients of both networks must measure on equally many examples.
    """
    sizes = np.concatenate([source.num_examples, target.num_examples])
    local = "observed" if np.all(sizes == sizes[0]) else "marginal"
    first, second = (band(each, delta=delta / 2.0, local=local) for each in (source, target))
    return first, second


def next_estimate(estimates: npt.ArrayLike, *, alpha: float) -> float:
    """Bound on the estimated divergence of the next network, from those of past ones.

    Parameters
    ----------
    estimates : array_like, shape (num_networks,)
        Estimates of past networks, >= 0 or infinite, all made in one way (as many clients each, the same bins), which
        is that of the next one.
    alpha : float
        Probability that the next one is larger, in (0, 1).

    Returns
    -------
    float
        The ceil((num_networks + 1)(1 - alpha))-th smallest, if the next estimate is exchangeable with these. It bounds
        an *estimate* and no divergence. Source: math §3.6.

    Raises
    ------
    ValueError
        If an estimate is out of range, or they are too few for alpha: 1/alpha - 1 at least.
    """
    found = check_numbers("estimates", estimates, remedy="give one for each past network")
    if found.ndim != 1 or not np.all(found >= 0.0):
        raise ValueError(f"estimates must be one number >= 0 for each past network, got {estimates!r:.80}")
    if not 0.0 < as_number(alpha) < 1.0:
        raise ValueError(f"alpha must lie between 0 and 1, got {alpha!r:.80}; the next one is larger so often")
    rank = int(np.ceil((found.size + 1) * (1.0 - alpha) * (1.0 - _ROUNDING)))
    if rank > found.size:
        needed = int(np.ceil(1.0 / alpha * (1.0 - _ROUNDING))) - 1
        rule = f"past networks must be {needed} or more for alpha = {alpha:g}, got {found.size}"
        raise ValueError(f"{rule}; wait for more, or allow a larger alpha")
    return float(np.sort(found)[rank - 1])


def _check_alike(source: ClientRisks, target: ClientRisks) -> None:
    """Refuse measured risks whose noise alone makes the networks differ: fewer examples spread them more."""
    sizes = [int(risks.num_examples[0]) for risks in (source, target) if risks.has_equal_sizes]
    if len(set(sizes)) == 2:
        raise ValueError(
            "risks that are compared as they were measured must be of equal numbers of examples, got "
            f"{sizes[0]} for each client of the source and {sizes[1]} of the target; make the bands of true risks, "
            "local='marginal'"
        )


def _obstacles(source: Band, target: Band) -> tuple[FloatArray, FloatArray]:
    """Points (F, F') that the curve of both CDFs does not pass below, and those that it does not pass above."""
    # All four sides are constant between these, and right-continuous.
    knots = [points for band in (source, target) for points in (band.lower_points, band.upper_points)]
    risk = np.unique(np.concatenate([[0.0], *knots]))
    return (
        np.column_stack([source.upper(risk), target.lower(risk)]),
        np.column_stack([source.lower(risk), target.upper(risk)]),
    )


def taut_string(below: FloatArray, above: FloatArray) -> FloatArray:
    """Return the corners of the shortest nondecreasing curve from (0, 0) to (1, 1) between points.

    The curve passes each point of `below` (num_points, 2) on or above it and each of `above` on or below it. It makes
    ∫ φ(slope) smallest for every convex φ at once (math §3.6).
    """
    points = np.concatenate([above, below, [[1.0, 1.0], [1.0, 1.0]]])
    is_floor = np.repeat([False, True, False, True], [len(above), len(below), 1, 1])
    is_end = np.repeat([False, True], [len(above) + len(below), 2])
    order = np.lexsort((is_floor, is_end, points[:, 0]))  # at one place the curve comes from below the ceiling
    points, is_floor = points[order], is_floor[order]
    corners, here = [np.zeros(2)], -1
    while here < len(points) - 2:
        here = _next_corner(corners[-1], points, is_floor, start=here + 1)
        corners.append(points[here])
    if not np.array_equal(corners[-1], [1.0, 1.0]):
        corners.append(np.ones(2))
    return np.array(corners)


def _next_corner(at: FloatArray, points: FloatArray, is_floor: npt.NDArray[np.bool_], *, start: int) -> int:
    """Index of the point at which the string from `at` bends next: where the funnel of possible slopes closes."""
    width, height = (points[start:] - at).T
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = height / width
    floor = np.where(is_floor[start:], np.where(width > 0, slope, np.where(height > 0, np.inf, -np.inf)), -np.inf)
    ceiling = np.where(~is_floor[start:] & (width > 0), slope, np.inf)
    lowest, highest = np.maximum.accumulate(floor), np.minimum.accumulate(ceiling)
    closed = np.flatnonzero(lowest > highest)
    if closed.size == 0:
        return len(points) - 1
    stop = int(closed[0])
    # The side that did not move at `stop` is the one that the string bends around, at its last point of that slope.
    side, edge = (ceiling, highest[stop]) if is_floor[start + stop] else (floor, lowest[stop])
    return start + int(np.flatnonzero(side[: stop + 1] == edge)[-1])
