"""A client's privacy budget: how much its answers may say of any one example, counted on its own disk.

The budget adds up what single answers spend: epsilons add, and rhos add (Bun and Steinke 2016, Lemma 1.7), also where
who asks chooses each question and what it spends by the answers so far: stopping at a fixed sum is a privacy filter,
for epsilons by Rogers, Roth, Ullman and Vadhan (2016), for rhos by Feldman and Zrnic (2021). A client with a budget
answers with noise only, by its own mechanism, and never beyond the budget. The sum is written before an answer is
computed.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from client.book import book_path, is_unopened, opened
from client.identity import client_id
from client.refusals import require_known_keys
from protocol.mechanisms import GAUSSIAN, Mechanism, all_digits, mechanism_of
from riskband.checks import RefusedError

LIMIT_KEY = "privacy-budget"
FILE_KEY = "privacy-budget-file"

_SET = "INSERT INTO privacy VALUES (?, ?, ?) ON CONFLICT (client) DO UPDATE SET spent = excluded.spent"


class PrivacyBudgetError(RefusedError):
    """The query spends more than the client's privacy budget has left, or is not private in the client's way."""


@dataclass(frozen=True)
class PrivacyBudget:
    """A client's privacy budget; raises ValueError if there is a total and no file."""

    client_id: str  # whose; clients may share a file
    # The mechanism of all answers, with the budget of all of them together. None: no budget, nothing is counted.
    total: Mechanism | None = None
    path: Path | None = None  # The book, see `client.book`. Needed with a total.

    def __post_init__(self) -> None:
        if self.total is not None and self.path is None:
            raise RefusedError(f"a {LIMIT_KEY} needs a {FILE_KEY}, got none; name a file, or a restart forgets the sum")

    def require(self, asked: Mechanism | None) -> None:
        """Raise PrivacyBudgetError unless a question asks for noise as this client adds it; nothing is counted."""
        if self.total is None or (asked is not None and asked.name == self.total.name):
            return
        raise PrivacyBudgetError(
            f"this client has a {LIMIT_KEY} and answers with {self.total.name} noise only; ask with privacy = "
            f"'{self.total.name}:{self.total.unit.upper()}'"
        )

    def spend(self, asked: Mechanism | None) -> None:
        """Count a query whose answer is about to be drawn, or refuse it.

        Every draw counts, also of a question that was asked before: new noise says something new. What is repeated from
        an answer record is not drawn again, and not counted.

        Raises PrivacyBudgetError if less is left, or the question is not private as `require` wants it. Nothing is
        counted then.
        """
        self.require(asked)
        if self.total is None or self.path is None or asked is None:
            return
        with opened(self.path, in_one=True) as book:
            spent = self._spent(book, self.total)
            self._require_left(asked, self.total.budget - spent)
            book.execute(_SET, (self.client_id, self.total.name, str(spent + asked.budget)))

    def require_left(self, asked: Mechanism | None) -> None:
        """Raise as `spend` would, and count nothing."""
        self.require(asked)
        left = self.left()
        if left is not None and asked is not None:
            self._require_left(asked, left)

    def left(self) -> Fraction | None:
        """Return how much epsilon or rho is left, and count nothing; None if there is no budget."""
        if self.total is None or self.path is None:
            return None
        if is_unopened(self.path, FILE_KEY):
            return self.total.budget
        with opened(self.path) as book:
            return max(Fraction(0), self.total.budget - self._spent(book, self.total))

    def _require_left(self, asked: Mechanism, left: Fraction) -> None:
        if asked.budget > left:
            raise PrivacyBudgetError(
                f"a question must fit the client's {LIMIT_KEY}, got {asked.unit} = {all_digits(asked.budget)} with "
                f"{all_digits(max(Fraction(0), left))} left; ask for a smaller {asked.unit}, or ask the client's owner"
            )

    def _spent(self, book: sqlite3.Connection, total: Mechanism) -> Fraction:
        row = book.execute("SELECT mechanism, spent FROM privacy WHERE client = ?", (self.client_id,)).fetchone()
        mechanism, spent = (total.name, "0") if row is None else row
        if mechanism != total.name:
            raise PrivacyBudgetError(
                f"the {LIMIT_KEY} must be of the mechanism that its file has counted, got another; epsilons and rhos "
                "do not add up: go back to the former, or name a new file for new examples"
            )
        try:
            found = Fraction(spent)
        except (TypeError, ValueError, ZeroDivisionError):
            found = Fraction(-1)
        if found < 0:
            raise RefusedError(f"the file of {FILE_KEY} must hold sums, got another thing; restore it")
        return found


def is_private(config: Mapping[str, Any]) -> bool:
    """Return whether a client has a privacy budget, by its node config.

    Raises ValueError if there is a file without a budget, or a key that is nearly one of the two. Its owner means the
    client to be private, and it would answer without noise.
    """
    require_known_keys(config, "privacy", (LIMIT_KEY, FILE_KEY), otherwise="without noise")
    if FILE_KEY in config and LIMIT_KEY not in config:
        raise RefusedError(
            f"a {FILE_KEY} needs a {LIMIT_KEY}, got none; give one, such as 'laplace:2', or this client would answer "
            "without noise"
        )
    return LIMIT_KEY in config


def privacy_from_config(config: Mapping[str, Any]) -> PrivacyBudget:
    """Return the privacy budget that a client's node config sets: ``privacy-budget`` and ``privacy-budget-file``.

    Raises ValueError if the budget names no mechanism, or has no file with an absolute path, or as `is_private`.
    """
    if not is_private(config):
        return PrivacyBudget(client_id(config))
    text = config[LIMIT_KEY]
    if not isinstance(text, str):
        raise RefusedError(
            f"{LIMIT_KEY} must be a text such as 'laplace:2' or 'gaussian:0.5', got {type(text).__name__}; it says "
            "the mechanism of all answers and what they may spend together"
        )
    try:
        total = mechanism_of(text)
    except ValueError as error:
        raise RefusedError(f"{LIMIT_KEY}: {error}") from None
    return PrivacyBudget(client_id(config), total, book_path(config, FILE_KEY))


def epsilon_at(mechanism: Mechanism, *, delta: float) -> float:
    """Return an epsilon such that what spends this budget is (epsilon, delta)-differentially private, delta in (0, 1).

    Laplace: the budget itself, whatever delta. Gaussian: by the conversion of Canonne, Kamath and Steinke (2020), every
    order alpha > 1 gives epsilon = alpha rho + (log(1/delta) + alpha log(1 - 1/alpha) - log(alpha - 1)) / (alpha - 1).
    The smallest over a grid of orders is returned.
    """
    budget = float(mechanism.budget)
    if mechanism.name != GAUSSIAN:
        return budget
    excesses = [math.exp(power / 20.0) for power in range(-150, 351)]  # of the order over 1

    def epsilon(excess: float) -> float:
        order = 1.0 + excess
        log_terms = math.log(1.0 / delta) + order * math.log(excess / order) - math.log(excess)
        return order * budget + log_terms / excess

    return max(0.0, min(map(epsilon, excesses)))
