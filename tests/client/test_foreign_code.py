"""Models and data functions of somebody else: whatever they raise, the client lives on and their words stay with it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from torch import nn

from client.app import app
from protocol import wire
from protocol.models import build_model, model_arrays
from protocol.questions import Candidate, CandidatesQuery, LossQuery, Query
from riskband.flower.testing import InProcessGrid
from tests.transport import adversarial_query

SECRET = "/home/alice/patients.csv"
SHAPE, NUM_CLASSES = (3,), 2
ARRAYS = {"layer.weight": np.zeros((2, 3), dtype=np.float32), "layer.bias": np.zeros(2, dtype=np.float32)}


class Ending(BaseException):
    """As KeyboardInterrupt and SystemExit, no Exception."""


RAISED = [ValueError, SystemExit, Ending]


class Linear(nn.Module):
    """Honest; what follows breaks one method each, with the exception whose turn it is."""

    raised: type[BaseException] = ValueError

    def __init__(self, *, x_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layer(x)
        return logits


def fail(*_: Any, **__: Any) -> Any:
    raise Linear.raised(SECRET)


class Unbuilt(Linear):
    def __init__(self, *, x_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(x_shape=x_shape, num_classes=num_classes)
        fail()


class Unread(Linear):
    state_dict = fail


class Unloaded(Linear):
    load_state_dict = fail


class Untried(Linear):
    forward = fail


class Odd(Linear):
    def state_dict(self, *_: Any, **__: Any) -> Any:
        return {SECRET: SECRET}


def data() -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((5, 3), dtype=np.float32), np.zeros(5, dtype=np.int64)


def loader() -> Any:
    yield data()
    fail()


def asked(query: Query, own: dict[str, Any]) -> Message:
    """The reply to a question; the same client must answer a plain one afterwards."""
    grid = InProcessGrid(app, num_clients=1, run_config={"dataset": "none"}, node_configs={0: own})
    (node,) = grid.get_node_ids()
    arrays = {f"0/{name}": array for name, array in ARRAYS.items()} if isinstance(query, CandidatesQuery) else ARRAYS
    (reply,) = grid.send_and_receive([Message(wire.encode_query(query, arrays), node, wire.message_type(query))])
    honest = build_model("mlp", x_shape=SHAPE, num_classes=NUM_CLASSES, seed=0)
    content = wire.encode_query(LossQuery("zero_one", "mlp", SHAPE, NUM_CLASSES), model_arrays(honest))
    if own["data"] == OWN["data"]:
        (after,) = grid.send_and_receive([Message(content, node, "query.loss")])
        assert not after.has_error()
    return reply


MODULES = f"{__name__}, ending_module, interrupted_module"
OWN = {"client-id": "a", "data": f"{__name__}:data", "allow-modules": MODULES}
PLAIN = LossQuery("brier", f"{__name__}:Linear", SHAPE, NUM_CLASSES)
QUESTIONS = [
    PLAIN,
    adversarial_query("brier", PLAIN.model, SHAPE, NUM_CLASSES, order=1, radii=(0.0, 0.1), multipliers=(1.0,)),
    CandidatesQuery(PLAIN.model, SHAPE, NUM_CLASSES, (Candidate("one", 0, "brier"),)),
]


def known_name(raised):
    """What travels of the name of an exception: that of the nearest one of Python's own."""
    return next(kind.__name__ for kind in raised.__mro__ if kind.__module__ == "builtins")


@pytest.fixture(autouse=True, params=RAISED, ids=lambda raised: raised.__name__)
def raised(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[BaseException]:
    monkeypatch.setattr(Linear, "raised", request.param)
    kind: type[BaseException] = request.param
    return kind


@pytest.mark.parametrize("query", QUESTIONS, ids=lambda query: type(query).__name__)
@pytest.mark.parametrize("model", ["Unbuilt", "Unread", "Unloaded", "Untried"])
def test_a_models_words_stay_here(query: Query, model: str, raised: type[BaseException]) -> None:
    reply = asked(dataclasses.replace(query, model=f"{__name__}:{model}"), OWN)
    assert reply.has_error()
    assert SECRET not in reply.error.reason
    assert known_name(raised) in reply.error.reason


def test_a_state_dict_of_other_things_is_refused() -> None:
    reply = asked(dataclasses.replace(PLAIN, model=f"{__name__}:Odd"), OWN)
    assert "a model must have a state dict of tensors by name" in reply.error.reason
    assert SECRET not in reply.error.reason


@pytest.mark.parametrize("ends", ["raise SystemExit(%r)", "raise BaseException(%r)"])
def test_a_module_that_ends_the_process_when_it_is_imported_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    (tmp_path / "ending_module.py").write_text(ends % SECRET)
    monkeypatch.syspath_prepend(tmp_path)
    for reply in (
        asked(dataclasses.replace(PLAIN, model="ending_module:Net"), OWN),
        asked(PLAIN, OWN | {"data": "ending_module:data"}),
    ):
        assert "must be importable" in reply.error.reason
        assert SECRET not in reply.error.reason


@pytest.mark.parametrize(
    ("model", "data"), [("interrupted_module:Net", OWN["data"]), (PLAIN.model, "interrupted_module:data")]
)
def test_an_interrupt_of_the_user_ends_the_import_of_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, data: str
) -> None:
    (tmp_path / "interrupted_module.py").write_text("raise KeyboardInterrupt")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        asked(dataclasses.replace(PLAIN, model=model), OWN | {"data": data})


@pytest.mark.parametrize("function", ["fail", "loader"])
def test_the_words_of_a_data_function_stay_here(function: str, raised: type[BaseException]) -> None:
    reply = asked(PLAIN, OWN | {"data": f"{__name__}:{function}"})
    assert SECRET not in reply.error.reason
    assert known_name(raised) in reply.error.reason


def test_the_honest_model_is_answered_about() -> None:
    assert not any(asked(query, OWN).has_error() for query in QUESTIONS)
