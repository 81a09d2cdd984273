"""The adversary of a whole network: three routes to one number (math §4.2, [RE] eq. 15).

max (1/K) sum Q_k(rho_k) subject to (1/K) sum rho_k <= budget, which equals min over multipliers of
multiplier·budget + (1/K) sum phi_k(multiplier). The routes differ in what the clients are asked, and when.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy  # loads its modules on use

from riskband.answers.concave_curves import (
    TOLERANCE,
    ConcaveCurve,
    inner_curve,
    network_curve,
    outer_curve,
    outer_curves,
    rounding_of_curve,
    rounding_of_curves,
)
from riskband.checks import FloatArray, IntArray, check_cost, check_costs, check_fraction
from riskband.search import Bracket

_MOST_ROUNDS = 200

Ask = Callable[[IntArray, FloatArray], npt.ArrayLike]
"""(clients, radii), shape (num_asked,) each -> the clients' adversarial risks at these radii, same shape; NaN where a
client gave no answer."""


def one_round(radii: npt.ArrayLike, values: npt.ArrayLike) -> tuple[ConcaveCurve, ConcaveCurve]:
    """Lower and upper curve of a network's worst mean over all cost budgets, from one grid of radii.

    The radii, shape (num_radii,), are cost budgets that every client was asked for, increasing strictly from 0; the
    values, shape (num_clients, num_radii), adversarial risks Q_k(radius), nondecreasing and concave in the radius up to
    the rounding of their digits. Raises ValueError if they are not. The distance of the curves is what the grid leaves
    open.
    """
    grid = check_costs("radii", radii, remedy="they are costs, in units of the transport cost")
    rows = check_fraction("values", values)
    if rows.ndim != 2 or grid.shape != rows.shape[1:]:
        raise ValueError(f"values must have shape (num_clients, {grid.size}), one column per radius, got {rows.shape}")
    roundings = rounding_of_curves(grid, rows)
    lower = [inner_curve(grid, row, rounding=each) for row, each in zip(rows, roundings.tolist(), strict=True)]
    return network_curve(lower), network_curve(outer_curves(grid, rows, roundings))


def dual(conjugates: Callable[[float], npt.ArrayLike], *, cost_budget: float, max_multiplier: float = 1e6) -> float:
    """Worst mean of a network, from the clients' conjugates at multipliers that are asked one after the other.

    It is the min over multipliers of multiplier·budget + mean phi, an upper bound at whichever multiplier the search
    stops. `conjugates` maps a multiplier to phi_k(multiplier) of every client in [0, 1], shape (num_clients,). The
    budget > 0 is the mean one, in units of the transport cost; a `max_multiplier` beyond the default only matters for
    tiny ones.
    """
    budget = check_cost("cost_budget", cost_budget, remedy="without a budget the answer is the mean risk")
    largest = check_cost("max_multiplier", max_multiplier, remedy="it is where the search ends")

    def mean_conjugate(multiplier: float) -> float:
        found = check_fraction("conjugates", conjugates(multiplier), remedy="they are means of gains")
        if found.ndim != 1 or found.size == 0:
            raise ValueError(f"conjugates must have shape (num_clients,), got {found.shape}; give one per client")
        return float(found.mean())

    def bound(log_multiplier: float) -> float:
        multiplier = float(np.exp(log_multiplier))
        return multiplier * budget + mean_conjugate(multiplier)

    found = scipy.optimize.minimize_scalar(
        bound, bounds=(-20.0, np.log(largest)), method="bounded", options={"xatol": 1e-10}
    )
    return min(float(found.fun), mean_conjugate(0.0))


class Bisection(NamedTuple):
    """What the bisection found: about the clients that answered, no certificate yet."""

    bracket: Bracket  # the worst mean of the answered curves lies inside
    num_rounds: int
    num_answers: int  # over all clients and rounds


def bisection(
    ask: Ask,
    *,
    num_clients: int,
    cost_budget: float,
    tolerance: float = 1e-3,
    known: list[KnownPoints] | None = None,
    on_round: Callable[[Bracket], None] | None = None,
) -> Bisection:
    """Worst mean of a network by bisection on its value, asking other radii of every client in every round.

    A value v is feasible if some radii with mean at most the budget give a mean risk of at least v. Known points of the
    clients' curves decide that for every v outside a bracket (their chords say yes below it, the extended chords no
    above it); while the bracket is wide, the clients whose curve is open where the adversary would spend are asked
    there.

    `cost_budget` is the network's mean budget, in units of the transport cost, > 0; `tolerance` the width of the
    bracket at which the search stops, as it does after 200 rounds. New points are added to those `known` of every
    client before, so that a search at another budget starts from them; `on_round` is told the bracket.

    A client that gives no answer, or one that no concave curve through its others allows, becomes silent and is not
    asked again: the bracket stays valid, with what is known of that client, but may stay wider than the tolerance.
    Source: [RE] Algorithm 1. The paper argues by quasi-concavity of a sum of monotone functions, which is false; it is
    the concavity of each Q_k that makes the question convex.
    """
    budget = check_cost("cost_budget", cost_budget, remedy="without a budget the answer is the mean risk")
    check_cost("tolerance", tolerance, remedy="it is the width of the bracket at which to stop")
    points = [KnownPoints() for _ in range(num_clients)] if known is None else known
    if len(points) != num_clients:
        raise ValueError(f"known must hold the points of every client, got {len(points)} for {num_clients} clients")
    num_rounds = num_answers = 0
    while True:
        inner, outer = [each.inner() for each in points], [each.outer() for each in points]
        lower, upper = network_curve(inner), network_curve(outer)
        bracket = Bracket(float(lower(budget)), float(upper(budget)))
        if on_round is not None and num_rounds:
            on_round(bracket)
        if bracket.upper - bracket.lower <= tolerance or num_rounds >= _MOST_ROUNDS:
            break
        unmet = [client for client, each in enumerate(points) if not each.radii and not each.is_silent]
        if unmet:
            clients, radii = np.array(unmet), np.zeros(len(unmet))
        else:
            clients, radii = _next_questions(
                points, inner, outer, price=_price(lower, budget), first_radius=budget, gap=tolerance
            )
        if not clients.size:
            break
        answers = np.asarray(ask(clients, radii), dtype=np.float64)
        if answers.shape != clients.shape:
            raise ValueError(f"ask must return one value per client, got {answers.shape} for {clients.shape}")
        for client, radius, value in zip(clients.tolist(), radii.tolist(), answers.tolist(), strict=True):
            if points[client].admits(radius, value):
                points[client].add(radius, value)
                num_answers += 1
            else:
                points[client].is_silent = True
        num_rounds += 1
    return Bisection(bracket, num_rounds, num_answers)


class KnownPoints:
    """Known points of one client's curve, sorted by radius, and whether the client has fallen silent."""

    def __init__(self) -> None:
        self.radii: list[float] = []
        self.values: list[float] = []
        self.is_silent = False

    def admits(self, radius: float, value: float) -> bool:
        """Whether a nondecreasing concave curve in [0, 1] can go through the known points and this one."""
        if not 0.0 <= value <= 1.0:  # NaN included
            return False
        if radius in self.radii:
            return abs(self.values[self.radii.index(radius)] - value) <= TOLERANCE
        place = int(np.searchsorted(self.radii, radius))
        radii = np.insert(np.array(self.radii), place, radius)
        return rounding_of_curve(radii, np.insert(np.array(self.values), place, value)) is not None

    def add(self, radius: float, value: float) -> None:
        """Add a point; a radius that is known already changes nothing."""
        if radius not in self.radii:
            place = int(np.searchsorted(self.radii, radius))
            self.radii.insert(place, radius)
            self.values.insert(place, value)

    def inner(self) -> ConcaveCurve:
        """Lower bound on the curve, 0 as long as nothing is known."""
        return self._curve(inner_curve, unknown=0.0)

    def outer(self) -> ConcaveCurve:
        """Upper bound on the curve, 1 as long as nothing is known."""
        return self._curve(outer_curve, unknown=1.0)

    def _curve(self, bound: Callable[..., ConcaveCurve], *, unknown: float) -> ConcaveCurve:
        if not self.radii:
            return ConcaveCurve(np.zeros(1), np.array([unknown]))
        points = np.array(self.radii), np.array(self.values)
        return bound(*points, rounding=rounding_of_curve(*points) or 0.0)


