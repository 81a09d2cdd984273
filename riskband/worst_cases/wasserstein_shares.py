"""The share of clients above a risk, on any network within a Wasserstein ball (docs/wasserstein.md).

Two proofs give a bound each. `limits` bounds the least cost at which a client reaches the risk, with a limit for each
client: sharp where clients have many examples. `average` needs no limit: by convexity, a mean over examples stands in
for a client's distribution. It holds for every loss and is sharp where clients are many and have few examples.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from riskband.answers.adversarial import AdversarialAnswers, check_answers, checked_multipliers
from riskband.answers.risks import default_eta
from riskband.bands.band import BINARY_LOSS, METHODS
from riskband.bands.local_steps import RANDOM_SIZES, ClientLaw, LevelsOf, levels_of_answers
from riskband.certificate import Certificate
from riskband.checks import FloatArray, check_choice, check_delta, check_eta, check_points
from riskband.wording import chosen_before, exactly, in_short
from riskband.worst_cases.concave_curves import knapsack_curve
from riskband.worst_cases.transport_balls import (
    ball,
    ball_assumptions,
    ball_recipe,
    check_budgets,
    conjugates_on_grid,
    multipliers_chosen,
    validity_of,
)

# A client may sit exactly at a threshold, and its answer be rounded.
_ROUNDING = 1e-6

CDF_LOCAL_STEPS = ("best", "average", "limits")


def wasserstein_cdf(
    answers: AdversarialAnswers,
    *,
    delta: float,
    cost_budget: npt.ArrayLike,
    thresholds: npt.ArrayLike,
    local: str = "best",
    multipliers: npt.ArrayLike | None = None,
    eta: float | None = None,
    method: str = "berk_jones",
) -> Certificate:
    """Upper bound on the share of clients with a risk of at least a threshold, on any network within the budget.

    Parameters
    ----------
    answers : AdversarialAnswers
        The clients' answers.
    delta : float
        Probability that the certificate fails, in (0, 1).
    cost_budget : float or array_like, shape (num_budgets,)
        Mean transport cost between the networks' clients; >= 0. All budgets hold at once.
    thresholds : float or array_like, shape (num_thresholds,)
        Risks in (0, 1], increasing, fixed before any answer was seen. All hold at once; between two of them the bound
        at the smaller one holds.
    local : {"best", "average", "limits"}
        From a client's examples to its distribution. `average`: Jensen's inequality, for every loss; the multipliers
        share delta, the thresholds do not. `limits`: a limit for the cost of pushing each client, for the 0-1 loss
        only; the thresholds share delta. `best` (default): both, with half of delta each, and the smaller bound; for
        other losses than the 0-1 loss the same as `average`.
    multipliers : array_like, shape (num_multipliers,), optional
        For `average`: prices fixed before any answer was seen; by default those that the clients answered, or else
        `default_multipliers` of the budgets.
    eta : float, optional
        For `limits`: error level of one client's limit, in (0, 0.5], fixed beforehand; by default from the number of
        clients.
    method : {"berk_jones", "dkw"}
        Band for a law over clients: of the conjugates at each multiplier, or of the limits.

    Returns
    -------
    Certificate
        A number, or a curve over `cost_budget` and/or `threshold`; an estimate if the answers come from an attack.
        Source: docs/wasserstein.md; [RE] only plots it.

    Raises
    ------
    ValueError
        If an argument is out of range or unknown, `limits` is asked of another loss than the 0-1 loss, or the answers
        have noise.
    """
    check_answers(answers)
    answers.clean.require_no_noise("wasserstein_cdf", "wasserstein_mean, or a band of the plain risks")
    delta = check_delta(delta)
    if multipliers is not None:
        checked_multipliers(multipliers)  # also where they are not used: they are stored
    budgets, points = check_budgets(cost_budget), check_points("thresholds", thresholds)
    if np.any(points <= 0.0) or np.any(np.diff(np.atleast_1d(points)) <= 0.0):
        raise ValueError("thresholds must be > 0 and increase: every client has a risk of at least 0")
    local, method = check_choice("local", local, CDF_LOCAL_STEPS), check_choice("method", method, METHODS)
    if local == "limits" and not answers.binary:
        raise ValueError("local='limits' needs answers of a 0-1 loss: it rests on the law of flip costs; use 'average'")
    levels_of = METHODS[method]
    level = default_eta(answers.clean.num_counted) if eta is None else check_eta(eta)
    uses_limits = answers.binary and local != "average"
    part = delta / 2 if uses_limits and local == "best" else delta
    bounds, flat = [], (np.atleast_1d(budgets), np.atleast_1d(points))
    if uses_limits:
        bounds.append(_from_limits(answers, *flat, delta=part, eta=level, levels_of=levels_of))
    if local != "limits":
        grid, phi = conjugates_on_grid(answers, budgets, multipliers)
        bounds.append(_from_averages(answers, *flat, multipliers=grid, phi=phi, delta=part, levels_of=levels_of))
    values = np.minimum.accumulate(np.minimum(np.min(bounds, axis=0), 1.0), axis=1)
    values = values.reshape(budgets.shape + points.shape)
    threshold = "the threshold" if points.ndim else exactly(float(points))
    arguments = {
        "delta": delta,
        "cost_budget": budgets.tolist(),
        "thresholds": points.tolist(),
        "local": local,
        "multipliers": None if multipliers is None else np.asarray(multipliers, dtype=np.float64).tolist(),
        "eta": level,
        "method": method,
    }
    return Certificate(
        quantity=(
            f"the probability, on {ball(answers, budgets)}, that the risk of an unseen client is at least {threshold}"
        ),
        value=values if values.ndim else float(values),
        delta=delta,
        method=f"{method} band, {local if answers.binary else 'average'} local step",
        assumptions=(
            *ball_assumptions(answers),
            *((BINARY_LOSS,) if uses_limits else ()),
            *(() if answers.clean.has_equal_sizes else (RANDOM_SIZES,)),
            *chosen_before(
                thresholds=(in_short(points), None),
                local=(local, "best"),
                eta=(level, default_eta(answers.clean.num_counted)),
                method=(method, "berk_jones"),
                **({} if local == "limits" else multipliers_chosen(answers, budgets, multipliers)),
            ),
        ),
        validity=validity_of(answers),
        axes={
            **({"cost_budget": budgets} if budgets.ndim else {}),
            **({"threshold": points} if points.ndim else {}),
        },
        recipe=ball_recipe("wasserstein_cdf", arguments, answers),
    )


def _from_limits(
    answers: AdversarialAnswers,
    budgets: FloatArray,
    points: FloatArray,
    *,
    delta: float,
    eta: float,
    levels_of: LevelsOf,
) -> FloatArray:
    """Bounds of shape (num_budgets, num_thresholds): a knapsack of limits for the cost of pushing each client.

    From its examples, the cost r(P, t) is at least R_k with probability 1 - eta, so that E(1 - m·r)_+ is at most
    E(1 - m·R)_+ / (1 - eta) for every multiplier m; a band for the law of R makes the right side a knapsack.
    """
    levels = levels_of_answers(answers.clean, delta=delta / points.size, sides="upper", levels_of=levels_of).upper
    assert levels is not None
    margins = np.sqrt(np.log(1.0 / eta) / (2.0 * answers.num_examples))
    weights = np.diff(levels, prepend=0.0, append=1.0)
    columns = []
    for point in points:
        limits = [curve.inverse(point - tau - _ROUNDING) for curve, tau in zip(answers.curves, margins, strict=True)]
        # The law of R that helps the adversary most: the mass that the band leaves open costs nothing to push.
        curve = knapsack_curve(np.concatenate([[0.0], np.sort(np.maximum(limits, 0.0))]), weights)
        columns.append(curve(budgets * (1.0 - eta)) / (1.0 - eta))
    return np.stack(columns, axis=1)


def _from_averages(
    answers: AdversarialAnswers,
    budgets: FloatArray,
    points: FloatArray,
    *,
    multipliers: FloatArray,
    phi: FloatArray,
    delta: float,
    levels_of: LevelsOf,
) -> FloatArray:
    """Bounds of shape (num_budgets, num_thresholds): the least of a·m·budget + E(1 + a(phi_m - t))_+ over m and a."""
    levels = levels_of_answers(answers.clean, delta=delta / multipliers.size, sides="lower", levels_of=levels_of).lower
    assert levels is not None
    laws = [ClientLaw.from_levels(column, levels) for column in phi.T]
    columns = []
    for point in points - _ROUNDING:  # what holds at a smaller threshold holds at the larger one
        charged = zip(laws, multipliers, strict=True)
        columns.append(np.min([_least(law, budgets * price, point) for law, price in charged], axis=0))
    return np.stack(columns, axis=1)


def _least(law: ClientLaw, charges: FloatArray, threshold: float) -> FloatArray:
    """Minimum over a >= 0 of a·charge + E(1 + a(X - threshold))_+, for each charge; shape (num_charges,).

    It is convex and piecewise linear in a, with a corner at 1/(threshold - x) for each atom x below the threshold:
    from there on the atom counts no more. The minimum is at the first corner after which the slope is not negative.
    """
    below = int(np.searchsorted(law.risks, threshold, side="left"))
    mass = np.cumsum(law.weights[::-1])[::-1]
    excess = np.cumsum((law.weights * (law.risks - threshold))[::-1])[::-1]
    # Of the atoms that still count after each corner; before the first one, a = 0, all of them do.
    mass, slope = mass[: below + 1], excess[: below + 1]
    corner = np.concatenate([[0.0], 1.0 / (threshold - law.risks[:below])])
    best = np.minimum(np.searchsorted(slope, -charges, side="left"), below)
    return np.asarray(mass[best] + corner[best] * (slope[best] + charges))
