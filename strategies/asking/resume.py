"""What an interrupted run was answered, and one outcome from that and from what came since."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from protocol.questions import AdversarialQuery, Answer, HelloAnswer, Query
from strategies.asking.failures import Failure, FailureReason, in_order
from strategies.asking.replies import RoundOutcome

Asked = tuple[tuple[float, ...], tuple[float, ...]]
Counts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class OpenedSum:
    """A sum of clients' histograms, as it was opened: it may be wrong."""

    clients: tuple[str, ...]  # who is in it, sorted
    counts: Counts  # modulo 2**32; empty if none came out
    failures: tuple[Failure, ...]  # who is not, of those who were asked
    late_failures: tuple[Failure, ...]  # who is, and fell silent after that
    num_asked: int

    def __post_init__(self) -> None:
        if not self.clients or list(self.clients) != sorted(set(self.clients)):
            raise ValueError(f"clients of a sum must be sorted, each once, got {len(self.clients)}")

    @property
    def client_id(self) -> str:
        """All of them in words."""
        return f"{self.clients[0]} and {len(self.clients) - 1} others"


@dataclass(frozen=True)
class EarlierAnswer:
    """A valid answer of an interrupted run, and the part of the question that varies within a run."""

    answer: Any  # an `Answer`, or of a secure histogram an `OpenedSum`
    # Of the `AdversarialQuery` that was asked; empty for a plain loss.
    radii: tuple[float, ...] = ()
    multipliers: tuple[float, ...] = ()
    # `node_hash` of the node that it came from. That is of the node's key, if keys are registered; else the node has
    # another id now.
    node: str | None = None

    def question(self, query: Query) -> Query:
        """Return what was asked: the run's question, `query`, with this answer's radii and multipliers."""
        if isinstance(query, AdversarialQuery):
            return replace(query, radii=self.radii, multipliers=self.multipliers)
        return query


class EarlierAnswers:
    """The answers of an interrupted run, in any order, by client and question.

    The same answer twice is one; different answers of one client to one question are none: which of them is genuine is
    unknown.
    """

    def __init__(self, entries: Iterable[EarlierAnswer]) -> None:
        self._entries = tuple(entries)
        self._found: dict[tuple[str, Asked], set[Answer]] = {}
        for entry in self._entries:
            self._found.setdefault(_key(entry), set()).add(entry.answer)
        places = {(entry.answer.client_id, entry.node) for entry in self._entries if entry.node is not None}
        num_nodes = Counter(name for name, _ in places)
        num_names = Counter(node for _, node in places)
        # Which node each client answered from, where that is known and it was one.
        self.nodes = {name: node for name, node in places if num_nodes[name] == num_names[node] == 1}

    def only(self, is_valid: Callable[[EarlierAnswer], bool]) -> EarlierAnswers:
        """Return those of clients whose answers to the question are all valid: a ledger may be of other rules."""
        wrong = {_key(entry) for entry in self._entries if not is_valid(entry)}
        return EarlierAnswers(entry for entry in self._entries if _key(entry) not in wrong)

    def with_names(self, outcome: RoundOutcome[Any]) -> RoundOutcome[Any]:
        """Return an outcome whose failures without a name have that under which their node answered earlier."""
        name_of = {node: name for name, node in self.nodes.items()}
        taken = {answer.client_id for answer in outcome.answers}
        taken |= {name for each in outcome.failures for name in (each.client_id, each.claimed_name) if name}
        failures = [
            replace(each, client_id=name)
            if each.client_id is None and each.node is not None and (name := name_of.get(each.node)) not in taken
            else each
            for each in outcome.failures
        ]
        return replace(outcome, failures=in_order(failures))

    def find(self, client_id: str, query: Query) -> Answer | None:
        """Return a client's answer to a question, None if there is none to believe."""
        answers = self._found.get((client_id, _asked(query)), set())
        return next(iter(answers)) if len(answers) == 1 else None

    def names(self, query: Query) -> set[str]:
        """Return the clients whose answer to this question counts."""
        asked = _asked(query)
        return {name for name, question in self._found if question == asked and self.find(name, query) is not None}

    def first_question(self) -> Asked | None:
        """Return radii and multipliers of the question that every client was asked, None if no client answered it.

        Only that one has multipliers: later questions ask for further radii.
        """
        return next((question for _, question in self._found if question[1]), None)


def join(asked: RoundOutcome[Any], hello: RoundOutcome[HelloAnswer], spent: Sequence[Failure]) -> RoundOutcome[Any]:
    """Return the outcome of a round that began with a hello: what one question to all clients would have brought.

    `asked` has the answers of the interrupted run and the new ones, and the failures of those who were asked now;
    `spent` are the clients that were not asked, since their query budget does not allow it.
    """
    heard = {answer.client_id for answer in hello.answers}
    answered = {answer.client_id for answer in asked.answers}
    claims = {failure.client_id for failure in hello.failures}
    # A client that has answered has not failed, whatever became of its node since. A node without a name may be any.
    named = [f for f in hello.failures if f.client_id is not None and f.client_id not in answered]
    nameless = [f for f in hello.failures if f.client_id is None]
    nameless.sort(key=lambda failure: failure.reason is not FailureReason.NODE_MISSING)
    num_away = len(answered - heard - claims)
    failures = [*asked.failures, *spent, *named, *nameless[num_away:]]
    was_asked = sum(failure.reason is FailureReason.NODE_MISSING for failure in nameless[:num_away])
    return RoundOutcome(
        answers=asked.answers,
        failures=in_order(failures),
        num_asked=hello.num_asked + was_asked - len(asked.unasked),
        node_ids=asked.node_ids,
        unasked=asked.unasked,
    )


def _key(entry: EarlierAnswer) -> tuple[str, Asked]:
    return entry.answer.client_id, (entry.radii, entry.multipliers)


def _asked(query: Query) -> Asked:
    return (query.radii, query.multipliers) if isinstance(query, AdversarialQuery) else ((), ())
