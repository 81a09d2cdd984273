"""Adversarial losses -> certificates for networks within a transport budget, in one message or round by round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid

import riskband as rb
from client.budget import adversarial_request, request_of
from protocol.questions import AdversarialAnswer, AdversarialQuery
from riskband.adversaries.answers import joined_answers
from riskband.answers.adversarial import GUARANTEES
from riskband.search import Bracket
from riskband.worst_cases.network_attack import one_round
from riskband.worst_cases.wasserstein import published_budgets
from strategies.asking.failures import Failure, FailureReason
from strategies.asking.query import QueryResult, RoundOutcome
from strategies.bisection import BisectionRounds, smallest_budgets
from strategies.certifying import CertifyingStrategy, Conclusion, by_file

ONE_ROUND, BISECTION = "one-round", "bisection"
PROTOCOLS = (ONE_ROUND, BISECTION)

# Rounds after the first for which a bisection sets values of a query budget aside, if there are as many: about what it
# took in the scenarios here.
_LATER_ROUNDS = 30

# Below this, certificates are hardly worth a client's values.
MIN_RADII, MIN_MULTIPLIERS = 10, 6

# For so many budgets a bound of the mean that is made for them alone is sharper than one for every budget.
_FEW_BUDGETS = 4

# Rounding apart, an attack that raised no value by more than this has reached nothing.
_NEGLIGIBLE = 1e-9


@dataclass(frozen=True, eq=False)
class EmpiricalWorstCase:
    """The worst mean risk of the network that answered, without any step to unseen clients."""

    # Whose worst mean: that of the clients' risks ("clients"), or of what they answered instead, their "upper-bounds"
    # (a bisection sees only those), what is an upper bound in the mean over the "noise-samples" of a smoothed model, or
    # what "attacks" reached. "noise": the answers have noise, and both ends are an estimate.
    about: str
    cost_budgets: np.ndarray  # shape (num_budgets,), in units of the transport cost
    # Shape (num_budgets,), ends of the bracket at each budget.
    lower: np.ndarray
    upper: np.ndarray
    # What finding it took, over all budgets, and that of the published bound.
    num_rounds: int
    num_messages: int
    # Clients that gave no answer, or an impossible one, after the first round; what they had answered still counts.
    later_failures: tuple[Failure, ...] = ()


@dataclass(frozen=True)
class QueryBudgetUse:
    """What the clients' query budgets allowed."""

    # Asked of every client in the first message.
    num_radii: int
    num_multipliers: int
    clients_left_out: tuple[str, ...]  # not asked: what they have left is less than any useful question takes
    # Values left after the run to the client that has the fewest, of those that answered; None: no limit.
    smallest_left: int | None


@dataclass(frozen=True, eq=False, kw_only=True)
class WassersteinConclusion(Conclusion):
    """Certificates "wasserstein_mean", "wasserstein_cdf", and with a bound on the cost "wasserstein_published".

    Each has a part of delta of its own, for all budgets and thresholds that were asked at once; "wasserstein_mean" for
    every budget there is where more than a few were asked, since that is no wider then.
    """

    answers: rb.AdversarialAnswers  # the valid answers, in the order of `outcome.answers`
    # "wasserstein_mean": the largest cost budget at which the mean is certified to be at most the breakdown target.
    breakdowns: dict[str, Bracket]
    empirical: EmpiricalWorstCase  # the worst case on the clients that answered
    query_budget: QueryBudgetUse  # what was asked of the clients, and what they have left
    # Estimates under the names of the certificates, from what was reached of clients that also answered proved upper
    # bounds. Empty where there are no two sides.
    reached: dict[str, rb.Certificate] = field(default_factory=dict)


