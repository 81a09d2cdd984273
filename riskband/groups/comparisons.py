"""Comparisons of groups of clients: a table of statistics over groups, with the sentence that each certifies.

T is a functional of the distribution of client risks in a group (math §10.1, [DC] §3.2). The bands of all groups hold
at once, so the true numbers T(F_g) lie in a box, the intervals of the groups. Every end here is that of the statistic
over the whole box: sharp given the intervals, but for the largest variance and the largest CVaR deviation of more than
`MAX_VERTEX_GROUPS` groups, which are bounded from above.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from riskband.certificate import Certificate, recipe
from riskband.checks import FloatArray, check_choice, check_flag, in_decimals
from riskband.functionals.distributions import RiskDistribution
from riskband.functionals.functional import Functional, Given, Interval, interval_of, resolve
from riskband.functionals.weights import check_tail_level
from riskband.groups.group_bands import GroupBands, check_group_bands, check_per_group

MAX_NAMES = 8
"""More groups than these are not listed in a statement."""

MAX_VERTEX_GROUPS = 16
"""Up to so many groups all 2^G corners of the box are tried. The largest variance over a box is NP-hard in general."""

Ends = tuple[float, float]
Weights = Mapping[str, float] | None


def group_intervals(bands: GroupBands, functional: Given) -> dict[str, Interval]:
    """Bounds on a functional of the CDF of client risks in every group, all at once.

    Parameters
    ----------
    bands : GroupBands
        With the sides that `bound` needs.
    functional : str, Functional, QuantileWeight or callable
        "mean", "cvar:0.9", "gini", a weight on quantiles, or your own function from a `Band` to an
        `Interval`.

    Returns
    -------
    dict of str to Interval
        Finite numbers, by group.

    Raises
    ------
    ValueError
        If the functional is unknown, or is not bounded in some group.
    """
    check_group_bands(bands)
    chosen = resolve(functional)
    found = {name: interval_of(source, chosen) for name, source in bands.bands.items()}
    for name, (lower, upper) in found.items():
        if not (np.isfinite(lower) and np.isfinite(upper)):
            raise ValueError(
                f"{chosen.name} cannot be bounded in group {name!r}, got [{lower:g}, {upper:g}]; take a functional "
                "that is bounded, such as mean or gini"
            )
    return found


class _Box(NamedTuple):
    """The intervals of a functional in all groups: the true numbers lie in this box."""

    bands: GroupBands
    lower: FloatArray
    upper: FloatArray

    @classmethod
    def of(cls, bands: GroupBands, functional: Given) -> _Box:
        ends = np.array(list(group_intervals(bands, functional).values()), dtype=np.float64)
        return cls(bands, ends[:, 0], ends[:, 1])

    def parts(self, weights: Weights) -> FloatArray:
        """Weights of the groups, equal by default."""
        names = self.bands.names
        if weights is None:
            return np.full(len(names), 1.0 / len(names))
        return np.array(list(check_per_group("weights", weights, names, is_total=True).values()))

    def require_pairs(self) -> None:
        if len(self.lower) < 2:
            raise ValueError(
                f"a gap needs at least 2 groups, got {', '.join(self.bands.names)} alone; name another group"
            )


def _group_gap(box: _Box, *, first: str, second: str, squared: bool = False) -> Ends:
    if box.bands[first] is box.bands[second]:
        raise ValueError(f"a gap needs two different groups, got {first!r} twice")
    pair = [box.bands.names.index(first), box.bands.names.index(second)]
    least, most = gap_ends(box.lower[pair], box.upper[pair])
    return (least**2, most**2) if check_flag("squared", squared) else (least, most)


def _largest_gap(box: _Box) -> Ends:  # [DC] §5.1.1
    box.require_pairs()
    return largest_gap_ends(box.lower, box.upper)


def _quadratic_gaps(box: _Box) -> Ends:  # the square for one pair is [DC] §3.2, the mean over pairs is ours
    box.require_pairs()
    factor = 2.0 * len(box.lower) / (len(box.lower) - 1.0)
    least, most = _group_variance(box)
    return factor * least, factor * most


def _group_variance(box: _Box, *, weights: Weights = None) -> Ends:  # [DC] §3.2
    return variance_ends(box.lower, box.upper, box.parts(weights))


def _worst_group(box: _Box) -> Ends:
    return maximum_ends(box.lower, box.upper)


def _weighted_group_mean(box: _Box, *, weights: Weights = None) -> Ends:  # [DC] §5.1.1
    return mean_ends(box.lower, box.upper, box.parts(weights))


def _cvar_fairness(box: _Box, *, level: float, weights: Weights = None) -> Ends:
    """[DC] §3.2, D_CV,α with α = `level` in its explicit (Rockafellar-Uryasev) form.

    The conditional mean "given Z > α" of the text there is a misprint.
    """
    level = check_tail_level(level)
    return cvar_deviation_ends(box.lower, box.upper, box.parts(weights), level=level)


COMPARISONS: Mapping[str, tuple[Callable[..., Ends], str]] = {
    "group_gap": (_group_gap, "the {squared}difference between the groups {first!r} and {second!r} in"),
    "largest_gap": (_largest_gap, "the largest difference between two of {groups} in"),
    "quadratic_gaps": (_quadratic_gaps, "the mean squared difference between two of {groups} in"),
    "group_variance": (_group_variance, "the {weighted}variance over {groups} of"),
    "worst_group": (_worst_group, "in the worst of {groups}"),
    "weighted_group_mean": (_weighted_group_mean, "the {weighted}mean over {groups} of"),
    "cvar_fairness": (_cvar_fairness, "the {weighted}CVaR deviation (level {level}) over {groups} of"),
}
"""By name, both ends over a box, and how the sentence of its certificate begins."""


def compared(bands: GroupBands, comparison: str, functional: Given, **options: Any) -> Interval:
    """Both ends of a comparison, for any functional; `group_certificate` says them in words."""
    return _compared(_Box.of(bands, functional), check_choice("comparison", comparison, COMPARISONS), options)


def _compared(box: _Box, comparison: str, options: Mapping[str, Any]) -> Interval:
    ends, _ = COMPARISONS[comparison]
    try:
        return Interval(*ends(box, **options))
    except TypeError as error:
        raise ValueError(f"options of {comparison} do not fit: {error}; see its documentation") from error


def group_certificate(bands: GroupBands, comparison: str, functional: Given, **options: Any) -> Certificate:
    """Certificate for a comparison of groups.

    Parameters
    ----------
    bands : GroupBands
        With both sides.
    comparison : str
        With T(F_g) the functional of group g: "group_gap", |T(F_g) - T(F_g')|; "largest_gap", the largest over all
        pairs; "quadratic_gaps", the mean square over all pairs; "group_variance", "weighted_group_mean" and
        "worst_group", the variance, mean and largest of T(F_g) over groups; "cvar_fairness", the mean of T over the
        worst-off groups minus that over all.
    functional : str, Functional or QuantileWeight
        As for `group_intervals`, but no function of your own: `verify` could not find it.
    **options
        `first` and `second`, names of groups, and `squared` (False) for a "group_gap"; `level` in [0, 1), the best-off
        share of the groups to leave out, for "cvar_fairness". For this, "weighted_group_mean" and "group_variance" also
        `weights`, the probability of each group by name, fixed before any risk was seen and equal by default.

    Returns
    -------
    Certificate
        Both ends. Its delta is that of all bands together: every certificate and interval of `bands` holds on the same
        event. `details` has, in the order of `bands.names`, `group_lower`, `group_upper`, `group_measured` (for the
        measured risks), `group_num_clients` and `group_delta`.

    Raises
    ------
    ValueError
        As for `group_intervals`, if an option does not fit, or if the functional has no name.
    """
    comparison = check_choice("comparison", comparison, COMPARISONS)
    _, sentence = COMPARISONS[comparison]
    chosen = resolve(functional)
    if not chosen.name:  # `verify` could not find it again
        raise ValueError(
            f"a certificate needs a functional with a name, got {chosen.quantity}; use a QuantileWeight, or "
            "group_intervals"
        )
    box = _Box.of(bands, chosen)
    lower, upper = _compared(box, comparison, options)
    plain = {name: _plain(option) for name, option in options.items()}
    # The name as it was given: verification compares the same text.
    named = {"comparison": comparison, "functional": functional if isinstance(functional, str) else chosen.name}
    return Certificate(
        quantity=f"{sentence.format(**plain | _words(bands, plain))} {chosen.quantity} of {bands.subject}",
        value=float(upper),
        lower=float(lower),
        delta=bands.delta,
        method=f"Bonferroni over {len(bands.names)} groups, {next(iter(bands.bands.values())).method} bands",
        assumptions=bands.assumptions,
        details=_details(box, chosen),
        recipe=recipe("group_certificate", named | plain, bands),
    )


def _words(bands: GroupBands, options: Mapping[str, Any]) -> dict[str, str]:
    """What the sentences of the table leave open."""
    names = ", ".join(map(repr, bands.names)) if len(bands.names) <= MAX_NAMES else "named in the recipe"
    return {
        "groups": f"{len(bands.names)} groups ({names})",
        "weighted": "" if options.get("weights") is None else "weighted ",
        "squared": "squared " if options.get("squared") else "",
    }


def _details(box: _Box, functional: Functional) -> dict[str, FloatArray]:
    bands = box.bands
    distributions = [RiskDistribution.of_values(source.risks.shown_values) for source in bands.bands.values()]
    return {
        "group_lower": box.lower,
        "group_upper": box.upper,
        "group_measured": np.array([functional.value(distribution) for distribution in distributions]),
        "group_num_clients": np.array(list(bands.num_clients.values()), dtype=np.float64),
        "group_delta": np.array(list(bands.deltas.values())),
    }


def _plain(option: Any) -> Any:
    """An option as plain data for JSON."""
    if isinstance(option, Mapping):
        return {str(name): float(number) for name, number in option.items()}
    if option is None or isinstance(option, (str, bool, np.bool_)):
        return bool(option) if isinstance(option, np.bool_) else option
    return np.asarray(option, dtype=np.float64).tolist()


def gap_ends(lower: FloatArray, upper: FloatArray) -> Ends:
    """|T_1 - T_2| of two groups: 0 where their intervals overlap; arrays of shape (2,)."""
    least = max(lower[0] - upper[1], lower[1] - upper[0], 0.0)
    return float(in_decimals(least)), float(in_decimals(max(upper[0] - lower[1], upper[1] - lower[0])))


def largest_gap_ends(lower: FloatArray, upper: FloatArray) -> Ends:
    """max_{g,g'} |T_g - T_g'|, over pairs of different groups; arrays of shape (num_groups,), at least 2.

    The smallest value is reached by clip(c, lower, upper) for any c between the smallest upper and largest lower end.
    """
    least = max(float(np.max(lower) - np.min(upper)), 0.0)
    gaps = upper[:, None] - lower[None, :]
    np.fill_diagonal(gaps, -np.inf)
    return float(in_decimals(least)), float(in_decimals(np.max(gaps)))


def maximum_ends(lower: FloatArray, upper: FloatArray) -> Ends:
    """max_g T_g."""
    return float(np.max(lower)), float(np.max(upper))


def mean_ends(lower: FloatArray, upper: FloatArray, weights: FloatArray) -> Ends:
    """Σ w_g T_g for weights >= 0."""
    return float(weights @ lower), float(weights @ upper)


def variance_ends(lower: FloatArray, upper: FloatArray, weights: FloatArray) -> Ends:
    """Σ w_g (T_g - Σ w T)² for weights that sum to 1.

    The variance is min_c Σ w_g (T_g - c)², so its minimum is that of Σ w_g dist(c, [l_g, u_g])² over c: convex, and
    between two ends of intervals a parabola.
    """
    knots = np.unique(np.concatenate([lower, upper]))
    middles = (knots[:-1] + knots[1:]) / 2.0
    nearest = np.clip(middles[:, None], lower, upper)
    masses = np.where(nearest != middles[:, None], weights, 0.0)
    totals = masses.sum(axis=1)
    vertices = np.divide((masses * nearest).sum(axis=1), totals, out=middles.copy(), where=totals > 0.0)
    centres = np.concatenate([knots, np.clip(vertices, knots[:-1], knots[1:])])
    distances = np.clip(centres[:, None], lower, upper) - centres[:, None]
    least = float(np.min(distances**2 @ weights))
    if lower.size <= MAX_VERTEX_GROUPS:
        return least, max(least, _corner_maximum(lower, upper, lambda corners: _variances(corners, weights)))
    return least, max(least, _variance_relaxation(lower, upper, weights))


def cvar_deviation_ends(lower: FloatArray, upper: FloatArray, weights: FloatArray, *, level: float) -> Ends:
    """min_ρ {ρ + Σ w_g (T_g - ρ)_+ / (1 - level)} - Σ w_g T_g for weights that sum to 1, level in [0, 1).

    At a fixed ρ a group adds w_g (T_g - ρ)_+ / (1 - level) - w_g T_g, which falls up to ρ and does not fall beyond: it
    is smallest at clip(ρ, l_g, u_g). The sum is piecewise linear and convex in ρ, so an end of an interval is best.
    """
    knots = np.concatenate([lower, upper])[:, None]
    nearest = np.clip(knots, lower, upper)
    least = float(np.min(knots[:, 0] + (np.maximum(nearest - knots, 0.0) / (1.0 - level) - nearest) @ weights))
    least = max(least, 0.0)
    if lower.size <= MAX_VERTEX_GROUPS:
        corners = _corner_maximum(lower, upper, lambda values: cvar_deviations(values, weights, level=level))
        return least, max(least, corners)
    # max_v Σ (v_g - w_g) T_g over 0 <= v_g <= w_g / (1 - level), Σ v = 1: each term's largest value is convex in v_g.
    # Its chord from v_g = 0 to the cap lies above it and is linear, which leaves one CVaR.
    chord = cvar_deviations((level * upper + (1.0 - level) * lower)[None, :], weights, level=level)
    slack = weights @ (level * (upper - lower))
    return least, max(least, float(chord[0] + slack))


def cvar_deviations(values: FloatArray, weights: FloatArray, *, level: float) -> FloatArray:
    """CVaR minus mean of each row; values of shape (num_rows, num_groups), weights that sum to 1."""
    order = np.argsort(-values, axis=1, kind="stable")
    sorted_weights = weights[order]
    before = np.cumsum(sorted_weights, axis=1) - sorted_weights
    in_tail = np.clip(1.0 - level - before, 0.0, sorted_weights)
    tail = np.sum(in_tail * np.take_along_axis(values, order, axis=1), axis=1) / np.sum(in_tail, axis=1)
    return np.asarray(np.maximum(tail - values @ weights, 0.0))


def _variances(values: FloatArray, weights: FloatArray) -> FloatArray:
    deviations = values - (values @ weights)[:, None]
    return np.asarray(deviations**2 @ weights)


def _corner_maximum(lower: FloatArray, upper: FloatArray, statistic: Callable[[FloatArray], FloatArray]) -> float:
    """Largest value at a corner of the box: that over the whole box, for a convex statistic."""
    bits = (np.arange(2**lower.size)[:, None] >> np.arange(lower.size)) & 1
    return float(np.max(statistic(np.where(bits == 1, upper, lower))))


def _variance_relaxation(lower: FloatArray, upper: FloatArray, weights: FloatArray) -> float:
    """Maximum over the box of Σ w_g ((l_g + u_g) T_g - l_g u_g) - m², m = Σ w T, which is not below the variance.

    T_g² lies below its chord, and both agree at the ends. The maximum is concave in T: groups whose centre is above m
    are at their upper end, those below at their lower one, and at most the groups with centre m lie between.
    """
    order = np.argsort(-(lower + upper), kind="stable")
    w, low, high = weights[order], lower[order], upper[order]
    # Raise the groups to their upper ends one after the other, from the highest centre on; m grows from Σwl to Σwu.
    steps = w * (high - low)
    means = w @ low + np.concatenate([[0.0], np.cumsum(steps)])
    second = w @ low**2 + np.concatenate([[0.0], np.cumsum(steps * (low + high))])
    stop = np.clip((low + high) / 2.0, means[:-1], means[1:])
    inside = second[:-1] + (low + high) * (stop - means[:-1]) - stop**2
    return float(max(np.max(inside), np.max(second - means**2)))
