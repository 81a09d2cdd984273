"""Junk through every argument of every public function: nothing but ValueError comes out, and never a number.

A row is a call that works. Each of its arguments is replaced by each piece of junk in turn, but for those that are
legal there, which are written out.
"""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from numpy.polynomial import Polynomial

import riskband as rb
from riskband.worst_cases.divergence_bounds import next_estimate

pytestmark = pytest.mark.usefixtures("coarse_plans")

JUNK = {
    "None": None,
    "text": "x",
    "quoted": "0.5",
    "True": True,
    "nan": np.nan,
    "inf": np.inf,
    "negative": -1.0,
    "huge": 10**400,
    "empty": [],
    "mapping": {},
    "object": object(),
    "complex": 1 + 1j,
    "masked": np.ma.array([0.1, 0.2, 0.3, 0.4], mask=[0, 0, 0, 1]),
    "ragged": [[0.1], [0.1, 0.2]],
    "half quoted": [0.1, "0.2", 0.3, 0.4],
    "half true": [0.1, True, 0.3, 0.4],
}

RISKS = rb.ClientRisks([0.1, 0.2, 0.4, 0.3], 20)
PANEL = rb.ClientRisks([0.1, 0.2], 20, names=["a", "b"])
LATER = rb.ClientRisks([0.3, 0.2], 20, names=["a", "b"])
CHANGES = rb.ClientChanges([0.1, 0.2, 0.3], [0.2, 0.2, 0.1], 10)
SCORES = rb.ClientScores([0.9, 0.8, 0.7], True)
BAND = rb.band(RISKS, delta=0.1)
GROUPS = rb.group_bands(RISKS, ["a", "a", "b", "b"], delta=0.1)
HALVES = {"a": 0.5, "b": 0.5}
CURVES = {"radii": [0.0, 1.0], "values": [[0.1, 0.5], [0.2, 0.6], [0.3, 0.6]], "num_examples": 20}
KIND = {"cost": "order 1", "guarantee": "exact", "binary": True}
PRICES = {"multipliers": [0.1, 1.0], "conjugates": [[0.4, 0.1], [0.5, 0.2], [0.5, 0.3]]}
ANSWERS = rb.AdversarialAnswers(**CURVES, **KIND)
GROUP_MEAN = {"bands": GROUPS, "functional": "mean"}
SHIFT = {"divergence": "chi2", "budget": 0.1}
MOVE = {"answers": ANSWERS, "delta": 0.1, "cost_budget": 0.1}
COUNTS = {"edges": [0.0, 0.3, 0.6, 1.0], "binary": True, "num_missing": 1, "missing": "worst", "contamination": 1}
DISPERSION = {"source": RISKS, "method": "betting", "delta": 0.1}

