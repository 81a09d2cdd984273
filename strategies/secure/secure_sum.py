"""The server's side of secure aggregation: who is in a sum, and the rounds from keys to unmasking.

No client can end the run for the others: who sends a wrong key goes alone, and of two in dispute about a share both go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from protocol.hashes import code_hash
from protocol.secure import questions as secure
from protocol.secure.cryptography import (
    KEY_BYTES,
    MAC_BYTES,
    SEALED_BYTES,
    SEED_BYTES,
    WORD,
    combined,
    is_public_key,
    own_mask,
    pair_mask,
    public_key,
    threshold_of,
)
from strategies.asking.failures import Failure, FailureReason, node_hash
from strategies.asking.replies import Check, RoundOutcome
from strategies.asking.rules import Rule

_NUMBER_BYTES = 8  # of a client's number on the wire

Shares = Mapping[int, Mapping[int, bytes]]
"""Shares by the client whose secret they are of, and by the member who gave them."""


class UnmaskingError(RuntimeError):
    """The sum cannot be found: too few shares came."""


class WrongSumError(ValueError):
    """What was found is no sum of histograms: a client sent a wrong vector, or a wrong share."""


Ask = Callable[[Mapping[str, Check]], tuple[dict[str, Any], list[Failure]]]
"""One round: from questions by client id to valid answers by client id, and named failures."""


@dataclass(frozen=True)
class MaskedQuestion:
    """The question whose answers are added up."""

    query: secure.HistogramQuery  # what is asked
    model_hash: str  # of the model that it is about
    digest: bytes  # what masks depend on: `HistogramQuery.digest`

    def broken_rules(self, answer: secure.MaskedAnswer) -> Iterator[Rule]:
        """Yield each rule that a masked answer breaks; of its numbers nothing can be seen."""
        if answer.model_hash != self.model_hash:
            yield FailureReason.WRONG_MODEL, "the client evaluated another model than it was sent"
        if answer.loss != self.query.loss:
            yield FailureReason.WRONG_LOSS, "the client computed another loss than it was asked for"
        num_values = self.query.num_values
        if len(answer.vector) != num_values * WORD.itemsize:
            yield FailureReason.WRONG_LENGTH, f"asked for {num_values} counts, got {len(answer.vector)} bytes"


class SecureSum:
    """Rounds 2 to 5 of secure aggregation, to a sum for each group of those who sent keys in the first.

    Masks are shared within a group, with its `neighbourhoods`. With `is_whole` a group goes on only while nobody of it
    has failed.
    """

    def __init__(
        self,
        keys: Mapping[str, secure.KeysAnswer],
        ask: Ask,
        *,
        groups: Iterable[Iterable[str]],
        num_neighbours: int,
        rng: np.random.Generator,
        is_whole: bool = False,
    ) -> None:
        self._names = dict(enumerate(sorted(keys), start=1))
        self._public = {number: keys[name].keys for number, name in self._names.items()}
        self._group: dict[int, frozenset[int]] = {}
        self._members: dict[int, tuple[int, ...]] = {}
        for group in map(frozenset, groups):
            numbers = [number for number, name in self._names.items() if name in group]
            places = neighbourhoods(len(numbers), num_neighbours=num_neighbours, rng=rng)
            self._members |= {numbers[k - 1]: tuple(numbers[n - 1] for n in near) for k, near in places.items()}
            self._group |= dict.fromkeys(numbers, frozenset(numbers))
        self._is_whole = is_whole
        self._ask = ask
        self._sent: dict[int, dict[int, bytes]] = {}
        self._held: dict[int, set[int]] = {}
        self.failures: list[Failure] = []  # participants whose vector is in no sum
        # Participants whose vector is in the sum and who gave no shares in the end; the others' were enough.
        self.late_failures: list[Failure] = []

    def collect(self, question: MaskedQuestion) -> dict[str, secure.MaskedAnswer]:
        """Let the participants share their secrets, ask the question, and return the masked vectors that came.

        Of participants that disagree about shares between them some are left out: see `left_out`.
        """
        questions = {number: self._shares_question(number) for number in self._members}
        shared: dict[int, secure.SharesAnswer] = self._ask_numbers(questions, self.failures)
        self._sent = {
            number: dict(zip(answer.sent.numbers, answer.sent.shares, strict=True)) for number, answer in shared.items()
        }
        going_on = [number for number in shared if not self._is_whole or self._group[number] <= shared.keys()]
        questions = {number: self._masked_question(question, number) for number in going_on}
        masked: dict[int, secure.MaskedAnswer] = self._ask_numbers(questions, self.failures)
        self._held = {
            number: {number, *self._senders(number)} - set(answer.unopened) for number, answer in masked.items()
        }
        disputes = {number: masked.keys() & set(answer.unopened) for number, answer in masked.items()}
        for number, others in left_out(disputes, limits=self._limits()).items():
            num_members = len(self._members[number]) - 1
            detail = (
                f"a share between this client and {self._names[others[0]]} did not open: one of these two sealed or "
                "opened it wrongly, and nobody can tell which"
                if len(others) == 1
                else f"shares between this client and {len(others)} of its {num_members} neighbours did not open: it "
                "sealed or opened wrongly, or more of them lie than this protocol bears"
            )
            self.failures.append(Failure(self._names[number], FailureReason.CONTRADICTION, detail))
            del masked[number]
        return {self._names[number]: answer for number, answer in masked.items()}

    def total(self, question: MaskedQuestion, masked: Mapping[str, secure.MaskedAnswer]) -> np.ndarray:
        """Return the sum of the vectors of one group that `collect` returned, shape (num_values,), modulo 2**32.

        Raises UnmaskingError if too few participants are left to unmask it; WrongSumError if their shares give another
        key than a participant's.
        """
        vectors = {number: masked[name].vector for number, name in self._names.items() if name in masked}
        sent = self._sent.keys() & self._group[next(iter(vectors))]
        lists = secure.ConsistencyQuery(tuple(sorted(vectors)), tuple(sorted(sent - vectors.keys())))
        self._require_holders(lists)
        questions = {number: self._consistency_question(lists, number) for number in vectors}
        confirmed: dict[int, secure.ConsistencyAnswer] = self._ask_numbers(questions, self.late_failures)
        macs = {number: dict(zip(answer.numbers, answer.macs, strict=True)) for number, answer in confirmed.items()}
        questions = {number: self._unmask_question(lists, macs, number) for number in macs}
        answers: dict[int, secure.UnmaskAnswer] = self._ask_numbers(questions, self.late_failures)
        seeds: dict[int, dict[int, bytes]] = {number: {} for number in lists.survivors}
        keys: dict[int, dict[int, bytes]] = {}
        for holder, answer in answers.items():
            for number, share in zip(self._of_held(holder, lists.survivors), answer.seed_shares, strict=True):
                seeds[number][holder] = share
            for number, share in zip(self._of_held(holder, lists.dropped), answer.key_shares, strict=True):
                keys.setdefault(number, {})[holder] = share
        return self._unmasked(vectors, question.digest, seeds, keys)

    def _unmasked(self, vectors: Mapping[int, bytes], question: bytes, seeds: Shares, keys: Shares) -> np.ndarray:
        """Add up masked vectors and take the masks off the sum, by shares of seeds, and of keys of those without one.

        Raises UnmaskingError if a secret has fewer shares than the threshold, WrongSumError if a key that came out is
        not the client's.
        """
        total = np.sum([np.frombuffer(vector, dtype=WORD) for vector in vectors.values()], axis=0, dtype=WORD)
        for number in vectors:
            seed = _secret(self._members[number], seeds.get(number, {}))
            total -= own_mask(seed, total.size, own=number, held=self._held[number], question=question)
        for number in keys:
            key = _secret(self._members[number], keys[number])
            if public_key(key) != self._public[number].masking:
                raise WrongSumError(
                    "shares of a client that dropped out must give its key, and they do not: a neighbour sent a wrong "
                    "one"
                )
            for neighbour in (other for other in vectors if number in self._held[other]):
                route, other_key = (neighbour, number), self._public[neighbour].masking
                total -= pair_mask(key, other_key, total.size, route=route, question=question)
        return np.asarray(total, dtype=np.int64)

    def _limits(self) -> dict[int, int]:
        """Of how many members a participant's neighbourhood can do without: so many may be at fault."""
        return {number: len(near) - threshold_of(len(near)) for number, near in self._members.items()}

    def _senders(self, number: int) -> tuple[int, ...]:
        """Those whose shares a participant is sent."""
        return tuple(member for member in self._members[number] if member != number and member in self._sent)

    def _of_held(self, number: int, listed: tuple[int, ...]) -> list[int]:
        """Those in a list whose shares a participant holds, in increasing order."""
        return [other for other in listed if other in self._held[number]]

    def _require_holders(self, lists: secure.ConsistencyQuery) -> None:
        """Raise UnmaskingError if the masks of a participant without a vector can never be found."""
        for number in lists.dropped:
            num_holders = sum(number in self._held[other] for other in lists.survivors)
            needed = threshold_of(len(self._members[number]))
            if 0 < num_holders < needed:
                raise UnmaskingError(
                    f"{needed} of {len(self._members[number])} members must hold a share of {self._names[number]}'s "
                    f"key, got {num_holders}: it sealed them wrongly, others say so falsely, or too many others "
                    "dropped out; run again"
                )

    def _shares_question(self, number: int) -> Check:
        members = self._members[number]
        keys, is_complete = {n: self._public[n] for n in members}, self._group[number] == {*members}
        query = secure.SharesQuery(number, threshold_of(len(members)), keys, is_complete)
        others = tuple(member for member in members if member != number)

        def rules(answer: secure.SharesAnswer) -> Iterator[Rule]:
            if answer.sent.numbers != others or not {*map(len, answer.sent.shares)} <= {SEALED_BYTES}:
                detail = f"asked for {len(others)} shares of {SEALED_BYTES} bytes for neighbours, got others"
                yield FailureReason.WRONG_LENGTH, detail

        return self._asked(number, query, rules, num_bytes=len(others) * (_NUMBER_BYTES + SEALED_BYTES))

    def _masked_question(self, question: MaskedQuestion, number: int) -> Check:
        senders = self._senders(number)
        held = secure.HeldShares(senders, tuple(self._sent[sender][number] for sender in senders))

        def rules(answer: secure.MaskedAnswer) -> Iterator[Rule]:
            if not set(answer.unopened) <= set(senders):
                yield FailureReason.CONTRADICTION, "shares that did not open must be among those that were sent"
            yield from question.broken_rules(answer)

        num_bytes = question.query.num_values * WORD.itemsize + len(senders) * _NUMBER_BYTES
        return self._asked(number, secure.MaskedQuery(question.query, held), rules, num_bytes=num_bytes)

    def _consistency_question(self, lists: secure.ConsistencyQuery, number: int) -> Check:
        others = tuple(other for other in self._of_held(number, lists.survivors) if other != number)

        def rules(answer: secure.ConsistencyAnswer) -> Iterator[Rule]:
            if answer.numbers != others or not {*map(len, answer.macs)} <= {MAC_BYTES}:
                yield FailureReason.WRONG_LENGTH, f"asked for confirmations for {len(others)} neighbours, got others"

        return self._asked(number, lists, rules, num_bytes=len(others) * (_NUMBER_BYTES + MAC_BYTES))

    def _unmask_question(
        self, lists: secure.ConsistencyQuery, macs: Mapping[int, Mapping[int, bytes]], number: int
    ) -> Check:
        query = secure.UnmaskQuery({other: sent[number] for other, sent in macs.items() if number in sent})
        num_seeds, num_keys = (len(self._of_held(number, listed)) for listed in (lists.survivors, lists.dropped))
        wanted = ([SEED_BYTES] * num_seeds, [KEY_BYTES] * num_keys)

        def rules(answer: secure.UnmaskAnswer) -> Iterator[Rule]:
            if (list(map(len, answer.seed_shares)), list(map(len, answer.key_shares))) != wanted:
                yield FailureReason.WRONG_LENGTH, f"asked for {num_seeds + num_keys} shares, got others"

        return self._asked(number, query, rules, num_bytes=sum(map(sum, wanted)))

    def _asked(self, number: int, query: Any, rules: Callable[[Any], Iterable[Rule]], *, num_bytes: int) -> Check:
        """What one client is asked in one round, what its answer must obey, and about how long that is."""
        return Check(query, code_hash(), frozenset({self._names[number]}), rules, num_bytes)

    def _ask_numbers(self, questions: Mapping[int, Check], failures: list[Failure]) -> dict[int, Any]:
        answers, failed = self._ask({self._names[number]: asked for number, asked in questions.items()})
        failures += failed
        return {number: answers[self._names[number]] for number in questions if self._names[number] in answers}


