"""A Flower strategy that asks every client one question and believes nothing it cannot check.

`QueryStrategy` owns what every certificate needs and none should repeat: waiting for the nodes,
sending, matching replies to messages, refusing bad answers, stopping when too few are left. A
subclass says what to ask (`query`) and what to make of the answers (`conclude`).
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from logging import INFO
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from client import wire
from client.wire import AdversarialQuery, Answer, Query
from strategies.exchange import Exchange, Progress, Replies, pause_until
from strategies.failures import Failure, FailureReason
from strategies.replies import AnswerCheck, RoundOutcome, settle

__all__ = [
    "Failure",
    "FailureReason",
    "Progress",
    "QueryResult",
    "QueryStrategy",
    "QuorumError",
    "RoundOutcome",
]

# A message outlives the deadline a little, so that the deadline and not Flower's expiry ends a wait.
_TTL_MARGIN = 60.0


@dataclass
class QueryResult(Result):
    """Flower's result, with what the round brought and what the strategy concluded from it."""

    outcome: RoundOutcome[Any] | None = None
    conclusion: Any = None


class QuorumError(RuntimeError):
    """Too few valid answers to conclude anything; `outcome` holds all that came."""

    def __init__(self, message: str, outcome: RoundOutcome[Any]) -> None:
        super().__init__(message)
        self.outcome = outcome


