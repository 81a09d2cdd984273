"""Functionals T(F) of the law of client risks, by name: what groups of clients are compared by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from riskband.bands.band import Band
from riskband.checks import check_single
from riskband.functionals.dispersion import Interval, dispersion_interval
from riskband.functionals.laws import RiskLaw
from riskband.functionals.measures import MEASURES, DispersionMeasure, resolve_measure
from riskband.functionals.quantile_measures import (
    cvar_interval,
    mean_interval,
    quantile_interval,
    smoothed_median_weight,
    weighted_quantile_interval,
)
from riskband.functionals.quantiles import QuantileWeight, check_tail_level, tail_weight
from riskband.wording import exactly

Functional = str | DispersionMeasure | QuantileWeight | Callable[[Band], Interval]


@dataclass(frozen=True)
class GroupFunctional:
    """A functional of the law of client risks, with its bounds from a band.

    Attributes
    ----------
    name : str
        As `resolve_functional` reads it; empty for a function of the user.
    quantity : str
        What it is called in a sentence.
    interval : callable
        Its bounds from a two-sided `Band`.
    of_law : callable or None
        Its value for a `RiskLaw`, if known.
    """

    name: str
    quantity: str
    interval: Callable[[Band], Interval]
    of_law: Callable[[RiskLaw], float] | None = None


def _mean() -> GroupFunctional:
    return GroupFunctional("mean", "the mean", mean_interval, lambda law: law.mean)


def _cvar(level: float) -> GroupFunctional:
    level = check_tail_level(level)
    return GroupFunctional(
        f"cvar:{level!r}",
        f"the mean of the worst {exactly(1.0 - level)}",
        lambda band: cvar_interval(band, level=level),
        lambda law: _integral(law, tail_weight(level)),
    )


def _quantile(level: float) -> GroupFunctional:
    level = check_single("level", level)
    return GroupFunctional(
        f"quantile:{level!r}",
        f"the {exactly(level)} quantile",
        lambda band: quantile_interval(band, level=level),
        lambda law: float(law.quantile(level)),
    )


def _smoothed_median(width: float) -> GroupFunctional:
    return _weighted(smoothed_median_weight(width), f"smoothed_median:{width!r}", "the smoothed median")


def _weighted(weight: QuantileWeight, name: str, quantity: str) -> GroupFunctional:
    return GroupFunctional(
        name, quantity, lambda band: weighted_quantile_interval(band, weight), lambda law: _integral(law, weight)
    )


def _integral(law: RiskLaw, weight: QuantileWeight) -> float:
    return float(law.risks @ np.diff(weight.cumulative(np.concatenate([[0.0], law.levels]))))


FUNCTIONALS: Mapping[str, Callable[..., GroupFunctional]] = {
    "mean": _mean,
    "cvar": _cvar,
    "quantile": _quantile,
    "smoothed_median": _smoothed_median,
}


def resolve_functional(functional: Functional) -> GroupFunctional:
    """Return the functional that a name, a measure, a weight or a function stands for.

    Parameters
    ----------
    functional : str, DispersionMeasure, QuantileWeight or callable
        See `riskband.groups.comparisons.group_intervals`.

    Returns
    -------
    GroupFunctional
        The functional.

    Raises
    ------
    ValueError
        If the name is unknown, its parameters are missing, too many or out of range, or it is none of these things.
    """
    if isinstance(functional, QuantileWeight):
        return _weighted(functional, functional.name, f"the quantile integral {functional.name!r}")
    if isinstance(functional, DispersionMeasure):
        return _measure(functional)
    if isinstance(functional, str):
        return _by_name(functional)
    if not callable(functional):
        raise ValueError(
            f"functional must be a name, a measure, a weight or a function of a band, got {functional!r}; for example "
            "'mean' or 'gini'"
        )
    own = functional
    return GroupFunctional("", f"your functional {getattr(own, '__name__', 'T')!r}", lambda band: _checked(own(band)))


def _measure(measure: DispersionMeasure) -> GroupFunctional:
    return GroupFunctional(
        measure.name, measure.quantity, lambda band: dispersion_interval(band, measure), measure.of_law
    )


def _by_name(text: str) -> GroupFunctional:
    name, *parameters = text.split(":")
    if name in MEASURES:
        return _measure(resolve_measure(text))
    if name not in FUNCTIONALS:
        known = ", ".join(sorted((*FUNCTIONALS, *MEASURES)))
        raise ValueError(f"functional must be one of {known}, got {text!r}; or give a weight, or a function of a band")
    try:
        numbers = [float(parameter) for parameter in parameters]
    except ValueError as error:
        raise ValueError(f"parameters of a functional must be numbers, as in 'cvar:0.9', got {text!r}") from error
    try:
        return FUNCTIONALS[name](*numbers)
    except TypeError as error:
        raise ValueError(
            f"functional {text!r} has too few or too many parameters; write for example 'cvar:0.9'"
        ) from error


def _checked(found: Interval) -> Interval:
    try:
        lower, upper = float(found[0]), float(found[1])
    except (TypeError, ValueError, IndexError):
        lower, upper = np.nan, np.nan
    if not lower <= upper:
        raise ValueError(
            f"your functional must return an Interval of two numbers, lower <= upper, got {found!r}; check it"
        )
    return Interval(lower, upper)
