"""Five rounds of secure aggregation -> one histogram of clients -> every certificate of `strategies.f_divergence`.

If what comes out is no histogram, somebody lied: then five more, for groups with a sum each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid

import riskband as rb
from protocol import wire
from protocol.codec import PROTOCOL_VERSION, to_array_record, to_arrays
from protocol.hashes import code_hash, model_hash
from protocol.questions import Query, SignedAnswer
from protocol.secure.questions import HistogramQuery, KeysQuery, MaskedQuery
from riskband.answers.histogram import Histogram
from riskband.answers.risks import default_eta
from riskband.checks import in_decimals
from riskband.models.losses import get_loss
from strategies.asking.exchange import Parcel
from strategies.asking.failures import Failure, FailureReason, in_order
from strategies.asking.query import Arrays
from strategies.asking.replies import Check, QuorumError, RoundOutcome, settle
from strategies.asking.resume import Counts, OpenedSum
from strategies.f_divergence import FDivergence
from strategies.secure.secure_sum import (
    Ask,
    MaskedQuestion,
    SecureSum,
    UnmaskingError,
    WrongSumError,
    broken_key_rules,
    without_shared_keys,
)

SIZES = ("equal", "private")

_WRONG = (
    FailureReason.WRONG_SUM,
    "the sum of its group is none of histograms: someone in it sent a wrong vector or share",
)
_NOT_OPENED = FailureReason.NO_SUM, "the sum of its group was not opened, since someone in it failed"


@dataclass(frozen=True)
class SecureOutcome(RoundOutcome[SignedAnswer]):
    """What the rounds brought: `answers` say who is counted, and nothing else of any client."""

    counts: Counts  # num_rows of num_bins, sums of the clients' histograms
    late_failures: tuple[Failure, ...] = ()  # clients that are counted and fell silent after that
    # If the counts of all were wrong: the groups that were asked again, and those of them whose sum is wrong too.
    groups: tuple[tuple[str, ...], ...] = ()
    wrong_groups: tuple[tuple[str, ...], ...] = ()


@dataclass(eq=False, kw_only=True)
class SecureHistogram(FDivergence):
    """Learn how many clients have their loss in each bin, and no client's; certify as `FDivergence` from the counts.

    If the counts are no sum of histograms, clients are asked once more, in groups with a sum each; those in a group
    whose sum is wrong are failures. Then clients that failed count as the worst, whatever `missing` says: who lies may
    have chosen them. If no group is wrong, `contamination` is 1 at least: who lied is counted.

    Takes the settings of `FDivergence`, but for `respect_budgets` and `privacy` of the query, which need single
    answers; `on_answer` gets an `OpenedSum`, and `earlier` is of these. The `seed` is also that of who is whose
    neighbour, and in whose group.

    Raises ValueError if a setting is out of its range or needs single answers.
    """

    num_bins: int  # bins of equal width
    # What every client has; those with another number refuse. None: numbers are private, and the clients bin limits of
    # their own, at the error level `riskband.answers.risks.default_eta` of `num_clients`.
    num_examples: int | None
    num_neighbours: int  # with how many others a client shares masks and secrets; even
    group_size: int  # number of clients, at least, in a group that is asked again; 0: no group ever is

    def __post_init__(self) -> None:
        if self.query.privacy or self.respect_budgets:
            name = "privacy" if self.query.privacy else "respect_budgets"
            raise ValueError(f"{name} must not be given for a secure histogram: no single answer is ever seen")
        super().__post_init__()
        edges = tuple(in_decimals(np.linspace(0.0, 1.0, self.num_bins + 1)).tolist())
        eta = default_eta(self.num_clients) if self.num_examples is None else None
        self.query = HistogramQuery(**vars(self.query), edges=edges, num_examples=self.num_examples, eta=eta)

    def ask(self, grid: Grid, query: Query, arrays: Arrays, *, round: int = 1) -> SecureOutcome:
        """Ask all nodes a `HistogramQuery` in five rounds from this one on, and return the sum of their histograms.

        If that is wrong, there are more rounds, for groups. What an interrupted run has opened is not asked again.

        Raises QuorumError if fewer than `num_needed` clients are in the sum, which then is not unmasked, or too few are
        left to do so, or then no group's sum is right; WrongSumError if the sum is wrong and there are no two groups.
        """
        assert isinstance(query, HistogramQuery)
        record = to_array_record(arrays)
        sent_hash = model_hash(to_arrays(record))
        digest = query.digest(version=PROTOCOL_VERSION, model_hash=sent_hash, code_hash=code_hash())
        question, rounds = MaskedQuestion(query, sent_hash, digest), count(round)
        ask = partial(self._ask_named, grid, record, rounds)
        opened = [entry.answer for entry in self.earlier or () if isinstance(entry.answer, OpenedSum)]
        first = opened[0] if opened else self._first_sum(self._ask_for_keys(grid, next(rounds)), ask, question)
        problem = self._problem(first, contamination=self.contamination)
        if problem is None:
            return _outcome(first, [first])
        groups = self._groups(first.clients, problem)
        found, failures = self._sums_of_groups(groups, opened[1:], ask, question, _key_rules(grid))
        right = {each.clients: each for each in found if self._problem(each, contamination=0) is None}
        wrong = tuple(each.clients for each in found if each.clients not in right)
        failed = {failure.client_id for failure in failures}
        for group in groups:
            if group not in right:
                why = _WRONG if group in wrong else _NOT_OPENED
                failures += [Failure(name, *why) for name in group if name not in failed]
        outcome = _outcome(first, [*right.values()], failures, groups=groups, wrong_groups=wrong)
        if not right:
            self._require_quorum(outcome)
        return outcome

    def answered(self, outcome: RoundOutcome[Any]) -> Histogram:
        """Return the counts as what the library certifies from."""
        assert isinstance(outcome, SecureOutcome)
        who = self.who_answered | {"num_missing": len(outcome.failures)}
        if outcome.groups:
            who["missing"] = "worst"
            who["contamination"] = max(self.contamination, 0 if outcome.wrong_groups else 1)
        return self._histogram(outcome.counts, **who)

    def _histogram(self, counts: Counts, **who: Any) -> Histogram:
        query = self.query
        is_binary = get_loss(query.loss).binary
        if query.eta is not None:
            return rb.HistogramLimits(query.edges, counts, eta=query.eta, binary=is_binary, **who)
        return rb.HistogramRisks(query.edges, counts[0], query.num_examples, binary=is_binary, **who)

    def _problem(self, opened: OpenedSum, *, contamination: int) -> str | None:
        """What is wrong with a sum, if so many clients may be in a wrong bin; None: nothing that can be seen."""
        try:
            check_counts(opened.counts, num_rows=self.query.num_rows, num_clients=len(opened.clients))
            self._histogram(opened.counts, contamination=contamination)
        except ValueError as error:
            return str(error)
        return None

    def _first_sum(self, first: RoundOutcome[Any], ask: Ask, question: MaskedQuestion) -> OpenedSum:
        """Open the sum of all who sent keys in the first round and a vector."""
        self._require_quorum(first)
        keys = {answer.client_id: answer for answer in first.answers}
        rounds = self._secure_sum(keys, ask, [keys])
        masked = rounds.collect(question)
        answers = tuple(masked[name] for name in sorted(masked))
        outcome = replace(first, answers=answers, failures=in_order([*first.failures, *rounds.failures]))
        self._require_quorum(outcome)
        try:
            return self._opened(rounds, question, masked, outcome)
        except UnmaskingError as error:
            late = [f"{failure.client_id}: {failure.detail}" for failure in rounds.late_failures[:3]]
            raise QuorumError(f"{error}. First late failures: {'; '.join(late) or 'none'}", outcome) from error

    def _groups(self, clients: Sequence[str], problem: str) -> tuple[tuple[str, ...], ...]:
        """Groups to ask again, drawn at random; each client is in one."""
        num_groups = len(clients) // self.group_size if self.group_size else 0
        if num_groups < 2:
            raise WrongSumError(
                f"{problem}; and nobody can tell who it was: {len(clients)} clients make no two groups to ask again "
                f"(secure-group-size {self.group_size}). Run again with clients that you trust; two sums over almost "
                "the same clients show how those differ that are in one only, and each costs query budget"
            )
        if self.on_detail is not None:
            self.on_detail(f"the counts do not add up: all are asked again, in {num_groups} groups")
        order = np.random.default_rng(self.seed).permutation(clients)
        return tuple(tuple(sorted(group.tolist())) for group in np.array_split(order, num_groups))

    def _sums_of_groups(
        self,
        groups: Iterable[tuple[str, ...]],
        earlier: Iterable[OpenedSum],
        ask: Ask,
        question: MaskedQuestion,
        key_rules: Callable[..., Any],
    ) -> tuple[list[OpenedSum], list[Failure]]:
        """Open the sums of groups, but for those that are; return all, and who has failed.

        A group of which anyone is missing is not opened: the sum of all less those of the groups would be the sum of
        the few that are missing.
        """
        found = [each for each in earlier if each.clients in groups]
        open_groups = [group for group in groups if group not in {each.clients for each in found}]
        check = partial(Check, KeysQuery(self.group_size), code_hash(), broken_rules=key_rules)
        answers, failures = ask({name: check(frozenset({name})) for group in open_groups for name in group})
        first = without_shared_keys(RoundOutcome(tuple(answers.values()), tuple(failures), len(answers)))
        keys = {answer.client_id: answer for answer in first.answers}
        whole = [group for group in open_groups if keys.keys() >= {*group}]
        rounds = self._secure_sum({name: keys[name] for group in whole for name in group}, ask, whole, is_whole=True)
        masked = rounds.collect(question)
        for group in whole:
            if masked.keys() >= {*group}:
                with suppress(UnmaskingError):
                    vectors = {name: masked[name] for name in group}
                    found.append(self._opened(rounds, question, vectors, RoundOutcome((), (), len(group))))
        return found, [*first.failures, *rounds.failures]

    def _secure_sum(self, keys: Mapping[str, Any], ask: Ask, groups: Iterable[Any], **more: bool) -> SecureSum:
        rng = np.random.default_rng(self.seed)
        return SecureSum(keys, ask, groups=groups, num_neighbours=self.num_neighbours, rng=rng, **more)

    def _opened(
        self, rounds: SecureSum, question: MaskedQuestion, masked: Mapping[str, Any], asked: RoundOutcome[Any]
    ) -> OpenedSum:
        """Open the sum of these vectors, and say so at once; raises UnmaskingError if too few are left."""
        rows = []
        with suppress(WrongSumError):
            rows = rounds.total(question, masked).reshape(self.query.num_rows, -1).tolist()
        late = tuple(failure for failure in rounds.late_failures if failure.client_id in masked)
        opened = OpenedSum(tuple(sorted(masked)), tuple(map(tuple, rows)), asked.failures, late, asked.num_asked)
        if self.on_answer is not None:
            self.on_answer(self.query, opened, None)
        return opened

    def _ask_after_hello(self, grid: Grid, arrays: ArrayRecord) -> SecureOutcome:
        self.meet(grid)  # which node is which client
        return self.ask(grid, self.query, arrays)

    def _ask_for_keys(self, grid: Grid, round: int) -> RoundOutcome[Any]:
        group_size = self.group_size if self.num_clients >= 2 * self.group_size else 0  # else there are no two
        check = Check(KeysQuery(group_size), code_hash(), self.expected_client_ids, _key_rules(grid))
        outcome = without_shared_keys(self._ask_without_model(grid, check, round, on_progress=self.on_progress))
        self._remember(outcome)
        return outcome

    def _ask_named(
        self, grid: Grid, arrays: ArrayRecord, rounds: Iterator[int], questions: Mapping[str, Check]
    ) -> tuple[dict[str, Any], list[Failure]]:
        """Put questions to clients by name, in the next round."""
        parcels = []
        answers: dict[str, Any] = {}
        gone = "the client of this name is not there any more"
        failures = [Failure(name, FailureReason.NODE_MISSING, gone) for name in questions.keys() - self._nodes.keys()]
        for name, asked in ((name, questions[name]) for name in questions if name in self._nodes):
            content = wire.encode_query(asked.query, arrays if isinstance(asked.query, MaskedQuery) else None)
            parcels.append(Parcel(self._node(self._nodes[name]), content, asked))
        # Nothing is sent again: what a client keeps between the rounds is lost with its node.
        replies = self._send(grid, parcels, next(rounds), on_progress=self.on_progress)
        # Each reply by itself: whose name a node must answer under is known, and it cannot claim another's.
        for parcel, received in zip(parcels, replies, strict=True):
            outcome = settle([received], num_asked=1, nodes=[parcel.node])
            answers.update((answer.client_id, answer) for answer in outcome.answers)
            failures += outcome.failures
        return answers, failures


def _key_rules(grid: Grid) -> Callable[..., Any]:
    """What is wrong with keys in this run."""
    return partial(broken_key_rules, run_id=str(grid.run.run_id))


def check_counts(counts: Counts, *, num_rows: int, num_clients: int) -> None:
    """Raise ValueError unless counts, modulo 2**32, may be `num_rows` sums of the histograms of so many clients.

    Each honest client adds one to each row, so no count is larger than their number.
    """
    sums, largest = [sum(row) for row in counts], max(map(max, counts), default=0)
    if sums != [num_clients] * num_rows or largest > num_clients:
        raise WrongSumError(
            f"the counts do not add up: each of {num_clients} clients must be counted once, got sums {sums} and a "
            f"largest count of {largest}; a client sent a wrong vector or a neighbour a wrong share, or not all were "
            "asked the same"
        )


def _outcome(
    first: OpenedSum, right: Sequence[OpenedSum], failures: Sequence[Failure] = (), **groups: Any
) -> SecureOutcome:
    """What the sums that are right bring, after a first one of all clients."""
    names = sorted(name for each in right for name in each.clients)
    return SecureOutcome(
        tuple(SignedAnswer(client_id=name, code_hash=code_hash()) for name in names),
        in_order([*first.failures, *failures]),
        first.num_asked,
        counts=tuple(map(tuple, np.sum([each.counts for each in right], axis=0).tolist())) if right else (),
        late_failures=tuple(failure for each in right for failure in each.late_failures),
        **groups,
    )
