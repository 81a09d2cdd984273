"""Five rounds of secure aggregation -> one histogram of clients -> every certificate of `strategies.f_divergence`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid

import riskband as rb
from protocol import wire
from protocol.codec import PROTOCOL_VERSION, to_array_record, to_arrays
from protocol.hashes import code_hash, model_hash
from protocol.questions import Query
from protocol.secure.questions import HistogramQuery, KeysQuery, MaskedQuery
from riskband.answers.histogram import Histogram
from riskband.answers.risks import default_eta
from riskband.models.losses import get_loss
from strategies.asking.exchange import Parcel
from strategies.asking.failures import Failure, in_order
from strategies.asking.query import Arrays
from strategies.asking.replies import Check, QuorumError, RoundOutcome, settle
from strategies.f_divergence import FDivergence
from strategies.secure.secure_sum import (
    MaskedQuestion,
    SecureSum,
    UnmaskingError,
    broken_key_rules,
    without_shared_keys,
)

SIZES = ("equal", "private")


@dataclass(frozen=True)
class SecureOutcome(RoundOutcome[Any]):
    """What the rounds brought: `answers` are masked, and nothing can be read in them."""

    counts: tuple[tuple[int, ...], ...]  # num_rows of num_bins, sums of the clients' histograms
    late_failures: tuple[Failure, ...] = ()  # clients that are counted and fell silent after that


@dataclass(eq=False, kw_only=True)
class SecureHistogram(FDivergence):
    """Learn how many clients have their loss in each bin, and no client's; certify as `FDivergence` from the counts.

    Takes the settings of `FDivergence`, but for what needs single answers: `earlier`, `respect_budgets`, `on_answer`,
    and `privacy` of the query. The `seed` is also that of who is whose neighbour.

    Raises ValueError if a setting is out of its range or needs single answers.
    """

    num_bins: int  # bins of equal width
    # What every client has; those with another number refuse. None: numbers are private, and the clients bin limits of
    # their own, at the error level `riskband.answers.risks.default_eta` of `num_clients`.
    num_examples: int | None
    num_neighbours: int  # with how many others a client shares masks and secrets; even

    def __post_init__(self) -> None:
        unfit = [name for name in ("earlier", "respect_budgets", "on_answer") if getattr(self, name)]
        if self.query.privacy or unfit:
            name = "privacy" if self.query.privacy else unfit[0]
            raise ValueError(f"{name} must not be given for a secure histogram: no single answer is ever seen")
        super().__post_init__()
        edges = tuple(np.linspace(0.0, 1.0, self.num_bins + 1).tolist())
        eta = default_eta(self.num_clients) if self.num_examples is None else None
        self.query = HistogramQuery(**vars(self.query), edges=edges, num_examples=self.num_examples, eta=eta)

    def ask(self, grid: Grid, query: Query, arrays: Arrays, *, round: int = 1) -> SecureOutcome:
        """Ask all nodes a `HistogramQuery` in five rounds from this one on, and return the sum of their histograms.

        Raises QuorumError if fewer than `num_needed` clients are in the sum, which then is not unmasked, or too few are
        left to do so; ValueError if the counts do not add up to the number of clients in the sum.
        """
        assert isinstance(query, HistogramQuery)
        first = self._ask_for_keys(grid, round)
        self._require_quorum(first)

        record = to_array_record(arrays)
        ask_named = partial(self._ask_named, grid, record, round - 1)
        keys = {answer.client_id: answer for answer in first.answers}
        rounds = SecureSum(keys, ask_named, num_neighbours=self.num_neighbours, rng=np.random.default_rng(self.seed))
        sent_hash = model_hash(to_arrays(record))
        digest = query.digest(version=PROTOCOL_VERSION, model_hash=sent_hash, code_hash=code_hash())
        question = MaskedQuestion(query, sent_hash, digest)
        masked = rounds.collect(question)
        outcome = replace(
            first,
            answers=tuple(masked[name] for name in sorted(masked)),
            failures=in_order([*first.failures, *rounds.failures]),
        )
        self._require_quorum(outcome)
        try:
            total = rounds.total(question, masked)
        except UnmaskingError as error:
            late = [f"{failure.client_id}: {failure.detail}" for failure in rounds.late_failures[:3]]
            raise QuorumError(f"{error}. First late failures: {'; '.join(late) or 'none'}", outcome) from error
        counts = checked_counts(total, num_rows=query.num_rows, num_clients=len(masked))
        return SecureOutcome(
            outcome.answers,
            outcome.failures,
            outcome.num_asked,
            counts=tuple(map(tuple, counts.tolist())),
            late_failures=tuple(rounds.late_failures),
        )

    def answered(self, outcome: RoundOutcome[Any]) -> Histogram:
        """Return the counts as what the library certifies from; raises ValueError if they contradict each other."""
        assert isinstance(outcome, SecureOutcome)
        query = self.query
        is_binary, num_missing = get_loss(query.loss).binary, len(outcome.failures)
        rest = {"binary": is_binary, "num_missing": num_missing, **self.who_answered}
        if query.eta is not None:
            return rb.HistogramLimits(query.edges, outcome.counts, eta=query.eta, **rest)
        return rb.HistogramRisks(query.edges, outcome.counts[0], query.num_examples, **rest)

    def _ask_for_keys(self, grid: Grid, round: int) -> RoundOutcome[Any]:
        rules = partial(broken_key_rules, run_id=str(grid.run.run_id))
        check = Check(KeysQuery(), code_hash(), self.expected_client_ids, rules)
        outcome = without_shared_keys(self._ask_without_model(grid, check, round, on_progress=self.on_progress))
        self._remember(outcome)
        return outcome

    def _ask_named(
        self, grid: Grid, arrays: ArrayRecord, num_before: int, questions: Mapping[str, Check], number: int
    ) -> tuple[dict[str, Any], list[Failure]]:
        """Put questions to clients by name, in the round of this number of an aggregation that others came before."""
        parcels = []
        for name, asked in questions.items():
            content = wire.encode_query(asked.query, arrays if isinstance(asked.query, MaskedQuery) else None)
            parcels.append(Parcel(self._node(self._nodes[name]), content, asked))
        # Nothing is sent again: what a client keeps between the rounds is lost with its node.
        replies = self._send(grid, parcels, num_before + number, on_progress=self.on_progress)
        answers: dict[str, Any] = {}
        failures: list[Failure] = []
        # Each reply by itself: whose name a node must answer under is known, and it cannot claim another's.
        for parcel, received in zip(parcels, replies, strict=True):
            outcome = settle([received], num_asked=1, nodes=[parcel.node])
            answers.update((answer.client_id, answer) for answer in outcome.answers)
            failures += outcome.failures
        return answers, failures


def checked_counts(total: np.ndarray, *, num_rows: int, num_clients: int) -> np.ndarray:
    """Return the sum of histograms, shape (num_rows * num_bins,), modulo 2**32, by row, shape (num_rows, num_bins).

    Raises ValueError if a count is larger than the number of clients in the sum, or a row does not sum to it: each
    honest client adds one.
    """
    counts = total.reshape(num_rows, -1)
    sums = counts.sum(axis=1).tolist()
    if counts.max() > num_clients or any(found != num_clients for found in sums):
        raise ValueError(
            f"the counts do not add up: each of {num_clients} clients must be counted once, got sums {sums} and a "
            f"largest count of {counts.max()}; a client sent a wrong vector or a neighbour a wrong share, or not all "
            "were asked the same, and nobody can tell who it was. Run again with clients that you trust; two sums over "
            "almost the same clients show how those differ that are in one only, and each costs query budget"
        )
    return counts
