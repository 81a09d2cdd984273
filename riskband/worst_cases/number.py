"""What is bounded, as one value with one grammar: FUNCTIONAL[:…][@POPULATION[:…]].

    mean   quantile:0.9   cvar:0.9   share:0.3   gini   …       of unseen clients
    mean@chi2:0.1                                               of the worst network within a budget
    mean@cost:0.5                                               of clients whose examples may move at a mean cost
    share:0.3@target:chi2:0.1                                   of a target network, of which some clients answered
    count:0.3@next:20   mean@others:55   count:0.3@all:55       of clients of a finite number

What is counted or averaged is what the answers are of: a risk, a change of it between two models, a score. Of changes
"change" and "harmed:0.02" are other words for "mean" and "share:0.02".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from riskband.answers.counts import BoolArray
from riskband.answers.scaled import CHANGE, RISK, Scale, ScaledAnswers, beyond
from riskband.bands.band import subject_of
from riskband.checks import FloatArray, as_spelled, check_budget, check_count, check_number, float_of
from riskband.functionals.distributions import RiskDistribution
from riskband.functionals.functional import Functional, resolve
from riskband.search import bisect
from riskband.wording import exactly, in_full, kth_largest
from riskband.worst_cases.divergences import (
    DIVERGENCES,
    FDivergence,
    binary_worst_case,
    resolve_divergence,
    robust_mean,
    robust_tail_mean,
)

UNSEEN, SHIFTED, COST, TARGET, NEXT, OTHERS, ALL = "", "shifted", "cost", "target", "next", "others", "all"
FINITE = (NEXT, OTHERS, ALL)
"""Populations of a number of clients that is said."""

COUNT, LARGEST, DIVERGENCE = "count", "largest", "divergence"
WORDS = {"change": "mean", "harmed": "share"}
"""Other words for numbers of changes."""

ON_SCALE = ("mean", "quantile", "share")
"""Functionals that changes and scores have, too."""

_EXAMPLE = "write 'quantile:0.9', 'mean@chi2:0.1' or 'count:0.3@next:20'"


@dataclass(frozen=True)
class Number:
    """A number that answers can be asked for.

    Attributes
    ----------
    family : str
        Of a functional: "mean", "quantile", "gini"; "count", of clients that measure worse than a threshold, and
        "largest", the k-th largest risk, both of a finite population; or "divergence", of a target network.
    parameters : tuple of float
        Of the functional.
    where : str
        The population: "" (unseen clients), "shifted" (any network within a budget), "cost", "target", "next",
        "others" or "all" (of so many clients).
    num_clients : int or None
        Of a finite population: how many come next, or how many there are.
    divergence : str or None
        In which the budget is, of a shifted or a target network.
    budget : float or None
        Of the divergence or of the cost.
    is_change : bool
        Whether it was said to be of changes; it is the same number as without.

    Raises
    ------
    ValueError
        By `of`, if a text is none.
    """

    family: str
    parameters: tuple[float, ...] = ()
    where: str = UNSEEN
    num_clients: int | None = None
    divergence: str | None = None
    budget: float | None = None
    is_change: bool = field(default=False, compare=False)

    @classmethod
    def of(cls, text: object) -> Number:
        """Read a number; raises ValueError if it is none."""
        if isinstance(text, Number):
            return text
        if not isinstance(text, str):
            raise ValueError(f"a number must be text, got {text!r:.80}; {_EXAMPLE}")
        return _read(text)

    def __str__(self) -> str:
        """The number as `of` reads it."""
        functional = ":".join([self.family, *map(in_full, self.parameters)])
        return f"{functional}@{self.population}" if self.where else functional

    @property
    def population(self) -> str:
        """The population as `of` reads it; "" of unseen clients."""
        parts = [] if self.where in (UNSEEN, SHIFTED) else [self.where]
        parts += [] if self.num_clients is None else [str(self.num_clients)]
        parts += [] if self.divergence is None else [self.divergence]
        return ":".join([*parts, *([] if self.budget is None else [exactly(self.budget)])])

    @property
    def functional(self) -> Functional:
        """The functional of a distribution of risks; raises ValueError if it is none of risks."""
        return resolve(":".join([self.family, *map(in_full, self.parameters)]), called="number")

    @property
    def plain(self) -> Number | None:
        """Of a shifted network, the same number without a shift, which bounds it from below."""
        return self.unshifted if self.where == SHIFTED else None

    @property
    def unshifted(self) -> Number:
        """The same number of unseen clients."""
        return Number(self.family, self.parameters)

    @property
    def shift(self) -> tuple[FDivergence, float] | None:
        """The divergence and the budget within which the network may be, or the target is."""
        if self.divergence is None or self.budget is None:
            return None
        return resolve_divergence(self.divergence), self.budget

    @property
    def ball(self) -> dict[str, Any]:
        """The same as keyword arguments; raises ValueError if there is no budget."""
        if self.shift is None:
            raise ValueError(f"'{self}' must have a divergence and a budget, as in 'mean@chi2:0.1'")
        return dict(zip(("divergence", "budget"), self.shift, strict=True))

    @property
    def point(self) -> float:
        """Level of a quantile or tail, or threshold of a share or count; NaN if it has none."""
        return self.parameters[0] if self.parameters else math.nan

    @property
    def is_count(self) -> bool:
        """Whether it is a number of clients."""
        return self.family == COUNT

    @property
    def is_finite(self) -> bool:
        """Whether it is of a finite number of clients, of whom no band says anything."""
        return self.where in FINITE

    @property
    def has_both_ends(self) -> bool:
        """Whether it can be bounded from its good end, too: no worst case can."""
        return self.where in (UNSEEN, TARGET) or self.is_count

    @property
    def is_of_risks(self) -> bool:
        """Whether neither changes nor scores have it."""
        return self.where in (COST, TARGET) or self.family not in (*ON_SCALE, COUNT, LARGEST)

    def range(self, scale: Scale = RISK) -> tuple[float, float]:
        """Its smallest and its largest value, for numbers of clients on a scale."""
        if self.is_count:
            return 0.0, float(self.num_clients or 0)
        if self.family == DIVERGENCE:
            return 0.0, math.inf
        if self.family in ("mean", "quantile", LARGEST):
            return scale.low, scale.high
        return (0.0, 1.0) if self.family == "share" else self.functional.range

    def check(self, scale: Scale) -> None:
        """Raise ValueError if clients with such numbers have none of it, or its threshold is out of their range."""
        if self.is_change and scale is not CHANGE:
            words = " and ".join(map(repr, WORDS))
            raise ValueError(f"{words} are numbers of changes, got the {scale.noun} of clients; ask for '{self}'")
        if scale is not RISK and self.is_of_risks:
            some = ", ".join(ON_SCALE)
            raise ValueError(
                f"'{self}' is of risks; of {scale.article} {scale.noun} there are {some}, also @chi2:0.1, and count"
            )
        if self.family == COUNT:
            check_worse(f"what is counted in '{self}'", self.point, scale)
        elif self.family == "share" and not scale.low <= self.point <= scale.high:
            ends = f"[{scale.low:g}, {scale.high:g}], the range of the {scale.noun}"
            raise ValueError(f"the threshold of '{self}' must lie in {ends}; give it in the unit of the answers")

    def quantity(self, scale: Scale = RISK, *, local: str = "marginal") -> str:
        """What it is, as the subject of a sentence."""
        is_measured, at = local == "observed", exactly(self.point)
        if self.where == TARGET:
            return self._of_target(at)
        if self.is_finite:
            return self._of_finite(scale, at)
        if self.shift is not None:
            return self._of_shifted(scale, at, local)
        if scale is RISK:
            return self.functional.of(subject_of(local))
        if self.family == "share" and scale is CHANGE:
            return f"the share of unseen clients whose {'measured ' * is_measured}risk rises by more than {at}"
        if self.family == "share":
            or_worse = "less" if scale.is_higher_better else "more"
            return f"the share of unseen clients with a measured {scale.noun} of {at} or {or_worse}"
        if self.family == "quantile":
            at_client = "that an unseen client would measure" if is_measured else "at an unseen client"
            return f"the {at} quantile of the {scale.noun} {at_client}"
        return f"the mean {scale.noun} over unseen clients"

    def _of_finite(self, scale: Scale, at: str) -> str:
        who = {NEXT: "the next {}", OTHERS: "the others of {}", ALL: "all {}"}[self.where].format(self.num_clients)
        if self.is_count:
            would = f"would measure {scale.article} {scale.noun} {scale.beyond} {at}"
            return f"the number of clients, of {who}, that {would}"
        which = "mean" if self.family == "mean" else kth_largest(int(self.point))
        return f"the {which} {scale.noun} that {who} clients would measure"

    def _of_shifted(self, scale: Scale, at: str, local: str) -> str:
        f, size = self.shift or (None, 0.0)
        where = "" if f is None else f"any network within budget {exactly(size)} in {f.title}"
        if self.family == "mean":
            return f"the {scale.worst} mean {scale.noun} over the clients of {where}"
        if self.family == "share" and scale is RISK and local == "marginal":
            return f"the largest share of clients with a risk of at least {at} in {where}"
        most = "largest" if self.family == "share" else scale.worst
        return f"the {most} value of {self.unshifted.quantity(scale, local=local)} in {where}"

    def _of_target(self, at: str) -> str:
        f = resolve_divergence(self.divergence or "")
        if self.family == DIVERGENCE:
            return f"the {f.title} of the target network from the source network"
        what = {
            "mean": "the mean risk",
            "share": f"the share of clients with a risk of at least {at}",
            "quantile": f"the {at} quantile of the risk",
        }.get(self.family, str(self))
        where = f"within {exactly(self.budget or 0.0)} of the source network in {f.title}"
        return f"{what} of the target network ({where})"

    def value(self, distribution: RiskDistribution) -> float:
        """Its value for a network whose risks are known; of next clients, what is expected.

        Raises ValueError if one distribution does not say it.
        """
        if self.where in (TARGET, COST):
            raise ValueError(f"'{self}' needs more than the risks of one network; one distribution does not say it")
        if self.is_finite:
            return self._expected(distribution)
        if self.shift is None or self.budget == 0.0:
            return self.functional.value(distribution)
        # Clients that the network does not have may have any risk, up to 1.
        risks, weights = np.append(distribution.risks, 1.0), np.append(distribution.weights, 0.0)
        if self.family == "mean":
            return min(robust_mean(risks, weights, **self.ball)[0], 1.0)
        if self.family == "cvar":
            return robust_tail_mean(risks, weights, level=self.point, **self.ball)
        if self.family == "share":
            return float(binary_worst_case(min(self.functional.value(distribution), 1.0), **self.ball))
        if self.family != "quantile":
            raise ValueError(
                f"nothing says '{self}' of a network; ask for mean, cvar, share or quantile within a budget"
            )
        level = 1.0 - float(least_share(1.0 - self.point, **self.ball))
        return float(distribution.quantile(level)) if level < 1.0 else 1.0

    def _expected(self, distribution: RiskDistribution) -> float:
        if self.family != COUNT or self.num_clients is None:
            raise ValueError(f"'{self}' is not settled by the network; ask for 'count:0.3@next:20'")
        self.check(RISK)
        share = float(np.sum(distribution.weights[distribution.risks > self.point]))
        if self.shift is not None:
            share = float(binary_worst_case(share, **self.ball))
        return self.num_clients * share

    def measured(self, answers: ScaledAnswers) -> float:
        """Its value for the changes or scores that clients measured; raises ValueError for a worst case."""
        values = answers.values
        if self.where == UNSEEN and self.family == "mean":
            return float(np.mean(values))
        if self.where == UNSEEN and self.family == "quantile":
            levels = np.arange(1, answers.num_clients + 1) / answers.num_clients  # numpy's own get 0.28 of 25 wrong
            return float(np.sort(values)[np.searchsorted(levels, self.point)])
        if self.where == UNSEEN and self.family == "share":
            return float(np.mean(beyond(answers, values, self.point)))
        raise ValueError(f"'{self}' is a worst case, which no client measures")


def least_share(shares: npt.ArrayLike, divergence: FDivergence, budget: float) -> FloatArray:
    """Return the smallest shares of a network's clients that can be these within a budget of it, of their shape."""
    most = np.maximum(shares, 0.0)
    if budget == 0.0:
        return most

    def is_too_small(least: FloatArray) -> BoolArray:
        return np.asarray(binary_worst_case(least, divergence=divergence, budget=budget) < most)

    return bisect(is_too_small, low=np.zeros_like(most), high=most)[0]


