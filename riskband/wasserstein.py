"""Certificates for networks within a Wasserstein ball of the source network (math §5).

Reweighting can only stress clients of a kind that was seen; a transport budget reaches kinds that nobody has. The
ground cost between examples makes a transport cost between client distributions, which is the ground cost between
meta-distributions. Budgets are in units of that cost: for order 2 a radius rho enters as rho².
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from riskband.adversarial_answers import AdversarialAnswers, checked_multipliers, default_multipliers
from riskband.bands import METHODS, shared_assumptions
from riskband.certificate import AS_PUBLISHED, CERTIFICATE, ESTIMATE, Certificate
from riskband.checks import FloatArray, check_budget, check_choice, check_delta, check_points, check_single
from riskband.means import ORDER_IS_UNINFORMATIVE, betting_upper_mean
from riskband.risks import default_eta
from riskband.search import Bracket, bisect
from riskband.transport import knapsack_curve, network_curve


def wasserstein_mean(
    answers: AdversarialAnswers,
    *,
    delta: float,
    cost_budget: npt.ArrayLike,
    multipliers: npt.ArrayLike | None = None,
    method: str = "betting",
    seed: int = 0,
) -> Certificate:
    """Upper bound on the mean risk over the clients of any network within the transport budget.

    For a fixed multiplier the K numbers phi_k are independent with mean exactly E phi(P), so no within-client term and
    no constant is needed: E R <= multiplier·budget + (upper confidence bound of E phi). The grid of multipliers shares
    delta, and the bound holds for every budget at once.

    Parameters
    ----------
    answers : AdversarialAnswers
        The clients' answers.
    delta : float
        Probability that the certificate fails, in (0, 1).
    cost_budget : float or array_like, shape (num_budgets,)
        Mean transport cost between the networks' clients; >= 0.
    multipliers : array_like, shape (num_multipliers,), optional
        Grid fixed before any answer was seen; by default the one that the clients answered, or else
        `default_multipliers` of the budgets.
    method : {"betting", "hoeffding"}
        Confidence bound for each mean.
    seed : int
        Betting looks at clients one after the other; the seed permutes them first.

    Returns
    -------
    Certificate
        A number, or a curve over `cost_budget`; an estimate if the answers come from an attack. Source: math §5.

    Raises
    ------
    ValueError
        If an argument is out of range or unknown.
    """
    delta = check_delta(delta)
    check_choice("method", method, ("betting", "hoeffding"))
    budgets = check_budget(cost_budget)
    if multipliers is None and answers.multipliers is not None and answers.conjugates is not None:
        grid, phi = answers.multipliers, answers.conjugates
    else:
        grid = default_multipliers(budgets) if multipliers is None else checked_multipliers(multipliers)
        phi = answers.conjugates_at(grid)
    share = delta / grid.size
    order = np.random.default_rng(seed).permutation(answers.num_clients)
    columns = phi[order].T
    if method == "betting":
        bounds = np.array([betting_upper_mean(column, delta=share) for column in columns])
    else:
        bounds = columns.mean(axis=1) + np.sqrt(np.log(1.0 / share) / (2.0 * answers.num_clients))
    values = np.minimum(np.min(np.multiply.outer(budgets, grid) + bounds, axis=-1), 1.0)
    arguments = {
        "delta": delta,
        "cost_budget": budgets.tolist(),
        "multipliers": None if multipliers is None else grid.tolist(),
        "method": method,
        "seed": int(seed),
    }
    assumptions = (*_assumptions(answers), *((ORDER_IS_UNINFORMATIVE,) if method == "betting" else ()))
    return Certificate(
        quantity=f"the mean risk over the clients of {_ball(answers, budgets)}",
        value=values if budgets.ndim else float(values),
        delta=delta,
        method=method,
        assumptions=assumptions,
        validity=_validity(answers),
        axes={"cost_budget": budgets} if budgets.ndim else {},
        recipe=_recipe("wasserstein_mean", arguments, answers),
    )


def wasserstein_published(
    answers: AdversarialAnswers, *, delta: float, cost_budget: npt.ArrayLike, cost_bound: float
) -> Certificate:
    """Upper bound on the mean risk as published in [RE] Theorem 6.3, to compare with.

    Parameters
    ----------
    answers : AdversarialAnswers
        The clients' answers.
    delta : float
        In (0, 1).
    cost_budget : float or array_like, shape (num_budgets,)
        Mean transport cost between the networks' clients; >= 0.
    cost_bound : float
        The theorem's constant: a bound on the transport cost between any two clients, > 0.

    Returns
    -------
    Certificate
        A number, or a curve over `cost_budget`, with validity "as-published": the constant is the user's word, and the
        paper's floor on the radii, which could only lower the number, is left out. The meta-problem is solved for the
        budget plus cost_bound·sqrt(log(K/delta)/(2K)), from the upper curve of `one_round`; then the slacks of [RE]
        Theorem 4.1 are added. Source: [RE] Theorem 6.3; math §5.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    delta = check_delta(delta)
    budgets = check_budget(cost_budget)
    if not (np.isfinite(cost_bound) and cost_bound > 0.0):
        raise ValueError(f"cost_bound must be > 0, got {cost_bound}; it bounds the cost of moving any example")
    num_clients = answers.num_clients
    widened = budgets + cost_bound * np.sqrt(np.log(num_clients / delta) / (2.0 * num_clients))
    log_term = np.log((num_clients + 1) / delta)
    slack = np.sqrt(log_term / (2.0 * num_clients)) + np.sqrt(log_term / (2.0 * answers.num_examples)).mean()
    values = np.minimum(network_curve(answers.curves)(widened) + slack, 1.0)
    arguments = {"delta": delta, "cost_budget": budgets.tolist(), "cost_bound": float(cost_bound)}
    return Certificate(
        quantity=f"the mean risk over the clients of {_ball(answers, budgets)}",
        value=values if budgets.ndim else float(values),
        delta=delta,
        method="[RE] Theorem 6.3",
        assumptions=(*_assumptions(answers), f"no two clients are further apart than cost {cost_bound:g}"),
        validity=ESTIMATE if answers.guarantee == "lower" else AS_PUBLISHED,
        axes={"cost_budget": budgets} if budgets.ndim else {},
        recipe=_recipe("wasserstein_published", arguments, answers),
    )


