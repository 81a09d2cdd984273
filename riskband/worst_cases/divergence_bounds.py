"""How far a target network is from the source network, as far as the risks of their clients tell (math §3.6).

Both numbers are about the distributions of risks. Data processing makes the divergence of these, and of their bins, at
most that of the networks themselves, which no sample bounds from above.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from riskband.answers.risks import ClientRisks
from riskband.bands.band import Band, band, band_alone, own_delta
from riskband.certificate import Certificate, recipe
from riskband.checks import FloatArray, as_number, check_count, check_delta, check_losses, check_numbers
from riskband.worst_cases.divergences import CHI2, HELLINGER2, KL, TV, FDivergence, resolve_divergence

_ROUNDING = 1e-12  # relative and absolute: the bound is lowered by so much
_ALIKE = "clients of both networks measure alike: how risks are measured does not depend on the network"
BOTH_NETWORKS = "the clients of the source network answered independently of those of the target network"
_PART_OF_RANKS = 0.5  # of delta: of few clients ranks say most, and of many the bands
_MOST_COUNTED, _COST_OF_STEP = 2e8, 1e3  # numbers that are added up for one exact probability of ranks
_LEAST_CHANCE = 1e-150  # a larger p-value is valid, too; divergences of smaller ones overflow when squared

_OF_ONE: Mapping[FDivergence, Callable[[float, int], float]] = {
    CHI2: lambda found, num: float(np.expm1(np.log1p(found) / num)),
    KL: lambda found, num: found / num,
    TV: lambda found, num: float(-np.expm1(np.log1p(-min(found, 1.0 - 1e-15)) / num)),
    HELLINGER2: lambda found, num: float(-2.0 * np.expm1(np.log1p(-min(found / 2.0, 1.0 - 1e-15)) / num)),
}
"""From the divergence of the distributions of so many independent clients to what that of one client is at least."""


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
    string between both bands, which is the same for every divergence. And the smallest at which the ranks of what few
    clients of the target measured, among those of the source, are not too rare.

    Parameters
    ----------
    source, target : ClientRisks, or Band
        Answers of clients of each network, or two-sided bands of them, both for true risks, or both with
        ``local="observed"``: sharper, and as good where the clients of both networks measure on equally many examples.
        Of answers such bands are made, the sharper ones if all have the same number of examples.
    divergence : str or FDivergence
        A name in `DIVERGENCES`, or your own, for which ranks say nothing.
    delta : float, optional
        With answers: probability that the bound fails, in (0, 1), for any number of divergences at once. Half of it is
        for ranks, if all have the same number of examples, and each band has half of the rest. With bands, which have
        their own: that of ranks, by default none; they need ``local="observed"``. Only ranks assume that the clients of
        both networks answered independently.

    Returns
    -------
    Certificate
        Its `lower` is the bound; its `value` is `inf`. There is no such upper bound: clients that no sample shows can
        make the divergence as large as one likes. `details["estimate"]` is `divergence_estimate`, where it is finite
        and the answers are as measured, and with ranks `details["p_value"]` that of `rank_test`. Source: math §3.6.

    Raises
    ------
    ValueError
        If a band has one side only, the bands are about different risks, or about risks that were measured on different
        numbers of examples, the divergence is unknown, or delta is not given with answers, or with bands of true risks
        or of answers that are not all certain.
    """
    if isinstance(source, ClientRisks) and isinstance(target, ClientRisks):
        both, delta = (source, target), own_delta(delta)
        of_ranks = _PART_OF_RANKS * delta if _have_equal_sizes(*both) and _are_as_measured(*both) else None
        source, target = _bands_of_both(*both, delta=delta - (of_ranks or 0.0))
    else:
        of_ranks = None if delta is None else check_delta(delta)
    source, target = (band_alone(each, delta=None) for each in (source, target))
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
    found, details = float(f.between(height, width)), dict[str, FloatArray]()
    method, assumed = f"taut string, {source.method} band and {target.method} band", tuple[str, ...]()
    if source.local == "observed":
        assumed = (_ALIKE,)
    if source.risks.are_as_measured and target.risks.are_as_measured:
        estimate = divergence_estimate(source.risks.values, target.risks.values, divergence=f)
        details = {"estimate": np.array(estimate)} if np.isfinite(estimate) else {}
    if of_ranks is not None:
        if source.local != "observed" or not _are_as_measured(source.risks, target.risks):
            raise ValueError(
                "delta with bands is that of ranks, and needs bands with local='observed' of answers that are all "
                f"certain, got {of_ranks:g} with others; leave it out"
            )
        p_value = rank_test(source.risks.values, target.risks.values)
        found = max(found, bound_by_ranks(p_value, f, num_clients=target.risks.num_clients, delta=of_ranks))
        details["p_value"], assumed = np.array(p_value), (*assumed, BOTH_NETWORKS)
        method = f"ranks, and {method}"
    arguments = {"divergence": f.name, "target": target.provenance(), "delta": of_ranks}
    return Certificate(
        quantity=f"the {f.title} of the target network from the source network",
        value=np.inf,
        lower=max(found - _ROUNDING * (1.0 + found), 0.0),  # finite, as the sides of bands lie strictly within (0, 1)
        delta=source.delta + target.delta + (of_ranks or 0.0),
        method=method,
        assumptions=tuple(dict.fromkeys((*source.assumptions, *target.assumptions, *assumed))),
        details=details,
        recipe=recipe("divergence_lower_bound", arguments, source),
    )