def check_worse(name: str, threshold: object, scale: Scale) -> None:
    """Raise ValueError if no client can measure worse than this number, which is called `name`, or it is none."""
    found = check_number(name, threshold, remedy=f"it is {scale.article} {scale.noun}")
    low, high = scale.low, scale.high
    ends, worst = (f"({low:g}, {high:g}]", low) if scale.is_higher_better else (f"[{low:g}, {high:g})", high)
    if not low <= found <= high or found == worst:
        raise ValueError(f"{name} must be in {ends}, got {threshold}; no client measures worse than {worst:g}")


@lru_cache(maxsize=4096)
def _read(text: str) -> Number:
    try:
        return _parsed(text)
    except ValueError as error:
        said = str(error)  # of a functional it is said already
        raise ValueError(
            said if "cannot be read" in said else f"the number {text!r:.80} cannot be read: {said}"
        ) from error


def _parsed(text: str) -> Number:
    before = _as_now(text)
    if before is not None:
        raise ValueError(f"it is written '{before}' now")
    functional, is_of_some, population = text.strip().partition("@")
    where = _population(population) if is_of_some else {}
    head, *points = functional.split(":")
    family = as_spelled(head, (COUNT, LARGEST, DIVERGENCE, *WORDS))
    if where.get("where") in FINITE or family in (COUNT, LARGEST):
        return _of_finite(family or head, points, where)
    if family == DIVERGENCE or (where.get("where") == TARGET and "budget" not in where):
        if (family, points, where.get("where")) != (DIVERGENCE, [], TARGET) or "budget" in where:
            raise ValueError(
                "a divergence is of a target network, 'divergence@target:chi2', whose numbers have a budget"
            )
        return Number(DIVERGENCE, **where)
    if family in WORDS:
        head, where = WORDS[family], {**where, "is_change": True}
    if as_spelled(head, ("share",)):  # its threshold is on the scale of the answers, and the one that is said in words
        return Number("share", (float(exactly(_one_of(points, "share:0.3"))),), **where)
    family, *found = resolve(":".join([head, *points]), called="number").name.split(":")
    return Number(family, tuple(map(float, found)), **where)