def wasserstein_cdf(
    answers: AdversarialAnswers,
    *,
    delta: float,
    cost_budget: npt.ArrayLike,
    thresholds: npt.ArrayLike,
    eta: float | None = None,
    method: str = "berk_jones",
) -> Certificate:
    """Upper bound on the share of clients with a risk of at least a threshold, on any network within the budget.

    A network pushes a client to risk t by paying r(P, t), the least budget at which its adversarial risk reaches t.
    From its examples, r(P, t) >= R_k with probability 1 - eta, so that E(1 - m·r)_+ <= E(1 - m·R)_+ / (1 - eta) for
    every multiplier m; a band for the law of R makes the right side a knapsack over clients. See docs/wasserstein.md.

    Parameters
    ----------
    answers : AdversarialAnswers
        Of the 0-1 loss.
    delta : float
        Probability that the certificate fails, in (0, 1); shared by the thresholds.
    cost_budget : float or array_like, shape (num_budgets,)
        Mean transport cost between the networks' clients; >= 0. All budgets hold at once.
    thresholds : float or array_like, shape (num_thresholds,)
        Risks in (0, 1], increasing, fixed before any answer was seen. Between two of them the bound at the smaller one
        holds.
    eta : float, optional
        Error level of one client's limit R_k, fixed beforehand; by default from the number of clients.
    method : {"berk_jones", "dkw"}
        Band for the law of R.

    Returns
    -------
    Certificate
        A number, or a curve over `cost_budget` and/or `threshold`. Source: docs/wasserstein.md; [RE] only plots it.

    Raises
    ------
    ValueError
        If the loss is not 0-1 or an argument is out of range.
    """
    delta = check_delta(delta)
    budgets, points = check_budget(cost_budget), check_points("thresholds", thresholds)
    if not answers.binary:
        raise ValueError("wasserstein_cdf needs answers of a 0-1 loss: its limits rest on the law of flip costs")
    if np.any(points <= 0.0) or np.any(np.diff(np.atleast_1d(points)) <= 0.0):
        raise ValueError("thresholds must be > 0 and increase: every client has a risk of at least 0")
    level = default_eta(answers.num_clients) if eta is None else float(eta)
    if not 0.0 < level <= 0.5:
        raise ValueError(f"eta must be in (0, 0.5], got {eta}; it is the error level of one client's limit")
    levels = METHODS[check_choice("method", method, METHODS)](answers.num_clients, delta / points.size, "upper").upper
    assert levels is not None
    margins = np.sqrt(np.log(1.0 / level) / (2.0 * answers.num_examples))
    weights = np.diff(levels, prepend=0.0, append=1.0)
    columns = []
    for point in np.atleast_1d(points):
        limits = [curve.inverse(point - tau) for curve, tau in zip(answers.curves, margins, strict=True)]
        # The law of R that helps the adversary most: the mass that the band leaves open costs nothing to push.
        curve = knapsack_curve(np.concatenate([[0.0], np.sort(np.maximum(limits, 0.0))]), weights)
        columns.append(curve(budgets * (1.0 - level)) / (1.0 - level))
    values = np.minimum.accumulate(np.minimum(np.stack(columns, axis=-1), 1.0), axis=-1)
    values = values if points.ndim else values[..., 0]
    threshold = "the threshold" if points.ndim else f"{float(points):g}"
    arguments = {
        "delta": delta,
        "cost_budget": budgets.tolist(),
        "thresholds": points.tolist(),
        "eta": level,
        "method": method,
    }
    return Certificate(
        quantity=(
            f"the probability, on {_ball(answers, budgets)}, that the risk of an unseen client is at least {threshold}"
        ),
        value=values if values.ndim else float(values),
        delta=delta,
        method=f"{method} band of transport costs",
        assumptions=(*_assumptions(answers), "every example's loss is 0 or 1"),
        validity=_validity(answers),
        axes={
            **({"cost_budget": budgets} if budgets.ndim else {}),
            **({"threshold": points} if points.ndim else {}),
        },
        recipe=_recipe("wasserstein_cdf", arguments, answers),
    )


