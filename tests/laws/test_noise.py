"""Laws of certificates from noisy answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import riskband as rb
from protocol.mechanisms import mechanism_of
from riskband.answers.noise import noisy_upper_limits
from riskband.answers.risks import EQUAL_BY_DESIGN

MECHANISMS = st.builds(
    "{}:{}".format,
    st.sampled_from(["laplace", "gaussian"]),
    st.floats(0.01, 100.0, allow_nan=False).map("{:.6g}".format),
)
NOISES = st.builds(rb.AnswerNoise, MECHANISMS, st.integers(1, 5), st.sampled_from([1, 2, 2**20]))


@st.composite
def noisy_risks(draw, **settings):
    noise = draw(NOISES)
    num_clients = draw(st.integers(2, 10))
    size = st.integers(1, 300)
    sizes = draw(st.just([draw(size)] * num_clients) | st.lists(size, min_size=num_clients, max_size=num_clients))
    counts = draw(st.lists(st.integers(-200, 500), min_size=num_clients, max_size=num_clients))
    # Half a step of 0-1 losses is no such loss: whole numbers would be refused in smaller steps.
    halves = 0.5 if noise.num_steps > 1 else 0.0
    return rb.ClientRisks((np.array(counts) + halves) / sizes, sizes, noise=noise, **settings)


@given(noisy_risks(), st.floats(1e-4, 0.5))
def test_limits_are_risks_and_enclose(risks, eta):
    lower, upper = risks.lower_limits(eta), risks.upper_limits(eta)
    assert np.all((lower >= 0.0) & (lower <= upper) & (upper <= 1.0))
    assert np.all(risks.upper_limits(eta / 2) >= upper - 1e-12)


@given(NOISES, st.integers(1, 500), st.floats(1e-4, 0.5), st.booleans())
def test_limits_grow_with_the_answer_and_all_bounds_grow_to_one(noise, size, eta, binary):
    values = np.append(np.arange(-30, size + 30, max(size // 10, 1)) / size, 1e6)
    limits = noisy_upper_limits(values, np.full(values.size, size), noise, eta=eta, binary=binary)
    assert np.all(np.diff(limits) >= -1e-9)
    assert limits[-1] == 1.0


@settings(max_examples=40)
@given(noisy_risks(), st.floats(0.01, 0.3), st.permutations(range(10)))
def test_bands_do_not_depend_on_the_order_of_clients_and_means_stay_risks(risks, delta, order):
    band = rb.band(risks, delta=delta)
    order = [client for client in order if client < risks.num_clients]
    other = rb.ClientRisks(risks.values[order], risks.num_examples[order], noise=risks.noise)
    again = rb.band(other, delta=delta)
    np.testing.assert_array_equal(band.lower_points, again.lower_points)
    np.testing.assert_array_equal(band.upper_levels, again.upper_levels)
    for found in (rb.mean(band), rb.cvar(band, level=0.5), rb.worst_case_mean(band, divergence="kl", budget=0.1)):
        assert 0.0 <= found.value <= 1.0
    assert 0.0 <= rb.mean_bound(risks, delta=delta).value <= 1.0


@settings(max_examples=20)
@given(noisy_risks(num_missing=2, missing="worst", contamination=1))
def test_certificates_carry_the_noise_and_verify(risks):
    band = rb.band(risks, delta=0.1, sides="lower")
    for found in (rb.mean_bound(risks, delta=0.1), rb.survival(band, thresholds=0.5), rb.mean(band)):
        stored = rb.Certificate.from_json(found.to_json())
        assert rb.verify(stored).ok
        assert stored.recipe["answers"]["noise"]["mechanism"] == risks.noise.mechanism
        assert any("noise" in line for line in stored.assumptions)
        changed = found.to_dict()
        changed["recipe"]["answers"]["noise"]["num_values"] += 1
        assert not rb.verify(changed).ok


@given(noisy_risks())
def test_what_does_not_know_noise_refuses_and_names_a_remedy(risks):
    for make in (
        lambda: rb.band(risks, delta=0.1, local="observed"),
        lambda: rb.band(risks, delta=0.1, local="union"),
        lambda: rb.mean_bound(risks, delta=0.1, method="published"),
        lambda: rb.mean_bound(risks, delta=0.1, method="empirical_bernstein"),
        lambda: rb.worst_case_mean(
            rb.band(risks, delta=0.1, sides="lower"), divergence="kl", budget=0.1, method="published"
        ),
    ):
        with pytest.raises(ValueError, match=r"without noise.*; use "):
            make()


def test_noise_is_named_in_steps_that_fit_the_loss():
    assert rb.ClientRisks([0.1, -0.2], 10, binary=True, noise="laplace:1").noise.num_steps == 1
    fine = rb.ClientRisks([0.11, -0.2], 10, noise="laplace:1")
    assert fine.noise.num_steps == 2**20
    assert not fine.binary
    assert rb.ClientRisks([0.1, -0.2], 10, noise=rb.AnswerNoise("laplace:1", num_steps=1)).binary


WHOLE = "are whole numbers, as with 0-1 losses .* say binary=True"


def test_whole_counts_are_refused_unless_noise_in_these_steps_may_have_made_them():
    counts = np.arange(60)
    for noise in ("laplace:1", rb.AnswerNoise("laplace:1", num_steps=2), rb.AnswerNoise("gaussian:1", 5, 7)):
        with pytest.raises(ValueError, match=WHOLE):
            rb.ClientRisks(counts / 60, 60, noise=noise)
        with pytest.raises(ValueError, match=WHOLE):
            rb.ClientRisks(np.append(counts, 0.5) / 60, 60, noise=noise, contamination=1)
        assert not rb.ClientRisks(np.append(counts, 0.5) / 60, 60, noise=noise).binary
    assert not rb.ClientRisks([0.1, 0.2, 0.3], 60, noise=rb.AnswerNoise("laplace:1", num_steps=2)).binary  # once in 8
    assert not rb.ClientRisks(counts / 60, 60, noise="laplace:1e9").binary  # so little noise leaves them whole


@given(st.sampled_from(["laplace:", "gaussian:", ""]), st.text("0123456789.eE+-_ x\u0663", max_size=20))
def test_library_and_client_read_the_same_budgets(name, number):
    try:
        budget = mechanism_of(name + number).budget
    except ValueError:
        with pytest.raises(ValueError, match="noise must be 'laplace:EPSILON'"):
            rb.AnswerNoise(name + number)
    else:
        assert rb.AnswerNoise(name + number).budget == float(budget)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({}, WHOLE),
        ({"noise": "laplace:1_0"}, "noise must be 'laplace:EPSILON'"),
        ({"noise": "laplace: 1"}, "noise must be 'laplace:EPSILON'"),
        ({"noise": "laplace:0"}, "noise must be 'laplace:EPSILON'"),
        ({"noise": "laplace:nan"}, "noise must be 'laplace:EPSILON'"),
        ({"noise": "cauchy:1"}, "noise must be 'laplace:EPSILON'"),
        ({"noise": {"mechanism": "laplace:1", "sigma": 2}}, "noise must have the fields of AnswerNoise"),
        ({"noise": {"mechanism": "laplace:1", "num_steps": 0}}, "num_steps must be a whole number >= 1"),
        ({"noise": rb.AnswerNoise("laplace:1"), "binary": True}, "steps of 1 for 0-1 losses"),
        ({"noise": rb.AnswerNoise("laplace:1", num_steps=1), "binary": False}, "steps of 1 for 0-1 losses"),
        ({"values": [0.11, 0.2], "binary": True}, "needs values \\* num_examples to be whole numbers"),
        ({"values": [np.inf, 0.2]}, "noisy risks must lie in"),
        ({"values": [np.nan, 0.2]}, "risks must not be NaN"),
        ({"noise": None}, "risks must lie in"),
    ],
)
def test_wrong_noise_is_refused(change, rule):
    with pytest.raises(ValueError, match=rule):
        rb.ClientRisks(**{"values": [0.1, -0.2], "num_examples": 10, "noise": "laplace:1"} | change)


ADVERSARIAL = {
    "radii": [0.0],
    "values": [[0.11], [-0.2], [0.3], [0.1]],
    "num_examples": 20,
    "cost": "order 1",
    "guarantee": "exact",
    "binary": True,
    "multipliers": [0.5, 2.0],
    "conjugates": [[0.4, 0.5], [1.2, -0.1], [0.6, 0.2], [0.3, 0.1]],
    "noise": rb.AnswerNoise("laplace:3", num_values=3),
}


def test_noisy_transport_means_verify_and_other_transport_certificates_refuse():
    answers = rb.AdversarialAnswers(**ADVERSARIAL)
    found = rb.wasserstein_mean(answers, delta=0.1, cost_budget=[0.0, 0.1])
    assert found.validity == "certificate"
    assert rb.verify(rb.Certificate.from_json(found.to_json())).ok
    assert any("noise" in line for line in found.assumptions)
    bracket = rb.wasserstein_breakdown(answers, delta=0.1, target=0.99, max_cost_budget=1.0)
    assert bracket.lower <= bracket.upper
    with pytest.raises(ValueError, match=r"without noise.*; use wasserstein_mean"):
        rb.wasserstein_cdf(answers, delta=0.1, cost_budget=0.1, thresholds=0.5)
    with pytest.raises(ValueError, match=r"without noise.*; use wasserstein_mean"):
        rb.wasserstein_published(answers, delta=0.1, cost_budget=0.1, cost_bound=1.0)
    with pytest.raises(ValueError, match="noisy answers must hold the conjugates"):
        rb.wasserstein_mean(answers, delta=0.1, cost_budget=0.1, multipliers=[1.0])
    without = {name: value for name, value in ADVERSARIAL.items() if name not in ("multipliers", "conjugates")}
    with pytest.raises(ValueError, match="noisy answers must hold the conjugates"):
        rb.wasserstein_mean(rb.AdversarialAnswers(**without), delta=0.1, cost_budget=0.1)


def test_all_numbers_of_an_answer_share_the_budget_of_its_noise():
    by_name = rb.AdversarialAnswers(**ADVERSARIAL | {"noise": "laplace:3"})
    assert by_name.noise == ADVERSARIAL["noise"]  # the risk at the radius 0, and two conjugates
    more = rb.AdversarialAnswers(**ADVERSARIAL | {"noise": {"mechanism": "laplace:3", "num_values": 4}})
    assert more.noise.num_values == 4
    for fewer in (rb.AnswerNoise("laplace:3"), {"mechanism": "laplace:3", "num_values": 2}):
        with pytest.raises(
            ValueError, match=r"noise must have num_values >= 3, .* use AnswerNoise\(\.\.\., num_values=3"
        ):
            rb.AdversarialAnswers(**ADVERSARIAL | {"noise": fewer})


@pytest.mark.parametrize(("sizes", "is_listed"), [(50, True), ([40, 60] * 30, False)])
def test_means_say_that_equal_numbers_of_examples_are_no_coincidence(sizes, is_listed):
    """What noisy answers are cut to depends on that number."""
    risks = rb.ClientRisks(np.arange(60) / 1200, sizes, binary=False)
    noisy = rb.ClientRisks(np.arange(60) / 1200 + 1e-3, sizes, noise="laplace:1")
    conjugates = noisy.values[:, None] + 0.1
    answers = rb.AdversarialAnswers(
        **ADVERSARIAL
        | {"values": conjugates - 0.1, "multipliers": [1.0], "conjugates": conjugates, "num_examples": sizes}
        | {"noise": "laplace:1"}
    )
    for found in (rb.mean_bound(noisy, delta=0.1), rb.wasserstein_mean(answers, delta=0.1, cost_budget=0.1)):
        assert (EQUAL_BY_DESIGN in found.assumptions) == is_listed
    wrong = rb.ClientRisks(noisy.values, sizes, noise="laplace:1", contamination=1)
    for other in (risks, wrong):
        assert EQUAL_BY_DESIGN not in rb.mean_bound(other, delta=0.1).assumptions


def test_splits_groups_dispersion_and_selection_take_noisy_answers():
    rng = np.random.default_rng(0)
    noise = rb.AnswerNoise("laplace:1", num_steps=1)
    values = (rng.binomial(50, 0.2, 60) + rng.geometric(0.6, 60) - rng.geometric(0.6, 60)) / 50
    risks = rb.ClientRisks(values, 50, noise=noise)
    pilot, rest = rb.split_clients(risks, seed=1)
    assert rest.noise == noise
    assert np.all((pilot.values >= 0.0) & (pilot.values <= 1.0))
    band = rb.band(risks, delta=0.1)
    gini = rb.dispersion_certificate(band, "gini")
    groups = rb.group_bands(risks, ["a", "b"] * 30, delta=0.1)
    gap = rb.group_certificate(groups, "largest_gap", functional="mean")
    chosen = rb.select({"one": risks, "two": risks}, objective="mean+0.5*gini", delta=0.1).certificate
    for found in (gini, gap, chosen, rb.lorenz_certificate(band)):
        assert rb.verify(rb.Certificate.from_json(found.to_json())).ok
    assert gap.lower == 0.0


@pytest.mark.parametrize(
    "counted",
    [
        lambda **who: rb.HistogramRisks([0.0, 0.25, 1.0], [3, 6], 10, binary=False, **who),
        lambda **who: rb.HistogramLimits([0.0, 0.5, 1.0], [[3, 6], [6, 3], [4, 5]], eta=0.05, binary=False, **who),
    ],
)
def test_counts_have_no_noise(counted):
    certificate = rb.mean_bound(counted(), delta=0.1).to_dict()
    assert rb.verify(certificate).ok
    with pytest.raises(TypeError, match="noise"):
        counted(noise="laplace:8")
    certificate["recipe"]["answers"]["noise"] = rb.AnswerNoise("laplace:8").to_dict()
    with pytest.raises(ValueError, match="cannot be followed"):
        rb.verify(certificate)
