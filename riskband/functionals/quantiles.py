"""Upper bounds read off the lower side of a band: survival, quantiles, and weighted quantile integrals (math §2.8).

Each grows with the risk of every client, so it is largest at the largest law of the band. They all hold together, and
together with every worst case of the same band.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy  # loads its modules on use
from numpy.polynomial import Polynomial
from scipy.special import betaincinv

from riskband.answers.risks import ClientRisks
from riskband.bands.band import EQUAL_BY_DESIGN, Band, check_band, shared_assumptions, subject_of
from riskband.bands.band import band as band_of
from riskband.bands.local_steps import EQUAL_SIZES, OBSERVED_SIZES, RANDOM_SIZES
from riskband.certificate import Certificate, recipe
from riskband.checks import (
    FloatArray,
    check_callable,
    check_choice,
    check_delta,
    check_kind,
    check_number,
    check_points,
    check_single,
)
from riskband.wording import chosen_before, exactly


@dataclass(frozen=True)
class QuantileWeight:
    """A weight on the levels of the quantile function: the functional is the integral of F^-(p) against it.

    Attributes
    ----------
    name : str
        For reports.
    cumulative : callable
        Integral of the weight from 0 to p, vectorised over p in [0, 1]; nondecreasing from 0 to 1.
    """

    name: str
    cumulative: Callable[[FloatArray], FloatArray]

    def __post_init__(self) -> None:
        check_callable(f"cumulative of weight {self.name!r}", self.cumulative, remedy="it integrates the weight from 0")
        sums = np.asarray(self.cumulative(np.linspace(0.0, 1.0, 1001)), dtype=np.float64)
        if sums.shape != (1001,) or not np.all(np.isfinite(sums)) or np.any(np.diff(sums) < -1e-9):
            raise ValueError(f"weight {self.name!r} must be >= 0 on [0, 1]: its cumulative must not decrease")
        if abs(sums[0]) > 1e-6 or abs(sums[-1] - 1.0) > 1e-6:
            raise ValueError(
                f"weight {self.name!r} must integrate to 1 over [0, 1], got {sums[-1] - sums[0]:g}; divide it by that"
            )

    @classmethod
    def from_density(cls, density: Callable[[float], float] | Polynomial, *, name: str) -> QuantileWeight:
        """Weight with the given density: a numpy `Polynomial` is integrated exactly, a function by quadrature.

        Raises
        ------
        ValueError
            If the density is negative somewhere or does not integrate to 1.
        """
        if isinstance(density, Polynomial):
            integral = density.integ(lbnd=0)
            return cls(name, lambda p: np.asarray(integral(p), dtype=np.float64))
        check_callable("density", density, remedy="give a function of the level, or a numpy Polynomial")
        return cls(
            name, np.vectorize(lambda p: scipy.integrate.quad(density, 0.0, p, limit=200)[0], otypes=[np.float64])
        )


MEAN = QuantileWeight("mean", lambda p: p)


def tail_weight(level: float) -> QuantileWeight:
    """Weight of the conditional value at risk: the mean of the worst 1 - level; level in [0, 1)."""
    level = check_tail_level(level)
    return QuantileWeight(f"cvar:{level:g}", lambda p: np.maximum(p - level, 0.0) / (1.0 - level))


def interval_weight(low: float, high: float) -> QuantileWeight:
    """Weight of the mean of the quantiles between two levels, 0 <= low < high <= 1."""
    low, high = (check_number("an end of an interval of levels", end, remedy="0.9 is a level") for end in (low, high))
    if not 0.0 <= low < high <= 1.0:
        raise ValueError(f"an interval of levels needs 0 <= low < high <= 1, got {low} and {high}")
    return QuantileWeight(f"interval:{low:g}:{high:g}", lambda p: (np.clip(p, low, high) - low) / (high - low))


def check_tail_level(level: float) -> float:
    """Return `level` as a float if it is one number in [0, 1); raises ValueError."""
    remedy = "0.9 means the worst tenth of the clients"
    number = check_number("level", level, remedy=remedy)
    if not 0.0 <= number < 1.0:
        raise ValueError(f"level must be one number in [0, 1), got {number}; {remedy}")
    return number


def check_weight(weight: object) -> None:
    """Raise ValueError unless it is a `QuantileWeight`."""
    remedy = "for example interval_weight(0.8, 0.95); a stored certificate needs your own as an argument of verify"
    check_kind("weight", weight, QuantileWeight, remedy=remedy)


def mean(band: Band) -> Certificate:
    """Upper bound on the mean risk of unseen clients, from the band; see `mean_bound` for a sharper one.

    Parameters
    ----------
    band : Band
        With a lower side.

    Returns
    -------
    Certificate
        A number. Source: math §2.8.
    """
    return _certificate(band, "mean", {}, "the mean risk over unseen clients", _spectral(band, MEAN))


def cvar(source: Band | ClientRisks, level: float, *, delta: float | None = None) -> Certificate:
    """Upper bound on the conditional value at risk: the mean risk of the worst `1 - level` of the unseen clients.

    Parameters
    ----------
    source : Band or ClientRisks
        A band with a lower side; the bound then holds together with all else that is read off it. Or answers: the bound
        stands alone, and is read off a band for this tail (method "tail:LEVEL").
    level : float
        In [0, 1), fixed before any answer was seen if the bound stands alone.
    delta : float, optional
        With answers: probability that the bound fails, in (0, 1).

    Returns
    -------
    Certificate
        A number. Source: math §2.8.

    Raises
    ------
    ValueError
        If the level or delta is out of range, the band has no lower side, or delta is given with a band or is not with
        answers.
    """
    level = check_tail_level(level)
    if isinstance(source, ClientRisks):
        band = band_of(source, delta=_own_delta(delta), method=f"tail:{exactly(level)}", sides="lower")
    else:
        band = _without_delta(source, delta)
    quantity = f"the mean risk of the worst {exactly(1.0 - level)} of unseen clients"
    return _certificate(band, "cvar", {"level": level}, quantity, _spectral(band, tail_weight(level)))


def quantile(
    source: Band | ClientRisks, level: npt.ArrayLike, *, delta: float | None = None, local: str = "marginal"
) -> Certificate:
    """Upper bound on quantiles (value at risk) of the risk of unseen clients.

    Parameters
    ----------
    source : Band or ClientRisks
        A band with a lower side; all its quantiles then hold at once, with all else that is read off it. Or answers:
        one quantile stands alone, bounded by an order statistic, which is sharper and needs fewer clients.
    level : float or array_like, shape (num_levels,)
        Probabilities in [0, 1]; with answers a single one, fixed before any answer was seen.
    delta : float, optional
        With answers: probability that the bound fails, in (0, 1).
    local : {"marginal", "observed"}
        With answers: whether it is about the true risk of an unseen client, or about the one that it would measure; as
        for `riskband.band`.

    Returns
    -------
    Certificate
        A number, or a curve over `level`. 1 where no number of the answers bounds the quantile; `num_clients_needed`
        says how many clients would. Source: math §2.8, for one quantile math §2.7.

    Raises
    ------
    ValueError
        If an argument is out of range or unknown, the band has no lower side, or delta is given with a band or is not
        with answers.
    """
    if isinstance(source, ClientRisks):
        return _single_quantile(source, check_single("level", level), delta=_own_delta(delta), local=local)
    band = _without_delta(source, delta)
    levels = check_points("level", level)
    name = "" if levels.ndim else f" at level {exactly(float(levels))}"
    quantity = f"the quantile{name} of {band.subject}"
    axes = {"level": levels} if levels.ndim else {}
    return _certificate(band, "quantile", {"level": levels}, quantity, band.quantile_upper(levels), axes)


def _single_quantile(risks: ClientRisks, level: float, *, delta: float, local: str) -> Certificate:
    """One order statistic: of measured risks, or of their upper limits."""
    local = check_choice("local", local, ("marginal", "observed"))
    is_observed = local == "observed"
    # Of sizes that answers may choose, nothing may depend.
    is_sure = risks.has_equal_sizes and risks.contamination == 0
    size = int(risks.num_examples[0]) if is_sure else USUAL_NUM_EXAMPLES
    rank, eta = quantile_rank(risks.num_counted, level=level, delta=delta, num_examples=None if is_observed else size)
    if is_observed:
        risks.require_no_noise("local='observed'", "local='marginal'")
    limits = risks.values if is_observed else risks.upper_limits(max(eta, MIN_ETA))
    position = rank - 1 + risks.contamination  # so many answers below it may be wrong
    # The rank is that for equal sizes: whether they are equal must be no chance.
    equal = EQUAL_BY_DESIGN if risks.are_answers_certain else EQUAL_SIZES
    sizes = (equal,) if risks.has_equal_sizes else (RANDOM_SIZES,)
    return Certificate(
        quantity=f"the quantile at level {exactly(level)} of {subject_of(local)}",
        value=float(np.sort(limits)[position]) if position < risks.num_clients else 1.0,
        delta=delta,
        method="order statistic",
        assumptions=(
            *shared_assumptions(risks, needs_binary=not is_observed),
            *((OBSERVED_SIZES,) if is_observed else sizes),
            *chosen_before(level=(level, None), local=(local, "marginal")),
        ),
        recipe=recipe("quantile", {"level": level, "delta": delta, "local": local}, risks),
    )


def quantile_rank(num_clients: int, *, level: float, delta: float, num_examples: int | None) -> tuple[int, float]:
    """Order statistic that bounds a quantile, and the error level of the limits of which it is taken.

    Both depend on the numbers of clients and examples alone. With probability 1 - delta at least a share b(i) of all
    clients, the delta-quantile of Beta(i, K - i + 1), is at or below the i-th smallest of K; if limits at error level
    eta are sorted, at least (b(i) - eta) / (1 - eta) of the true risks are.

    Parameters
    ----------
    num_clients : int
        K.
    level, delta : float
        Of the quantile, in [0, 1]; in (0, 1).
    num_examples : int or None
        Of a client, for a limit to its true risk; None for measured risks.

    Returns
    -------
    rank : int
        From 1; K + 1 if there is none.
    eta : float
        In [0, 0.5]; 0 for measured risks.
    """
    ranks = np.arange(1, num_clients + 1)
    shares = betaincinv(ranks, num_clients - ranks + 1.0, delta)
    etas = np.minimum((shares - level) / (1.0 - level), MAX_ETA) if level < 1.0 else np.full(num_clients, -1.0)
    if num_examples is None:
        return int(np.sum(shares < level)) + 1, 0.0
    ranks, etas = ranks[etas >= MIN_ETA], etas[etas >= MIN_ETA]
    if ranks.size == 0:
        return num_clients + 1, 0.0
    # A larger rank allows a limit of a larger error level: the best of both for a usual law of risks, fixed here.
    usual = num_examples * betaincinv(*_USUAL_LAW, ranks / (num_clients + 1.0))
    best = int(np.argmin(betaincinv(usual + 1.0, num_examples - usual, 1.0 - etas)))
    return int(ranks[best]), float(etas[best])


def num_clients_needed(level: float, *, delta: float) -> int:
    """Number of clients from which on `quantile` bounds a single quantile at this level below 1.

    Parameters
    ----------
    level : float
        In [0, 1).
    delta : float
        In (0, 1).

    Returns
    -------
    int
        The least K with level**K <= delta: with fewer, all of them may be below the quantile. At least 2. The mean of
        the clients beyond the level, `cvar`, needs a few more.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    level, delta = check_tail_level(level), check_delta(delta)
    return 2 if level == 0.0 else max(2, int(np.ceil(np.log(delta) / np.log(level) + 1e-9)))


