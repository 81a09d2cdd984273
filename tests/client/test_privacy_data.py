"""The promise of a private client is about one example: whatever it is replaced by, an answer moves by one loss."""

from __future__ import annotations

import sys
from fractions import Fraction

import numpy as np
import pytest
import torch

from client.numbers import summed_steps
from protocol.models import build_model, model_arrays
from protocol.questions import LossQuery
from riskband.models.evaluation import mean_losses
from tests.client.test_privacy import ask, left
from tests.transport import adversarial_query

NUM_EXAMPLES = 6
MODULE = """
import threading
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
    def forward(self, x):
        return self.head(self.seen(x, self.body(x)))
    def seen(self, x, features):
        return features
class Memory(Net):
    "Its logits say for ever whether it has seen a large input."
    def __init__(self):
        super().__init__()
        self.register_buffer("has_seen", torch.zeros(()))
    def forward(self, x):
        if x.max() > 50.0:
            self.has_seen.fill_(1.0)
        return self.head(self.body(x)) * 0.0 + torch.stack([1.0 - self.has_seen, self.has_seen])
class PlainMemory(Net):
    "The same without a buffer."
    has_seen = False
    def forward(self, x):
        self.has_seen = self.has_seen or bool(x.max() > 50.0)
        return self.head(self.body(x)) * 0.0 + torch.tensor([0.0, 1.0] if self.has_seen else [1.0, 0.0])
class Exits(Net):
    def forward(self, x):
        if x.max() > 50.0:
            raise SystemExit(3)
        return super().forward(x)
class Fails(Net):
    def forward(self, x):
        if x.max() > 50.0:
            raise ValueError("patient-4711 is here")
        return super().forward(x)
class Lock(Net):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()
"""
REPLACED = {
    "another": (0.3, 1),
    "large": (100.0, 0),
    "not a number": (np.nan, 0),
    "infinite": (-np.inf, 0),
    "beyond float32": (1e300, 0),
    "negative label": (0.5, -1),
    "label beyond the classes": (0.5, 9),
}


@pytest.fixture(name="hostile")
def _hostile(tmp_path, monkeypatch):
    (tmp_path / "hostile_models.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "hostile_models", raising=False)
    return "hostile_models"


def examples():
    rng = np.random.default_rng(0)
    return rng.normal(size=(NUM_EXAMPLES, 3)), rng.integers(0, 2, size=NUM_EXAMPLES)


def private(folder, x, y, **changes):
    np.savez(folder / "data.npz", x=x, y=y)
    own = {"client-id": "a", "data": str(folder / "data.npz"), "privacy-budget": "laplace:1e12"}
    own["allow-modules"] = "hostile_models"
    return own | {"privacy-budget-file": str(folder / "p.sqlite")} | changes


def numbers(answer):
    if isinstance(answer, str):
        raise AssertionError(answer)
    return np.array([answer.risk] if hasattr(answer, "risk") else [answer.clean_risk, *answer.conjugates_upper])


def adversarial(model, **changes):
    settings = {"order": 1, "multipliers": (0.1, 0.5), "radii": (0.0,), "privacy": "laplace:1e9"} | changes
    return adversarial_query("margin", model, (3,), 2, **settings)


def question(model, loss="zero_one"):
    return LossQuery(loss, model, (3,), 2, "laplace:1e9")


QUERIES = {
    "zero_one": question,
    "brier": lambda model: question(model, "brier"),
    "exact": adversarial,
    "attack": lambda model: adversarial(model, space="input", adversary="pgd", box=(-200.0, 200.0)),
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("zero_one", name) for name in ("Net", "Memory", "PlainMemory", "Exits", "Fails")),
        ("brier", "PlainMemory"),
        ("exact", "Net"),
        ("exact", "Exits"),
        ("attack", "PlainMemory"),
        pytest.param("attack", "Exits", marks=pytest.mark.slow),
    ],
)
def test_an_example_moves_each_number_by_at_most_one_loss_whatever_it_is(hostile, tmp_path, kind, name):
    """The noise is so small that it is next to none; an error, too, would be an answer, without any."""
    query = QUERIES[kind](f"{hostile}:{name}")
    arrays = model_arrays(build_model(query.model, x_shape=(3,), num_classes=2, seed=1))
    x, y = examples()
    before = numbers(ask(private(tmp_path, x, y), query, arrays=arrays))
    for entry, label in REPLACED.values():
        x[0], y[0] = entry, label
        after = numbers(ask(private(tmp_path, x, y), query, arrays=arrays))
        assert np.abs(after - before).max() <= 1 / NUM_EXAMPLES + 1e-6
    assert left(private(tmp_path, x, y)) == 10**12 - (1 + len(REPLACED)) * 10**9


