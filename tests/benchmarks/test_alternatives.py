"""What one would do otherwise: usual intervals are those of statsmodels and scipy, and false as often as is said."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from benchmarks import alternatives
from benchmarks.alternatives import DELTA, MEANS, NUM_EXAMPLES, WORLDS, Network, gini, networks, rows


@pytest.fixture
def network():
    return Network(np.array([3.0, 0.0, 12.0, 7.0, 30.0, 5.0]), np.random.default_rng(0))


def test_pooled_intervals_are_those_of_statsmodels(network):
    from statsmodels.stats.proportion import proportion_confint  # a second, which no other process of pytest should pay

    wrong, size = 57, 6 * NUM_EXAMPLES
    for method, bound in (("beta", alternatives.pooled_exact), ("wilson", alternatives.pooled_wilson)):
        assert bound(network) == pytest.approx(proportion_confint(wrong, size, 2 * DELTA, method)[1])


def test_intervals_over_clients_are_those_of_scipy(network):
    values = network.measured
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(1.0 - 2 * DELTA).high
    assert alternatives.students_t(network) == pytest.approx(expected)


def test_clustered_errors_are_those_of_statsmodels():
    from statsmodels.regression.linear_model import OLS

    clients = np.repeat(np.arange(4), [3, 8, 20, 5])
    losses = np.random.default_rng(0).binomial(1, 0.3, clients.size)
    settings = {"groups": clients, "use_correction": True}
    found = OLS(losses, np.ones(clients.size)).fit(cov_type="cluster", cov_kwds=settings)
    of_clients = Network(np.bincount(clients, losses), np.random.default_rng(0), np.bincount(clients))
    # With one coefficient the correction is that for the number of clients, which inspect makes, too.
    limit = losses.mean() + stats.norm.ppf(0.95) * found.bse[0]
    assert alternatives.clustered_errors(of_clients) == pytest.approx(limit)


def test_the_gini_coefficient_is_the_mean_difference():
    values = np.array([0.1, 0.4, 0.2, 0.0])
    expected = np.abs(values[:, None] - values).mean() / (2.0 * values.mean())
    assert gini(values) == pytest.approx(expected)
    assert gini(np.zeros(3)) == 0.0


def test_random_effects_are_those_of_statsmodels(network):
    from statsmodels.stats.meta_analysis import combine_effects

    wrong, right = network.wrong + 0.5, NUM_EXAMPLES - network.wrong + 0.5
    found = combine_effects(np.log(wrong / right), 1.0 / wrong + 1.0 / right, method_re="chi2")
    for knapp, error in ((False, found.sd_eff_w_re), (True, found.sd_eff_w_re_hksj)):
        chance = 1.0 / (1.0 + np.exp(-found.mean_effect_re))
        noise = 1.0 / (NUM_EXAMPLES * chance * (1.0 - chance))
        reach = stats.t.ppf(1.0 - 1.0 / 7.0, 4) * np.sqrt(found.tau2 + error**2 + noise)
        limit = alternatives.random_effects(network, knapp=knapp)
        assert np.log(limit / (1.0 - limit)) == pytest.approx(found.mean_effect_re + reach)


def test_a_prediction_limit_is_of_what_the_next_client_measures():
    """Log odds are normal, as random effects have it: of 400 clients 36 may be beyond it, 55 are once in 1000."""
    rng, beyond = np.random.default_rng(0), np.zeros(2)
    for _ in range(400):
        risks = 1.0 / (1.0 + np.exp(rng.normal(0.0, 0.3, 11)))
        wrong = rng.binomial(20, risks).astype(float)
        net = Network(wrong[:-1], rng, 20)
        beyond += [wrong[-1] / 20 > alternatives.random_effects(net, knapp=knapp) for knapp in (False, True)]
    assert max(beyond) < 55


def test_a_prediction_limit_grows_with_the_spread_of_clients(network):
    calm = Network(np.full(6, 10.0), np.random.default_rng(0))
    for knapp in (False, True):
        wide, narrow = (alternatives.random_effects(each, knapp=knapp) for each in (network, calm))
        assert 0.1 < narrow < 0.2 < wide < 1.0


def test_pooling_is_false_far_more_often_than_it_may_be_and_ours_is_not():
    """Of 60 networks at most 8 are false with probability .995 where .05 is."""
    for world in ("Beta(0.4, 4)", "two kinds"):
        truth = WORLDS[world].mean_risk()
        drawn = [network for network, _ in networks(WORLDS[world], 20, 60)]
        false = {name: sum(bound(each) < truth for each in drawn) for name, bound in MEANS.items()}
        assert false["all examples pooled, Clopper-Pearson"] > 12
        assert false["riskband"] <= 8


def test_every_method_has_a_row():
    made = list(rows("Beta(3, 21)", 10, 2))
    assert len(made) == len(MEANS) + len(alternatives.NEXT) + len(alternatives.GINI)
    assert {each.allowed for each in made} == {DELTA, 1.0 / 11.0}
