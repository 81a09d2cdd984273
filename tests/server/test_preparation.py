"""What the launcher prepares for the ServerApp is what the ServerApp would prepare itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from protocol.hashes import model_hash
from server.config import load_config
from server.preparation import PREPARED_VARIABLE, hand_over, handed_over, prepared
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
    hand_over(config, place)
    found, own = handed_over(), prepared(config, None)
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
    hand_over(load_config({**defaults, **SMALL, **changes}), place)
    assert handed_over() is None


@pytest.mark.parametrize("content", [None, b"", b"no pickle"])
def test_a_file_that_is_none_is_as_if_there_were_none(place: Path, content: bytes | None) -> None:
    if content is not None:
        place.write_bytes(content)
    assert handed_over() is None


def test_a_run_evaluates_what_was_handed_over(place: Path, tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    """Weights of another seed: the report is about these, so nothing was trained again."""
    hand_over(load_config({**defaults, **SMALL, "seed": 5}), place)
    found = handed_over()
    assert found is not None
    report = run_app(tmp_path / "out", defaults)
    assert report["hashes"]["model"] == model_hash(found.arrays)
