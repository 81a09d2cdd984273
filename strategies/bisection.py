"""[RE] Algorithm 1 over a network: round by round, other radii for every client, until the bracket is narrow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from client.budget import adversarial_request
from protocol.questions import AdversarialAnswer, AdversarialQuery
from riskband.search import Bracket
from riskband.worst_cases.network_attack import KnownPoints, bisection
from strategies.asking.failures import Failure, FailureReason
from strategies.asking.query import QueryStrategy
from strategies.asking.replies import RoundOutcome

_ROUNDING = 1e-9


class BisectionRounds:
    """Questions of one radius to those clients whose curve is open where the adversary of the network would spend.

    `first` is the outcome of the round that asked the strategy's query of every client; what it says of a client holds
    for the whole run. The strategy asks, until the bracket is as narrow as the tolerance.
    """

    def __init__(
        self,
        strategy: QueryStrategy,
        grid: Grid,
        arrays: ArrayRecord,
        first: RoundOutcome[AdversarialAnswer],
        *,
        tolerance: float,
    ) -> None:
        self._strategy, self._grid, self._arrays, self._tolerance = strategy, grid, arrays, tolerance
        self._first = first.answers
        self._known = [_known_points(strategy.query, answer) for answer in first.answers]
        # So far, with the first round. An interrupted run's messages count as this one's.
        self.num_rounds, self.num_messages = 1, first.num_asked
        # Clients that gave no answer, or an impossible one, after the first round; each is not asked again, and what it
        # had answered still counts.
        self.failures: list[Failure] = []
        self.budgets_left = smallest_budgets(first.answers)  # of each client that has a query budget

    def worst_means(self, cost_budgets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return both ends of the bracket at each cost budget >= 0; every search starts from all that is known.

        They are about the answered curves, which for a guarantee other than "exact" are bounds themselves.
        """
        brackets = [self._search(float(budget)) for budget in cost_budgets]
        return np.array([each.lower for each in brackets]), np.array([each.upper for each in brackets])

    def _search(self, cost_budget: float) -> Bracket:
        if cost_budget == 0.0:  # nothing to spend: the clean risks are known
            clean = float(np.mean([points.values[0] for points in self._known]))
            return Bracket(clean, clean)
        found = bisection(
            self._ask,
            num_clients=len(self._known),
            cost_budget=cost_budget,
            tolerance=self._tolerance,
            known=self._known,
            on_round=partial(self._show, cost_budget),
        )
        return found.bracket

    def _show(self, cost_budget: float, bracket: Bracket) -> None:
        if self._strategy.on_detail is not None:
            words = f"worst mean risk at cost {cost_budget:g}: {bracket.lower:.4f} to {bracket.upper:.4f}"
            self._strategy.on_detail(words)

    def _ask(self, clients: np.ndarray, radii: np.ndarray) -> list[float]:
        """The values at one radius per client; NaN, and a named failure, where there is none to believe."""
        self.num_rounds += 1
        radius_of = dict(zip(clients.tolist(), radii.tolist(), strict=True))
        queries = {
            self._first[client].client_id: replace(self._strategy.query, radii=(radius,), multipliers=())
            for client, radius in radius_of.items()
        }
        cost = adversarial_request(self._strategy.query, num_radii=1, num_multipliers=0).size
        affordable = {name: query for name, query in queries.items() if self.budgets_left.get(name, cost) >= cost}
        outcome = self._strategy.ask_unanswered(self._grid, affordable, self._arrays, round=self.num_rounds)
        self.num_messages += len(affordable)
        for name, left in smallest_budgets(outcome.answers).items():
            self.budgets_left[name] = min(left, self.budgets_left.get(name, left))
        answers = {answer.client_id: answer for answer in outcome.answers}
        when = f"in round {self.num_rounds}"
        failures: dict[str | None, Failure] = {
            **{name: Failure(name, FailureReason.BUDGET_SPENT, f"nothing is left to ask {when}") for name in queries},
            **{name: Failure(name, FailureReason.NODE_MISSING, f"no longer connected {when}") for name in affordable},
            **{failure.client_id: failure for failure in outcome.failures},
        }
        values = []
        for client, radius in radius_of.items():
            first, known = self._first[client], self._known[client]
            name = first.client_id
            failure = _contradiction(first, answers[name], known, radius) if name in answers else failures[name]
            self.failures += [] if failure is None else [failure]
            values.append(answers[name].values[0] if failure is None else np.nan)
        return values


def smallest_budgets(answers: Iterable[AdversarialAnswer]) -> dict[str, int]:
    """Return what is left of the query budget of each client that has one."""
    return {answer.client_id: answer.budget_left for answer in answers if answer.budget_left is not None}


def _known_points(query: AdversarialQuery, answer: AdversarialAnswer) -> KnownPoints:
    points = KnownPoints()
    for radius, value in zip(query.radii, answer.values, strict=True):
        points.add(radius, value)
    return points


def _contradiction(
    first: AdversarialAnswer, later: AdversarialAnswer, known: KnownPoints, radius: float
) -> Failure | None:
    """What a later answer cannot say of the client that gave the first one."""
    is_same = later.num_examples == first.num_examples and later.guarantee == first.guarantee
    if not is_same or abs(later.clean_risk - first.clean_risk) > _ROUNDING:
        detail = "the number of examples, the clean risk and the guarantee must be those of the first answer"
        return Failure(first.client_id, FailureReason.CHANGED_ANSWER, detail)
    if not known.admits(radius, later.values[0]):
        detail = "no nondecreasing concave curve goes through this answer and the earlier ones"
        return Failure(first.client_id, FailureReason.NOT_CONCAVE, detail)
    return None
