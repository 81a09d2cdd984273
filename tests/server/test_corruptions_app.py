"""A run whose clients are draws of (angle, corruption): what they answer, and the exact risks of those nobody asked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.config import load_config
from server.problems import ConfigError
from tests.server.running import run_app
from worlds.corruptions import CorruptionShift
from worlds.population import spec_from_config
from worlds.shifts import RotationShift

CORRUPTED = {
    "affine_sigma": 0.0,
    "dirichlet_concentration": 0.0,
    "rotation_angles": "0,30",
    "corruptions": "mnist-c:shear,impulse-noise",
    "severities": "1,5",
}


@pytest.mark.slow
def test_clients_answer_and_the_unseen_have_one_of_few_exact_risks(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    report = run_app(tmp_path, defaults, num_unseen=30, **CORRUPTED)
    assert report["network"]["num_answered"] == 12
    risks = np.array(report["unseen"]["risks"])
    assert len(risks) == 30
    assert 2 <= len(np.unique(risks)) <= 2 * 2 * 2  # angles, kinds, severities: equal clients have equal risks


def test_keys_become_shifts_and_bad_ones_are_refused(defaults: Mapping[str, Any]) -> None:
    keys = {key.replace("_", "-"): value for key, value in CORRUPTED.items()}
    found = spec_from_config(load_config({**defaults, **keys}).to_run_config()).shifts
    assert found == (RotationShift((0.0, 30.0)), CorruptionShift(("shear", "impulse-noise"), (1, 5)))
    for key, value in (("corruptions", "mnist"), ("corruptions", "mnist-c:frost"), ("severities", "6")):
        with pytest.raises(ConfigError, match=key):
            load_config({**defaults, **keys, key: value})
