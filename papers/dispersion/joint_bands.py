"""Bounds on the joint CDF of several risks of a client ([DC] appendix C; math §11)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from papers.dispersion.joint_answers import JointRisks, check_joint_risks
from riskband.bands.band import METHODS, Band, band, check_etas, subject_of
from riskband.bands.local_steps import etas_of, marginal_eta
from riskband.certificate import Certificate, recipe
from riskband.checks import FloatArray, IntArray, check_choice, check_delta, check_fraction, check_kind, check_number
from riskband.wording import chosen_before, exactly
from riskband.wording.shown import Shown

JOINT_LOCAL_STEPS = ("marginal", "observed")
DEFAULT_MARGINAL_SHARE = 0.5


def subject_of_risks(local: str) -> str:
    """Return what a joint distribution after this local step is the distribution of."""
    return subject_of(local).replace("the risk", "the risks")


@dataclass(frozen=True, eq=False)
class JointLevels:
    """Bounds on a joint CDF by the number of clients at or below a point: the joint part of a `JointBand`."""

    lower: FloatArray  # shape (num_clients + 1,): for each number of clients
    upper: FloatArray

    @classmethod
    def of_settings(cls, *, num_clients: int, num_losses: int, delta: float, method: str) -> JointLevels:
        """Levels whose sides both hold with probability 1 - delta; see math §11.1."""
        fixed = num_losses - 1
        others = num_clients - fixed
        if others < 2:
            raise ValueError(f"{num_losses} losses need at least {num_losses + 1} clients, got {num_clients}; ask more")
        levels_of = METHODS[method]
        below = levels_of(others, delta / 2 / num_clients**fixed, "lower").of_one_side
        above = levels_of(others, delta / 2 / (num_clients + 1) ** fixed, "upper").of_one_side
        # `fixed` clients lend their coordinates as thresholds and are not counted.
        lower = np.concatenate([np.zeros(fixed + 1), below])
        upper = np.concatenate([above, np.ones(fixed + 1)])
        return cls(lower, upper)


@dataclass(frozen=True, eq=False, repr=False)
class JointBand(Shown):
    """Bounds on the joint CDF of an unseen client's risks that hold everywhere with probability 1 - delta.

    Made by `joint_band`.

    Attributes
    ----------
    risks : JointRisks
        The answers.
    delta : float
        Probability that it fails, in (0, 1): that of the joint part plus those of the bands of the single losses.
    method, local : str
        How it was built; see `joint_band`.
    eta : float, str or None
        Error level of the local limits; "every" or "grid" as for `band` where many were used, `None` where none was.
    marginal_share : float
        Part of delta that the bands of the single losses share equally.
    levels : JointLevels
        The joint part.
    marginals : tuple of Band
        The bands of the single losses, which hold on the same event.
    """

    risks: JointRisks
    delta: float
    method: str
    local: str
    eta: float | str | None
    marginal_share: float
    levels: JointLevels
    marginals: tuple[Band, ...]

    shown = ("risks.num_clients", "risks.num_losses", "delta", "method", "local")

    @property
    def etas(self) -> tuple[float, ...]:
        """Error levels of the local limits that are in use; 0 stands for the measured risks themselves."""
        if self.local == "observed":
            return (0.0,)
        assert self.eta is not None
        return etas_of(self.eta)

    @property
    def subject(self) -> str:
        """What the joint CDF is the CDF of."""
        return subject_of_risks(self.local)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What must be true for the probability to be right."""
        return tuple(dict.fromkeys(line for source in self.marginals for line in source.assumptions))

    def lower(self, risks: npt.ArrayLike) -> FloatArray:
        """Lower bound on P(risk_j <= risks[..., j] for every j), at points of shape (..., num_losses) in [0, 1].

        The larger of the joint bound and of the Fréchet-Hoeffding bound from the single losses, shape (...). Raises
        ValueError if a point is out of range or has the wrong number of losses.
        """
        points = self._points(risks)
        single = np.stack([source.lower(points[..., j]) for j, source in enumerate(self.marginals)])
        best = np.maximum(single.sum(axis=0) - (len(single) - 1.0), 0.0)
        for eta in self.etas:
            best = np.maximum(best, self.joint_lower(_count(points, self.upper_limits(eta)), eta))
        return np.where(np.all(points >= 1.0, axis=-1), 1.0, best)

    def upper(self, risks: npt.ArrayLike) -> FloatArray:
        """Upper bound: the joint one or the smallest of the single losses; parameters and errors as `lower`."""
        points = self._points(risks)
        best = np.min([source.upper(points[..., j]) for j, source in enumerate(self.marginals)], axis=0)
        for eta in self.etas:
            best = np.minimum(best, self.joint_upper(_count(points, self.lower_limits(eta)), eta))
        return np.where(np.all(points >= 1.0, axis=-1), 1.0, best)

    @property
    def measured(self) -> FloatArray:
        """Measured risks, shape (num_clients, num_losses): as they are in the single losses, which undo rounding."""
        return np.stack([loss.values for loss in self.risks.losses], axis=1)

    def upper_limits(self, eta: float) -> FloatArray:
        """Upper limits at error level eta, or measured risks for eta = 0; shape (num_clients, num_losses)."""
        return self.measured if eta == 0.0 else np.stack([r.upper_limits(eta) for r in self.risks.losses], axis=1)

    def lower_limits(self, eta: float) -> FloatArray:
        """Lower limits; as `upper_limits`."""
        return self.measured if eta == 0.0 else np.stack([r.lower_limits(eta) for r in self.risks.losses], axis=1)

    def joint_lower(self, count: IntArray, eta: float) -> FloatArray:
        """Lower bound where `count` clients have all their upper limits at or below the point."""
        return np.maximum((self.levels.lower[count] - eta) / (1.0 - eta), 0.0)

    def joint_upper(self, count: IntArray, eta: float) -> FloatArray:
        """Upper bound where `count` clients have all their lower limits at or below the point."""
        all_hold = 1.0 - self.risks.num_losses * eta
        return np.minimum(self.levels.upper[count] / all_hold, 1.0) if all_hold > 0.0 else np.ones(count.shape)

    def provenance(self) -> dict[str, Any]:
        """Return what a certificate stores of the band that it was read off; see `riskband.certificate.Source`."""
        names = ("delta", "method", "local", "eta", "marginal_share")
        return {"band": {name: getattr(self, name) for name in names}, "answers": self.risks.to_dict()}

    def _points(self, risks: npt.ArrayLike) -> FloatArray:
        points = check_fraction("risks", risks)
        if points.ndim == 0 or points.shape[-1] != self.risks.num_losses or points.size == 0:
            raise ValueError(
                f"points must have shape (..., {self.risks.num_losses}), got {points.shape}; one risk for each loss"
            )
        return points