@dataclass(eq=False, kw_only=True)
class Wasserstein(CertifyingStrategy):
    """Ask every client for its adversarial loss; certify networks that transport can reach.

    The protocol "one-round" asks everything in one message, since a round is precious. "bisection" is [RE] Algorithm 1:
    after the first message, other radii for every client in every round, with a line of the bracket to `on_detail`.

    Radii and multipliers of the `query` are chosen here. With `privacy` the clients are asked for multipliers only, in
    one round, and the mean is certified, no shares of clients. The seed of its problem is the strategy's.

    Raises ValueError if an argument is unknown or out of its range.
    """

    cost_budgets: np.ndarray  # shape (num_budgets,), in units of the transport cost, >= 0, at least one > 0
    cost_thresholds: np.ndarray  # shape (num_thresholds,), risks in (0, 1] at which the share of clients is certified
    # Sizes of the grids, chosen from the budgets before anything is asked.
    num_radii: int
    num_multipliers: int
    protocol: str  # "one-round" or "bisection"
    bisection_tolerance: float  # width of the bracket at which the bisection stops, > 0
    cost_bound: float  # bound on the cost between any two clients, for the published bound; 0 leaves that out
    breakdown_target: float  # mean risk whose breakdown budget is searched, in [0, 1]

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise ValueError(f"protocol must be one of {', '.join(PROTOCOLS)}, got {self.protocol!r}")
        if self.query.privacy and (self.protocol == BISECTION or self.cost_bound > 0.0):
            raise ValueError("with privacy the protocol must be 'one-round' and cost_bound 0: values are not asked for")
        self.cost_budgets = np.asarray(self.cost_budgets, dtype=np.float64)
        self.cost_thresholds = np.asarray(self.cost_thresholds, dtype=np.float64)
        self.seed = self.query.problem.seed
        self.query = self._sized(self.query, self.num_radii, self.num_multipliers)
        super().__post_init__()

    def _sized(self, query: AdversarialQuery, num_radii: int, num_multipliers: int) -> AdversarialQuery:
        """The question with grids of these sizes; a bisection asks for the ends of the first one only."""
        grid = radii_grid(self.cost_budgets, num_radii=num_radii)
        first = (0.0,) if query.privacy else tuple(grid) if self.protocol == ONE_ROUND else (0.0, grid[-1])
        multipliers = rb.default_multipliers(self.cost_budgets, num_multipliers=num_multipliers)
        return replace(query, radii=tuple(map(float, first)), multipliers=tuple(multipliers.tolist()))

    @property
    def part(self) -> float:
        """Of delta, for each certificate on its own: mean, shares, published bound, breakdown, and what is required."""
        has_shares, has_published = not self.query.privacy, self.cost_bound > 0.0
        return self.delta / (2 + has_shares + has_published + len(self.numbers_required))

    def fit(self, budgets: Mapping[str, int | None]) -> int:
        """Ask for fewer radii and multipliers where a query budget demands it; see `QueryStrategy.fit`."""
        num_radii, num_multipliers = self.num_radii, self.num_multipliers
        earlier, left = self._earlier.first_question(), budgets.values()
        if earlier is not None:  # all answers of a run must be to one question
            num_radii, num_multipliers = max(3, len(earlier[0])), len(earlier[1])  # a bisection asks for two
        elif self.protocol == BISECTION:
            num_later = _LATER_ROUNDS * self._num_values(1, 0)
            _, num_multipliers = fitted_sizes(num_later, num_multipliers, budgets=left, num_values=self._with_later)
        else:
            num_radii, num_multipliers = fitted_sizes(
                num_radii, num_multipliers, budgets=left, num_values=self._num_values
            )
        self.query = self._sized(self.query, num_radii, num_multipliers)
        return request_of(self.query).size

    def _num_values(self, num_radii: int, num_multipliers: int) -> int:
        """What a question with so many radii and multipliers takes of a query budget."""
        return adversarial_request(self.query, num_radii=num_radii, num_multipliers=num_multipliers).size

    def _with_later(self, num_later: int, num_multipliers: int) -> int:
        """What the first question of a bisection takes, with values for later ones."""
        return self._num_values(len(self.query.radii), num_multipliers) + num_later

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *args: Any, **kwargs: Any) -> QueryResult:
        """Ask, in one round or several, and conclude; see `QueryStrategy.start`."""
        result = super().start(grid, initial_arrays, *args, **kwargs)
        if self.protocol == BISECTION and result.outcome is not None:
            result.conclusion = self._bisect(grid, initial_arrays, result.outcome)
        return result

    def conclude(self, outcome: RoundOutcome[AdversarialAnswer]) -> WassersteinConclusion | None:
        """Return the certificates that one round gives; nothing in a bisection, which `start` concludes."""
        if self.protocol == BISECTION:
            return None
        answers = usable_answers(outcome, self.query, **self.who_answered)
        empirical = self._worst_case(outcome, answers.guarantee)
        return self._concluded(outcome, answers, empirical, smallest_budgets(outcome.answers))

    def _worst_case(self, outcome: RoundOutcome[AdversarialAnswer], guarantee: str) -> EmpiricalWorstCase:
        mean_gains = np.mean([answer.conjugates for answer in outcome.answers], axis=0)
        dual = np.min(np.multiply.outer(self.cost_budgets, self.query.multipliers) + mean_gains, axis=1)
        size: dict[str, Any] = {"cost_budgets": self.cost_budgets, "num_rounds": 1, "num_messages": outcome.num_asked}
        if self.query.privacy:
            estimate = np.clip(dual, 0.0, 1.0)
            return EmpiricalWorstCase(about="noise", lower=estimate, upper=estimate, **size)
        is_smoothed = self.query.problem.smoothing is not None
        reached = [answer.values if is_smoothed else answer.values_lower for answer in outcome.answers]
        lower, _ = one_round(self.query.radii, reached)
        _, upper = one_round(self.query.radii, [answer.values for answer in outcome.answers])
        # Without a budget only free moves are left: what was answered of them is known, whatever a chord says.
        unpaid = np.mean([answer.values[0] for answer in outcome.answers])
        ends = np.where(self.cost_budgets == 0.0, unpaid, np.minimum(upper(self.cost_budgets), dual))
        about = "attacks" if guarantee == "lower" else "noise-samples" if is_smoothed else "clients"
        return EmpiricalWorstCase(about=about, lower=lower(self.cost_budgets), upper=ends, **size)

    def _bisect(self, grid: Grid, arrays: ArrayRecord, first: RoundOutcome[AdversarialAnswer]) -> WassersteinConclusion:
        rounds = BisectionRounds(self, grid, arrays, first, tolerance=self.bisection_tolerance)
        answers = usable_answers(first, self.query, **self.who_answered)
        lower, upper = rounds.worst_means(self.cost_budgets)
        worst_means = None
        if self.cost_bound > 0.0:
            widened = published_budgets(
                self.cost_budgets, num_clients=answers.num_clients, delta=self.part, cost_bound=self.cost_bound
            )
            worst_means = rounds.worst_means(widened)[1]
        empirical = EmpiricalWorstCase(
            about=self._about(answers.guarantee),
            cost_budgets=self.cost_budgets,
            lower=lower,
            upper=upper,
            num_rounds=rounds.num_rounds,
            num_messages=rounds.num_messages,
            later_failures=tuple(rounds.failures),
        )
        return self._concluded(first, answers, empirical, rounds.budgets_left, worst_means)

    def _about(self, guarantee: str) -> str:
        """Whose worst mean a bisection finds."""
        if self.query.problem.smoothing is not None:
            return "noise-samples"
        return {"exact": "clients", "upper": "upper-bounds", "lower": "attacks"}[guarantee]

    def _certificates(self, answers: rb.AdversarialAnswers) -> dict[str, rb.Certificate]:
        """What the multipliers of the first message certify, whatever the protocol."""
        local = "best" if self.protocol == ONE_ROUND else "average"  # two radii say little of the cost of a push
        settings: dict[str, Any] = {"delta": self.part, "cost_budget": self.cost_budgets, "seed": self.seed}
        is_curve = self.cost_budgets.size > _FEW_BUDGETS
        certificates = {"wasserstein_mean": rb.wasserstein_mean(answers, **settings, every_budget=is_curve)}
        if answers.noise is None:  # shares of clients need their curves
            shares = rb.wasserstein_cdf(answers, **settings, thresholds=self.cost_thresholds, local=local)
            certificates["wasserstein_cdf"] = shares
        return certificates

    def _concluded(
        self,
        outcome: RoundOutcome[AdversarialAnswer],
        answers: rb.AdversarialAnswers,
        empirical: EmpiricalWorstCase,
        budgets_left: Mapping[str, int],
        worst_means: np.ndarray | None = None,
    ) -> WassersteinConclusion:
        certificates = self._certificates(answers)
        if self.cost_bound > 0.0:
            size: dict[str, Any] = {"cost_budget": self.cost_budgets, "cost_bound": self.cost_bound}
            published = rb.wasserstein_published(answers, delta=self.part, **size, worst_means=worst_means)
            certificates["wasserstein_published"] = published
        breakdown = rb.wasserstein_breakdown(
            answers,
            delta=self.part,
            target=self.breakdown_target,
            max_cost_budget=float(self.cost_budgets.max()),
            seed=self.seed,
        )
        reached = reached_answers(outcome, self.query, **self.who_answered)
        unmoved = answers.clean
        if self.query.problem.free_distance > 0.0:  # at budget 0 they have moved already
            unmoved = self.client_risks(outcome, [a.clean_risk for a in outcome.answers], loss=self.query.loss)
        required = self.certificates_required(unmoved, self.numbers_required, delta=self.part)
        spent = [failure for failure in outcome.failures if failure.reason is FailureReason.BUDGET_SPENT]
        return WassersteinConclusion(
            outcome=outcome,
            risks=unmoved,
            certificates=certificates | by_file(required),
            required=required,
            answers=answers,
            breakdowns={"wasserstein_mean": breakdown},
            empirical=empirical,
            query_budget=QueryBudgetUse(
                num_radii=len(self.query.radii),
                num_multipliers=len(self.query.multipliers),
                clients_left_out=tuple(failure.client_id for failure in spent if failure.client_id is not None),
                smallest_left=min(budgets_left.values(), default=None),
            ),
            reached={} if reached is None else self._certificates(reached),
        )


