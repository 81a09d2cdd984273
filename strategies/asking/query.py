"""A Flower strategy that asks every client one question and believes nothing it cannot check.

`QueryStrategy` owns what every certificate needs and none should repeat: waiting for the nodes,
sending, matching replies to messages, refusing bad answers, stopping when too few are left. A
subclass says what to make of the answers (`conclude`).
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from client.answer_record import asked_hash
from client.budget import request_of
from protocol import wire
from protocol.codec import to_array_record, to_arrays
from protocol.hashes import code_hash, model_hash
from protocol.questions import HelloAnswer, HelloQuery, Query
from riskband.answers.signing import Signed
from strategies.asking.exchange import Exchange, Parcel, Progress, Replies, pause_until
from strategies.asking.failures import Failure, FailureReason, Node, alike
from strategies.asking.replies import Check, QuorumError, RoundOutcome, answer_check, num_needed, settle
from strategies.asking.resume import EarlierAnswer, EarlierAnswers, join

__all__ = ["Failure", "FailureReason", "Progress", "QueryResult", "QueryStrategy", "QuorumError", "RoundOutcome"]

Arrays = Mapping[str, np.ndarray] | ArrayRecord
"""The weights of a model by name."""


@dataclass
class QueryResult(Result):
    """Flower's result, with what the round brought and what the strategy concluded from it."""

    outcome: RoundOutcome[Any] | None = None
    conclusion: Any = None


