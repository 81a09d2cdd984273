"""Of clients that were asked until their answers decided something, only what holds at all times is certified."""

from __future__ import annotations

import numpy as np
import pytest

import riskband as rb
from riskband.answers.responses import FIXED_NUMBER
from riskband.functionals.functional import interval_of

VALUES, NAMES = np.random.default_rng(0).permutation(40) / 100, [f"c{k}" for k in range(40)]
RISKS = rb.ClientRisks(VALUES, 100, names=NAMES, ask="until-decided")
OTHERS = rb.ClientRisks(VALUES[::-1], 100)
CHANGES = rb.ClientChanges(VALUES, VALUES[::-1], 100, names=NAMES, ask="until-decided")
SCORES = rb.ClientScores(VALUES, True, ask="until-decided")
FIXED = {
    "mean_bound": lambda: rb.mean_bound(RISKS, delta=0.05),
    "band": lambda: rb.band(RISKS, delta=0.05),
    "bound": lambda: rb.bound(RISKS, "gini", delta=0.05),
    "interval_of": lambda: interval_of(RISKS, "gini", delta=0.05),
    "require": lambda: rb.require(RISKS, ["mean<=0.5"], delta=0.05),
    "quantile": lambda: rb.quantile(RISKS, 0.9, delta=0.05),
    "cvar": lambda: rb.cvar(RISKS, 0.9, delta=0.05),
    "survival": lambda: rb.survival(RISKS, thresholds=[0.3], delta=0.05),
    "worst_case_mean": lambda: rb.worst_case_mean(RISKS, divergence="chi2", budget=0.1, delta=0.05),
    "next_clients": lambda: rb.next_clients(RISKS, 5, delta=0.05),
    "next of a rank": lambda: rb.next_clients(RISKS, 1, rank=1),
    "of a population": lambda: rb.next_clients(RISKS, population=50, mean=True, delta=0.05),
    "group_bands": lambda: rb.group_bands(RISKS, ["a", "b"] * 20, delta=0.05),
    "select": lambda: rb.select({"a": RISKS}, objective="mean", delta=0.05),
    "source": lambda: rb.bound((RISKS, OTHERS), "mean@target:chi2:0.1", delta=0.05),
    "target": lambda: rb.bound((OTHERS, RISKS), "share:0.3@target:chi2:0.1", delta=0.05),
    "divergence": lambda: rb.divergence_lower_bound(OTHERS, RISKS, divergence="chi2", delta=0.05),
    "change": lambda: rb.bound(CHANGES, "change", delta=0.05),
    "next change": lambda: rb.next_clients(CHANGES, 5, delta=0.05),
    "score": lambda: rb.bound(SCORES, "mean", delta=0.05),
    "stored": lambda: rb.mean_bound(rb.ClientRisks(**RISKS.to_dict()), delta=0.05),
    "of a sequence": lambda: rb.mean_bound(sequence().answers, delta=0.05),
    "report_page": lambda: rb.report_page(RISKS, delta=0.05),
}


def sequence():
    found = rb.Sequence(["mean", "gini"], delta=0.05)
    found.add(RISKS)
    return found


@pytest.mark.parametrize("name", FIXED)
def test_what_needs_a_number_of_clients_that_was_fixed_refuses(name):
    with pytest.raises(ValueError, match="a number of clients that no answer had influenced"):
        FIXED[name]()


def test_what_holds_at_all_times_does_not_assume_it():
    before = rb.mean_bound(OTHERS, delta=0.05)
    found = {**sequence().certificates, **rb.monitor(before, RISKS).certificates}
    assert len(found) == 2
    for certificate in found.values():
        assert certificate.recipe["answers"]["ask"] == "until-decided"
        assert FIXED_NUMBER not in certificate.assumptions
        assert rb.verify(certificate).ok
    with pytest.raises(ValueError, match="batches must be of sizes that no answer has influenced"):
        rb.monitor(before, RISKS, batches=[20, 20])
    with pytest.raises(ValueError, match="ask must be one of"):
        rb.ClientRisks(VALUES, 100, ask="some")