def _population(text: str) -> dict[str, Any]:
    head, *rest = text.split(":")
    where = as_spelled(head, (COST, TARGET, NEXT, OTHERS, ALL))
    if where is None:
        if as_spelled(head, DIVERGENCES) is None or len(rest) != 1:
            names = ", ".join(DIVERGENCES)
            raise ValueError(
                f"the population {text!r:.80} must be one of {names} with a budget, cost:BUDGET, "
                f"target:DIVERGENCE:BUDGET, next:CLIENTS, others:CLIENTS or all:CLIENTS; {_EXAMPLE}"
            )
        return {"where": SHIFTED, **_ball(head, *rest)}
    if where == COST:
        return {"where": where, "budget": float(check_budget(_one_of(rest, "mean@cost:0.5")))}
    if where == TARGET:
        if not 1 <= len(rest) <= 2:
            raise ValueError("a target network is said by 'target:chi2:0.1', with a divergence and a budget")
        return {"where": where, **_ball(*rest)}
    if not rest or len(rest) not in ((1, 3) if where == NEXT else (1,)):
        raise ValueError(f"'{where}' is followed by a number of clients, as in 'count:0.3@{where}:20'")
    remedy = f"write 'count:0.3@{where}:20'"
    try:
        number = int(rest[0])
    except ValueError as error:
        raise ValueError(f"the number of clients must be a whole one, got {rest[0]!r:.40}; {remedy}") from error
    least = 1 if where == NEXT else 3
    size = check_count(f"the number of clients of '{where}'", number, minimum=least, remedy=remedy)
    return {"where": where, "num_clients": size, **(_ball(*rest[1:]) if rest[1:] else {})}


