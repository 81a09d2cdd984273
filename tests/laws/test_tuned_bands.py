"""Tuned and truncated bands as a user meets them: splits, what is refused, certificates that verify, the command."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import riskband as rb
from riskband.bands.methods import resolve_level_method
from riskband.cli import main

RNG = np.random.default_rng(11)
LOSSES = RNG.binomial(100, RNG.beta(3, 21, 40)) / 100
RISKS = rb.ClientRisks(LOSSES, 100)
PILOT, REST = rb.split_clients(RISKS, pilot_share=0.3, seed=1)
TUNED = rb.OptimisedLevels(PILOT, {"cvar:0.75": 1.0, "mean": 2.0})


@cache
def tuned_band():
    return rb.band(REST, delta=0.1, method=TUNED)


@settings(max_examples=50)
@given(st.integers(4, 40), st.integers(0, 30), st.floats(0.2, 0.8), st.integers(0, 5))
def test_a_split_deals_every_client_once_whatever_it_answered(num_clients, num_missing, share, seed):
    values = np.arange(num_clients) / 100
    risks = rb.ClientRisks(values, np.arange(1, num_clients + 1), num_missing=num_missing, missing="worst")
    num_dealt = round(share * (num_clients + num_missing))
    order = np.random.default_rng(seed).permutation(num_clients + num_missing)
    assume(2 <= np.sum(order[:num_dealt] < num_clients) <= num_clients - 2)
    split = rb.split_clients(risks, pilot_share=share, seed=seed)
    np.testing.assert_array_equal(np.sort(np.concatenate([split.pilot.values, split.rest.values])), values)
    assert split.pilot.num_missing + split.rest.num_missing == num_missing
    assert split.pilot.num_clients + split.pilot.num_missing == num_dealt
    assert split.rest.missing == "worst"
    again = rb.split_clients(rb.ClientRisks(values[::-1], 5, num_missing=num_missing), pilot_share=share, seed=seed)
    assert again.rest.num_clients == split.rest.num_clients  # the draw does not depend on the answers


def test_a_tuned_band_is_tighter_where_it_was_tuned_and_says_what_it_rests_on():
    band, plain = tuned_band(), rb.band(REST, delta=0.1)
    assert rb.cvar(band, level=0.75).value < rb.cvar(plain, level=0.75).value
    assert rb.mean(band).value < rb.mean(plain).value
    assert band.method == "optimised (cvar:0.75 + 2 mean)"
    assert "the band was tuned on a pilot of 12 clients that are not among those certified" in band.assumptions
    assert "chosen before any answer was seen: seed of the split 1" in band.assumptions
    fixed = rb.OptimisedLevels(rb.RiskDistribution.of_values([0.1, 0.2]), "mean")
    law = rb.band(rb.ClientRisks(LOSSES[:8], 100), delta=0.1, method=fixed)
    assert any("fixed before any of the answers" in line for line in law.assumptions)


@pytest.mark.parametrize(
    ("local", "method"),
    [
        *((local, "truncated:0.5:0.95") for local in ("marginal", "counted", "observed")),
        ("marginal", TUNED),
        pytest.param("counted", TUNED, marks=pytest.mark.slow),  # tuned for another part of delta
        ("observed", TUNED),
    ],
)
def test_certificates_verify_without_tuning_again_and_show_any_change(local, method, monkeypatch):
    band = rb.band(REST, delta=0.1, method=method, local=local)
    found = [rb.cvar(band, level=0.75), rb.worst_case_mean(band, divergence="kl", budget=0.1)]
    found.append(rb.dispersion_certificate(band, "gini", method="convex_order" if local == "marginal" else "sharp"))
    monkeypatch.setattr(rb.OptimisedLevels, "levels", None)
    for certificate in found:
        stored = json.loads(certificate.to_json())
        assert rb.verify(stored).ok
        assert rb.Certificate.from_dict(stored).to_json() == certificate.to_json()
        stored["value"] -= 0.01
        assert not rb.verify(stored).ok


def tampered(change):
    stored = json.loads(rb.cvar(tuned_band(), level=0.75).to_json())
    change(stored["recipe"]["band"]["method"], stored)
    return stored


def raise_levels(method, stored):
    (levels,) = method["levels"].values()
    levels["lower"] = [min(1.0, level + 0.02) for level in levels["lower"]]


def unsort_levels(method, stored):
    (levels,) = method["levels"].values()
    levels["lower"][0] = 0.9


def certify_the_pilot(method, stored):
    stored["recipe"]["answers"] |= {"values": PILOT.values.tolist(), "num_examples": [100] * PILOT.num_clients}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (raise_levels, "were they changed"),
        (unsort_levels, "nondecreasing"),
        (certify_the_pilot, "themselves"),
        (lambda method, stored: method["levels"].clear(), "tune again"),
        (lambda method, stored: method.update(pilot={"risks": [2.0, 0.1]}), "in [0, 1]"),
        (lambda method, stored: method.update(levels=[1, 2]), "mappings"),
        (lambda method, stored: method.pop("pilot"), "stored method"),
        (lambda method, stored: method.update(name="better"), "stored method"),
    ],
)
def test_a_recipe_that_was_changed_is_refused(change, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below
        rb.verify(tampered(change))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("pilot", "certified"),
    [
        (RISKS, RISKS),
        (LOSSES, RISKS),
        (LOSSES[::-1], RISKS),
        (rb.ClientRisks(LOSSES[::-1], 100), RISKS),
        (rb.RiskDistribution.of_values(LOSSES), RISKS),
        (PILOT, RISKS),
        (PILOT, PILOT),
        (RISKS, REST),
        (rb.ClientRisks(RNG.random(10), 7, binary=False), None),
    ],
)
def test_tuning_on_what_is_certified_is_refused(pilot, certified):
    if certified is None:  # the pilot among many others, without the memory of a split
        others = np.concatenate([pilot.values, RNG.random(50)])
        certified = rb.ClientRisks(others, 7, binary=False)
    if pilot is RISKS and certified is REST:  # a loss of few values: being among the others is no surprise then
        fine = np.random.default_rng(3).random(60)
        split = rb.split_clients(rb.ClientRisks(fine, 9, binary=False))
        pilot, certified = fine, split.rest
    with pytest.raises(ValueError, match="split_clients"):
        rb.band(certified, delta=0.1, method=rb.OptimisedLevels(pilot, "mean"))


def test_honest_splits_are_never_refused_even_of_coarse_losses():
    for seed in range(300):
        coarse = np.random.default_rng(seed).integers(0, 4, 24) / 20
        pilot, rest = rb.split_clients(rb.ClientRisks(coarse, 20), seed=seed)
        rb.OptimisedLevels(pilot, "mean").check_risks(rest)
    rb.OptimisedLevels([0.0, 0.0], "mean").check_risks(rb.ClientRisks([0.0, 0.0], 10))  # says nothing of either


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rb.OptimisedLevels([0.1, 1.5], "mean"), "in [0, 1]"),
        (lambda: rb.OptimisedLevels("text", "mean"), "pilot"),
        (lambda: rb.OptimisedLevels([0.1, 0.2], "gini"), "objective must be one of"),
        (lambda: rb.OptimisedLevels([0.1, 0.2], "cvar"), "cvar"),
        (lambda: rb.OptimisedLevels([0.1, 0.2], "cvar:x"), "cvar:x"),
        (lambda: rb.OptimisedLevels([0.1, 0.2], "cvar:nan"), "cvar:nan"),
        (lambda: rb.OptimisedLevels([0.1, 0.2], []), "at least one"),
        (lambda: rb.OptimisedLevels([0.1, 0.2], ["mean", "mean"]), "each once"),
        (lambda: rb.OptimisedLevels([0.1, 0.2], {"mean": -1.0}), "> 0"),
        (lambda: rb.OptimisedLevels([0.1, 0.2], 3), "objectives must be"),
        (lambda: rb.split_clients(RISKS, pilot_share=1.0), "(0, 1)"),
        (lambda: rb.split_clients(RISKS, pilot_share="0.2"), "(0, 1)"),
        (lambda: rb.split_clients(RISKS, seed=-1), ">= 0"),
        (lambda: rb.split_clients(rb.ClientRisks([0.1, 0.2, 0.3], 10)), "2 clients"),
        (lambda: rb.band(RISKS, delta=0.1, method=3), "method must be one of"),
        (lambda: rb.band(RISKS, delta=0.1, method="truncated"), "truncated:0.5:0.95"),
        (lambda: rb.band(RISKS, delta=0.1, method="truncated:0.9:0.5"), "LOW < HIGH"),
        (lambda: rb.band(RISKS, delta=0.1, method="truncated:a:b"), "LOW < HIGH"),
        (lambda: resolve_level_method({"name": "optimised"}), "stored method"),
    ],
)
def test_wrong_input_is_refused(call, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below
        call()
    assert message in str(caught.value)


@settings(max_examples=25)
@given(st.floats(0.0, 0.8), st.sampled_from(["lower", "upper", "two"]))
def test_a_truncated_band_is_tighter_inside_its_range_than_berk_jones(low, sides):
    distinct = rb.ClientRisks(np.sort(np.random.default_rng(6).random(50)), 9, binary=False)
    plain = rb.band(distinct, delta=0.1, sides=sides, local="observed")
    part = rb.band(distinct, delta=0.1, sides=sides, local="observed", method=f"truncated:{low!r}:{low + 0.2!r}")
    inside = np.linspace(low, low + 0.2, 9)
    if sides != "upper":
        assert np.all(part.quantile_upper(inside) <= plain.quantile_upper(inside))
    if sides != "lower":
        assert np.all(part.quantile_lower(inside) >= plain.quantile_lower(inside))


def test_the_command_takes_both_and_says_how_many_clients_were_spent(tmp_path, capsys):
    table, out = tmp_path / "risks.csv", tmp_path / "out.json"
    table.write_text("loss\n" + "\n".join(map(str, LOSSES.tolist())) + "\n")
    common = ["certify", str(table), "--num-examples", "100", "--out", str(out)]
    assert main([*common, "--method", "truncated:0.5:0.95"]) == 0
    assert main(["verify", str(out)]) == 0
    assert main([*common, "--tune", "cvar:0.9", "--pilot-share", "0.25", "--seed", "4"]) == 0
    assert main(["verify", str(out)]) == 0
    assert "10 clients" in capsys.readouterr().out
    stored = json.loads(out.read_text())["certificates"]["cvar:0.9"]
    expected = rb.split_clients(RISKS, pilot_share=0.25, seed=4).rest
    assert stored["recipe"]["answers"]["values"] == expected.values.tolist()


def test_the_command_reports_every_mistake_at_once(tmp_path, capsys):
    table = tmp_path / "risks.csv"
    table.write_text("loss\n0.1\n0.2\n")
    wrong = ["--method", "truncated:2:3", "--tune", "gini", "--pilot-share", "7", "--delta", "5"]
    assert main(["certify", str(table), "--num-examples", "10", *wrong]) == 2
    errors = capsys.readouterr().err
    for part in ("truncated:2:3", "'gini'", "pilot_share", "delta", "leave out one of the two"):
        assert part in errors
