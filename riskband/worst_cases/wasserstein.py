"""Certificates for networks within a Wasserstein ball of the source network (math §4; docs/wasserstein.md).

Reweighting can only stress clients of a kind that was seen; a transport budget reaches kinds that nobody has. The
ground cost between examples makes a transport cost between client distributions, which is the ground cost between
meta-distributions. Budgets are in units of that cost: for order 2 a radius rho enters as rho².

Two proofs bound the share of clients above a risk. `limits` bounds the least cost at which a client reaches the risk,
with a limit for each client: sharp where clients have many examples. `average` needs no limit: by convexity, a mean
over examples stands in for a client's distribution. It holds for every loss and is sharp where clients are many and
have few examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from riskband.answers.adversarial import AdversarialAnswers, check_answers, checked_multipliers, default_multipliers
from riskband.answers.concave_curves import knapsack_curve, network_curve
from riskband.answers.risks import BINARY_LOSS, ClientRisks, default_eta, shared_assumptions
from riskband.bands.band import METHODS
from riskband.bands.local_steps import KNOWN_SIZES, RANDOM_SIZES, ClientAtoms, levels_of_answers
from riskband.betting import (
    LARGEST_SHARE,
    LARGEST_SHARE_OF_TAILS,
    betting_assumptions,
    betting_upper_means,
    come_sorted,
)
from riskband.certificate import CERTIFICATE, ESTIMATE, Certificate, recipe
from riskband.checks import (
    FloatArray,
    check_choice,
    check_cost,
    check_costs,
    check_delta,
    check_eta,
    check_flag,
    check_fraction,
    check_optional_seed,
    check_points,
    check_single,
)
from riskband.search import Bracket, largest_where
from riskband.wording import chosen_before, exactly, in_short
from riskband.worst_cases.transport_bets import TransportBets, TransportDuals
from riskband.worst_cases.transport_duals import (
    LIMIT_ETAS,
    ROUNDING,
    conjugates_with_ends,
    hinge_duals,
    limit_duals,
    mean_duals,
    multiplier_grid,
)

CDF_LOCAL_STEPS = ("best", "average", "limits")
_CDF_METHODS = ("betting", *METHODS)
_MEAN_RATIO, _SHARE_RATIO = 1.1, 1.3  # between multipliers that a gambler may choose from: they cost nothing
_FROM_THE_PAST = "dual variable from the clients before"

WORST_MEANS_FOUND = "the worst means are the upper ends of a bisection over these clients"


def wasserstein_mean(
    answers: AdversarialAnswers,
    *,
    delta: float,
    cost_budget: npt.ArrayLike,
    multipliers: npt.ArrayLike | None = None,
    method: str = "betting",
    seed: int | None = None,
    every_budget: bool = False,
) -> Certificate:
    """Upper bound on the mean risk over the clients of any network within the transport budget.

    For a fixed multiplier the K numbers phi_k are independent with mean exactly E phi(P), so no within-client term and
    no constant is needed: E R <= multiplier·budget + (upper confidence bound of E phi). By default a bet on each client
    takes the multiplier that was best for the clients before, which costs nothing: sharp for the budgets asked, which
    share delta and hold at once. With `every_budget` a grid of multipliers shares delta, and every budget there is
    holds at once, also in other calls with these multipliers.

    Parameters
    ----------
    answers : AdversarialAnswers
        The clients' answers.
    delta : float
        Probability that the certificate fails, in (0, 1).
    cost_budget : float or array_like, shape (num_budgets,)
        Mean transport cost between the networks' clients; >= 0.
    multipliers : array_like, shape (num_multipliers,), optional
        Grid fixed before any answer was seen; by default a fine one chosen from the budgets. With `every_budget` the
        one that the clients answered, or else `default_multipliers` of the budgets.
    method : {"betting", "hoeffding"}
        Confidence bound for each mean. `hoeffding` is as with `every_budget`. With missing="worst", contamination or
        noise so is betting, and without a seed where the clients come sorted by their risks.
    seed : int, optional
        Order in which bets look at the clients, fixed before any answer was seen; as for `mean_bound`.
    every_budget : bool
        Whether all budgets there are shall hold at once, not only those that are asked: wider.

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
    delta, seed = check_delta(delta), check_optional_seed(seed)
    method = check_choice("method", method, ("betting", "hoeffding"))
    every_budget = check_flag("every_budget", every_budget)
    budgets, given = _check_budgets(cost_budget), None if multipliers is None else checked_multipliers(multipliers)
    if _is_for_budgets_asked(answers, method, every_budget, seed):
        prices = _prices(budgets, given, ratio=_MEAN_RATIO)
        bets = TransportBets(answers.num_clients, seed=seed, largest_share=LARGEST_SHARE_OF_TAILS)
        duals = mean_duals(answers, prices)
        values = _monotone(budgets, bets.upper_bounds(duals, np.atleast_1d(budgets), delta=delta))
        name, chosen = bets.name, _budgets_chosen(budgets, given)
        how = f"{name}, {_FROM_THE_PAST}"
    else:
        grid, phi = _conjugates_on_grid(answers, budgets, multipliers)
        limits, name = _conjugate_limits(answers.clean, phi, delta=delta, method=method, seed=seed)
        values, how = _least(budgets, grid, limits), name
        chosen = _multipliers_chosen(answers, budgets, multipliers)
    arguments = {
        "delta": delta,
        "cost_budget": budgets,
        "multipliers": given,
        "method": method,
        "seed": seed,
        "every_budget": every_budget,
    }
    return Certificate(
        quantity=f"the mean risk over the clients of {_ball(answers, budgets)}",
        value=values,
        delta=delta,
        method=how,
        assumptions=(
            *_ball_assumptions(answers),
            *betting_assumptions(name, seed),
            *chosen_before(method=(method, "betting"), **chosen),
        ),
        validity=ESTIMATE if answers.guarantee == "lower" else CERTIFICATE,
        axes={"cost_budget": budgets},
        recipe=recipe("wasserstein_mean", arguments, answers),
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
        limits, name = betting_upper_means(columns, delta=share, seed=seed if clean.are_answers_certain else None)
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
    """Upper bound on the mean risk as in [RE] Theorem 6.3, to compare with; math §4.5 proves it, and why it is wide.

    Parameters
    ----------
    answers, delta, cost_budget :
        As for `wasserstein_mean`.
    cost_bound : float
        The theorem's constant: a bound on the transport cost between any two clients, > 0. It widens the bound, and
        validity does not need it.
    worst_means : float or array_like, shape (num_budgets,), optional
        Worst mean risk of the network at each of `published_budgets`, in [0, 1], where a bisection found it (its upper
        end); by default from the upper curve of `one_round`.

    Returns
    -------
    Certificate
        A number, or a curve over `cost_budget`: the worst mean at the widened budget and the slacks of [RE]
        Theorem 4.1. The paper's floor on the radii, which could only lower the number, is left out. Source: [RE]
        Theorem 6.3; math §4.5.

    Raises
    ------
    ValueError
        If an argument is out of range, or if missing clients count as worst or answers may be wrong.
    """
    check_answers(answers)
    delta = check_delta(delta)
    answers.require_certain_answers("wasserstein_published", "wasserstein_mean")
    budgets = _check_budgets(cost_budget)
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
    given = None if worst_means is None else found
    arguments = {"delta": delta, "cost_budget": budgets, "cost_bound": float(cost_bound), "worst_means": given}
    return Certificate(
        quantity=f"the mean risk over the clients of {_ball(answers, budgets)}",
        value=values,
        delta=delta,
        method="[RE] Theorem 6.3",
        assumptions=(
            *_ball_assumptions(answers),
            *(() if worst_means is None else (WORST_MEANS_FOUND,)),
        ),
        validity=ESTIMATE if answers.guarantee == "lower" else CERTIFICATE,
        axes={"cost_budget": budgets},
        recipe=recipe("wasserstein_published", arguments, answers),
    )


def published_budgets(cost_budget: npt.ArrayLike, *, num_clients: int, delta: float, cost_bound: float) -> FloatArray:
    """Cost budgets for which [RE] Theorem 6.3 solves the meta-problem: widened by what a sample of clients may hide.

    They are budget + cost_bound·sqrt(log(K/delta)/(2K)), of the shape of `cost_budget`; arguments and errors as for
    `wasserstein_published`.
    """
    bound = check_cost("cost_bound", cost_bound, remedy="it bounds the cost of moving any example")
    spread = np.sqrt(np.log(num_clients / check_delta(delta)) / (2.0 * num_clients))
    return np.asarray(_check_budgets(cost_budget) + bound * spread)


def wasserstein_cdf(
    answers: AdversarialAnswers,
    *,
    delta: float,
    cost_budget: npt.ArrayLike,
    thresholds: npt.ArrayLike,
    local: str = "best",
    multipliers: npt.ArrayLike | None = None,
    eta: float | None = None,
    method: str = "betting",
    seed: int | None = None,
    every_budget: bool = False,
) -> Certificate:
    """Upper bound on the share of clients with a risk of at least a threshold, on any network within the budget.

    By default a bet on each client takes the dual variables that were best for the clients before, which costs nothing:
    sharp for the budgets and thresholds asked, which share delta and hold at once. With `every_budget` bands for the
    distribution over clients are taken, and every budget there is holds at once.

    Parameters
    ----------
    answers, delta, cost_budget :
        As for `wasserstein_mean`.
    thresholds : float or array_like, shape (num_thresholds,)
        Risks in (0, 1], increasing, fixed before any answer was seen. All hold at once; between two of them the bound
        at the smaller one holds.
    local : {"best", "average", "limits"}
        From a client's examples to its distribution. `average`: a mean over the examples stands in for it, for every
        loss. `limits`: a limit for the cost of pushing each client, for the 0-1 loss only. `best` (default): whichever
        of the two was better for the clients before; for other losses than the 0-1 loss the same as `average`. With
        bands the multipliers share delta in `average`, the thresholds do in `limits`, and `best` is the smaller of the
        two with half of delta each.
    multipliers, seed, every_budget :
        As for `wasserstein_mean`; with bands, multipliers are for `average` only.
    eta : float, optional
        For `limits`: error level of one client's limit, in (0, 0.5], fixed beforehand; by default one of several, by
        the clients before, and with bands from the number of clients.
    method : {"betting", "berk_jones", "dkw"}
        The last two are bands for a distribution over clients: of the conjugates at each multiplier, or of the limits.
        With `every_budget`, missing="worst" or contamination betting is replaced by `berk_jones`.

    Returns
    -------
    Certificate
        A number, or a curve over `cost_budget` and/or `threshold`; an estimate if the answers come from an attack.
        Source: math §4.4; [RE] only plots it.

    Raises
    ------
    ValueError
        If an argument is out of range or unknown, `limits` is asked of another loss than the 0-1 loss, or the answers
        have noise.
    """
    check_answers(answers)
    answers.require_no_noise("wasserstein_cdf", "wasserstein_mean, or a band of the plain risks")
    delta = check_delta(delta)
    given = None if multipliers is None else checked_multipliers(multipliers)  # stored also where they are not used
    budgets, points = _check_budgets(cost_budget), check_points("thresholds", thresholds)
    if np.any(points <= 0.0) or np.any(np.diff(np.atleast_1d(points)) <= 0.0):
        raise ValueError("thresholds must be > 0 and increase: every client has a risk of at least 0")
    local, method = check_choice("local", local, CDF_LOCAL_STEPS), check_choice("method", method, _CDF_METHODS)
    if local == "limits" and not answers.binary:
        raise ValueError(
            "local='limits' needs answers of a 0-1 loss: it rests on the costs of misclassification; use 'average'"
        )
    seed, every_budget = check_optional_seed(seed), check_flag("every_budget", every_budget)
    eta = None if eta is None else check_eta(eta)
    flat = (np.atleast_1d(budgets), np.atleast_1d(points))
    uses_limits = answers.binary and local != "average"
    is_asked = _is_for_budgets_asked(answers, method, every_budget, seed)
    chosen: dict[str, tuple[object, object]] = {"thresholds": (in_short(points), None), "local": (local, "best")}
    if is_asked:
        bets = TransportBets(answers.num_clients, seed=seed)
        prices = _prices(budgets, given, ratio=_SHARE_RATIO)
        families = _share_families(answers, prices, local=local, etas=LIMIT_ETAS if eta is None else (eta,))
        share = delta / flat[1].size
        columns = [
            bets.upper_bounds(families(point), flat[0], delta=share) if point > 0.0 else np.ones(flat[0].size)
            for point in (flat[1] - ROUNDING).tolist()
        ]
        bounds, name = np.stack(columns, axis=1), bets.name
        chosen |= {"eta": (eta, None), **_budgets_chosen(budgets, given)}
        how = f"{name}, {_FROM_THE_PAST}"
    else:
        band = "berk_jones" if method == "betting" else method
        eta = default_eta(answers.num_counted) if eta is None else eta
        bounds = _from_bands(answers, *flat, delta=delta, local=local, multipliers=given, eta=eta, method=band)
        usual = band if method == "betting" else "berk_jones" if every_budget else "betting"
        name, how = band, f"{band} band"
        chosen |= {"eta": (eta, default_eta(answers.num_counted)), "method": (band, usual)}
        chosen |= {} if local == "limits" else _multipliers_chosen(answers, budgets, given)
    arguments = {
        "delta": delta,
        "cost_budget": budgets,
        "thresholds": points,
        "local": local,
        "multipliers": given,
        "eta": eta,
        "method": method,
        "seed": seed,
        "every_budget": every_budget,
    }
    threshold = "the threshold" if points.ndim else exactly(float(points))
    return Certificate(
        quantity=(
            f"the probability, on {_ball(answers, budgets)}, that the risk of an unseen client is at least {threshold}"
        ),
        value=_monotone(budgets, np.minimum.accumulate(np.minimum(bounds, 1.0), axis=1)).reshape(
            budgets.shape + points.shape
        ),
        delta=delta,
        method=f"{how}, {local if answers.binary else 'average'} local step",
        assumptions=(
            *_ball_assumptions(answers),
            *((BINARY_LOSS,) if uses_limits else ()),
            *(() if answers.clean.has_equal_sizes else (RANDOM_SIZES, *((KNOWN_SIZES,) if is_asked else ()))),
            *betting_assumptions(name, seed),
            *chosen_before(**chosen),
        ),
        validity=ESTIMATE if answers.guarantee == "lower" else CERTIFICATE,
        axes={"cost_budget": budgets, "threshold": points},
        recipe=recipe("wasserstein_cdf", arguments, answers),
    )


def _share_families(
    answers: AdversarialAnswers, prices: FloatArray, *, local: str, etas: Sequence[float]
) -> Callable[[float], TransportDuals]:
    """What may be bet on for the share of clients at a threshold, as a function of it."""
    phi, sizes = conjugates_with_ends(answers, prices), answers.num_examples
    uses_limits = answers.binary and local != "average"

    def families(threshold: float) -> TransportDuals:
        found = [hinge_duals(phi, prices, sizes, threshold=threshold)] if local != "limits" else []
        if uses_limits:
            found.append(limit_duals(answers.curves, prices, sizes, threshold=threshold, etas=etas))
        return TransportDuals.joined(found)

    return families


def _from_bands(
    answers: AdversarialAnswers,
    budgets: FloatArray,
    points: FloatArray,
    *,
    delta: float,
    local: str,
    multipliers: FloatArray | None,
    eta: float,
    method: str,
) -> FloatArray:
    """Bounds of shape (num_budgets, num_thresholds) for every budget at once, by the smaller of both proofs."""
    levels_of, bounds = partial(levels_of_answers, answers.clean, levels_of=METHODS[method]), []
    uses_limits = answers.binary and local != "average"
    part = delta / 2 if uses_limits and local == "best" else delta
    if uses_limits:
        levels = levels_of(delta=part / points.size, sides="upper").of_one_side
        bounds.append(_from_limits(answers, budgets, points, levels, eta=eta))
    if local != "limits":
        grid, phi = _conjugates_on_grid(answers, budgets, multipliers)
        levels = levels_of(delta=part / grid.size, sides="lower").of_one_side
        atoms = [ClientAtoms.from_levels(column, levels) for column in phi.T]
        bounds.append(_from_averages(atoms, grid, budgets, points))
    return np.asarray(np.min(bounds, axis=0))


def _from_limits(
    answers: AdversarialAnswers, budgets: FloatArray, points: FloatArray, levels: FloatArray, *, eta: float
) -> FloatArray:
    """A knapsack of limits for the cost of pushing each client.

    From its examples, the cost r(P, t) is at least R_k with probability 1 - eta, so that E(1 - m·r)_+ is at most
    E(1 - m·R)_+ / (1 - eta) for every multiplier m; a band for the distribution of R makes the right side a knapsack.
    """
    margins = np.sqrt(np.log(1.0 / eta) / (2.0 * answers.num_examples))
    weights = np.diff(levels, prepend=0.0, append=1.0)
    columns = []
    for point in points:
        limits = [curve.inverse(point - tau - ROUNDING) for curve, tau in zip(answers.curves, margins, strict=True)]
        # The distribution of R that helps the adversary most: the mass that the band leaves open costs nothing to push.
        curve = knapsack_curve(np.concatenate([[0.0], np.sort(np.maximum(limits, 0.0))]), weights)
        columns.append(curve(budgets * (1.0 - eta)) / (1.0 - eta))
    return np.stack(columns, axis=1)


def _from_averages(
    atoms: Sequence[ClientAtoms], multipliers: FloatArray, budgets: FloatArray, points: FloatArray
) -> FloatArray:
    """The least of a·m·budget + E(1 + a(phi_m - t))_+ over a >= 0 and multipliers m, with atoms of each phi_m."""
    columns = []
    for point in points - ROUNDING:  # what holds at a smaller threshold holds at the larger one
        charged = zip(atoms, multipliers, strict=True)
        columns.append(np.min([_least_share(each, budgets * price, point) for each, price in charged], axis=0))
    return np.stack(columns, axis=1)


def _least_share(atoms: ClientAtoms, charges: FloatArray, threshold: float) -> FloatArray:
    """Minimum over a >= 0 of a·charge + E(1 + a(X - threshold))_+, for each charge; shape (num_charges,).

    It is convex and piecewise linear in a, with a corner at 1/(threshold - x) for each atom x below the threshold:
    from there on the atom counts no more. The minimum is at the first corner after which the slope is not negative.
    """
    below = int(np.searchsorted(atoms.risks, threshold, side="left"))
    mass = np.cumsum(atoms.weights[::-1])[::-1]
    excess = np.cumsum((atoms.weights * (atoms.risks - threshold))[::-1])[::-1]
    # Of the atoms that still count after each corner; before the first one, a = 0, all of them do.
    mass, slope = mass[: below + 1], excess[: below + 1]
    corner = np.concatenate([[0.0], 1.0 / (threshold - atoms.risks[:below])])
    best = np.minimum(np.searchsorted(slope, -charges, side="left"), below)
    return np.asarray(mass[best] + corner[best] * (slope[best] + charges))


def wasserstein_breakdown(
    answers: AdversarialAnswers,
    *,
    delta: float,
    target: float,
    max_cost_budget: float,
    threshold: float | None = None,
    multipliers: npt.ArrayLike | None = None,
    seed: int | None = None,
    every_budget: bool = False,
) -> Bracket:
    """Largest cost budget at which a certified number still meets a target.

    By default the budget has delta for itself: one gambler plays for it, and whatever it finds of any budget holds at
    once. With `every_budget` it is read off the certificates that hold for every budget.

    Parameters
    ----------
    answers, delta :
        As for `wasserstein_mean`, with the same errors.
    target : float
        What the bound must not exceed, in [0, 1].
    max_cost_budget : float
        Where the search stops; the default multipliers are chosen for it.
    threshold : float, optional
        With it, the target is for the share of clients with a risk of at least the threshold; without, for the mean.
    multipliers : array_like, optional
        Fixed before any answer was seen; by default a fine grid for budgets from 1/1000 of `max_cost_budget` on, and
        with `every_budget` the clients' own, or else `default_multipliers` of the ends of that range.
    seed, every_budget :
        As for `wasserstein_mean`; every budget is also taken with missing="worst", contamination or noise.

    Returns
    -------
    Bracket
        As `riskband.breakdown`: certified at `lower`, not at `upper`; `-inf` or `inf` where there is no such budget.
        Source: math §4.3.
    """
    check_answers(answers)
    goal = check_single("target", target)
    threshold = None if threshold is None else check_single("threshold", threshold)
    largest = check_cost("max_cost_budget", max_cost_budget, remedy="it is where the search for a budget ends")
    delta, seed, every_budget = check_delta(delta), check_optional_seed(seed), check_flag("every_budget", every_budget)
    given = None if multipliers is None else checked_multipliers(multipliers)
    if threshold is not None:
        answers.require_no_noise("a breakdown of a share", "the breakdown of the mean")
        if threshold <= ROUNDING:  # every client has a risk of at least 0, and answers may be rounded
            return Bracket(largest, np.inf) if goal == 1.0 else Bracket(-np.inf, 0.0)
    if _is_for_budgets_asked(answers, "betting", every_budget, seed):
        ratio = _MEAN_RATIO if threshold is None else _SHARE_RATIO
        prices = _prices(np.array([largest / 1000.0, largest]), given, ratio=ratio)
        if threshold is None:
            duals, share = mean_duals(answers, prices), LARGEST_SHARE_OF_TAILS
        else:
            families = _share_families(answers, prices, local="best", etas=LIMIT_ETAS)
            duals, share = families(threshold - ROUNDING), LARGEST_SHARE
        bets = TransportBets(answers.num_clients, seed=seed, largest_share=share)
        return bets.largest_budget(duals, target=goal, largest=largest, delta=delta)
    if multipliers is None and answers.multipliers is None:
        multipliers = default_multipliers([largest / 1000.0, largest])

    if threshold is None:
        grid, phi = _conjugates_on_grid(answers, np.array(largest), multipliers)
        limits, _ = _conjugate_limits(answers.clean, phi, delta=delta, method="betting", seed=seed)

    def meets(budget: float) -> bool:
        if threshold is None:
            return float(_least(np.asarray(budget), grid, limits)) <= goal
        found = wasserstein_cdf(
            answers, delta=delta, cost_budget=budget, thresholds=threshold, multipliers=multipliers, every_budget=True
        )
        return float(found) <= goal

    return largest_where(meets, most=largest, num_steps=40)


def _check_budgets(cost_budget: npt.ArrayLike) -> FloatArray:
    """Return cost budgets >= 0 of shape () or (num_budgets,); raises ValueError for anything else."""
    return check_costs("cost_budget", cost_budget, remedy="it is a mean transport cost, and 0 means no shift")


def _conjugates_on_grid(
    answers: AdversarialAnswers, budgets: FloatArray, multipliers: npt.ArrayLike | None
) -> tuple[FloatArray, FloatArray]:
    """Return multipliers fixed before any answer, and the clients' conjugates at them: (num_clients, num_multipliers).

    Without multipliers, they are those that the clients answered, or else `default_multipliers` of the budgets. The
    conjugates are as answered, or upper bounds from the curves, in [0, 1]. With noise they are as answered: nothing may
    be made of noisy numbers before their mean is taken.
    """
    if answers.noise is not None:
        grid, phi = answers.multipliers, answers.conjugates
        is_own = multipliers is None or np.array_equal(checked_multipliers(multipliers), () if grid is None else grid)
        if grid is None or phi is None or not is_own:
            raise ValueError(
                "noisy answers must hold the conjugates at the multipliers of the bound, got others or none; ask the "
                "clients for conjugates, and leave multipliers out"
            )
        return grid, phi
    if multipliers is None and answers.multipliers is not None and answers.conjugates is not None:
        return answers.multipliers, answers.answered_conjugates()
    grid = default_multipliers(budgets) if multipliers is None else checked_multipliers(multipliers)
    return grid, answers.conjugates_at(grid)


def _is_for_budgets_asked(answers: AdversarialAnswers, method: str, every_budget: bool, seed: int | None) -> bool:
    """Whether bets choose the dual variable from the clients before; they need every answer as given, and an order."""
    is_possible = method == "betting" and not every_budget and answers.are_as_measured
    return is_possible and not (seed is None and come_sorted(answers.clean.values))


def _prices(budgets: FloatArray, given: FloatArray | None, *, ratio: float) -> FloatArray:
    """Multipliers that a gambler may choose from; without a budget none is needed."""
    return multiplier_grid(np.atleast_1d(budgets), ratio=ratio) if given is None else np.append(given, np.inf)


def _monotone(budgets: FloatArray, values: FloatArray) -> FloatArray:
    """Bounds that hold at once, in the shape of the budgets: what holds for a larger one holds for a smaller one."""
    order = np.argsort(budgets, axis=None)[::-1]
    found = values.copy()
    found[order] = np.minimum.accumulate(values[order], axis=0)
    return found if values.ndim > 1 else found.reshape(budgets.shape)


def _budgets_chosen(budgets: FloatArray, given: FloatArray | None) -> dict[str, tuple[object, object]]:
    """Return the budgets, and the multipliers if they were given, as choices of `chosen_before`."""
    chosen: dict[str, tuple[object, object]] = {"cost budget": (in_short(budgets), None)}
    return chosen if given is None else chosen | {"multipliers": (in_short(given), None)}


def _ball(answers: AdversarialAnswers, budgets: FloatArray) -> str:
    """Return the ball in words."""
    size = "the cost budget" if budgets.ndim else f"cost {exactly(float(budgets))}"
    return f"any network within {size} of the source network ({answers.cost})"


def _ball_assumptions(answers: AdversarialAnswers) -> tuple[str, ...]:
    """Return what every certificate for the ball assumes."""
    return (
        *shared_assumptions(answers.clean),
        f"the target network is within the stated mean transport cost of the source network ({answers.cost})",
    )


def _multipliers_chosen(
    answers: AdversarialAnswers, budgets: FloatArray, multipliers: npt.ArrayLike | None
) -> dict[str, tuple[object, object]]:
    """Return what fixed the grid of `_conjugates_on_grid`, as a choice of `chosen_before`: prices, or the budgets."""
    if multipliers is None:
        multipliers = answers.multipliers
    name, numbers = ("cost budget", budgets) if multipliers is None else ("multipliers", multipliers)
    return {name: (in_short(np.asarray(numbers, dtype=np.float64)), None)}