CALLS = {
    "AdversarialAnswers": CURVES | KIND | PRICES | {
        "unit": 1.0, "num_missing": 0, "missing": "worst", "contamination": 1,
    },
    "AdversarialAnswers, noise": CURVES | KIND | PRICES | {"num_examples": 21, "noise": "laplace:1"},
    "AnswerNoise": {"mechanism": "laplace:1", "num_values": 2, "num_steps": 4},
    "ClientRisks": {
        "values": [0.1, 0.2, 0.3, 0.4], "num_examples": 10, "binary": True, "num_missing": 1, "missing": "worst",
        "contamination": 1,
    },
    "ClientRisks, noise": {"values": [0.1, 0.2, 0.3, 0.4], "num_examples": 10, "binary": True, "noise": "gaussian:1"},
    "ClientChanges": {
        "old": [0.1, 0.2, 0.3], "new": [0.2, 0.2, 0.1], "num_examples": 10, "binary": True, "num_worse": [1, 1, 0],
        "num_missing": 1, "missing": "worst", "contamination": 1,
    },
    "ClientChanges.from_counts": {
        "worse": [1, 0, 2], "better": [0, 1, 1], "num_examples": 10, "old_wrong": [3, 1, 2],
    },
    "ClientScores": {"values": [0.9, 0.8, 0.7], "higher_is_better": True, "name": "AUC", "low": 0.0, "high": 2.0},
    "HistogramLimits": COUNTS | {"counts": [[1, 1, 2], [4, 0, 0], [2, 1, 1]], "eta": 0.1},
    "HistogramRisks": COUNTS | {"counts": [2, 1, 1], "num_examples": 20},
    "Objective": {"terms": {"mean": 1.0}},
    "Objective, weight": {"mean": 1.0},
    "OptimisedLevels": {"pilot": [0.1, 0.2], "objectives": {"mean": 1.0}},
    "OptimisedLevels, factor": {"factor": 1.0},
    "OptimisedLevels.levels": {"num_values": 2, "delta": 0.1, "sides": "lower"},
    "QuantileWeight": {"name": "linear", "cumulative": np.square},
    "QuantileWeight.from_density": {"density": Polynomial([0.0, 2.0]), "name": "linear"},
    "RiskDistribution.of_values": {"values": [0.1, 0.2]},
    "RiskDistribution.quantile": {"level": 0.5},
    "Certificate.from_dict": {"data": rb.mean_bound(RISKS, delta=0.1).to_dict()},
    "Certificate.from_json": {"text": rb.mean_bound(RISKS, delta=0.1).to_json()},
    "band": {
        "risks": RISKS, "delta": 0.1, "method": "dkw", "local": "marginal", "sides": "two", "eta": 0.1,
    },
    "binary_worst_case": SHIFT | {"p": 0.1},
    "bound": {"source": RISKS, "number": "gini", "delta": 0.1, "sides": "two"},
    "bound, band": {"source": BAND, "number": "gini", "sides": "worse"},
    "bound, local": {"source": RISKS, "number": "quantile:0.5", "delta": 0.1, "sides": "worse", "local": "observed"},
    "bound, seed": {"source": RISKS, "number": "mean@chi2:0.1", "delta": 0.1, "sides": "worse", "seed": 0},
    "bound, changes": {
        "source": CHANGES, "number": "quantile:0.5", "delta": 0.1, "sides": "two", "local": "marginal",
    },
    "bound, scores": {"source": SCORES, "number": "mean", "delta": 0.1, "sides": "two"},
    "bound, next": {
        "source": RISKS, "number": "count:0.3@next:2", "delta": 0.1, "sides": "two", "population": 9,
        "local": "observed",
    },
    "bound, costs": {"source": ANSWERS, "number": "mean@cost:0.1", "delta": 0.1, "sides": "worse", "seed": 0},
    "bound, two networks": {"source": (RISKS, RISKS), "number": "mean@target:chi2:0.1", "delta": 0.1, "sides": "worse"},
    "breakdown": {"band": BAND, "divergence": "kl", "target": 0.9, "threshold": 0.5, "max_budget": 1.0},
    "compare": SHIFT | {
        "old": RISKS, "new": RISKS, "delta": 0.1, "numbers": ["mean"], "require": ["change<=0.5"], "num_next": 2,
        "population": None, "local": "observed",
    },
    "custom_divergence": {
        "name": "own", "generator": lambda t: (t - 1.0) ** 2, "slope_at_infinity": np.inf,
    },
    "cvar": {"source": RISKS, "level": 0.5, "delta": 0.1, "method": "betting", "seed": 0},
    "cvar, band": {"source": BAND, "level": 0.5},
    "default_multipliers": {"cost_budgets": [0.1], "num_multipliers": 4},
    "dispersion_certificate": DISPERSION | {"measure": "gini"},
    "divergence_estimate": {
        "source": [0.1, 0.2, 0.3, 0.4], "target": [0.2, 0.3, 0.3, 0.5], "divergence": "tv", "bins": 2,
    },
    "divergence_lower_bound": {"source": RISKS, "target": RISKS, "divergence": "tv", "delta": 0.1},
    "divergence_lower_bound, band": {"source": BAND, "target": BAND, "divergence": "tv"},
    "extremal_distributions": {"band": BAND, "measure": "gini"},
    "group_bands": {"risks": RISKS, "groups": ["a", "a", "b", "b"], "delta": 0.1, "shares": HALVES, "method": "dkw"},
    "group_certificate": GROUP_MEAN | {"comparison": "group_variance", "weights": HALVES},
    "group_certificate, gap": GROUP_MEAN | {"comparison": "group_gap", "first": "a", "second": "b", "squared": True},
    "group_certificate, level": GROUP_MEAN | {"comparison": "cvar_fairness", "level": 0.5, "weights": HALVES},
    "group_certificate, mean": GROUP_MEAN | {"comparison": "weighted_group_mean", "weights": HALVES},
    "group_certificate, weight": {"weight": 0.5},
    "group_intervals": GROUP_MEAN,
    "lorenz_certificate": {"band": BAND, "method": "sharp", "shares": 3},
    "mean": {"band": BAND},
    "mean_bound": {"risks": RISKS, "delta": 0.1, "method": "betting", "seed": 0},
    "measured_dispersion": {"risks": RISKS, "measure": "gini"},
    "num_clients_needed": {"level": 0.5, "delta": 0.1},
    "panel_change": {"baseline": PANEL, "later": [LATER], "delta": 0.1},
    "plan": {
        "target": "mean<=0.9", "delta": 0.3, "shift": None, "prior": "beta:0.1:0.05", "pilot": None, "num_examples": 20,
        "num_clients": 5, "population": None, "power": 0.5, "cost": (1, 1), "binary": True, "seed": 0,
    },
    "plan, population": {
        "target": "count:0.3@next:2<=1", "delta": 0.3, "prior": "beta:0.1:0.05", "num_examples": 20, "population": 12,
        "power": 0.5, "seed": 0,
    },
    "monitor": {"certificates": rb.mean_bound(RISKS, delta=0.1), "answers": RISKS, "alpha": 0.1, "batches": [1, 3]},
    "next_clients": SHIFT | {
        "risks": RISKS, "num_next": 2, "delta": 0.1, "rank": None, "k": 1, "population": None, "including_seen": False,
        "local": "observed", "above": None, "mean": False, "sides": "two",
    },
    "next_estimate": {"estimates": [0.1, 0.3], "alpha": 0.5},
    "next_clients, above": {"risks": RISKS, "num_next": 2, "delta": 0.1, "above": 0.3},
    "next_clients, population": {"risks": RISKS, "population": 8, "delta": 0.1, "including_seen": False, "mean": False},
    "next_clients, rank": {"risks": RISKS, "num_next": 1, "rank": 1},
    "quantile": {"source": RISKS, "level": 0.5, "delta": 0.1, "local": "marginal"},
    "quantile, band": {"source": BAND, "level": 0.5},
    "quantile_certificate": {"band": BAND, "level": 0.5},
    "report_page": {
        "source": RISKS, "delta": 0.1, "require": "mean<=0.9", "title": "a model", "facts": None, "public": False,
    },
    "require": {"source": RISKS, "requirements": "mean<=0.9", "delta": 0.1},
    "risk_histogram": {
        "values": [0.1, 0.2, 0.3, 0.4], "num_examples": 20, "edges": [0.0, 0.5, 1.0], "binary": True, "eta": 0.1,
    },
    "select": {
        "risks_by_candidate": {"one": RISKS, "two": RISKS}, "objective": "mean", "delta": 0.1, "method": "bonferroni",
        "target": 0.5, "order": ["two", "one"], "band": "dkw", "local": "marginal", "dispersion": "sharp",
        "mean_share": 0.5, "seed": 0,
    },
    "split_clients": {"risks": RISKS, "pilot_share": 0.5, "seed": 0},
    "survival": {"source": RISKS, "thresholds": 0.5, "delta": 0.1, "local": "observed"},
    "survival, band": {"source": BAND, "thresholds": 0.5},
    "verify": {"certificate": rb.mean_bound(RISKS, delta=0.1)},
    "wasserstein_breakdown": {
        "answers": ANSWERS, "delta": 0.1, "target": 0.9, "max_cost_budget": 1.0, "threshold": 0.5, "multipliers": [1.0],
        "seed": 0, "every_budget": False,
    },
    "wasserstein_cdf": MOVE | {
        "thresholds": 0.5, "local": "limits", "multipliers": [1.0], "eta": 0.1, "method": "dkw", "seed": 0,
        "every_budget": False,
    },
    "wasserstein_mean": MOVE | {
        "multipliers": [1.0], "method": "betting", "seed": 0, "every_budget": False,
    },
    "wasserstein_published": MOVE | {"cost_bound": 1.0, "worst_means": 0.5},
    "weighted_quantile": {"band": BAND, "weight": "linear"},
    "worst_case_cdf": SHIFT | {"band": BAND, "thresholds": 0.5, "method": "sharp"},
    "worst_case_mean": SHIFT | {"source": RISKS, "delta": 0.1, "method": "betting", "seed": 0},
    "worst_case_mean, band": SHIFT | {"source": BAND, "method": "sharp"},
}  # fmt: skip

