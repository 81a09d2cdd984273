"""`verify` sees every field that was added, removed or changed, and never raises anything but ValueError."""

import json
import re

import numpy as np
import pytest

import riskband as rb
from riskband import verification

RISKS = rb.ClientRisks([0.1, 0.2] * 20, 10)
FEW = rb.ClientRisks([0.9, 0.4, 0.8] * 9, 10)
BAND = rb.band(RISKS, delta=0.1)
GROUPS = rb.group_bands(RISKS, ["a", "b"] * 20, delta=0.1)
CURVES = rb.AdversarialAnswers(
    [0.0, 1.0], np.tile([0.1, 0.2], (40, 1)), 10, cost="order 1", guarantee="exact", binary=True
)
CERTIFICATES = {
    "mean_bound": rb.mean_bound(RISKS, delta=0.1),
    "survival": rb.survival(BAND, thresholds=[0.2, 0.5]),
    "gini": rb.dispersion_certificate(BAND, "gini"),
    "lorenz": rb.lorenz_certificate(BAND),
    "group": rb.group_certificate(GROUPS, "largest_gap", "mean"),
    "selection": rb.select({"one": RISKS, "two": RISKS}, objective="mean", delta=0.1).certificate,
    "target": rb.bound((RISKS, FEW), "share:0.2@target:tv:0.1", delta=0.1),
    "distance": rb.divergence_lower_bound(RISKS, FEW, divergence="kl", delta=0.1),
    "transport": rb.wasserstein_mean(CURVES, delta=0.1, cost_budget=0.5),
}


@pytest.fixture(params=CERTIFICATES)
def stored(request):
    return json.loads(CERTIFICATES[request.param].to_json())


def test_an_honest_certificate_follows(stored):
    assert rb.verify(stored) == (True, ())


def test_a_bound_that_was_added_or_removed_is_seen(stored):
    changed = dict(stored)
    if stored["value"] is None:  # without a bound it is refused
        changed["lower"] = stored["lower"] / 2
    elif "lower" in stored:
        del changed["lower"]
    else:
        changed["lower"] = (np.asarray(stored["value"]) / 2).tolist()
    found = rb.verify(changed)
    assert not found.ok
    assert any("lower" in problem for problem in found.problems)


CHANGES = {
    "value": lambda stored: 9.0 if stored["value"] is None else (np.asarray(stored["value"]) + 1e-6).tolist(),
    "delta": lambda stored: stored["delta"] / 2,
    "assumptions": lambda stored: stored["assumptions"][1:],
    "details": lambda stored: {**stored["details"], "more": 1.0},
    **{name: lambda stored, name=name: f"{stored[name]} really" for name in ("quantity", "method", "statement")},
}


@pytest.mark.parametrize("field", CHANGES)
def test_every_changed_field_is_seen(stored, field):
    assert not rb.verify({**stored, field: CHANGES[field](stored)}).ok


def test_the_sentence_of_a_changed_number_is_not_called_recomputed():
    stored = rb.mean_bound(rb.ClientRisks([0.1, 0.2, 0.4, 0.3], 20), delta=0.1).to_dict()
    sentence, number = rb.verify({**stored, "value": 0.1234}).problems
    assert re.fullmatch(r"statement: stored .*, but its other fields say .*0\.1234\.'", sentence)
    assert re.fullmatch(r"value: stored 0\.1234, recomputed 0\.[0-9]+", number)


@pytest.mark.parametrize(("name", "bounds"), [("group", "group_upper"), ("selection", "candidate_bounds")])
def test_bounds_among_the_details_are_as_strict_as_others(name, bounds):
    stored = CERTIFICATES[name].to_dict()
    lower = (np.asarray(stored["details"][bounds]) - 5e-8).tolist()
    assert not rb.verify({**stored, "details": {**stored["details"], bounds: lower}}).ok


def test_changed_axes_are_seen():
    stored = CERTIFICATES["survival"].to_dict()
    assert not rb.verify({**stored, "axes": {"threshold": [0.2 + 1e-6, 0.5]}}).ok


PARTS = [(name, part) for name, made in CERTIFICATES.items() for part in made.recipe if made.recipe[part] is not None]


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_a_recipe_of_junk_is_refused_or_seen(name, part):
    stored = CERTIFICATES[name].to_dict()
    for junk in (3, [], {}, "x", [[1.0]]):
        assert is_refused_or_seen({**stored, "recipe": {**stored["recipe"], part: junk}}), junk


def is_refused_or_seen(stored):
    try:
        return not rb.verify(stored).ok
    except ValueError:
        return True


@pytest.mark.parametrize("name", ["target", "distance"])
def test_the_answers_of_a_target_are_computed_again_and_junk_for_them_is_refused(name):
    stored = CERTIFICATES[name].to_dict()
    arguments = stored["recipe"]["arguments"]
    few = arguments["target"]["answers"] | {"values": [0.0, *FEW.values.tolist()[1:]]}
    for junk in (3, None, "x", [], {}, {"band": None}, {"band": None, "answers": few}, {"band": {}, "answers": few}):
        assert is_refused_or_seen(
            {**stored, "recipe": {**stored["recipe"], "arguments": arguments | {"target": junk}}}
        ), junk
    assert CERTIFICATES["distance"].lower > 0.1


def test_only_a_certificate_from_below_may_be_open_above():
    stored = CERTIFICATES["distance"].to_dict()
    assert "lower" in stored
    for wrong in ({"lower": None}, {"lower": np.inf}, {"lower": np.nan}, {"value": np.nan}):
        with pytest.raises(ValueError, match="certificate"):
            rb.Certificate.from_dict({**stored, **wrong})
    with pytest.raises(ValueError, match="must be finite, but where only a lower bound is certified"):
        rb.Certificate.from_dict({key: value for key, value in stored.items() if key != "lower"})


@pytest.mark.parametrize("sides", ["lower", "two"])
@pytest.mark.parametrize("read", [rb.quantile, rb.cvar], ids=["quantile", "cvar"])
@pytest.mark.parametrize("level", [0.5, 0.9, 0.97])
def test_the_number_of_clients_that_would_do_is_the_smallest_although_few_are_tried(read, level, sides, monkeypatch):
    tried = []
    is_below_one = verification._is_below_one
    monkeypatch.setattr(
        verification, "_is_below_one", lambda recipe, size: tried.append(size) or is_below_one(recipe, size)
    )
    few = rb.ClientRisks([0.1, 0.3, 0.2, 0.4], 50)
    said = verification.why_it_says_nothing(read(rb.band(few, delta=0.01, sides=sides), level))
    enough = int(re.search(r"with (\d+) that", said)[1])
    assert is_below_one(read(rb.band(few, delta=0.01, sides=sides), level).recipe, enough)
    assert not is_below_one(read(rb.band(few, delta=0.01, sides=sides), level).recipe, enough - 1)
    assert len(tried) <= 12
    assert max(tried) <= 2 * enough