def wasserstein_breakdown(
    answers: AdversarialAnswers,
    *,
    delta: float,
    target: float,
    max_cost_budget: float,
    threshold: float | None = None,
    multipliers: npt.ArrayLike | None = None,
) -> Bracket:
    """Largest cost budget at which a certified number still meets a target.

    Parameters
    ----------
    answers : AdversarialAnswers
        The clients' answers.
    delta : float
        Probability that the certificate fails, in (0, 1).
    target : float
        What the bound must not exceed, in [0, 1].
    max_cost_budget : float
        Where the search stops; the default multipliers are chosen for it.
    threshold : float, optional
        With it, the target is for the share of clients with a risk of at least the threshold; without, for the mean.
    multipliers : array_like, optional
        Of `wasserstein_mean`; by default the clients' own, or else for budgets from 1/1000 of `max_cost_budget` on.

    Returns
    -------
    Bracket
        As `riskband.breakdown`: certified at `lower`, not at `upper`; `-inf` or `inf` where there is no such budget.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    goal = check_single("target", target)
    largest = float(check_budget(max_cost_budget))
    if multipliers is None and answers.multipliers is None:
        multipliers = default_multipliers([largest / 1000.0, largest])

    def meets(budget: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        size = float(np.asarray(budget))
        if threshold is None:
            found = wasserstein_mean(answers, delta=delta, cost_budget=size, multipliers=multipliers)
        else:
            found = wasserstein_cdf(answers, delta=delta, cost_budget=size, thresholds=threshold)
        return np.asarray(found.value <= goal)

    if not meets(0.0):
        return Bracket(-np.inf, 0.0)
    if meets(largest):
        return Bracket(largest, np.inf)
    lower, upper = bisect(meets, low=0.0, high=largest, num_steps=40)
    return Bracket(float(lower), float(upper))


def _ball(answers: AdversarialAnswers, budgets: FloatArray) -> str:
    size = "the cost budget" if budgets.ndim else f"cost {float(budgets):g}"
    return f"any network within {size} of the source network ({answers.cost})"


def _assumptions(answers: AdversarialAnswers) -> tuple[str, ...]:
    return (
        *shared_assumptions(answers.clean),
        f"the target network is within the stated mean transport cost of the source network ({answers.cost})",
    )


def _validity(answers: AdversarialAnswers) -> str:
    return ESTIMATE if answers.guarantee == "lower" else CERTIFICATE


def _recipe(function: str, arguments: Mapping[str, Any], answers: AdversarialAnswers) -> dict[str, Any]:
    return {
        "function": function,
        "arguments": dict(arguments),
        "band": None,
        "answers": {
            "radii": answers.radii.tolist(),
            "values": answers.values.tolist(),
            "num_examples": answers.num_examples.tolist(),
            "cost": answers.cost,
            "guarantee": answers.guarantee,
            "binary": answers.binary,
            "multipliers": None if answers.multipliers is None else answers.multipliers.tolist(),
            "conjugates": None if answers.conjugates is None else answers.conjugates.tolist(),
            "unit": answers.unit,
            "num_missing": answers.num_missing,
        },
    }
