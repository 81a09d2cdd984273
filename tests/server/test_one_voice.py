"""No run says two numbers for one quantity: every scenario, made small, in report.json, table and page."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.one_voice import contradictions
from tests.server.running import printed, run_app

SCENARIOS = {
    path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in Path("simulations/scenarios").glob("*.toml")
}
NEED_DATA = {"insteval", "movielens", "sandwich-cifar10", "sandwich-mnist"}  # that a machine need not have
REQUIRED = "mean<=0.9,quantile:0.9<=0.95,mean@chi2:0.1<=0.99,share:0.3<=0.99,share:0.5@kl:0.05<=0.99"
OF_CHANGES = "change<=0.9,harmed:0.02<=0.99,quantile:0.9<=0.95"
_QUICK = {"num-clients": 24, "num-unseen": 8, "training-rounds": 1, "secure-neighbours": 10, "num-radii": 4}


def cases() -> Iterator[Any]:
    """Each scenario without a requirement and with one, where it takes either."""
    for name in sorted(SCENARIOS.keys() - NEED_DATA):
        scenario = SCENARIOS[name]
        if scenario.get("ask") != "until-decided":  # which needs something to decide
            yield pytest.param(name, "", id=f"{name}-plain")
        if scenario.get("strategy") != "selection":  # which requires nothing
            required = OF_CHANGES if scenario.get("strategy") == "comparison" else REQUIRED
            yield pytest.param(name, required, id=f"{name}-required")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "required"), list(cases()))
def test_every_scenario_says_each_number_once(
    tmp_path: Path, defaults: Mapping[str, Any], name: str, required: str
) -> None:
    scenario = SCENARIOS[name]
    small = {**scenario, **_QUICK, "require": required}
    small |= {"num-training-clients": 4} if scenario.get("training") == "fedavg" else {}
    report = run_app(tmp_path, defaults, **{key.replace("-", "_"): value for key, value in small.items()})
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert contradictions(report, page=page, terminal=printed(report), delta=report["config"]["delta"]) == []
    assert "hold at once with confidence" not in printed(report)


def test_every_scenario_is_tried() -> None:
    assert len(SCENARIOS) >= 19
    assert SCENARIOS.keys() >= NEED_DATA