def _next_questions(
    points: list[KnownPoints],
    inner: list[ConcaveCurve],
    outer: list[ConcaveCurve],
    *,
    price: float,
    first_radius: float,
    gap: float,
) -> tuple[IntArray, FloatArray]:
    """The clients whose gain at this price is open by over `gap`, and the radii where it might be largest.

    The upper end of the bracket is at most price·budget + mean outer gain, the lower end is the same with inner gains
    at the price of the inner network: without an open client the bracket is narrower than `gap`.
    """
    clients, radii = [], []
    for client, (below, above) in enumerate(zip(inner, outer, strict=True)):
        gains = above.values - price * above.budgets
        best = int(np.argmax(gains))
        if points[client].is_silent or gains[best] - float(below.conjugate(price)) <= gap:
            continue
        radius = float(above.budgets[best])
        if radius == 0.0:  # the curve near 0 is open: come closer to it
            radius = 0.5 * float(below.budgets[1]) if below.budgets.size > 1 else first_radius
        clients.append(client)
        radii.append(radius)
    return np.array(clients, dtype=np.int64), np.array(radii)


def _price(curve: ConcaveCurve, budget: float) -> float:
    """Slope of a network's curve at a budget: what the adversary gains per unit."""
    place = int(np.searchsorted(curve.budgets, budget, side="right"))
    if place >= curve.budgets.size:
        return 0.0
    return float((curve.values[place] - curve.values[place - 1]) / (curve.budgets[place] - curve.budgets[place - 1]))
