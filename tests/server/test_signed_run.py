"""A run that knows its clients' keys: what is signed stands in its ledger, and an auditor sees whatever is not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from riskband.cli import main as command
from server.config import load_config
from server.problems import ConfigError
from server.run.ledger import read_ledger
from strategies.asking.query import QuorumError
from tests.server.running import run_app

NUM_CLIENTS = 6
KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([k + 1] * 32)) for k in range(NUM_CLIENTS)]
SMALL = {"num_clients": NUM_CLIENTS, "num_unseen": 0, "quorum": 0.5, "node_timeout": 5.0}


def listed(numbers: list[int]) -> bytes:
    public = (KEYS[k].public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) for k in numbers)
    return b"".join(b"%s client-%05d\n" % (key, k) for k, key in zip(numbers, public, strict=True))


def signing(folder: Path, **more: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run whose clients sign, with the keys in a folder."""
    for k, key in enumerate(KEYS):
        (folder / f"{k}.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    (folder / "clients").write_bytes(listed([*range(NUM_CLIENTS)]))
    own = {k: {"signing-key-file": str(folder / f"{k}.key")} | more.get(f"of_{k}", {}) for k in range(NUM_CLIENTS)}
    return {**SMALL, "client_keys": str(folder / "clients"), "node_configs": own}


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory, defaults: Mapping[str, Any]) -> Path:
    """A run in which client 2 refuses, and client 4 signs with another's key."""
    folder = tmp_path_factory.mktemp("signed")
    keys = folder / "keys"
    keys.mkdir()
    spent = {"query-budget": 0, "query-budget-file": str(keys / "budget.sqlite")}
    others = {"signing-key-file": str(keys / "5.key")}
    run_app(folder / "run", defaults, **signing(keys, of_2=spent, of_4=others))
    return folder / "run"


@pytest.fixture
def folder(signed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(signed, tmp_path / "run"))


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


def said_of_signatures(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    command(["verify", str(folder)])
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("answers signed")]


def test_a_signed_run_verifies_and_holds_every_refusal(signed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["verify", str(signed)]) == 0, capsys.readouterr().out
    assert said_of_signatures(signed, capsys) == ["answers signed: yes"]
    header, *entries = lines_of(signed)
    assert header["client_keys"]["client-00000"] == KEYS[0].public_key().public_bytes_raw().hex()
    assert sorted(each["client_id"] for each in entries if "risk" in each) == [f"client-{k:05d}" for k in (0, 1, 3, 5)]
    (refusal,) = (each for each in entries if "refusal" in each)
    assert refusal["client_id"] == "client-00002"
    assert "a query must fit the client's query budget of 0 values" in refusal["refusal"]["refusal"]
    assert [answer.client_id for answer in read_ledger(signed / "ledger.jsonl")[1]] == [
        each["client_id"] for each in entries if "risk" in each
    ]
    network = json.loads((signed / "report.json").read_text())["network"]
    assert [(each["client_id"], each["claimed_name"], each["reason"]) for each in network["failures"]] == [
        (None, None, "not-signed"),
        ("client-00002", None, "client-raised"),
    ]


def in_the_name_of_another(entry: dict[str, Any]) -> None:
    entry["client_id"] = "client-00000" if entry["client_id"] != "client-00000" else "client-00001"


ALTERATIONS: list[Callable[[dict[str, Any]], object]] = [
    lambda entry: entry.pop("signed"),
    lambda entry: entry["signed"].update(run="7"),
    lambda entry: entry["signed"].update(message="1-" + 32 * "0"),
    lambda entry: entry["signed"]["question"].update(loss="brier"),
    lambda entry: entry["signed"]["question"].pop("type"),
    lambda entry: entry["signed"].update(signature=64 * "00"),
    lambda entry: entry["signed"].update(signature="no digits"),
    lambda entry: entry["signed"].update(key=KEYS[1].public_key().public_bytes_raw().hex()),
    in_the_name_of_another,
]
OF_ANSWERS: list[Callable[[dict[str, Any]], object]] = [
    lambda entry: entry.update(risk=entry["risk"] + 0.025),
    lambda entry: entry.update(num_examples=4000),
    lambda entry: entry.update(group="north"),
]
OF_REFUSALS: list[Callable[[dict[str, Any]], object]] = [
    lambda entry: entry["refusal"].update(refusal="ValueError: another reason"),
    lambda entry: entry.update(refusal={}),
]


