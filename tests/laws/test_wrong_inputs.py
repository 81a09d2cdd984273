"""Every wrong input raises ValueError, and the message says the rule, the value and the remedy."""

from __future__ import annotations

import re

import numpy as np
import pytest

import riskband as rb
from riskband.bands.crossing import crossing_probability
from riskband.functionals.weights import interval_weight
from riskband.plots.dispersion import dispersion_figure
from riskband.tuning import descend

RISKS = rb.ClientRisks([0.1, 0.2, 0.3], 10)
BAND = rb.band(RISKS, delta=0.1)
LOWER = rb.band(RISKS, delta=0.1, sides="lower")
UPPER = rb.band(RISKS, delta=0.1, sides="upper")
GINI = rb.dispersion_certificate(BAND, "gini")


@pytest.mark.parametrize(
    ("call", "rule", "value", "remedy"),
    [
        (lambda: rb.ClientRisks([97.5, 96.0], 100), "in [0, 1]", "97.5", "divide a percentage by 100"),
        (lambda: rb.ClientRisks([0.1, -0.2], 10), "in [0, 1]", "-0.2", "least value is 0"),
        (lambda: rb.ClientRisks([0.1, np.nan, 0.2], 10), "must not be NaN", "1 NaN of 3", "leave out"),
        (lambda: rb.ClientRisks([0.1], 10), "at least 2", "got 1", "cannot be seen in one"),
        (lambda: rb.ClientRisks([], 10), "at least 2", "got 0", "cannot be seen in one"),
        (lambda: rb.ClientRisks(0.3, 10), "shape (num_clients,)", "()", "one mean loss per client"),
        (lambda: rb.ClientRisks([[0.1, 0.2]], 10), "shape (num_clients,)", "(1, 2)", "one mean loss per client"),
        (lambda: rb.ClientRisks([0.1, 0.2], [10, 10, 10]), "one per client (2)", "(3,)", "one number or one per"),
        (lambda: rb.ClientRisks([0.1, 0.2], 0), "whole numbers from 1", "got 0", ""),
        (lambda: rb.ClientRisks([0.1, 0.2], -5), "whole numbers from 1", "got -5", ""),
        (lambda: rb.ClientRisks([0.1, 0.2], 10.5), "whole numbers from 1", "10.5", ""),
        (lambda: rb.ClientRisks([0.1, 0.2], [10, np.nan]), "whole numbers from 1", "nan", ""),
        (lambda: rb.ClientRisks([0.1, 0.25], 10, True), "binary=True", "0.25 of 10 examples", "say binary=False"),
        (lambda: rb.ClientRisks([0.1, 0.2], 10, num_missing=-1), "num_missing must be a whole number >= 0", "-1", ""),
        (lambda: rb.band(RISKS, delta=0.0), "in (0, 1)", "got 0.0", "delta=0.05"),
        (lambda: rb.band(RISKS, delta=1.0), "in (0, 1)", "got 1.0", "delta=0.05"),
        (lambda: rb.band(RISKS, delta=2), "in (0, 1)", "got 2", "delta=0.05"),
        (lambda: rb.band(RISKS, delta=np.nan), "in (0, 1)", "nan", "delta=0.05"),
        (lambda: rb.mean_bound(RISKS, delta=1.0), "in (0, 1)", "got 1.0", "delta=0.05"),
        (lambda: rb.band(RISKS, delta=1e-12), "delta >= 1e-9", "1e-12", "method='dkw'"),
        (lambda: rb.band(RISKS, delta=0.1, method="ks"), "berk_jones, dkw", "'ks'", "one of"),
        (lambda: rb.band(RISKS, delta=0.1, local="global"), "counted, marginal, observed, union", "'global'", "one of"),
        (lambda: rb.band(RISKS, delta=0.1, sides="both"), "lower, two, upper", "'both'", "one of"),
        (lambda: rb.band(RISKS, delta=0.1, eta=0.0), "eta must be in (0, 0.5]", "0.0", "error level"),
        (lambda: rb.band(RISKS, delta=0.1, eta=1.5), "eta must be in (0, 0.5]", "1.5", "error level"),
        (lambda: rb.band(RISKS, delta=0.1, eta=np.nan), "eta must be in (0, 0.5]", "nan", "error level"),
        (lambda: rb.band(RISKS, delta=0.1, eta=0.1, local="union"), "no eta", "union", "delta / (num_clients + 2)"),
        (lambda: rb.band(RISKS, delta=0.1, eta=0.1, local="observed"), "no eta", "observed", "takes no step"),
        (lambda: rb.mean_bound(RISKS, delta=0.1, method="clt"), "betting", "'clt'", "one of"),
        (lambda: rb.worst_case_mean(LOWER, divergence="renyi", budget=0.1), "must be one of", "'renyi'", "kl, "),
        (lambda: rb.worst_case_mean(LOWER, divergence="kl", budget=-0.1), ">= 0", "-0.1", "0 means no shift"),
        (lambda: rb.worst_case_mean(LOWER, divergence="kl", budget=np.inf), "finite", "inf", "0 means no shift"),
        (lambda: rb.worst_case_mean(LOWER, divergence="kl", budget=np.nan), "finite", "nan", "0 means no shift"),
        (lambda: rb.worst_case_mean(LOWER, divergence="kl", budget=[]), "one number or a flat list", "(0,)", ""),
        (lambda: rb.worst_case_mean(LOWER, divergence="kl", budget=[[0.1]]), "flat list", "(1, 1)", ""),
        (lambda: rb.worst_case_mean(LOWER, divergence="kl", budget=0.1, method="fast"), "sharp", "'fast'", "one of"),
        (lambda: rb.worst_case_cdf(LOWER, divergence="kl", budget=-1.0), ">= 0", "-1", "0 means no shift"),
        (lambda: rb.worst_case_cdf(LOWER, divergence="kl", budget=0.1, thresholds=1.5), "in [0, 1]", "1.5", ""),
        (lambda: rb.worst_case_cdf(LOWER, divergence="kl", budget=0.1, thresholds=[np.nan]), "in [0, 1]", "nan", ""),
        (lambda: rb.worst_case_cdf(LOWER, divergence="kl", budget=0.1, method="reference"), "published", "", "one of"),
        (lambda: rb.binary_worst_case(1.1, divergence="kl", budget=0.1), "p must lie in [0, 1]", "1.1", ""),
        (lambda: rb.binary_worst_case(0.1, divergence="kl", budget=-1), ">= 0", "-1", "0 means no shift"),
        (lambda: rb.survival(LOWER, thresholds=-0.1), "in [0, 1]", "-0.1", ""),
        (lambda: rb.quantile(LOWER, level=50), "level must lie in [0, 1]", "50", ""),
        (lambda: rb.cvar(LOWER, level=1.0), "[0, 1)", "1.0", "worst tenth"),
        (lambda: rb.cvar(LOWER, level=np.nan), "[0, 1)", "nan", "worst tenth"),
        (lambda: rb.breakdown(LOWER, divergence="kl", target=10.0), "in [0, 1]", "10", ""),
        (lambda: rb.breakdown(LOWER, divergence="kl", target=0.1, threshold=30), "in [0, 1]", "30", ""),
        (lambda: rb.breakdown(LOWER, divergence="kl", target=0.1, max_budget=-1), ">= 0", "-1", ""),
        (lambda: LOWER.upper(0.5), "no upper side", "", "sides='two'"),
        (lambda: UPPER.lower(0.5), "no lower side", "", "sides='two'"),
        (lambda: rb.mean(UPPER), "no lower side", "", "sides='two'"),
        (lambda: rb.worst_case_mean(UPPER, divergence="kl", budget=0.1), "no lower side", "", "sides='two'"),
        (lambda: interval_weight(0.5, 0.5), "low < high", "0.5 and 0.5", "needs"),
        (
            lambda: rb.QuantileWeight("half", lambda p: p / 2),
            "must integrate to 1",
            "got 0.5",
            "divide it by that",
        ),
        (
            lambda: rb.QuantileWeight.from_density(lambda p: 3.0 - 4.0 * p, name="signed"),
            "must be >= 0",
            "'signed'",
            "must not decrease",
        ),
        (
            lambda: rb.custom_divergence("shifted", lambda t: (t - 1) ** 2 + 0.5, slope_at_infinity=np.inf),
            "must be 0 at t = 1",
            "got 0.5",
            "subtract it",
        ),
        (
            lambda: rb.custom_divergence("concave", lambda t: np.sqrt(t) - 1, slope_at_infinity=0.0),
            "convex",
            "'concave'",
            "",
        ),
        (
            lambda: rb.custom_divergence("steep", lambda t: (t - 1) ** 2, slope_at_infinity=1.0),
            "limit of f(t)/t",
            "got 1",
            "while f grows",
        ),
        (  # new clients would be impossible
            lambda: rb.custom_divergence("level", lambda t: np.abs(t - 1) / 2, slope_at_infinity=np.inf),
            "limit of f(t)/t",
            "got inf",
            "while f grows with slope 0.5",
        ),
        (lambda: rb.ClientRisks([0.1, 0.2], 10**19), "whole numbers from 1", "1e+19", "leave out"),
        (lambda: rb.ClientRisks(np.ma.array([0.1, 0.2], mask=[0, 1]), 10), "plain array", "masked", "leave out"),
        (lambda: rb.ClientRisks([0.1, 0.2], 10, num_missing=1.5), "whole number >= 0", "1.5", ""),
        (lambda: rb.band(RISKS, delta="0.05x"), "delta must be in (0, 1)", "0.05x", "confidence"),
        (lambda: rb.band(RISKS, delta=None), "delta must be in (0, 1)", "None", "confidence"),
        (lambda: rb.survival(BAND, thresholds=[]), "flat list", "(0,)", "flatten"),
        (lambda: rb.quantile(BAND, level=[[0.5]]), "flat list", "(1, 1)", "flatten"),
        (lambda: rb.cvar(BAND, level=[0.5]), "one number", "[0.5]", ""),
        (lambda: rb.breakdown(BAND, divergence="kl", target=[0.5, 0.6]), "one number", "2", "one at a time"),
        (
            lambda: rb.custom_divergence("kl", lambda t: (t - 1) ** 2, slope_at_infinity=np.inf),
            "built-in",
            "'kl'",
            "confuse",
        ),
        (
            lambda: rb.custom_divergence("own", lambda t: (t - 1) ** 2, slope_at_infinity=np.nan),
            "limit of f(t)/t",
            "nan",
            "",
        ),
        (lambda: crossing_probability([0.5, 0.1]), "nondecreasing", "", "running maximum"),
        (lambda: crossing_probability([0.5, np.nan]), "in [0, 1]", "", ""),
        (lambda: crossing_probability([]), "n >= 1", "(0,)", ""),
        (lambda: crossing_probability([0.1, 0.2], [0.5]), "same length", "2 and 1", ""),
        (lambda: rb.ClientRisks([0.1, "0.5"], 10), "must be numbers", "'0.5'", "leave out"),
        (lambda: rb.ClientRisks([True, 0.1], 10), "must be numbers", "True", "leave out"),
        (lambda: rb.ClientRisks([0.1, 0.2], True), "must be numbers", "True", "without examples"),
        (
            lambda: rb.ClientRisks([0.1, 0.2], np.ma.array([9, 9], mask=[0, 1])),
            "must be numbers",
            "masked",
            "leave out",
        ),
        (lambda: rb.survival(BAND, thresholds=np.ma.array([0.1], mask=[1])), "must be numbers", "masked", ""),
        (lambda: rb.band(RISKS, delta="0.05"), "delta must be in (0, 1)", "'0.05'", "confidence"),
        (lambda: rb.quantile(BAND, level="0.5"), "level must be numbers", "'0.5'", "a share"),
        (lambda: rb.RiskDistribution.of_values([5, -1]), "in [0, 1]", "5", ""),
        (lambda: rb.RiskDistribution.of_values([]), "flat list", "(0,)", "flatten"),
        (lambda: rb.lorenz_certificate(BAND, shares=1), "shares must be a whole number from 2", "got 1", "floats"),
        (
            lambda: rb.lorenz_certificate(BAND, shares=np.int64(0)),
            "shares must be a whole number from 2",
            "0",
            "floats",
        ),
        (lambda: rb.lorenz_certificate(BAND, shares=True), "shares must be numbers", "True", ""),
        (lambda: rb.mean_bound(RISKS, delta=0.1, seed=1.5), "seed must be a whole number >= 0", "1.5", "fix it"),
        (lambda: rb.quantile(RISKS, 0.9), "delta must be given", "got none", "only a band"),
        (lambda: rb.cvar(BAND, 0.9, delta=0.1), "delta must be left out", "a band", "give the answers"),
        (lambda: rb.quantile(RISKS, [0.5, 0.9], delta=0.1), "level must be one number", "got 2", "one at a time"),
        (lambda: rb.mean(None), "must be of type Band", "NoneType", "band(risks"),
        (lambda: rb.lorenz_certificate(RISKS), "must be of type Band", "ClientRisks", "band(risks"),
        (lambda: rb.band(None, delta=0.1), "must be of type ClientRisks", "NoneType", "ClientRisks(values"),
        (lambda: rb.select({"a": RISKS}, objective="mean", delta=0.1, order=1), "order must name", "got 1", "are a"),
        (lambda: rb.select({"1": RISKS}, objective="mean", delta=0.1, order=[1]), "order must name", "[1]", "are 1"),
        (lambda: rb.OptimisedLevels([0.1, 0.2], "mean").levels(10, 7, "lower"), "delta must be in", "got 7", ""),
        (lambda: rb.OptimisedLevels([0.1, 0.2], "mean").levels(9, 0.1, "middle"), "lower, two, upper", "'middle'", ""),
        (lambda: dispersion_figure(BAND, lorenz=[0.1]), "lorenz must come from", "list", "lorenz_certificate(band"),
        (lambda: dispersion_figure(BAND, lorenz=GINI), "lorenz must come from", "dispersion_certificate", "make it"),
        (lambda: dispersion_figure(BAND, measures=GINI), "measures must be a list", "Certificate", "[certificate]"),
        (lambda: dispersion_figure(BAND, measures=["gini"]), "measures must come from", "str", "make it with"),
        (lambda: dispersion_figure(rb.band(RISKS, delta=0.2), measures=[GINI]), "of the band that", "another", ""),
        (
            lambda: dispersion_figure(rb.band(rb.ClientRisks([0.1, 0.2, 0.4], 10), delta=0.1), measures=[GINI]),
            "of the band that",
            "another",
            "make it with",
        ),
    ],
)
def test_wrong_input_is_refused_with_its_rule_value_and_remedy(call, rule, value, remedy):
    with pytest.raises(ValueError, match=re.escape(rule)) as caught:
        call()
    assert value in str(caught.value)
    assert remedy in str(caught.value)


