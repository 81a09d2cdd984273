"""Constants of a model stay on the client's disk: the next process has the same ones, and nothing that is damaged."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing

import numpy as np
import pytest
import torch

from client.answer_record import AnswerRecord, KeptConstants, _digest
from protocol.hashes import code_hash
from protocol.models import build_model
from riskband.adversaries.bounds import balls
from riskband.adversaries.bounds.lipschitz import SequentialLayers, _constants, lipschitz_constants
from riskband.adversaries.kept import kept, kept_in

CHAIN = build_model("mlp", x_shape=(3,), num_classes=2, seed=1)
NORMED = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
ASK = """
import sys
from pathlib import Path
from client.answer_record import KeptConstants
from tests.client.test_constants import constants, norms
print(constants(Path(sys.argv[1])).tobytes().hex())
"""


@pytest.fixture(name="path")
def _path(tmp_path):
    return tmp_path / "client.sqlite"


def constants(path):
    """Margins and logits as a new process has them: what this one remembers is forgotten."""
    _constants.cache_clear()
    with kept_in(AnswerRecord("a", path).constants):
        found = lipschitz_constants(SequentialLayers(CHAIN, (3,)), norm="l2")
    return torch.cat([found.margins, found.logits[None]]).numpy()


def norms(path):
    balls._norms.cache_clear()
    with kept_in(AnswerRecord("a", path).constants):
        return list(balls._norms(SequentialLayers(NORMED, (3,))))


def rows(path):
    with closing(sqlite3.connect(path)) as book:
        return book.execute("SELECT name, numbers, digest FROM constants ORDER BY rowid").fetchall()


def rewrite(path, name, values):
    """Put numbers into the only row, under a name, with the digest that they should have."""
    with closing(sqlite3.connect(path)) as book, book:
        book.execute("UPDATE constants SET name = ?, numbers = ?, digest = ?", (name, values, _digest(name, values)))


@pytest.mark.parametrize("found", [constants, norms])
def test_what_is_kept_is_what_was_computed_to_the_last_bit_and_is_read(path, found):
    plain = np.asarray(found(None))
    assert np.array_equal(found(path), plain)
    ((name, values, _),) = rows(path)
    assert np.array_equal(np.frombuffer(values), plain.ravel())
    assert np.array_equal(found(path), plain)
    rewrite(path, name, (2.0 * plain).tobytes())  # with the right digest: nobody computes these
    assert np.array_equal(found(path), 2.0 * plain)
    assert np.array_equal(found(None), plain)  # no file, no store


@pytest.mark.slow
def test_a_second_process_has_the_constants_of_the_first(path):
    ask = [sys.executable, "-c", ASK, str(path)]
    first, second = (subprocess.run(ask, capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert first == second == constants(None).tobytes().hex() + "\n"
    ((name, values, _),) = rows(path)
    rewrite(path, name, (2.0 * np.frombuffer(values)).tobytes())
    third = subprocess.run(ask, capture_output=True, text=True, check=True).stdout
    assert bytes.fromhex(third) == (2.0 * constants(None)).tobytes()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE constants SET numbers = zeroblob(length(numbers))",  # constants of 0 would certify anything
        "UPDATE constants SET digest = zeroblob(32)",
        "UPDATE constants SET numbers = substr(numbers, 1, 11)",
        "UPDATE constants SET numbers = 'text', digest = 'text'",
        "UPDATE constants SET numbers = NULL, digest = NULL",
        "DROP TABLE constants",
        "DROP TABLE constants; CREATE TABLE constants (name TEXT PRIMARY KEY)",
    ],
)
def test_a_damaged_entry_is_computed_anew(path, change):
    plain = constants(path)
    with closing(sqlite3.connect(path)) as book, book:
        book.executescript(change)
    assert np.array_equal(constants(path), plain)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0, "too few"])
def test_numbers_that_are_no_constants_are_computed_anew_whatever_their_digest(path, wrong):
    plain = constants(path)
    ((name, _, _),) = rows(path)
    values = plain.ravel()[1:] if wrong == "too few" else np.append(plain.ravel()[1:], wrong)
    rewrite(path, name, values.tobytes())
    assert np.array_equal(constants(path), plain)
    assert np.array_equal(np.frombuffer(rows(path)[0][1]), plain.ravel())  # and put right


@pytest.mark.parametrize(
    "part", [code_hash(), torch.__version__.split("+")[0], SequentialLayers(CHAIN, (3,)).fingerprint]
)
def test_what_another_code_torch_or_model_found_is_not_taken(path, part):
    plain = constants(path)
    ((name, _, _),) = rows(path)
    assert part in name
    rewrite(path, name.replace(part, "another"), (2.0 * plain).tobytes())
    assert np.array_equal(constants(path), plain)
    assert len(rows(path)) == 2


def test_an_entry_under_the_name_of_another_is_not_taken(path):
    plain = constants(path)
    ((name, _, _),) = rows(path)
    rewrite(path, "another", (2.0 * plain).tobytes())
    with closing(sqlite3.connect(path)) as book, book:
        book.execute("UPDATE constants SET name = ?", (name,))
    assert np.array_equal(constants(path), plain)


def test_a_file_that_is_none_is_no_reason_to_fail(path):
    plain = constants(None)
    path.write_text("no database " * 100)
    assert np.array_equal(constants(path), plain)
    assert path.read_text() == "no database " * 100


def test_the_file_does_not_grow_beyond_the_last_ones(path):
    store = KeptConstants(path)
    for number in range(70):
        store.keep(f"constants {number}", [float(number)])
    assert len(rows(path)) == 64
    assert store.find("constants 69") == [69.0]
    assert store.find("constants 0") is None
    store.keep("large", np.ones(2**17 + 1))
    assert store.find("large") is None


def test_what_is_infinite_is_used_and_not_kept(path):
    with kept_in(KeptConstants(path)):
        assert kept("norms", 2, lambda: [1.0, np.inf]) == [1.0, np.inf]
    assert not path.exists()
