"""What clients answered about adversarial risk, checked once (math §4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Unpack

import numpy as np
import numpy.typing as npt

from riskband.answers.concave_curves import ConcaveCurve, outer_curves, rounding_of_curves
from riskband.answers.noise import AnswerNoise
from riskband.answers.responses import Answers, Responses, WhoAnswered
from riskband.answers.risks import ClientRisks
from riskband.checks import (
    LARGEST_NOISY_RISK,
    FloatArray,
    IntArray,
    check_choice,
    check_cost,
    check_costs,
    check_flag,
    check_fraction,
    check_kind,
    check_num_points,
    check_numbers,
    clip_rounding,
    set_fields,
)

GUARANTEES = ("exact", "upper", "upper in expectation", "lower")
"""What an answer's upper values are, from the strongest: the truth, a proven upper bound, one in the mean over noise
that the client drew (smoothing), or nothing (an attack). A certificate needs no more than the mean; the value of one
client may lie below its truth."""

DEFAULT_NUM_MULTIPLIERS = 24

# How far two numbers of one client may contradict each other, at least: three roundings of 1e-6, each of which the
# server lets pass (`strategies.asking.rules`), so that what breaks no rule there ends nobody's run here.
_SLACK = 3e-6


@dataclass(frozen=True, eq=False, init=False, repr=False)
class AdversarialAnswers(Answers):
    """Adversarial risks that clients computed on their own examples, over one grid of radii.

    Parameters
    ----------
    radii : array_like, shape (num_radii,)
        Cost budgets of one client, increasing strictly from 0, in units of the transport cost.
    values : array_like, shape (num_clients, num_radii)
        Adversarial risks in [0, 1], nondecreasing and concave in the radius. They may miss that by the rounding of
        float32, or of four digits after the point or more; bounds are then made for the largest curves that can have
        been rounded to these values. Values of few digits that do not miss it are taken to be exact: give all digits.
    num_examples : int or array_like, shape (num_clients,)
        How many examples each client has.
    cost : str
        The ground cost in words, for reports: its norm, order and space.
    guarantee : {"exact", "upper", "upper in expectation", "lower"}
        What the values are of the true supremum; of mixed answers, the weakest. With "lower" (an attack), results are
        estimates.
    binary : bool
        Whether the loss is 0-1.
    multipliers, conjugates : array_like, shape (num_multipliers,) and (num_clients, num_multipliers), optional
        Prices of a unit of cost, fixed before the answers, and phi_k at each, in [0, 1]. Without them the conjugates
        come from the radii, a little above the truth.
    unit : float, optional
        Mean cost that makes an example wrong (rho_adv² for order 2, [DG]), to report budgets in.
    noise : AnswerNoise or str, optional
        What was added to every value and conjugate; all of them share its budget, num_radii + num_multipliers numbers
        or more. They may then be any numbers, in any order; neither move them into [0, 1] nor make them monotone, which
        would bias their means. One radius is enough.
    num_missing, missing, contamination, answered_by, repeats : int, str, int, str, str
        Who answered, see `responses`. An answer is a client's values and conjugates together.

    Attributes
    ----------
    responses : Responses
        Who answered and with what noise; as for `ClientRisks`.
    clean : ClientRisks
        The clients' risks at radius 0: without an adversary, or with moves that are free (`free_distance`) alone; then
        they are not for certificates of plain risks.
    curves : tuple of ConcaveCurve
        For each client, the smallest concave curve above every concave function through its points; none with noise.
    rounding : ndarray, shape (num_clients,)
        How far each client's numbers may be from what it computed, at most; 0 where all rows are concave as they are.

    Raises
    ------
    ValueError
        If a value is outside its range, a row is not nondecreasing and concave, shapes do not fit, or fewer numbers
        share the noise's budget than there are.
    """

    radii: FloatArray
    values: FloatArray
    num_examples: IntArray
    cost: str
    guarantee: str
    binary: bool
    multipliers: FloatArray | None
    conjugates: FloatArray | None
    unit: float | None
    responses: Responses
    clean: ClientRisks
    curves: tuple[ConcaveCurve, ...]
    rounding: FloatArray

    stored = ("radii", "values", "num_examples", "cost", "guarantee", "binary", "multipliers", "conjugates", "unit")
    shown = ("num_clients", "cost", "radii", "num_examples", "binary", "guarantee")

    def __init__(
        self,
        radii: npt.ArrayLike,
        values: npt.ArrayLike,
        num_examples: npt.ArrayLike,
        *,
        cost: str,
        guarantee: str,
        binary: bool,
        multipliers: npt.ArrayLike | None = None,
        conjugates: npt.ArrayLike | None = None,
        unit: float | None = None,
        noise: AnswerNoise | str | Mapping[str, object] | None = None,
        **who: Unpack[WhoAnswered],
    ) -> None:
        check_kind("cost", cost, str, remedy="name the ground cost in words, for reports")
        guarantee = check_choice("guarantee", guarantee, GUARANTEES)
        grid = check_costs("radii", radii, remedy="they are costs, in units of the transport cost")
        is_noisy = noise is not None
        rows = _check_means("values", values, is_noisy=is_noisy)
        if rows.ndim != 2 or grid.shape != rows.shape[1:] or grid.size < (1 if is_noisy else 2):
            raise ValueError(
                f"values must have shape (num_clients, num_radii) with at least two radii, got {rows.shape} "
                f"for {grid.size} radii"
            )
        if grid[0] != 0.0 or np.any(np.diff(grid) <= 0.0):
            raise ValueError("radii must increase strictly from 0; sort them, and ask for the risk at 0 as well")
        if unit is not None:
            unit = check_cost("unit", unit, remedy="it is a mean cost; leave it out if it is not known")
        if (multipliers is None) != (conjugates is None):
            raise ValueError("multipliers and conjugates belong together; give both or neither")
        rounding = np.zeros(len(rows)) if is_noisy else rounding_of_curves(grid, rows)
        prices = phi = None
        if multipliers is not None and conjugates is not None:
            prices = checked_multipliers(multipliers)
            phi = _check_means("conjugates", conjugates, is_noisy=is_noisy)
            if phi.shape != (rows.shape[0], prices.size):
                raise ValueError(
                    f"conjugates must have shape (num_clients, num_multipliers) = {(rows.shape[0], prices.size)}, "
                    f"got {phi.shape}"
                )
            if not is_noisy:
                slack = max(_SLACK, 2.0 * float(rounding.max()))
                _check_conjugates(prices, phi, radii=grid, values=rows, is_exact=guarantee == "exact", slack=slack)
        if noise is not None:
            num_values = grid.size + (0 if prices is None else prices.size)
            noise = AnswerNoise.of(noise, is_binary=False, num_values=num_values)
        clean = ClientRisks(rows[:, 0], num_examples, binary=None if is_noisy else False, noise=noise, **who)
        clean.require_independent("curves")
        set_fields(
            self,
            radii=grid,
            values=rows,
            num_examples=clean.num_examples,
            cost=cost,
            guarantee=guarantee,
            binary=check_flag("binary", binary),
            multipliers=prices,
            conjugates=phi,
            unit=unit,
            responses=clean.responses,
            clean=clean,
            curves=() if is_noisy else outer_curves(grid, rows, rounding),
            rounding=rounding,
        )

    def conjugates_at(self, multipliers: FloatArray) -> FloatArray:
        """Upper bounds on phi_k at any multipliers, in [0, 1], shape (num_clients, num_multipliers).

        Raises ValueError if the answers have noise: a curve through noisy points bounds nothing.
        """
        self.require_no_noise("conjugates from values", "conjugates that the clients answered")
        return np.clip([curve.conjugate(multipliers) for curve in self.curves], 0.0, 1.0)

    def answered_conjugates(self) -> FloatArray:
        """Conjugates as answered, up to rounding: no less than what the values at the radii imply, in [0, 1]."""
        assert self.multipliers is not None
        assert self.conjugates is not None
        implied = [np.max(self.values - price * self.radii, axis=1) for price in self.multipliers]
        phi = np.maximum(self.conjugates, np.stack(implied, axis=1)) + self.rounding[:, np.newaxis]
        return np.asarray(np.minimum(phi, 1.0))

    def least_conjugates(self, multipliers: FloatArray) -> FloatArray:
        """The smaller of `conjugates_at` and what the answered conjugates say: phi_k is convex, so chords lie above.

        Shape (num_clients, num_multipliers). Errors as for `conjugates_at`. Source: math §4.3.
        """
        found = self.conjugates_at(multipliers)
        if self.multipliers is None:
            return found
        order = np.argsort(self.multipliers, kind="stable")
        knots = np.append(0.0, self.multipliers[order])
        at_zero = np.minimum([curve.values[-1] for curve in self.curves], 1.0)[:, np.newaxis]
        phi = np.concatenate([at_zero, self.answered_conjugates()[:, order]], axis=1)
        return np.minimum(found, [np.interp(multipliers, knots, row) for row in phi])


def check_answers(answers: object) -> None:
    """Raise ValueError unless `answers` are `AdversarialAnswers`."""
    remedy = "make them with AdversarialAnswers(radii, values, num_examples, ...)"
    check_kind("answers", answers, AdversarialAnswers, remedy=remedy)


def _check_means(name: str, values: npt.ArrayLike, *, is_noisy: bool) -> FloatArray:
    """Means of losses, in [0, 1] but for noise; raises ValueError for anything else."""
    if not is_noisy:
        remedy = "adversarial risks are means of losses in [0, 1]"
        return check_fraction(name, clip_rounding(check_numbers(name, values, remedy=remedy)), remedy=remedy)
    found = check_numbers(name, values, remedy="they are noisy means of losses")
    if not np.all(np.abs(found) <= LARGEST_NOISY_RISK):
        raise ValueError(f"noisy {name} must lie in [-1e9, 1e9]; leave out clients without an answer")
    return found


def _check_conjugates(
    prices: FloatArray, phi: FloatArray, *, radii: FloatArray, values: FloatArray, is_exact: bool, slack: float
) -> None:
    """Refuse conjugates that cannot belong to the values: they would make a bound too small."""
    order = np.argsort(prices, kind="stable")
    if np.any(np.diff(phi[:, order], axis=1) > slack) or np.any(phi < values[:, :1] - slack):
        raise ValueError("conjugates must not grow with the multiplier, nor lie below the risk without an adversary")
    if is_exact and any(np.any(phi[:, j] < np.max(values - p * radii, axis=1) - slack) for j, p in enumerate(prices)):
        raise ValueError(
            "conjugates of exact answers must be at least value - multiplier * radius; were they mixed up?"
        )


def checked_multipliers(multipliers: npt.ArrayLike) -> FloatArray:
    """Return prices of a unit of cost, >= 0, as a flat array; raises ValueError for anything else."""
    return np.atleast_1d(check_costs("multipliers", multipliers, remedy="they are prices of a unit of cost"))


def default_multipliers(cost_budgets: npt.ArrayLike, *, num_multipliers: int = DEFAULT_NUM_MULTIPLIERS) -> FloatArray:
    """Geometric grid of multipliers from the budgets of interest only, never from the answers.

    Parameters
    ----------
    cost_budgets : array_like
        Budgets that will be certified, in units of the transport cost; at least one must be > 0.
    num_multipliers : int
        Size of the grid.

    Returns
    -------
    ndarray, shape (num_multipliers,)
        From 0.05 / largest budget (below it the budget costs next to nothing) to 1 / smallest positive budget (above it
        the bound is 1). Source: math §4.3.

    Raises
    ------
    ValueError
        If a budget is not a cost, none is positive, or the size is not a whole number >= 1.
    """
    budgets = np.atleast_1d(check_costs("cost_budgets", cost_budgets, remedy="they are mean transport costs"))
    positive = budgets[budgets > 0.0]
    num_multipliers = check_num_points("num_multipliers", num_multipliers, minimum=1, remedy="24 are usual")
    if positive.size == 0:
        raise ValueError("at least one cost budget must be > 0 to choose multipliers; pass multipliers yourself")
    return np.geomspace(0.05 / positive.max(), 1.0 / positive.min(), num_multipliers)
