"""How many clients, with how many examples each, a requirement needs to pass: an estimate, made before asking any.

Networks are drawn from a distribution that is assumed or fitted to a pilot, or from the answers of a pilot. Each is
given to the gate that will judge the real answers, and how often it says PASS is the power.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import bdtr, betaincinv, ndtri

from riskband import checks
from riskband.answers.risks import ClientRisks
from riskband.answers.scaled import CHANGE, RISK, ClientChanges, ScaledAnswers
from riskband.checks import FloatArray, IntArray, check_count, check_delta, check_flag, check_kind, check_number
from riskband.functionals.distributions import RiskDistribution
from riskband.wording import TRAINERS_ANSWERED, exactly
from riskband.wording.shown import Drawn, to_pandas
from riskband.worst_cases.next_clients import AT_RANDOM, check_population
from riskband.worst_cases.number import ALL, NEXT, OTHERS, UNSEEN, Number
from riskband.worst_cases.requirements import FAIL, Requirement, ends_of

if TYPE_CHECKING:
    import pandas as pd

Pilot = ClientRisks | ScaledAnswers

PLAN_SCHEMA = "riskband.plan/1"
DEFAULT_POWER = 0.8
_FEWEST, _MOST = 2, 4_096  # clients that are tried
_LARGEST_SIZE = 20_000  # examples of a client
_NUM_ATOMS = 2_000  # of a Beta distribution
_DRAWS_OF_EACH = 64  # clients drawn for each of them, so that the mean change is off by 1/350 of what clients differ by
_FIRST_CERTIFIED = 40  # networks
_SURE = 3.0  # standard errors between a power and the wanted one that settle which is larger
_FIRST = 32  # clients with which a search begins
_MOST_AT_ONCE = 2_000_000  # numbers
_LEVELS = np.array([0.5, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.995])  # of what clients measure
_FINENESS = 32  # the number of clients is found to one part in so many
_DOUBT = 0.1  # of a network, that a prediction is wrong where none was seen to be
_RIDGE = 0.01  # of the regression, which has about as many averages as networks at first
_PRIOR = (
    "write prior='beta:0.12:0.07' (mean and sd), for two models 'change:MEAN:SD:DIFFER', or give a RiskDistribution"
)
_HERE = "say how many clients you can ask"
_CHANGE = "write prior='change:MEAN:SD:DIFFER' or 'change:MEAN:SD:DIFFER:OLD', as in 'change:-0.01:0.02:0.1:0.15'"


class _Effort(NamedTuple):
    """How closely a power is estimated."""

    precision: float  # standard error at which no more networks are certified
    most_certified: int
    num_drawn: int  # networks whose answers are drawn, and not certified


_ROUGH, _PRECISE = _Effort(0.012, 160, 5_000), _Effort(0.006, 600, 20_000)


class Option(NamedTuple):
    """A network to ask, and how likely it is to pass.

    Attributes
    ----------
    num_clients : int
        How many answer.
    num_examples : int or None
        Of each client; None if they answer as in a pilot.
    power : float
        Estimated probability that the gate says PASS.
    cost : float or None
        If costs were given.
    """

    num_clients: int
    num_examples: int | None
    power: float
    cost: float | None = None

    @property
    def who(self) -> str:
        """The clients in words."""
        examples = f" with {self.num_examples:,} examples each" if self.num_examples else ""
        return f"{self.num_clients:,} clients{examples}"


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Drawn):
    """How many clients a requirement needs to pass: an estimate. Made by `plan`.

    Attributes
    ----------
    requirement : Requirement
        What is to pass, with its shift.
    delta, power : float
        What the gate will be asked with, and the probability of PASS that is wanted.
    truth : float
        The number that is required, if the assumed distribution of risks is the true one; of next clients, how many
        are expected to have more than the risk.
    options : tuple of Option
        For each number of examples, in increasing order, the smallest number of clients that was found.
    too_few : tuple of int
        Numbers of examples with which no number of clients that can be tried reaches the power.
    at_hand : tuple of Option
        The power with the clients that there are, for the same numbers of examples; empty if they were not named.
    tried : tuple of Option
        All that was looked at closely.
    cost : tuple of float or None
        Of a client, and of an example.
    assumptions : tuple of str
        What must be true for the estimate.
    """

    requirement: Requirement
    delta: float
    power: float
    truth: float
    options: tuple[Option, ...]
    too_few: tuple[int, ...]
    at_hand: tuple[Option, ...]
    tried: tuple[Option, ...]
    cost: tuple[float, float] | None
    assumptions: tuple[str, ...]

    shown = ("delta",)

    def _words(self) -> str:
        return f"estimate, {self.requirement}, {self.best.who}, power={self.best.power:.2f}"

    @property
    def best(self) -> Option:
        """The cheapest option; without costs, or among equals, that of fewest clients, then of fewest examples."""
        return min(self.options, key=lambda option: (option.cost or 0.0, option.num_clients, option.num_examples or 0))

    @property
    def statement(self) -> str:
        """What is needed, and how likely that is to be enough."""
        best = self.best
        price = "" if best.cost is None else f", at a cost of {best.cost:,.15g}"
        what = f"{self.requirement} (delta = {exactly(self.delta)})"
        said = f"{best.who} pass {what} with probability about {best.power:.2f}{price}"
        here = next((each for each in self.at_hand if each.num_examples == best.num_examples), None)
        if here is not None:
            is_enough = here.power >= self.power
            you = "which is enough" if is_enough else f"you need {best.num_clients:,}"
            chance = f"{here.num_clients:,} pass with probability about {here.power:.2f}"
            said = f"You have {here.num_clients:,} clients, {you}: {said}, and {chance}"
        return f"{said}. This is an estimate: {self.assumptions[0]}."

    def __str__(self) -> str:
        return self.statement

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data for JSON."""
        return {
            "schema": PLAN_SCHEMA,
            "validity": "estimate",
            "requirement": str(self.requirement),
            "delta": self.delta,
            "power_wanted": self.power,
            "truth_assumed": self.truth,
            "cost": None if self.cost is None else {"per_client": self.cost[0], "per_example": self.cost[1]},
            "best": self.best._asdict(),
            "options": [option._asdict() for option in self.options],
            "too_few_examples": list(self.too_few),
            "at_hand": [option._asdict() for option in self.at_hand],
            "statement": self.statement,
            "assumptions": list(self.assumptions),
        }

    def to_frame(self) -> pd.DataFrame:
        """Return the options as a data frame of pandas, a row for each number of examples."""
        return to_pandas({name: [getattr(each, name) for each in self.options] for name in Option._fields})