def _count(points: FloatArray, values: FloatArray) -> IntArray:
    """Number of rows of `values` that are at or below each point in every coordinate."""
    flat = points.reshape(-1, points.shape[-1])
    counts = [int(np.sum(np.all(values <= point, axis=1))) for point in flat]
    return np.array(counts, dtype=np.int64).reshape(points.shape[:-1])


def joint_band(
    risks: JointRisks,
    *,
    delta: float,
    method: str = "berk_jones",
    local: str = "marginal",
    eta: float | str | None = None,
    marginal_share: float = DEFAULT_MARGINAL_SHARE,
) -> JointBand:
    """Bounds on the joint CDF of several risks of a client that nobody has measured.

    Parameters
    ----------
    risks : JointRisks
        The clients' answers.
    delta : float
        Probability that the bounds fail, in (0, 1).
    method : {"berk_jones", "dkw"}
        As for `band`, for the joint part and for the single losses.
    local : {"marginal", "observed"}
        As for `band`.
    eta : float or {"every", "grid"}, optional
        As for `band`; for the joint part both words mean those of `ETA_GRID`.
    marginal_share : float
        Part of delta, in (0, 1), that the bands of the single losses share equally; the rest is for the joint part.

    Returns
    -------
    JointBand
        The bounds: at each point the best of a Dvoretzky-Kiefer-Wolfowitz (or Berk-Jones) bound for all losses at once
        and of Fréchet-Hoeffding. Source: math §11, after [DC] appendix C.

    Raises
    ------
    ValueError
        If an argument is out of its range or unknown, or there are too few clients for so many losses.
    """
    check_joint_risks(risks)
    delta = check_delta(delta)
    local = check_choice("local", local, JOINT_LOCAL_STEPS)
    method = check_choice("method", method, METHODS)  # a tuned method knows no joint CDF
    marginal_share = check_number("marginal_share", marginal_share, remedy="it is a part of delta")
    if not 0.0 < marginal_share < 1.0:
        raise ValueError(f"marginal_share must be in (0, 1), got {marginal_share}; it is a part of delta")
    part = delta * marginal_share / risks.num_losses
    marginals = tuple(band(loss, delta=part, method=method, local=local, eta=eta) for loss in risks.losses)
    if local == "marginal":
        eta = marginal_eta(risks.losses[0], check_etas(eta))
    levels = JointLevels.of_settings(
        num_clients=risks.num_clients,
        num_losses=risks.num_losses,
        delta=delta * (1.0 - marginal_share),
        method=method,
    )
    return JointBand(risks, delta, method, local, eta, marginal_share, levels, marginals)


def joint_cdf(band: JointBand, *, thresholds: npt.ArrayLike) -> Certificate:
    """Certificate for the share of unseen clients whose risks are all at most their thresholds.

    Parameters
    ----------
    band : JointBand
        From `joint_band`.
    thresholds : array_like, shape (num_losses,) or (num_points, num_losses)
        Risks in [0, 1].

    Returns
    -------
    Certificate
        Both ends: numbers, or curves over `point`, an index. `details` has the share of clients whose measured
        risks are all below (`measured`), and the thresholds of loss j (`thresholds_j`, from 0 on).

    Raises
    ------
    ValueError
        If a threshold is out of range or the shape is wrong.
    """
    check_kind("band", band, JointBand, remedy="make it with joint_band(risks, delta=0.05)")
    lower, upper = band.lower(thresholds), band.upper(thresholds)
    points = np.array(thresholds, dtype=np.float64)
    if points.ndim > 2:
        raise ValueError(f"thresholds must be one point or a list of points, got shape {points.shape}; flatten it")
    name = f"({', '.join(exactly(float(t)) for t in points)})" if points.ndim == 1 else "the thresholds"
    return Certificate(
        quantity=f"the probability that {band.subject} are all at most {name}",
        value=upper,
        lower=lower,
        delta=band.delta,
        method=f"{band.method} joint band and Fréchet-Hoeffding bounds (delta split "
        f"{1.0 - band.marginal_share:g} to {band.marginal_share:g})",
        assumptions=(*band.assumptions, *chosen_before(marginal_share=(band.marginal_share, DEFAULT_MARGINAL_SHARE))),
        axes={"point": np.arange(len(points), dtype=np.float64)} if points.ndim == 2 else {},
        details={
            "measured": np.array(_count(points, band.measured) / band.risks.num_clients),
            **{f"thresholds_{loss}": points[..., loss].copy() for loss in range(points.shape[-1])},
        },
        recipe=recipe("joint_cdf", {"thresholds": points}, band),
    )