def _own_delta(delta: float | None) -> float:
    if delta is None:
        raise ValueError("delta must be given with answers, got none; only a band has a delta of its own")
    return check_delta(delta)


def _without_delta(band: Band, delta: float | None) -> Band:
    check_band(band)
    if delta is not None:
        raise ValueError(_DELTA_OF_A_BAND)
    return band


_DELTA_OF_A_BAND = "delta must be left out with a band, which has its own; give the answers for a bound of its own"
USUAL_NUM_EXAMPLES = 100
_USUAL_LAW = (3.0, 21.0)  # of a Beta distribution
MIN_ETA, MAX_ETA = 1e-9, 0.5


def survival(band: Band, *, thresholds: npt.ArrayLike) -> Certificate:
    """Upper bound on the share of unseen clients whose risk is at least a threshold.

    Parameters
    ----------
    band : Band
        With a lower side.
    thresholds : float or array_like, shape (num_thresholds,)
        Risks in [0, 1].

    Returns
    -------
    Certificate
        A number, or a curve over `threshold`. Source: math §2.8.

    Raises
    ------
    ValueError
        If a threshold is out of range or the band has no lower side.
    """
    check_band(band)
    points = check_points("thresholds", thresholds)
    name = "the threshold" if points.ndim else exactly(float(points))
    quantity = f"the probability that {band.subject} is at least {name}"
    axes = {"threshold": points} if points.ndim else {}
    return _certificate(band, "survival", {"thresholds": points}, quantity, 1.0 - band.lower_left_limit(points), axes)