def plan(
    target: str | Requirement,
    *,
    delta: float,
    shift: str | None = None,
    prior: str | RiskDistribution | None = None,
    pilot: Pilot | None = None,
    num_examples: int | Sequence[int] | None = None,
    num_clients: int | None = None,
    population: int | None = None,
    power: float = DEFAULT_POWER,
    cost: tuple[float, float] | None = None,
    binary: bool | None = None,
    seed: int = 0,
    say: Callable[[str], None] | None = None,
) -> Plan:
    """Estimate how many clients a requirement needs, to pass with a probability that is wanted.

    Parameters
    ----------
    target : str or Requirement
        As `require` reads it: "share:0.3<=0.1", "mean<=0.2", "mean@chi2:0.1<=0.2", "count:0.3@next:20<=3", and of
        changes and scores "change<=0.01", "harmed:0.02<=0.1", "quantile:0.1>=0.8".
    delta : float
        What `require` will be asked with, in (0, 1).
    shift : str, optional
        "chi2:0.1", a divergence and a budget: the target, a mean or a share, is for every network within it; next
        clients come from one within it.
    prior : str or RiskDistribution, optional
        How the risks of clients are distributed: "beta:MEAN:SD", or a distribution of your own. Of two models
        "change:MEAN:SD:DIFFER": mean and standard deviation of the clients' changes, and the share of examples that
        only one of the models gets wrong, which clients count; "change:MEAN:SD:DIFFER:OLD" with the old model's mean
        risk, if they give their two mean losses alone. Either this or `pilot`.
    pilot : ClientRisks, ClientChanges or ClientScores, optional
        Earlier answers; a Beta distribution is fitted to their risks. Of 0-1 losses, the noise that the examples of a
        client add to its mean loss is taken out; of others it cannot be, which makes the plan larger than it need be.
        Changes and scores are drawn again from those of the pilot.
    num_examples : int or sequence of int, optional
        Examples of each client; several make a frontier. Default: the median of the pilot. Not with a pilot of changes
        or scores, whose clients keep theirs.
    num_clients : int, optional
        How many clients there are, to be told how likely these are to be enough.
    population : int, optional
        The next clients that the target is about, and those asked before, are drawn at random from so many.
    power : float
        Probability of PASS that is wanted, in (delta, 1).
    cost : tuple of float, optional
        Of a client, and of an example of a client: K clients of n examples cost K·(first + n·second).
    binary : bool, optional
        Whether the loss will be 0-1, of risks. Default: as in the pilot; with a prior, yes.
    seed : int
        Of the networks that are drawn; the same seed gives the same plan.
    say : callable, optional
        Is told what was tried, a line at a time.

    Returns
    -------
    Plan
        An estimate, no certificate: its numbers are as good as the prior or the pilot. Source: math §16.

    Raises
    ------
    ValueError
        If an argument is out of its range, the target is not true of the assumed network, so that nothing makes it
        pass, or not even 4,096 clients, or all that can be asked, reach the power.

    Examples
    --------
    >>> import riskband as rb
    >>> rb.plan("mean<=0.2", prior="beta:0.12:0.07", num_examples=100, delta=0.05).best.num_clients < 40
    True
    """
    requirement = _with_shift(Requirement.of(target), shift)
    world = _Assumed.of(prior, pilot, binary, checks.check_seed(seed))
    sizes = _checked_sizes(num_examples, pilot)
    truth = _checked_truth(requirement, world)
    delta, power = check_delta(delta), _checked_power(power, delta)
    price, most = _checked_cost(cost, sizes), _most_clients(requirement, population)
    here = None if num_clients is None else check_count("num_clients", num_clients, minimum=_FEWEST, remedy=_HERE)
    if here is not None and here > most:
        raise ValueError(f"num_clients must be at most {most:,} for {requirement}, got {here:,}; {_HERE}")
    goal = _Goal(requirement, world, truth, delta, power, price, most, seed, say or (lambda line: None))
    searches = [_Search(goal, size) for size in sizes]
    best: dict[int, Option | None] = {}
    for search in searches:
        known = [option.num_clients for option in best.values() if option is not None]
        best[search.num_examples] = search.smallest(known[-1] if known else min(_FIRST, most))
    options = tuple(option for option in best.values() if option is not None)
    if not options:
        more = "take a pilot with more examples of each client, or " * isinstance(pilot, ClientChanges)
        more = "give each client more examples, or " if sizes[-1] else more
        raise ValueError(
            f"no plan for {requirement}: not even {Option(most, sizes[-1], power).who} pass with "
            f"probability {power:g}; the number is {truth:.4g}{' on average' * requirement.number.is_finite} if the "
            f"assumption is right: {more}ask for a limit farther from it"
        )
    at_hand = () if here is None else tuple(search.look(here, _PRECISE).option for search in searches)
    tried = tuple(search.found[size].option for search in searches for size in sorted(search.found))
    too_few = tuple(size for size, option in best.items() if option is None)
    is_finite = population is not None or requirement.number.where in (ALL, OTHERS)
    assumed = (*world.assumptions, AT_RANDOM) if is_finite else world.assumptions
    return Plan(requirement, delta, power, truth, options, too_few, at_hand, tried, price, assumed)


