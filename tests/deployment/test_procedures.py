"""What docs/deployment.md says of keys, certificates and backups, step by step, on one deployment."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

from tests.deployment import compose
from tests.deployment.stage import Stage
from tests.deployment.test_faults import (
    NUM_CLIENTS,
    assert_ends_with,
    certify,
    certify_until_all_but_one_have_answered,
    report_of,
    results,
    spent,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes through /proc"),
]
PAGE = (compose.ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
COPY = """import sqlite3; sqlite3.connect('/state/superlink.db').backup(sqlite3.connect('/state/backup.db'))"""
OPERATOR = ["python", "-m", "deploy.flower", "--superlink", "superlink:8000", "--root-certificates", "/keys/ca.crt"]
NODE_4 = ("supernode-4", "clientapp-4")
SERVERS = ("superlink", "proxy")  # what others connect to


def keys(stage: Stage) -> Path:
    return stage.folder / "deployment" / "keys"


def once(stage: Stage, *names: str) -> None:
    """`docker compose run --rm` each of these."""
    for name in names:
        stage.start(name)
        stage.wait_for(name)


def restart(stage: Stage, names: Sequence[str]) -> None:
    """`docker compose restart`: what depends on others stops before them, and starts after."""
    for name in reversed(names):
        stage.stop(name)
    for name in names:
        stage.start(name)
        if name in SERVERS:
            stage.wait_for(name)
    for name in names:
        stage.wait_for(name)


def nodes_in(stage: Stage, name: str) -> dict[str, str]:
    """The node that each client's answer came from, as the ledger of a run says."""
    lines = [json.loads(line) for line in (results(stage, name) / "ledger.jsonl").read_text().splitlines()]
    return {line["client_id"]: line["node"] for line in lines if "node" in line}


def public_half(private: bytes) -> bytes:
    return load_ssh_private_key(private, None).public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def test_a_client_with_a_new_key_keeps_its_answers_and_its_budget(stage: Stage) -> None:
    assert_ends_with(certify(stage, "key"), 0, stage)
    before, old_node = spent(stage), nodes_in(stage, "key")["client-00003"]
    private = keys(stage) / "supernode-4" / "node.key"
    old = private.read_bytes()
    nodes = keys(stage) / "operator" / "nodes"
    (public,) = (path for path in nodes.glob("*.pub") if path.read_bytes().startswith(public_half(old)))

    stage.stop("supernode-4")
    listing = stage.spawn("register", [*OPERATOR, "supernode", "list"], log=(listed := stage.folder / "nodes.json"))
    assert listing.wait(60) == 0
    (node_id,) = (each["node-id"] for each in json.loads(listed.read_text())["nodes"] if each["node"] == old_node)
    unregister = stage.spawn("register", [*OPERATOR, "supernode", "unregister", node_id])
    assert unregister.wait(60) == 0, stage.tail("register")
    private.unlink()
    public.unlink()
    once(stage, "setup", "register")
    assert private.read_bytes() != old
    assert public.read_bytes().startswith(public_half(private.read_bytes()))

    (private.with_name("old.key")).write_bytes(old)
    shell, option, script = compose.argv(stage.services["supernode-4"])
    assert stage.spawn("supernode-4", [shell, option, script.replace("/keys/node.key", "/keys/old.key")]).wait(60) != 0
    assert "Exit Code: 305" in stage.tail("supernode-4")  # nobody comes in with the old key

    once(stage, "supernode-4")
    assert_ends_with(certify(stage, "key"), 0, stage)  # the same question again
    assert report_of(stage, "key")["network"]["num_answered"] == NUM_CLIENTS
    assert nodes_in(stage, "key")["client-00003"] != old_node
    assert spent(stage) == before


def test_new_certificates_of_a_new_authority_lose_nothing(stage: Stage) -> None:
    assert_ends_with(certify(stage, "old authority"), 0, stage)
    before, nodes_before = spent(stage), nodes_in(stage, "old authority")
    shutil.copytree(keys(stage), own := stage.folder / "elsewhere")  # node 4 is on a machine of its own
    (keys(stage) / "ca").rename(keys(stage) / "ca-old")
    for path in [*keys(stage).glob("*/server.key"), *keys(stage).glob("*/server.crt")]:
        path.unlink()
    once(stage, "setup")
    both = b"".join((keys(stage) / name / "ca.crt").read_bytes() for name in ("ca", "ca-old"))
    for name in NODE_4:
        shutil.copytree(keys(stage) / name, stage.folder / "new" / name)
        shutil.copytree(own / name, keys(stage) / name, dirs_exist_ok=True)
        (keys(stage) / name / "ca.crt").write_bytes(both)
    restart(stage, NODE_4)  # it trusts both authorities, while all others have the old one
    here = [name for name, spec in stage.services.items() if name in stage.processes and name not in NODE_4]
    restart(stage, [name for name in here if stage.services[name]["restart"] == "unless-stopped"])
    assert_ends_with(certify(stage, "both authorities"), 0, stage)
    for name in NODE_4:
        shutil.copytree(stage.folder / "new" / name, keys(stage) / name, dirs_exist_ok=True)
    restart(stage, NODE_4)
    assert_ends_with(certify(stage, "old authority"), 0, stage)  # the same question again
    assert nodes_in(stage, "old authority") == nodes_in(stage, "both authorities") == nodes_before
    assert report_of(stage, "old authority")["network"]["num_answered"] == NUM_CLIENTS
    assert spent(stage) == [count + 1 for count in before]

    check = [*stage.services["superlink"]["healthcheck"]["test"][1:-1], "/keys/old.crt"]
    shutil.copy(own / "ca" / "ca.crt", keys(stage) / "superlink" / "old.crt")
    assert stage.spawn("superlink", check).wait(60) != 0  # who trusts the old one alone does not come in


def test_a_superlink_is_restored_from_a_backup_that_was_made_in_the_middle_of_a_round(stage: Stage) -> None:
    assert COPY in PAGE
    before = spent(stage)
    process = certify_until_all_but_one_have_answered(stage, "saved")
    assert stage.spawn("superlink", ["python", "-c", COPY]).wait(60) == 0, stage.tail("superlink")
    stage.signal("clientapp-4", signal.SIGCONT)
    assert_ends_with(process, 0, stage)

    stage.kill("superlink")
    state = stage.folder / "deployment" / "state" / "superlink"
    for path in state.glob("superlink.db*"):
        path.unlink()
    (state / "backup.db").rename(state / "superlink.db")
    once(stage, "superlink")
    assert_ends_with(certify(stage, "restored"), 0, stage)
    assert report_of(stage, "restored")["network"]["num_answered"] == NUM_CLIENTS
    assert nodes_in(stage, "restored") == nodes_in(stage, "saved")
    assert spent(stage) == [count + 2 for count in before]
