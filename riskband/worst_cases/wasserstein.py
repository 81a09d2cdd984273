"""Certificates for networks within a Wasserstein ball of the source network (math §4).

Reweighting can only stress clients of a kind that was seen; a transport budget reaches kinds that nobody has. The
ground cost between examples makes a transport cost between client distributions, which is the ground cost between
meta-distributions. Budgets are in units of that cost: for order 2 a radius rho enters as rho².
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from riskband.answers.adversarial import AdversarialAnswers, check_answers, default_multipliers
from riskband.answers.risks import ClientRisks
from riskband.certificate import AS_PUBLISHED, ESTIMATE, Certificate
from riskband.checks import (
    FloatArray,
    check_choice,
    check_cost,
    check_delta,
    check_fraction,
    check_own_seed,
    check_single,
)
from riskband.means import betting_assumptions, betting_upper_means
from riskband.search import Bracket, bisect
from riskband.wording import chosen_before, exactly
from riskband.worst_cases.concave_curves import network_curve
from riskband.worst_cases.transport_balls import (
    ball,
    ball_assumptions,
    ball_recipe,
    check_budgets,
    conjugates_on_grid,
    multipliers_chosen,
    validity_of,
)
from riskband.worst_cases.wasserstein_shares import wasserstein_cdf

WORST_MEANS_FOUND = "the worst means are the upper ends of a bisection over these clients"


def wasserstein_mean(
    answers: AdversarialAnswers,
    *,
    delta: float,
    cost_budget: npt.ArrayLike,
    multipliers: npt.ArrayLike | None = None,
    method: str = "betting",
    seed: int | None = None,
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
        Confidence bound for each mean. With missing="worst" or contamination, betting takes fixed bets.
    seed : int, optional
        Order in which bets look at the clients, fixed before any answer was seen; as for `mean_bound`.

    Returns
    -------
    Certificate
        A number, or a curve over `cost_budget`; an estimate if the answers come from an attack. Source: math §4.3.

    Raises
    ------
    ValueError
        If an argument is out of range or unknown.
    """
    check_answers(answers)
    delta, seed = check_delta(delta), check_own_seed(seed)
    method = check_choice("method", method, ("betting", "hoeffding"))
    budgets = check_budgets(cost_budget)
    grid, phi = conjugates_on_grid(answers, budgets, multipliers)
    limits, name = _conjugate_limits(answers.clean, phi, delta=delta, method=method, seed=seed)
    values = _least(budgets, grid, limits)
    arguments = {
        "delta": delta,
        "cost_budget": budgets.tolist(),
        "multipliers": None if multipliers is None else grid.tolist(),
        "method": method,
        "seed": seed,
    }
    assumptions = (
        *ball_assumptions(answers),
        *betting_assumptions(name, seed),
        *chosen_before(method=(method, "betting"), **multipliers_chosen(answers, budgets, multipliers)),
    )
    return Certificate(
        quantity=f"the mean risk over the clients of {ball(answers, budgets)}",
        value=values if budgets.ndim else float(values),
        delta=delta,
        method=name,
        assumptions=assumptions,
        validity=validity_of(answers),
        axes={"cost_budget": budgets} if budgets.ndim else {},
        recipe=ball_recipe("wasserstein_mean", arguments, answers),
    )


def _conjugate_limits(
    clean: ClientRisks, phi: FloatArray, *, delta: float, method: str, seed: int | None
) -> tuple[FloatArray, str]:
    """Upper limits of the mean conjugate at every multiplier, which share delta, and the name of their method."""
    share, name = delta / phi.shape[1], method
    numbers = [clean.bounded(column) for column in phi.T]
    columns = [clean.worst_completion(each.in_unit) for each in numbers]
    if method == "hoeffding":
        slack = np.sqrt(np.log(1.0 / share) / (2.0 * clean.num_counted))
        limits = [float(column.mean() + slack) for column in columns]
    else:
        is_fixed = not clean.are_answers_certain
        limits, name = betting_upper_means(columns, delta=share, seed=seed, is_fixed=is_fixed)
    return np.array([each.from_unit(limit) for each, limit in zip(numbers, limits, strict=True)]), name


def _least(budgets: FloatArray, grid: FloatArray, limits: FloatArray) -> FloatArray:
    return np.asarray(np.clip(np.min(np.multiply.outer(budgets, grid) + limits, axis=-1), 0.0, 1.0))