@pytest.mark.parametrize("shares", [5, np.int64(5), np.uint8(5)])
def test_shares_may_be_counted_in_any_kind_of_integer(shares):
    np.testing.assert_array_equal(rb.lorenz_certificate(BAND, shares=shares).axes["share"], [0, 0.25, 0.5, 0.75, 1])


def test_a_figure_takes_certificates_that_were_stored():
    stored = rb.Certificate.from_json(GINI.to_json())
    assert len(dispersion_figure(BAND, measures=(stored,)).axes) == 2


def test_a_search_does_not_step_to_where_the_loss_is_no_number():
    start = np.array([1.0])

    def loss(x):
        return (1.0, 2.0 * x) if x[0] == 1.0 else (np.nan, np.full(1, np.nan))

    np.testing.assert_array_equal(descend(loss, start, num_iterations=5), start)


@pytest.mark.parametrize("exactly", [0, 1])
def test_the_ends_of_the_range_are_fine(exactly):
    band = rb.band(rb.ClientRisks([exactly, exactly, exactly], 10), delta=0.1, sides="lower")
    assert 0.0 <= rb.mean(band).value <= 1.0
    assert rb.worst_case_mean(band, divergence="kl", budget=0.1).value <= 1.0
    assert rb.survival(band, thresholds=[0.0, 1.0]).value[0] == 1.0


