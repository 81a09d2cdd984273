"""Answers that are no mean losses: changes of the loss between two models, and scores such as AUC (math §13).

Both are numbers in a known range, of which one end is the bad one. `Scale` moves that range to [0, 1], where 1 is bad,
and back: there a number of a client is bounded as a risk is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Unpack

import numpy as np
import numpy.typing as npt

from riskband import checks
from riskband.answers.responses import Answers, Responses, WhoAnswered
from riskband.answers.risks import ClientRisks, assumed_of_rounding, check_risks, upper_limit
from riskband.checks import (
    FloatArray,
    IntArray,
    check_num_examples,
    check_number,
    check_numbers,
    in_decimals,
    set_fields,
)
from riskband.wording import in_full

SAME_ROWS = "old and new are of the same clients, in the same order"
_LONGEST = 40  # characters of a score's name, which stands in every sentence about it
_ROUNDING = 1e-15  # of a number in [0, 1] that 1 was taken from


@dataclass(frozen=True)
class Scale:
    """The range of a number that each client has, and which of its ends is the bad one.

    Attributes
    ----------
    noun : str
        What the number is called in sentences, after "the": "AUC".
    low, high : float
        The ends of its range.
    is_higher_better : bool
        Whether `low` is the bad end.
    article : str
        What a single one of these numbers has before it.
    """

    noun: str
    low: float = 0.0
    high: float = 1.0
    is_higher_better: bool = False
    article: str = "the"

    def to_unit(self, numbers: FloatArray) -> FloatArray:
        """Move numbers to [0, 1], where 1 is the bad end."""
        shares = (numbers - self.low) / (self.high - self.low)
        return np.clip(1.0 - shares if self.is_higher_better else shares, 0.0, 1.0)

    def from_unit(self, shares: FloatArray) -> FloatArray:
        """Return the numbers that `to_unit` moves to these."""
        shares = 1.0 - shares if self.is_higher_better else shares
        return np.asarray(self.low * (1.0 - shares) + self.high * shares)  # so that both ends are met

    @property
    def worst(self) -> str:
        """What the worst of several numbers is."""
        return "smallest" if self.is_higher_better else "largest"

    @property
    def beyond(self) -> str:
        """Where numbers are that are worse than one of them."""
        return "below" if self.is_higher_better else "above"


RISK = Scale("risk", article="a")
CHANGE = Scale("change of the risk", -1.0, 1.0, article="a")


@dataclass(frozen=True, eq=False, init=False, repr=False)
class ScaledAnswers(Answers, ABC):
    """What `ClientChanges` and `ClientScores` have in common: a number of each client, on a scale."""

    values: FloatArray  # as the clients measured them, shape (num_clients,)
    names: tuple[str, ...] | None
    groups: tuple[str | None, ...] | None
    responses: Responses
    scale: Scale  # the range of the numbers and its bad end

    stored_if_known: ClassVar[tuple[str, ...]] = ("names", "groups")

    @property
    def below(self) -> ScaledAnswers:
        """The same, nowhere above what clients measured, as `ClientRisks.below`."""
        return self

    @property
    @abstractmethod
    def mirrored(self) -> ScaledAnswers:
        """The same, with the other end as the bad one: its upper limits are lower limits of these."""

    def from_unit(self, shares: FloatArray) -> FloatArray:
        """Numbers of the scale; those that a client measured with the digits that it measured them with."""
        order = np.argsort(self.unit.values, kind="stable")
        order = order[np.minimum(np.searchsorted(self.unit.values[order], shares - _ROUNDING), order.size - 1)]
        is_measured = np.abs(self.unit.values[order] - shares) <= _ROUNDING
        return np.where(is_measured, self.values[order], self.scale.from_unit(shares))

    @cached_property
    def unit(self) -> ClientRisks:
        """The numbers on [0, 1], where 1 is bad, as if they were risks."""
        who = self.responses.to_dict()
        return ClientRisks(self.scale.to_unit(self.values), 1, False, names=self.names, groups=self.groups, **who)


def _with_labels(answers: ScaledAnswers, names: object, groups: object, who: Mapping[str, Any]) -> None:
    """Set who answered, checked as for `ClientRisks`; the values are there, and `unit` checks the names."""
    responses = Responses.of(answers.values.size, who)  # type: ignore[arg-type]
    responses.require_independent("changes and scores")
    set_fields(answers, responses=responses, names=names, groups=groups)
    set_fields(answers, names=answers.unit.names, groups=answers.unit.groups)


@dataclass(frozen=True, eq=False, init=False, repr=False)
class ClientChanges(ScaledAnswers):
    """By how much the loss of each client is larger under a new model than under an old one, on the same examples.

    Parameters
    ----------
    old, new : array_like, shape (num_clients,)
        Mean loss of each client under either model, in [0, 1]; at least two clients.
    num_examples : int or array_like, shape (num_clients,)
        How many examples both means are taken over.
    binary : bool, optional
        Whether every loss is 0 or 1, as for `ClientRisks`; by default it is inferred.
    rounding : float, optional
        As for `ClientRisks`, and as it is found there: `old` is then the smallest and `new` the largest risk there may
        be, and `below` has the others.
    num_worse : array_like of int, shape (num_clients,), optional
        Of losses 0 or 1, how many examples only the new model gets wrong. Limits for a client's true change are much
        sharper with it.
    names, groups, num_missing, missing, contamination, answered_by, ask, repeats :
        As for `ClientRisks`, without noise.

    Attributes
    ----------
    values : ndarray
        The changes, new - old, in [-1, 1]: above 0 where the new model is worse.
    responses : Responses
        Who answered; its fields are also read off the answers themselves.

    Raises
    ------
    ValueError
        As for `ClientRisks`; or if `num_worse` contradicts the losses.
    """

    old: FloatArray
    new: FloatArray
    num_examples: IntArray
    binary: bool
    num_worse: IntArray | None
    rounding: float | None

    scale = CHANGE  # they lie in [-1, 1], and 1 is the bad end
    stored, stored_if_known = ("old", "new", "num_examples", "binary"), ("num_worse", "rounding", "names", "groups")
    shown = ("num_clients", "values", "num_examples", "binary")

    def __init__(
        self,
        old: npt.ArrayLike,
        new: npt.ArrayLike,
        num_examples: npt.ArrayLike,
        binary: bool | None = None,
        *,
        num_worse: npt.ArrayLike | None = None,
        rounding: float | None = None,
        names: Sequence[str] | None = None,
        groups: Sequence[str | None] | None = None,
        **who: Unpack[WhoAnswered],
    ) -> None:
        first, second = (ClientRisks(each, num_examples, binary) for each in (old, new))
        rounding = max(filter(None, (rounding, first.rounding, second.rounding)), default=None)
        if first.num_clients != second.num_clients:
            raise ValueError(
                f"old and new must be of the same clients, got {first.num_clients} and {second.num_clients}; match them"
            )
        first, is_binary = first.below, first.binary and second.binary
        change, sizes = in_decimals(second.values - first.values), first.num_examples
        if is_binary:
            change = (np.rint(second.values * sizes) - np.rint(first.values * sizes)) / sizes
        set_fields(self, old=first.values, new=second.values, num_examples=sizes, binary=is_binary, values=change)
        set_fields(self, rounding=rounding)
        set_fields(self, num_worse=None if num_worse is None else self._checked_worse(num_worse))
        _with_labels(self, names, groups, who)

    def _checked_worse(self, num_worse: npt.ArrayLike) -> IntArray:
        counts = check_numbers("num_worse", num_worse, remedy="count the examples that only the new model gets wrong")
        most = np.rint(np.minimum(self.new, 1.0 - self.old) * self.num_examples)
        least = np.rint(np.maximum(self.values, 0.0) * self.num_examples)
        is_right = (
            self.binary
            and self.rounding is None
            and counts.shape == most.shape
            and np.all((least <= counts) & (counts <= most))
        )
        if not is_right or np.any(counts != np.floor(counts)):
            raise ValueError(
                "num_worse must count, for losses 0 or 1, the examples of each client that only the new model gets "
                f"wrong, got {num_worse!r:.80}, which contradicts old and new; leave it out if it was not counted"
            )
        return counts.astype(np.int64)

    @classmethod
    def between(cls, old: ClientRisks, new: ClientRisks) -> ClientChanges:
        """Changes from two evaluations of the same clients, matched by their names, or by their rows if none has any.

        Raises ValueError, which names them, if a client is in one of them only, or has other numbers of examples; or if
        the answers have noise, or differ in what is said of who answered, or one alone is of rounded 0-1 losses.
        """
        check_risks(old)
        check_risks(new)
        if (old.names is None) != (new.names is None):
            raise ValueError("clients must have names in both evaluations or in neither, got one of them; name them")
        if old.names is not None and new.names is not None:
            only = [sorted(set(one) - set(other)) for one, other in ((old.names, new.names), (new.names, old.names))]
            said = [f"{', '.join(each[:5])} {where}" for each, where in zip(only, _ONLY, strict=True) if each]
            if said:
                got = " and ".join(said)
                raise ValueError(f"both evaluations must have the same clients, got {got}; drop them, or ask them")
            new = new.of_clients(np.array([new.names.index(name) for name in old.names]))
        elif len(old) != len(new):
            raise ValueError(f"both must have the same clients, got {len(old)} and {len(new)}; name them, or drop some")
        differs = np.flatnonzero(old.num_examples != new.num_examples)
        if differs.size:
            k = int(differs[0])
            of = old.names[k] if old.names else f"row {k + 1}"
            raise ValueError(
                "both models must be evaluated on the same examples, got other numbers of them in "
                f"{differs.size} clients, first {of}; evaluate them again"
            )
        if "draws" in (old.repeats, new.repeats):
            raise ValueError(
                "a comparison must have a client once in each evaluation, got repeats='draws'; leave it out"
            )
        old.require_no_noise("a comparison", "answers without it")
        old.require_independent("a comparison")
        if old.responses != new.responses:
            raise ValueError("both evaluations must say the same of who answered; say it once for both")
        binary = old.binary and new.binary
        rounding = max(filter(None, (old.rounding, new.rounding)), default=None)
        if rounding is not None and not binary:
            raise ValueError(
                "rounded means must be of 0-1 losses in both evaluations, got one; say binary=False of both"
            )
        rest: dict[str, Any] = {"rounding": rounding, **old.responses.to_dict()}
        return cls(old.below.values, new.values, old.num_examples, binary, names=old.names, groups=old.groups, **rest)

    @classmethod
    def from_counts(
        cls,
        worse: npt.ArrayLike,
        better: npt.ArrayLike,
        num_examples: npt.ArrayLike,
        *,
        old_wrong: npt.ArrayLike | None = None,
        **rest: Any,
    ) -> ClientChanges:
        """Changes of the error rate from numbers of examples, each of shape (num_clients,).

        Parameters
        ----------
        worse, better : array_like of int
            Examples that only the new, and only the old model gets wrong.
        num_examples : int or array_like of int
            All examples.
        old_wrong : array_like of int, optional
            Examples that the old model gets wrong, if they are known: for figures. Left out, the two models are taken
            to be right where they agree.
        **rest :
            Names, groups and who answered.
        """
        counts = [check_numbers("numbers of examples", each, remedy="count them") for each in (worse, better)]
        sizes = check_num_examples(num_examples, num_clients=counts[0].size)
        before = counts[1] if old_wrong is None else check_numbers("old_wrong", old_wrong, remedy="count them")
        if any(each.shape != sizes.shape or np.any((each < 0) | (each > sizes)) for each in (*counts, before)):
            raise ValueError(
                "numbers of examples that got worse or better must be one for each client, none above its number of "
                f"examples, got {worse!r:.40}, {better!r:.40}; count them again"
            )
        after = before + counts[0] - counts[1]
        return cls(before / sizes, after / sizes, sizes, True, num_worse=counts[0], **rest)

    @property
    def own_assumptions(self) -> tuple[str, ...]:
        """That rows match, where no names and no counts of both models together say so; and how means were rounded."""
        rows = (SAME_ROWS,) if self.names is None and self.num_worse is None else ()
        return rows + assumed_of_rounding(self.rounding)

    @property
    def num_better(self) -> IntArray | None:
        """How many examples only the old model gets wrong; None where `num_worse` is not known."""
        if self.num_worse is None:
            return None
        return self.num_worse - np.rint(self.values * self.num_examples).astype(np.int64)

    @property
    def has_levels(self) -> bool:
        """Whether `old` and `new` say more than the changes: not if both models seem right wherever they agree."""
        return self.num_better is None or not np.array_equal(self.num_better, np.rint(self.old * self.num_examples))

    @property
    def mirrored(self) -> ClientChanges:
        """The changes from the new to the old model."""
        old, new = self.below.new, self.below.old
        return ClientChanges(**{**self.to_dict(), "old": old, "new": new, "num_worse": self.num_better})

    @property
    def below(self) -> ClientChanges:
        """Changes that are nowhere above what the clients measured: of rounded means, the smallest there may be."""
        if self.rounding is None:
            return self
        of = partial(ClientRisks, num_examples=self.num_examples, binary=True, rounding=self.rounding)
        ends = {"old": 1.0 - of(1.0 - self.old).below.values, "new": of(self.new).below.values}
        return ClientChanges(**{**self.to_dict(), **ends, "rounding": None})

    def upper_limits(self, eta: float) -> FloatArray:
        """Upper confidence limits for the clients' true changes, each alone wrong with probability at most `eta`.

        The upper limit of one probability minus the lower limit of another, at `eta` / 2 each: that an example gets
        worse, and better; or, where this was not counted, that it is wrong under the new, and the old model. Whatever
        depends on what, both hold with probability 1 - `eta`. Shape (num_clients,), in [-1, 1]. Source: math §13.2.
        """
        worse, better = self.new, self.old
        if self.num_worse is not None and self.num_better is not None:
            worse, better = self.num_worse / self.num_examples, self.num_better / self.num_examples
        above, right = (
            upper_limit(each, self.num_examples, eta=eta / 2.0, binary=self.binary) for each in (worse, 1.0 - better)
        )
        return np.asarray(above - (1.0 - right))

    def lower_limits(self, eta: float) -> FloatArray:
        """Lower confidence limits for the clients' true changes: `upper_limits` of the mirrored ones."""
        return -self.mirrored.upper_limits(eta)


