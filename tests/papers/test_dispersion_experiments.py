"""The experiments of dispersion: the twin's truth is what Monte Carlo finds, and what each experiment shows is so."""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose

import riskband as rb
from papers.dispersion import group_table, lorenz
from papers.experiment import Request
from riskband.functionals.functional import resolve


@pytest.mark.parametrize("factor", [0.25, 1.0, 2.0])
def test_the_twins_truth_is_what_a_large_sample_has(factor):
    rng = np.random.default_rng(0)
    group = group_table.Group(flipped=0.2, spread=5.0)
    losses = group_table.loss(*group.draw(rng, 400_000), factor)
    assert_allclose(losses.mean(), group.mean(factor), atol=4 * losses.std() / np.sqrt(losses.size))
    law = rb.RiskDistribution.of_values(losses)
    # At factor 2 the standard error of the sample's is 3 %.
    assert_allclose(resolve(group_table.MEDIAN).value(law), group.smoothed_median(factor), rtol=0.12)


@pytest.mark.slow
def test_the_group_table_holds_and_tuned_levels_are_the_sharpest():
    result = group_table.run(Request(quick=True))
    totals = {row["method"]: row["bounds"]["total"][1] for row in result["rows"]}
    assert all(row["holds"] for row in result["rows"])
    assert totals["tuned"] < min(totals["dkw"], totals["berk_jones"])
    assert result == group_table.run(Request(quick=True))
    group_table.figure(json.loads(json.dumps(result)))


@pytest.mark.slow
def test_lorenz_curves_of_two_hypotheses_lie_in_their_bands():
    result = lorenz.run(Request(quick=True))
    for name, curve in result["curves"].items():
        index, truth = result["chosen"][name], np.array(curve["truth"])
        assert np.all(np.array(curve["sharp"]["lower"]) <= truth + 1e-12)
        assert np.all(truth <= np.array(curve["sharp"]["upper"]) + 1e-12)
        for measure in lorenz.MEASURES:
            (low, high), (wide_low, wide_high) = (
                result["bounds"][way][measure][index] for way in ("sharp", "published")
            )
            assert wide_low <= low <= result["truth"][measure][index] <= high < wide_high
    assert result == lorenz.run(Request(quick=True))
    lorenz.figure(json.loads(json.dumps(result)))


def test_a_missing_file_is_named_with_a_command(tmp_path):
    with pytest.raises(ValueError, match=r"movielens_1m.npz is missing; write it by: python -m"):
        lorenz.LORENZ.check(Request(data=tmp_path))