def broken_key_rules(answer: secure.KeysAnswer, *, run_id: str) -> Iterator[Rule]:
    """Yield each rule that a client's keys break: a secret can be agreed on with both, they differ, and are signed."""
    keys = answer.keys.encryption, answer.keys.masking
    if not all(map(is_public_key, keys)):
        yield FailureReason.MALFORMED, "a public key must be a point of X25519 that gives a secret, and one is not"
    if keys[0] == keys[1]:
        yield FailureReason.MALFORMED, "the two public keys must differ"
    if answer.keys.signer + answer.keys.signature and not answer.keys.is_signed(run_id=run_id):
        yield FailureReason.MALFORMED, "the signature must be the signer's, of these keys and this run"


def without_shared_keys(outcome: RoundOutcome[Any]) -> RoundOutcome[Any]:
    """Return the outcome of the first round with clients that sent the same key among the failures.

    Which of them made the key is unknown, so none is believed.
    """
    shared = Counter(key for answer in outcome.answers for key in _keys_of(answer))
    answers, failures = [], list(outcome.failures)
    for each in outcome.answers:
        if all(shared[key] == 1 for key in _keys_of(each)):
            answers.append(each)
            continue
        detail, node_id = "two clients sent this public key", outcome.node_ids.get(each.client_id)
        node = None if node_id is None else node_hash(node_id)
        failures.append(Failure(each.client_id, FailureReason.CLAIMED_TWICE, detail, node=node))
    return replace(outcome, answers=tuple(answers), failures=tuple(failures))


