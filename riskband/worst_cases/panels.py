"""Whether the same clients have become worse, from their answers at one time and at later ones (math §17.5).

A panel is fixed: it stands for itself, and for no other clients. What is random is which examples they measured, new
ones each time. So a client is bet on by its examples, against what the panel had before: for every value v of the mean
risk at the beginning, one bet that it was below v and one that it is above v since have a product of mean at most 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import gammaln, xlog1py, xlogy

from riskband.answers.responses import TRUE_ANSWERS
from riskband.answers.risks import BOUNDED_LOSS, ClientRisks
from riskband.certificate import Certificate, recipe
from riskband.checks import FloatArray, check_delta, check_kind
from riskband.search import bisect_number
from riskband.worst_cases.always_valid import kept_capital

PANEL_ASSUMPTIONS = (
    "the panel and its beginning were settled before any answer; nothing is said of other clients",
    "whatever the clients' risks were at each evaluation, the examples of each client were independent draws then, "
    "unseen in training and new each time: none of them was measured at another evaluation",
    "how many examples were measured did not depend on any answer",
    TRUE_ANSWERS,
    BOUNDED_LOSS,
)
# Stakes in log-odds, which share the capital: from those of millions of examples to those of a few.
_STAKES = np.geomspace(0.003, 3.0, 14)
_NO_COINCIDENCE = np.log(1e-6)
_ROUNDING = 1e-6  # of logarithms of capital: a minimum is not found more exactly


class Evaluations(NamedTuple):
    """A panel's mean losses, and how many examples of each client are behind them, each of shape (num_evaluations,)."""

    low: FloatArray  # where a client that gave no answer counts as 0
    high: FloatArray  # where it counts as 1
    weights: FloatArray  # clients · the fewest examples of any

    @property
    def mirrored(self) -> Evaluations:
        """Of one minus the loss."""
        return Evaluations(1.0 - self.high, 1.0 - self.low, self.weights)


def panel_of(baseline: ClientRisks, later: Sequence[ClientRisks]) -> tuple[Evaluations, list[str]]:
    """Return the evaluations of the clients of the first one, and the names of the others, which are left out.

    Raises ValueError if answers have no names, or a client is there twice in one, noise, a design or wrong answers, or
    an evaluation has nobody of the panel or the same answers as another, or there is no later one.
    """
    if not isinstance(later, Sequence) or not later:
        got = "its beginning alone" if isinstance(later, Sequence) else f"{later!r:.80} as the later answers"
        raise ValueError(f"a panel must be evaluated at least twice, got {got}; give a list of ClientRisks")
    for answers in (baseline, *later):
        check_kind("answers of a panel", answers, ClientRisks, remedy="a score has no bound for a client")
        answers.require_certain_answers("what is said of a panel", "answers that are right, and missing='ignore'")
        if answers.names is None or len(set(answers.names)) < len(answers):
            raise ValueError(f"a panel must have a name for each client, once, got {answers!r}; name them: client=")
    members = set(baseline.names or ())
    _check_new(baseline, *later)
    found = [_evaluation(answers, members) for answers in (baseline, *later)]
    others = {name for answers in later for name in answers.names or ()} - members
    return Evaluations(*np.array(found).T), sorted(others)


def _check_new(*evaluations: ClientRisks) -> None:
    """Raise ValueError if two have the same answers of all clients, as of the same examples, and hardly by chance."""
    first = dict[object, int]()
    for place, answers in enumerate(evaluations):
        known = frozenset(zip(answers.names or (), answers.values.tolist(), answers.num_examples.tolist(), strict=True))
        if first.setdefault(known, place) != place and _log_chance(answers) < _NO_COINCIDENCE:
            raise ValueError(
                "every evaluation of a panel must be of new examples, got the same answers of all clients in number "
                f"{first[known] + 1} and in number {place + 1}; measure on new ones, or compare two models on the same "
                "ones: riskband compare"
            )


def _log_chance(answers: ClientRisks) -> float:
    """Logarithm of the probability that clients with these risks measure them once more, about."""
    p, n = answers.values, answers.num_examples
    arrangements = gammaln(n + 1.0) - gammaln(n * p + 1.0) - gammaln(n * (1.0 - p) + 1.0)
    return float(np.sum(arrangements + n * (xlogy(p, p) + xlog1py(1.0 - p, -p))))


def _evaluation(answers: ClientRisks, members: set[str]) -> tuple[float, float, float]:
    is_member = np.array([name in members for name in answers.names or ()])
    values, sizes = answers.values[is_member], answers.num_examples[is_member]
    if not values.size:
        raise ValueError(f"every evaluation must have clients of the panel, got {', '.join(answers.names or ())}")
    low = float(np.sum(values)) / len(members)
    return low, low + 1.0 - values.size / len(members), float(len(members) * sizes.min())


