"""Thousands of hostile questions: the client refuses by rule, spends nothing on them, and says nothing of its data."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord

from client.app import app
from client.budget import QueryBudget
from protocol import wire
from protocol.models import build_model, model_arrays
from protocol.questions import Candidate, CandidatesQuery, ComparisonQuery, LossQuery
from protocol.weight_sets import joined
from riskband.flower.testing import InProcessGrid
from tests.transport import adversarial_query

MODEL = model_arrays(build_model("mlp", x_shape=(3,), num_classes=2, seed=1))
CANDIDATES = (Candidate("a", 0, "brier"), Candidate("b", 1, "zero_one"))
QUESTIONS = {
    "loss": (LossQuery("zero_one", "mlp", (3,), 2), MODEL, 1),
    "adversarial_loss": (
        adversarial_query("zero_one", "mlp", (3,), 2, order=1, radii=(0.0, 0.5), multipliers=(0.1,)),
        MODEL,
        5,
    ),
    "candidates": (CandidatesQuery("mlp", (3,), 2, CANDIDATES), joined([MODEL, MODEL]), 2),
    "comparison": (ComparisonQuery("zero_one", "mlp", (3,), 2), joined([MODEL, MODEL]), 3),
}
LIMIT = 40
SECRETS = ("patient-4711", "0.4711", "client.sqlite")
WORDS = (
    "",
    "\x00",
    "a\nb",
    "x" * 3000,
    "🙂" * 50,
    "../..",
    "os:abort",
    "NaN",
    "accuracy",
    "abstain:2",
    "abstain:",
    ",,",
)
MODELS = (
    "os:abort",
    "os:getcwd",
    "ensurepip:bootstrap",
    "subprocess:Popen",
    "builtins:exit",
    "sys:exit",
    "torch.nn:Linear",
    "torch.nn:Identity",
    "torch.nn:LSTM",
    "torch:zeros",
    ".relative:net",
    "no.such.module:net",
    "this is no module:net",
    "a:b:c",
    "\x00:\x00",
)
REFUSALS = re.compile(
    r'^(\{"refusal": "(ValueError|WithheldError|RefusedError): '
    r"|<class 'ValueError'>:<'No query function registered)"  # Flower's, before it calls the app
)


def pick(rng, values):
    values = list(values)
    return values[int(rng.integers(len(values)))]


def wrong_type(rng, content):
    record = content["query"]
    key = pick(rng, record)
    kinds = [7, -1, 2.5, True, b"bytes", [1], [0.5], ["a"], *WORDS[:5], np.inf]
    record[key] = pick(rng, [value for value in kinds if type(value) is not type(record[key])])


def drop_a_key(rng, content):
    del content["query"][pick(rng, content["query"])]


def drop_a_record(rng, content):
    del content[pick(rng, content)]


def replace_a_record(rng, content):
    old = pick(rng, content)
    kinds = [MetricRecord({"a": 1}), ConfigRecord({"a": "b"}), ArrayRecord({"w": Array(np.zeros(2))})]
    kind = pick(rng, [kind for kind in kinds if type(kind) is not type(content[old])])
    del content[old]
    content[old] = kind


def another_version(rng, content):
    content["query"]["protocol-version"] = pick(rng, [0, 1, -1, 3.0, "3", True, 2**62])


def an_extra_key(rng, content):
    content["query"]["more"] = pick(rng, WORDS)


def an_unknown_loss(rng, content):
    query = content["query"]
    if "loss" in query:
        query["loss"] = pick(rng, WORDS)
    else:
        query["candidates-loss"] = [pick(rng, WORDS), *query["candidates-loss"][1:]]


def another_model(rng, content):
    content["query"]["model"] = pick(rng, [*MODELS, *WORDS, "cnn"])


def another_shape(rng, content):
    shapes = [[], [0], [-3], [4], [3, 1], [1, 3], [10**9] * 3, [2**62], [3] * 1000, [3.0]]
    content["query"]["x-shape"] = pick(rng, shapes)


def another_number_of_classes(rng, content):
    content["query"]["num-classes"] = pick(rng, [-(2**62), -1, 0, 1, 3, 1000, 10**6, 10**12, 2**62])


def no_privacy_that_there_is(rng, content):
    texts = ["gauss:1", "laplace:0", "laplace:nan", "laplace:-1", "laplace:1e999999999", "gaussian:", "laplace:1e13"]
    content["query"]["privacy"] = pick(rng, [*texts, *(word for word in WORDS if word)])


def wrong_arrays(rng, content):
    arrays = dict(content["arrays"].items())
    name = pick(rng, arrays)
    value = arrays.pop(name).numpy()
    bad = np.array(value)
    bad.flat[int(rng.integers(bad.size))] = pick(rng, [np.nan, np.inf, -np.inf])
    choices = [
        bad,
        value[..., :-1],
        value[None],
        value.astype(np.complex64),
        value.astype(np.int64),
        value.astype("U3"),
        value > 0,
        np.zeros(0, np.float32),
        np.zeros((0, 64), np.float32),
        None,
    ]
    value = pick(rng, choices)
    if value is not None:
        arrays[name] = Array(np.asarray(value))
    content["arrays"] = ArrayRecord(arrays)


def another_name_of_an_array(rng, content):
    arrays = dict(content["arrays"].items())
    arrays[pick(rng, ["", "x" * 1000, "2/w", "9999999999/0.weight", "/", "weight"])] = arrays.pop(pick(rng, arrays))
    content["arrays"] = ArrayRecord(arrays)


def broken_bytes(rng, content):
    """Arrays whose bytes are not what they say, also a pickle, which must not be loaded."""
    arrays = dict(content["arrays"].items())
    name = pick(rng, arrays)
    old = arrays[name]
    data = pick(
        rng, [b"", b"\x00" * 10, old.data[:-3], rng.bytes(200), b"\x80\x04K\x07.", old.data[:60] + rng.bytes(40)]
    )
    fields = {"dtype": old.dtype, "shape": old.shape, "stype": old.stype, "data": data}
    fields |= pick(rng, [{}, {"dtype": "object"}, {"stype": "pickle"}])
    arrays[name] = Array(**fields)
    content["arrays"] = ArrayRecord(arrays)


def a_huge_extra_array(rng, content):
    arrays = dict(content["arrays"].items())
    arrays["extra"] = Array(np.zeros(50_000))
    content["arrays"] = ArrayRecord(arrays)


def too_much(rng, content):
    """More numbers than are left, whatever was asked before."""
    size = pick(rng, [LIMIT + 1, 1000, 20_000])
    content["query"][pick(rng, ["radii", "multipliers"])] = np.arange(1, size + 1, dtype=float).tolist()


def a_wrong_grid(rng, content):
    grids = [[np.nan], [np.inf], [-1.0], [1.0, 1.0], [2.0, 1.0], [1e-300], [1e300], [0.0, np.nan], [1, 2], 1.0]
    content["query"][pick(rng, ["radii", "multipliers"])] = pick(rng, grids)


def an_impossible_adversary(rng, content):
    changes = [
        {"order": 0},
        {"order": 3},
        {"order": -(2**62)},
        {"norm": "l3"},
        {"norm": ""},
        {"space": "output"},
        {"adversary": "everything"},
        {"adversary": "ascent"},
        {"adversary": "foolbox:System"},
        {"head": "7"},
        {"head": "1"},
        {"head": "x" * 1000},
        {"box": [0.0, 1.0]},
        {"box": [1.0, 0.0]},
        {"box": [np.nan, 1.0]},
        {"seed": -1},
        {"order": 2, "norm": "linf"},
    ]
    for key, value in pick(rng, changes).items():
        content["query"][key] = value


def wrong_candidates(rng, content):
    changes = [
        {"candidates-name": ["a", "a"]},
        {"candidates-name": ["a"]},
        {"candidates-name": []},
        {"candidates-weights": [0, 2]},
        {"candidates-weights": [-1, 0]},
        {"candidates-weights": [1, 1]},
        {"candidates-weights": [0, 2**62]},
        {"candidates-loss": ["brier"]},
        {"candidates-loss": ["brier", "zero_one", "brier"]},
        {"candidates-loss": ["brier", "accuracy"]},
        {
            "candidates-name": [str(k) for k in range(1000)],
            "candidates-weights": [k % 2 for k in range(1000)],
            "candidates-loss": ["brier"] * 1000,
        },
    ]
    for key, value in pick(rng, changes).items():
        content["query"][key] = value


def the_old_model_twice(rng, content):
    """The client's own model stands for the old one, and one is sent."""
    content["query"]["is-old-local"] = True


