"""Certificates that were written once verify for ever, and a change to one of them is seen.

`stored/certificates.json` is the format's first reference: one certificate of every function and every kind of answers,
band and setting. `python -m tests.laws.test_stored_certificates` writes it; after the first release it is never made
again, and rests on numbers in the code (the fixed orders of the bets) that must stay as they are.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import riskband as rb
from riskband.bands.local_steps import LOCAL_STEPS
from riskband.verification import FUNCTIONS
from riskband.worst_cases.always_valid import always_valid

KL = rb.DIVERGENCES["kl"].title
PATH = Path(__file__).parent / "stored" / "certificates.json"
STORED = json.loads(PATH.read_text("utf-8"))["certificates"] if PATH.exists() else {}


def kinds():
    """One certificate of each kind."""
    values = np.array([1, 3, 0, 4, 2, 6, 1, 2, 0, 3, 1, 1]) / 20
    risks = rb.ClientRisks(values, 20)
    named = rb.ClientRisks(values + 0.01, 20, binary=False, names=[f"site {k}" for k in range(12)])
    trainers = rb.ClientRisks(values, 20, answered_by="trainers")
    doubtful = rb.ClientRisks(values, 20, num_missing=1, missing="worst", contamination=1)
    sixteen = rb.ClientRisks([*values, *values[:4]], 20)
    unequal = rb.ClientRisks(np.append(values, 0.2), [20] * 12 + [10])
    noisy = rb.ClientRisks(values, 20, binary=True, noise="laplace:1")
    bins = rb.HistogramRisks([0.0, 0.1, 0.2, 1.0], [5, 4, 3], 20, binary=True)
    limits = rb.HistogramLimits([0.0, 0.3, 0.5, 1.0], [[8, 4, 0], [12, 0, 0], [11, 1, 0]], eta=0.05, binary=True)
    priced = {"cost": "order 1", "guarantee": "exact", "binary": True}
    curves = rb.AdversarialAnswers([0.0, 1.0], np.column_stack([values, values + 0.2]), 20, **priced)
    changes = rb.ClientChanges.from_counts(np.arange(12) % 3, np.arange(12) % 5, 20, names=[*"abcdefghijkl"])
    means = rb.ClientChanges(values, values[::-1] + 0.01, 20, num_missing=1, missing="worst")
    scores = rb.ClientScores(1.0 - values, True, name="AUC")
    minutes = rb.ClientScores(60.0 * values, False, name="time", high=60.0, contamination=1)
    few, pilot = {"delta": 0.2}, rb.ClientRisks(values[::-1] + 0.05, 20)
    lower, groups = few | {"sides": "lower"}, rb.group_bands(risks, ["a", "b"] * 6, **few)
    observed = rb.band(unequal, **few, local="observed", method="truncated:0.5:1")
    tuned = rb.band(risks, **lower, method=rb.OptimisedLevels(pilot, "mean"))
    return {
        "mean": rb.mean_bound(risks, **few),
        "mean of trainers": rb.mean_bound(trainers, **few, seed=3),
        "mean of a histogram": rb.mean_bound(bins, **few, method="hoeffding"),
        "worst mean": rb.worst_case_mean(named, divergence="chi2", budget=[0.0, 0.2], **few),
        "quantile of the doubtful": rb.quantile(doubtful, level=0.5, **few),
        "a target network": rb.bound((risks, pilot), "quantile:0.5@target:chi2:0.1", **few),
        "how far a target is": rb.divergence_lower_bound(risks, pilot, divergence="kl", **few),
        "share": rb.survival(unequal, thresholds=0.4, **few),
        "next clients": rb.next_clients(named, 5, divergence="chi2", budget=[0.0, 0.2], **few),
        "number of next clients": rb.next_clients(doubtful, 5, above=0.3, divergence="kl", budget=0.1, **few),
        "a population": rb.next_clients(doubtful, population=16, k=2, **few),
        "mean of a population": rb.next_clients(doubtful, population=30, including_seen=True, mean=True, **few),
        "mean change": rb.bound(changes, "mean", **few, sides="two"),
        "harm": rb.bound(means, "share:0.1", **few),
        "worst change": rb.bound(changes, "mean@kl:0.1", **few),
        "next changes": rb.next_clients(changes, 4, **few),
        "quantile of a score": rb.bound(scores, "quantile:0.3", **few),
        "share of a score": rb.bound(minutes, "share:15", **few, sides="two"),
        "next scores": rb.next_clients(scores, 4, divergence="chi2", budget=0.1, **few),
        "always valid": always_valid(risks, "mean", **few),
        "an always valid quantile": always_valid(changes, "quantile:0.5", **few, order="committed"),
        "always valid, by its band": rb.mean(rb.band(sixteen, **lower, method="stitched")),
        "a panel": rb.panel_change(named, [named, rb.ClientRisks(**named.to_dict() | {"values": values})], **few),
        "gini": rb.dispersion_certificate(risks, "gini", **few),
        "selection": rb.select({"m1": risks, "m2": named}, objective="mean+0.5*gini", **few).certificate,
        "transport": rb.wasserstein_mean(curves, **few, cost_budget=0.1),
        "transport as published": rb.wasserstein_published(curves, **few, cost_budget=0.01, cost_bound=0.1),
        "shares under transport": rb.wasserstein_cdf(curves, **few, cost_budget=0.1, thresholds=0.9),
        "band, counted": rb.cvar(rb.band(risks, **lower, local="counted", method="sparse:berk_jones"), level=0.5),
        "band, union": rb.mean(rb.band(risks, **lower, local="union", method="dkw")),
        "band, observed": rb.worst_case_cdf(observed, divergence="tv", budget=0.1, thresholds=0.4),
        "band, tuned": rb.weighted_quantile(tuned, "cvar:0.5"),
        "band of noise": rb.lorenz_certificate(rb.band(noisy, **few), shares=0.5),
        "band of limits": rb.quantile_certificate(rb.band(limits, **few), level=0.5),
        "groups": rb.group_certificate(groups, "group_gap", "mean", first="a", second="b"),
    }


def test_every_function_and_every_local_step_is_there():
    recipes = [each["recipe"] for each in STORED.values()]
    assert {recipe["function"] for recipe in recipes} == set(FUNCTIONS)
    assert {recipe["band"]["local"] for recipe in recipes if recipe.get("band")} == set(LOCAL_STEPS)


@pytest.mark.parametrize("name", STORED)
def test_it_verifies(name):
    assert rb.verify(STORED[name]) == (True, ())
    assert rb.Certificate.from_dict(STORED[name]).to_dict() == STORED[name]


CHANGES = {
    "value": lambda old: {"value": 9.0 if old["value"] is None else (np.asarray(old["value"]) + 1e-6).tolist()},
    "delta": lambda old: {"delta": 0.05},
    "assumptions": lambda old: {"assumptions": old["assumptions"][:-1]},
    "statement": lambda old: {"statement": old["statement"].replace("0.8", "0.88")},
    "more": lambda old: {"assumptions": [*old["assumptions"], "chosen before any answer was seen: nothing"]},
}


@pytest.mark.parametrize("name", STORED)
def test_a_change_to_it_is_seen(name):
    old = STORED[name]
    assert [what for what, change in CHANGES.items() if rb.verify({**old, **change(old)}).ok] == []


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("mean of trainers", "seed 3"),
        ("mean of a histogram", "method hoeffding"),
        ("mean of a histogram", "the edges of the bins"),
        ("worst mean", "shift in χ² divergence, budget 0 to 0.2 (2)"),
        ("quantile of the doubtful", "level 0.5"),
        ("next clients", "number of next clients 5, shift in χ² divergence, budget 0 to 0.2 (2)"),
        (
            "number of next clients",
            f"number of next clients 5, risk above which clients count 0.3, shift in {KL}, budget 0.1",
        ),
        ("gini", "measure gini"),
        ("mean change", "bound on mean from both sides"),
        ("shares under transport", "thresholds 0.9, cost budget 0.1"),
        ("band, tuned", "method optimised (mean)"),
        ("band, union", "method dkw, local union"),
    ],
)
def test_every_choice_that_could_have_been_made_by_looking_is_named(name, chosen):
    assert f"chosen before any answer was seen: {chosen}" in STORED[name]["assumptions"]


if __name__ == "__main__":
    LINES = (
        f"{json.dumps(name)}: {json.dumps(each.to_dict(), separators=(',', ':'))}" for name, each in kinds().items()
    )
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text('{"certificates": {\n' + ",\n".join(LINES) + "\n}}\n", "utf-8")