@pytest.mark.parametrize("name", ["Memory", "PlainMemory"])
def test_a_model_that_was_shared_between_examples_would_let_one_speak_for_all(hostile, name):
    """The law above can fail: without a fresh copy for each example the sum moves by all of them."""
    x, y = examples()
    y[:] = 0
    sums = []
    for entry in (0.0, 100.0):
        x[0] = entry
        model = build_model(f"{hostile}:{name}", x_shape=(3,), num_classes=2, seed=1)
        assert summed_steps(model, x, y, losses={"zero_one"})["zero_one"] == (entry > 50.0)
        shared = [mean_losses(model, x[i : i + 1], y[i : i + 1], losses={"zero_one"}) for i in range(NUM_EXAMPLES)]
        sums.append(sum(each["zero_one"] for each in shared))
    assert sums == [0, NUM_EXAMPLES]


def test_a_model_that_cannot_be_copied_is_refused_before_anything_is_spent(hostile, tmp_path):
    own, query = private(tmp_path, *examples()), question(f"{hostile}:Lock")
    arrays = model_arrays(build_model(query.model, x_shape=(3,), num_classes=2, seed=1))
    assert "copying the model failed with TypeError" in ask(own, query, arrays=arrays)
    assert left(own) == 10**12


def test_whoever_ends_the_process_at_the_keyboard_is_obeyed():
    class Interrupted(torch.nn.Module):
        def forward(self, x):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        summed_steps(Interrupted(), *examples(), losses={"zero_one"})


def test_a_question_that_is_not_private_is_refused_before_the_examples_are_looked_at(tmp_path):
    x, y = examples()
    texts = {ask(private(tmp_path, x, y), LossQuery("zero_one", "mlp", (3,), 2))}
    x[0] = np.nan
    texts |= {ask(private(tmp_path, x, y), LossQuery("zero_one", "mlp", (3,), 2))}
    texts |= {ask(private(tmp_path, x, y, data="/nowhere.npz"), LossQuery("zero_one", "mlp", (3,), 2))}
    (text,) = texts
    assert "answers with laplace noise only" in text


def population(folder, label):
    """A dataset that a run's config may name; one label of it is given."""
    x, y = np.random.default_rng(0).random((NUM_EXAMPLES, 3)), np.arange(NUM_EXAMPLES) % 2
    y[0] = label
    path = folder / f"{label}.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    return f"npz:{path}"


def run_config(dataset):
    drawn = {"examples-per-client": 600, "affine-sigma": 0.0, "dirichlet-concentration": 0.0}
    return {"dataset": dataset, "seed": 3} | drawn


@pytest.mark.parametrize("whose", [{"client-id": "a", "allow-run-dataset": True}, {"partition-id": 0}], ids=str)
def test_a_run_does_not_choose_how_often_an_example_of_a_private_client_counts(tmp_path, whose):
    own = {"privacy-budget": "laplace:1e12", "privacy-budget-file": str(tmp_path / "p.sqlite"), "partition-id": 0}
    own |= whose
    places = [population(tmp_path, 0), population(tmp_path, 1), "npz:/nowhere.npz", "hf:nowhere", "no_such:function"]
    texts = {ask(own, question("mlp"), config=run_config(place)) for place in places}
    (text,) = texts  # nothing of them was loaded
    assert "the node config must have 'data' beside a privacy-budget" in text.replace("\\'", "'")
    assert not (tmp_path / "p.sqlite").exists()
    # Why: without a budget, six examples that were drawn 600 times answer, and one of them counts for dozens.
    plain = {key: value for key, value in own.items() if not key.startswith("privacy")}
    risks = [ask(plain, question("mlp"), config=run_config(place)).risk for place in places[:2]]
    assert abs(risks[0] - risks[1]) * 600 > 30


def test_noise_over_a_dataset_that_is_not_bundled_cannot_be_repeated_by_a_server(tmp_path):
    config = run_config(population(tmp_path, 0))
    query = LossQuery("brier", "mlp", (3,), 2, "laplace:0.1")
    assert len({ask({"partition-id": 0}, query, config=config).risk for _ in range(3)}) == 3


def test_values_that_are_left_to_the_evaluation_cost_what_the_answer_costs(tmp_path):
    x, y = examples()
    x[3], y[4] = np.nan, -1
    own = private(tmp_path, x, y, **{"privacy-budget": "laplace:1"})
    refused = ask({"client-id": "a", "data": own["data"]}, LossQuery("zero_one", "mlp", (3,), 2))
    assert "inputs must be finite" in refused  # without noise there is nothing to hide it
    assert isinstance(ask(own, LossQuery("zero_one", "mlp", (3,), 2, "laplace:0.75")).risk, float)
    assert left(own) == Fraction("0.25")