OTHER_WAYS = {
    "AdversarialAnswers, noise": rb.AdversarialAnswers,
    "ClientRisks, noise": rb.ClientRisks,
    "ClientChanges.from_counts": rb.ClientChanges.from_counts,
    **{
        f"bound, {each}": rb.bound
        for each in ("band", "local", "seed", "changes", "scores", "next", "costs", "two networks")
    },
    "cvar, band": rb.cvar,
    "divergence_lower_bound, band": rb.divergence_lower_bound,
    "next_estimate": next_estimate,
    "worst_case_mean, band": rb.worst_case_mean,
    "quantile, band": rb.quantile,
    "survival, band": rb.survival,
    "plan, population": rb.plan,
    "next_clients, above": rb.next_clients,
    "next_clients, population": rb.next_clients,
    "next_clients, rank": rb.next_clients,
    "Objective": lambda terms: rb.Objective(terms),
    "Objective, weight": rb.Objective,
    "OptimisedLevels, factor": lambda factor: rb.OptimisedLevels([0.1, 0.2], {"mean": factor}),
    "OptimisedLevels.levels": rb.OptimisedLevels([0.1, 0.2], "mean").levels,
    "QuantileWeight.from_density": rb.QuantileWeight.from_density,
    "RiskDistribution.of_values": rb.RiskDistribution.of_values,
    "RiskDistribution.quantile": rb.RiskDistribution.of_values([0.1, 0.2]).quantile,
    "Certificate.from_dict": rb.Certificate.from_dict,
    "Certificate.from_json": rb.Certificate.from_json,
    **{f"group_certificate, {one}": rb.group_certificate for one in ("gap", "level", "mean")},
    "group_certificate, weight": lambda weight: rb.group_certificate(
        GROUPS, "group_variance", "mean", weights={"a": weight, "b": 0.5}
    ),
}
"""Functions that are not a name of the package, or a second row for one."""