_ONLY = ("only in the old one", "only in the new one")


@dataclass(frozen=True, eq=False, init=False, repr=False)
class ClientScores(ScaledAnswers):
    """Numbers that clients measured and that are no means of losses: AUC, F1, Dice, a calibration error, minutes.

    They have no confidence limits for one client, so whatever is certified is about what an unseen client *measures*.

    Parameters
    ----------
    values : array_like, shape (num_clients,)
        The score of each client, in [`low`, `high`]; at least two clients.
    higher_is_better : bool
        Whether a large score is a good one.
    name : str
        What the score is called in sentences, after "the": "AUC".
    low, high : float
        The range of the score, known before any answer.
    names, groups, num_missing, missing, contamination, answered_by, ask, repeats :
        As for `ClientRisks`, without noise.

    Attributes
    ----------
    responses : Responses
        Who answered; its fields are also read off the answers themselves.

    Raises
    ------
    ValueError
        If a value is no number in the range, there are fewer than two clients, or as for `ClientRisks`.
    """

    higher_is_better: bool
    name: str
    low: float
    high: float

    stored = ("values", "higher_is_better", "name", "low", "high")
    shown = ("name", "num_clients", "values", "higher_is_better")

    def __init__(
        self,
        values: npt.ArrayLike,
        higher_is_better: bool,
        *,
        name: str = "score",
        low: float = 0.0,
        high: float = 1.0,
        names: Sequence[str] | None = None,
        groups: Sequence[str | None] | None = None,
        **who: Unpack[WhoAnswered],
    ) -> None:
        remedy, give = "leave out clients without a score", "give the range of the score"
        found = in_decimals(check_numbers("scores", values, remedy=remedy))
        low, high = check_number("low", low, remedy=give), check_number("high", high, remedy=give)
        if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST or not name.isprintable():
            raise ValueError(
                f"name of a score must be 1 to {_LONGEST} printable characters, got {name!r:.80}; say 'AUC'"
            )
        if not 0.0 < high - low < np.inf:
            raise ValueError(
                f"low must be below high, by a finite number, got {low:g} and {high:g}; give the range of scores"
            )
        if found.ndim != 1 or found.size < 2:
            raise ValueError(f"scores must be one for each of at least 2 clients, got shape {found.shape}; {remedy}")
        wrong = found[~((found >= low) & (found <= high))]
        if wrong.size:
            raise ValueError(
                f"every {name} must lie in [{low:g}, {high:g}], got {in_full(wrong[0])}; {remedy}, or say which "
                "range it has: low=..., high=..., known before any answer"
            )
        set_fields(self, values=found, higher_is_better=checks.check_flag("higher_is_better", higher_is_better))
        set_fields(self, name=name.strip(), low=low, high=high)
        set_fields(self, scale=Scale(self.name, low, high, self.higher_is_better))
        _with_labels(self, names, groups, who)

    @property
    def mirrored(self) -> ClientScores:
        """The same scores, with the other end as the bad one."""
        return ClientScores(**{**self.to_dict(), "higher_is_better": not self.higher_is_better})


def beyond(answers: ScaledAnswers, values: FloatArray, threshold: float) -> npt.NDArray[np.bool_]:
    """Return which values are beyond a threshold: a change if it is above it, a score also if equal."""
    if isinstance(answers, ClientChanges):
        return values > threshold
    return values <= threshold if answers.scale.is_higher_better else values >= threshold


def is_scaled(answers: Mapping[str, Any]) -> bool:
    """Return whether stored answers are changes or scores."""
    # A selection may have a candidate that is called so.
    return "higher_is_better" in answers or {"old", "num_examples"} <= answers.keys()


def scale_of(answers: Mapping[str, Any]) -> Scale | None:
    """Return the scale of stored changes or scores; None for risks."""
    if "higher_is_better" in answers:
        return Scale(answers["name"], answers["low"], answers["high"], answers["higher_is_better"])
    return CHANGE if is_scaled(answers) else None


def rebuilt(answers: Mapping[str, Any]) -> ScaledAnswers:
    """Return changes or scores as `to_dict` stored them."""
    return ClientScores(**answers) if "higher_is_better" in answers else ClientChanges(**answers)
