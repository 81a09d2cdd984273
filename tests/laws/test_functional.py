"""Every functional that has a name: one grammar, and bounds that hold its value for every law of the band."""

from __future__ import annotations

import json
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import riskband as rb
from riskband.cli import main
from riskband.functionals.functional import interval_of, resolve
from tests.laws.draws import LOCALS, METHODS, client_risks, random_member
from tests.sampling import every

VALUES = (np.arange(60) % 20 * np.arange(60) % 80) / 80
BAND = rb.band(rb.ClientRisks(VALUES, 80), delta=0.1, eta="grid")
COUNTED = rb.band(
    rb.ClientRisks(VALUES, np.where(np.arange(60) % 2, 160, 80)), delta=0.1, local="counted", method="dkw"
)

SNAPSHOT = {
    "mean": ((0.268213576909344, 0.5542447328306057), (0.13657018611798938, 0.7255158732470507)),
    "cvar:0.8": ((0.559979154997991, 0.9529740110954691), (0.41374865398211513, 1.0)),
    "quantile:0.7": ((0.2987181766770921, 0.839235630941936), (0.20584132544496525, 0.9827430583833244)),
    "interval:0.3:0.9": ((0.22296470409843896, 0.74874647603972), (0.15122815316299615, 0.8443262615745535)),
    "linear": ((0.31806299735268984, 0.7888685684340164), (0.22225865350182197, 0.8688164126935435)),
    "smoothed_median:0.1": ((0.1350266374388395, 0.6636387952932309), (0.06708160139610876, 0.7748957738399379)),
    "maximum:5": ((0.4853112380422627, 0.9227935063452934), (0.3471865080135442, 0.9758322770010255)),
    "minimum:4": ((0.024494846438641825, 0.33171938802430306), (0.010312991452133834, 0.44811792134171713)),
    "gini": ((0.15084027293218383, 0.6370755506839777), (0.04490908554599078, 0.7104259718861858)),
    "extended_gini:3": ((0.23121365016338497, 0.8351196059793917), (0.06156889505380295, 0.8937536534498131)),
    "atkinson:0.5": ((0.030225361016588348, 0.4319950812269001), (0.002558278886959142, 0.5471476974877116)),
    "generalised_entropy:2": ((0.048095372370532186, 0.8270386164878563), (0.005021552929054485, 1.2177272243440704)),
    "theil": ((0.05529464855796594, 0.7564082763490791), (0.005090206225585845, 0.994240568284406)),
    "mean_log_deviation": ((0.06865667754345935, inf), (0.005145982373562821, inf)),
    "hoover": ((0.09062910182086388, 0.5420109003182281), (0.025477239091901246, 0.6130915623829747)),
    "coefficient_of_variation": ((0.3101463279503151, 1.2861093394325818), (0.10021529752542147, 1.560594261391519)),
    "top_share:0.1": ((0.12857802808423333, 0.4264155328943933), (0.10735944827142503, 0.5242824238406008)),
    "quantile_ratio:0.1:0.9": ((2.2287424469250157, inf), (1.3643375591932423, inf)),
    "quantile_range:0.25:0.75": ((0.0, 0.8652706043988344), (0.0, 1.0)),
    "mean_range:3": ((0.18058091037613994, 0.6877012585022816), (0.04924142976668602, 0.7381921134254779)),
}
"""What the functions of each name gave for BAND and for COUNTED before there was one type: no truth, no change."""

NAMES = st.sampled_from([*SNAPSHOT, "share:0.3", "quantile:0", "quantile:1", "share:0", "share:1", "cvar:0"])
GROWING = ["mean", "cvar:0.8", "quantile:0.7", "share:0.3", "interval:0.3:0.9", "linear", "maximum:5", "minimum:4"]


@pytest.mark.parametrize("name", every("functional", [*SNAPSHOT, "share:0.3"]))
def test_no_member_of_a_band_lies_outside_of_the_bounds(name):
    functional, rng = resolve(name), np.random.default_rng(0)
    for band in (BAND, COUNTED):
        lower, upper = functional.interval(functional.limits(band))
        values = [functional.of_distribution(random_member(band, rng)) for _ in range(50)]
        assert lower - 1e-9 <= min(values) < max(values) <= upper + 1e-9


@pytest.mark.parametrize("name", SNAPSHOT)
def test_bounds_are_those_of_before(name):
    for band, expected in zip((BAND, COUNTED), SNAPSHOT[name], strict=True):
        assert interval_of(band, name) == pytest.approx(expected, rel=1e-9)


@settings(deadline=None, max_examples=settings().max_examples * 2)
@given(client_risks(max_clients=12), NAMES, METHODS, LOCALS, st.sampled_from(["two", "lower", "upper"]), st.integers(0))
def test_bounds_hold_the_value_of_every_law_of_the_band(risks, name, method, local, sides, seed):
    functional = resolve(name)
    band = rb.band(risks, delta=0.3, method=method, local=local, sides=sides)
    if sides != "two" and not functional.grows_with_risk:
        with pytest.raises(ValueError, match="this band has no"):
            interval_of(band, name)
        return
    rng = np.random.default_rng(seed)
    lower, upper = functional.interval(functional.limits(band))
    assert functional.range[0] <= lower <= upper + 1e-9 * max(1.0, abs(lower))
    assert upper <= functional.range[1]
    for _ in range(10):
        value = functional.of_distribution(random_member(band, rng))
        assert value == inf or lower - 1e-9 <= value * (1 + 1e-9)
        assert value <= upper + 1e-9 * (1.0 + abs(upper))


