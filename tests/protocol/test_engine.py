"""The in-process Grid against what flwr itself does with messages."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from riskband.flower import testing
from riskband.flower.testing import Delivery, InProcessGrid, node_unavailable
from tests.waiting import wait_until

app = ClientApp()


@app.query("echo")
def echo(message, context):
    return Message(message.content, reply_to=message)


@app.query("whoami")
def whoami(message, context):
    context.state["visits"] = MetricRecord({"n": context.state.get("visits", {"n": 0})["n"] + 1})
    config = context.node_config | context.run_config
    return Message(RecordDict({"config": ConfigRecord(config), "visits": context.state["visits"]}), reply_to=message)


@app.query("spoil")
def spoil(message, context):
    message.content["weights"]["w"] = Array(np.full(3, -1.0))
    return Message(RecordDict(), reply_to=message)


@app.query("broken")
def broken(message, context):
    raise ZeroDivisionError("division by zero")


@app.train()
def train(message, context):
    partition = context.node_config["partition-id"]
    arrays = ArrayRecord({"w": Array(np.full(3, float(partition)))})
    metrics = MetricRecord({"num-examples": partition})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def network(num_clients=3, **settings):
    return InProcessGrid(app, num_clients=num_clients, run_config={"key": "value"}, **settings)


def broadcast(grid, action="query.echo", content=None):
    content = RecordDict() if content is None else content
    return [Message(content, node_id, action) for node_id in grid.get_node_ids()]


def exchange(grid, *args):
    return list(grid.send_and_receive(broadcast(grid, *args), timeout=300))


EVERYTHING = RecordDict(
    {
        "weights": ArrayRecord(
            {
                "w": Array(np.array([0.1, np.nan, -0.0], dtype=np.float32)),
                "scalar": Array(np.array(7)),
                "empty": Array(np.zeros((0, 3))),
            }
        ),
        "numbers": MetricRecord({"risk": 0.1 + 0.2, "huge": 2**63 - 1, "list": [1.0, float("inf")]}),
        "words": ConfigRecord({"text": "héλlo\n", "flag": True, "raw": b"\x00\xff", "ints": [1, 2]}),
    }
)


def test_every_kind_of_value_survives_the_way_there_and_back():
    for reply in exchange(network(), "query.echo", EVERYTHING):
        content = reply.content
        assert content["numbers"] == EVERYTHING["numbers"]
        assert content["words"] == EVERYTHING["words"]
        for name, sent in EVERYTHING["weights"].items():
            received = content["weights"][name].numpy()
            assert received.dtype == sent.numpy().dtype
            assert received.shape == sent.numpy().shape
            assert received.tobytes() == sent.numpy().tobytes()


def test_a_client_cannot_reach_the_servers_objects():
    content = RecordDict({"weights": ArrayRecord({"w": Array(np.ones(3))})})
    assert len(exchange(network(), "query.spoil", content)) == 3
    assert content["weights"]["w"].numpy().tolist() == [1.0, 1.0, 1.0]


def test_ids_are_those_of_flwr_and_link_reply_to_message():
    grid = network(num_clients=5)
    messages = broadcast(grid)
    # flwr 1.41 names a message by the hash of its bytes (HttpGrid.push_messages).
    expected = [message.object_id for message in messages]
    assert list(grid.push_messages(messages)) == expected
    assert [message.metadata.message_id for message in messages] == expected
    replies = list(grid.pull_messages(expected))
    assert {reply.metadata.reply_to_message_id for reply in replies} == set(expected)
    node_of = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
    for reply in replies:
        assert reply.metadata.src_node_id == node_of[reply.metadata.reply_to_message_id]
        assert reply.metadata.dst_node_id == 1
        assert reply.metadata.message_id == reply.object_id


def test_each_node_sees_its_own_partition_config_and_state():
    grid = network(node_configs={1: {"client-id": "hospital-b"}})
    exchange(grid, "query.whoami")
    replies = exchange(grid, "query.whoami")
    configs = {reply.content["config"]["partition-id"]: reply.content["config"] for reply in replies}
    assert sorted(configs) == [0, 1, 2]
    assert {config["num-partitions"] for config in configs.values()} == {3}
    assert {config["key"] for config in configs.values()} == {"value"}
    assert [configs[k].get("client-id") for k in range(3)] == [None, "hospital-b", None]
    assert [reply.content["visits"]["n"] for reply in replies] == [2, 2, 2]


def test_node_ids_are_distinct_and_differ_from_run_to_run_unless_seeded():
    first, second = set(network(200).get_node_ids()), set(network(200).get_node_ids())
    assert len(first) == len(second) == 200
    assert not first & second
    assert list(network(seed=5).get_node_ids()) == list(network(seed=5).get_node_ids())


def test_replies_come_in_random_order():
    grid = network(50, clients_per_pull=50, seed=0)
    ids = list(grid.push_messages(broadcast(grid)))
    arrived = [reply.metadata.reply_to_message_id for reply in grid.pull_messages(ids)]
    assert sorted(arrived) == sorted(ids)
    assert arrived != ids


@pytest.fixture
def clock(monkeypatch):
    """Time passes for the grid only where a test says so, or where the grid itself pauses."""

    def sleep(seconds):
        clock.now += seconds

    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now, sleep=sleep)
    monkeypatch.setattr(testing, "time", clock)
    return clock


def test_what_a_slow_client_replied_is_handed_over_before_the_next_has_worked(clock):
    def slow(message, answer):
        clock.sleep(1.05 * testing._LONGEST_PULL)
        return [Delivery(answer(message))]

    grid = network(4, behaviours={0: slow, 1: slow}, seed=0)
    ids = list(grid.push_messages(broadcast(grid)))
    assert [len(list(grid.pull_messages(ids[done:]))) for done in range(3)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("action", "text"),
    [
        ("query.broken", "<class 'ZeroDivisionError'>:<'division by zero'>"),
        ("query.unheard_of", "No query function registered with name 'unheard_of'"),
        ("evaluate", "No evaluate function registered"),
    ],
)
def test_an_exception_becomes_error_code_2_with_its_text(action, text):
    for reply in exchange(network(), action):
        assert reply.error.code == 2
        assert text in reply.error.reason


def test_an_unavailable_node_is_reported_by_node_1_with_code_5():
    grid = network(num_clients=1, behaviours={0: node_unavailable})
    (message,) = messages = broadcast(grid)
    (reply,) = grid.send_and_receive(messages)
    assert (reply.metadata.src_node_id, reply.error.code) == (1, 5)
    assert reply.metadata.reply_to_message_id == message.metadata.message_id


def test_a_delivered_reply_is_gone():
    grid = network(num_clients=1)
    ids = list(grid.push_messages(broadcast(grid)))
    assert not next(iter(grid.pull_messages(ids))).has_error()
    assert next(iter(grid.pull_messages(ids))).error.code == 3
    assert next(iter(grid.pull_messages(["never-sent"]))).error.code == 3


def test_a_message_to_nobody_has_no_id():
    grid = network()
    assert list(grid.push_messages([Message(RecordDict(), 12345, "query.echo")])) == [""]


def test_late_and_repeated_replies_arrive_when_they_say():
    def behave(message, answer):
        return [Delivery(answer(message), after_pulls=2), Delivery(answer(message), after_pulls=4)]

    grid = network(num_clients=1, behaviours={0: behave})
    ids = list(grid.push_messages(broadcast(grid)))
    assert [len(list(grid.pull_messages(ids))) for _ in range(5)] == [0, 0, 1, 0, 1]


@pytest.mark.usefixtures("clock")
def test_waiting_ends_at_the_timeout_and_keeps_what_came():
    grid = network(behaviours={1: lambda message, answer: []})
    assert len(list(grid.send_and_receive(broadcast(grid), timeout=0.05))) == 2


@pytest.mark.usefixtures("clock")  # stands, so that who hangs is waited for a second, and the deadline never comes
def test_a_client_that_hangs_is_left_to_its_work_and_the_others_go_on():
    let_go = threading.Event()

    def hang(message, answer):
        let_go.wait()
        return [Delivery(answer(message))]

    grid = network(num_clients=6, behaviours={0: hang, 3: hang}, reply_timeout=2.0)
    sent, replies = broadcast(grid), []
    waiting = {*grid.push_messages(sent)}
    while len(replies) < 4:
        replies += grid.pull_messages(sorted(waiting))
        waiting -= {reply.metadata.reply_to_message_id for reply in replies}
    nodes = list(grid.get_node_ids())
    assert {reply.metadata.src_node_id for reply in replies} == {nodes[k] for k in (1, 2, 4, 5)}
    let_go.set()
    late = []
    while len(late) < 2:  # they come when their clients are done
        late += grid.pull_messages([sent[k].metadata.message_id for k in (0, 3)])
    assert {reply.metadata.src_node_id for reply in late} <= {nodes[0], nodes[3], 1}
    assert len(exchange(grid)) == 6


def test_without_flower_the_extra_is_named():
    code = "import sys; sys.modules['flwr'] = None; import riskband.flower.testing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert 'this needs flwr, which is not installed; run: pip install "riskband[flower]"' in done.stderr


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, GeneratorExit, ValueError])
def test_what_ever_a_client_raises_is_its_own_failure(raised):
    def end(message, answer):
        raise raised("now")

    replies = exchange(network(behaviours={1: end}, reply_timeout=60.0))
    assert len(replies) == 3
    (failed,) = [reply.error for reply in replies if reply.has_error()]
    assert (failed.code, failed.reason) == (2, f"{raised}:<'now'>")


@pytest.mark.parametrize("reply_timeout", [None, 1e6])  # which nobody waits for
def test_what_is_no_message_is_the_failure_of_its_client(reply_timeout):
    grid = network(behaviours={1: lambda message, answer: [Delivery(None)]}, reply_timeout=reply_timeout)
    assert [reply.error.code for reply in exchange(grid) if reply.has_error()] == [2]


def test_nobody_starts_to_work_when_the_time_is_over(clock):
    worked = []
    grid = network(behaviours=dict.fromkeys(range(3), lambda message, answer: worked.append(1)), reply_timeout=0.01)
    sent = list(grid.push_messages(broadcast(grid)))
    clock.sleep(0.02)
    assert list(grid.pull_messages(sent)) == []
    assert not worked


def test_an_interrupt_of_the_user_ends_the_run_also_while_a_client_hangs():
    let_go = threading.Event()

    def hang(message, answer):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        let_go.wait()
        return []

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            exchange(network(behaviours={1: hang}, reply_timeout=60.0))
    finally:
        signal.signal(signal.SIGINT, before)
        let_go.set()


@pytest.mark.parametrize("raised", [SystemExit, GeneratorExit, KeyboardInterrupt])
def test_in_the_thread_of_the_app_only_an_interrupt_is_the_users(raised):
    def end(message, answer):
        raise raised("now")

    grid = network(num_clients=1, behaviours={0: end})
    if raised is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            exchange(grid)
    else:
        assert [reply.error.code for reply in exchange(grid)] == [2]


def test_no_thread_outlives_its_network():
    for _ in range(5):
        exchange(network(num_clients=1, reply_timeout=60.0))
    gc.collect()
    wait_until(lambda: all(thread.name != "client" for thread in threading.enumerate()), timeout=300.0)


def test_nodes_register_when_they_are_said_to():
    grid = network(nodes_ready_after={0: 1, 2: 3})
    assert [len(list(grid.get_node_ids())) for _ in range(5)] == [1, 2, 2, 3, 3]


def test_flwrs_own_fedavg_runs_on_it():
    fedavg = FedAvg(fraction_evaluate=0.0, min_train_nodes=4, min_evaluate_nodes=0, min_available_nodes=4)
    result = fedavg.start(network(num_clients=4), ArrayRecord({"w": Array(np.zeros(3))}), num_rounds=2)
    # Client k returns k with weight k: (1 + 4 + 9) / (1 + 2 + 3).
    np.testing.assert_allclose(result.arrays["w"].numpy(), np.full(3, 14 / 6))