def wasserstein_published(
    answers: AdversarialAnswers,
    *,
    delta: float,
    cost_budget: npt.ArrayLike,
    cost_bound: float,
    worst_means: npt.ArrayLike | None = None,
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
    worst_means : float or array_like, shape (num_budgets,), optional
        Worst mean risk of the network at each of `published_budgets`, in [0, 1], where a bisection found it (its upper
        end); by default from the upper curve of `one_round`.

    Returns
    -------
    Certificate
        A number, or a curve over `cost_budget`, with validity "as-published": the constant is the user's word, and the
        paper's floor on the radii, which could only lower the number, is left out. The slacks of [RE] Theorem 4.1 are
        added to the worst mean at the widened budget. Source: [RE] Theorem 6.3; math §4.5.

    Raises
    ------
    ValueError
        If an argument is out of range, or if missing clients count as worst or answers may be wrong.
    """
    check_answers(answers)
    delta = check_delta(delta)
    answers.clean.require_certain_answers("wasserstein_published", "wasserstein_mean")
    budgets = check_budgets(cost_budget)
    num_clients = answers.num_clients
    widened = published_budgets(budgets, num_clients=num_clients, delta=delta, cost_bound=cost_bound)
    if worst_means is None:
        found = network_curve(answers.curves)(widened)
    else:
        found = check_fraction("worst_means", worst_means, remedy="it is the upper end of a bisection")
        if found.shape != budgets.shape:
            raise ValueError(f"worst_means must have one value per cost budget, got {found.shape} for {budgets.shape}")
    log_term = np.log((num_clients + 1) / delta)
    slack = np.sqrt(log_term / (2.0 * num_clients)) + np.sqrt(log_term / (2.0 * answers.num_examples)).mean()
    values = np.minimum(found + slack, 1.0)
    arguments = {
        "delta": delta,
        "cost_budget": budgets.tolist(),
        "cost_bound": float(cost_bound),
        "worst_means": None if worst_means is None else found.tolist(),
    }
    return Certificate(
        quantity=f"the mean risk over the clients of {ball(answers, budgets)}",
        value=values if budgets.ndim else float(values),
        delta=delta,
        method="[RE] Theorem 6.3",
        assumptions=(
            *ball_assumptions(answers),
            f"no two clients are further apart than cost {exactly(cost_bound)}",
            *(() if worst_means is None else (WORST_MEANS_FOUND,)),
        ),
        validity=ESTIMATE if answers.guarantee == "lower" else AS_PUBLISHED,
        axes={"cost_budget": budgets} if budgets.ndim else {},
        recipe=ball_recipe("wasserstein_published", arguments, answers),
    )


def published_budgets(cost_budget: npt.ArrayLike, *, num_clients: int, delta: float, cost_bound: float) -> FloatArray:
    """Cost budgets for which [RE] Theorem 6.3 solves the meta-problem: widened by what a sample of clients may hide.

    Parameters
    ----------
    cost_budget : float or array_like, shape (num_budgets,)
        Mean transport cost between the networks' clients; >= 0.
    num_clients : int
        Number of clients that answered, at least 2.
    delta, cost_bound : float
        See `wasserstein_published`.

    Returns
    -------
    ndarray
        budget + cost_bound·sqrt(log(K/delta)/(2K)), of the shape of `cost_budget`.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    bound = check_cost("cost_bound", cost_bound, remedy="it bounds the cost of moving any example")
    spread = np.sqrt(np.log(num_clients / check_delta(delta)) / (2.0 * num_clients))
    return np.asarray(check_budgets(cost_budget) + bound * spread)


def wasserstein_breakdown(
    answers: AdversarialAnswers,
    *,
    delta: float,
    target: float,
    max_cost_budget: float,
    threshold: float | None = None,
    multipliers: npt.ArrayLike | None = None,
    seed: int | None = None,
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
        Of `wasserstein_mean` and `wasserstein_cdf`; by default the clients' own, or else for budgets from 1/1000 of
        `max_cost_budget` on.
    seed : int, optional
        Of `wasserstein_mean`.

    Returns
    -------
    Bracket
        As `riskband.breakdown`: certified at `lower`, not at `upper`; `-inf` or `inf` where there is no such budget.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    check_answers(answers)
    goal = check_single("target", target)
    threshold = None if threshold is None else check_single("threshold", threshold)
    largest = check_cost("max_cost_budget", max_cost_budget, remedy="it is where the search for a budget ends")
    if multipliers is None and answers.multipliers is None:
        multipliers = default_multipliers([largest / 1000.0, largest])

    delta, seed = check_delta(delta), check_own_seed(seed)
    if threshold is None:
        grid, phi = conjugates_on_grid(answers, np.array(largest), multipliers)
        limits, _ = _conjugate_limits(answers.clean, phi, delta=delta, method="betting", seed=seed)

    def meets(budget: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        if threshold is None:
            return np.asarray(_least(np.asarray(budget), grid, limits) <= goal)
        size = float(np.asarray(budget))
        found = wasserstein_cdf(answers, delta=delta, cost_budget=size, thresholds=threshold, multipliers=multipliers)
        return np.asarray(found.value <= goal)

    if not meets(0.0):
        return Bracket(-np.inf, 0.0)
    if meets(largest):
        return Bracket(largest, np.inf)
    lower, upper = bisect(meets, low=0.0, high=largest, num_steps=40)
    return Bracket(float(lower), float(upper))