ANY = (
    wrong_type,
    drop_a_key,
    drop_a_record,
    replace_a_record,
    another_version,
    an_extra_key,
    an_unknown_loss,
    another_model,
    another_shape,
    another_number_of_classes,
    no_privacy_that_there_is,
    wrong_arrays,
    another_name_of_an_array,
    broken_bytes,
    a_huge_extra_array,
)
HARMFUL = {
    "loss": ANY,
    "adversarial_loss": (*ANY, too_much, a_wrong_grid, an_impossible_adversary),
    "candidates": (*ANY, wrong_candidates),
    "comparison": (*ANY, the_old_model_twice),
}


def own_config(tmp_path, kind):
    rng = np.random.default_rng(0)
    place = tmp_path / "patient-4711.npz"
    np.savez(place, x=np.full((20, 3), 0.4711) + rng.normal(size=(20, 3)), y=rng.integers(0, 2, size=20))
    path = str(tmp_path / f"{kind}-client.sqlite")
    return {"client-id": "a", "data": str(place), "query-budget": LIMIT, "query-budget-file": path}


@pytest.mark.parametrize("kind", list(QUESTIONS))
def test_a_private_client_gives_no_more_than_its_budget_to_whoever_asks_for_more(tmp_path, kind):
    rng = np.random.default_rng(5)
    own = own_config(tmp_path, kind) | {
        "privacy-budget": "laplace:3",
        "privacy-budget-file": str(tmp_path / "p.sqlite"),
    }
    own["query-budget"] = 1000
    grid = InProcessGrid(app, num_clients=1, run_config={"dataset": "none"}, node_configs={0: own})
    query, arrays, _ = QUESTIONS[kind]
    texts = ["", "gaussian:1", "laplace:1e9", "laplace:3.000000000001", "laplace:2", "laplace:1", "laplace:0.5"]
    answered = 0.0
    for _ in range(60):
        content, text = wire.encode_query(query, arrays), pick(rng, texts)
        content["query"]["privacy"] = text
        if kind == "adversarial_loss":
            content["query"]["radii"] = [0.0]
        reply = send(grid, content, kind)
        if reply.has_error():
            assert REFUSALS.match(reply.error.reason), reply.error.reason
            assert not any(secret in reply.error.reason for secret in SECRETS)
        else:
            answered += float(text.removeprefix("laplace:"))
    if kind == "comparison":  # which knows no noise
        assert answered == 0.0
    else:
        assert 0.0 < answered <= 3.0