@pytest.mark.parametrize("name", [*SNAPSHOT, "share:0.3", "share:1", "cvar:0", "quantile:0.12345678901234567"])
def test_a_name_says_all_that_there_is(name):
    functional = resolve(name)
    again = resolve(functional.name)
    assert again.name == functional.name
    assert interval_of(BAND, again) == interval_of(BAND, functional) == interval_of(BAND, name)
    assert resolve(functional) is functional


@pytest.mark.parametrize(
    ("name", "form"), [("cvar", "cvar:level"), ("gini:0.5", "gini"), ("interval:0.1", "interval:low:high")]
)
def test_a_name_with_too_few_or_too_many_parameters_is_told_its_form(name, form):
    with pytest.raises(
        ValueError, match=f"{name!r} cannot be read: it has too few or too many parameters; write {form!r}"
    ):
        resolve(name)


@pytest.mark.parametrize("name", GROWING)
def test_one_side_of_a_band_gives_one_end(name):
    low, high = (rb.band(BAND.risks, delta=0.1, sides=sides) for sides in ("lower", "upper"))
    two = interval_of(BAND, name)
    assert interval_of(low, name).lower == pytest.approx(0.0)
    assert interval_of(low, name).upper <= two.upper + 1e-12  # one side alone is tighter
    assert interval_of(high, name).upper == pytest.approx(1.0)
    assert interval_of(high, name).lower >= two.lower - 1e-12


def test_a_share_is_the_survival_function():
    for threshold in (0.0, 0.1, 0.3, 1.0):
        band = rb.band(BAND.risks, delta=0.1, sides="lower")
        found = interval_of(band, f"share:{threshold}").upper
        assert found == pytest.approx(rb.survival(band, thresholds=threshold).value, abs=1e-12)
        law = rb.RiskDistribution.of_values(VALUES)
        assert resolve(f"share:{threshold}").of_distribution(law) == pytest.approx(np.mean(threshold <= VALUES))


def test_weights_and_functions_of_ones_own_are_functionals():
    rising = rb.QuantileWeight("rising", lambda p: p**3)
    assert interval_of(BAND, rising) == interval_of(BAND, "maximum:3")
    assert interval_of(BAND, lambda band: rb.Interval(0.1, 0.2)) == (0.1, 0.2)
    certificate = rb.dispersion_certificate(BAND, rising)
    assert rb.verify(certificate, weights={"rising": rising}).ok
    for use in (rb.dispersion_certificate, rb.extremal_distributions):
        with pytest.raises(ValueError, match="known for bands only"):
            use(BAND, lambda band: interval_of(band, "mean"))


@pytest.mark.parametrize("name", ["mean", "cvar:0.9", "share:0.25", "quantile:0.5", "maximum:3"])
def test_certificates_from_both_sides_of_what_is_no_measure_of_dispersion_verify(name):
    certificate = rb.dispersion_certificate(BAND, name)
    assert (certificate.lower, certificate.value) == interval_of(BAND, name)
    assert resolve(name).of("the risk of an unseen client") in certificate.statement
    stored = json.loads(certificate.to_json())
    assert rb.verify(stored).ok
    assert not rb.verify({**stored, "lower": stored["lower"] + 0.01}).ok


def test_an_objective_may_have_any_bounded_functional():
    found = rb.select({"only": BAND.risks}, objective="share:0.3+0.5*maximum:3", delta=0.1)
    band = rb.band(BAND.risks, delta=0.1, sides="lower")
    terms = {name: interval_of(band, name).upper for name in ("share:0.3", "maximum:3")}
    assert found.candidates[0].terms == terms
    assert rb.verify(found.certificate).ok


def test_the_command_certifies_any_functional(tmp_path, capsys):
    table, out = tmp_path / "risks.csv", tmp_path / "out.json"
    table.write_text("loss\n" + "\n".join(map(str, VALUES.tolist())) + "\n")
    command = ["certify", str(table), "--num-examples", "80", "--out", str(out), "--delta", "0.1"]
    assert main([*command, "--measure", "gini", "--measure", "CVaR:0.9", "share:0.3"]) == 0
    assert main(["verify", str(out)]) == 0
    stored = json.loads(out.read_text())["certificates"]
    found = [stored[name]["recipe"]["arguments"]["number"] for name in ("gini", "cvar:0.9", "share:0.3")]
    assert found == ["gini", "cvar:0.9", "share:0.3"]
    assert "the probability that the risk of an unseen client is at least 0.3" in capsys.readouterr().out
    assert main([*command, "--measure", "median"]) == 2
    assert "number must be one of" in capsys.readouterr().err
