"""The published JSON schemas fit what is written, and refuse what is no certificate."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import riskband as rb
from riskband.cli import main
from riskband.verification import FUNCTIONS
from tests.schemas import SCHEMAS, problems

STORED = Path(__file__).parent / "stored" / "certificates.json"


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_the_schemas_are_schemas(schema):
    jsonschema.Draft202012Validator.check_schema(schema)


def test_certificates_of_every_function_fit():
    entries = json.loads(STORED.read_text())["certificates"].values()
    assert {entry["recipe"]["function"] for entry in entries} == set(FUNCTIONS)
    assert [found for entry in entries if (found := problems("certificate", entry))] == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("schema", "riskband.certificate/9"),
        ("validity", "proved"),
        ("delta", 1.5),
        ("value", "0.1"),
        ("assumptions", []),
        ("recipe", {"function": "mean_bound"}),
        ("note", "my own"),
        ("value", None),
    ],
)
def test_what_is_no_certificate_does_not_fit(name, value):
    entry = rb.mean_bound(rb.ClientRisks([0.1, 0.2, 0.3], 10), delta=0.05).to_dict()
    assert problems("certificate", entry) == []
    assert problems("certificate", entry | {name: value}) != []
    assert problems("certificate", {key: each for key, each in entry.items() if key != "recipe"}) != []


def test_what_certify_writes_fits_with_and_without_verdicts(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("riskband.worst_cases.requirements._LARGEST_TRIED", 100)  # no estimate, which takes time
    table, out = tmp_path / "risks.csv", tmp_path / "out.json"
    rng = np.random.default_rng(0)
    table.write_text("loss\n" + "\n".join(map(str, rng.binomial(100, rng.beta(3, 21, 40)) / 100)) + "\n")
    asked = [
        "mean<=0.6",
        "mean<=0.01",
        "mean<=0.125",
        "theil<=0.001",
        "quantile_ratio:0.1:0.9<=5",
        "mean@kl:0.1<=0.6",
    ]
    usual = [
        "certify",
        str(table),
        "--num-examples",
        "100",
        "--measure",
        "gini",
        "--out",
        str(out),
    ]
    for more, status in (([], 0), (["--require", *asked], 1), (["--require", *asked, "--at-once"], 1)):
        assert main([*usual, *more]) == status
        document = json.loads(out.read_text())
        assert problems("certificates", document) == []
        assert ("gate" in document) == bool(more)
    assert {each["verdict"] for each in document["gate"]["requirements"]} == {"PASS", "FAIL", "NOT DECIDED"}
    wrong = copy.deepcopy(document)
    wrong["gate"]["verdict"] = "MAYBE"
    assert problems("certificates", wrong) != []
    capsys.readouterr()