def test_a_risk_just_above_1_is_named_with_its_digits_unless_its_type_rounds_so_far():
    with pytest.raises(ValueError, match=r"got 1\.000000000001;"):
        rb.ClientRisks([0.1, 1.0 + 1e-12], 10)
    with pytest.raises(ValueError, match=r"got -1e-12;"):
        rb.ClientRisks([0.1, -1e-12], 10)
    with pytest.raises(ValueError, match=r"got 1.00001"):
        rb.ClientRisks(np.array([0.1, 1.00001], dtype=np.float32), 10)
    rounded = np.array([1.0 + 2.0**-23, -(2.0**-23)], dtype=np.float32)
    np.testing.assert_array_equal(rb.ClientRisks(rounded, 10).values, [1.0, 0.0])
    np.testing.assert_array_equal(rb.ClientRisks([np.nextafter(1.0, 2.0), -5e-324], 10).values, [1.0, 0.0])


def test_names_may_be_spelled_as_users_do_and_recipes_keep_one_spelling():
    risks = rb.ClientRisks([0.1, 0.2, 0.4, 0.3] * 5, 20)
    band = rb.band(risks, delta=0.1, method="Berk-Jones", local="Marginal", sides="TWO")
    plain = rb.band(risks, delta=0.1)
    assert band == plain
    pairs = [
        (rb.worst_case_mean(band, divergence=name, budget=0.1, method=how) for name, how in names)
        for names in ([("KL", "Sharp"), ("Chi2", "Published")], [("kl", "sharp"), ("chi2", "published")])
    ]
    for found, expected in zip(*pairs, strict=True):
        assert found.to_json() == expected.to_json()
    for found, expected in (
        (rb.dispersion_certificate(band, "Gini", method="Convex_Order"), ("gini", "convex_order")),
        (rb.dispersion_certificate(band, "Atkinson:5e-1", method="PLUGIN"), ("atkinson:0.5", "plugin")),
    ):
        made = rb.dispersion_certificate(plain, expected[0], method=expected[1])
        assert found.to_json() == made.to_json()
        assert rb.verify(found).ok
    assert rb.mean_bound(risks, delta=0.1, method="Hoeffding") == rb.mean_bound(risks, delta=0.1, method="hoeffding")
    chosen = [
        rb.select({"a": risks, "b": risks}, objective="mean", delta=0.1, method=how, local=local, band=name)
        for how, local, name in (("Bonferroni", "Marginal", "DKW"), ("bonferroni", "marginal", "dkw"))
    ]
    assert chosen[0].certificate == chosen[1].certificate
    assert rb.band(risks, delta=0.1, method="Truncated:1e-1:0.9").method == "truncated:1e-1:0.9"
