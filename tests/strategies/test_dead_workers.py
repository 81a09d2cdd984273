"""A client that ends the Ray worker it runs on is named, apart from those that Flower gave to the dead worker later."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.app import Error, Message, RecordDict

from riskband.flower.testing import Delivery
from strategies.asking.failures import FailureReason
from strategies.asking.replies import dead_worker
from tests.strategies.network import ARRAYS, QUERY, everyone_but, name_of, names, network, strategy

# As Ray 2.55 and Flower 1.41 said it, cut after the first of its possible reasons.
SAID = (
    "<class 'ray.exceptions.ActorDiedError'>:<'The actor died unexpectedly before finishing this task.\n"
    "\tclass_name: ClientAppActor\n\tactor_id: {}\n\tpid: 26240\n\tnamespace: 67d59564-de5b-43e9-a06e-2dc4d0363628\n"
    "\tip: 127.0.0.1\nThe actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR'>"
)
PROJECT = Path(__file__).resolve().parents[2]
DYING = """
import os, time

def risk(context):
    if context.node_config["partition-id"] == 1:
        os._exit(3)
    time.sleep(0.2)
    return 0.25, 40
"""


def on_worker(actor, *, at):
    """Flower's reply at a time (seconds) for a message whose worker was gone."""

    def behave(message, answer):
        reply = Message(Error(0, SAID.format(actor)), reply_to=message)
        reply.metadata.created_at = message.metadata.created_at + at
        return [Delivery(reply)]

    return behave


def test_the_client_that_a_worker_died_of_is_told_from_those_that_came_to_it_later():
    gone = {2: on_worker("a8b2", at=2.0), 4: on_worker("a8b2", at=1.0), 5: on_worker("a8b2", at=3.0)}
    gone |= {7: on_worker("77ff", at=9.0)}
    grid = network(gone, clients_per_pull=10)
    nodes = dict(zip(grid.get_node_ids(), map(name_of, range(10)), strict=True))
    outcome = strategy(simulated=nodes).ask(grid, QUERY, ARRAYS)
    assert names(outcome) == everyone_but(2, 4, 5, 7)
    found = {failure.client_id: failure.reason for failure in outcome.failures}
    crashed, beside = FailureReason.CLIENT_CRASHED, FailureReason.FLOWER_ERROR
    assert found == {name_of(2): beside, name_of(4): crashed, name_of(5): beside, name_of(7): crashed}


def test_a_text_that_begins_as_rays_many_times_costs_a_server_no_time():
    """With a pattern that goes back, 2,000 of them took 0.4 s and these would take an hour."""
    reply = Message(Error(0, "ActorDiedError" * 200_000), reply_to=Message(RecordDict(), 1, "query.loss"))
    assert dead_worker(reply) is None


@pytest.mark.slow
def test_a_client_that_ends_its_process_on_ray_is_named(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    command = [sys.executable, "-m", "simulations", "quickstart", "--engine", "ray", "--clients", "6"]
    command += ["--out", str(tmp_path / "run"), "--set", "dataset=none", "evaluator=dying:risk", "num-unseen=0"]
    environment = {**os.environ, "PYTHONPATH": f"{PROJECT}{os.pathsep}{tmp_path}", "HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    (settled,) = [event for event in events if event["event"] == "quorum_missed"]
    reasons = {failure["client_id"]: failure["reason"] for failure in settled["failures"]}
    assert [name for name, reason in reasons.items() if reason == "client-crashed"] == ["client-00001"]
    assert None not in reasons
    assert "client-00001" in (tmp_path / "run" / "failed.json").read_text()
