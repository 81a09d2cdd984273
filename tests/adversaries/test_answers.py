"""The one call for people without Flower, against what Flower clients answer, and against the curves themselves."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message

import riskband as rb
from client.app import app
from protocol import wire
from protocol.models import build_model, model_arrays
from protocol.questions import AdversarialAnswer
from riskband.adversaries import adversarial_answers
from riskband.flower.testing import InProcessGrid
from strategies.asking.replies import RoundOutcome
from strategies.wasserstein import usable_answers
from tests.transport import adversarial_query, curves_of

RADII, MULTIPLIERS = (0.0, 0.05, 0.2, 1.0), (0.1, 1.0, 10.0)
MODEL = build_model("mlp", x_shape=(3,), num_classes=3, seed=5)


def network(num_clients: int = 3) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(7)
    return [(rng.uniform(size=(6 + k, 3)).astype(np.float32), rng.integers(3, size=6 + k)) for k in range(num_clients)]


def answered_over_flower(folder: Any, clients: Any, asked: dict[str, Any]) -> rb.AdversarialAnswers:
    query = adversarial_query("zero_one", "mlp", (3,), 3, radii=RADII, multipliers=MULTIPLIERS, **asked)
    configs = {}
    for k, (x, y) in enumerate(clients):
        np.savez(folder / f"{k}.npz", x=x, y=y)
        configs[k] = {"client-id": f"client-{k}", "data": str(folder / f"{k}.npz")}
    grid = InProcessGrid(app, num_clients=len(clients), run_config={"dataset": "none"}, node_configs=configs)
    content = wire.encode_query(query, model_arrays(MODEL))
    messages = [Message(content, node, wire.message_type(query)) for node in grid.get_node_ids()]
    replies = [
        wire.decode_answer(reply.content, AdversarialAnswer) for reply in grid.send_and_receive(messages, timeout=60)
    ]
    replies.sort(key=lambda reply: reply.client_id)
    return usable_answers(RoundOutcome(answers=tuple(replies), failures=(), num_asked=len(replies)), query)


@pytest.mark.parametrize(
    "asked",
    [
        {"order": 2},
        {"order": 1, "space": "input", "adversary": "sandwich:pgd", "norm": "linf", "seed": 4},
        {"order": 1, "space": "layer:2", "adversary": "min-norm", "box": (-50.0, 50.0)},
        {"order": 1, "space": "input", "adversary": "smoothing:0.5:100", "seed": 4},
    ],
    ids=lambda asked: asked.get("space", "representation"),
)
def test_the_answers_are_those_of_flower_clients(tmp_path: Any, asked: dict[str, Any]) -> None:
    clients = network()
    found = adversarial_answers(MODEL, clients, radii=RADII, multipliers=MULTIPLIERS, **asked)
    expected = answered_over_flower(tmp_path, clients, asked)
    for name in ("radii", "values", "conjugates", "multipliers", "num_examples"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    for name in ("cost", "guarantee", "binary", "unit", "num_missing"):
        assert getattr(found, name) == getattr(expected, name)
    certificate = rb.wasserstein_mean(found, delta=0.1, cost_budget=0.1)
    assert certificate.value == rb.wasserstein_mean(expected, delta=0.1, cost_budget=0.1).value


def test_tensors_are_welcome_and_the_multipliers_are_those_of_the_radii() -> None:
    clients = network()
    tensors = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in clients]
    found = adversarial_answers(MODEL, tensors, radii=RADII)
    np.testing.assert_array_equal(found.multipliers, rb.default_multipliers(RADII))
    x, y = clients[1]
    curves = curves_of(MODEL, x, y, loss="zero_one", order=2)
    np.testing.assert_array_equal(found.values[1], curves.values(RADII)[1])
    np.testing.assert_array_equal(found.conjugates[1], curves.conjugates(found.multipliers)[1])


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"loss": "hinge"}, "loss must be one of"),
        ({"box": (0, 1)}, "box and distances must not be given in representation space"),
        ({"radii": (0.1, 0.2)}, "radii must increase strictly from 0"),
        ({"radii": (0, -1)}, "radii must be finite and >= 0, got -1"),
        ({"clients": ()}, "there must be at least one client"),
        ({"clients": network()[0]}, r"a client must be a pair \(x, y\) of inputs and labels, got ndarray"),
    ],
    ids=str,
)
def test_what_breaks_a_rule_is_refused(change: dict[str, Any], rule: str) -> None:
    asked: dict[str, Any] = {"clients": network(), "radii": RADII} | change
    with pytest.raises(ValueError, match=rule):
        adversarial_answers(MODEL, asked.pop("clients"), **asked)


def test_clients_that_helped_to_make_the_model_give_estimates_only() -> None:
    asked = {"radii": RADII, "multipliers": MULTIPLIERS, "order": 1}
    fresh, trainers = (adversarial_answers(MODEL, network(), answered_by=who, **asked) for who in ("fresh", "trainers"))
    validity = [rb.wasserstein_mean(each, delta=0.1, cost_budget=0.01).validity for each in (fresh, trainers)]
    assert validity == ["certificate", "estimate"]


def test_without_torch_it_says_what_to_install() -> None:
    script = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "torch" else find(name, package)
try:
    from riskband.adversaries import adversarial_answers
except ImportError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip().endswith('run: pip install "riskband[torch]"')
    assert len(found.stdout.strip().splitlines()) == 1
