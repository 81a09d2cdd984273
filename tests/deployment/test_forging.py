"""A forging node over real SuperNodes: it has a registered key, and replies in the name of another client.

Flower 1.41 authenticates who pushes a reply and stores it under whatever sender it names. All that stands in the way is
Flower's id of the message, which is half of what the forger must know; the node's id is the other half. Here it is told
both. The control is the same forgery in a run that knows no keys.
"""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import ConfigRecord, Error, Metadata, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from protocol import wire
from protocol.codec import plain
from protocol.questions import LossAnswer
from riskband.answers.signing import Statement
from riskband.cli import main as riskband
from server.run.folder import read_events
from server.run.ledger import read_ledger
from tests.deployment import compose
from tests.deployment.stage import Stage
from tests.deployment.test_faults import (
    NODE_ID,
    NUM_CLIENTS,
    VARIABLES,
    answers,
    assert_ends_with,
    certify_until_all_but_one_have_answered,
    report_of,
    results,
)
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes through /proc"),
]
FORGER, VICTIM = 3, 4  # numbers of their nodes
NAME_OF_VICTIM = f"client-{VICTIM - 1:05d}"
FORGED_RISK = 0.975


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """On the loopback interface, where this process is the forger."""
    folder = tmp_path_factory.mktemp("stage")
    with Stage(folder, compose.SECURE, has_namespaces=False, variables=VARIABLES) as stage:
        stage.up()
        yield stage


class Forger:
    """Who holds the node key of one client, and pushes replies from another's node."""

    def __init__(self, stage: Stage) -> None:
        keys = stage.folder / "deployment" / "keys"
        own = load_ssh_private_key((keys / f"supernode-{FORGER}" / "node.key").read_bytes(), None)
        self.signing: Any = load_ssh_private_key((keys / f"clientapp-{FORGER}" / "signing.key").read_bytes(), None)
        authority = (keys / f"supernode-{FORGER}" / "ca.crt").read_bytes()
        as_node = NodeAuthHttpInterceptor(own, own.public_key())  # type: ignore[arg-type]
        interceptors = [RuntimeVersionHttpInterceptor(component_name="SuperNode"), as_node]
        address = stage._local("supernode-3", "proxy:8443")
        self._connect = partial(
            FleetHttpClient.from_server_address, address, False, authority, interceptors=interceptors
        )
        self.node = Node(node_id=int(NODE_ID.findall(stage.log(f"supernode-{FORGER}").read_text())[-1]))

    def push(self, asked: dict[str, Any], *, message_id: str, content: RecordDict | None = None) -> None:
        """Reply to a message in the name of the node that it went to: with an answer, or else a refusal."""
        about = {"run_id": asked["run_id"], "src_node_id": asked["dst_node_id"], "dst_node_id": SUPERLINK_NODE_ID}
        about |= {"group_id": asked["group_id"], "message_type": asked["message_type"]}
        metadata = Metadata(**about, message_id="", reply_to_message_id=message_id, created_at=time.time(), ttl=30.0)
        error = None if content is not None else Error(ErrorCode.CLIENT_APP_CRASHED, "its process is gone")
        reply = make_message(metadata, content, error)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        told = {"messages_list": [message_to_proto(remove_content_from_message(reply))]}
        request = PushMessagesRequest(node=self.node, message_object_trees=[get_object_tree(reply)], **told)
        with self._connect() as client:
            said = client.PushMessages(request)
            for key, part in get_all_nested_objects(reply).items():
                if key in said.objects_to_push:
                    pushed = {"run_id": asked["run_id"], "session_id": said.session_id, "object_id": key}
                    client.PushObject(PushObjectRequest(node=self.node, object_content=part.deflate(), **pushed))


def rows(stage: Stage, query: str, *values: object) -> list[dict[str, Any]]:
    """What the SuperLink's database says."""
    path = stage.folder / "deployment" / "state" / "superlink" / "superlink.db"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30.0)) as database:
        database.row_factory = sqlite3.Row
        return [dict(row) for row in database.execute(query, values)]