@pytest.mark.parametrize(
    ("alter", "is_refusal"),
    [
        *((alter, is_refusal) for alter in ALTERATIONS for is_refusal in (False, True)),
        *((alter, False) for alter in OF_ANSWERS),
        *((alter, True) for alter in OF_REFUSALS),
    ],
)
def test_whatever_is_changed_of_what_was_said_is_seen(
    folder: Path, capsys: pytest.CaptureFixture[str], alter: Callable[[dict[str, Any]], object], is_refusal: bool
) -> None:
    header, *entries = lines_of(folder)
    place = next(k for k, entry in enumerate(entries) if ("refusal" in entry) == is_refusal)
    alter(entries[place])
    (folder / "ledger.jsonl").write_text("".join(json.dumps(each) + "\n" for each in (header, *entries)))
    (said,) = said_of_signatures(folder, capsys)
    assert f"line {place + 2} of ledger.jsonl is not signed by " in said


def test_an_answer_twice_and_a_key_that_is_not_listed_are_seen(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, *entries = lines_of(folder)
    path = folder / "ledger.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in (header, *entries, entries[0])))
    assert f"line {len(entries) + 2} of" in said_of_signatures(folder, capsys)[0]
    header["client_keys"].pop(entries[0]["client_id"])
    path.write_text("".join(json.dumps(each) + "\n" for each in (header, *entries)))
    assert "line 2 of" in said_of_signatures(folder, capsys)[0]


def test_a_run_is_resumed_with_the_keys_that_it_had(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    spent = {"query-budget": 0, "query-budget-file": str(tmp_path / "budget.sqlite")}
    settings = signing(tmp_path, of_2=spent) | {"quorum": 1.0}
    with pytest.raises(QuorumError):
        run_app(tmp_path / "run", defaults, **settings)
    again = settings | {"node_configs": signing(tmp_path)["node_configs"], "resume": True}
    (tmp_path / "clients").write_bytes(listed([0, 1, 2, 3, 4]) + listed([5]).replace(b"00005", b"00007"))
    with pytest.raises(Exception, match="is the ledger of another run: the key of client-00005 was"):
        run_app(tmp_path / "run", defaults, **again)
    (tmp_path / "clients").write_bytes(listed([5, 4, 3, 2, 1, 0]))
    assert run_app(tmp_path / "run", defaults, **again)["network"]["num_answered"] == NUM_CLIENTS
    assert command(["verify", str(tmp_path / "run")]) == 0


@pytest.mark.parametrize(
    "text",
    [b"", None, b"no key", listed([0, 0]), listed([0]).replace(b" client-00000", b""), listed([0]) + listed([0])[:-2]],
    ids=["none listed", "no file", "no key", "a line twice", "no name", "a key twice"],
)
def test_a_list_that_is_none_is_refused_before_anything_starts(
    tmp_path: Path, defaults: Mapping[str, Any], text: bytes | None
) -> None:
    if text is not None:
        (tmp_path / "clients").write_bytes(text)
    with pytest.raises(ConfigError, match="client-keys"):
        load_config({**defaults, "client-keys": str(tmp_path / "clients")})


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "wasserstein", "num_radii": 3, "num_multipliers": 3, "respect_query_budgets": "true"},
        {"strategy": "comparison", "old_model": "local"},
        {"strategy": "selection", "candidate_epochs": "1,2", "training_epochs": 2},
        {"strategy": "secure_histogram", "histogram_bins": 10},
        {"ask": "until-decided", "require": "mean<=0.9", "batch_size": 3},
    ],
    ids=lambda settings: next(iter(settings.values())),
)
def test_every_kind_of_answer_is_signed_and_checked(
    tmp_path: Path, defaults: Mapping[str, Any], capsys: pytest.CaptureFixture[str], settings: dict[str, Any]
) -> None:
    few = {f"of_{k}": {"secure-min-clients": 3, "secure-only": False} for k in range(NUM_CLIENTS)}
    report = run_app(tmp_path / "run", defaults, **signing(tmp_path, **few), **settings)
    assert report["network"]["failures"] == []
    assert report["network"]["num_answered"] > 1
    is_sum = settings.get("strategy") == "secure_histogram"
    assert said_of_signatures(tmp_path / "run", capsys) == ([] if is_sum else ["answers signed: yes"])
    assert command(["verify", str(tmp_path / "run")]) == 0
