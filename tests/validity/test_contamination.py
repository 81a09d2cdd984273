"""Coverage against an adversary that knows every true risk, and chooses which clients are missing and which lie.

The certificates are told how many there are at most, never which. Truth is known in closed form; the false-alarm rate
of each test is 1e-4 for each case it lists (see `tests.validity.coverage`).
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.stats import binom

import riskband as rb
from riskband.bands.levels import berk_jones_levels
from riskband.betting import constant_stakes_upper_mean
from tests.validity.coverage import (
    BETA,
    CONTINUOUS,
    TWO_POINTS,
    ObservedLaw,
    draw_networks,
    is_exceeded,
    is_rejected,
    leaves,
    rejected,
    study,
)
from tests.validity.test_wasserstein import (
    BUDGETS,
    THRESHOLDS,
    TRUE_MEANS,
    TRUE_SHARES,
    answers,
)

LOCALS, METHODS = ("marginal", "counted", "union", "observed"), ("berk_jones", "dkw")
HIDE_RISK, HIDE_SAFETY = "hide risk", "hide safety"
NUM_MISSING, NUM_WRONG, DELTA = 6, 5, 0.2


def attacked(risks, aim, *, num_missing=NUM_MISSING, num_wrong=NUM_WRONG, **told):
    """What is seen after the worst clients have gone silent, and the next ones have claimed the opposite.

    `told` replaces what the certificates are told about it.
    """
    order = np.argsort(risks.values if aim == HIDE_SAFETY else -risks.values, kind="stable")
    values = risks.values.copy()
    values[order[num_missing : num_missing + num_wrong]] = 1.0 if aim == HIDE_SAFETY else 0.0
    stay = np.sort(order[num_missing:])
    known = {"num_missing": num_missing, "missing": "worst", "contamination": num_wrong, **told}
    return rb.ClientRisks(values[stay], risks.num_examples[stay], binary=risks.binary, **known)


def attacked_from_both_ends(risks):
    """The riskiest clients go silent, the safest ones claim the worst."""
    order = np.argsort(risks.values, kind="stable")
    values = risks.values.copy()
    values[order[:NUM_WRONG]] = 1.0
    stay = np.sort(order[:-NUM_MISSING])
    known = {"num_missing": NUM_MISSING, "missing": "worst", "contamination": NUM_WRONG}
    return rb.ClientRisks(values[stay], risks.num_examples[stay], binary=risks.binary, **known)


def band_failures(law, sizes, cases, *, num_networks, seed, num_clients=60):
    found = {case: [] for case in cases}
    for risks in draw_networks(law, num_networks=num_networks, num_clients=num_clients, sizes=sizes, seed=seed):
        seen = {
            ("lower", HIDE_RISK): attacked(risks, HIDE_RISK),
            ("upper", HIDE_SAFETY): attacked(risks, HIDE_SAFETY),
            ("two", HIDE_RISK): attacked(risks, HIDE_RISK),
            ("two", HIDE_SAFETY): attacked(risks, HIDE_SAFETY),
            ("two", "both"): attacked_from_both_ends(risks),
        }
        for local, method, sides, aim in found:
            truth = ObservedLaw(law, sizes) if local == "observed" else law
            band = rb.band(seen[sides, aim], delta=DELTA, local=local, method=method, sides=sides)
            found[local, method, sides, aim].append(leaves(band, truth))
    return found


AIMS = (("lower", HIDE_RISK), ("upper", HIDE_SAFETY), ("two", HIDE_RISK), ("two", HIDE_SAFETY), ("two", "both"))


@study(slow=100)
@pytest.mark.parametrize("law", [BETA, pytest.param(TWO_POINTS, marks=pytest.mark.slow)], ids=["beta", "two points"])
def test_every_band_holds_for_equal_numbers_of_examples(law, num_networks):
    cases = [(local, method, *aim) for local, method, aim in product(LOCALS, METHODS, AIMS)]
    assert rejected(band_failures(law, 20, cases, num_networks=num_networks, seed=1), DELTA) == {}


@pytest.mark.parametrize("sizes", [pytest.param("unequal", marks=pytest.mark.slow), "dependent"])
def test_bands_hold_for_numbers_of_examples_drawn_with_the_client(sizes):
    cases = [(local, "berk_jones", *aim) for local, aim in product(("marginal", "counted"), AIMS)]
    assert rejected(band_failures(BETA, sizes, cases, num_networks=60, seed=2), DELTA) == {}


def test_bands_hold_for_any_bounded_loss():
    cases = [("marginal", "berk_jones", "lower", HIDE_RISK)]
    assert rejected(band_failures(CONTINUOUS, 20, cases, num_networks=80, seed=3), DELTA) == {}


@pytest.mark.slow
def test_the_shift_is_not_needlessly_wide():
    """A band that says nothing would pass: with exact calibration and no local step this one fails now and then."""
    cases = [("observed", "berk_jones", "lower", HIDE_RISK)]
    found = band_failures(BETA, 200, cases, num_networks=400, seed=4, num_clients=200)
    assert 0.02 < np.mean(found[cases[0]]) < DELTA + 0.05


@pytest.mark.parametrize("sizes", [20, "unequal"])
def test_everything_read_off_the_lower_side_holds(sizes):
    networks = draw_networks(BETA, num_networks=60, num_clients=80, sizes=sizes, seed=5)
    bands = (rb.band(attacked(risks, HIDE_RISK), delta=DELTA, sides="lower") for risks in networks)
    assert not is_rejected([is_exceeded(band, BETA) for band in bands], DELTA)


@pytest.mark.parametrize("law", [BETA, TWO_POINTS, CONTINUOUS], ids=["beta", "two points", "continuous"])
@pytest.mark.parametrize(("num_missing", "num_wrong"), [pytest.param(0, 2, marks=pytest.mark.slow), (2, 1)])
def test_bounds_for_the_mean_hold(law, num_missing, num_wrong):
    found = {"betting": [], "hoeffding": []}
    for risks in draw_networks(law, num_networks=150, num_clients=60, sizes=20, seed=6):
        seen = attacked(risks, HIDE_RISK, num_missing=num_missing, num_wrong=num_wrong)
        for method, failures in found.items():
            failures.append(rb.mean_bound(seen, delta=DELTA, method=method).value < law.mean_risk() - 1e-12)
    assert rejected(found, DELTA) == {}


@pytest.mark.parametrize(("num_clients", "delta"), [(5, 0.05), (40, 0.3), (400, 0.1)])
def test_constant_stakes_hold_for_right_answers_and_are_not_needlessly_wide(num_clients, delta):
    """Without doubt about any answer their probability of failure is the largest that it can be: of coins, exactly."""
    counts = np.arange(num_clients + 1)
    upper = [constant_stakes_upper_mean(1.0 * (counts[1:] <= count), delta=delta) for count in counts]
    chance = binom.pmf(counts, num_clients, 0.3) @ (np.array(upper) < 0.3)
    assert chance <= delta
    assert num_clients < 400 or chance > 0.0
    rows = np.random.default_rng(7).beta(3, 21, (100, num_clients))
    assert not is_rejected([constant_stakes_upper_mean(row, delta=delta) < 1 / 8 for row in rows], delta)


def attacked_network(network, *, num_missing, num_wrong, **told):
    """The clients that are easiest to push go silent, and the next claim that nothing can push them."""
    order = np.argsort(-network.values.mean(axis=1), kind="stable")
    values = network.values.copy()
    values[order[num_missing : num_missing + num_wrong]] = 0.0
    known = {"num_missing": num_missing, "missing": "worst", "contamination": num_wrong, **told}
    settings = {"cost": network.cost, "guarantee": network.guarantee, "binary": True}
    return rb.AdversarialAnswers(
        network.radii, values[order[num_missing:]], network.num_examples[order[num_missing:]], **settings, **known
    )


def transport_failures(make, *, num_networks, num_clients, num_examples, seed, **told):
    found = []
    for child in np.random.SeedSequence(seed).spawn(num_networks):
        network = answers(np.random.default_rng(child), num_clients, num_examples)
        value, truth = make(attacked_network(network, num_missing=NUM_MISSING, num_wrong=NUM_WRONG, **told))
        found.append(bool(np.any(np.asarray(value) < truth - 1e-9)))
    return found


def transport_mean(network, method="betting"):
    return rb.wasserstein_mean(network, delta=DELTA, cost_budget=BUDGETS, method=method).value, TRUE_MEANS


def transport_cdf(network):
    return rb.wasserstein_cdf(network, delta=DELTA, cost_budget=BUDGETS, thresholds=THRESHOLDS).value, TRUE_SHARES


@pytest.mark.parametrize(
    "make",
    [transport_mean, pytest.param(lambda n: transport_mean(n, "hoeffding"), marks=pytest.mark.slow), transport_cdf],
    ids=["betting", "hoeffding", "cdf"],
)
def test_transport_certificates_hold(make):
    assert not is_rejected(transport_failures(make, num_networks=30, num_clients=60, num_examples=100, seed=8), DELTA)


BLIND = {
    "silent clients ignored": ({"missing": "ignore"}, 20, 0),
    "liars believed": ({"contamination": 0}, 0, 20),
    "too few liars suspected": ({"contamination": 5}, 0, 20),
}


@pytest.mark.parametrize("blind", BLIND)
def test_negative_control_bands_told_less_than_the_truth(blind):
    told, num_missing, num_wrong = BLIND[blind]
    networks = draw_networks(BETA, num_networks=40, num_clients=200, sizes=50, seed=9)
    seen = (attacked(risks, HIDE_RISK, num_missing=num_missing, num_wrong=num_wrong, **told) for risks in networks)
    bands = (rb.band(risks, delta=DELTA, local="observed", sides="lower") for risks in seen)
    assert is_rejected([leaves(band, ObservedLaw(BETA, 50)) for band in bands], DELTA)


@pytest.mark.parametrize(
    "told", [{"missing": "ignore"}, {"contamination": 0}], ids=["silent ignored", "liars believed"]
)
def test_negative_control_means_told_less_than_the_truth(told):
    num_missing, num_wrong = (100, 0) if "missing" in told else (0, 100)
    networks = draw_networks(BETA, num_networks=30, num_clients=400, sizes=50, seed=9)
    seen = (attacked(risks, HIDE_RISK, num_missing=num_missing, num_wrong=num_wrong, **told) for risks in networks)
    assert is_rejected([rb.mean_bound(risks, delta=DELTA).value < BETA.mean_risk() for risks in seen], DELTA)


@pytest.mark.slow
@study(12)
@pytest.mark.parametrize(
    "make", [transport_mean, pytest.param(transport_cdf, marks=pytest.mark.slow)], ids=["mean", "cdf"]
)
def test_negative_control_transport_certificates_need_doubt_too(make, num_networks):
    def believe(network):
        return make(attacked_network(network, num_missing=40, num_wrong=20, missing="ignore", contamination=0))

    networks = (answers(np.random.default_rng(seed), 200, 400) for seed in range(num_networks))
    found = [np.any(np.asarray(value) < truth) for value, truth in map(believe, networks)]
    assert is_rejected(found, DELTA)


def test_negative_control_a_share_cannot_be_subtracted_from_berk_jones_levels():
    """F >= L_i - b/K at the i-th answer: in the upper tail the exact L_(i - b) is lower than that."""
    num_clients, num_wrong, delta = 200, 20, 0.01
    levels = berk_jones_levels(num_clients, delta, "lower").lower
    values = np.sort(np.random.default_rng(10).random((1500, num_clients)), axis=1)
    seen = np.concatenate([np.zeros((1500, num_wrong)), values[:, :-num_wrong]], axis=1)  # the largest claim to be 0
    exact = np.concatenate([np.zeros(num_wrong), levels[:-num_wrong]])
    assert not is_rejected(np.any(seen < exact, axis=1), delta)
    assert is_rejected(np.any(seen < levels - num_wrong / num_clients, axis=1), delta)


@pytest.mark.slow
@pytest.mark.parametrize("law", [BETA, TWO_POINTS], ids=["beta", "two points"])
@pytest.mark.parametrize("sizes", [20, "unequal", "dependent"])
def test_every_band_holds_in_larger_studies(law, sizes):
    # Where numbers of examples differ, the law of measured risks has no closed form here.
    locals_ = LOCALS if sizes == 20 else ("marginal", "counted", "union")
    cases = [(local, method, *aim) for local, method, aim in product(locals_, METHODS, AIMS)]
    assert rejected(band_failures(law, sizes, cases, num_networks=250, seed=11, num_clients=100), DELTA) == {}