def open_questions(stage: Stage) -> list[dict[str, Any]]:
    """The messages to the victim that nobody has replied to, with their ids as they travel."""
    node_id = int(NODE_ID.findall(stage.log(f"supernode-{VICTIM}").read_text())[-1])
    found = rows(stage, "SELECT * FROM message_ins ORDER BY created_at")
    asked = (row for row in found if row["dst_node_id"] % 2**64 == node_id)
    return [row | {key: row[key] % 2**64 for key in ("run_id", "src_node_id", "dst_node_id")} for row in asked]


def forged_answer(stage: Stage, name: str) -> RecordDict:
    hashes = read_ledger(results(stage, name) / "ledger.jsonl")[0]["hashes"]
    about = {"loss": "zero_one", "code_hash": hashes["code"], "model_hash": hashes["model"]}
    return wire.encode_answer(LossAnswer(NAME_OF_VICTIM, FORGED_RISK, 40, **about))


def signed_by_the_forger(forger: Forger, stage: Stage, name: str, asked: dict[str, Any]) -> RecordDict:
    """What the victim would sign, under the forger's key."""
    content = forged_answer(stage, name)
    (own, *_) = [json.loads(line) for line in (results(stage, name) / "ledger.jsonl").read_text().splitlines()[1:]]
    statement = Statement(str(asked["run_id"]), asked["group_id"], own["signed"]["question"], plain(content["answer"]))
    content[wire.SIGNATURE_RECORD] = ConfigRecord({"signature": forger.signing.sign(statement.to_sign)})
    return content


@pytest.mark.parametrize("lie", ["an answer", "a refusal"])
def test_who_knows_the_message_and_the_node_neither_answers_nor_fails_for_another(stage: Stage, lie: str) -> None:
    process = certify_until_all_but_one_have_answered(stage, lie)
    forger, (asked,) = Forger(stage), open_questions(stage)
    content = None if lie == "a refusal" else signed_by_the_forger(forger, stage, lie, asked)
    forger.push(asked, message_id=asked["message_id"], content=content)
    wait_until(lambda: {each["message_id"] for each in open_questions(stage)} - {asked["message_id"]}, timeout=60.0)
    stage.signal("clientapp-4", signal.SIGCONT)
    assert_ends_with(process, 0, stage)
    network = report_of(stage, lie)["network"]
    assert (network["num_answered"], network["failures"]) == (NUM_CLIENTS, [])
    assert FORGED_RISK not in [answer.risk for answer in answers(stage, lie)]
    assert riskband(["verify", str(results(stage, lie))]) == 0


def test_the_same_answer_is_certified_where_no_keys_are_given(stage: Stage) -> None:
    """The control: nothing but the signature tells it from the client's own."""
    entrypoint = stage.services["certify"]["entrypoint"]
    stage.services["certify"]["entrypoint"] = entrypoint.replace("--set client-keys=/keys/clients ", "")
    process = certify_until_all_but_one_have_answered(stage, "unsigned")
    (asked,) = open_questions(stage)
    Forger(stage).push(asked, message_id=asked["message_id"], content=forged_answer(stage, "unsigned"))
    assert_ends_with(process, 0, stage)
    stage.signal("clientapp-4", signal.SIGCONT)
    stage.services["certify"]["entrypoint"] = entrypoint
    assert {answer.client_id: answer.risk for answer in answers(stage, "unsigned")}[NAME_OF_VICTIM] == FORGED_RISK


def test_nothing_that_a_run_leaves_has_the_id_of_a_node(stage: Stage) -> None:
    ids = [NODE_ID.findall(stage.log(f"supernode-{k}").read_text())[-1] for k in range(1, NUM_CLIENTS + 1)]
    texts = [path.read_text(errors="replace") for path in results(stage, "a refusal").rglob("*") if path.is_file()]
    assert len(texts) > 5
    assert not [node_id for node_id in ids for text in texts if node_id in text]
    assert all(
        event.get("node") for event in read_events(results(stage, "a refusal") / "events.jsonl") if "node" in event
    )
