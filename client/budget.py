"""The query budget: how many numbers this client will ever give away. Kept by the client, not by the server.

Each number that leaves a client says a little about its examples. So the client counts them, as `request_of` says,
before it computes any. The count outlives the process, which in a deployment is a new one for every message. A client
with data of its own has a budget unless its owner says that it has none.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from client.answer_record import FILE_KEY as RECORD_KEY
from client.book import book_path, has_entry, is_unopened, note_once, opened
from client.data import has_own_data
from client.identity import client_id
from client.refusals import require_known_keys
from protocol.questions import AdversarialQuery, CandidatesQuery, ComparisonQuery, Query
from riskband.adversaries.names import REPRESENTATION
from riskband.checks import RefusedError

LIMIT_KEY = "query-budget"
FILE_KEY = "query-budget-file"

# The largest question of an ordinary study (100 radii and 24 multipliers on inputs) takes 252; a bisection with its 30
# later rounds less than 200. As many plain losses are more models than anybody means to compare in a month.
DEFAULT_LIMIT = "256/month"
"""The ``query-budget`` of a client with data of its own that nobody gave one."""

UNLIMITED = "none"
"""The ``query-budget`` of a client that answers whatever it is asked."""

_MONTHLY = "/month"
_ADD = (
    "INSERT INTO answered VALUES (?, ?, ?) ON CONFLICT (client, kind) DO UPDATE SET number = number + excluded.number"
)


class QueryBudgetError(ValueError):
    """The query asks for more numbers than the client has left to give."""


@dataclass(frozen=True)
class Request:
    """What one query asks for: counts of numbers, by kind."""

    losses: int = 0  # mean losses, the clean risk of an adversarial answer among them
    # Values at radii and conjugates at multipliers; lower and upper bounds are two numbers.
    radii: int = 0
    multipliers: int = 0
    units: int = 0  # adversarial units
    counts: int = 0  # examples that got worse or are without a gradient, and whether the model is unsteady

    @property
    def size(self) -> int:
        """Number of values in all."""
        return sum(self.by_kind.values())

    @property
    def by_kind(self) -> dict[str, int]:
        """The counts, by what the book calls the kinds."""
        return dict(zip(("loss", "radius", "multiplier", "unit", "count"), astuple(self), strict=True))


@dataclass(frozen=True)
class QueryBudget:
    """A client's budget; raises ValueError if the limit is negative, or there is a limit and no file."""

    client_id: str  # whose; clients may share a file
    limit: int | None = None  # Values that may be answered, >= 0. None: unlimited, nothing is counted.
    # The book, see `client.book`. Needed with a limit: a count that a restart forgets is none.
    path: Path | None = None
    month: str = ""  # In which the values are counted; "": all that were ever answered without one.

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 0:
            raise ValueError(f"{LIMIT_KEY} must be at least 0, got {self.limit}; say {UNLIMITED} for no limit")
        if self.limit is not None and self.path is None:
            raise ValueError(f"a {LIMIT_KEY} needs a {FILE_KEY}, got none; name a file, or a restart forgets the count")

    def spend(self, request: Request, *, question: str | None = None) -> int | None:
        """Count a query that is about to be answered, before its answer is computed, or refuse it whole.

        Returns the values left after this; None if unlimited. The same question (what tells it from others) of the same
        client is counted once only; without one, each time. Raises QueryBudgetError if less is left, and nothing is
        counted then; ValueError if the file holds another thing than counts.
        """
        if self.limit is None or self.path is None:
            return None
        with opened(self.path, in_one=True) as book:
            left = self.limit - self._total(book)
            if question is not None and not note_once(book, "paid", self.client_id, question):
                return max(left, 0)
            self._require(request, left)
            counts = [(self._account, kind, number) for kind, number in request.by_kind.items() if number]
            book.executemany(_ADD, counts)
        return left - request.size

    def require_left(self, request: Request, *, question: str | None = None) -> None:
        """Raise as `spend` would, and count nothing."""
        left = self.left()
        if left is None or request.size <= left:
            return
        if question is None or not has_entry(self.path, "paid", client=self.client_id, question=question):
            self._require(request, left)

    def left(self) -> int | None:
        """Return how many values may still be answered, and count nothing; None if unlimited."""
        if self.limit is None or self.path is None:
            return None
        if is_unopened(self.path, FILE_KEY):
            return self.limit
        with opened(self.path) as book:
            return max(0, self.limit - self._total(book))

    def spent(self) -> dict[str, int]:
        """Return the numbers answered so far by the kinds of `Request.by_kind`, empty if unlimited."""
        if self.path is None or not self.path.exists():
            return {}
        with opened(self.path) as book:
            rows = book.execute("SELECT kind, number FROM answered WHERE client = ?", (self._account,))
            return dict(rows.fetchall())

    @property
    def _account(self) -> str:
        """Whose counts these are in the book; no name of a client holds a line break."""
        return f"{self.client_id}\n{self.month}" if self.month else self.client_id

    def _total(self, book: sqlite3.Connection) -> int:
        rows = book.execute("SELECT number FROM answered WHERE client = ?", (self._account,))
        counts = [number for (number,) in rows]
        if any(type(number) is not int or number < 0 for number in counts):
            raise RefusedError(f"the file of {FILE_KEY} must hold counts, got another thing; restore it")
        return sum(counts)

    def _require(self, request: Request, left: int) -> None:
        if request.size > left:
            raise QueryBudgetError(
                f"a query must fit the client's query budget of {self.limit} values{self.month and ' a month'}, got "
                f"{request.size} with {max(left, 0)} left; ask for fewer radii and multipliers, or ask its owner"
            )


