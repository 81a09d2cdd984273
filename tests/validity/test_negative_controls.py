"""Known mistakes, coded here, must be rejected by the same coverage test: otherwise passing it would mean nothing."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom, ksone, norm

import riskband as rb
from benchmarks.ground_truth import TwoPointRisks
from riskband.answers.risks import binary_kl, default_eta
from riskband.bands.levels import berk_jones_levels, dkw_levels
from riskband.search import bisect
from tests.validity.coverage import (
    BETA,
    TWO_POINTS,
    draw_networks,
    is_exceeded,
    is_rejected,
    leaves,
)

NUM_CLIENTS, DELTA = 200, 0.1


def networks(law, *, num_networks=100, num_clients=NUM_CLIENTS, sizes=20, seed=1):
    return draw_networks(law, num_networks=num_networks, num_clients=num_clients, sizes=sizes, seed=seed)


def with_lower_side(risks, points, levels):
    """A band with these knots, made without any of riskband's own steps."""
    band = rb.band(risks, delta=DELTA, sides="lower")
    return replace(band, lower_points=np.sort(points), lower_levels=np.maximum(levels, 0.0))


def test_the_coverage_test_accepts_delta_and_rejects_twice_delta():
    rng = np.random.default_rng(0)
    assert not is_rejected(rng.random(2000) < DELTA, DELTA)
    assert is_rejected(rng.random(2000) < 2 * DELTA, DELTA)
    assert is_rejected(np.ones(5, dtype=bool), DELTA)
    assert not is_rejected(np.zeros(5, dtype=bool), DELTA)


@pytest.mark.parametrize("method", ["berk_jones", "dkw"])
def test_measured_risks_read_as_true_risks(method):
    bands = [rb.band(risks, delta=DELTA, method=method, local="observed", sides="lower") for risks in networks(BETA)]
    assert is_rejected([leaves(band, BETA) for band in bands], DELTA)


def uniform_networks(num_networks, num_values, seed):
    return np.sort(np.random.default_rng(seed).random((num_networks, num_values)), axis=1)


def pair_failures(ordered, lower, upper):
    return np.any(ordered < lower, axis=1) | np.any(ordered > upper, axis=1)


def test_two_one_sided_bounds_read_as_a_band_at_the_same_delta():
    """[DC]: measured joint coverage 0.8996 at nominal 0.95."""
    lower, upper = (berk_jones_levels(NUM_CLIENTS, 0.05, side) for side in ("lower", "upper"))
    ordered = uniform_networks(4000, NUM_CLIENTS, seed=2)
    failures = pair_failures(ordered, lower.lower, upper.upper)
    assert failures.mean() == pytest.approx(1 - 0.8996, abs=0.02)
    assert is_rejected(failures, 0.05)
    joint = berk_jones_levels(NUM_CLIENTS, 0.05, "two")
    assert not is_rejected(pair_failures(ordered, joint.lower, joint.upper), 0.05)


def test_dkw_on_two_sides_without_the_factor_two_in_its_logarithm():
    lower, upper = (dkw_levels(NUM_CLIENTS, DELTA, side) for side in ("lower", "upper"))
    ordered = uniform_networks(4000, NUM_CLIENTS, seed=3)
    assert is_rejected(pair_failures(ordered, lower.lower, upper.upper), DELTA)
    joint = dkw_levels(NUM_CLIENTS, DELTA, "two")
    assert not is_rejected(pair_failures(ordered, joint.lower, joint.upper), DELTA)


def test_dkw_with_twice_the_number_of_clients():
    """sqrt(log(1/delta) / (4K)) instead of 2K: its exact coverage is Smirnov's, well below nominal."""
    width = np.sqrt(np.log(1 / DELTA) / (4 * NUM_CLIENTS))
    ordered = uniform_networks(4000, NUM_CLIENTS, seed=4)
    failures = np.any(ordered < np.arange(1, NUM_CLIENTS + 1) / NUM_CLIENTS - width, axis=1)
    assert failures.mean() == pytest.approx(ksone.sf(width, NUM_CLIENTS), abs=0.03)
    assert is_rejected(failures, DELTA)


def test_levels_moved_by_one_order_statistic():
    """[DC], Lemma 1 of the main text: F(x) >= L_i from x_(i-1) on, instead of x_(i)."""
    levels = berk_jones_levels(NUM_CLIENTS, DELTA, "lower").lower
    ordered = uniform_networks(2000, NUM_CLIENTS, seed=5)
    assert not is_rejected(np.any(ordered < levels, axis=1), DELTA)
    assert is_rejected(np.any(ordered[:, :-1] < levels[1:], axis=1), DELTA)


@pytest.mark.parametrize("eta", [0.3, 0.5])
def test_the_division_by_one_minus_eta_forgotten(eta):
    levels = berk_jones_levels(NUM_CLIENTS, DELTA, "lower").lower
    failures, divided = [], []
    for risks in networks(TWO_POINTS, sizes=200):
        points = risks.upper_limits(eta)
        failures.append(leaves(with_lower_side(risks, points, levels), TWO_POINTS))
        divided.append(leaves(with_lower_side(risks, points, (levels - eta) / (1 - eta)), TWO_POINTS))
    assert is_rejected(failures, DELTA)
    assert not is_rejected(divided, DELTA)


