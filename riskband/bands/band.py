"""Confidence bands for the CDF of client risks: one band, every certificate (math §2).

A band is built in two steps. The vertical step bounds the CDF of the values that the clients gave, from their ranks
(`method`); the horizontal step goes from these to the CDF of true risks (`local`). Whatever is then read off the band
(means, quantiles, worst cases, for every budget and divergence) holds on the same event of probability 1 - delta.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from riskband.answers.histogram import HistogramLimits, PlainAnswers, clients_above
from riskband.answers.risks import ClientRisks, default_eta, shared_assumptions
from riskband.bands.levels import STITCHED, Levels
from riskband.bands.local_steps import (
    EVERY_ETA,
    GRID_OF_ETAS,
    LOCAL_STEPS,
    ClientAtoms,
    LevelsOf,
    lower_envelope,
    upper_envelope,
    with_measured_means,
)
from riskband.bands.methods import NAMED_LEVELS, LevelMethod, default_method, level_key, resolve_level_method
from riskband.certificate import as_sentence, weakest_validity
from riskband.checks import FloatArray, check_choice, check_delta, check_eta, check_fraction, check_kind
from riskband.wording import chosen_before
from riskband.wording.shown import Drawn, to_pandas

if TYPE_CHECKING:
    import pandas as pd

METHODS: Mapping[str, LevelsOf] = NAMED_LEVELS
SIDES = ("lower", "upper", "two")
_CLAIMS = {  # what a band says of the CDF, by its sides
    "two": "lies between the sides of the band everywhere",
    "lower": "is nowhere below the band",
    "upper": "is nowhere above the band",
}


@dataclass(frozen=True, eq=False, repr=False)
class Band(Drawn):
    """A region that holds the whole CDF F of client risks with probability 1 - delta. Made by `band`.

    Attributes
    ----------
    answers : ClientRisks, HistogramRisks or HistogramLimits
        What `band` was given.
    delta : float
        Probability that the band fails, in (0, 1).
    method, local, sides : str
        How it was built; see `band`.
    eta : float, str or None
        Error level of the local limits, where one was used; "every" or "grid" where many were; `None` without limits.
    lower_points, lower_levels : ndarray, shape (num_points,)
        F(x) >= lower_levels[i] for x >= lower_points[i]. Empty without a lower side.
    upper_points, upper_levels : ndarray, shape (num_points,)
        F(x) <= upper_levels[i] for x < upper_points[i]. Empty without an upper side.
    mean_distribution : ClientAtoms or None
        Its mean and tail means are not below those of the true risks, even after reweighting clients; `None` without a
        lower side.
    assumptions : tuple of str
        What must be true for the probability to be right.
    method_recipe : str or mapping
        The method as plain data that `band` takes: its name, or what was tuned.
    """

    answers: PlainAnswers
    delta: float
    method: str
    local: str
    sides: str
    eta: float | str | None
    lower_points: FloatArray
    lower_levels: FloatArray
    upper_points: FloatArray
    upper_levels: FloatArray
    mean_distribution: ClientAtoms | None
    assumptions: tuple[str, ...]
    method_recipe: str | Mapping[str, Any]

    shown = ("risks.num_clients", "delta", "method", "local", "sides")

    def __post_init__(self) -> None:
        for points, levels in ((self.lower_points, self.lower_levels), (self.upper_points, self.upper_levels)):
            if points.shape != levels.shape:
                raise ValueError(f"a band needs one level per point, got {levels.size} for {points.size}")
            for array in (points, levels):
                array.flags.writeable = False
                if np.any(np.diff(array) < 0) or not np.all((array >= 0.0) & (array <= 1.0)):
                    raise ValueError("points and levels of a band must be nondecreasing and lie in [0, 1]")
        if self.sides == "two":
            knots = np.concatenate([self.lower_points, self.upper_points])
            if np.any(self.lower(knots) > self.upper(knots)):
                raise ValueError("the lower side of a band must not lie above its upper side")

    @property
    def risks(self) -> ClientRisks:
        """The answers; of counts, the upper ends of the clients' bins."""
        return self.answers.above

    @property
    def statement(self) -> str:
        """What the band says as one English sentence, without its assumptions."""
        return as_sentence(self.claim, delta=self.delta, validity=weakest_validity(self.assumptions))

    @property
    def claim(self) -> str:
        """What holds but for probability delta."""
        return f"the CDF of {self.subject} {_CLAIMS[self.sides]}"

    @property
    def steps(self) -> dict[str, FloatArray]:
        """The risks from which on the sides have another value, and the values of those that there are."""
        points = np.unique(np.concatenate([[0.0, 1.0], self.lower_points, self.upper_points]))
        sides = {"lower": self.lower, "upper": self.upper}
        return {"risk": points} | {name: side(points) for name, side in sides.items() if self.sides in (name, "two")}

    def to_frame(self) -> pd.DataFrame:
        """Return `steps` as a data frame of pandas, with columns `risk`, `lower` and `upper`.

        Raises ImportError, with what to do, if pandas is not installed.
        """
        return to_pandas(self.steps)

    @property
    def subject(self) -> str:
        """What the CDF is the CDF of."""
        return subject_of(self.local)

    def lower(self, risk: npt.ArrayLike) -> FloatArray:
        """Lower bound on F(risk) = P(a new client's risk <= risk), right-continuous, at points of any shape.

        Points and bounds lie in [0, 1]; raises ValueError for other points, or if the band has no lower side.
        """
        found = self._lower(risk, "right")
        return np.where(np.asarray(risk) >= 1.0, 1.0, found)

    def upper(self, risk: npt.ArrayLike) -> FloatArray:
        """Upper bound on F(risk), right-continuous; parameters and errors as `lower`."""
        self.require("upper")
        x = check_fraction("risk", risk)
        return np.asarray(np.append(self.upper_levels, 1.0)[np.searchsorted(self.upper_points, x, side="right")])

    def lower_left_limit(self, risk: npt.ArrayLike) -> FloatArray:
        """Lower bound on F(risk -) = P(a new client's risk < risk); parameters and errors as `lower`."""
        return self._lower(risk, "left")

    def _lower(self, risk: npt.ArrayLike, side: Literal["left", "right"]) -> FloatArray:
        self.require("lower")
        x = check_fraction("risk", risk)
        return np.asarray(np.append(0.0, self.lower_levels)[np.searchsorted(self.lower_points, x, side=side)])

    def quantile_upper(self, level: npt.ArrayLike) -> FloatArray:
        """Upper bound on the quantile function inf{x : F(x) >= level}, at levels of any shape.

        Levels and bounds lie in [0, 1]; a bound is 1 where the lower side never reaches the level. Raises ValueError
        for other levels, or if the band has no lower side.
        """
        self.require("lower")
        p = check_fraction("level", level)
        return np.where(p <= 0.0, 0.0, np.append(self.lower_points, 1.0)[np.searchsorted(self.lower_levels, p)])

    def quantile_lower(self, level: npt.ArrayLike) -> FloatArray:
        """Lower bound on the quantile function; parameters and errors as `quantile_upper`."""
        self.require("upper")
        p = check_fraction("level", level)
        points = np.append(0.0, self.upper_points)  # where the upper bound jumps to the next level
        return np.where(p <= 0.0, 0.0, points[np.searchsorted(np.append(self.upper_levels, 1.0), p)])

    @property
    def distribution_for_means(self) -> ClientAtoms:
        """`mean_distribution`; raises ValueError if the band has no lower side."""
        self.require("lower")
        assert self.mean_distribution is not None
        return self.mean_distribution

    def require(self, side: str) -> None:
        """Raise ValueError unless the band has that side ("lower" or "upper")."""
        if self.sides not in (side, "two"):
            raise ValueError(f"this band has no {side} side; make it with sides='{side}' or sides='two'")

    def recipe(self) -> dict[str, Any]:
        """Return the arguments of `band` that rebuild this band from its risks, as plain data."""
        names = ("delta", "method", "local", "sides", "eta")
        return {name: getattr(self, name) for name in names} | {"method": self.method_recipe}

    def provenance(self) -> dict[str, Any]:
        """Return what a certificate stores of the band that it was read off; see `riskband.certificate.Source`."""
        return {"band": self.recipe(), "answers": self.answers.to_dict()}