def panel_change(baseline: ClientRisks, later: Sequence[ClientRisks], *, delta: float) -> Certificate:
    """By how much the mean risk of these very clients has changed since, at all times at once.

    Parameters
    ----------
    baseline : ClientRisks
        Of the panel at the beginning, with names: its clients.
    later : sequence of ClientRisks
        Of the same clients at later times, all so far, each measured on new examples. Others are left out; who did not
        answer counts as the best, and for the other end as the worst.
    delta : float
        Probability that the interval fails after any of the evaluations, in (0, 1).

    Returns
    -------
    Certificate
        Both ends of the mean risk over the clients, averaged over the later evaluations (with the weight of their
        smallest number of examples), minus that at the beginning. Source: math §17.5.

    Raises
    ------
    ValueError
        If answers have no names, noise, a design, or may be wrong; an evaluation has nobody of the panel, or the same
        answers as another; there is no later one; or delta is out of range.
    """
    seen, _ = panel_of(baseline, later)
    part = check_delta(delta) / 2.0
    lower, upper = _least_change(seen, part), -_least_change(seen.mirrored, part)
    size, times = len(baseline), len(later)
    return Certificate(
        quantity=(
            f"the mean risk of the {size} clients of this panel, averaged over its {times} later evaluations, minus "
            "that at its beginning"
        ),
        value=upper,
        lower=lower,
        delta=delta,
        method="betting on examples, always valid",
        assumptions=PANEL_ASSUMPTIONS,
        recipe=recipe("panel_change", {"later": [each.provenance() for each in later], "delta": delta}, baseline),
    )


def panel_evidence(seen: Evaluations) -> FloatArray:
    """Return e-values, after each later evaluation, against that the panel's mean risk was never above its first one.

    Bets begin anew at each, as in math §17.4, so that a panel may be well for long. Shape (num_evaluations - 1,).
    """
    ends = np.arange(1, seen.low.size)
    return np.exp([_smallest(seen, late_capital(seen, end)) for end in ends.tolist()])


def late_capital(seen: Evaluations, end: int) -> Callable[[float], float]:
    """Logarithm of what late bets that the mean risk is above a value have made by an evaluation."""
    kept, values, weights = kept_capital(end), seen.low[1 : end + 1], seen.weights[1 : end + 1]

    def log_capital(value: float) -> float:
        grown = np.cumsum(_growth(values, weights, value)[:, ::-1], axis=1)[:, ::-1]  # of bets that begin at each
        started = np.logaddexp.reduce(_shared(grown) + np.log(kept[:-1] - kept[1:]))
        return float(np.logaddexp(started, np.log(kept[-1])))

    return log_capital


def _growth(values: FloatArray, weights: FloatArray, value: float) -> FloatArray:
    """Logarithms of factors of bets that a mean of [0, 1] is above a value, shape (num_stakes, num_evaluations)."""
    stakes = _STAKES[:, None]
    return np.asarray(weights * (stakes * values - np.log1p(value * np.expm1(stakes))))


def _shared(grown: FloatArray) -> FloatArray:
    """Logarithm of the capital of bets with all stakes, which share it."""
    return np.asarray(np.logaddexp.reduce(grown, axis=0) - np.log(_STAKES.size))


def _smallest(seen: Evaluations, log_capital: Callable[[float], float], change: float = 0.0) -> float:
    """Smallest logarithm, over all mean risks at the beginning, of both bets together: it is convex in that risk."""
    first = np.array([1.0 - seen.high[0]]), seen.weights[:1]

    def both(value: float) -> float:
        return float(_shared(_growth(*first, 1.0 - value))[0] + log_capital(value + change))

    ends = max(0.0, -change), min(1.0, 1.0 - change)
    found = minimize_scalar(both, bounds=ends, method="bounded", options={"xatol": 1e-10})
    return min(float(found.fun), *map(both, ends)) - _ROUNDING


def _least_change(seen: Evaluations, delta: float) -> float:
    """Lower limit of the change of the mean risk, averaged over the later evaluations."""
    weights = seen.weights[1:]
    mean, total = np.array([np.average(seen.low[1:], weights=weights)]), weights.sum()

    def is_refuted(change: float) -> bool:
        def since(value: float) -> float:
            return float(_shared(_growth(mean, total, value))[0])

        return bool(_smallest(seen, since, change) >= np.log(1.0 / delta))

    if not is_refuted(-1.0):
        return -1.0
    return bisect_number(is_refuted, low=-1.0, high=1.0, num_steps=26).lower
