"""Clients that come one after the other, and what they have proved so far (math §17)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np

from riskband.answers.responses import UNTIL_DECIDED, plain
from riskband.answers.risks import ClientRisks
from riskband.answers.scaled import CHANGE, RISK, ClientChanges, ClientScores, Scale, ScaledAnswers
from riskband.bands.band import Band
from riskband.bands.band import band as band_of
from riskband.bands.levels import STITCHED, checkpoint
from riskband.certificate import Certificate
from riskband.checks import check_choice, check_delta
from riskband.worst_cases.always_valid import ORDERS, always_valid, batch_sizes, check_order, is_direct
from riskband.worst_cases.number import SHIFTED, UNSEEN, Number
from riskband.worst_cases.requirements import (
    NOT_DECIDED,
    Gate,
    Requirement,
    certificates_of,
    numbers_behind,
    read_requirements,
    verdicts_on,
)

Answered = ClientRisks | ScaledAnswers


class Sequence:
    """Answers of more and more clients, and certificates that hold at all times at once.

    Look whenever you like, and stop when you like: what is certified at any time is false with probability at most
    delta, for all times together.

    Parameters
    ----------
    asked : str, Requirement or iterable of them
        Requirements ("mean<=0.2", "harmed:0.02<=0.1") or numbers ("quantile:0.9", "mean@chi2:0.1", "gini"), fixed
        before any answer was seen. They share delta equally; all that is read off the band shares one part of it.
    delta : float
        Probability that anything is false at any time, in (0, 1).
    of : type, optional
        `ClientRisks`, `ClientChanges` or `ClientScores`. By default that of the first answers, or else `ClientRisks`
        and, where "change" or "harmed" is asked for, `ClientChanges`.
    order : {"arrival", "committed"}
        Whether clients come by themselves, or are asked in an order that was settled before any of them answered.
    **said :
        What is the same for all clients, as `of` takes it: ``binary=True``, ``answered_by="trainers"``,
        ``repeats="draws"``, and of scores ``higher_is_better``, ``name``, ``low`` and ``high``.

    Attributes
    ----------
    answers : ClientRisks, ClientChanges, ClientScores or None
        All of them so far; None before the second client.

    Raises
    ------
    ValueError
        If something that is asked cannot be read, or is about the next clients or a target network: for these
        the number of clients would have to be fixed.

    Examples
    --------
    >>> import riskband as rb
    >>> sequence = rb.Sequence("mean<=0.2", delta=0.05)
    >>> for num_wrong in [3, 0, 7, 2, 4, 1, 5, 2, 3, 6] * 6:
    ...     if sequence.add(values=num_wrong / 100, num_examples=100):
    ...         break
    >>> sequence.gate.verdict, sequence.answers.num_clients
    ('PASS', 20)
    """

    def __init__(
        self,
        asked: str | Requirement | Iterable[str | Requirement],
        *,
        delta: float,
        of: type[Answered] | None = None,
        order: str = "arrival",
        **said: Any,
    ) -> None:
        several = [asked] if isinstance(asked, (str, Requirement)) else list(asked)
        is_required = [isinstance(each, Requirement) or "<" in each or ">" in each for each in several]
        required = [each for each, is_one in zip(several, is_required, strict=True) if is_one]
        self.requirements = read_requirements(required, None)
        numbers = [Number.of(each) for each, is_one in zip(several, is_required, strict=True) if not is_one]
        self.numbers = tuple(dict.fromkeys((*numbers_behind(self.requirements), *numbers)))
        if not self.numbers or not all(each.where in (UNSEEN, SHIFTED) for each in self.numbers):
            raise ValueError(
                f"a sequence must be asked for numbers such as 'mean' or 'quantile:0.9<=0.3', got {asked!r:.80}; ask "
                "next_clients who is next, and riskband shift of a target, after a number of clients that is fixed"
            )
        self.delta, self.order = check_delta(delta), check_choice("order", order, ORDERS)
        self.answers: Answered | None = None
        of_changes = any(each.is_change for each in (*(one.number for one in self.requirements), *numbers))
        self._of: Any = of or (ClientChanges if of_changes else ClientRisks)  # a class of answers
        self._is_of_first = of is None and not of_changes
        self._said = said
        if self._of is not ClientScores and not self._is_of_first:
            self._check_numbers(CHANGE if self._of is ClientChanges else RISK)
        self._columns: dict[str, list[Any]] = {}
        self._num_missing = 0
        self._sizes: list[int] = []  # of batches

    def __repr__(self) -> str:
        return f"Sequence({', '.join(map(str, self.numbers))}, {len(self.answers or ())} clients, delta={self.delta:g})"

    def _check_numbers(self, scale: Scale) -> None:
        """Raise ValueError if clients on this scale have none of what is asked."""
        read_requirements(self.requirements, scale)
        for number in self.numbers:
            number.check(scale)

    def add(
        self,
        answers: Answered | None = None,
        *,
        num_missing: int = 0,
        batches: Iterable[int] | None = None,
        **columns: Any,
    ) -> bool:
        """Take further clients, and return whether what is required is decided.

        Parameters
        ----------
        answers : ClientRisks, ClientChanges or ClientScores, optional
            Of at least two clients.
        num_missing : int
            How many gave no valid answer; as everywhere, that they are missing at random is then assumed.
        batches : iterable of int, optional
            How many of them came together each time, in any order. By default those of one call did; of a committed
            order each counts by itself, as ``[1] * 20`` says of twenty: their order then says nothing of their answers.
        **columns : number or array_like
            Instead of answers, of one client or several, what `of` takes for each: ``values`` and ``num_examples`` (one
            number if all have as many), also ``names``.

        Raises
        ------
        ValueError
            If these are not answers of the kind that came before, may be wrong, or a client is there already, or as for
            `of`; nothing is added then. Or, after they were added, if they come sorted one by one, or the limits of
            what is required cross, or exclude what was measured: the network has changed on the way.
        """
        of, said = self._of, self._said
        if answers is not None:
            if not isinstance(answers, Answered):
                got = f"{type(answers).__name__}; or say values=, num_examples="
                raise ValueError(f"answers must be ClientRisks, ClientChanges or ClientScores, got {got}")
            columns, said = answers.by_client()
            num_missing += said.pop("num_missing")
            is_other = not isinstance(answers, of) and not (self._is_of_first and not self._columns)
            if is_other or said != {**said, **self._said}:
                raise ValueError(
                    f"all answers of a sequence must be of one kind, {of.__name__} with {self._said}, got "
                    f"{type(answers).__name__} with {said}; say what holds for all of them at its beginning, as in "
                    "Sequence(..., binary=False)"
                )
            of = type(answers)
        size = max(map(np.size, columns.values()), default=0)
        new = {name: plain(np.asarray(one) if np.ndim(one) else np.full(size, one)) for name, one in columns.items()}
        if len(set(map(len, new.values()))) != 1 or (self._columns and new.keys() != self._columns.keys()):
            got = ", ".join(f"{len(each)} {name}" for name, each in new.items()) or "nothing"
            known = ", ".join(self._columns or new or ["values", "num_examples"])
            raise ValueError(f"clients must come with {known}, one entry of each per client, got {got}; give them all")
        ask = "all" if answers is None else answers.ask  # where that depended on answers, these are no batch
        one_by_one = [1] * size if self.order == "committed" or size == 1 or ask == UNTIL_DECIDED else None
        together = one_by_one or [size] if batches is None else batches
        sizes = [*self._sizes, *batch_sizes(list(together), num_clients=size, ask=ask).tolist()]
        new = {name: [*self._columns.get(name, ()), *each] for name, each in new.items()}
        num_missing += self._num_missing
        is_first = len(sizes) == 1 == sizes[0]  # of which nothing is said yet; and what is wrong with it at once
        now = {**said, "ask": UNTIL_DECIDED} | ({"repeats": "draws"} if is_first else {})
        columns = {name: 2 * each for name, each in new.items()} if is_first else new
        found = of(**columns, num_missing=num_missing, **now)
        found.require_certain_answers("a sequence", "answers that are right, and missing='ignore'")
        self._check_numbers(getattr(found, "scale", RISK))
        if not is_first:
            if hasattr(found, "binary"):  # what is bet on a client must not change with those after it
                said = {**said, "binary": found.binary}
            self.answers = found
        self._of, self._said, self._columns, self._num_missing, self._sizes = of, said, new, num_missing, sizes
        for name in ("band", "certificates", "gate"):
            self.__dict__.pop(name, None)
        return self.is_decided

    @property
    def is_decided(self) -> bool:
        """Whether all that is required holds, or some of it does not: further clients change neither."""
        return self.gate is not None and self.gate.verdict != NOT_DECIDED

    @cached_property
    def gate(self) -> Gate | None:
        """What the clients so far say of the requirements; None where nothing is required."""
        return verdicts_on(self.certificates, self.requirements, delta=self.delta) if self.requirements else None

    @cached_property
    def certificates(self) -> dict[str, Certificate]:
        """A certificate of each number that is asked for, by its name, without those that nothing bounds yet."""
        if self.answers is None:
            return {}
        direct = [number for number in self.numbers if self._is_direct(number)]
        come: dict[str, Any] = {"order": self.order, "batches": None if set(self._sizes) == {1} else self._sizes}
        found = {str(number): always_valid(self.answers, number, delta=self._part, **come) for number in direct}
        others = [number for number in self.numbers if number not in direct]
        return found if self.band is None else found | certificates_of(self.band, others, delta=None)

    @cached_property
    def band(self) -> Band | None:
        """Band for what has no bets of its own: of the batches up to the 16th, 32nd, 64th, … client; None before."""
        if not isinstance(self.answers, ClientRisks) or all(map(self._is_direct, self.numbers)):
            return None
        check_order(self.answers, np.array(self._sizes))
        ends, first = np.cumsum(self._sizes), checkpoint(self.answers.num_clients)
        size = int(ends[np.searchsorted(ends, first)]) if first else 0
        return band_of(self.answers.of_clients(np.arange(size)), delta=self._part, method=STITCHED) if size else None

    @property
    def _part(self) -> float:
        """Of delta, for each number or for the band."""
        num_direct = sum(map(self._is_direct, self.numbers))
        return self.delta / (num_direct + (num_direct < len(self.numbers)))

    def _is_direct(self, number: Number) -> bool:
        return issubclass(self._of, ScaledAnswers) or is_direct(number)