def test_the_best_of_all_etas_without_any_price_for_them():
    """Running maximum over etas of undivided levels: what `marginal` would be without its inequality."""
    levels = berk_jones_levels(NUM_CLIENTS, DELTA, "lower").lower
    failures = [
        leaves(with_lower_side(risks, np.min([risks.upper_limits(e) for e in (0.01, 0.1, 0.7)], axis=0), levels), BETA)
        for risks in networks(BETA)
    ]
    assert is_rejected(failures, DELTA)


def test_limits_counted_as_if_none_of_them_failed():
    eta = default_eta(NUM_CLIENTS)
    levels = berk_jones_levels(NUM_CLIENTS, 0.9 * DELTA, "lower").lower
    failures = [
        leaves(with_lower_side(risks, risks.upper_limits(eta), levels), TWO_POINTS)
        for risks in networks(TWO_POINTS, sizes=200)
    ]
    assert is_rejected(failures, DELTA)


def test_accuracies_in_percent_with_slacks_on_zero_to_one():
    """The authors' code of [RE]: 87.5 % minus a slack of 0.06 is taken for a bound."""
    slack = np.sqrt(np.log(1 / DELTA) / (2 * NUM_CLIENTS))
    failures, right = [], []
    for risks in networks(BETA):
        accuracy = 100 * (1 - risks.values.mean())
        failures.append(1 - (accuracy - slack) / 100 < BETA.mean_risk())
        right.append(1 - (accuracy - 100 * slack) / 100 < BETA.mean_risk())
    assert is_rejected(failures, DELTA)
    assert not is_rejected(right, DELTA)


def peeking_upper_mean(values, delta):
    """Betting with the variance up to and including the present value, and only when the present bet would win."""
    grid = np.linspace(0.0, 1.0, 1001)[:, None]
    count = np.arange(1, values.size + 1)
    mean = (0.5 + np.cumsum(values)) / (count + 1)
    variance = (0.25 + np.cumsum((values - mean) ** 2)) / (count + 1)
    bets = np.minimum(np.sqrt(2 * np.log(1 / delta) / (values.size * variance)), 0.9 / np.maximum(1 - grid, 1e-9))
    capital = np.cumsum(np.log1p(np.where(grid > values, bets * (grid - values), 0.0)), axis=1)
    refuted = capital.max(axis=1) >= np.log(1 / delta)
    return grid[refuted.argmax(), 0] if refuted.any() else 1.0


def test_bets_that_look_at_the_present_value():
    failures = [peeking_upper_mean(risks.values, DELTA) < BETA.mean_risk() for risks in networks(BETA)]
    assert is_rejected(failures, DELTA)


def test_a_kl_budget_used_in_the_wrong_direction():
    """D(source || target) <= budget never gives probability 1; D(target || source) does as soon as -log p <= budget."""
    law, budget = TwoPointRisks(0.05, 0.4, 0.8), 0.3
    truth = float(law.worst_case_survival(0.3, "kl", budget))
    assert truth == 1.0
    failures, right = [], []
    for risks in networks(law, num_clients=500, sizes=200):
        band = rb.band(risks, delta=DELTA, sides="lower")
        p = rb.survival(band, thresholds=0.3).value
        swapped = bisect(lambda q, p=p: binary_kl(np.asarray(p), q) <= budget, low=p, high=1.0)[1]
        failures.append(swapped < truth - 1e-9)
        right.append(rb.worst_case_cdf(band, divergence="kl", budget=budget, thresholds=0.3).value < truth - 1e-9)
    assert is_rejected(failures, DELTA)
    assert not is_rejected(right, DELTA)


def test_a_shift_that_is_not_budgeted_for():
    """Certificates for half the true budget: the worst cases of coverage.py are really reached."""
    law = TwoPointRisks(0.1, 0.4, 0.3)
    truth = law.worst_case_mean("chi2", 0.4)
    failures = [
        rb.worst_case_mean(rb.band(risks, delta=DELTA, sides="lower"), divergence="chi2", budget=0.1).value < truth
        for risks in networks(law, num_clients=500, sizes=200)
    ]
    assert is_rejected(failures, DELTA)


def test_functionals_of_an_undivided_band_are_exceeded_too():
    """`is_exceeded` has power: survival and quantiles of the forgotten division lie below the truth."""
    levels = berk_jones_levels(NUM_CLIENTS, DELTA, "lower").lower
    failures = [
        is_exceeded(with_lower_side(risks, risks.upper_limits(0.5), levels), TWO_POINTS)
        for risks in networks(TWO_POINTS, num_networks=20, sizes=200)
    ]
    assert is_rejected(failures, DELTA)


