"""Adversarial losses -> certificates for networks within a transport budget, in one message or round by round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid

import riskband as rb
from client.budget import adversarial_request, request_of
from protocol.questions import AdversarialAnswer, AdversarialQuery
from riskband.adversaries.problem import TransportProblem
from riskband.worst_cases.network_attack import one_round
from riskband.worst_cases.wasserstein import published_budgets
from strategies.asking.failures import Failure, FailureReason
from strategies.asking.query import QueryResult, QueryStrategy, RoundOutcome
from strategies.planning import fitted_sizes, radii_grid
from strategies.rounds import BisectionRounds, curve_values, smallest_budgets
from strategies.transport_answers import conjugates, reached_answers, usable_answers

ONE_ROUND, BISECTION = "one-round", "bisection"
PROTOCOLS = (ONE_ROUND, BISECTION)

# Rounds after the first for which a bisection sets values of a query budget aside, if there are as many: about what it
# took in the scenarios here.
_LATER_ROUNDS = 30


@dataclass(frozen=True, eq=False)
class EmpiricalWorstCase:
    """The worst mean risk of the network that answered, without any step to unseen clients.

    Attributes
    ----------
    cost_budgets : ndarray, shape (num_budgets,)
        In units of the transport cost.
    about : {"clients", "upper-bounds", "attacks", "noise"}
        Whose worst mean: that of the clients' risks, or of what they answered instead, their upper bounds (a bisection
        sees only those) or what an attack reached. "noise": the answers have noise, and both ends are an estimate.
    lower, upper : ndarray, shape (num_budgets,)
        Ends of the bracket at each budget.
    num_rounds, num_messages : int
        What finding it took, over all budgets, and that of the published bound.
    later_failures : tuple of Failure
        Clients that gave no answer, or an impossible one, after the first round; what they had answered still counts.
    """

    about: str
    cost_budgets: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    num_rounds: int
    num_messages: int
    later_failures: tuple[Failure, ...] = ()


@dataclass(frozen=True)
class QueryBudgetUse:
    """What the clients' query budgets allowed.

    Attributes
    ----------
    num_radii, num_multipliers : int
        Asked of every client in the first message.
    clients_left_out : tuple of str
        Not asked: what they have left is less than any useful question takes.
    smallest_left : int or None
        Values left after the run to the client that has the fewest, of those that answered; None: no limit.
    """

    num_radii: int
    num_multipliers: int
    clients_left_out: tuple[str, ...]
    smallest_left: int | None


@dataclass(frozen=True, eq=False)
class WassersteinResult:
    """What the answers certify.

    Attributes
    ----------
    outcome : RoundOutcome
        Valid answers and failures of the first round, which asks every client.
    answers : riskband.AdversarialAnswers
        The valid answers, in the order of `outcome.answers`.
    certificates : dict of str to riskband.Certificate
        "wasserstein_mean", "wasserstein_cdf", and "wasserstein_published" where a bound on the cost was given.
    breakdowns : dict of str to riskband.Bracket
        "wasserstein_mean": the largest cost budget at which the mean is certified to be at most the breakdown target.
    empirical : EmpiricalWorstCase
        The worst case on the clients that answered.
    query_budget : QueryBudgetUse
        What was asked of the clients, and what they have left.
    reached : dict of str to riskband.Certificate
        Estimates under the names of the certificates, from what was reached of clients that also answered proved upper
        bounds. Empty where there are no two sides.
    """

    outcome: RoundOutcome[AdversarialAnswer]
    answers: rb.AdversarialAnswers
    certificates: dict[str, rb.Certificate]
    breakdowns: dict[str, rb.Bracket]
    empirical: EmpiricalWorstCase
    query_budget: QueryBudgetUse
    reached: dict[str, rb.Certificate] = field(default_factory=dict)


class Wasserstein(QueryStrategy):
    """Ask every client for its adversarial loss; certify networks that transport can reach.

    `start(grid, arrays).conclusion` is a `WassersteinResult`. The protocol "one-round" asks everything in one message,
    since a round is precious. "bisection" is [RE] Algorithm 1: after the first message, other radii for every client in
    every round, with a line of the bracket to `on_bracket`.

    Parameters
    ----------
    model, x_shape, num_classes :
        See `protocol.wire.AdversarialQuery`.
    problem : TransportProblem
        Which loss, where examples move, at what cost, and who moves them. Its seed also orders the clients for the
        bound on the mean.
    delta : float
        Probability that a certificate fails, in (0, 1): for each certificate on its own.
    cost_budgets : sequence of float
        In units of the transport cost, >= 0, at least one > 0.
    cost_thresholds : sequence of float
        Risks in (0, 1] at which the share of clients is certified.
    num_radii, num_multipliers : int
        Sizes of the grids, chosen from the budgets before anything is asked.
    protocol : {"one-round", "bisection"}
        See above.
    bisection_tolerance : float
        Width of the bracket at which the bisection stops, > 0.
    cost_bound : float
        Bound on the cost between any two clients, for the published bound; 0 leaves that out.
    breakdown_target : float
        Mean risk whose breakdown budget is searched, in [0, 1].
    on_bracket : callable, optional
        Called with (cost budget, bracket) after every round of the bisection.
    missing, contamination, answered_by :
        What is assumed of who answered; see `riskband.AdversarialAnswers`.
    privacy : str
        Noise that the clients are to add; see `protocol.questions.LossQuery`. Then they are asked for multipliers
        only, in one round, and the mean is certified, no shares of clients.
    **settings
        Of `QueryStrategy`.

    Raises
    ------
    ValueError
        If an argument is unknown or out of its range.
    """

    def __init__(
        self,
        *,
        model: str,
        x_shape: Sequence[int],
        num_classes: int,
        problem: TransportProblem,
        delta: float,
        cost_budgets: Sequence[float],
        cost_thresholds: Sequence[float],
        num_radii: int,
        num_multipliers: int,
        protocol: str,
        bisection_tolerance: float,
        cost_bound: float,
        breakdown_target: float,
        on_bracket: Callable[[float, rb.Bracket], None] | None = None,
        missing: str = "ignore",
        contamination: int = 0,
        answered_by: str = "fresh",
        privacy: str = "",
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        if protocol not in PROTOCOLS:
            raise ValueError(f"protocol must be one of {', '.join(PROTOCOLS)}, got {protocol!r}")
        if privacy and (protocol == BISECTION or cost_bound > 0.0):
            raise ValueError("with privacy the protocol must be 'one-round' and cost_bound 0: values are not asked for")
        self.delta = delta
        self.cost_budgets = np.asarray(cost_budgets, dtype=np.float64)
        self.cost_thresholds = np.asarray(cost_thresholds, dtype=np.float64)
        self.protocol = protocol
        self.bisection_tolerance = bisection_tolerance
        self.cost_bound = cost_bound
        self.breakdown_target = breakdown_target
        self.on_bracket = on_bracket
        self.seed = problem.seed
        self._who_answered: dict[str, Any] = {
            "missing": missing,
            "contamination": contamination,
            "answered_by": answered_by,
        }
        grid = radii_grid(self.cost_budgets, num_radii=num_radii)
        self._wanted = num_radii, num_multipliers
        self._query = AdversarialQuery(
            model=model,
            x_shape=tuple(x_shape),
            num_classes=num_classes,
            problem=problem,
            privacy=privacy,
            radii=(0.0,) if privacy else tuple(grid.tolist()) if protocol == ONE_ROUND else (0.0, float(grid[-1])),
            multipliers=tuple(rb.default_multipliers(self.cost_budgets, num_multipliers=num_multipliers).tolist()),
        )

    def query(self) -> AdversarialQuery:
        """Return the question of the first round."""
        return self._query

    def fit(self, budgets: Mapping[str, int | None]) -> int:
        """Ask for fewer radii and multipliers where a query budget demands it; see `QueryStrategy.fit`."""
        num_radii, num_multipliers = self._wanted
        earlier, left = self.earlier.first_question(), budgets.values()
        if earlier is not None:  # all answers of a run must be to one question
            num_radii, num_multipliers = len(earlier[0]), len(earlier[1])
        elif self.protocol == BISECTION:
            num_later = _LATER_ROUNDS * self._num_values(1, 0)
            _, num_multipliers = fitted_sizes(num_later, num_multipliers, budgets=left, num_values=self._with_later)
        else:
            sizes = fitted_sizes(num_radii, num_multipliers, budgets=left, num_values=self._num_values)
            num_radii, num_multipliers = sizes
        if self.protocol == ONE_ROUND and not self._query.privacy:
            grid = radii_grid(self.cost_budgets, num_radii=num_radii)
            self._query = replace(self._query, radii=tuple(grid.tolist()))
        multipliers = rb.default_multipliers(self.cost_budgets, num_multipliers=num_multipliers)
        self._query = replace(self._query, multipliers=tuple(multipliers.tolist()))
        return request_of(self._query).size

    def _num_values(self, num_radii: int, num_multipliers: int) -> int:
        """What a question with so many radii and multipliers takes of a query budget."""
        return adversarial_request(self._query, num_radii=num_radii, num_multipliers=num_multipliers).size

    def _with_later(self, num_later: int, num_multipliers: int) -> int:
        """What the first question of a bisection takes, with values for later ones."""
        return self._num_values(len(self._query.radii), num_multipliers) + num_later

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *args: Any, **kwargs: Any) -> QueryResult:
        """Ask, in one round or several, and conclude; see `QueryStrategy.start`."""
        result = super().start(grid, initial_arrays, *args, **kwargs)
        if self.protocol == BISECTION and result.outcome is not None:
            result.conclusion = self._bisect(grid, initial_arrays, result.outcome)
        return result

    def conclude(self, outcome: RoundOutcome[AdversarialAnswer]) -> WassersteinResult | None:
        """Return the certificates that one round gives; nothing in a bisection, which `start` concludes.

        Raises
        ------
        ValueError
            If there are fewer than two answers, or an argument of a certificate is out of its range.
        """
        if self.protocol == BISECTION:
            return None
        answers = self._answers(outcome)
        empirical = self._worst_case(outcome, is_attack=answers.guarantee == "lower")
        certificates = self._certificates(answers)
        if self.cost_bound > 0.0:
            certificates["wasserstein_published"] = self._published_certificate(answers)
        return self._result(outcome, answers, certificates, empirical, smallest_budgets(outcome.answers))

    def _worst_case(self, outcome: RoundOutcome[AdversarialAnswer], *, is_attack: bool) -> EmpiricalWorstCase:
        mean_gains = np.mean([conjugates(answer) for answer in outcome.answers], axis=0)
        dual = np.min(np.multiply.outer(self.cost_budgets, self._query.multipliers) + mean_gains, axis=1)
        size: dict[str, Any] = {"cost_budgets": self.cost_budgets, "num_rounds": 1, "num_messages": outcome.num_asked}
        if self._query.privacy:
            estimate = np.clip(dual, 0.0, 1.0)
            return EmpiricalWorstCase(about="noise", lower=estimate, upper=estimate, **size)
        lower, _ = one_round(self._query.radii, [answer.values_lower for answer in outcome.answers])
        _, upper = one_round(self._query.radii, [curve_values(answer) for answer in outcome.answers])
        # Without a budget nothing moves: the clean risks are known, whatever a chord says.
        ends = np.where(self.cost_budgets == 0.0, lower(0.0), np.minimum(upper(self.cost_budgets), dual))
        about = "attacks" if is_attack else "clients"
        return EmpiricalWorstCase(about=about, lower=lower(self.cost_budgets), upper=ends, **size)

    def _bisect(self, grid: Grid, arrays: ArrayRecord, first: RoundOutcome[AdversarialAnswer]) -> WassersteinResult:
        rounds = BisectionRounds(
            self,
            grid,
            arrays,
            first,
            query=self._query,
            tolerance=self.bisection_tolerance,
            on_bracket=self.on_bracket,
        )
        answers = self._answers(first)
        certificates = self._certificates(answers)
        lower, upper = rounds.worst_means(self.cost_budgets)
        if self.cost_bound > 0.0:
            widened = published_budgets(
                self.cost_budgets, num_clients=answers.num_clients, delta=self.delta, cost_bound=self.cost_bound
            )
            worst_means = rounds.worst_means(widened)[1]
            certificates["wasserstein_published"] = self._published_certificate(answers, worst_means=worst_means)
        empirical = EmpiricalWorstCase(
            about={"exact": "clients", "upper": "upper-bounds", "lower": "attacks"}[answers.guarantee],
            cost_budgets=self.cost_budgets,
            lower=lower,
            upper=upper,
            num_rounds=rounds.num_rounds,
            num_messages=rounds.num_messages,
            later_failures=tuple(rounds.failures),
        )
        return self._result(first, answers, certificates, empirical, rounds.budgets_left)

    def _certificates(self, answers: rb.AdversarialAnswers) -> dict[str, rb.Certificate]:
        """What the multipliers of the first message certify, whatever the protocol."""
        local = "best" if self.protocol == ONE_ROUND else "average"  # two radii say little of the cost of a push
        settings: dict[str, Any] = {"delta": self.delta, "cost_budget": self.cost_budgets}
        certificates = {"wasserstein_mean": rb.wasserstein_mean(answers, **settings, seed=self.seed)}
        if answers.noise is None:  # shares of clients need their curves
            shares = rb.wasserstein_cdf(answers, **settings, thresholds=self.cost_thresholds, local=local)
            certificates["wasserstein_cdf"] = shares
        return certificates

    def _published_certificate(
        self, answers: rb.AdversarialAnswers, *, worst_means: np.ndarray | None = None
    ) -> rb.Certificate:
        return rb.wasserstein_published(
            answers,
            delta=self.delta,
            cost_budget=self.cost_budgets,
            cost_bound=self.cost_bound,
            worst_means=worst_means,
        )

    def _result(
        self,
        outcome: RoundOutcome[AdversarialAnswer],
        answers: rb.AdversarialAnswers,
        certificates: dict[str, rb.Certificate],
        empirical: EmpiricalWorstCase,
        budgets_left: Mapping[str, int],
    ) -> WassersteinResult:
        reached = reached_answers(outcome, self._query, **self._who_answered)
        spent = [failure for failure in outcome.failures if failure.reason is FailureReason.BUDGET_SPENT]
        return WassersteinResult(
            outcome=outcome,
            answers=answers,
            certificates=certificates,
            breakdowns={
                "wasserstein_mean": rb.wasserstein_breakdown(
                    answers,
                    delta=self.delta,
                    target=self.breakdown_target,
                    max_cost_budget=float(self.cost_budgets.max()),
                    seed=self.seed,
                )
            },
            empirical=empirical,
            query_budget=QueryBudgetUse(
                num_radii=len(self._query.radii),
                num_multipliers=len(self._query.multipliers),
                clients_left_out=tuple(failure.client_id for failure in spent if failure.client_id is not None),
                smallest_left=min(budgets_left.values(), default=None),
            ),
            reached={} if reached is None else self._certificates(reached),
        )

    def _answers(self, outcome: RoundOutcome[AdversarialAnswer]) -> rb.AdversarialAnswers:
        return usable_answers(outcome, self._query, **self._who_answered)