TITLES = {"name"}
"""Words for reports: any text will do."""

BY_DEFAULT = {
    "eta", "shares", "weights", "thresholds", "threshold", "target", "order", "upper", "multipliers", "worst_means",
    "unit", "binary", "seed",
}  # fmt: skip
"""Arguments for which None stands for a choice of ours."""

LEGAL = {
    ("ClientRisks", "binary"): {"True"},
    ("ClientRisks, noise", "binary"): {"True"},
    ("ClientRisks, noise", "noise"): {"None"},
    ("AdversarialAnswers, noise", "binary"): {"True"},
    ("AdversarialAnswers, noise", "cost"): {"text", "quoted"},
    ("AdversarialAnswers, noise", "noise"): {"None"},
    ("HistogramLimits", "binary"): {"True"},
    ("HistogramRisks", "binary"): {"True"},
    ("risk_histogram", "binary"): {"True"},
    ("AdversarialAnswers", "binary"): {"True"},
    **{(f"wasserstein_{name}", "every_budget"): {"True"} for name in ("mean", "cdf", "breakdown")},
    ("AdversarialAnswers", "cost"): {"text", "quoted"},
    ("RiskDistribution.quantile", "level"): {"empty"},  # arrays of any shape give arrays of that shape
    ("binary_worst_case", "p"): {"empty"},
    **{("plan", name): {"None"} for name in ("shift", "pilot", "num_clients", "population", "cost")},
    ("plan", "binary"): {"True"},
    ("plan, population", "population"): {"None"},
    ("ClientChanges", "binary"): {"True"},
    ("ClientChanges", "num_worse"): {"None"},
    ("ClientChanges.from_counts", "old_wrong"): {"None"},
    ("ClientScores", "higher_is_better"): {"True"},
    ("ClientScores", "low"): {"negative"},
    **{("compare", name): {"None"} for name in ("divergence", "num_next", "population")},
    ("compare", "numbers"): {"empty", "mapping"},
    ("compare", "require"): {"empty", "mapping"},
    **{("next_clients", name): {"None"} for name in ("rank", "k", "above", "population")},
    ("next_clients, above", "above"): {"None"},
    ("bound, next", "population"): {"None"},
    ("monitor", "batches"): {"None"},
    **{("next_clients, population", name): {"True"} for name in ("including_seen", "mean")},
    ("quantile", "method"): {"None"},
    ("report_page", "require"): {"None", "empty", "mapping"},
    ("report_page", "title"): {"text", "quoted"},
    ("report_page", "facts"): {"None"},
    ("report_page", "public"): {"True"},
    ("custom_divergence", "slope_at_infinity"): {"inf"},
    ("band", "method"): {"None"},
    ("group_bands", "method"): {"None"},
    ("cvar", "method"): {"None"},
    ("worst_case_mean", "method"): {"None"},
    ("worst_case_mean, band", "method"): {"None"},
    ("group_certificate, gap", "squared"): {"True"},
    ("select", "target"): {"negative"},
}