def usable_answers(
    outcome: RoundOutcome[AdversarialAnswer], query: AdversarialQuery, **who_answered: Any
) -> rb.AdversarialAnswers:
    """Return the numbers of a round to certify from: of each client what is proved, or else what an attack reached.

    The query is what was asked; `who_answered` is missing, contamination and answered_by of
    `riskband.AdversarialAnswers`. Raises ValueError if there are fewer than two answers.
    """
    return joined_answers(
        outcome.answers,
        query.problem,
        radii=query.radii,
        multipliers=query.multipliers,
        num_missing=len(outcome.failures),
        noise=rb.AnswerNoise(query.privacy, num_values=query.num_values) if query.privacy else None,
        **who_answered,
    )


def reached_answers(
    outcome: RoundOutcome[AdversarialAnswer], query: AdversarialQuery, **who_answered: Any
) -> rb.AdversarialAnswers | None:
    """Return what was reached of clients that also proved a bound: the other side of `usable_answers`.

    None if the answers are exact, if something was proved of some clients only, or if nothing was reached: there is
    then no second side.
    """
    if not max((answer.guarantee for answer in outcome.answers), key=GUARANTEES.index).startswith("upper"):
        return None
    if all(max(answer.values_lower) <= answer.clean_risk + _NEGLIGIBLE for answer in outcome.answers):
        return None
    reached = tuple(replace(answer, guarantee="lower") for answer in outcome.answers)
    return usable_answers(replace(outcome, answers=reached), query, **who_answered)