def _check_target(target: str, prior: str | RiskDistribution | None) -> None:
    if prior is not None:
        Requirement.of(target).check(CHANGE if _is_of_changes(prior) else RISK)


def checks_of(target: str, asked: Mapping[str, Any]) -> list[Callable[[], object]]:
    """Return a check of each argument of `plan` that needs no pilot, so that all that is wrong is said at once."""
    prior, sizes, delta, here = (asked[name] for name in ("prior", "num_examples", "delta", "num_clients"))
    return [
        partial(check_delta, delta),
        lambda: _most_clients(_with_shift(Requirement.of(target), asked["shift"]), asked["population"]),
        lambda: prior is None or _Assumed.of(prior, None, asked["binary"], 0),
        partial(_check_target, target, prior),
        lambda: (prior is None and sizes is None) or _checked_sizes(sizes, None),
        lambda: here is None or check_count("num_clients", here, minimum=_FEWEST, remedy=_HERE),
        partial(_checked_power, asked["power"], delta if 0.0 < delta < 1.0 else 0.0),
        partial(_checked_cost, asked["cost"], ()),
        partial(checks.check_seed, asked["seed"]),
    ]


def _with_shift(requirement: Requirement, shift: str | None) -> Requirement:
    if shift is None:
        return requirement
    number = requirement.number
    if requirement.relation != "<=" or number.where not in (UNSEEN, NEXT) or number.divergence is not None:
        raise ValueError(
            f"with a shift the target must be an upper limit of unseen or next clients, got '{requirement}'; write "
            f"'mean@{shift}<=0.2'"
        )
    where = f"{number}:{shift}" if number.where == NEXT else f"{number}@{shift}"
    return Requirement(replace(Number.of(where), is_change=number.is_change), "<=", requirement.limit)


