"""What a model is to be chosen for: a weighted sum of measures of the risks of unseen clients, such as mean + 0.5 Gini.

Every term has an upper bound that is read off one band, so the sum of the bounds holds on the band's one event.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from riskband.bands.band import Band
from riskband.checks import check_number
from riskband.functionals import quantiles as functionals
from riskband.functionals.dispersion import dispersion_interval
from riskband.functionals.laws import QuantileLimits, RiskLaw
from riskband.functionals.measures import MEASURES, DispersionMeasure, resolve_measure
from riskband.functionals.quantiles import MEAN, QuantileWeight, check_tail_level, tail_weight

_PLUS = re.compile(r"(?<!\d[eE])\+")  # not the plus of a number such as 1e+3


@dataclass(frozen=True)
class Term:
    """One measure of an objective.

    Attributes
    ----------
    name : str
        Name and parameter, such as "mean", "cvar:0.9", "quantile:0.9", "gini" or "atkinson:0.5".
    of_law : callable
        Its value for a `RiskLaw`.
    upper : callable
        (band, method of `dispersion_interval`) -> upper bound, for every law of the band.
    needs_both_sides : bool
        Whether the band needs an upper side too; a lower side alone is tighter.
    """

    name: str
    of_law: Callable[[RiskLaw], float]
    upper: Callable[[Band, str], float]
    needs_both_sides: bool


@dataclass(frozen=True, init=False)
class Objective:
    """A weighted sum of measures of the risk of unseen clients; the smaller, the better.

    Parameters
    ----------
    terms : str, mapping of str to float, or Objective
        "mean+0.5*gini", or ``{"mean": 1.0, "gini": 0.5}``. Measures: "mean", "cvar:LEVEL" (mean risk of the worst
        1 - LEVEL of the clients), "quantile:LEVEL", and every measure of `dispersion_interval` that is bounded.
    **weights : float
        The same as keywords, for measures without a parameter: ``Objective(mean=1.0, gini=0.5)``.

    Attributes
    ----------
    terms : tuple of (str, float)
        Measures and their weights, finite and > 0.

    Raises
    ------
    ValueError
        If there is no term, a term is unknown, unbounded or there twice, or a weight is not finite and > 0.
    """

    terms: tuple[tuple[str, float], ...]

    def __init__(self, terms: str | Mapping[str, float] | Objective = (), /, **weights: float) -> None:  # type: ignore[assignment]
        if isinstance(terms, Objective):
            pairs = list(terms.terms)
        elif isinstance(terms, str):
            pairs = [_parsed(part, terms) for part in _PLUS.split(terms)]
        elif isinstance(terms, Mapping) or (isinstance(terms, tuple) and not terms):
            pairs = list(dict(terms).items())
        else:
            raise ValueError(f"an objective must be text or a mapping, got {terms!r:.80}; write 'mean+0.5*gini'")
        checked = tuple((_term(name).name, _weight(name, weight)) for name, weight in [*pairs, *weights.items()])
        names = [name for name, _ in checked]
        if not names:
            raise ValueError("an objective must have at least one term, got none; write 'mean+0.5*gini'")
        if len(set(names)) < len(names):
            raise ValueError(f"an objective must name each measure once, got {', '.join(names)}; add up the weights")
        object.__setattr__(self, "terms", checked)

    def __str__(self) -> str:
        """Text from which the same objective is made again."""
        return "+".join(name if weight == 1.0 else f"{_digits(weight)}*{name}" for name, weight in self.terms)

    @property
    def has_mean(self) -> bool:
        """Whether the mean risk is one of the terms."""
        return any(name == "mean" for name, _ in self.terms)

    @property
    def sides(self) -> str:
        """Sides that a band must have for the terms other than the mean: "lower" or "two"."""
        return "two" if any(_term(name).needs_both_sides for name, _ in self.terms) else "lower"

    def of_law(self, law: RiskLaw) -> float:
        """Value for an explicit law of risks, for example `RiskLaw.of_values` of measured ones."""
        return sum(weight * _term(name).of_law(law) for name, weight in self.terms)

    def upper_bounds(self, band: Band, *, dispersion: str = "sharp") -> dict[str, float]:
        """Upper bounds on every term, without its weight, for every law of a band.

        Parameters
        ----------
        band : Band
            With the sides that `sides` says.
        dispersion : {"sharp", "plugin", "convex_order"}
            Method of `dispersion_interval`; "sharp" takes the place of "convex_order" where that does not apply.

        Returns
        -------
        dict of str to float
            By term. They hold together.

        Raises
        ------
        ValueError
            If the band lacks a side, or the method is unknown.
        """
        return {name: float(_term(name).upper(band, dispersion)) for name, _ in self.terms}


def _parsed(part: str, text: str) -> tuple[str, float]:
    factor, star, name = part.strip().rpartition("*")
    try:
        return name.strip(), float(factor) if star else 1.0
    except ValueError as error:
        raise ValueError(
            f"a term of an objective must be a measure or a number times a measure, got {part!r} in {text!r}; "
            "write for example 'mean+0.5*gini'"
        ) from error


def _weight(name: str, weight: float) -> float:
    remedy = "an upper bound on an objective adds up upper bounds, and a term of weight 0 is left out"
    value = check_number(f"the weight of {name!r}", weight, remedy=f"finite and > 0: {remedy}")
    if not 0.0 < value < np.inf:
        raise ValueError(f"the weight of {name!r} must be finite and > 0, got {weight!r}; {remedy}")
    return value


def _term(name: str) -> Term:
    if not isinstance(name, str):
        raise ValueError(f"a term of an objective must be the name of a measure, got {name!r}")
    kind, *parameters = name.split(":")
    if kind == "mean" and not parameters:
        return _spectral_term("mean", MEAN, lambda band: functionals.mean(band).value)
    if kind in ("cvar", "quantile"):
        level = _level(name, parameters)
        return _quantile_term(level) if kind == "quantile" else _cvar_term(level)
    if kind not in MEASURES:
        known = ", ".join(sorted(("mean", "cvar:LEVEL", "quantile:LEVEL", *MEASURES)))
        raise ValueError(f"a term of an objective must be one of {known}, got {name!r}")
    return _dispersion_term(resolve_measure(name))


def _level(name: str, parameters: list[str]) -> float:
    try:
        (level,) = (float(parameter) for parameter in parameters)
    except ValueError:
        level = np.nan
    if not 0.0 <= level <= 1.0:
        raise ValueError(f"{name!r} must name one level in [0, 1], as in 'cvar:0.9' or 'quantile:0.9'")
    return level


def _cvar_term(level: float) -> Term:
    weight = tail_weight(check_tail_level(level))
    name = f"cvar:{_digits(level)}"
    return _spectral_term(name, weight, lambda band: functionals.cvar(band, level=level).value)


def _spectral_term(name: str, weight: QuantileWeight, of_means: Callable[[Band], float | np.ndarray]) -> Term:
    """A mean of upper quantiles: the law for means of the band serves it, and so does its lower side; both hold."""

    def of_law(law: RiskLaw) -> float:
        return float(np.sum(law.risks * np.diff(weight.cumulative(np.concatenate([[0.0], law.levels])))))

    def upper(band: Band, _: str) -> float:
        return min(float(of_means(band)), float(functionals.weighted_quantile(band, weight).value))

    return Term(name, of_law, upper, needs_both_sides=False)


def _quantile_term(level: float) -> Term:
    return Term(
        f"quantile:{_digits(level)}",
        of_law=lambda law: float(law.quantile(level)),
        upper=lambda band, _: float(band.quantile_upper(level)),
        needs_both_sides=False,
    )


def _dispersion_term(measure: DispersionMeasure) -> Term:
    if not np.isfinite(measure.range[1]):
        raise ValueError(
            f"a term of an objective must be bounded, got {measure.name!r}, which can be infinite; take for example "
            "gini, hoover, top_share:0.1 or atkinson:0.5"
        )

    def upper(band: Band, method: str) -> float:
        applies = measure.grows_in_convex_order and QuantileLimits.of_measured_risks(band) is not None
        chosen = "sharp" if method == "convex_order" and not applies else method
        return float(dispersion_interval(band, measure, method=chosen).upper)

    return Term(measure.name, measure.of_law, upper, needs_both_sides=True)


def _digits(number: float) -> str:
    return repr(float(number)).removesuffix(".0")