def radii_grid(cost_budgets: Sequence[float] | np.ndarray, *, num_radii: int) -> np.ndarray:
    """Radii to ask every client, shape (num_radii,), from the budgets of interest only.

    The adversary spends unevenly: some clients get nothing, others many times the mean budget. So these are 0, and a
    geometric grid from 1/10 of the smallest positive budget to 5 times the largest. Raises ValueError if no budget is
    positive, or the grid would have fewer than 3 radii.
    """
    budgets = np.asarray(cost_budgets, dtype=np.float64)
    positive = budgets[budgets > 0.0]
    if positive.size == 0:
        raise ValueError("cost_budgets must hold at least one budget > 0; a budget of 0 means no shift")
    if num_radii < 3:
        raise ValueError(f"num_radii must be at least 3, got {num_radii}; 100 leave a gap of about 0.0005")
    return np.concatenate([[0.0], np.geomspace(positive.min() / 10.0, positive.max() * 5.0, num_radii - 1)])


def fitted_sizes(
    num_radii: int, num_multipliers: int, *, budgets: Iterable[int | None], num_values: Callable[[int, int], int]
) -> tuple[int, int]:
    """Return how many radii and multipliers fit the smallest query budget that allows a useful question.

    They are what is wanted, or less: the most that fits, both cut towards their minimum by the same share. `num_values`
    says what a question takes, the more of either, the more. A client whose budget (None: no limit) is less than a
    question of `MIN_RADII` and `MIN_MULTIPLIERS` takes is not considered: it cannot be asked.
    """
    min_radii = min(num_radii, MIN_RADII)
    min_multipliers = min(num_multipliers, MIN_MULTIPLIERS)
    least = num_values(min_radii, min_multipliers)
    smallest = min((left for left in budgets if left is not None and left >= least), default=None)
    num_more = num_radii - min_radii + num_multipliers - min_multipliers
    for more in range(num_more, 0, -1):
        more_radii = more * (num_radii - min_radii) // num_more
        sizes = min_radii + more_radii, min_multipliers + more - more_radii
        if smallest is None or num_values(*sizes) <= smallest:
            return sizes
    return min_radii, min_multipliers