def _most_clients(requirement: Requirement, population: int | None) -> int:
    """How many are tried at most; of a federation, all but those who come next."""
    number = requirement.number
    if number.where in (ALL, OTHERS):
        return min(_MOST, (number.num_clients or 0) - 1)
    if population is None:
        return _MOST
    size = check_population(population)
    remedy = f"for a verdict on all of them write 'count:0.3@all:{size}<=5', without the population"
    if number.where != NEXT or number.divergence is not None:
        rule = "population goes with next clients of the network itself, 'count:0.3@next:20<=3'"
        raise ValueError(f"{rule}, got '{requirement}'; {remedy}")
    left = size - (number.num_clients or 0)
    if left < _FEWEST:
        raise ValueError(
            f"population must leave {_FEWEST} clients to ask beside the next {number.num_clients}, got {size} for "
            f"'{requirement}'; {remedy}"
        )
    return min(_MOST, left)


def _checked_sizes(num_examples: int | Sequence[int] | None, pilot: Pilot | None) -> list[int]:
    """Numbers of examples, in increasing order; a single 0 if clients keep those of a pilot."""
    if isinstance(pilot, ScaledAnswers):
        if num_examples is not None:
            raise ValueError("clients of a pilot of changes or scores keep their examples; leave num_examples out")
        return [0]
    if num_examples is None:
        if pilot is None:
            raise ValueError("num_examples must be given with a prior; it is how many examples each client will have")
        return [min(int(np.median(pilot.num_examples)), _LARGEST_SIZE)]
    given, remedy = np.atleast_1d(num_examples).tolist(), "it is how many examples each client will have"
    sizes = np.unique([check_count("num_examples", size, minimum=1, remedy=remedy) for size in given])
    if not sizes.size or sizes[-1] > _LARGEST_SIZE:
        raise ValueError(
            f"num_examples must be from 1 to {_LARGEST_SIZE:,}, got {num_examples!r:.80}; more make hardly a difference"
        )
    return [int(size) for size in sizes]


def _checked_truth(requirement: Requirement, world: _Assumed) -> float:
    truth = world.truth(requirement)
    # What next clients will measure is not settled by the network.
    if not requirement.number.is_finite and requirement.verdict(truth, truth) == FAIL:
        raise ValueError(
            f"no plan for {requirement}: it is not true of the assumed network, where the number is {truth:.4g}, so no "
            "number of clients makes it pass; ask for another limit, or improve the model"
        )
    return truth


def _checked_power(power: float, delta: float) -> float:
    number = check_number("power", power, remedy="0.8 is usual")
    if not delta < number < 1.0:
        raise ValueError(
            f"power must lie between delta = {delta:g} and 1, got {number:g}; it is the probability of PASS, often 0.8"
        )
    return number


def _checked_cost(cost: object, sizes: Sequence[int]) -> tuple[float, float] | None:
    if cost is None:
        return None
    try:
        prices = np.asarray(cost if isinstance(cost, (tuple, list, np.ndarray)) else (), dtype=np.float64)
    except (TypeError, ValueError):  # of texts, or of lists of several lengths
        prices = np.empty(0)
    is_wrong = prices.shape != (2,) or not np.all(np.isfinite(prices)) or prices.min() < 0.0 or prices.max() == 0.0
    if is_wrong or (prices[1] and 0 in sizes):
        fixed = ", which is 0 where clients keep those of a pilot" * (0 in sizes)
        raise ValueError(
            f"cost must be two numbers >= 0, of a client and of an example{fixed}, not both 0, got {cost!r:.80}"
        )
    return float(prices[0]), float(prices[1])