def weighted_quantile(band: Band, weight: QuantileWeight) -> Certificate:
    """Upper bound on a weighted integral of the quantile function of the risk of unseen clients.

    Parameters
    ----------
    band : Band
        With a lower side.
    weight : QuantileWeight
        For example `interval_weight(0.8, 0.95)` or `QuantileWeight.from_density(lambda p: 2 * p, name="linear")`.

    Returns
    -------
    Certificate
        A number. The integral over each step of the band is exact. Source: math §2.8, after [DC].
    """
    check_band(band)
    check_weight(weight)
    quantity = f"the quantile integral {weight.name!r} of {band.subject}"
    band.require("lower")
    value = _integral(np.append(band.lower_points, 1.0), np.append(band.lower_levels, 1.0), weight)
    return _certificate(band, "weighted_quantile", {"weight": weight.name}, quantity, value)


def _spectral(band: Band, weight: QuantileWeight) -> float:
    """Integral for a nondecreasing weight, which the law for means may serve: it is monotone in convex order."""
    check_band(band)
    law = band.law_for_means
    value = _integral(law.risks, np.cumsum(law.weights), weight)
    return float(np.clip(value, 0.0, 1.0))  # noisy answers may lie outside


def _integral(risks: FloatArray, levels: FloatArray, weight: QuantileWeight) -> float:
    sums = weight.cumulative(np.concatenate([[0.0], np.minimum(levels[:-1], 1.0), [1.0]]))
    return float(risks @ np.diff(sums))


def _certificate(
    band: Band,
    function: str,
    arguments: dict[str, Any],
    quantity: str,
    value: float | FloatArray,
    axes: dict[str, FloatArray] | None = None,
) -> Certificate:
    return Certificate(
        quantity=quantity,
        value=value if np.ndim(value) else float(value),
        delta=band.delta,
        method=f"{band.method} band",
        assumptions=band.assumptions,
        axes=axes or {},
        recipe=recipe(function, arguments, band.risks, band),
    )
