"""What the next clients measure, and what the others of a finite federation do (math §3.7, §3.8 and §3.9).

Only ranks are used: whatever a client measures, the next one is as likely to be at each place among those that answered
as at any other. So even ten clients say something of the next, where no bound on a mean or a tail says anything.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache, partial
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import bdtrc, betainc, expit, gammaln

from riskband import checks
from riskband.answers.responses import INDEPENDENT_ASKED, INDEPENDENT_CLIENTS
from riskband.answers.risks import ClientRisks, check_risks, shared_assumptions
from riskband.answers.scaled import RISK, ScaledAnswers
from riskband.bands.local_steps import OBSERVED_SIZES, assumed_of_sizes
from riskband.betting import CONSTANT_STAKES, constant_stakes_upper_mean, others_upper_mean
from riskband.certificate import Certificate, recipe
from riskband.checks import FloatArray, IntArray, check_budget, check_choice, check_count, check_flag
from riskband.functionals.quantiles import SINGLE_LOCAL
from riskband.wording import chosen_before, exactly, in_short, kth_largest
from riskband.worst_cases.divergences import FDivergence, binary_worst_case, resolve_divergence
from riskband.worst_cases.number import check_worse
from riskband.worst_cases.reweighting import ball, within
from riskband.worst_cases.scaled import SIDES, on_scale

SAME_NETWORK = "the next clients are further independent draws from the same meta-distribution of clients"
SHIFTED_NETWORK = "the next clients are independent draws from the target network, which no answer has influenced"
NEXT_FIXED = "how many clients are next, and which, did not depend on what any client measured"
AT_RANDOM = "the clients that were asked were drawn from the population at random, without replacement"

_FEWEST_FOR_BETS = 5  # next clients; the mean of fewer is nearly their largest risk, and ranks are sharper
_PART_OF_LIMITS = 0.2  # of delta, for the limits of true risks; ranks are coarse and need the rest
_NUM_HALVINGS = 20  # of the range of local levels, whose logarithm is a few units long: to five digits
_MOST_STEPS = 3 * 10**7  # of the walk through all ranks: half a second each time
_NEGLIGIBLE = 1e-40  # what is left out counts as failing
_ROUNDING = 1e-9  # of delta: chances such as 1/20 often are delta, and no processor is to decide
_LARGEST_LOGIT = 30.0  # of a share of clients: 1e-13, below which no chance matters
_NUM_POINTS, _MANY_POINTS = 2**14, 2**17  # of the integral, which is bounded from above, where a rank is looked for


def next_clients(
    risks: ClientRisks | ScaledAnswers,
    num_next: int | None = None,
    *,
    delta: float | None = None,
    rank: int | None = None,
    k: int | None = None,
    above: float | None = None,
    mean: bool = False,
    divergence: str | FDivergence | None = None,
    budget: npt.ArrayLike = 0.0,
    population: int | None = None,
    including_seen: bool = False,
    local: str = "observed",
    sides: str = "two",
) -> Certificate:
    """Upper bounds on the risks of the next clients: the largest, the second largest, ..., the smallest.

    That the fourth largest of the next 20 is at most 0.31 says that of the next 20 at most three are above 0.31. Or for
    one risk that is named beforehand, bounds on how many of them measure more.

    Parameters
    ----------
    risks : ClientRisks, ClientChanges or ClientScores
        The answers. Of changes or scores the bounds are on what the next clients would measure, from the bad end; where
        higher scores are better they are lower bounds, `lower`.
    num_next : int, optional
        How many clients are next, at least 1, fixed beforehand. Left out with a population: all others.
    delta : float, optional
        Probability that any of the bounds fails, in (0, 1). Left out with a rank, from which it follows.
    rank : int, optional
        In place of delta: the bound is the largest, second largest, ... risk among those that answered (1, 2, ...), and
        delta is the probability that the k-th largest of the next is above it. Needs `k`, or a single next client.
    k : int, optional
        Only the k-th largest of the next, which is bounded more sharply; fixed beforehand. Default: all at once.
    above : float, optional
        A risk in [0, 1), fixed beforehand: bounded is how many of the next clients measure more than it. Or a change,
        or a score: then those count that measure worse. Goes with measured
        risks, and without `rank` and `k`.
    mean : bool
        Only the mean of these clients' risks, which is bounded more sharply than with all k at once. Goes without
        `rank`, `k`, `above` and a divergence.
    divergence : str or FDivergence, optional
        A name in `DIVERGENCES`, or your own: the next clients come from a target network.
    budget : float or array_like, shape (num_budgets,)
        Size of its ball around the source network; >= 0, and 0 without a divergence. Several share delta equally, and
        hold at once.
    population : int, optional
        The clients are a finite federation of so many, of which those that answered were drawn at random.
    including_seen : bool
        With a population: whether the bounds are for all of it, and not only for the others.
    local : {"observed", "marginal"}
        Whether it is about what the next clients would measure (default), of which only ranks are used, or about their
        true risks, which needs limits of each client (a mean needs none).
    sides : {"two", "worse"}
        Whether the number of clients above a risk is bounded from both sides, with half of delta each, or from above.

    Returns
    -------
    Certificate
        A number, or a curve over `budget` and/or `k`, in that order; 1 where no answer bounds it (with `above` from 0
        to all of the clients). Of all k at once, `details["mean"]` bounds the mean of these clients' risks, too.
        Source: math §3.7, with a divergence math §3.8, with a population or of the mean math §3.9.

    Raises
    ------
    ValueError
        If an argument is out of range, or arguments contradict each other; if there are too many clients for all k at
        once; or answers with noise are to be read as measured risks.
    """
    answers, scale = risks, RISK
    if isinstance(risks, ScaledAnswers):
        if local != "observed":
            raise ValueError(f"local is for risks, got local={local!r:.80}; leave it out of changes and scores")
        scale, risks = risks.scale, risks.unit
    check_risks(risks)
    local, whole = check_choice("local", local, SINGLE_LOCAL), check_flag("including_seen", including_seen)
    is_from_both = check_choice("sides", sides, SIDES) == "two"
    if local == "observed":
        risks.require_no_noise("local='observed'", "local='marginal'")
    budgets, f = check_budget(budget), None if divergence is None else resolve_divergence(divergence)
    if f is None and np.any(budgets > 0.0):
        raise ValueError(f"a budget needs a divergence, got budget {in_short(budgets)}; say divergence='chi2'")
    num_seen = risks.num_counted
    num_asked = risks.num_clients + risks.num_missing
    num_next = _num_next(num_seen, num_next, population, num_asked=num_asked, is_shifted=f is not None)
    num_bounded = num_next + num_seen if whole else num_next
    if (whole and population is None) or (population is not None and num_seen + num_next > population):
        raise ValueError(
            f"there must be a population that has the {num_seen} clients asked and the next, {num_next}, got "
            f"{population}; say population=55 and leave num_next out"
        )
    if whole and num_bounded != population:
        raise ValueError(f"including_seen is about all {population} clients, got num_next={num_next}; leave it out")
    if above is not None:
        check_worse("above", above, scale)
        if (rank, k, local) != (None, None, "observed"):
            raise ValueError("above counts clients by what they measure; leave out rank, k and local")
    others = {"rank": rank, "k": k, "above": above, "divergence": f}
    beside = [name for name, each in others.items() if each is not None]
    if check_flag("mean", mean) and beside:
        raise ValueError(
            f"mean=True is about all of these clients as they are, got {', '.join(beside)}; leave that out"
        )
    k = 1 if k is None and num_bounded == 1 and above is None and not mean else k
    k = None if k is None else check_count("k", k, minimum=1, remedy="1 is the largest risk of the next clients")
    if k is not None and k > num_bounded:
        raise ValueError(f"k must be at most the number of clients, {num_bounded}, got {k}; 1 is the largest risk")
    arguments: dict[str, Any] = {"num_next": None if whole else num_next, "delta": delta, "rank": rank, "k": k}
    arguments |= {"above": above, "mean": mean or None, "local": local}
    arguments |= {} if is_from_both else {"sides": sides}
    arguments |= {} if f is None else {"divergence": f.name, "budget": budgets}
    arguments |= {} if population is None else {"population": population, "including_seen": whole}
    if rank is not None:
        is_alone = k is not None and budgets.size == 1 and local == "observed" and delta is None and not whole
        rank = _check_rank(rank, num_seen, is_alone=is_alone)
        of = partial(chance_above, num_seen, num_next, rank, k or 1, num_points=_MANY_POINTS)
        delta, ranks = of(f=f, size=float(budgets[0] if budgets.ndim else budgets)), np.array([[rank]])
        if not 0.0 < delta < 1.0:
            raise ValueError(f"nothing follows from rank {rank} at budget {in_short(budgets)}; take a smaller rank")
    else:
        if delta is None:
            raise ValueError("delta must be given, got none; or a rank, from which it follows")
        delta = checks.check_delta(delta)
        part = delta / budgets.size * (1.0 if mean or local == "observed" else 1.0 - _PART_OF_LIMITS)
        if above is None and not mean:
            ranks = np.array([_ranks(num_seen, num_next, part, k, f, size, whole) for size in budgets.ravel().tolist()])
    lower, axes, details, method = None, {"budget": budgets}, {}, "ranks"
    if mean:
        found, method = _upper_mean(risks, num_next, part, whole=whole, local=local)
        value = np.full(budgets.shape, found)
    elif above is not None:
        both = (answers.below.values, answers.values)
        counts = [int(np.sum(each < above if scale.is_higher_better else each > above)) for each in both]
        half = part / 2.0 if is_from_both else part
        ends = [_num_above(risks, num_next, counts, half, f, size, whole) for size in budgets.ravel().tolist()]
        lower, value = np.array(ends, dtype=np.float64).T.reshape(2, *budgets.shape)
        lower = lower if is_from_both else None
    else:
        # Of the others all limits hold at once, for their part of delta.
        values = risks.values if local == "observed" else risks.upper_limits(_PART_OF_LIMITS * delta / num_bounded)
        # The value of each rank should as many answers as may be wrong be larger; beyond the last there is only 1.
        places = np.minimum(num_seen - ranks + risks.contamination, risks.num_clients)
        bounds = np.append(np.sort(values), 1.0)[places]
        value = bounds[:, 0].reshape(budgets.shape)
        if k is None:
            value, axes["k"] = bounds.reshape(*budgets.shape, num_bounded), np.arange(1.0, num_bounded + 1.0)
            details = {"mean": bounds.mean(axis=1).reshape(budgets.shape)}
    made = Certificate(
        quantity=_quantity(
            "mean" if mean else k, above, num_next, population, whole, local, None if f is None else ball(f, budgets)
        ),
        value=value,
        lower=lower,
        axes=axes,
        details=details,
        delta=delta,
        method=method,
        assumptions=(
            *_assumed_of_those_asked(risks, population, local, needs_limits=method == "ranks"),
            *((within(f), SHIFTED_NETWORK) if f is not None else (SAME_NETWORK,) if population is None else ()),
            NEXT_FIXED,
            *chosen_before(
                number_of_next_clients=(None if num_seen + num_next == population else num_next, None),
                k=(None if num_bounded == 1 else k, None),
                risk_above_which_clients_count=(above, None),
                rank=(rank, None),
                shift_in=(None if f is None else f.title, None),
                budget=(None if f is None else in_short(budgets), None),
                local=(local, "observed"),
                population=(population, None),
                including_seen=("yes" if whole else "no", "no"),
            ),
        ),
        recipe=recipe("next_clients", {name: each for name, each in arguments.items() if each is not None}, risks),
    )
    return on_scale(made, answers) if isinstance(answers, ScaledAnswers) else made


def check_population(population: object) -> int:
    """Return the number of clients of a finite federation; raises ValueError unless it is a whole one, not 55.0."""
    remedy = "it counts all clients of the federation"
    if isinstance(population, float | np.floating):
        raise ValueError(f"population must be a whole number, got {population!r}; {remedy}")
    return check_count("population", population, minimum=1, remedy=remedy)


def _num_next(num_seen: int, num_next: int | None, population: int | None, *, num_asked: int, is_shifted: bool) -> int:
    """How many clients are next: as was said, or all others of a population."""
    if population is None:
        return check_count("num_next", num_next, minimum=1, remedy="it counts the clients that come next")
    size = check_population(population)
    if size <= num_seen:
        raise ValueError(f"population must be above the number of clients asked, {num_seen}, got {size}; count all")
    if size < num_asked:
        rule = f"population must have all {num_asked} clients asked, also those that gave no valid answer"
        raise ValueError(f"{rule}, got {size}; count all")
    if is_shifted:
        raise ValueError("a population is what it is, so it takes no divergence; leave one of the two out")
    count = size - num_seen if num_next is None else num_next
    return check_count("num_next", count, minimum=1, remedy="it counts the clients that come next")


def _check_rank(rank: int, num_seen: int, *, is_alone: bool) -> int:
    if not is_alone:
        raise ValueError(
            "a rank, from which delta follows, goes with one k, one budget and measured risks, and without delta and "
            "including_seen; leave these out, or the rank"
        )
    found = check_count("rank", rank, minimum=1, remedy="1 is the largest risk that was measured")
    if found > num_seen:
        raise ValueError(f"rank must be at most the number of clients, {num_seen}, got {found}; 1 is the largest risk")
    return found


def _upper_mean(risks: ClientRisks, num_next: int, delta: float, *, whole: bool, local: str) -> tuple[float, str]:
    """Upper limit for the mean of the next clients, or of these and those seen, and its method (math §3.9)."""
    bounded = risks.bounded(risks.values)
    values = risks.worst_completion(bounded.in_unit)
    if whole and local != "observed":  # of those seen the true risks are as unknown
        found, method = bounded.from_unit(constant_stakes_upper_mean(values, delta=delta)), CONSTANT_STAKES
    elif num_next < _FEWEST_FOR_BETS:
        found, method = float(np.mean(next_clients(risks, num_next, delta=delta, local=local).value)), "ranks"
    else:
        found = bounded.from_unit(others_upper_mean(values, num_others=num_next, delta=delta))
        method = CONSTANT_STAKES
    if whole and local == "observed":
        found = float(values.sum() + num_next * found) / (values.size + num_next)
    return min(max(found, 0.0), 1.0), method


def _assumed_of_those_asked(
    risks: ClientRisks, population: int | None, local: str, *, needs_limits: bool
) -> tuple[str, ...]:
    shared = shared_assumptions(risks, needs_binary=local != "observed" and needs_limits)
    if population is not None:
        shared = tuple(AT_RANDOM if line in (INDEPENDENT_CLIENTS, INDEPENDENT_ASKED) else line for line in shared)
    sizes = (OBSERVED_SIZES,) if local == "observed" else (assumed_of_sizes(risks),) if needs_limits else ()
    return (*shared, *sizes)


def _quantity(
    k: int | str | None,
    above: float | None,
    num_next: int,
    population: int | None,
    whole: bool,
    local: str,
    network: str | None,
) -> str:
    num_clients = population if whole and population is not None else num_next
    who = f"the next {num_clients}"
    if population is not None:
        who = f"all {population}" if whole else f"{num_next} other{'s' * (num_next > 1)} of {population}"
    if above is not None:
        where = "" if network is None else f" on {network}"
        return f"the number of clients, of {who}, that would measure a risk above {exactly(above)}{where}"
    which = k if isinstance(k, str) else "k-th largest" if k is None else kth_largest(k)
    risk = "the risk" if num_clients == 1 else f"the {which} risk"
    clients = "the next client" if who == "the next 1" else f"{who} clients"
    said = f"{risk} that {clients} would measure" if local == "observed" else f"{risk} of {clients}"
    return said if network is None else f"on {network}, {said}"


def _num_above(
    risks: ClientRisks, num_next: int, counts: list[int], part: float, f: FDivergence | None, size: float, whole: bool
) -> tuple[int, int]:
    """The least and the most that may be above a risk, if from the first to the second count of those seen are.

    Each is wrong with at most that part of delta (math §3.7). Of answers that may be wrong all are above it, and of the
    other end none.
    """
    num_seen = risks.num_counted
    high = min(counts[1] + risks.contamination + risks.num_missing_worst, num_seen)
    low = max(counts[0] - risks.contamination, 0)

    def most(num_above: int) -> int:
        if num_above == num_seen:
            return num_next
        if f is None or size == 0.0:  # those seen above it are the largest, so that one rank serves for all k
            return int(np.sum(_tails(num_seen, num_next, np.array([num_above + 1]))[0] > part * (1.0 + _ROUNDING)))
        return int(np.sum(_ranks(num_seen, num_next, part, None, f, size, False) <= num_above))

    return num_next - most(num_seen - low) + whole * low, most(high) + whole * high


@lru_cache(maxsize=256)
def _ranks(
    num_seen: int, num_next: int, delta: float, k: int | None, f: FDivergence | None, size: float, whole: bool
) -> IntArray:
    """Ranks from the largest of the answers that bound the k-th largest next risk, or each of them; 0 if none does.

    Of a whole population r - 1 of those that answered are above the r-th largest, too.
    """
    ahead = np.arange(num_seen) if whole else np.zeros(num_seen, dtype=np.int64)
    if k is None and (f is None or size == 0.0):
        most = most_above(num_seen, num_next, delta)
        num_bounded = num_next + (num_seen if whole else 0)
        return np.searchsorted(most + ahead, np.arange(num_bounded), side="right")
    # On a shifted network delta is shared by some k (triangular numbers), each with those up to the next one.
    chosen = np.array([k]) if k is not None else np.cumsum(np.arange(num_next))[: isqrt(2 * num_next) + 1] + 1
    chosen = chosen[chosen <= max(num_next, k or 1)]
    part, ranks = delta / chosen.size * (1.0 + _ROUNDING), range(1, num_seen + 1)

    def found(each: int) -> int:
        chance = partial(chance_above, num_seen, num_next, f=f, size=size)
        return bisect_right(ranks, part, key=lambda rank: chance(rank, each - int(ahead[rank - 1])))

    of_chosen = np.array([found(each) for each in chosen.tolist()])
    return of_chosen if k is not None else of_chosen[np.searchsorted(chosen, np.arange(1, num_next + 1), "right") - 1]


def chance_above(
    num_seen: int,
    num_next: int,
    rank: int,
    k: int,
    *,
    f: FDivergence | None = None,
    size: float = 0.0,
    num_points: int = _NUM_POINTS,
) -> float:
    """Return the chance that the k-th largest next value is above the one of a rank, from the largest, of those seen.

    Exact without a shift; with one, the largest there is within the budget, from above. Source: math §3.7, math §3.8.
    """
    if k < 1:
        return 1.0
    if f is None or size == 0.0:
        return float(_tails(num_seen, num_next, np.array([rank]))[0, k - 1]) if k <= num_next else 0.0
    shares, worst = _shifted(f, size, num_points)
    # The chance grows with the share of clients above: on each step it is at most that of its right end.
    masses = np.diff(betainc(rank, num_seen + 1.0 - rank, shares), prepend=0.0)
    return min(float(masses @ bdtrc(k - 1, num_next, worst)), 1.0)


@lru_cache(maxsize=8)
def _shifted(f: FDivergence, size: float, num_points: int) -> tuple[FloatArray, FloatArray]:
    """Shares of clients, dense at both ends, and what each may become within the budget."""
    shares = np.append(expit(np.linspace(-_LARGEST_LOGIT, _LARGEST_LOGIT, num_points)), 1.0)
    return shares, binary_worst_case(shares, divergence=f, budget=size)


def _tails(num_seen: int, num_next: int, ranks: IntArray) -> FloatArray:
    """Chance that more than 0, 1, ..., num_next - 1 of the next values are above those of ranks seen; shape of both."""
    log_factorial = gammaln(np.arange(num_seen + num_next + 1) + 1.0)
    above, seen = np.arange(num_next + 1), ranks[:, None]
    # Paths that reach this value after so many next ones, and go on to the end; what does not depend on them cancels.
    before = log_factorial[seen - 1 + above] - log_factorial[above]
    after = log_factorial[num_seen - seen + num_next - above] - log_factorial[num_next - above]
    paths = before + after
    chances = np.exp(paths - paths.max(axis=1, keepdims=True))
    tails = np.cumsum(chances[:, ::-1], axis=1)[:, ::-1]
    return np.asarray(tails[:, 1:] / tails[:, :1])


@lru_cache(maxsize=64)
def most_above(num_seen: int, num_next: int, delta: float) -> IntArray:
    """For each rank from the largest, how many of the next values at most are above it, all at once (math §3.7).

    Each alone fails with the same chance, the largest for which all hold with probability at least 1 - delta. Raises
    ValueError if there are too many clients to go through.
    """
    if (num_seen + num_next) * (num_next + 1) > _MOST_STEPS:
        raise ValueError(
            f"all k at once need (clients + num_next) * num_next <= {_MOST_STEPS:.0e}, got {num_seen} clients and "
            f"num_next={num_next}; ask for one k, or read a band off for so many"
        )
    tails = _tails(num_seen, num_next, np.arange(1, num_seen + 1))

    def limits(log_level: float) -> IntArray:
        return np.asarray(np.sum(tails > np.exp(log_level) * (1.0 + _ROUNDING), axis=1))

    low, high = np.log(delta / min(num_seen, num_next)), np.log(delta)  # from what the union bound gives
    for _ in range(_NUM_HALVINGS):
        middle = 0.5 * (low + high)
        is_valid = chance_of_all(limits(middle), num_next) >= 1.0 - delta * (1.0 + _ROUNDING)
        low, high = (middle, high) if is_valid else (low, middle)
    return limits(low)


def chance_of_all(most: IntArray, num_next: int) -> float:
    """Return the chance that above the r-th largest seen value are at most `most[r - 1]` next ones, for all r at once.

    All orders of both are equally likely; they are gone through from the largest value down. `most`, of shape
    (num_seen,), does not fall.
    """
    num_seen, above = most.size, np.arange(num_next + 1)
    limits = np.append(most, num_next)
    chances = np.zeros(num_next + 1)  # of each number of next values so far
    chances[0] = 1.0
    first, last = 0, 0  # what is far from where the walk is costs time and has no chance to speak of
    for step in range(num_seen + num_next):
        first = max(first + bool(chances[first] < _NEGLIGIBLE), step - num_seen)
        last = min(last + bool(chances[last] >= _NEGLIGIBLE), num_next)
        part, left = above[first:last], float(num_seen + num_next - step)
        now, seen = chances[first:last].copy(), step - part
        chances[first:last] *= (num_seen - seen) / left
        chances[first + 1 : last + 1] += now * (num_next - part) / left * (part < limits[seen])
    return float(chances[num_next])