class _Assumed(NamedTuple):
    """What is assumed of clients."""

    truth: Callable[[Requirement], float]
    answers: Callable[[int], _Answers]  # of clients with so many examples
    assumptions: tuple[str, ...]

    @classmethod
    def of(cls, prior: str | RiskDistribution | None, pilot: Pilot | None, binary: bool | None, seed: int) -> _Assumed:
        if (prior is None) == (pilot is None):
            raise ValueError(
                f"a plan needs either a prior or a pilot, got {'none' if prior is None else 'both'}; {_PRIOR}"
            )
        fresh = "the clients that will answer are fresh, drawn like these, and those of a pilot are not counted again"
        if binary is not None and (_is_of_changes(prior) or isinstance(pilot, ScaledAnswers)):
            raise ValueError("binary is about risks; of changes the prior or the pilot says it, so leave it out")
        if isinstance(pilot, ScaledAnswers):
            return cls(partial(truth_on_scale, pilot), lambda _: _Answers.like(pilot), (*_drawn_again(pilot), fresh))
        same = "every client has the same number of examples"
        if isinstance(prior, str) and _is_of_changes(prior):
            true, drawn, lines = _prior_of_changes(prior, seed)
            return cls(partial(truth_on_scale, true), lambda size: _Answers.like(drawn(size)), (*lines, same, fresh))
        if pilot is not None:
            remedy = "make it of the earlier answers: ClientRisks(losses, num_examples)"
            check_kind("pilot", pilot, ClientRisks, remedy=remedy)
        is_binary = (pilot is None or pilot.binary) if binary is None else check_flag("binary", binary)
        risks, lines = _prior_distribution(prior) if pilot is None else pilot_distribution(pilot)
        kind = "the loss is 0-1" if is_binary else "losses are 0 or 1, the noisiest kind, but the gate does not know it"
        answers = partial(_Answers.of_risks, risks, is_binary)
        return cls(partial(_truth_of_risks, risks), answers, (*lines, same, kind, fresh))


def _truth_of_risks(risks: RiskDistribution, requirement: Requirement) -> float:
    requirement.check(RISK)
    return requirement.number.value(risks)


def truth_on_scale(answers: ScaledAnswers, requirement: Requirement) -> float:
    """Return the number that is required if these are all the clients there are."""
    requirement.check(answers.scale)
    number = requirement.number
    if number.shift is None:
        return number.measured(answers)
    if number.family != "mean":
        raise ValueError(
            f"a plan of '{number}' needs risks; of changes and scores plan the worst mean, 'mean@chi2:0.1'"
        )
    return float(answers.scale.from_unit(np.asarray(number.value(RiskDistribution.of_values(answers.unit.values)))))


def _is_of_changes(prior: object) -> bool:
    return isinstance(prior, str) and prior.lower().startswith("change:")


def _drawn_again(pilot: ScaledAnswers) -> tuple[str, ...]:
    """What it assumes to draw clients from a pilot."""
    pilot.require_certain_answers("a plan", "a pilot without missing='worst' or contamination")
    size, of_trainers = len(pilot), (TRAINERS_ANSWERED,) if pilot.answered_by == "trainers" else ()
    line = f"clients are taken to answer as the {size} of the pilot did, each like one of these, with as many examples"
    rare = f"what fewer than one client in {size} has is not in the plan: a pilot of few makes it too hopeful"
    return line, rare, *of_trainers


def _prior_of_changes(prior: str, seed: int) -> tuple[ClientChanges, Callable[[int], ClientChanges], tuple[str, ...]]:
    """True changes that a prior stands for, clients with so many examples drawn from them, and what it assumes."""
    try:
        mean, spread, differ, *old = map(float, prior.split(":")[1:])
        only_old = (differ - mean) / 2.0  # share of examples that only the old model gets wrong
        (before,) = old or (only_old,)
    except ValueError as error:
        raise ValueError(f"prior {prior!r:.80} cannot be read; {_CHANGE}") from error
    is_within = 0.0 < differ < 1.0 and spread > 0.0 and mean**2 + spread**2 < differ**2
    if not (is_within and only_old <= before <= only_old + 1.0 - differ):
        raise ValueError(
            "changes lie within DIFFER, a share of examples in (0, 1): MEAN² + SD² must be below DIFFER², SD above 0, "
            f"and OLD from (DIFFER - MEAN)/2 to 1 - (DIFFER + MEAN)/2, got {prior!r:.80}; {_CHANGE}"
        )
    shares = _beta(0.5 + mean / differ / 2.0, spread / differ / 2.0).risks  # of these examples, that it gets worse

    def drawn(num_examples: int) -> ClientChanges:
        rng, of_each = np.random.default_rng((seed, num_examples)), np.repeat(shares, _DRAWS_OF_EACH)
        num_differ = rng.binomial(num_examples, differ, of_each.size)
        worse = rng.binomial(num_differ, of_each)
        both = rng.binomial(num_examples - num_differ, (before - only_old) / (1.0 - differ))
        first, second = ((each + both) / num_examples for each in (num_differ - worse, worse))
        return ClientChanges(first, second, num_examples, True, num_worse=None if old else worse)

    law = f"the changes of clients are taken to be Beta-distributed with mean {mean:g}, standard deviation {spread:g} "
    law += f"and ends ±{differ:g}, the share of examples of each that only one of the models gets wrong"
    known = "clients count these examples; of two mean losses alone all but a mean needs more: add OLD to the prior"
    known = f"the old model's risk is {before:g} on average, and clients give two mean losses" if old else known
    return ClientChanges(differ * (1.0 - shares), differ * shares, 1, False), drawn, (law, known, "the loss is 0-1")


