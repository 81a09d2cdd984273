"""Measures of the dispersion of client risks, as data: each is a constant or a ten-line function (math §5, [DC]).

All but the quantile measures grow in convex order at a given mean ("Lorenz-consistent", the mean range included), so
their sharp bounds are attained in the two families of `riskband.functionals.extremal`. 0/0 is read as "no inequality".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from riskband.checks import FloatArray, as_spelled, check_count, check_number
from riskband.functionals import extremal, plugin
from riskband.functionals.extremal import Curve, MomentRule
from riskband.functionals.laws import QuantileLimits, RiskLaw
from riskband.functionals.plugin import PlugIn


@dataclass(frozen=True)
class DispersionMeasure:
    """A measure of the spread of risks between clients.

    Attributes
    ----------
    name : str
        Name and parameters, separated by colons, as `resolve_measure` reads them: "atkinson:0.5".
    quantity : str
        What it is called in a sentence.
    of_law : callable
        Its value for a `RiskLaw`.
    range : tuple of float
        Smallest and largest value of any law on [0, 1].
    plug_in : callable
        Published bounds from `QuantileLimits`, not clipped to the range.
    cut, centre : callable
        From `QuantileLimits`, the parameters of the most unequal law (`unequal_law`) and of the most equal one
        (`equal_law`) of the band.
    is_relative : bool
        Whether it stays the same when all risks are multiplied by one number. Then its supremum is the end of its
        range as soon as the band allows all clients but an ever smaller share to have risk 0.
    grows_in_convex_order : bool
        Whether noise that leaves the mean alone can only increase it.
    """

    name: str
    quantity: str
    of_law: Callable[[RiskLaw], float]
    range: tuple[float, float]
    plug_in: PlugIn
    cut: Callable[[QuantileLimits], float]
    centre: Callable[[QuantileLimits], float]
    is_relative: bool = True
    grows_in_convex_order: bool = True


def _linear_measure(
    name: str,
    quantity: str,
    *,
    cumulative: Curve,
    cut_at: Callable[[float], float],
    range: tuple[float, float],
    plug_in: PlugIn,
    is_relative: bool = True,
) -> DispersionMeasure:
    """∫wq, over the mean if relative; `cumulative` integrates w from 0, `cut_at` says where w passes a value."""

    def of_law(law: RiskLaw) -> float:
        sums = cumulative(np.concatenate([[0.0], law.levels]))
        total = float(np.sum(law.risks * np.diff(sums)))
        if not is_relative:
            return total
        return total / law.mean if law.mean > 0.0 else float(sums[-1])

    return DispersionMeasure(
        name,
        quantity,
        of_law,
        range,
        plug_in,
        cut=lambda limits: extremal.linear_cut(limits, of_law, cut_at),
        centre=lambda limits: extremal.linear_centre(limits, cumulative, is_relative=is_relative),
        is_relative=is_relative,
    )


def _moment_measure(
    name: str, quantity: str, rule: MomentRule, *, range: tuple[float, float], plug_in: PlugIn
) -> DispersionMeasure:
    return DispersionMeasure(
        name,
        quantity,
        rule.of_law,
        range,
        plug_in,
        cut=lambda limits: extremal.moment_cut(limits, rule),
        centre=lambda limits: extremal.moment_centre(limits, rule),
    )


def _digits(number: float) -> str:
    """All digits of a parameter, so that `resolve_measure` reads the same number again."""
    return repr(float(number)).removesuffix(".0")


GINI = _linear_measure(
    "gini",
    "the Gini coefficient",
    cumulative=lambda p: p**2 - p,
    cut_at=lambda value: (1.0 + value) / 2.0,
    range=(0.0, 1.0),
    plug_in=plugin.gini_plug_in,
)


def extended_gini_measure(aversion: float) -> DispersionMeasure:
    """1 - ν∫(1-p)^{ν-1}q(p)dp / mean, ν = `aversion` > 1; ν = 2 is Gini. [DC] definition 6."""
    aversion = check_number(
        "the aversion of an extended Gini coefficient", aversion, remedy="2 is the Gini coefficient"
    )
    if not aversion > 1.0 or not np.isfinite(aversion):
        raise ValueError(
            f"the aversion of an extended Gini coefficient must be > 1, got {aversion:g}; 2 is the Gini coefficient, "
            "and at 1 or below it would not grow with inequality"
        )
    return _linear_measure(
        f"extended_gini:{_digits(aversion)}",
        f"the extended Gini coefficient (aversion {aversion:g})",
        cumulative=lambda p: p - 1.0 + (1.0 - p) ** aversion,
        cut_at=lambda value: 1.0 - float(((1.0 - value) / aversion) ** (1.0 / (aversion - 1.0))),
        range=(0.0, 1.0),
        plug_in=plugin.extended_gini_plug_in(aversion),
    )


def top_share_measure(share: float) -> DispersionMeasure:
    """Part of all risk that the worst-off `share` of the clients bears, 0 < share < 1: 1 - Lorenz(1 - share)."""
    share = check_number("share", share, remedy="0.1 is the worst-off tenth of the clients")
    if not 0.0 < share < 1.0:
        raise ValueError(f"share must be in (0, 1), got {share:g}; 0.1 is the worst-off tenth of the clients")
    level = 1.0 - share
    return _linear_measure(
        f"top_share:{_digits(share)}",
        f"the top share (worst-off {share:g} of clients)",
        cumulative=lambda p: np.maximum(p - level, 0.0),
        cut_at=lambda value: level,
        range=(share, 1.0),
        plug_in=plugin.top_share_plug_in(level),
    )


def mean_range_measure(num_clients: int) -> DispersionMeasure:
    """E(max - min) of the risks of `num_clients` >= 2 new clients: k∫q(p)[p^{k-1} - (1-p)^{k-1}]dp."""
    num_clients = check_count("num_clients of a mean range", num_clients, minimum=2, remedy="it counts new clients")
    return _linear_measure(
        f"mean_range:{num_clients}",
        f"the mean range over {num_clients} clients",
        cumulative=lambda p: p**num_clients + (1.0 - p) ** num_clients - 1.0,
        cut_at=lambda value: 0.5,
        range=(0.0, 1.0),
        plug_in=plugin.mean_range_plug_in(num_clients),
        is_relative=False,
    )


def atkinson_measure(aversion: float) -> DispersionMeasure:
    """1 - (E R^{1-ε})^{1/(1-ε)} / mean, ε = `aversion` >= 0; 1 - exp(E log R) / mean at ε = 1. [DC] definition 3."""
    aversion = check_number("the aversion of an Atkinson index", aversion, remedy="0.5 is usual")
    if not aversion >= 0.0 or not np.isfinite(aversion):
        raise ValueError(f"the aversion of an Atkinson index must be >= 0 and finite, got {aversion:g}")
    order = np.float64(1.0 - aversion)  # numpy's: at order 1 (aversion 0) divisions by zero are harmless
    if order == 0.0:
        rule = extremal.log_rule(lambda total, mean: 1.0 - np.exp(total) / mean)
    else:
        rule = extremal.power_rule(order, lambda total, mean: 1.0 - total ** (1.0 / order) / mean)
    return _moment_measure(
        f"atkinson:{_digits(aversion)}",
        f"the Atkinson index (aversion {aversion:g})",
        rule,
        range=(0.0, 0.0 if aversion == 0.0 else 1.0),
        plug_in=plugin.atkinson_plug_in(rule, order),
    )


def generalised_entropy_measure(order: float) -> DispersionMeasure:
    """E[(R/m)^α - 1] / (α(α-1)), α = `order`; Theil at 1, mean log deviation at 0. [DC] appendix B.2."""
    order = check_number("the order of a generalised entropy", order, remedy="1 is the Theil index")
    if not np.isfinite(order):
        raise ValueError(f"the order of a generalised entropy must be finite, got {order:g}")
    factor = order * (order - 1.0)
    if order == 0.0:
        rule = extremal.log_rule(lambda total, mean: np.log(mean) - total)
    elif order == 1.0:
        rule = extremal.THEIL_RULE
    else:
        rule = extremal.power_rule(order, lambda total, mean: (total / mean**order - 1.0) / factor)
    name = {0.0: "the mean log deviation", 1.0: "the Theil index"}.get(
        order, f"the generalised entropy (order {order:g})"
    )
    return _moment_measure(
        f"generalised_entropy:{_digits(order)}",
        name,
        rule,
        range=(0.0, -1.0 / factor if 0.0 < order < 1.0 else np.inf),
        plug_in=plugin.entropy_plug_in(rule, order),
    )


def _variation_of_law(law: RiskLaw) -> float:
    """Standard deviation over mean, centred first: E R² - m² would lose half of the digits near equality."""
    if law.mean == 0.0:
        return 0.0
    return float(np.sqrt(np.sum(law.weights * (law.risks - law.mean) ** 2))) / law.mean


VARIATION = replace(
    _moment_measure(
        "coefficient_of_variation",
        "the coefficient of variation",
        extremal.power_rule(2.0, lambda total, mean: np.sqrt(np.maximum(total / mean**2 - 1.0, 0.0))),
        range=(0.0, np.inf),
        plug_in=plugin.variation_plug_in,
    ),
    of_law=_variation_of_law,
)


def _hoover_of_law(law: RiskLaw) -> float:
    if law.mean == 0.0:
        return 0.0
    return float(np.sum(law.weights * np.maximum(law.mean - law.risks, 0.0))) / law.mean


HOOVER = DispersionMeasure(
    "hoover",
    "the Hoover index",
    _hoover_of_law,
    (0.0, 1.0),
    plugin.hoover_plug_in,
    extremal.hoover_cut,
    extremal.hoover_centre,
)


def _quantile_measure(
    name: str,
    quantity: str,
    low: float,
    high: float,
    *,
    compare: Callable[[float, float], float],
    range: tuple[float, float],
    is_relative: bool,
) -> DispersionMeasure:
    """A function of two quantiles that rises in the upper and falls in the lower one."""
    if not 0.0 < low < high <= 1.0:
        raise ValueError(f"levels of quantiles need 0 < low < high <= 1, got {low:g} and {high:g}")
    return DispersionMeasure(
        f"{name}:{_digits(low)}:{_digits(high)}",
        quantity,
        lambda law: compare(float(law.quantile(low)), float(law.quantile(high))),
        range,
        plugin.quantile_plug_in(low, high, compare),
        cut=lambda limits: low,
        # Between the largest lower and the smallest upper quantile, whichever is larger, each is nearest to the other.
        centre=lambda limits: 0.5 * (_at(limits, limits.upper, low) + _at(limits, limits.lower, high)),
        is_relative=is_relative,
        grows_in_convex_order=False,
    )


def _at(limits: QuantileLimits, values: FloatArray, level: float) -> float:
    return float(values[np.searchsorted(limits.levels, level, side="left")])


def _ratio(low: float, high: float) -> float:
    if high == 0.0:
        return 1.0
    return high / low if low > 0.0 else np.inf


def _level(value: float) -> float:
    return check_number("a level of quantiles", value, remedy="0.9 is the risk that nine tenths do not exceed")


def quantile_ratio_measure(low: float, high: float) -> DispersionMeasure:
    """Ratio of two quantiles, 0 < low < high <= 1; 1 if both are 0."""
    low, high = _level(low), _level(high)
    return _quantile_measure(
        "quantile_ratio",
        f"the ratio of the {high:g} to the {low:g} quantile",
        low,
        high,
        compare=_ratio,
        range=(1.0, np.inf),
        is_relative=True,
    )


def quantile_range_measure(low: float, high: float) -> DispersionMeasure:
    """Distance between two quantiles, 0 < low < high <= 1."""
    low, high = _level(low), _level(high)
    return _quantile_measure(
        "quantile_range",
        f"the distance from the {low:g} to the {high:g} quantile",
        low,
        high,
        compare=lambda first, second: second - first,
        range=(0.0, 1.0),
        is_relative=False,
    )


MEASURES: Mapping[str, Callable[..., DispersionMeasure]] = {
    "gini": lambda: GINI,
    "extended_gini": extended_gini_measure,
    "atkinson": atkinson_measure,
    "generalised_entropy": generalised_entropy_measure,
    "theil": lambda: generalised_entropy_measure(1.0),
    "mean_log_deviation": lambda: generalised_entropy_measure(0.0),
    "hoover": lambda: HOOVER,
    "coefficient_of_variation": lambda: VARIATION,
    "top_share": top_share_measure,
    "quantile_ratio": quantile_ratio_measure,
    "quantile_range": quantile_range_measure,
    "mean_range": mean_range_measure,
}


def resolve_measure(measure: str | DispersionMeasure) -> DispersionMeasure:
    """Return the measure that a name with its parameters stands for.

    Parameters
    ----------
    measure : str or DispersionMeasure
        For example "gini", "atkinson:0.5", "quantile_ratio:0.1:0.9"; a measure is returned as it is.

    Returns
    -------
    DispersionMeasure
        The measure.

    Raises
    ------
    ValueError
        If the name is unknown, or its parameters are missing, too many, or out of range.
    """
    if isinstance(measure, DispersionMeasure):
        return measure
    name, *parameters = measure.split(":") if isinstance(measure, str) else ("",)
    name = as_spelled(name, MEASURES) or ""
    if not name:
        raise ValueError(f"measure must be one of {', '.join(sorted(MEASURES))}, got {measure!r:.80}")
    try:
        numbers = [float(parameter) for parameter in parameters]
    except ValueError as error:
        raise ValueError(f"parameters of a measure must be numbers, as in 'atkinson:0.5', got {measure!r}") from error
    try:
        return MEASURES[name](*numbers)
    except TypeError as error:
        raise ValueError(
            f"measure {measure!r} has too few or too many parameters; write for example 'atkinson:0.5'"
        ) from error