def band(
    risks: PlainAnswers,
    *,
    delta: float,
    method: str | LevelMethod | Mapping[str, Any] | None = None,
    local: str = "marginal",
    sides: str = "two",
    eta: float | str | None = None,
) -> Band:
    """Confidence band for the CDF of the risk of a client that nobody has measured.

    Parameters
    ----------
    risks : ClientRisks, HistogramRisks or HistogramLimits
        The clients' answers, or counts of clients in bins.
    delta : float
        Probability that the band fails, in (0, 1).
    method : str or OptimisedLevels, optional
        Vertical step. "berk_jones": exactly calibrated, sharp in the tails (default up to 20,000 clients).
        "sparse:berk_jones": the same at few of the order statistics, a million in seconds, and at most 5 % wider
        (default beyond). "dkw": Dvoretzky-Kiefer-Wolfowitz. "kolmogorov": the same, calibrated exactly.
        "truncated:LOW:HIGH", or "sparse:truncated:LOW:HIGH": Berk-Jones for the quantiles from LOW to HIGH alone.
        `OptimisedLevels`: tuned on other clients for what will be read off; refused if its pilot is visibly among these
        clients. What `Band.recipe` holds of a method is accepted too.
    local : {"marginal", "counted", "union", "observed"}
        Horizontal step, from empirical to true risks. `marginal` (default): a client's limit at error level eta is
        right with probability 1 - eta, so the limits' survival function is at least 1 - eta times that of the true
        risks; with equal numbers of examples this is used for every eta at once, in closed form. `counted`: the number
        of limits that fail is bounded, so that numbers of examples may differ in any way. `union`: all limits hold
        at once, as published in [RE] Theorem 4.1. `observed`: no step; the certificate is then about the risk that a
        new client would measure, not about its true risk.
    sides : {"two", "lower", "upper"}
        Sides of the CDF that hold, jointly. `lower` alone is tighter and enough for every upper bound on risk.
    eta : float or {"every", "grid"}, optional
        Error level of the local limits, in (0, 0.5], fixed before any risk was seen. Default: where all share one
        event (`marginal`, equal numbers of examples), "every", or with noise "grid", those of `ETA_GRID`; otherwise
        `default_eta`.

    Returns
    -------
    Band
        The band. Source: math §2.1 and math §2.4; `union` with `dkw` is [RE] Theorem 4.1.

    Raises
    ------
    ValueError
        If an argument is out of its range or unknown.

    Examples
    --------
    >>> import riskband as rb
    >>> answers = rb.ClientRisks([0.02, 0.05, 0.10, 0.04], num_examples=100)
    >>> b = rb.band(answers, delta=0.1, sides="lower")
    >>> bool(b.lower(0.5) <= 1.0)
    True
    """
    answers, risks, delta = risks, clients_above(risks), check_delta(delta)
    usual_method = default_method(risks.num_counted)
    level_method = resolve_level_method(usual_method if method is None else method)
    local = check_choice("local", local, LOCAL_STEPS)
    sides = check_choice("sides", sides, SIDES)
    eta = check_etas(eta)
    level_method.check_risks(risks)
    # A default that a recipe stores is no choice, nor is the level at which clients were asked for limits.
    usual_etas: tuple[float | str | None, ...] = (default_eta(risks.num_counted), EVERY_ETA, GRID_OF_ETAS, None)
    if isinstance(answers, HistogramLimits):
        answers.check_local(local, eta)
        eta, usual_etas = answers.eta, (answers.eta, None)
    used: dict[str, Levels] = {}

    def levels_of(num_values: int, delta: float, sides: str) -> Levels:
        used[level_key(num_values, delta, sides)] = levels = level_method.levels(num_values, delta, sides)
        return levels

    step_from = partial(LOCAL_STEPS[local], delta=delta, sides=sides, levels_of=levels_of, eta=eta)
    step = step_from(risks)
    if answers.below is not risks:
        step = replace(step, upper=step_from(answers.below).upper)
    step = with_measured_means(step, risks, levels_of)
    lower, upper = lower_envelope(step.lower), upper_envelope(step.upper)
    return Band(
        answers=answers,
        delta=delta,
        method=level_method.name,
        local=local,
        sides=sides,
        eta=step.eta,
        lower_points=lower[0],
        lower_levels=lower[1],
        upper_points=upper[0],
        upper_levels=upper[1],
        mean_distribution=step.mean_distribution,
        assumptions=(
            *shared_assumptions(
                risks,
                needs_binary=step.uses_limits,
                at_all_times=level_method.name == STITCHED,  # which holds for every number of clients
            ),
            *answers.own_assumptions,
            *step.assumptions,
            *level_method.assumptions,
            *chosen_before(
                method=(None if level_method.name in (usual_method, "berk_jones") else level_method.name, None),
                local=(local, "marginal"),
                eta=(None if eta in usual_etas else eta, None),
            ),
        ),
        method_recipe=level_method.recipe(used),
    )


