"""The protocol "bisection" where examples move as inputs: the same adversary answers every round, of one curve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.server.running import at_every_budget
from tests.server.test_sandwich_app import run

BISECTION: Mapping[str, Any] = {"protocol": "bisection", "bisection_tolerance": 0.01}
SMALL: Mapping[str, Any] = {"num_unseen": 0, "num_clients": 4, "examples_per_client": 6, "cost_budgets": "0,0.05"}
ABOUT = {"auto": "upper-bounds", "wda-knapsack": "attacks", "sandwich:pgd": "upper-bounds", "wc-dg": "attacks"}


@pytest.mark.parametrize(
    ("adversary", "space", "loss"),
    [
        pytest.param("auto", "input", "zero_one", marks=pytest.mark.slow),
        pytest.param("wda-knapsack", "input", "cross_entropy", marks=pytest.mark.slow),
        pytest.param("sandwich:pgd", "layer:0", "zero_one", marks=pytest.mark.slow),
        pytest.param("wc-dg", "layer:0", "margin", marks=pytest.mark.slow),
    ],
)
def test_it_finds_what_one_round_finds_and_says_whose_it_is(
    tmp_path: Path, defaults: Mapping[str, Any], adversary: str, space: str, loss: str
) -> None:
    asked = {**SMALL, "adversary": adversary, "space": space, "loss": loss, "transport_order": 2}
    bisected = run(tmp_path / "bisection", defaults, **BISECTION, **asked)
    at_once = run(tmp_path / "one-round", defaults, num_radii=300, **asked)
    found, expected = (report["transport"]["empirical_worst_mean"] for report in (bisected, at_once))
    assert bisected["transport"]["later_failures"] == []  # nobody contradicts its first answer
    assert bisected["transport"]["num_rounds"] > 1
    assert found["about"] == ABOUT[adversary]
    lower, upper = np.array(found["lower"]), np.array(found["upper"])
    assert np.all(upper - lower <= 0.01 + 1e-9)
    # One round brackets the worst mean of the attained values and of the proved ones together.
    end = "upper" if found["about"] == "upper-bounds" else "lower"
    assert np.all(lower <= np.array(expected["upper"]) + 1e-9)
    np.testing.assert_allclose(lower, expected[end], atol=0.015)
    is_proved = found["about"] == "upper-bounds"
    assert {entry["validity"] for entry in bisected["certificates"].values()} == {
        "certificate" if is_proved else "estimate"
    }
    assert (bisected["sandwich"] is not None) == is_proved
    if is_proved:  # of the first round, which asks for the same multipliers; between them more radii say more
        certified = [at_every_budget(tmp_path / folder, "wasserstein_mean") for folder in ("bisection", "one-round")]
        np.testing.assert_allclose(*certified, rtol=1e-6)
        for row, other in zip(bisected["sandwich"]["network"], at_once["sandwich"]["network"], strict=True):
            assert row == pytest.approx(other, abs=0.015)
