"""Certificates that earlier versions wrote still verify, and a change to one of them is still seen.

`stored/certificates-schema-1.json` was written by the code of commit e4d8a94, one certificate for every function and
every kind of answers, band and setting. It is never made again. Nor is `stored/certificates-schema-2.json`: it rests on
numbers in the code (the fixed orders of the bets, the choice of an order statistic) that must stay as they are. Nor is
`stored/certificates-alone.json`, written by the code of commit b5d100f: bounds with a delta of their own, and bands in
closed form.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import riskband as rb

PATH = Path(__file__).parent / "stored" / "certificates-schema-1.json"
STORED = json.loads(PATH.read_text("utf-8"))["certificates"]
SECOND = {
    name: certificate
    for file in ("certificates-schema-2.json", "certificates-alone.json")
    for name, certificate in json.loads(PATH.with_name(file).read_text("utf-8"))["certificates"].items()
}


@pytest.mark.parametrize("name", SECOND)
def test_a_certificate_of_the_second_schema_verifies(name):
    assert rb.verify(SECOND[name]) == (True, (), ())


@pytest.mark.parametrize("name", STORED)
def test_a_certificate_of_the_first_schema_verifies_and_tells_what_it_did_not_list(name):
    outcome = rb.verify(STORED[name])
    assert outcome.problems == ()
    assert outcome.ok
    assert "chosen before any answer was seen: delta 0.1" in outcome.unstated
    assert any(line.startswith("the clients that answered had no part in training") for line in outcome.unstated)
    loaded = rb.Certificate.from_dict(STORED[name])
    assert loaded.to_dict()["schema"] == STORED[name]["schema"]
    assert rb.verify(loaded) == outcome


CHANGES = {
    "value": lambda old: {"value": (np.asarray(old["value"]) + 1e-6).tolist()},
    "delta": lambda old: {"delta": 0.05},
    "assumptions": lambda old: {"assumptions": old["assumptions"][:-1]},
    "statement": lambda old: {"statement": old["statement"].replace("0.9", "0.99")},
    "more": lambda old: {"assumptions": [*old["assumptions"], "chosen before any answer was seen: nothing"]},
}


@pytest.mark.parametrize("name", STORED)
def test_a_change_to_it_is_seen(name):
    old = STORED[name]
    assert [what for what, change in CHANGES.items() if rb.verify({**old, **change(old)}).ok] == []


@pytest.mark.parametrize(
    ("name", "unstated"),
    [
        ("mean_betting", "seed 3"),
        ("mean_hoeffding", "method hoeffding"),
        ("mean_of_trunc", "method truncated:0.2:0.9"),
        ("mean_of_counted", "local counted, eta 0.1"),
        ("hist_mean", "the edges of the bins"),
        ("select", "seed 0"),
        ("wass", "multipliers 0.1 to 10 (4)"),
        ("wass_cdf", "thresholds 0.5 to 0.8 (2), multipliers 0.1 to 10 (4)"),
        ("wass_lower", "seed 0"),
        ("gcorr", "seed 0"),
    ],
)
def test_every_choice_that_could_have_been_made_by_looking_is_named(name, unstated):
    assert f"chosen before any answer was seen: {unstated}" in rb.verify(STORED[name]).unstated