def send(grid, content, kind):
    (node,) = grid.get_node_ids()
    (reply,) = grid.send_and_receive([Message(content, node, f"query.{kind}")], timeout=60)
    return reply


@pytest.mark.parametrize(
    ("number", "kind", "num_messages"),
    [
        (0, "loss", 200),
        (1, "adversarial_loss", 280),
        (2, "candidates", 200),
        (3, "comparison", 200),
        pytest.param(0, "loss", 1200, marks=pytest.mark.slow),
        pytest.param(1, "adversarial_loss", 1700, marks=pytest.mark.slow),
        pytest.param(2, "candidates", 1100, marks=pytest.mark.slow),
    ],
)
def test_hostile_questions_are_refused_and_cost_nothing(tmp_path, number, kind, num_messages):
    """880 messages, 4,000 more in the slow suite; between them honest ones, answered until the budget is spent."""
    rng = np.random.default_rng(np.random.SeedSequence(12, spawn_key=(number,)))
    query, arrays, size = QUESTIONS[kind]
    own = own_config(tmp_path, kind)
    grid = InProcessGrid(app, num_clients=1, run_config={"dataset": "none"}, node_configs={0: own})
    budget = QueryBudget("a", LIMIT, Path(own["query-budget-file"]))
    counts, spent = Counter(), 0
    for step in range(num_messages):
        content = wire.encode_query(query, arrays)
        if step % (num_messages // 12) == 5:
            reply = send(grid, content, kind)
            assert reply.has_error() == (spent + size > LIMIT)
            spent += 0 if reply.has_error() else size
            if reply.has_error():
                assert "query budget" in reply.error.reason
        mutation = pick(rng, HARMFUL[kind])
        mutation(rng, content)
        counts[mutation.__name__] += 1
        reply = send(grid, content, kind)
        what = f"{mutation.__name__} {dict(content.get('query', {}))}"[:300]
        assert reply.has_error(), what
        assert reply.error.code == 2, what
        assert REFUSALS.match(reply.error.reason), (what, reply.error.reason[:300])
        assert not any(secret in reply.error.reason for secret in SECRETS), what
        if step % 50 == 0:  # a look at the file takes longer than a refusal
            assert sum(budget.spent().values()) == spent, what
    assert sum(budget.spent().values()) == spent > 0
    often = 20 if num_messages >= 1000 else 2
    assert all(counts[mutation.__name__] > often for mutation in HARMFUL[kind])


@pytest.mark.parametrize("kind", ["everything", "hello", "loss", "adversarial_loss", "candidates", "comparison"])
def test_a_question_of_another_kind_is_refused(tmp_path, kind):
    own = own_config(tmp_path, kind)
    grid = InProcessGrid(app, num_clients=1, run_config={"dataset": "none"}, node_configs={0: own})
    for other, (query, arrays, _) in QUESTIONS.items():
        if other == kind:
            continue
        reply = send(grid, wire.encode_query(query, arrays), kind)
        assert reply.has_error()
        assert REFUSALS.match(reply.error.reason), reply.error.reason


def test_a_client_with_data_of_its_own_does_not_train(tmp_path):
    own = own_config(tmp_path, "train")
    grid = InProcessGrid(app, num_clients=1, run_config={"dataset": "none"}, node_configs={0: own})
    (node,) = grid.get_node_ids()
    (reply,) = grid.send_and_receive([Message(wire.encode_query(*QUESTIONS["loss"][:2]), node, "train")], timeout=60)
    assert "does not train" in reply.error.reason
