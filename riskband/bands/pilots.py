"""Pilots: what a band may be tuned on, and how tuning on the certified answers is refused.

Levels that were chosen by looking at the values they certify hold with an unknown probability. So a band is tuned on
other clients (a split of them, or an earlier network), or on a distribution that was fixed before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
from scipy.special import betainc, betaln, xlog1py, xlogy

from riskband.answers.responses import plain
from riskband.answers.risks import ClientRisks, check_risks
from riskband.checks import (
    FloatArray,
    IntArray,
    check_losses,
    check_num_examples,
    check_number,
    check_numbers,
    check_optional_seed,
    check_seed,
    set_fields,
)
from riskband.wording import chosen_before
from riskband.wording.shown import Shown

_SMALLEST_CHANCE = 1e-3
"""An inclusion of one network's answers in the other's that is less likely than this by chance is refused."""


class PilotRisks(ClientRisks):
    """Answers of the pilot of a split, by `split_seed`, of answers of which it keeps the fingerprint `split_from`."""

    split_from: str
    split_seed: int


class ClientSplit(NamedTuple):
    """Two networks from one, by `split_clients`.

    Attributes
    ----------
    pilot : ClientRisks
        Clients to tune on. It remembers which answers it is a part of, so that a band that is tuned on it refuses them.
    rest : ClientRisks
        Clients to certify with.
    """

    pilot: ClientRisks
    rest: ClientRisks


def split_clients(risks: ClientRisks, *, pilot_share: float = 0.2, seed: int = 0) -> ClientSplit:
    """Split clients at random, without looking at their answers: some to tune a band on, the rest to certify with.

    Parameters
    ----------
    risks : ClientRisks
        All answers.
    pilot_share : float
        Share of the clients that go to the pilot, in (0, 1).
    seed : int
        >= 0; fix it before looking at any answer. The same seed gives the same split.

    Returns
    -------
    ClientSplit
        `pilot` and `rest`. Clients that gave no answer are split like all others, so that the rest is a random part of
        the clients that were asked; all of the `contamination` counts for the rest.

    Raises
    ------
    ValueError
        If the share or the seed is out of range, or a part has fewer than two clients that answered.
    """
    check_risks(risks)
    check_pilot_share(pilot_share)
    seed = check_seed(seed)
    num_asked = risks.num_clients + risks.num_missing
    order = np.random.default_rng(seed).permutation(num_asked)
    num_pilot = round(pilot_share * num_asked)
    pilot, rest = (np.sort(part[part < risks.num_clients]) for part in (order[:num_pilot], order[num_pilot:]))
    if min(pilot.size, rest.size) < 2:
        raise ValueError(
            f"both parts of a split need 2 clients that answered, got {pilot.size} and {rest.size}; "
            "change pilot_share, or tune on another network"
        )
    num_missing_rest = int(np.sum(order[num_pilot:] >= risks.num_clients))
    spent = PilotRisks(
        risks.shown_values[pilot], risks.num_examples[pilot], num_missing=risks.num_missing - num_missing_rest
    )
    set_fields(spent, split_from=_fingerprint(risks), split_seed=seed)
    return ClientSplit(spent, risks.of_clients(rest, num_missing=num_missing_rest))


def check_pilot_share(pilot_share: float) -> None:
    """Raise ValueError unless it is one number in (0, 1)."""
    remedy = "it is in (0, 1), and 0.2 spends a fifth on tuning"
    if not 0.0 < check_number("pilot_share", pilot_share, remedy=remedy) < 1.0:
        raise ValueError(f"pilot_share must be one number in (0, 1), got {pilot_share!r}; {remedy}")


@dataclass(frozen=True, eq=False, repr=False)
class Pilot(Shown):
    """The distribution that a band is tuned to: measured values of a pilot network, or a distribution fixed before."""

    risks: FloatArray  # in [0, 1], shape (num_atoms,); in the order of the clients, or nondecreasing for a distribution
    num_examples: IntArray | None = None  # behind each value of a pilot network, where known
    levels: FloatArray | None = None  # for a distribution: the CDF at the risks
    split_from: str | None = None  # fingerprint of the answers of which the pilot is a part by `split_clients`
    split_seed: int | None = None  # what it was drawn by

    shown = ("risks", "num_examples", "split_seed")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Pilot:
        """Rebuild a pilot from `to_dict`; raises ValueError for anything else."""
        known = {each.name for each in fields(cls)}
        if not isinstance(data, Mapping) or "risks" not in data or not data.keys() <= known:
            raise ValueError(f"a pilot must have risks, and at most {', '.join(sorted(known))}, got {data!r:.80}")
        if "levels" in data:
            return cls.of_distribution(data["risks"], data["levels"])
        return cls.of_values(data["risks"], **{name: data.get(name) for name in known - {"risks", "levels"}})

    @classmethod
    def of_risks(cls, risks: ClientRisks) -> Pilot:
        """Pilot of the answers of other clients."""
        of_split = {name: getattr(risks, name, None) for name in ("split_from", "split_seed")}
        return cls(risks.shown_values, risks.num_examples, **of_split)

    @classmethod
    def of_values(
        cls, values: Any, num_examples: Any = None, split_from: str | None = None, split_seed: int | None = None
    ) -> Pilot:
        """Pilot of the values that other clients measured, shape (num_clients,); raises ValueError if not in [0, 1]."""
        risks = check_losses(values)
        counts = None if num_examples is None else check_num_examples(num_examples, num_clients=risks.size)
        return cls(risks, counts, split_from=split_from, split_seed=check_optional_seed(split_seed))

    @classmethod
    def of_distribution(cls, risks: Any, levels: Any) -> Pilot:
        """Pilot of a discrete distribution; raises ValueError unless it is one on [0, 1]."""
        remedy = "make the distribution with RiskDistribution"
        atoms, sums = (check_numbers("a prior distribution", numbers, remedy=remedy) for numbers in (risks, levels))
        is_distribution = (
            atoms.shape == sums.shape == (atoms.size,)
            and atoms.size > 0
            and bool(np.all((atoms >= 0.0) & (atoms <= 1.0)) and np.all(np.diff(atoms) >= 0.0))
            and bool(sums[0] >= 0.0 and np.all(np.diff(sums) >= 0.0) and abs(sums[-1] - 1.0) <= 1e-9)
        )
        if not is_distribution:
            raise ValueError(
                "a prior distribution must have nondecreasing risks in [0, 1] and nondecreasing levels up to 1, got "
                f"{atoms.size} risks and {sums.size} levels; make it with RiskDistribution"
            )
        return cls(atoms, levels=sums)

    def to_dict(self) -> dict[str, Any]:
        """Return the pilot as plain data."""
        found = {each.name: plain(getattr(self, each.name)) for each in fields(self)}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What a certificate from a band that was tuned on it assumes."""
        if self.levels is not None:
            return ("the band was tuned to a law that was fixed before any of the answers was seen",)
        others = f"the band was tuned on a pilot of {self.risks.size} clients that are not among those certified"
        return (others, *chosen_before(seed_of_the_split=(self.split_seed, None)))

    def expected_values(self, num_values: int) -> FloatArray:
        """Values to expect from `num_values` clients in sorted order, as Harrell-Davis quantiles at i/(num_values + 1).

        From a distribution, or a pilot at least as large, they are the expected order statistics of as many independent
        draws, so that what is tuned is the expected bound. A smaller pilot is smoothed as its own size demands.
        """
        order = np.argsort(self.risks, kind="stable")
        edges = np.arange(self.risks.size + 1) / self.risks.size if self.levels is None else np.append(0.0, self.levels)
        size = num_values if self.levels is not None else min(num_values, self.risks.size)
        rank = (size + 1.0) * np.arange(1, num_values + 1) / (num_values + 1.0)
        weights = np.diff(betainc(rank[:, None], size + 1.0 - rank[:, None], np.minimum(edges, 1.0)), axis=1)
        return np.asarray(np.clip(np.maximum.accumulate(weights @ self.risks[order]), 0.0, 1.0))

    def refuse_if_certified(self, risks: ClientRisks) -> None:
        """Raise ValueError if the pilot is visibly the answers to be certified, or a part of them.

        Refused are the same array; the same values (or the same CDF) in any order, unless all are equal; the
        answers that `split_clients` took the pilot from; and answers of one that are all among those of the other,
        unless chance alone would do that with probability 1e-3.
        """
        found = self._what_it_is_of(risks)
        if found:
            raise ValueError(
                f"a pilot must be other clients than those certified, got {found} ({self.risks.size} pilot values, "
                f"{risks.num_clients} certified); split with split_clients, tune on its pilot and certify its rest"
            )

    def _what_it_is_of(self, risks: ClientRisks) -> str:
        if self.split_from == _fingerprint(risks):
            return "the answers that it was split from"
        if np.shares_memory(self.risks, risks.shown_values) or self._is_same_distribution(risks):
            return "the answers to be certified themselves"
        if self.levels is None:
            ours, theirs = self._counts(risks)
            for part, whole, words in ((ours, theirs, "among"), (theirs, ours, "all of")):
                if part <= whole and _chance_of_inclusion(part, whole) < _SMALLEST_CHANCE:
                    return f"{words} the answers to be certified"
        return ""

    def _is_same_distribution(self, risks: ClientRisks) -> bool:
        if np.ptp(risks.shown_values) == 0.0:
            return False
        if self.levels is None:
            ours, theirs = self._counts(risks)
            return ours == theirs
        middles = (np.arange(risks.num_clients) + 0.5) / risks.num_clients
        atoms = self.risks[np.minimum(np.searchsorted(self.levels, middles), self.risks.size - 1)]
        return bool(np.array_equal(atoms, np.sort(risks.shown_values)))

    def _counts(self, risks: ClientRisks) -> tuple[Counter[Any], Counter[Any]]:
        if self.num_examples is None:
            return Counter(self.risks.tolist()), Counter(risks.shown_values.tolist())
        ours = Counter(zip(self.risks.tolist(), self.num_examples.tolist(), strict=True))
        return ours, Counter(zip(risks.shown_values.tolist(), risks.num_examples.tolist(), strict=True))