def check_etas(eta: object) -> float | str | None:
    """Return an error level, a word for many of them or None for the default; ValueError for anything else."""
    return eta if eta is None or eta in (EVERY_ETA, GRID_OF_ETAS) else check_eta(eta)


def subject_of(local: str) -> str:
    """Return what a CDF after this local step is the CDF of."""
    if local == "observed":
        return "the risk that an unseen client would measure on its own examples"
    return "the risk of an unseen client"


def check_band(source: object) -> None:
    """Raise ValueError unless `source` is a `Band`."""
    remedy = "make it with band(risks, delta=0.05), or bound one number by bound(risks, 'mean', delta=0.05)"
    check_kind("band", source, Band, remedy=remedy)


def own_delta(delta: float | None) -> float:
    """Return the delta that a bound of answers has for itself; raises ValueError if there is none."""
    if delta is None:
        raise ValueError("delta must be given with answers, got none; only a band has a delta of its own")
    return check_delta(delta)


def band_alone(source: object, *, delta: float | None, seed: int | None = None, method: str | None = None) -> Band:
    """Return `source` if it is a band, given without arguments that are for answers; raises ValueError otherwise."""
    check_kind("source", source, Band, remedy="make it with band(risks, delta=0.05), or give ClientRisks and a delta")
    for name, value, of_band in (
        ("delta", delta, "has its own"),
        ("seed", seed, "needs none"),
        ("method", method, "is read in one way only"),
    ):
        if value is not None:
            raise ValueError(
                f"{name} must be left out with a band, which {of_band}, got {value!r:.80}; give the answers for a "
                "bound of its own"
            )
    return cast(Band, source)