@dataclass(eq=False, kw_only=True)
class QueryStrategy(Strategy):
    """Ask every client one question; hand the valid answers to a subclass.

    Raises ValueError if a parameter is out of its range.
    """

    query: Any = field(kw_only=False)
    num_clients: int  # number of nodes to wait for
    quorum: float = 0.9  # fraction, in (0, 1], of `num_clients` that must answer validly
    # Seconds to wait for the nodes to register. A simulation's ServerApp starts before its nodes exist: without
    # waiting, a run silently covers part of them. As long a node that went away with a question may take to come back;
    # it is then asked again, see docs/protocol.md.
    node_timeout: float = 120.0
    reply_timeout: float = 3600.0  # seconds to wait for the replies of one round
    # The clients that may answer. None accepts any name, each at most once.
    expected_client_ids: frozenset[str] | None = None
    # Public keys by client; None: clients do not sign. With keys, only who is listed may answer, under its signature.
    client_keys: Mapping[str, bytes] | None = None
    # Called with (query, answer, `Sender`) for each valid answer the moment it arrives, before anything can go wrong
    # later. A contested client id is known only at the end of the round, so a ledger may hold answers that the outcome
    # refuses: there, a name under different answers must not be believed.
    on_answer: Callable[[Any, Any, Any], None] | None = None
    on_hello: Callable[[Any, Any, Any], None] | None = None  # the same for each answer to a hello
    on_refusal: Callable[[str, Signed], None] | None = None  # called with each signed refusal, and who signed it
    # Called with a `Progress` after the push and whenever replies came in.
    on_progress: Callable[[Progress], None] | None = None
    on_detail: Callable[[str], None] | None = None  # called with a line about how far a strategy of many rounds is
    # What an interrupted run was answered. `start` says hello first and asks only for what is missing.
    earlier: Sequence[EarlierAnswer] | None = None
    # Whether `start` says hello first and fits the question to what the clients have left to answer.
    respect_budgets: bool = False
    poll_interval: float = 0.2  # seconds between two looks at the grid while nothing arrives
    # How many messages of a round may be under way before the next are sent, more where the nodes turn out to be
    # faster; None: all. For a grid that slows down with what is under way, such as Flower's simulation.
    max_open: int | None = None
    # Names that nodes are sure to have before any has answered, by node id: in Flower's simulation.
    simulated: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.num_clients < 1:
            raise ValueError(f"num_clients must be at least 1, got {self.num_clients}")
        if not 0 < self.quorum <= 1:
            problem = f"quorum must be in (0, 1], got {self.quorum}; it is a fraction of num_clients, not a count"
            raise ValueError(problem)
        for name in ("node_timeout", "reply_timeout"):
            seconds = getattr(self, name)
            if not (math.isfinite(seconds) and seconds >= 0):
                raise ValueError(f"{name} must be a finite number of seconds >= 0, got {seconds}")
        if self.max_open is not None and self.max_open < 1:
            raise ValueError(f"max_open must be at least 1 or None, got {self.max_open}")
        if not self.poll_interval > 0:
            raise ValueError(f"poll_interval must be > 0 seconds, got {self.poll_interval}")
        self._earlier = EarlierAnswers(self.earlier or ())
        self._nodes: dict[str, int] = {}  # node ids of the clients that have answered
        self._clients = dict(self.simulated)  # the same, by node id
        self._kept: dict[int, str | None] = {}  # see `Exchange`
        self._registered: dict[int, str] = {}  # by node id, the name of its registered key
        self._owners: Mapping[str, int | None] = {}  # see `Node.owners`

    @abstractmethod
    def conclude(self, outcome: RoundOutcome[Any]) -> Any:
        """Return what the strategy makes of a round that met the quorum.

        Raises ValueError if there are fewer than two answers, or an argument of a certificate is out of its range.
        """

    @property
    def num_expected(self) -> int:
        """Number of clients that the quorum is a fraction of."""
        return self.num_clients

    @property
    def num_needed(self) -> int:
        """Number of valid answers that meets the quorum, at least 1."""
        return num_needed(self.num_expected, self.quorum)

    def fit(self, budgets: Mapping[str, int | None]) -> int:
        """Fit the question to the values that clients have left, by id (None: no limit); return how many it takes."""
        return request_of(self.query).size  # the question stays whole

    def meet(self, grid: Grid, question: str = "") -> RoundOutcome[HelloAnswer]:
        """Ask all nodes who they are and what is left of their query budgets, and remember which node is which client.

        Nothing of a model travels, no client spends anything, and there is no quorum. For the question see
        `protocol.questions.HelloQuery`.
        """
        check = Check(HelloQuery(question), code_hash(), self.expected_client_ids)
        outcome = self._ask_without_model(grid, check, 0, return_timeout=self.node_timeout, on_answer=self.on_hello)
        self._remember(outcome)
        return self._earlier.with_names(outcome)

    def ask(self, grid: Grid, query: Query, arrays: Arrays, *, round: int = 1) -> RoundOutcome[Any]:
        """Ask all nodes one question about the model with these weights, and return all valid answers and failures.

        The messages' group ids begin with the number of the round. Raises QuorumError if fewer than `num_needed` nodes
        register or answer validly; `on_answer` has been called for every valid answer by then.
        """
        nodes, missing = self._wait_for_nodes(grid)
        if len(nodes) < self.num_needed:
            self._require_quorum(settle(missing, num_asked=0))
        questions = [(node, query, self.expected_client_ids) for node in nodes]
        replies = self._exchange(grid, questions, arrays, round=round)
        outcome = settle([*replies, *missing], num_asked=len(questions), nodes=nodes)
        self._remember(outcome)
        self._require_quorum(outcome)
        return outcome

    def ask_each(self, grid: Grid, queries: Mapping[str, Query], arrays: Arrays, *, round: int) -> RoundOutcome[Any]:
        """Ask some clients, each the question under its id, and return all valid answers and failures; see `ask`.

        There is no quorum here: what a missing answer means is known only to who asks. Failures carry the name of the
        client that was asked. Raises ValueError if a client has answered no earlier `ask` or `meet` validly: which node
        it is, is unknown.
        """
        unknown = sorted(set(queries) - set(self._nodes))
        if unknown:
            raise ValueError(
                f"only clients that answered an earlier round can be asked by name, got {unknown[0]!r} and "
                f"{len(unknown) - 1} others that did not; ask all clients first"
            )
        clients = sorted(queries)
        nodes = [self._node(self._nodes[client]) for client in clients]
        questions = [(node, queries[client], frozenset({client})) for client, node in zip(clients, nodes, strict=True)]
        replies = self._exchange(grid, questions, arrays, round=round)
        return settle(replies, num_asked=len(clients), nodes=nodes)

    def ask_unanswered(
        self, grid: Grid, queries: Mapping[str, Query], arrays: Arrays, *, round: int
    ) -> RoundOutcome[Any]:
        """Ask as `ask_each`, but only for what the interrupted run was not answered, and clients that are there."""
        held = [answer for name in queries if (answer := self._earlier.find(name, queries[name])) is not None]
        names = queries.keys() & self._nodes.keys() - {answer.client_id for answer in held}
        outcome = self.ask_each(grid, {name: queries[name] for name in names}, arrays, round=round)
        answers = sorted([*held, *outcome.answers], key=lambda answer: answer.client_id)
        return replace(outcome, answers=tuple(answers))

    def ask_in_turn(self, grid: Grid, queries: Mapping[str, Query], arrays: Arrays, *, round: int) -> RoundOutcome[Any]:
        """Ask as `ask_unanswered`, from this round on; a subclass may leave some clients alone."""
        return self.ask_unanswered(grid, queries, arrays, round=round)

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

        The signature is Flower's; nothing is trained here, so only `grid` and `initial_arrays` mean anything, and
        `reply_timeout` stands in for `timeout`. Raises ValueError for any other argument, and QuorumError as `ask`.
        """
        if num_rounds != 1 or any(x is not None for x in (timeout, train_config, evaluate_config, evaluate_fn)):
            raise ValueError(
                "a query strategy asks once and trains nothing: pass only grid and initial_arrays; "
                "set reply_timeout in the constructor instead of timeout"
            )
        self.summary()
        if self.respect_budgets or self.earlier is not None:
            outcome = self._ask_after_hello(grid, initial_arrays)
        else:
            outcome = self.ask(grid, self.query, initial_arrays)
        return QueryResult(arrays=initial_arrays, outcome=outcome, conclusion=self.conclude(outcome))

    def summary(self) -> None:
        """Log what is about to be asked of how many clients."""
        numbers = self.num_clients, self.num_needed, self.reply_timeout
        words = "%s: of %d clients at least %d must answer, those asked at once within %g s"
        log(INFO, words, type(self).__name__, *numbers)

    def _ask_after_hello(self, grid: Grid, arrays: ArrayRecord) -> RoundOutcome[Any]:
        hashes = model_hash(to_arrays(arrays)), code_hash()
        first, known = self.query, self.expected_client_ids
        self._earlier = self._earlier.only(
            lambda entry: answer_check(entry.question(first), *hashes, known).failure(entry.answer) is None
        )
        if self.respect_budgets:
            self.fit({})  # a resumed run asks what it has asked
        hello = self.meet(grid, asked_hash(self.query, *hashes))
        num_values, budgets = self._fitted(hello)
        query = self.query
        # Under a name that two nodes claim now, nothing is believed, as in a run without an interruption.
        claimed_twice = {
            f.client_id or f.claimed_name for f in hello.failures if f.reason is FailureReason.CLAIMED_TWICE
        }
        held = {name for name in self._earlier.names(query) if name not in claimed_twice}
        spent = [
            Failure(name, FailureReason.BUDGET_SPENT, f"the question takes {num_values} values, {left} are left")
            for name, left in budgets.items()
            if left is not None and left < num_values and name not in held
        ]
        queries = dict.fromkeys((held | set(budgets)) - {failure.client_id for failure in spent}, query)
        ask = self.ask_in_turn
        if len(queries) < self.num_needed:  # what is there is counted, nobody is asked in vain
            queries, ask = dict.fromkeys(held, query), self.ask_unanswered
        outcome = join(ask(grid, queries, arrays, round=1), hello, spent)
        self._require_quorum(outcome)
        return outcome

    def _fitted(self, hello: RoundOutcome[HelloAnswer]) -> tuple[int, dict[str, int | None]]:
        """Fit the question; return how many values it takes, and what each client has left for it (None: enough)."""
        said, budgets = self.query, {answer.client_id: answer.budget_left for answer in hello.answers}
        if not self.respect_budgets:
            return 0, budgets
        with_record = budgets | {answer.client_id: None for answer in hello.answers if answer.on_record}
        num_values = self.fit(with_record)
        # What is on record is no answer to another question.
        return (num_values, with_record) if self.query == said else (self.fit(budgets), budgets)

    def _exchange(
        self, grid: Grid, questions: Sequence[tuple[Node, Query, frozenset[str] | None]], arrays: Arrays, *, round: int
    ) -> list[Replies]:
        """Put questions to nodes: (node, query, clients that may answer) -> what came back for each."""
        record = to_array_record(arrays)
        hashes = model_hash(to_arrays(record)), code_hash()
        queries = {query for _, query, _ in questions}
        whole = {query: wire.encode_query(query, record) for query in queries}
        short = {query: wire.encode_query(query, hashes[0]) for query in queries}
        parcels = [
            Parcel(node, short[query], answer_check(query, *hashes, expected), whole[query])
            if self._kept.get(node.id) == hashes[0]
            else Parcel(node, whole[query], answer_check(query, *hashes, expected))
            for node, query, expected in questions
        ]
        told = {"on_answer": self.on_answer, "on_progress": self.on_progress}
        return self._send(grid, parcels, round, return_timeout=self.node_timeout, **told)

    def _ask_without_model(self, grid: Grid, check: Check, round: int, **settings: Any) -> RoundOutcome[Any]:
        """Put the question of a check to all nodes; the settings are those of `Exchange`."""
        nodes, missing = self._wait_for_nodes(grid)
        content = wire.encode_query(check.query)
        replies = self._send(grid, [Parcel(node, content, check) for node in nodes], round, **settings)
        return settle([*replies, *missing], len(nodes), nodes=nodes, owners=self._earlier.nodes)

    def _send(self, grid: Grid, parcels: Sequence[Parcel], round: int, **settings: Any) -> list[Replies]:
        timing = self.reply_timeout, self.poll_interval, self.max_open
        signing = self.client_keys, self.on_refusal
        exchange = Exchange(grid, parcels, round, *timing, *signing, **settings)
        replies = exchange.run()
        self._kept |= exchange.kept
        return replies

    def _remember(self, outcome: RoundOutcome[Any]) -> None:
        """Keep in mind which node is which client: for the rest of the run, neither may be another."""
        self._nodes |= outcome.node_ids
        self._clients |= {node_id: name for name, node_id in outcome.node_ids.items()}
        self._owners = {**outcome.node_ids, **self._owners}

    def _node(self, node_id: int) -> Node:
        """A node with all that this run has learned of it."""
        registered = self._registered.get(node_id)
        return Node(node_id, registered, registered or self._clients.get(node_id), self._owners)

    def _wait_for_nodes(self, grid: Grid) -> tuple[list[Node], list[Replies]]:
        """The nodes that are there, and what came back from each that is not: a failure."""
        deadline, num_seen = time.monotonic() + self.node_timeout, -1
        while True:
            found = {each.node_id: each.name for each in grid.get_nodes()}
            if len(found) >= self.num_clients or time.monotonic() >= deadline:
                self._registered |= {node_id: name for node_id, name in found.items() if name}
                num_keys = Counter(self._registered.values())
                keys = {name: node_id if num_keys[name] == 1 else None for node_id, name in self._registered.items()}
                self._owners = self._nodes | keys
                detail = f"the node did not register within {self.node_timeout:g} s"
                failure = Failure(None, FailureReason.NODE_MISSING, detail)
                nodes = [self._node(node_id) for node_id in sorted(found)]
                return nodes, [[failure] for _ in range(self.num_clients - len(found))]
            if len(found) != num_seen:
                num_seen = len(found)
                words = "%d of num-clients = %d SuperNodes are here; waiting for the others for %.3g s (node-timeout)"
                log(WARNING, words, num_seen, self.num_clients, max(deadline - time.monotonic(), 0.0))
            pause_until(deadline, self.poll_interval)

    def _require_quorum(self, outcome: RoundOutcome[Any]) -> None:
        """Raise QuorumError, with counts and first failures, if too few have answered validly."""
        if len(outcome.answers) >= self.num_needed:
            return
        counts = Counter(failure.reason for failure in outcome.failures)
        reasons = ", ".join(f"{count} x {reason}" for reason, count in sorted(counts.items()))
        first = "; ".join(alike((failure.who, failure.detail) for failure in outcome.failures)[:3])
        raise QuorumError(
            f"{self.num_needed} of {self.num_expected} clients must answer validly (quorum {self.quorum:g}), "
            f"got {len(outcome.answers)} valid answers from {outcome.num_asked} asked: {reasons}. "
            f"First failures: {first}. Repair these clients, wait longer (node-timeout, reply-timeout) "
            "or lower quorum",
            outcome,
        )

    # Nothing is trained, and `start` sends its own messages: what Flower's strategies do for theirs.

    def configure_train(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        """Return no messages."""
        return []

    def aggregate_train(self, *args: Any, **kwargs: Any) -> tuple[None, None]:
        """Return nothing."""
        return None, None

    configure_evaluate = configure_train

    def aggregate_evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Return nothing."""