def _fingerprint(risks: ClientRisks) -> str:
    """Digest of the answers, whatever their order."""
    order = np.lexsort((risks.num_examples, risks.values))
    answers = np.column_stack([risks.values, risks.num_examples.astype(np.float64)])[order]
    return sha256(answers.astype("<f8").tobytes()).hexdigest()


def _chance_of_inclusion(part: Counter[Any], whole: Counter[Any]) -> float:
    """Probability that `part` is included in `whole` if all their answers had been dealt to the two at random."""
    num_part, num_whole = part.total(), whole.total()
    share = num_part / (num_part + num_whole)
    sums = np.ones(1)  # P(no answer so far is more often in the part, so many are in it), each dealt on its own
    for answer, count in whole.items():
        both = count + part[answer]
        dealt = _binomial_probabilities(np.arange(both // 2 + 1), both, share)
        sums = np.convolve(sums, dealt)[: num_part + 1]
    reached = float(sums[num_part]) if sums.size > num_part else 0.0
    return reached / float(_binomial_probabilities(num_part, num_part + num_whole, share))


def _binomial_probabilities(counts: IntArray | int, size: int, share: float) -> FloatArray:
    """P(Binomial(size, share) = counts); scipy.stats, which has the same, takes a second to load."""
    log_choices = -betaln(counts + 1.0, size - counts + 1.0) - np.log(size + 1.0)
    return np.asarray(np.exp(log_choices + xlogy(counts, share) + xlog1py(size - counts, -share)))