def _ball(divergence: str, *budget: str) -> dict[str, Any]:
    found: dict[str, Any] = {"divergence": resolve_divergence(divergence).name}
    return found | ({"budget": float(check_budget(float_of(budget[0])))} if budget else {})


def _of_finite(family: str, points: list[str], where: dict[str, Any]) -> Number:
    kind, which = as_spelled(family, (COUNT, LARGEST, "mean")), where.get("where", UNSEEN)
    if kind is None or which not in FINITE:
        raise ValueError(
            f"of so many clients there are count, largest and mean, as in 'count:0.3@next:20', got {family!r}"
        )
    if kind == "mean":
        if points or "divergence" in where:
            raise ValueError(
                "a mean of so many clients has no parameter and no shift: 'mean@others:55', 'mean@next:20'"
            )
        return Number(kind, **where)
    point = _one_of(points, f"{kind}:{'0.3' if kind == COUNT else '1'}@next:20")
    if kind == LARGEST and point not in range(1, where["num_clients"] + 1):
        raise ValueError(f"largest:1 is the largest of {where['num_clients']} risks, got {points[0]!r:.40}")
    return Number(kind, (point,), **where)


def _one_of(parameters: list[str], example: str) -> float:
    try:
        (number,) = map(float_of, parameters)
    except ValueError as error:
        raise ValueError(f"it needs one number after the colon, as in '{example}'") from error
    if not math.isfinite(number):
        raise ValueError(f"its parameter must be finite, as in '{example}'")
    return number


