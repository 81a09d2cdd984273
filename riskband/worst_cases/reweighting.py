"""Worst cases over target networks within an f-divergence ball of the source network (math §3).

Both are functionals of one band, so they hold for every budget and every divergence at once, and the clients are asked
only once, for their plain loss. One mean, at budgets fixed beforehand, is bounded more sharply straight from answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from riskband import checks, duals
from riskband.answers.risks import ClientRisks, check_risks, shared_assumptions
from riskband.bands.band import Band, band_alone, check_band, own_delta
from riskband.betting import Dual, check_betting
from riskband.certificate import CERTIFICATE, REFUTED, Certificate, recipe
from riskband.checks import FloatArray, check_budget, check_choice, check_optional_seed, check_points, check_single
from riskband.search import Bracket, largest_where
from riskband.wording import WITHIN, chosen_before, exactly, in_short
from riskband.worst_cases import divergences
from riskband.worst_cases.divergences import FDivergence, Polygon, binary_worst_case, resolve_divergence, robust_mean
from riskband.worst_cases.published import published_worst_case_cdf, published_worst_case_mean

WORST_CASE_METHODS = ("sharp", "published", "reference")
_NUM_MULTIPLIERS = 16
_SHIFTS = duals.CUTS[::2]  # near the best one the dual is flat
_LEAST_MULTIPLIER, _LARGEST_MULTIPLIER = 1e-3, 1e4


def worst_case_mean(
    source: Band | ClientRisks,
    *,
    divergence: str | FDivergence,
    budget: npt.ArrayLike,
    method: str | None = None,
    delta: float | None = None,
    seed: int | None = None,
) -> Certificate:
    """Upper bound on the mean risk over the clients of any target network within the divergence ball.

    Parameters
    ----------
    source : Band or ClientRisks
        A band with a lower side; the bound then holds for every budget and divergence at once, and together with all
        else that is read off it. Or answers: the bound stands alone, and is sharper.
    divergence : str or FDivergence
        A name in `DIVERGENCES`, or your own.
    budget : float or array_like, shape (num_budgets,)
        Size of the ball: D_f(target || source) <= budget; >= 0. With answers fixed before any of them was seen; several
        share `delta` equally, and hold at once.
    method : {"sharp", "reference", "published", "betting"}, optional
        Of a band: `sharp` (default): dual at the largest distribution of the band. `reference`: the same program by
        cvxpy. `published`: [RE] Theorem 5.2, to compare with: it is false, so its validity is "refuted". Of answers:
        `betting`, see math §2.9; the loss may be any and numbers of examples may differ. 0-1 losses are bounded more
        sharply, which relies on independent examples: for clients that measure their risk exactly, take a band or say
        `binary=False`.
    delta : float, optional
        With answers: probability that the bound fails, in (0, 1).
    seed : int, optional
        With answers: of the one order in which bets see the clients, as for `mean_bound`.

    Returns
    -------
    Certificate
        A number, or a curve over `budget`. Of a band, `details["client_weights"]`, shape (num_clients,) or
        (num_budgets, num_clients), says how the worst case weighs the clients (which ones carry the risk), and
        `details["unseen_weight"]` what it puts on clients of risk 1 that nobody has seen, also those missing="worst".
        With contamination b, the b smallest answers weigh 0: most could be hidden behind them. If the clients have
        names, its `carried_by` and text say who carries the worst case. Source: math §3.2 and math §7.3.

    Raises
    ------
    ValueError
        If an argument is out of range or unknown, the band has no lower side, delta or a seed is given with a band or
        no delta with answers, or the answers have noise, or some may be wrong or count as the worst: make a band then.
    """
    f, budgets = resolve_divergence(divergence), check_budget(budget)
    if isinstance(source, ClientRisks):
        check_betting(method)
        return _direct_mean(source, f, budgets, delta=own_delta(delta), seed=check_optional_seed(seed))
    band = band_alone(source, delta=delta, seed=seed)
    method = check_choice("method", "sharp" if method is None else method, WORST_CASE_METHODS)
    details: dict[str, FloatArray] = {}
    if method == "published":
        values = published_worst_case_mean(band.risks, delta=band.delta, divergence=f.name, budget=budgets.ravel())
    else:
        atoms = band.distribution_for_means
        solve = robust_mean if method == "sharp" else reference_robust_mean
        solved = [solve(atoms.risks, atoms.weights, divergence=f, budget=float(size)) for size in budgets.ravel()]
        values = np.clip([value for value, _ in solved], 0.0, 1.0)  # noisy answers may lie outside
        details["client_weights"] = np.array([atoms.per_client(worst) for _, worst in solved])
        details["unseen_weight"] = np.array([worst[-1] for _, worst in solved])
    return Certificate(
        quantity=_worst_mean(f, budgets),
        value=values if budgets.ndim else values[0],
        details=details if budgets.ndim else {name: rows[0] for name, rows in details.items()},
        axes={"budget": budgets},
        recipe=recipe("worst_case_mean", {"divergence": f.name, "budget": budgets, "method": method}, band),
        **_terms(band, f, method),
    )


def _direct_mean(
    risks: ClientRisks, f: FDivergence, budgets: FloatArray, *, delta: float, seed: int | None
) -> Certificate:
    """Bounds that stand alone, one for each budget at equal parts of delta, by bets on their duals (math §2.9)."""
    risks = risks.in_order_of_names() if seed is None else risks
    check_risks(risks)
    risks.require_certain_answers("method='betting'", "a band, rb.band(answers, delta=...)", knows_draws=True)
    part, found = delta / budgets.size, []
    for budget in budgets.ravel().tolist():
        if budget == 0.0:
            found.append(duals.mean_upper_limit(risks, risks.values, delta=part, seed=seed))
        else:
            found.append(duals.dual_upper_limit(risks, duals_within(risks, f, budget), delta=part, seed=seed))
    values, methods = np.array([each.value for each in found]), dict.fromkeys(each.method for each in found)
    if risks.are_independent:  # in one order bets may exclude what was measured
        values = np.maximum(values, risks.values.mean())
    arguments = {"divergence": f.name, "budget": budgets, "method": "betting", "delta": delta, "seed": seed}
    return Certificate(
        quantity=_worst_mean(f, budgets),
        value=values if budgets.ndim else values[0],
        delta=delta,
        method=" and ".join(methods),
        axes={"budget": budgets},
        assumptions=(
            *shared_assumptions(risks, needs_binary=True, knows_draws=True),
            *assumed_of_duals(risks, f),
            *dict.fromkeys(line for each in found for line in each.assumptions),
            *chosen_before(shift_in=(f.title, None), budget=(in_short(budgets), None)),
            within(f),
        ),
        recipe=recipe("worst_case_mean", arguments, risks),
    )


def worst_case_cdf(
    band: Band,
    *,
    divergence: str | FDivergence,
    budget: npt.ArrayLike,
    thresholds: npt.ArrayLike | None = None,
    method: str = "sharp",
) -> Certificate:
    """Upper bound on the share of clients with a risk of at least a threshold, on any network within the ball.

    Parameters
    ----------
    band, divergence, budget :
        As for `worst_case_mean`, with the same errors.
    thresholds : float or array_like, shape (num_thresholds,), optional
        Risks in [0, 1]. Between two of them the bound at the smaller one holds. By default the points just above
        every jump of the band, which gives the whole curve.
    method : {"sharp", "published"}
        `sharp`: inv_f at the band's survival bound. `published`: [RE] Theorem 5.3, which is false: "refuted".

    Returns
    -------
    Certificate
        A number, or a curve over `budget` and/or `threshold`, in that order. Source: math §3.1.
    """
    check_band(band)
    method = check_choice("method", method, ("sharp", "published"))
    f, budgets = resolve_divergence(divergence), check_budget(budget)
    if thresholds is None:
        thresholds = np.unique(np.concatenate([[0.0], np.nextafter(band.lower_points, 1.0), [1.0]]))
    points = check_points("thresholds", thresholds)
    grid = np.expand_dims(budgets, -1) if budgets.ndim and points.ndim else budgets
    if method == "published":
        values = published_worst_case_cdf(
            band.risks, delta=band.delta, divergence=f.name, budget=grid, thresholds=points
        )
    else:
        values = binary_worst_case(1.0 - band.lower_left_limit(points), divergence=f, budget=grid)
    threshold = "the threshold" if points.ndim else exactly(float(points))
    arguments = {"divergence": f.name, "budget": budgets, "thresholds": points, "method": method}
    return Certificate(
        quantity=f"the probability, on {ball(f, budgets)}, that {band.subject} is at least {threshold}",
        value=values,
        axes={"budget": budgets, "threshold": points},
        recipe=recipe("worst_case_cdf", arguments, band),
        **_terms(band, f, method),
    )


def breakdown(
    band: Band, *, divergence: str | FDivergence, target: float, threshold: float | None = None, max_budget: float = 1e3
) -> Bracket:
    """Largest budget at which a certified number still meets a target.

    Parameters
    ----------
    band, divergence :
        As for `worst_case_mean`, with the same errors.
    target : float
        What the bound must not exceed, in [0, 1].
    threshold : float, optional
        With it, the target is for the share of clients with a risk of at least the threshold; without, for the mean.
    max_budget : float
        Where the search stops.

    Returns
    -------
    Bracket
        Both ends, a millionth of them apart: the target is certified at `lower`, and is not at `upper`. `lower` is
        `-inf` if not even a network without shift meets it; `upper` is `inf` if every budget up to `max_budget` does.
        Source: math §3.4.
    """
    check_band(band)
    goal = check_single("target", target)
    at = None if threshold is None else check_single("threshold", threshold)
    f = resolve_divergence(divergence)
    atoms = band.distribution_for_means
    if check_budget(max_budget).ndim:
        raise ValueError(f"max_budget must be one number, got {max_budget!r:.80}; it is where the search stops")

    def meets(budget: float) -> bool:
        if at is None:
            value, _ = robust_mean(atoms.risks, atoms.weights, divergence=f, budget=budget)
            return min(value, 1.0) <= goal
        share = 1.0 - band.lower_left_limit(at)
        return float(binary_worst_case(share, divergence=f, budget=budget)) <= goal

    return largest_where(meets, most=float(max_budget), relative_tolerance=1e-6)


def reference_robust_mean(
    values: FloatArray, weights: FloatArray, *, divergence: FDivergence, budget: float
) -> tuple[float, FloatArray]:
    """`robust_mean` by cvxpy: slow, independent of the dual, for any divergence with a `cvxpy_generator`.

    Raises ValueError for a divergence without, and RuntimeError if cvxpy finds no optimum.
    """
    checks.check_installed("cvxpy", extra="reference")
    import cvxpy as cp  # loads in a second, and only this function needs it

    if divergence.cvxpy_generator is None:
        raise ValueError(f"the reference solver needs divergence {divergence.name!r} to have a cvxpy_generator")
    levels, atom_of = np.unique(values, return_inverse=True)  # ties make the program needlessly hard to scale
    masses = np.bincount(atom_of, weights)
    ratio = cp.Variable(levels.size, nonneg=True)
    new_mass = cp.Variable(nonneg=True)  # on clients the source never shows
    cost = masses @ divergence.cvxpy_generator(cp, ratio)
    if np.isfinite(divergence.slope_at_infinity):
        constraints = [cost + divergence.slope_at_infinity * new_mass <= budget]
    else:
        constraints = [cost <= budget, new_mass == 0.0]
    problem = cp.Problem(
        cp.Maximize((masses * levels) @ ratio + levels[-1] * new_mass), [*constraints, masses @ ratio + new_mass == 1.0]
    )
    try:
        problem.solve(solver=cp.CLARABEL)
    except cp.SolverError:
        problem.solve(solver=cp.SCS, eps=1e-9, max_iters=100_000)
    if problem.status not in ("optimal", "optimal_inaccurate") or ratio.value is None:
        raise RuntimeError(f"cvxpy found no optimum for {divergence.name} at budget {budget}: {problem.status}")
    worst = weights * ratio.value[atom_of]
    worst[np.argmax(values)] += max(1.0 - worst.sum(), 0.0)
    return float(problem.value), worst


def ball(divergence: FDivergence, budgets: FloatArray) -> str:
    """Return what a network within the ball is called in a sentence."""
    size = "the budget" if budgets.ndim else exactly(float(budgets))
    return f"any network within {size} of the source network in {divergence.title}"


def _worst_mean(divergence: FDivergence, budgets: FloatArray) -> str:
    return f"the mean risk over the clients of {ball(divergence, budgets)}"


def within(divergence: FDivergence) -> str:
    """Return what is assumed of a target network."""
    return f"{WITHIN} in {divergence.title}"


def _terms(band: Band, divergence: FDivergence, method: str) -> dict[str, Any]:
    published = method == "published"
    return {
        "delta": band.delta,
        "validity": REFUTED if published else CERTIFICATE,
        "method": "[RE] Theorem 5.2/5.3" if published else f"{method}, {band.method} band",
        "assumptions": (*band.assumptions, within(divergence)),
    }


def variation_duals(risks: ClientRisks, budget: float) -> list[Dual]:
    """Total variation: (1 - cut)·budget + cut + E (R - cut)_+ ."""
    return duals.excess_duals(risks, offset=lambda cut: cut + (1.0 - cut) * min(budget, 1.0), slope=1.0)


BUILT_IN: Mapping[FDivergence, Callable[[ClientRisks, float], list[Dual]]] = {
    divergences.CHI2: duals.square_duals,
    divergences.KL: duals.exponential_duals,
    divergences.TV: variation_duals,
    divergences.HELLINGER2: duals.pole_duals,
}
"""For the divergences whose dual has one variable, from answers and a budget > 0 to duals."""


def custom_duals(divergence: FDivergence) -> Callable[[ClientRisks, float], list[Dual]]:
    """The same for any divergence: λ·budget + κ + λ·E f*((R - κ)/λ), with a polygon below f in its place."""
    polygon = divergences.outer_polygon(divergence.generator)
    steepest = float(polygon.slopes[-1])

    def duals_of(risks: ClientRisks, budget: float) -> list[Dual]:
        usual = 1.0 / np.sqrt(budget)
        least, most = np.clip([1e-3 * usual, 2.0 * usual], [_LEAST_MULTIPLIER, 0.3], [0.03, _LARGEST_MULTIPLIER])
        multipliers = np.geomspace(least, most, _NUM_MULTIPLIERS)
        pairs = [(multiplier, shift) for multiplier in multipliers.tolist() for shift in _SHIFTS.tolist()]
        # The conjugate must be finite at every risk that clients may have, seen or not.
        pairs = [(multiplier, shift) for multiplier, shift in pairs if 1.0 - shift <= multiplier * steepest]
        if np.isfinite(divergence.slope_at_infinity):  # and new clients make the least such shift the best one
            pairs += [((1.0 - shift) / steepest, shift) for shift in duals.CUTS.tolist()]
        return [_conjugate_dual(risks, polygon, budget, *pair) for pair in pairs]

    return duals_of


def duals_within(risks: ClientRisks, divergence: FDivergence, budget: float) -> list[Dual]:
    """Return the duals of the largest mean risk within a budget; within none, the mean itself."""
    if budget == 0.0:
        return [Dual(risks.values, np.asarray, float)]
    return (BUILT_IN.get(divergence) or custom_duals(divergence))(risks, budget)


def assumed_of_duals(risks: ClientRisks, divergence: FDivergence) -> tuple[str, ...]:
    """Return what `duals_within` assume of the numbers of examples."""
    return duals.excess_assumptions(risks) if divergence.name == "tv" else ()


def _conjugate_dual(risks: ClientRisks, polygon: Polygon, budget: float, multiplier: float, shift: float) -> Dual:
    def conjugate(risk: FloatArray) -> FloatArray:
        slope = (risk - shift) / multiplier
        ratio = np.minimum(polygon.best_ratio(slope), polygon.corners[-1])  # at the last slope every ratio is best
        return np.asarray(multiplier * (slope * ratio - polygon.height(ratio)))

    low, high = conjugate(np.array([0.0, 1.0])).tolist()
    start = multiplier * budget + shift
    return Dual.of_range(
        conjugate(risks.values),
        low=low,
        high=high,
        bound=lambda mean: start + mean,
        least_mean=lambda value: value - start,
        start=float(np.mean(conjugate(duals.UNIFORM))),
    )
