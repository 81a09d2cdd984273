"""What the recipes of docs/adding.md add, used as a user would; it runs in a copy of the repository that has them."""

from __future__ import annotations

import csv
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

import riskband as rb
from riskband.functionals.functional import interval_of

RISKS = np.random.default_rng(0).binomial(100, np.random.default_rng(1).beta(3, 21, 60)) / 100


def event_within(p: float, budget: float) -> float:
    """The largest share of bad clients within a budget of Le Cam's divergence, by trying a million of them."""
    q = np.linspace(p, 1.0, 1_000_001)
    return float(q[(q - p) ** 2 / (q + p) + (p - q) ** 2 / (2.0 - q - p) <= budget][-1])


def le_cam(folder: Path) -> None:
    """Of clients with risk 0 or 1 a worst case is that of the share of bad ones."""
    bad = rb.ClientRisks((np.arange(4_000) < 600) * 1.0, 1, binary=False)
    direct = rb.worst_case_mean(bad, divergence="le_cam", budget=0.1, delta=0.05).value
    assert event_within(0.15, 0.1) <= direct <= event_within(0.15, 0.1) + 0.04, (event_within(0.15, 0.1), direct)

    band = rb.band(bad, delta=0.05, local="observed", sides="lower")
    share = rb.survival(band, thresholds=0.5).value
    for budget in (0.001, 0.05, 0.3):
        worst = rb.worst_case_mean(band, divergence="le_cam", budget=budget)
        assert abs(worst.value - event_within(rb.mean(band).value, budget)) < 2e-6
        curve = rb.worst_case_cdf(band, divergence="le_cam", budget=budget, thresholds=0.5)
        assert abs(curve.value - event_within(share, budget)) < 2e-6

    answers = rb.ClientRisks(RISKS, 100)
    usual = rb.band(answers, delta=0.05, sides="lower")
    for made in (
        rb.worst_case_mean(answers, divergence="le_cam", budget=0.1, delta=0.05),
        rb.worst_case_mean(usual, divergence="le_cam", budget=0.1),
        rb.worst_case_cdf(usual, divergence="le_cam", budget=0.1),
    ):
        made.save(folder / "certificate.json")
        assert rb.verify(rb.Certificate.load(folder / "certificate.json")).ok
        false = {**made.to_dict(), "value": (0.9 * np.asarray(made.value)).tolist()}
        assert not rb.verify(rb.Certificate.from_dict(false)).ok


def by_parts(knots: np.ndarray, cdf: np.ndarray, tilt: float) -> float:
    """log E exp(t R) / t with E exp(t R) = 1 + ∫ t exp(t x) P(R > x) dx, for a CDF that is constant between knots."""
    ends = np.concatenate([[0.0], knots, [1.0]])
    steps = np.diff(np.exp(tilt * ends)) * (1.0 - np.concatenate([[0.0], cdf]))
    return float(np.log1p(steps.sum()) / tilt)


