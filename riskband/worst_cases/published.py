"""The f-divergence bounds of [RE] Theorems 5.2 and 5.3, which are false, to compare with (math §3.5).

Results from here carry the validity "refuted". The generators are the paper's: f = t log t and f = (t - 1)². It states
constants for these two divergences only, and its formulas know neither missing nor wrong answers: the functions below
raise ValueError for anything else.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import lambertw, xlogy

from riskband.answers.risks import ClientRisks
from riskband.checks import FloatArray, check_choice, check_installed
from riskband.search import bisect_number

PUBLISHED_DIVERGENCES = ("chi2", "kl")


class PublishedConstants(NamedTuple):
    """Constants of Theorems 5.2 and 5.3."""

    largest_ratio: float  # Lambda, the root of f(t) = budget / delta on t >= 1
    mean_slack: float  # allowed distance of the mean density ratio from 1
    budget_slack: float  # added to the budget
    sample_slack: float  # added to the optimum


def published_constants(*, num_clients: int, delta: float, divergence: str, budget: float) -> PublishedConstants:
    """Constants of [RE] Theorems 5.2 and 5.3 for one budget >= 0. Source: [RE] appendix D; math §3.5."""
    divergence = check_choice("divergence (of method='published')", divergence, PUBLISHED_DIVERGENCES)
    slack = float(np.sqrt(np.log(num_clients / delta) / num_clients))
    level = budget / delta
    if divergence == "kl":
        ratio = float(level / lambertw(level).real) if level > 0.0 else 1.0
        second = float(xlogy(ratio, ratio) - xlogy(1.0 / ratio, 1.0 / ratio)) / 2.0
    else:
        ratio = 1.0 + float(np.sqrt(level))
        second = (ratio - 1.0) ** 2 / 2.0
    return PublishedConstants(ratio, (ratio - 1.0) * slack, second * slack, slack)


def published_worst_case_mean(risks: ClientRisks, *, delta: float, divergence: str, budget: FloatArray) -> FloatArray:
    """Worst-case mean risk as in [RE] Theorem 5.2, by cvxpy, for budgets of shape (num_budgets,); values in [0, 1]."""
    risks.require_certain_answers("method='published'", "method='sharp'")
    return np.array([_published_mean(risks, delta, divergence, float(size)) for size in budget])


def _published_mean(risks: ClientRisks, delta: float, divergence: str, budget: float) -> float:
    check_installed("cvxpy", extra="reference")
    import cvxpy as cp  # loads in a second, and only this function needs it

    num_clients = risks.num_clients
    constants = published_constants(num_clients=num_clients, delta=delta, divergence=divergence, budget=budget)
    values, counts = np.unique(risks.values, return_counts=True)  # clients of equal risk have equal ratios
    shares = counts / num_clients
    ratio = cp.Variable(values.size, nonneg=True)
    cost = -cp.entr(ratio) if divergence == "kl" else cp.square(ratio - 1.0)
    problem = cp.Problem(
        cp.Maximize((shares * values) @ ratio),
        [
            ratio <= constants.largest_ratio,
            cp.abs(shares @ ratio - 1.0) <= constants.mean_slack,
            shares @ cost <= budget + constants.budget_slack,
        ],
    )
    problem.solve(solver=cp.CLARABEL)
    if problem.status not in ("optimal", "optimal_inaccurate"):
        raise RuntimeError(f"cvxpy found no optimum for [RE] Theorem 5.2 at budget {budget}: {problem.status}")
    return float(np.clip(problem.value + constants.sample_slack, 0.0, 1.0))


def published_worst_case_cdf(
    risks: ClientRisks, *, delta: float, divergence: str, budget: FloatArray, thresholds: FloatArray
) -> FloatArray:
    """Worst-case survival function as in [RE] Theorem 5.3, in closed form up to a one-dimensional search.

    Budgets and thresholds are broadcast against each other; values in [0, 1].
    """
    risks.require_certain_answers("method='published'", "method='sharp'")
    num_clients = risks.num_clients
    delay = np.sqrt(np.log((num_clients + 2) / delta) / (2.0 * risks.num_examples))
    share = np.mean(risks.values >= np.expand_dims(thresholds, -1) - delay, axis=-1)
    share, sizes = np.broadcast_arrays(share, budget)
    values = np.empty(share.shape)
    for index in np.ndindex(share.shape):
        constants = published_constants(
            num_clients=num_clients, delta=delta, divergence=divergence, budget=float(sizes[index])
        )
        optimum = two_level_optimum(float(share[index]), constants, divergence=divergence, budget=float(sizes[index]))
        values[index] = optimum + constants.sample_slack
    return np.clip(values, 0.0, 1.0)


def two_level_optimum(share: float, constants: PublishedConstants, *, divergence: str, budget: float) -> float:
    """Optimum of the program of Theorem 5.3: the largest `share · high` over weights `high` inside, `rest` outside.

    The objective takes two values, inside the event, where a `share` of the clients is, and outside; so the optimal
    weights do too. The optimum is not clipped to 1.
    """
    if share == 0.0:
        return 0.0

    def cost(ratio: float) -> float:
        return float(xlogy(ratio, ratio) if divergence == "kl" else np.square(ratio - 1.0))

    cheapest = float(np.exp(-1.0)) if divergence == "kl" else 1.0  # where the paper's f is least

    def is_feasible(high: float) -> bool:
        if share == 1.0:
            return abs(high - 1.0) <= constants.mean_slack and cost(high) <= budget + constants.budget_slack
        least = max((1.0 - constants.mean_slack - share * high) / (1.0 - share), 0.0)
        most = min((1.0 + constants.mean_slack - share * high) / (1.0 - share), constants.largest_ratio)
        rest = min(max(cheapest, least), max(most, least))
        total = share * cost(high) + (1.0 - share) * cost(rest)
        return most >= least and total <= budget + constants.budget_slack

    return share * bisect_number(is_feasible, low=1.0, high=constants.largest_ratio).upper