def _keys_of(answer: secure.KeysAnswer) -> list[bytes]:
    """Return what no two clients may send; an agreed key that looks like another's signer is none."""
    keys = answer.keys
    return [keys.encryption, keys.masking, *([b"signer " + keys.signer] if keys.signer else [])]


def neighbourhoods(num_clients: int, *, num_neighbours: int, rng: np.random.Generator) -> dict[int, tuple[int, ...]]:
    """Return the members of each client's neighbourhood, itself among them, in increasing order of their numbers.

    `rng` arranges the clients in a ring, where the nearest on either side are neighbours; the arrangement is public.
    Neighbours are so of each other, and unless num_neighbours / 2 clients in a row drop out, the others stay connected.
    With no more clients than `num_neighbours`, or one more, all are neighbours. Source: Bell et al. 2020, SecAgg+
    (Harary graphs). Raises ValueError if num_neighbours is odd or below 2, or there are fewer than 2 clients.
    """
    if num_neighbours < 2 or num_neighbours % 2 or num_clients < 2:
        raise ValueError(
            f"num_neighbours must be even and at least 2, of at least 2 clients, got {num_neighbours} of {num_clients}"
        )
    if num_clients <= num_neighbours + 1:
        everybody = tuple(range(1, num_clients + 1))
        return dict.fromkeys(everybody, everybody)
    ring = rng.permutation(num_clients)
    steps = np.arange(-(num_neighbours // 2), num_neighbours // 2 + 1)
    return {
        int(ring[place]) + 1: tuple(np.sort(ring[(place + steps) % num_clients] + 1).tolist())
        for place in range(num_clients)
    }


def left_out(unopened: Mapping[int, Iterable[int]], *, limits: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
    """Return clients without whom no share is in dispute, each with those whose dispute with it decided that.

    Two clients of which one has no mask with the other cannot both be in the sum. Nobody can tell which of two is at
    fault, so both go, each with the other: k clients that seal wrongly or accuse falsely take k honest ones with them
    at most, and none is named alone. Only who is in dispute with more than may be at fault, and with two at least, goes
    alone: an honest client is in dispute with none but those that are.

    `unopened` has, for clients with a vector, the senders with a vector whose shares they could not open; `limits` how
    many of the neighbours of each may be at fault.
    """
    disputes = {frozenset((sender, recipient)) for recipient, senders in unopened.items() for sender in senders}
    opponents = {
        number: tuple(sorted(other for pair in disputes if number in pair for other in pair - {number}))
        for number in sorted(number for pair in disputes for number in pair)
    }
    found = {number: others for number, others in opponents.items() if len(others) > max(1, limits[number])}
    disputes = {pair for pair in disputes if not pair & found.keys()}
    while disputes:
        counts = Counter(number for pair in disputes for number in pair)
        pair = max(sorted(map(sorted, disputes)), key=lambda pair: sum(counts[number] for number in pair))
        found |= {pair[0]: (pair[1],), pair[1]: (pair[0],)}
        disputes = {other for other in disputes if not other & {*pair}}
    return found


def _secret(members: Sequence[int], shares: Mapping[int, bytes]) -> bytes:
    threshold = threshold_of(len(members))
    if len(shares) < threshold:
        raise UnmaskingError(
            f"{threshold} of {len(members)} members must give their share of a client's secret, got {len(shares)}; too "
            "many dropped out after the masked vectors had been sent: run again"
        )
    chosen = sorted(shares)[:threshold]
    return combined({members.index(member) + 1: shares[member] for member in chosen})