@pytest.mark.parametrize("tail", ["lower", "upper"])
def test_a_small_n_limit_used_at_the_wrong_error_level(tail):
    """Limits at level eta, divided by 1 - eta/3 as if they were better."""
    eta, levels = 0.6, berk_jones_levels(NUM_CLIENTS, DELTA, tail)
    failures = []
    for risks in networks(TWO_POINTS, sizes=200):
        if tail == "lower":
            band = with_lower_side(risks, risks.upper_limits(eta), (levels.lower - eta / 3) / (1 - eta / 3))
        else:
            band = replace(
                rb.band(risks, delta=DELTA, sides="upper"),
                upper_points=np.sort(risks.lower_limits(eta)),
                upper_levels=np.minimum(levels.upper / (1 - eta / 3), 1.0),
            )
        failures.append(leaves(band, TWO_POINTS))
    assert is_rejected(failures, DELTA)


@pytest.mark.parametrize("divergence", ["kl", "chi2"])
@pytest.mark.parametrize("of", ["mean", "share"])
def test_the_published_bounds_of_reweighted_networks(of, divergence):
    """[RE] Theorems 5.2 and 5.3 (math §3.5), exactly: clients of risk 1 or 0, so that their number says everything."""
    delta, num_clients = 0.05, 2000
    budget, share, truth, least = {"kl": (1.0, 0.02, 0.4271, 0.99), "chi2": (4.0, 0.01, 0.20899, 0.9)}[divergence]
    generator = {"kl": lambda t: t * np.log(t), "chi2": lambda t: (t - 1) ** 2}[divergence]
    ratio, rest = truth / share, (1 - truth) / (1 - share)  # the network itself, and that it is in the ball
    assert budget - 1e-3 < share * generator(ratio) + (1 - share) * generator(rest) <= budget

    def probability_that_it_is_false(method):
        def bound(num_bad):
            risks = np.repeat([1.0, 0.0], [num_bad, num_clients - num_bad])
            band = rb.band(rb.ClientRisks(risks, 1000, binary=True), delta=delta, sides="lower")
            ball = {"divergence": divergence, "budget": budget, "method": method}
            found = (
                rb.worst_case_cdf(band, **ball, thresholds=0.5) if of == "share" else rb.worst_case_mean(band, **ball)
            )
            return float(found.value)  # grows with the number of bad clients

        return binom.cdf(bisect_left(range(100), truth, key=bound) - 1, num_clients, share)

    assert probability_that_it_is_false("published") > least
    assert probability_that_it_is_false("sharp") <= delta


def test_one_minus_auc_read_as_a_mean_over_examples():
    """3 of 1,000 examples are positive: 1 - AUC spreads as of a few examples; every client's true one is .3."""
    rng, failures = np.random.default_rng(1), []
    for _ in range(40):
        positive, negative = rng.normal(2**0.5 * norm.ppf(0.7), size=(60, 3, 1)), rng.normal(size=(60, 1, 997))
        risks = np.mean(positive < negative, axis=(1, 2))
        failures.append(rb.quantile(rb.ClientRisks(risks, 1000, False), 0.25, delta=DELTA).value < 0.3)
    assert is_rejected(failures, DELTA)
    with pytest.raises(ValueError, match="names a score"):
        rb.ClientRisks.from_frame({"auc": 1.0 - risks}, loss="auc", num_examples=1000, binary=False)


def test_a_cross_entropy_whose_means_happen_to_lie_below_one():
    """Once in 500 a loss is 100: where no mean of 20 shows it, the bound on the mean is below the true .3."""
    rng = np.random.default_rng(1)
    losses = np.where(rng.random((100, 20, 20)) < 0.002, 100.0, rng.uniform(0.0, 0.2, (100, 20, 20))).mean(axis=2)
    shown = [each for each in losses if each.max() <= 1.0]
    failures = [rb.mean_bound(rb.ClientRisks(each, 20), delta=DELTA).value < 0.2998 for each in shown]
    assert is_rejected([*failures, *[False] * (100 - len(shown))], DELTA)
    with pytest.raises(ValueError, match="not known to be a mean"):
        rb.ClientRisks.from_frame({"cross_entropy": shown[0]}, loss="cross_entropy", num_examples=20)


def test_clients_without_examples_read_as_clients_without_errors():
    """A fifth of 200 clients has no examples; the mean risk of the others, and of all, is .2."""
    rng, failures, repaired = np.random.default_rng(1), [], []
    for _ in range(20):
        sizes = np.where(rng.random(200) < 0.2, 0, 50)
        losses = rng.binomial(sizes, rng.beta(4, 16, 200)) / np.maximum(sizes, 1)
        failures.append(rb.mean_bound(rb.ClientRisks(losses, np.maximum(sizes, 1)), delta=DELTA).value < 0.2)
        with pytest.warns(UserWarning, match="count as missing"):
            risks = rb.ClientRisks.from_frame({"loss": losses, "n": sizes}, loss="loss", num_examples="n")
        repaired.append(rb.mean_bound(risks, delta=DELTA).value < 0.2)
    assert is_rejected(failures, DELTA)
    assert not is_rejected(repaired, DELTA)