def request_of(query: Query) -> Request:
    """Return how many numbers that are not known beforehand an answer to this question holds.

    An adversarial answer has the clean risk, its curves and the adversarial unit. The guarantee of the adversary that
    is asked for decides, before anything is computed, whether its bounds are two numbers for each radius and
    multiplier: they are one if it is "exact", and if it is "lower", when the upper bound is 1. With noise an answer has
    the clean risk and a conjugate for each multiplier. About two models it is the loss of each, and of losses of 0 or 1
    how many examples got worse.
    """
    if isinstance(query, AdversarialQuery):
        return adversarial_request(query, num_radii=len(query.radii), num_multipliers=len(query.multipliers))
    if isinstance(query, ComparisonQuery):
        return Request(losses=2, counts=query.num_values - 2)
    return Request(losses=len(query.candidates) if isinstance(query, CandidatesQuery) else 1)


def adversarial_request(query: AdversarialQuery, *, num_radii: int, num_multipliers: int) -> Request:
    """Return what `request_of` would for so many radii and multipliers instead of those of the question."""
    # Imported here: it loads riskband, seconds that a process for one plain loss should not pay.
    from protocol.guarantees import possible_guarantees

    if query.mechanism is not None:
        return Request(losses=1, multipliers=num_multipliers)
    num_bounds = 2 if possible_guarantees(query)[0].startswith("upper") else 1
    return Request(
        losses=1,
        radii=num_bounds * num_radii,
        multipliers=num_bounds * num_multipliers,
        units=1,
        counts=0 if query.problem.space == REPRESENTATION else 2,
    )


def budget_from_config(config: Mapping[str, Any]) -> QueryBudget:
    """Return the budget that a client's node config sets: ``query-budget`` and ``query-budget-file``.

    Without the first, a client with data of its own has `DEFAULT_LIMIT`. Without the second, its book is that of its
    answer record, or else a file of its user's.

    Raises ValueError if the limit is neither a whole number >= 0, "NUMBER/month" nor `UNLIMITED`, or has no file with
    an absolute path, or there is a file without a limit, or a key that is nearly one of the two: its owner means to
    limit the answers, and nothing would be counted.
    """
    require_known_keys(config, "query", (LIMIT_KEY, FILE_KEY), otherwise="without a limit")
    is_own, path = has_own_data(config), book_path(config, FILE_KEY)
    limit, month = _limit_of(config.get(LIMIT_KEY, DEFAULT_LIMIT if is_own else None))
    if path is not None and limit is None:
        raise ValueError(
            f"a {FILE_KEY} needs a {LIMIT_KEY}, got none; give one, such as 500 values, or leave out the file: without "
            "a limit nothing is counted"
        )
    if path is None and limit is not None and is_own:
        path = book_path(config, RECORD_KEY) or _own_book()
    return QueryBudget(client_id(config), limit, path, month)


def _limit_of(value: object) -> tuple[int | None, str]:
    """The limit that the node config sets, and the month it is for."""
    if value in (None, UNLIMITED):
        return None, ""
    number = value.removesuffix(_MONTHLY) if isinstance(value, str) else ""
    if number != value and number.isdecimal():
        return int(number), f"{datetime.now(UTC):%Y-%m}"
    if type(value) is not int:
        raise ValueError(
            f'{LIMIT_KEY} must be a whole number, "NUMBER{_MONTHLY}" or "{UNLIMITED}", got {type(value).__name__}'
        )
    return value, ""


def _own_book() -> Path:
    """The file that counts for all clients of this user of whose books nobody said where they are."""
    # No folder for temporary files: what is counted there is forgotten.
    folder = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state") / "riskband"
    with suppress(OSError, RuntimeError):  # the latter where there is no home
        folder = folder.expanduser()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (folder.is_absolute() and os.access(folder, os.W_OK)):
        raise RefusedError(
            f"a client with data of its own must have a place to count its answers, and its user's home is none; name "
            f'a {FILE_KEY} or {RECORD_KEY} on a disk that lasts, or say {LIMIT_KEY}="{UNLIMITED}"'
        )
    return folder / "query-budget.sqlite"