def _have_equal_sizes(source: ClientRisks, target: ClientRisks) -> bool:
    sizes = np.concatenate([source.num_examples, target.num_examples])
    return bool(np.all(sizes == sizes[0]))


def _are_as_measured(*both: ClientRisks) -> bool:
    return all(each.are_as_measured and each.are_independent for each in both)


def _bands_of_both(source: ClientRisks, target: ClientRisks, *, delta: float) -> tuple[Band, Band]:
    """Bands of two networks that can be compared, with half of delta each: the sharper ones where they may be.

    These are of measured risks, which all clients of both networks must measure on equally many examples.
    """
    local = "observed" if _have_equal_sizes(source, target) else "marginal"
    first, second = (band(each, delta=delta / 2.0, local=local) for each in (source, target))
    return first, second


def bound_by_ranks(p_value: float, f: FDivergence, *, num_clients: int, delta: float) -> float:
    """Return a lower bound of a divergence, from the p-value with which so many clients deny that there is none.

    Whatever is as rare as that without a shift has a probability of delta only where the divergence is large enough.
    Source: math §3.6.
    """
    if f not in _OF_ONE or p_value >= delta:
        return 0.0
    ends = (np.array(end) for end in (delta, max(p_value, _LEAST_CHANCE)))
    return _OF_ONE[f](float(f.binary(*ends)), num_clients)


def rank_test(source: npt.ArrayLike, target: npt.ArrayLike) -> float:
    """P-value of the hypothesis that all clients of two networks are draws from one distribution, by their ranks.

    Parameters
    ----------
    source, target : array_like, shape (num_clients,)
        What the clients of each network measured, in one way.

    Returns
    -------
    float
        Twice the smaller of the two probabilities, if any choice of the target's clients among all of them were as
        likely as theirs, that in as few pairs or fewer the source's client does not measure less, or not more (the
        permutation test by Mann and Whitney; a tie counts against a difference). Exact but for ties, or with many
        clients an upper bound of that (Chernoff's). Source: math §3.6.
    """
    first, second = np.sort(np.asarray(source, dtype=np.float64)), np.asarray(target, dtype=np.float64)
    not_below = first.size - np.searchsorted(first, second, side="left")
    not_above = np.searchsorted(first, second, side="right")
    fewest = min(int(not_below.sum()), int(not_above.sum()))
    return min(2.0 * chance_of_so_few_pairs(fewest, first.size, second.size), 1.0)


@lru_cache(maxsize=64)
def chance_of_so_few_pairs(num_pairs: int, num_source: int, num_target: int) -> float:
    """Return the probability of so few pairs or fewer with the source's client before the target's, in a random order.

    The last of all is a target client, behind which nothing is left to count, or one of the source, behind which no
    target client comes.
    """
    if 2 * num_pairs >= num_source * num_target:
        return 1.0
    if (num_pairs + _COST_OF_STEP) * num_source * num_target > _MOST_COUNTED:
        return chernoff_of_pairs(num_pairs, num_source, num_target)
    chances = np.zeros((num_target + 1, num_pairs + 1))
    chances[:, 0] = 1.0
    for k in range(1, num_source + 1):
        for j in range(1, num_target + 1):
            row = chances[j - 1] * (j / (j + k))
            if j <= num_pairs:
                row[j:] += chances[j, : num_pairs + 1 - j] * (k / (j + k))
            chances[j] = row
    return float(chances[-1].sum())


def chernoff_of_pairs(num_pairs: int, num_source: int, num_target: int) -> float:
    """Return an upper bound of the same probability, for many clients, by the generating function of that number."""
    rank = np.arange(1.0, num_target + 1.0)

    def log_bound(slope: float) -> float:
        grown = np.expm1(-slope * (num_source + rank)) / np.expm1(-slope * rank) * (rank / (num_source + rank))
        return float(np.log(grown).sum() + slope * num_pairs)

    return float(np.exp(min(map(log_bound, np.geomspace(1e-4 / num_source, 40.0, 100).tolist()))))


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