def _as_now(text: str) -> str | None:
    """How a number is written whose name comes from before 0.1.0; None for any other text."""
    head, *rest = text.split(":")
    old = as_spelled(head, ("worst_mean", "worst_change", "worst_score", "worst_share", "next", "score", DIVERGENCE))
    shifted = ":".join(rest)
    if old == NEXT and rest:
        which, *rest = rest if rest[0] == ALL else [NEXT, *rest]
        return f"count:{rest[1]}@{':'.join([which, rest[0], *rest[2:]])}" if len(rest) > 1 else "count:0.3@next:20"
    if old == "worst_share":
        return f"share:{rest[0]}@{':'.join(rest[1:])}" if len(rest) > 2 else "share:0.3@chi2:0.1"
    if old == DIVERGENCE and rest:
        return f"divergence@target:{shifted}"
    if old in ("worst_mean", "worst_change", "worst_score"):
        return f"mean@{shifted}"
    if old == "score":
        return "mean"
    kind, _, functional = head.lower().replace("-", "_").partition("_")
    if kind in ("change", "score") and functional in ("quantile", "share"):
        return ":".join([functional, *rest])
    if kind == TARGET and functional in ON_SCALE and len(rest) > 1:
        return f"{':'.join([functional, *rest[:-2]])}@target:{':'.join(rest[-2:])}"
    return None