def _prior_distribution(prior: str | RiskDistribution | None) -> tuple[RiskDistribution, tuple[str, ...]]:
    """Distribution of risks that a prior stands for, and what it assumes; raises ValueError if it cannot be read."""
    if isinstance(prior, RiskDistribution):
        RiskDistribution.of_values(prior.risks)
        return prior, (f"the risks of clients are taken to have the distribution given, of mean {prior.mean:.4g}",)
    name, *numbers = prior.split(":") if isinstance(prior, str) else ("",)
    try:
        mean, spread = map(float, numbers if name.lower() == "beta" else ())
    except ValueError as error:
        raise ValueError(f"prior {prior!r:.80} cannot be read; {_PRIOR}") from error
    words = (
        f"the risks of clients are taken to be Beta-distributed with mean {mean:g} and standard deviation {spread:g}"
    )
    return _beta(mean, spread), (words,)


def _beta(mean: float, spread: float) -> RiskDistribution:
    if not (0.0 < mean < 1.0 and 0.0 < spread**2 < mean * (1.0 - mean)):
        raise ValueError(
            f"a Beta distribution on [0, 1] needs a mean in (0, 1) and a standard deviation above 0 and below "
            f"sqrt(mean·(1 - mean)), got {mean:g} and {spread:g}; {_PRIOR}"
        )
    total = mean * (1.0 - mean) / spread**2 - 1.0
    levels = np.arange(1, _NUM_ATOMS + 1) / _NUM_ATOMS
    risks = betaincinv(mean * total, (1.0 - mean) * total, levels - 0.5 / _NUM_ATOMS)
    return RiskDistribution(np.asarray(risks), levels)


def pilot_distribution(pilot: ClientRisks) -> tuple[RiskDistribution, tuple[str, ...]]:
    """Beta distribution with the mean of the pilot, and the variance between its clients."""
    pilot.require_certain_answers("a plan", "a pilot without noise, missing='worst' or contamination")
    values, size = pilot.values, pilot.num_examples
    mean, variance = float(values.mean()), float(values.var(ddof=1))
    noise = 0.0
    if pilot.binary:
        if size.min() < 2:
            raise ValueError("a pilot must have at least 2 examples of each client; one says nothing of their noise")
        noise = float(np.mean(values * (1.0 - values) / (size - 1)))  # unbiased for the mean of R(1 - R)/n
    if not variance > noise:
        raise ValueError(
            f"this pilot of {pilot.num_clients} clients shows no difference between them beyond the noise of their "
            f"examples, so nothing can be planned from it; say with a prior how much clients differ: {_PRIOR}"
        )
    spread = float(np.sqrt(variance - noise))
    what = (
        f"the risks of clients are taken to be Beta-distributed with the mean of the {pilot.num_clients} clients of "
        f"the pilot, {mean:.3g}, and the standard deviation between them, {spread:.3g}"
    )
    taken = "in which the noise of their examples is left, since the loss is not 0-1: fewer clients may be enough"
    if pilot.binary:
        taken = "of which the noise of their examples is taken out"
    of_trainers = (TRAINERS_ANSWERED,) if pilot.answered_by == "trainers" else ()
    return _beta(mean, spread), (f"{what}, {taken}", *of_trainers)