def tilted(folder: Path) -> None:
    answers = rb.ClientRisks(RISKS, 100)
    band = rb.band(answers, delta=0.05)
    for tilt in (0.5, 5.0, 50.0):
        lower, upper = interval_of(band, f"tilted:{tilt:g}")
        assert abs(upper - by_parts(band.lower_points, band.lower(band.lower_points), tilt)) < 1e-9
        assert abs(lower - by_parts(band.upper_points, band.upper(band.upper_points), tilt)) < 1e-9
        assert interval_of(answers, f"tilted:{tilt:g}", delta=0.05) == (lower, upper)
    assert np.allclose(interval_of(band, "tilted:1e-6"), interval_of(band, "interval:0:1"), atol=1e-5)

    for source, delta in ((answers, 0.05), (band, None)):
        made = rb.dispersion_certificate(source, "tilted:5", delta=delta)
        assert rb.verify(made).ok
        assert not rb.verify(rb.Certificate.from_dict({**made.to_dict(), "value": 0.9 * made.value})).ok
    assert rb.require(answers, "tilted:5<=0.7", delta=0.05).verdict == "PASS"
    assert rb.Objective("mean+0.5*tilted:5").sides == "lower"
    bands = rb.group_bands(answers, ["a", "b"] * (len(RISKS) // 2), delta=0.05)
    assert rb.verify(rb.group_certificate(bands, "worst_group", "tilted:5")).ok


def the_command(folder: Path) -> None:
    from riskband.cli import main

    with (folder / "risks.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["loss"], *([risk] for risk in RISKS)])
    out, page = folder / "certificate.json", folder / "page.html"
    asked = ["--divergence", "le_cam", "--budget", "0.1", "--measure", "tilted:5"]
    required = ["--require", "mean@le_cam:0.1<=0.5", "tilted:5<=0.7"]
    table = [str(folder / "risks.csv"), "--num-examples", "100"]
    assert main(["certify", *table, *asked, *required, "--out", str(out)]) == 0
    assert main(["verify", str(out)]) == 0
    names = set(json.loads(out.read_text())["certificates"])
    assert {"mean@le_cam:0.1", "tilted:5"} <= names
    assert main(["certify", *table, "--require", "mean@le_cam:0.1<=0.05"]) == 1
    assert main(["report", str(out), "-o", str(page)]) == 0
    text = re.sub(r"<[^>]*>", "", page.read_text())
    assert "Le Cam divergence" in text
    assert "tilted risk (tilt 5)" in text


def defaults() -> dict[str, Any]:
    """The configuration of a run of the copy."""
    project = Path(rb.__file__).parents[1] / "pyproject.toml"
    return tomllib.loads(project.read_text())["tool"]["flwr"]["app"]["config"]


def a_run(folder: Path, **changes: Any) -> dict[str, Any]:
    """The report of a small run."""
    from tests.server.running import run_app

    return run_app(folder, defaults(), **changes)


def runs(folder: Path) -> None:
    required = "mean@le_cam:0.1<=0.99,tilted:5<=0.99"
    report = a_run(folder / "worst", divergences="kl,le_cam", require=required, num_clients=30)
    assert any("Le Cam" in each["quantity"] for each in report["certificates"].values())
    for file in (folder / "worst" / "certificates").glob("*.json"):
        assert rb.verify(rb.Certificate.load(file)).ok, file
    report = a_run(folder / "unequal", strategy="dispersion", measures="gini,tilted:5")
    assert "the tilted risk (tilt 5)" in [each["quantity"] for each in report["dispersion"]["measures"]]


def selection(folder: Path) -> None:
    changes = {
        "strategy": "selection",
        "objective": "mean+0.5*tilted:5",
        "training_epochs": 2,
        "candidate_epochs": "1,2",
    }
    report = a_run(folder, **changes)
    assert report["selection"]["objective"] == "mean+0.5*tilted:5"
    assert rb.verify(rb.Certificate.load(*(folder / "certificates").glob("*.json"))).ok


def brightness(folder: Path) -> None:
    from scipy.stats import kstest

    from worlds.population import Population, spec_from_config
    from worlds.shifts import BrightnessShift

    config = {**defaults(), "affine-sigma": 0, "dirichlet-concentration": 0}
    plain, moved = (Population(spec_from_config({**config, "brightness-spread": spread})) for spread in (0.0, 0.3))
    assert moved.spec.shifts == (BrightnessShift(0.3),)
    factors = []
    for k in range(200):
        before, after = plain.client(k).x, moved.client(k).x
        factor = after.sum() / before.sum()
        np.testing.assert_allclose(after, factor * before, rtol=1e-5)
        factors.append(factor)
    assert kstest(np.log(factors) / 0.3, "norm").pvalue > 0.01


def a_bright_run(folder: Path) -> None:
    report = a_run(folder, brightness_spread=0.5, affine_sigma=0)
    assert report["config"]["brightness-spread"] == 0.5
    assert a_run(folder / "again", affine_sigma=0)["network"] != report["network"]
