"""What an earlier version of the client has counted still counts; all rules may keep their books in one file."""

from __future__ import annotations

import os
import sqlite3
import threading
from fractions import Fraction

import pytest

from client.answer_record import AnswerRecord
from client.book import opened
from client.budget import QueryBudget, QueryBudgetError, Request
from client.privacy import PrivacyBudget, PrivacyBudgetError
from client.secure.part import begun
from client.secure.state import claim
from protocol.mechanisms import mechanism_of

# As `sqlite3 FILE .dump` printed a file of November 2026, when each rule had tables and code of its own.
WRITTEN_BEFORE = """
CREATE TABLE answered (client TEXT, kind TEXT, number INTEGER, PRIMARY KEY (client, kind));
INSERT INTO "answered" VALUES('a','loss',2);
INSERT INTO "answered" VALUES('a','radius',2);
INSERT INTO "answered" VALUES('a','multiplier',1);
INSERT INTO "answered" VALUES('a','unit',1);
CREATE TABLE answers (client TEXT, question TEXT, answer TEXT, PRIMARY KEY (client, question));
INSERT INTO "answers" VALUES('a','q1','{"risk": 0.25, "num_examples": 4, "values": [0.5, 1.0]}');
CREATE TABLE asked (client TEXT, asked TEXT, PRIMARY KEY (client, asked));
INSERT INTO "asked" VALUES('a','asked-1');
CREATE TABLE paid (client TEXT, question TEXT, PRIMARY KEY (client, question));
INSERT INTO "paid" VALUES('a','q1');
CREATE TABLE privacy (client TEXT PRIMARY KEY, mechanism TEXT, spent TEXT);
INSERT INTO "privacy" VALUES('a','laplace','4/5');
CREATE TABLE secure_steps (client TEXT, run TEXT, key BLOB, step TEXT, PRIMARY KEY (client, run, key, step));
INSERT INTO "secure_steps" VALUES('a','7',X'{key}','shares');
"""
PART = begun(7)


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "client.sqlite"
    with sqlite3.connect(found) as connection:
        connection.executescript(WRITTEN_BEFORE.replace("{key}", PART.secrets.public.encryption.hex()))
    connection.close()
    return found


def test_the_query_budget_is_not_given_back(path):
    budget = QueryBudget("a", 10, path)
    assert budget.left() == 4
    assert budget.spent() == {"loss": 2, "radius": 2, "multiplier": 1, "unit": 1}
    assert budget.spend(Request(losses=9), question="q1") == 4  # paid for
    with pytest.raises(QueryBudgetError):
        budget.spend(Request(losses=5), question="q2")
    assert budget.spend(Request(losses=4), question="q2") == 0
    assert QueryBudget("b", 10, path).left() == 10


def test_the_privacy_budget_is_not_given_back(path):
    budget = PrivacyBudget("a", mechanism_of("laplace:2"), path)
    assert budget.left() == Fraction(6, 5)
    with pytest.raises(PrivacyBudgetError):
        budget.spend(mechanism_of("laplace:1.3"))
    budget.spend(mechanism_of("laplace:1.2"))
    assert budget.left() == 0


def test_recorded_answers_are_repeated(path):
    record = AnswerRecord("a", path)
    assert record.find("q1") == {"risk": 0.25, "num_examples": 4, "values": (0.5, 1.0)}
    assert record.has_noted("asked-1")
    assert record.keep("q1", {"risk": 0.5}) == record.find("q1")


def test_a_step_that_was_claimed_is_not_answered_again(path):
    own = {"client-id": "a", "answer-record-file": str(path)}
    with pytest.raises(ValueError, match="it was asked for shares twice"):
        claim(own, PART)
    claim(own, begun(7))


def test_no_thread_uses_a_new_book_that_another_has_open(tmp_path, monkeypatch):
    """When a process closes a file, all its threads lose their locks on it: two could spend the same budget then."""
    path, entered = tmp_path / "new.sqlite", threading.Event()

    def use():
        with opened(path):
            entered.set()

    other, close = threading.Thread(target=use), os.close

    def closing_slowly(descriptor):
        monkeypatch.setattr(os, "close", close)
        other.start()
        assert not entered.wait(0.3)
        close(descriptor)

    monkeypatch.setattr(os, "close", closing_slowly)
    with opened(path, in_one=True):
        pass
    other.join(60)
    assert entered.is_set()


def test_who_spends_at_once_waits_for_the_other_to_read_and_write(tmp_path):
    """Else both read the same count before either writes it."""
    path = tmp_path / "b.sqlite"
    other = sqlite3.connect(path, timeout=0.0)
    with opened(path, in_one=True), pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN IMMEDIATE")
    other.close()