class _Answers:
    """What a client answers, one of many things, with the number of each that predicts bounds."""

    def __init__(self, values: FloatArray, cdf: FloatArray, made: Callable[[IntArray], ClientRisks | ScaledAnswers]):
        v, self.of_value = np.unique(values, return_inverse=True)
        self.cdf, self.made = cdf / cdf[-1], made  # `made` gives the answers of clients, by what each answers
        self.masses = np.bincount(self.of_value, np.diff(self.cdf, prepend=0.0))
        cuts = np.unique(values[np.minimum(np.searchsorted(cdf, _LEVELS), values.size - 1)])
        terms = [v, v**2, v**3, v**4, *((v >= cut) for cut in cuts), *(np.maximum(v - cut, 0.0) for cut in cuts)]
        self.terms = np.column_stack(terms).astype(np.float64)

    @classmethod
    def of_risks(cls, risks: RiskDistribution, binary: bool, num_examples: int) -> _Answers:
        """Counts of wrong examples."""
        counts = np.arange(num_examples + 1)
        cdf = np.zeros(counts.size)
        for risk, weight in zip(risks.risks, risks.weights, strict=True):
            cdf += weight * bdtr(counts, num_examples, risk)
        values = counts / num_examples
        return cls(values, cdf, lambda drawn: ClientRisks(values[drawn], num_examples, binary))

    @classmethod
    def like(cls, pilot: ScaledAnswers) -> _Answers:
        """What any of these clients answered, all equally likely."""
        order = np.argsort(pilot.unit.values, kind="stable")
        fields = {name: getattr(pilot, name) for name in (*pilot.stored, "num_worse") if hasattr(pilot, name)}
        each = {name: value[order] for name, value in fields.items() if isinstance(value, np.ndarray)}

        def made(drawn: IntArray) -> ScaledAnswers:
            return type(pilot)(**{**fields, **{name: value[drawn] for name, value in each.items()}})

        return cls(pilot.unit.values[order], np.arange(1.0, order.size + 1.0), made)

    def draw(self, shape: tuple[int, int], *seed: int) -> IntArray:
        """What the clients of some networks answer, of that shape (num_networks, num_clients)."""
        return np.searchsorted(self.cdf, np.random.default_rng(seed).random(shape), side="right")

    def averages(self, drawn: IntArray) -> FloatArray:
        """Averages over the clients of each network, and two functions of them; shape (num_networks, num_averages)."""
        values = self.of_value[drawn]
        return _with_functions(np.stack([np.take(term, values).mean(axis=1) for term in self.terms.T], axis=1))

    def drawn_averages(self, num_networks: int, num_clients: int, *seed: int) -> FloatArray:
        """The same for networks that are drawn for them alone: by how many of their clients have each value."""
        rows = max(1, _MOST_AT_ONCE // self.masses.size)
        blocks = []
        for first in range(0, num_networks, rows):
            rng = np.random.default_rng((*seed, first))
            having = rng.multinomial(num_clients, self.masses, size=min(rows, num_networks - first))
            blocks.append(_with_functions(having @ self.terms / num_clients))
        return np.concatenate(blocks)


def _with_functions(averages: FloatArray) -> FloatArray:
    mean, square = averages[:, 0], averages[:, 1]
    return np.column_stack([averages, mean**2, np.sqrt(np.maximum(square - mean**2, 0.0))])


class _Goal(NamedTuple):
    """What is to pass, and what is known."""

    requirement: Requirement
    world: _Assumed
    truth: float
    delta: float
    power: float
    cost: tuple[float, float] | None
    most_clients: int
    seed: int
    say: Callable[[str], None]


class _Seen(NamedTuple):
    """What was found for a number of clients."""

    option: Option
    mean: float  # of the margins
    spread: float


class _Search:
    """The smallest number of clients with one number of examples, and what was tried on the way to it."""

    def __init__(self, goal: _Goal, num_examples: int) -> None:
        self.goal, self.num_examples = goal, num_examples
        self.answers = goal.world.answers(num_examples)
        self.found: dict[int, _Seen] = {}

    def smallest(self, first: int) -> Option | None:
        """Narrow the bracket of the number of clients, each time to where the last one tried says that it is."""
        most = self.goal.most_clients
        low, high, tried = _FEWEST - 1, most + 1, first
        while high - low > max(1, high // _FINENESS):
            is_enough = self.look(tried, _ROUGH).option.power >= self.goal.power
            low, high = (low, tried) if is_enough else (tried, high)
            tried = self._next(self.found[tried], low, high)
        # A rough search may have been lucky.
        while high <= most and self.look(high, _PRECISE).option.power < self.goal.power:
            high += max(1, high // _FINENESS)
        return self.found[high].option if high <= most else None

    def look(self, num_clients: int, effort: _Effort) -> _Seen:
        """Power with so many clients, and the margins that it comes from."""
        power, margins = self._power(num_clients, effort)
        cost = self.goal.cost
        price = None if cost is None else num_clients * (cost[0] + self.num_examples * cost[1])
        option = Option(num_clients, self.num_examples or None, power, price)
        self.found[num_clients] = _Seen(option, float(margins.mean()), float(margins.std()))
        self.goal.say(f"{option.who} pass with probability about {power:.2f}")
        return self.found[num_clients]

    def _next(self, seen: _Seen, low: int, high: int) -> int:
        """Number of clients for the wanted power, if what a certificate leaves falls with the root of their number."""
        tried, power = seen.option.num_clients, seen.option.power
        gap = abs(self.goal.requirement.limit - self.goal.truth)  # what a certificate may be above the truth, or below
        mean = ndtri(power) * seen.spread if 0.02 < power < 0.98 else seen.mean
        needed = gap - mean + ndtri(self.goal.power) * seen.spread
        guess = tried * (needed / gap) ** 2 if np.isfinite(needed) and gap > 0.0 else high
        least, most = max(low, tried // 4), min(high, 4 * tried)
        margin = min((most - least) / 8.0, 0.02 * guess)
        return int(np.clip(np.clip(round(guess), least + margin, most - margin), low + 1, high - 1))

    def _power(self, num_clients: int, effort: _Effort) -> tuple[float, FloatArray]:
        """Estimated probability of PASS, and margins: bounds are predicted for many networks, and made for some.

        A bound is nearly a smooth function of a few averages over the clients. What a regression on them predicts for
        many networks is corrected by its errors on those that were certified: so the estimate is right however good the
        regression is, and needs few certificates where it is good (math §16).
        """
        seed = self.goal.seed, self.num_examples, num_clients
        drawn = self.answers.drawn_averages(effort.num_drawn, num_clients, *seed, 1)
        most = effort.most_certified
        networks, size = self.answers.draw((most, num_clients), *seed, 0), _FIRST_CERTIFIED
        margins = self._margins(networks[:size])
        while True:
            power, error = _cross_fitted_power(self.answers.averages(networks[:size]), margins, drawn)
            is_far = effort is _ROUGH and abs(power - self.goal.power) > _SURE * error
            if is_far or error <= effort.precision or size >= most:
                return float(np.clip(power, 0.0, 1.0)), margins
            size = min(2 * size, most)
            margins = np.append(margins, self._margins(networks[margins.size : size]))

    def _margins(self, drawn: IntArray) -> FloatArray:
        """By how much the certified end keeps to the limit, for each network: the gate says PASS from 0 on."""
        goal = self.goal
        ends = (ends_of(self.answers.made(each), goal.requirement, delta=goal.delta) for each in drawn)
        limit, is_upper = goal.requirement.limit, goal.requirement.relation == "<="
        return np.array([limit - upper if is_upper else lower - limit for lower, upper in ends])


def _cross_fitted_power(certified: FloatArray, margins: FloatArray, drawn: FloatArray) -> tuple[float, float]:
    """Share of networks that pass, by predictions for many and certificates of some, and its standard error.

    A cross-fitted difference estimator, also known as prediction-powered inference: each half of the certified networks
    is predicted from the other.
    """
    halves = np.arange(margins.size) % 2 == 0
    shares, wrong, variance = [], [], 0.0
    for train in (halves, ~halves):
        predicted = _predictor(certified[train], margins[train])
        of_many = predicted(drawn)
        shares.append(of_many.mean())
        variance += of_many.var() / of_many.size / 2.0
        wrong.append((margins[~train] >= 0.0) - predicted(certified[~train]))
    differences = np.concatenate(wrong)
    # That none of so few differ does not show that none does: a little is added.
    squares = np.sum((differences - differences.mean()) ** 2) + _DOUBT
    return float(np.mean(shares) + differences.mean()), float(np.sqrt(squares / differences.size**2 + variance))


def _predictor(certified: FloatArray, margins: FloatArray) -> Callable[[FloatArray], FloatArray]:
    """Probability of PASS given the averages: a linear prediction, with each of the errors that it made."""
    if not np.all(np.isfinite(margins)) or np.ptp(margins) == 0.0:
        return lambda averages: np.full(len(averages), float(np.mean(margins >= 0.0)))
    centre, scale = certified.mean(axis=0), certified.std(axis=0) + 1e-12
    design = (certified - centre) / scale
    penalty = _RIDGE * margins.size * np.eye(design.shape[1])
    slopes = np.linalg.solve(design.T @ design + penalty, design.T @ (margins - margins.mean()))
    errors = np.sort(margins - margins.mean() - design @ slopes)

    def predicted(averages: FloatArray) -> FloatArray:
        guesses = margins.mean() + ((averages - centre) / scale) @ slopes
        return np.asarray(1.0 - np.searchsorted(errors, -guesses) / errors.size)

    return predicted
