"""What the launcher prepares for the ServerApp is what the ServerApp would prepare itself."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from protocol.hashes import model_hash
from server.config import load_config
from server.preparation import PREPARED_VARIABLE, PREPARING, hand_over, handed_over, prepared
from server.run.ledger import part_of_a_run
from tests.server.running import SMALL, run_app


class Unpicklable(nn.Linear):
    """A model that only the process which made it can have."""

    def __reduce__(self) -> Any:
        raise TypeError("not for others")


def unpicklable(*, x_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), Unpicklable(int(np.prod(x_shape)), num_classes))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(PREPARED_VARIABLE, str(tmp_path / "prepared"))
    return tmp_path / "prepared"


@pytest.mark.parametrize(
    "changes",
    [{}, {"strategy": "selection", "candidate-epochs": "1,2", "training-epochs": 2}, {"strategy": "wasserstein"}],
)
def test_what_is_handed_over_is_what_would_be_prepared(
    place: Path, defaults: Mapping[str, Any], changes: dict[str, Any]
) -> None:
    config = load_config({**defaults, **SMALL, **changes})
    stages: list[str] = []
    hand_over(config, place, show=stages.append)
    assert stages == [PREPARING]
    found, own = handed_over(config), prepared(config, None)
    assert found is not None
    assert found.candidates == own.candidates
    assert {name: each.tobytes() for name, each in found.arrays.items()} == {
        name: each.tobytes() for name, each in own.arrays.items()
    }
    assert [str(model) for model in found.models] == [str(model) for model in own.models]


@pytest.mark.parametrize(
    "changes",
    [
        {"training": "fedavg"},  # takes the clients
        {"dataset": "hf:nobody/nothing"},  # cannot be loaded, which it is to say
        {"model": f"{__name__}:unpicklable"},
    ],
)
def test_nothing_is_handed_over_where_the_server_app_has_to_do_it(
    place: Path, defaults: Mapping[str, Any], changes: dict[str, Any]
) -> None:
    config = load_config({**defaults, **SMALL, **changes})
    hand_over(config, place, show=print)
    assert handed_over(config) is None


@pytest.mark.parametrize("content", [None, b"", b"no pickle", pickle.dumps(5), pickle.dumps(({}, "another run's"))])
def test_a_file_of_something_else_is_as_if_there_were_none(
    place: Path, defaults: Mapping[str, Any], content: bytes | None
) -> None:
    if content is not None:
        place.write_bytes(content)
    assert handed_over(load_config({**defaults, **SMALL})) is None


@pytest.mark.parametrize(("change", "is_of_this_run"), [({"output-dir": "/elsewhere"}, True), ({"seed": 5}, False)])
def test_what_was_prepared_for_another_run_is_not_taken(
    place: Path, defaults: Mapping[str, Any], change: dict[str, Any], is_of_this_run: bool
) -> None:
    hand_over(load_config({**defaults, **SMALL, **change}), place, show=print)
    assert (handed_over(load_config({**defaults, **SMALL})) is not None) == is_of_this_run


def test_a_run_evaluates_what_was_handed_over(place: Path, tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    """Weights of another seed, said to be this run's: the report is about these, so nothing was trained again."""
    config = load_config({**defaults, **SMALL})
    other = prepared(load_config({**defaults, **SMALL, "seed": 5}), None)
    place.write_bytes(pickle.dumps((part_of_a_run(config.to_run_config()), other)))
    report = run_app(tmp_path / "out", defaults)
    assert report["hashes"]["model"] == model_hash(other.arrays)
