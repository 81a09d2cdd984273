"""Clients that are mixtures of versions, and their loss table beside running the model on what they hold.

Statistical tests are seeded; over all seeds each would fail by chance with probability 1e-3.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.special import psi

import riskband as rb
from protocol.models import build_model
from riskband.models.evaluation import example_losses, mean_loss
from tests.validity.coverage import rejected, study
from worlds.loss_table import LossTable, PopulationRisks, loss_table
from worlds.population import ClientGroup, Population, PopulationSpec
from worlds.shifts import (
    AffineShift,
    ColourShift,
    DirichletLabelShift,
    DrawnShift,
    ResolutionShift,
    RotationShift,
    RowAffineShift,
    combined,
)
from worlds.versions import Original, Resolution, Rotation, chained

FALSE_ALARM = 1e-3
RESOLUTION = ResolutionShift(levels=(3, 5, 7, 8))
ROTATION = RotationShift((0.0, 40.0, 80.0))
LABEL = DirichletLabelShift(0.5)
MIXTURES = [(RESOLUTION,), (ROTATION,), (RESOLUTION, LABEL), (LABEL, RESOLUTION, ROTATION), (LABEL,), ()]
MODEL = build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=0)


def population(shifts, **settings):
    return Population(PopulationSpec(shifts=shifts, **settings))


def shares(shift, *, num_clients, seed):
    rng = np.random.default_rng(seed)
    drawn = [shift.draw(rng, x_shape=(3, 32, 32), num_classes=10).version_weights for _ in range(num_clients)]
    return np.array(drawn)


def mean_share(low, high, num_low, num_high):
    """E[alpha_1 / sum(alpha)] for the first low level: 1/s is the integral of exp(-st), alphas are uniform."""

    def transform(t, ends):
        (a, b) = ends
        return 1.0 if t == 0 else (np.exp(-a * t) - np.exp(-b * t)) / (t * (b - a))

    def tilted_mean(t, ends):
        (a, b) = ends
        if t < 1e-6:
            return (a + b) / 2
        return (np.exp(-a * t) * (a * t + 1) - np.exp(-b * t) * (b * t + 1)) / (t**2 * (b - a))

    def integrand(t):
        return tilted_mean(t, low) * transform(t, low) ** (num_low - 1) * transform(t, high) ** num_high

    return quad(integrand, 0, np.inf)[0]


@pytest.mark.parametrize("shift", [ResolutionShift(), ColourShift(low=(0.1, 0.3)), ColourShift(levels=(0.0, 0.5, 1.0))])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_mean_shares_of_levels_are_those_of_the_closed_form(shift, is_reversed):
    num_clients, num_low = 4000, len(shift.levels) // 2
    found = shares(shift.reversed() if is_reversed else shift, num_clients=num_clients, seed=1)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    low, high = (shift.high, shift.low) if is_reversed else (shift.low, shift.high)
    num_high = len(shift.levels) - num_low
    first = mean_share(low, high, num_low, num_high)
    expected = np.repeat([first, (1 - num_low * first) / num_high], [num_low, num_high])
    z = (found.mean(axis=0) - expected) / (found.std(axis=0) / np.sqrt(num_clients))
    assert np.all(np.abs(z) < stats.norm.isf(FALSE_ALARM / 2 / len(z)))


def test_with_ranges_of_no_width_shares_have_the_dirichlet_marginals():
    shift = ResolutionShift(low=(0.5, 0.5), high=(1.5, 1.5))
    found = shares(shift, num_clients=2000, seed=2)
    assert stats.kstest(found[:, 0], stats.beta(0.5, 7.5).cdf).pvalue > FALSE_ALARM / 2
    assert stats.kstest(found[:, -1], stats.beta(1.5, 6.5).cdf).pvalue > FALSE_ALARM / 2


def test_the_reverse_of_the_reverse_is_the_same_and_others_have_none():
    assert RESOLUTION.reversed() != RESOLUTION
    assert RESOLUTION.reversed().reversed() == RESOLUTION
    assert AffineShift(0.2).reversed() == AffineShift(0.2)
    spec = PopulationSpec(shifts=(RESOLUTION, LABEL), groups=(ClientGroup("a", (RESOLUTION,)), ClientGroup("b")))
    other = spec.reversed()
    assert other.shifts == (RESOLUTION.reversed(), LABEL)
    assert other.groups[0].shifts == (RESOLUTION.reversed(),)
    assert other.reversed() == spec
    assert other.versions == spec.versions


def test_every_example_has_one_version_drawn_by_the_shares_whatever_its_label():
    clients = population((RESOLUTION, LABEL), examples_per_client=5_000)
    for k in range(3):
        index, version = clients.client_rows(k)
        counts = np.bincount(version, minlength=4)
        assert counts.sum() == 5_000
        weights = clients.shift(k).version_weights
        assert stats.chisquare(counts, 5_000 * weights).pvalue > FALSE_ALARM / 6
        table = np.zeros((4, 10))
        np.add.at(table, (version, clients.data.y_pool[index]), 1)
        assert stats.chi2_contingency(table[:, table.min(axis=0) > 5]).pvalue > FALSE_ALARM / 6


@pytest.mark.parametrize("shifts", [*MIXTURES, (RESOLUTION, AffineShift(0.2))])
def test_rows_are_what_the_client_holds(shifts):
    clients = population(shifts, examples_per_client=12)
    for k in (0, 5):
        held, shift = clients.client(k), clients.shift(k)
        index, version = clients.client_rows(k)
        np.testing.assert_array_equal(held.y, clients.data.y_pool[index])
        for image, each, number in zip(held.x, index, version, strict=True):
            one = clients.versions[number].apply(clients.data.x_pool[[each]], index=np.array([each]))
            np.testing.assert_array_equal(shift.moved(one)[0], image)


@pytest.mark.parametrize("shifts", MIXTURES)
def test_exact_risks_are_those_of_the_distribution_and_the_limit_of_many_draws(shifts):
    num_examples = 200_000
    clients = population(shifts, seed=1, examples_per_client=num_examples)
    risks = PopulationRisks(clients, MODEL, loss="brier")
    exact, measured = risks.exact(2), risks.measured(2)
    for k in range(2):
        truth = clients.distribution(k)
        losses = example_losses(MODEL, truth.x, truth.y, loss="brier")
        assert exact[k] == pytest.approx(truth.weights @ losses, abs=1e-7)
        sd = np.sqrt(truth.weights @ (losses - exact[k]) ** 2)
        z = (measured[k] - exact[k]) / (sd / np.sqrt(num_examples))
        assert abs(z) < stats.norm.isf(FALSE_ALARM / 4)


def test_exact_risks_of_many_clients_at_once_are_those_of_each():
    clients = population((RESOLUTION, ROTATION, LABEL))
    table = PopulationRisks(clients, MODEL, loss="brier").table
    drawn = [clients.shift(k) for k in range(20)]
    classes, versions = (
        np.array([getattr(each, name) for each in drawn]) for name in ("class_weights", "version_weights")
    )
    np.testing.assert_allclose(table.risks(classes, versions), [table.risk(each) for each in drawn], atol=1e-12)
    plain = [table.risk(replace(each, class_weights=None)) for each in drawn]
    np.testing.assert_allclose(table.risks(None, versions), plain, atol=1e-12)


@pytest.mark.parametrize("loss", ["zero_one", "cross_entropy"])
def test_looked_up_losses_are_those_of_the_images(loss):
    clients = population((RESOLUTION, ROTATION, LABEL), examples_per_client=40)
    for k, risk in enumerate(PopulationRisks(clients, MODEL, loss=loss).measured(5)):
        held = clients.client(k)
        plain = mean_loss(MODEL, held.x, held.y, loss=loss)[0]
        assert risk == (plain if loss == "zero_one" else pytest.approx(plain, abs=1e-6))


def test_a_client_with_a_transform_is_evaluated_on_its_images():
    clients = population((RESOLUTION, AffineShift(0.3), LABEL), examples_per_client=40)
    risks = PopulationRisks(clients, MODEL, loss="zero_one")
    truth, held = clients.distribution(2), clients.client(2)
    expected = truth.weights @ example_losses(MODEL, truth.x, truth.y, loss="zero_one")
    assert risks.exact(3)[2] == pytest.approx(expected, abs=1e-12)
    assert risks.measured(3)[2] == mean_loss(MODEL, held.x, held.y, loss="zero_one")[0]
    with pytest.raises(ValueError, match=r"must be a mixture of versions, got one with a transform .*; evaluate"):
        risks.table.risk(clients.shift(2))


def test_risks_do_not_depend_on_the_number_of_cores(monkeypatch):
    clients = population((RESOLUTION, AffineShift(0.3)), examples_per_client=40)
    found, model = [], build_model("cnn", x_shape=(1, 8, 8), num_classes=10, seed=0).train()
    for num_cores in (1, 4):
        monkeypatch.setattr("os.cpu_count", lambda num_cores=num_cores: num_cores)
        risks = PopulationRisks(clients, model, loss="brier")
        found += [[risks.exact(9), risks.measured(9)]]
        assert model.training
    np.testing.assert_array_equal(*found)


def test_groups_may_have_versions_of_their_own():
    groups = (
        ClientGroup("turned", (RotationShift((30.0, 60.0)),)),
        ClientGroup("plain"),
        ClientGroup("a", (RESOLUTION,)),
    )
    clients = population((), groups=groups, examples_per_client=10)
    assert clients.versions == (Rotation(30.0), Rotation(60.0), Original(), *RESOLUTION.versions)
    risks = PopulationRisks(clients, MODEL, loss="zero_one")
    for k, (exact, measured) in enumerate(zip(risks.exact(12), risks.measured(12), strict=True)):
        held, truth = clients.client(k), clients.distribution(k)
        assert measured == mean_loss(MODEL, held.x, held.y, loss="zero_one")[0]
        losses = example_losses(MODEL, truth.x, truth.y, loss="zero_one")
        assert exact == pytest.approx(truth.weights @ losses, abs=1e-12)


def test_two_shifts_of_one_client_are_a_product():
    one = DrawnShift(versions=(Resolution(3), Resolution(8)), version_weights=np.array([0.25, 0.75]))
    other = DrawnShift(versions=(Original(), Rotation(9.0)), version_weights=np.array([0.4, 0.6]))
    both = combined([one, DrawnShift(class_weights=np.array([0.5, 0.5])), other])
    assert both.versions == tuple(chained([a, b]) for a in one.versions for b in other.versions)
    np.testing.assert_allclose(both.version_weights, [0.1, 0.15, 0.3, 0.45])


def test_each_client_of_a_rotation_shift_has_one_angle_and_all_are_equally_likely():
    clients = population((ROTATION,))
    weights = np.array([clients.shift(k).version_weights for k in range(900)])
    np.testing.assert_array_equal(np.sort(weights, axis=1), [[0, 0, 1]] * 900)
    assert stats.chisquare(weights.sum(axis=0)).pvalue > FALSE_ALARM


def test_rows_move_by_the_papers_law_on_images_in_minus_one_to_one():
    rng, height, width = np.random.default_rng(3), 6, 4
    drawn = [RowAffineShift(0.2, 0.3).draw(rng, x_shape=(2, height, width), num_classes=2) for _ in range(200)]

    def moved(each, u):  # the shift, seen on images in [-1, 1]
        return 2 * each.moved((np.asarray(u, np.float32) + 1) / 2).astype(float) - 1

    offsets = np.array([moved(each, np.zeros((1, 2, height, width)))[0] for each in drawn])
    units = np.eye(height)[:, np.newaxis, :, np.newaxis] * np.ones((1, 2, 1, width))
    # Every column of the image of a unit vector is a column of I + N, the same for all columns of one channel.
    columns = np.array([moved(each, units) - offset for each, offset in zip(drawn, offsets, strict=True)])
    assert np.allclose(columns, columns[..., :1], atol=1e-5)
    matrices = np.moveaxis(columns[..., 0], 1, -1) - np.eye(height)
    assert stats.kstest(matrices.ravel(), stats.norm(scale=0.2).cdf).pvalue > FALSE_ALARM / 3
    assert stats.kstest(offsets.ravel(), stats.norm(scale=0.3).cdf).pvalue > FALSE_ALARM / 3
    first, second = matrices[:, 0].ravel(), matrices[:, 1].ravel()  # channels are independent
    assert stats.spearmanr(first, second).pvalue > FALSE_ALARM / 3


@study(30, slow=400)
def test_certificates_within_the_divergence_of_the_populations_cover_the_reversed_target(num_networks):
    """With ranges of no width the shares are Dirichlet, whose divergence is known; risks cannot be further apart."""
    delta, num_clients, num_examples = 0.1, 80, 50
    shift = ResolutionShift(levels=(3, 5, 7, 8), low=(0.8, 0.8), high=(1.2, 1.2))
    divergence = 2 * (1.2 - 0.8) * (psi(1.2) - psi(0.8))  # KL of Dirichlet(1.2, 1.2, .8, .8) from Dirichlet(.8, ...)
    pool = np.random.default_rng(5)
    losses = (pool.random((4, 500)) < [[0.6], [0.5], [0.1], [0.05]]).astype(float)
    table = LossTable(shift.versions, losses, np.zeros(500, np.int64))
    of_levels, thresholds = losses.mean(axis=1), np.array([0.2, 0.35, 0.5])
    target_mean = of_levels @ np.repeat([0.3, 0.2], 2)
    target = table.risks(None, shares(shift.reversed(), num_clients=20_000, seed=6))
    target_shares = np.mean(target[:, np.newaxis] >= thresholds, axis=0) - 5 * 0.5 / np.sqrt(len(target))
    failures = {"mean": [], "shares": [], "mean without a budget": []}
    for child in np.random.SeedSequence(7).spawn(num_networks):
        rng = np.random.default_rng(child)
        drawn = [shift.draw(rng, x_shape=(1, 8, 8), num_classes=1) for _ in range(num_clients)]
        rows = [(rng.integers(500, size=num_examples), each.draw_versions(rng, num_examples)) for each in drawn]
        answers = rb.ClientRisks([table.losses_of(*each).mean() for each in rows], num_examples=num_examples)
        band = rb.band(answers, delta=delta, sides="lower")
        means = rb.worst_case_mean(band, divergence="kl", budget=[0.0, divergence]).value
        curve = rb.worst_case_cdf(band, divergence="kl", budget=[divergence], thresholds=thresholds).value[0]
        failures["mean"].append(means[1] < target_mean)
        failures["shares"].append(np.any(curve < target_shares))
        failures["mean without a budget"].append(means[0] < target_mean)
    assert set(rejected(failures, delta)) == {"mean without a budget"}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: ResolutionShift(levels=(8,)), r"levels must be two or more different numbers, got \(8,\); name each"),
        (lambda: ResolutionShift(levels=(8, 8)), "two or more different numbers"),
        (lambda: ResolutionShift(levels=(0, 8)), "size of a resolution must be a whole number"),
        (lambda: ColourShift(levels=(0.0, 2.0)), "share of colour"),
        (lambda: ColourShift(low=(0.0, 1.0)), r"low must be a range of positive numbers .* got \(0.0, 1.0\); give"),
        (lambda: ColourShift(high=(1.0, 0.5)), "high must be a range"),
        (lambda: ColourShift(high=(1.0,)), "high must be a range"),
        (lambda: RotationShift(()), r"angles must be one or more different numbers, got \(\); name each"),
        (lambda: RowAffineShift(-1.0, 0.1), "matrix_std must be .*; give 0"),
        (lambda: population((RowAffineShift(0.1, 0.1),)).shift(-1), "k must be"),
        (lambda: loss_table(MODEL, np.zeros((1, 1, 8, 8), np.float32), np.zeros(1, np.int64), ()), r"versions .* \[\]"),
        (
            lambda: PopulationRisks(population((LABEL,)), MODEL, loss="zero_one").table.positions((Resolution(3),)),
            "versions must be in the loss table, got resolution-3; make",
        ),
        (lambda: population((ColourShift(),)).client(0), "must have images of three channels, got 1; leave"),
    ],
)
def test_wrong_arguments(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()