NO_DEFAULT = {
    ("HistogramLimits", "binary"), ("HistogramLimits", "eta"), ("HistogramRisks", "binary"),
    ("risk_histogram", "binary"),
    ("AdversarialAnswers", "binary"), ("AdversarialAnswers", "multipliers"),
    ("AdversarialAnswers, noise", "binary"), ("AdversarialAnswers, noise", "multipliers"), ("gini_correlation", "eta"),
    ("ClientRisks, noise", "binary"),
    ("lorenz_certificate", "shares"), ("plan", "seed"), ("plan", "target"),
    ("plan, population", "seed"), ("plan, population", "target"),
    ("split_clients", "seed"), ("divergence_estimate", "target"), ("divergence_lower_bound", "target"),
    ("divergence_lower_bound, band", "target"),
    ("survival", "thresholds"),
    ("survival, band", "thresholds"), ("breakdown", "target"),
    ("wasserstein_breakdown", "target"), ("wasserstein_cdf", "thresholds"),
}  # fmt: skip


def legal(row, argument):
    """Names of junk that is no junk there."""
    found = set(LEGAL.get((row, argument), ()))
    if argument == "seed":
        found.add("huge")
    if argument in BY_DEFAULT and (row, argument) not in NO_DEFAULT:
        found.add("None")
    if argument == "method" and CALLS[row].get("source") is not None and "local" not in CALLS[row]:
        found.add("None")  # the sharpest that there is
    return found


def function_of(row):
    return OTHER_WAYS[row] if row in OTHER_WAYS else getattr(rb, row)


def junk_of(row):
    """Every argument of a row with the junk that is none there, and with that which is junk."""
    for argument in CALLS[row].keys() - TITLES:
        allowed = legal(row, argument)
        yield argument, sorted(allowed), sorted(JUNK.keys() - allowed)


@pytest.mark.parametrize("row", CALLS)
def test_the_calls_of_the_table_work(row):
    assert function_of(row)(**CALLS[row]) is not None


@pytest.mark.parametrize("row", CALLS)
def test_junk_is_refused_with_a_value_error(row):
    problems = []
    for argument, _, junk in junk_of(row):
        for name in junk:
            try:
                found = function_of(row)(**CALLS[row] | {argument: JUNK[name]})
            except ValueError:
                pass
            except Exception as error:
                problems.append(f"{row}({argument}={name}) raised {error!r}")
            else:
                problems.append(f"{row}({argument}={name}) gave {found!r:.200}")
    assert problems == []


@pytest.mark.parametrize("row", CALLS)
def test_what_is_called_legal_is_accepted(row):
    for argument, allowed, _ in junk_of(row):
        for name in allowed:
            assert function_of(row)(**CALLS[row] | {argument: JUNK[name]}) is not None, (argument, name)


def test_the_table_has_every_function_with_every_argument():
    functions = [name for name in rb.__all__ if inspect.isfunction(getattr(rb, name))]
    unchecked = {
        "band_settings",
        "options",
        "terms",
        "cvxpy_generator",
        "divergences",
        "say",
    }  # pass through, or callables
    missing = [
        f"{name}({parameter})"
        for name in functions
        for parameter in inspect.signature(getattr(rb, name)).parameters
        if parameter not in unchecked | TITLES | CALLS.get(name, {}).keys()
    ]
    assert missing == ["verify(weights)"]  # as divergences
