"""The figures of [RE]: what they are made of, and, slow, what they are to show, on digits."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy import stats

import riskband as rb
from papers.__main__ import performed
from papers.experiment import Request, load
from papers.federated.curves import covers, curve, largest_excess, share_at_least, thresholds_of
from papers.federated.moved_networks import moved_networks, plotted_shares
from papers.federated.refuted import CASES
from papers.federated.target_networks import exact_risks, looked_up, ranks_in, source_spec
from papers.networks import MODEL, trained
from protocol.models import build_model
from worlds.loss_table import LossTable, PopulationRisks, loss_table
from worlds.population import Population, PopulationSpec
from worlds.shifts import DirichletLabelShift, RowAffineShift
from worlds.training import train_epochs

SPEC = PopulationSpec(examples_per_client=20, shifts=(RowAffineShift(0.1, 0.1),))


def untrained():
    return build_model(MODEL, x_shape=(1, 8, 8), num_classes=10, seed=0).eval()


def made(name, **request):
    """The numbers of a quick run, as read from its file, and the figure made of them."""
    experiment = load(name)
    content = performed(experiment, Request(quick=True, **request))
    result = json.loads(json.dumps(content["result"], allow_nan=False))
    return result, experiment.figure(result)


def means(panel, name, key="budget"):
    """The mean of each bound of a name, by its budget."""
    return {each[key]: each["mean"] for each in panel["curves"] if each["name"] == name and key in each}


def test_shares_are_counts():
    risks = np.array([0.1, 0.3, 0.3, 0.7])
    thresholds = np.array([0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8])
    counted = [sum(risk >= threshold for risk in risks) / 4 for threshold in thresholds]
    np.testing.assert_allclose(share_at_least(risks, thresholds), counted)
    assert (thresholds_of(risks)[[0, -1]] == [0.1, 0.7]).all()
    truth, bound = (curve(name, np.array(values), validity="") for name, values in (("t", [1, 0.5]), ("b", [1, 0.4])))
    assert covers(truth, bound)
    assert not covers(bound, truth)
    assert largest_excess(truth, [bound], "b") == pytest.approx(0.1)


@pytest.mark.parametrize("is_reversed", [False, True])
def test_exact_risks_follow_the_law_of_the_clients(is_reversed):
    """Kolmogorov-Smirnov against clients drawn one by one; fails by chance once in 10,000."""
    spec = source_spec(Request(quick=True), "resolution")
    spec = spec.reversed() if is_reversed else spec
    losses = np.repeat(np.arange(6.0)[:, np.newaxis] / 5, 4, axis=1)
    table = LossTable(versions=spec.versions, losses=losses, y=np.arange(4))
    population = Population(spec)
    drawn = [population.shift(k).version_weights @ losses.mean(axis=1) for k in range(1000)]
    assert stats.ks_2samp(exact_risks(spec, table, 20_000, seed=1), drawn).pvalue > 1e-4


def test_measured_risks_are_the_same_looked_up_and_measured():
    model = untrained()
    spec = PopulationSpec(examples_per_client=20, shifts=(DirichletLabelShift(0.4),))
    population = Population(spec)
    table = loss_table(model, population.data.x_pool, population.data.y_pool, population.versions)
    held = [population.client(k) for k in range(3)]
    with torch.no_grad():
        direct = [(model(torch.from_numpy(each.x)).argmax(1).numpy() != each.y).mean() for each in held]
    np.testing.assert_allclose(looked_up(table, population, 3), direct)
    measured = PopulationRisks(population, model, loss="zero_one").measured(3)
    np.testing.assert_allclose(measured, direct)


def test_a_stronger_shift_moves_the_same_images_further():
    same, further, furthest = moved_networks(untrained(), SPEC, (1.0, 1.5, 2.0), num_clients=2)
    assert np.abs(same.costs).max() < 1e-12
    assert (further.costs > 0).all()
    assert (further.costs < furthest.costs).all()


def test_plotted_shares_are_those_of_the_cheapest_clients():
    radii = np.linspace(0.0, 1.0, 101)
    rows = [np.linspace(*ends, 101) for ends in ((0.2, 0.4), (0.1, 0.5), (0.0, 0.2))]
    answers = rb.AdversarialAnswers(radii, rows, 10_000_000, cost="toy", guarantee="exact", binary=False)
    slack = np.sqrt(np.log(5 / 0.05) / 6)
    # Up to a delay of 5e-4, risk 0.3 costs the first client 0.5, the second 0.5, and the third can not reach it.
    found = plotted_shares(answers, 0.4, np.array([0.1, 0.3, 0.9]))
    np.testing.assert_allclose(found, np.minimum(np.array([2, 2, 0]) / 3 + slack, 1))
    assert plotted_shares(answers, 0.1, np.array([0.3]))[0] == pytest.approx(min(slack, 1))


def test_training_by_gradient_descent_with_momentum_lowers_the_loss_and_is_kept(tmp_path):
    spec = PopulationSpec(examples_per_client=50, shifts=())
    first = trained(spec, num_clients=2, num_epochs=1, cache=tmp_path)
    (path,) = tmp_path.glob("*.pt")
    again = trained(spec, num_clients=2, num_epochs=1, cache=tmp_path)
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
    assert path.stat().st_mtime > 0
    data = Population(spec).data
    settings = {"num_epochs": 1, "learning_rate": 0.05, "momentum": 0.9, "batch_size": 50}
    x, y = data.x_train[:200], data.y_train[:200]
    losses = [train_epochs(first, x, y, seed=seed, **settings) for seed in range(4)]
    assert losses[-1] < losses[0]
    with pytest.raises(ValueError, match="momentum must be"):
        train_epochs(first, x, y, seed=0, num_epochs=1, learning_rate=0.1, momentum=1.5)


def test_published_bounds_are_refuted_by_exact_sums():
    result, figure = made("refuted", clients=200, panels=("kl-share",))
    assert len(figure.axes) == 2
    (panel,) = result["panels"]
    published, sharp = panel["bounds"]
    assert (published["validity"], sharp["validity"]) == ("refuted", "certificate")
    assert panel["truth"] == pytest.approx(0.4271, abs=1e-4)  # q with q log(q / p) + (1 - q) log((1 - q) / (1 - p)) = 1
    case, counts = CASES["kl-share"], range(30)
    false = [case.bound(count, 200, "published") < case.truth for count in counts]
    assert published["false"] == pytest.approx([stats.binom.pmf(counts, 200, 0.02) @ false])
    assert published["false"][0] > 0.5
    assert sharp["false"][0] <= 0.05


@pytest.mark.slow
def test_figure_4_sharp_is_below_published_and_unseen_clients_do_not_contradict_it():
    """With probability 0.95 each for the certificate and for the sampling error of the unseen clients."""
    result, figure = made("fig4")
    assert [panel["name"] for panel in result["panels"]] == ["digits-feature", "digits-label", "digits-both"]
    assert len(figure.axes) == 3
    for panel in result["panels"]:
        truth, published, sharp = panel["curves"][:3]
        assert (truth["name"], published["validity"], sharp["validity"]) == ("truth", "certificate", "certificate")
        assert sharp["mean"] < published["mean"]
        assert panel["excess"]["sharp"] <= panel["sampling_error"]
        for name in ("chi2", "kl"):
            worst = {each["name"]: each["mean"] for each in panel["curves"] if each.get("divergence") == name}
            assert sharp["mean"] < worst["sharp"] <= worst["published"] <= 1.0


@pytest.mark.slow
def test_figure_9_bounds_grow_with_the_budget_and_cover_the_target_network():
    result, figure = made("fig9", panels=("resolution-chi2", "resolution-kl"))
    assert len(figure.axes) == 2
    for panel in result["panels"]:
        sharp, published = means(panel, "sharp"), means(panel, "published")
        assert list(sharp.values()) == sorted(sharp.values())
        assert all(sharp[budget] < published[budget] for budget in sharp)
        assert panel["sharp_covers_from"] <= panel["divergence"]["exact_10"]
        assert panel["largest_failing"]["sharp"] is None
        assert panel["divergence"]["exact_10"] > 0
    assert load("fig6").panels == load("fig9").panels


@pytest.mark.slow
def test_figure_10_the_truth_lies_within_the_certificate_from_the_measured_distance_on():
    result, figure = made("fig10", panels=("moved-1.25", "moved-2"))
    assert len(figure.axes) == 2
    distances = [panel["distance"] for panel in result["panels"]]
    assert distances == sorted(distances)
    for panel in result["panels"]:
        sharp = means(panel, "sharp", "ratio")
        assert list(sharp.values()) == sorted(sharp.values())
        assert panel["covered"]
        mean = panel["means"]
        assert mean["truth"] < mean["empirical worst case"] < mean["certified"] <= mean["published"]
    assert load("fig7").panels == load("fig10").panels


@pytest.mark.slow
def test_the_bound_at_the_divergence_of_the_networks_covers_the_target_as_often_as_it_says():
    """100 source networks; a correct bound fails this once in 10,000 at the most."""
    request = Request(quick=True)
    source = source_spec(request, "colour")
    model = trained(source, num_clients=5, num_epochs=5)
    data = Population(source).data
    table = loss_table(model, data.x_pool, data.y_pool, source.versions)
    exact = [exact_risks(spec, table, 200_000, seed=0) for spec in (source, source.reversed())]
    budget = rb.divergence_estimate(*(ranks_in(exact[0], risks) for risks in exact), divergence="kl", bins=50)
    thresholds = thresholds_of(exact[1])
    truth = share_at_least(exact[1], thresholds)
    num_wrong = 0
    rng = np.random.default_rng(0)
    for seed in range(100):
        risks = rng.binomial(200, exact_risks(source, table, 100, seed=1000 + seed)) / 200
        band = rb.band(rb.ClientRisks(risks, 200), delta=0.05, sides="lower")
        bound = rb.worst_case_cdf(band, divergence="kl", budget=budget, thresholds=thresholds)
        num_wrong += bool(np.any(np.asarray(bound.value) < truth - 1e-9))
    assert num_wrong <= stats.binom.ppf(0.9999, 100, 0.05)