class QueryStrategy(Strategy):
    """Ask every client one question; hand the valid answers to a subclass.

    Parameters
    ----------
    num_clients : int
        Number of nodes to wait for.
    quorum : float, in (0, 1]
        Fraction of `num_clients` that must answer validly.
    node_timeout : float, seconds
        How long to wait for the nodes to register. A simulation's ServerApp starts before its
        nodes exist: without waiting, a run silently covers part of them.
    reply_timeout : float, seconds
        How long to wait for the replies of one round.
    expected_client_ids : frozenset of str, optional
        The clients that may answer. None accepts any name, each at most once.
    on_answer : callable, optional
        Called with each valid answer the moment it arrives, before anything can go wrong later.
        A contested client id is known only at the end of the round, so a ledger may hold answers
        that the outcome refuses: there, a name under different answers must not be believed.
    on_progress : callable, optional
        Called with a `Progress` after the push and whenever replies came in.
    poll_interval : float, seconds
        Pause between two looks at the grid while nothing arrives.

    Raises
    ------
    ValueError
        If a parameter is out of its range.
    """

    def __init__(
        self,
        *,
        num_clients: int,
        quorum: float = 0.9,
        node_timeout: float = 120.0,
        reply_timeout: float = 3600.0,
        expected_client_ids: frozenset[str] | None = None,
        on_answer: Callable[[Any], None] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        poll_interval: float = 0.2,
    ) -> None:
        _check_settings(num_clients, quorum, node_timeout, reply_timeout, poll_interval)
        self.num_clients = num_clients
        self.quorum = quorum
        self.node_timeout = node_timeout
        self.reply_timeout = reply_timeout
        self.expected_client_ids = expected_client_ids
        self.on_answer = on_answer
        self.on_progress = on_progress
        self.poll_interval = poll_interval
        self._nodes: dict[str, int] = {}  # node ids of the clients that have answered

    @abstractmethod
    def query(self) -> Query:
        """Return the question to ask."""

    @abstractmethod
    def conclude(self, outcome: RoundOutcome[Any]) -> Any:
        """Return what the strategy makes of a round that met the quorum."""

    @property
    def num_needed(self) -> int:
        """Number of valid answers that meets the quorum, at least 1."""
        # 0.07 * 100 is 7.000000000000001 in floating point; that must not ask for an 8th client.
        return max(1, math.ceil(self.quorum * self.num_clients - 1e-9))

    def ask(
        self,
        grid: Grid,
        query: Query,
        arrays: Mapping[str, np.ndarray] | ArrayRecord,
        *,
        round: int = 1,
    ) -> RoundOutcome[Any]:
        """Ask all nodes one question and return every valid answer and every failure.

        Parameters
        ----------
        grid : Grid
            Flower's connection to the nodes.
        query : LossQuery or AdversarialQuery
            The question.
        arrays : mapping of str to ndarray, or ArrayRecord
            The model's weights by name.
        round : int
            Round number, sent as the messages' group id.

        Raises
        ------
        QuorumError
            If fewer than `num_needed` nodes register or answer validly. `on_answer` has been
            called for every valid answer by then.
        """
        node_ids = self._wait_for_nodes(grid)
        missing = [self._missing_node()] * (self.num_clients - len(node_ids))
        if len(node_ids) < self.num_needed:
            self._require_quorum(settle([[failure] for failure in missing], num_asked=0))
        questions = [(node_id, query, self.expected_client_ids) for node_id in node_ids]
        replies = self._exchange(grid, questions, arrays, round=round)
        outcome = settle([*replies, *([failure] for failure in missing)], num_asked=len(questions))
        self._remember_nodes(node_ids, replies, outcome)
        self._require_quorum(outcome)
        return outcome

    def ask_each(
        self,
        grid: Grid,
        queries: Mapping[str, Query],
        arrays: Mapping[str, np.ndarray] | ArrayRecord,
        *,
        round: int,
    ) -> RoundOutcome[Any]:
        """Ask some clients, each a question of its own, and return every valid answer and every failure.

        There is no quorum here: what a missing answer means is known only to who asks.

        Parameters
        ----------
        grid, arrays, round :
            See `ask`.
        queries : mapping of str to LossQuery or AdversarialQuery
            The question for each client, by client id. Clients that are left out are not asked.

        Returns
        -------
        RoundOutcome
            Failures carry the name of the client that was asked.

        Raises
        ------
        ValueError
            If a client has not answered an earlier `ask` of this strategy validly: which node it is, is unknown.
        """
        unknown = sorted(set(queries) - set(self._nodes))
        if unknown:
            raise ValueError(
                f"only clients that answered an earlier round can be asked by name, got {unknown[0]!r} and "
                f"{len(unknown) - 1} others that did not; ask all clients first"
            )
        clients = sorted(queries)
        questions = [(self._nodes[client], queries[client], frozenset({client})) for client in clients]
        replies = self._exchange(grid, questions, arrays, round=round)
        named = [
            [_named(reply, client) for reply in received] for client, received in zip(clients, replies, strict=True)
        ]
        return settle(named, num_asked=len(clients))

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 1,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> QueryResult:
        """Ask `query` once and return the outcome with the subclass's conclusion.

        The signature is Flower's; nothing is trained here, so only `grid` and `initial_arrays`
        mean anything, and `reply_timeout` stands in for `timeout`.

        Raises
        ------
        ValueError
            If an argument is given that a single question cannot honour.
        QuorumError
            See `ask`.
        """
        if num_rounds != 1 or any(x is not None for x in (timeout, train_config, evaluate_config, evaluate_fn)):
            raise ValueError(
                "a query strategy asks once and trains nothing: pass only grid and initial_arrays; "
                "set reply_timeout in the constructor instead of timeout"
            )
        self.summary()
        outcome = self.ask(grid, self.query(), initial_arrays)
        return QueryResult(arrays=initial_arrays, outcome=outcome, conclusion=self.conclude(outcome))

    def summary(self) -> None:
        """Log what is about to be asked of how many clients."""
        log(
            INFO,
            "%s: asking %d clients, at least %d must answer within %g s",
            type(self).__name__,
            self.num_clients,
            self.num_needed,
            self.reply_timeout,
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return no messages: nothing is trained."""
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return nothing: nothing was trained."""
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return no messages: `ask` sends its own."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return nothing: `ask` reads its own replies."""
        return None

    def _exchange(
        self,
        grid: Grid,
        questions: Sequence[tuple[int, Query, frozenset[str] | None]],
        arrays: Mapping[str, np.ndarray] | ArrayRecord,
        *,
        round: int,
    ) -> list[Replies]:
        """Put questions to nodes: (node id, query, clients that may answer) -> what came back for each."""
        record = wire.to_array_record(arrays)
        model_hash, code_hash = wire.model_hash(wire.to_arrays(record)), wire.code_hash()
        contents = {query: wire.encode_query(query, record) for query in {query for _, query, _ in questions}}
        messages = [
            Message(
                contents[query],
                node_id,
                wire.message_type(query),
                ttl=self.reply_timeout + _TTL_MARGIN,
                group_id=str(round),
            )
            for node_id, query, _ in questions
        ]
        checks = [
            AnswerCheck(
                loss=query.loss,
                model_hash=model_hash,
                code_hash=code_hash,
                expected_client_ids=expected,
                adversarial=query if isinstance(query, AdversarialQuery) else None,
            )
            for _, query, expected in questions
        ]
        exchange = Exchange(self.reply_timeout, self.poll_interval, self.on_answer, self.on_progress)
        return exchange.run(grid, messages, checks)

    def _remember_nodes(self, node_ids: Sequence[int], replies: Sequence[Replies], outcome: RoundOutcome[Any]) -> None:
        node_of = {
            reply.client_id: node_id
            for node_id, received in zip(node_ids, replies, strict=True)
            for reply in received
            if not isinstance(reply, Failure)
        }
        self._nodes |= {answer.client_id: node_of[answer.client_id] for answer in outcome.answers}

    def _wait_for_nodes(self, grid: Grid) -> list[int]:
        deadline = time.monotonic() + self.node_timeout
        while True:
            node_ids = sorted(grid.get_node_ids())
            if len(node_ids) >= self.num_clients or time.monotonic() >= deadline:
                return node_ids
            pause_until(deadline, self.poll_interval)

    def _require_quorum(self, outcome: RoundOutcome[Any]) -> None:
        if len(outcome.answers) >= self.num_needed:
            return
        counts = Counter(failure.reason for failure in outcome.failures)
        reasons = ", ".join(f"{count} x {reason}" for reason, count in sorted(counts.items()))
        first = "; ".join(f"{f.client_id or 'a client'}: {f.detail}" for f in outcome.failures[:3])
        raise QuorumError(
            f"{self.num_needed} of {self.num_clients} clients must answer validly (quorum {self.quorum:g}), "
            f"got {len(outcome.answers)} valid answers from {outcome.num_asked} asked: {reasons}. "
            f"First failures: {first}. Repair these clients, wait longer (node-timeout, reply-timeout) "
            "or lower quorum",
            outcome,
        )

    def _missing_node(self) -> Failure:
        detail = f"the node did not register within {self.node_timeout:g} s"
        return Failure(None, FailureReason.NODE_MISSING, detail)


def _named(reply: Answer | Failure, client: str) -> Answer | Failure:
    """A failure without a name, under the name of the client that was asked."""
    return replace(reply, client_id=client) if isinstance(reply, Failure) and reply.client_id is None else reply


def _check_settings(
    num_clients: int, quorum: float, node_timeout: float, reply_timeout: float, poll_interval: float
) -> None:
    if num_clients < 1:
        raise ValueError(f"num_clients must be at least 1, got {num_clients}")
    if not 0 < quorum <= 1:
        raise ValueError(f"quorum must be in (0, 1], got {quorum}; it is a fraction of num_clients, not a count")
    for name, seconds in (("node_timeout", node_timeout), ("reply_timeout", reply_timeout)):
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"{name} must be a finite number of seconds >= 0, got {seconds}")
    if not poll_interval > 0:
        raise ValueError(f"poll_interval must be > 0 seconds, got {poll_interval}")
