"""Populations: independence of order, exactness of the distribution, and the law of the clients.

Statistical tests are seeded; over all seeds each would fail by chance with probability 1e-3.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from protocol.examples import Examples
from tests.sampling import every
from worlds.corruptions import CorruptionShift
from worlds.population import NETWORKS, ClientGroup, Population, PopulationSpec, spec_from_config
from worlds.shifts import (
    AffineShift,
    ColourShift,
    DirichletLabelShift,
    ResolutionShift,
    RotationShift,
    RowAffineShift,
)

AFFINE, LABEL = AffineShift(0.3), DirichletLabelShift(0.5)
SHIFTS = [(), (AFFINE,), (LABEL,), (AFFINE, LABEL), (LABEL, AFFINE)]
CONFIG = {
    "dataset": "digits",
    "seed": 3,
    "examples-per-client": 50,
    "affine-sigma": 0.2,
    "dirichlet-concentration": 0.7,
}
FALSE_ALARM = 1e-3
ROOT = Path(__file__).parents[2]


def fingerprint(examples: Examples) -> str:
    return hashlib.sha256(examples.x.tobytes() + examples.y.tobytes()).hexdigest()


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2),
    ks=st.lists(st.integers(0, 10**9), min_size=1, max_size=5, unique=True),
    shifts=st.sampled_from(SHIFTS),
    data=st.data(),
)
def test_a_client_does_not_depend_on_order_or_on_the_others(seed, ks, shifts, data):
    # Nor, then, on how many there are: k alone decides, in any subset of the clients.
    spec = PopulationSpec(seed=seed, examples_per_client=5, shifts=shifts)
    population = Population(spec)
    one_way = {k: fingerprint(population.client(k)) for k in ks}
    other_way = {k: fingerprint(Population(spec).client(k)) for k in data.draw(st.permutations(ks))}
    assert one_way == other_way
    assert len(set(one_way.values())) == len(ks)


def test_a_client_is_the_same_in_another_process():
    code = (
        "import hashlib; from worlds.population import *; "
        "e = Population(PopulationSpec(seed=5)).client(11); "
        "print(hashlib.sha256(e.x.tobytes() + e.y.tobytes()).hexdigest())"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == fingerprint(Population(PopulationSpec(seed=5)).client(11))


ONE_SHIFT = {
    "AffineShift": (AFFINE,),
    "DirichletLabelShift": (LABEL,),
    "RowAffineShift": (RowAffineShift(0.1, 0.2),),
    "ResolutionShift": (ResolutionShift((3, 5, 8)),),
    "ColourShift": (ColourShift(),),
    "RotationShift": (RotationShift((10.0, 50.0)),),
    "CorruptionShift": (CorruptionShift(kinds=("fog", "shear")),),
}


@pytest.mark.parametrize("shifts", [(), (AFFINE, LABEL), (LABEL, AFFINE), *every("shift", ONE_SHIFT, ONE_SHIFT)])
def test_exact_risk_is_the_limit_of_many_draws(shifts):
    num_examples, dataset = 50_000, "colour-digits" if shifts == ONE_SHIFT["ColourShift"] else "digits"
    spec = PopulationSpec(seed=1, examples_per_client=num_examples, shifts=shifts, dataset=dataset)
    population = Population(spec)
    truth, examples = population.distribution(4), population.client(4)

    def losses(x, y):  # any function of (x, y) with values in [0, 1] will do
        return np.where(y % 3 == 0, np.clip(x.mean(axis=(1, 2, 3)), 0, 1), y / 9)

    exact_losses = losses(truth.x, truth.y)
    risk = truth.weights @ exact_losses
    sd = np.sqrt(truth.weights @ (exact_losses - risk) ** 2)
    z = (losses(examples.x, examples.y).mean() - risk) / (sd / np.sqrt(num_examples))
    assert abs(z) < stats.norm.isf(FALSE_ALARM / 2)


@settings(max_examples=20, deadline=None)
@given(k=st.integers(0, 10**6), shifts=st.sampled_from(SHIFTS), network=st.sampled_from(["source", "unseen"]))
def test_the_distribution_is_one_and_holds_every_example(k, shifts, network):
    population = Population(PopulationSpec(shifts=shifts, network=network, examples_per_client=30))
    truth, examples = population.distribution(k), population.client(k)
    assert np.all(truth.weights >= 0)
    assert truth.weights.sum() == pytest.approx(1)
    support = {(x.tobytes(), int(y)) for x, y, w in zip(truth.x, truth.y, truth.weights, strict=True) if w > 0}
    assert {(x.tobytes(), int(y)) for x, y in zip(examples.x, examples.y, strict=True)} <= support


def test_without_shifts_the_distribution_is_the_pool():
    population = Population(PopulationSpec(shifts=()))
    truth = population.distribution(0)
    np.testing.assert_array_equal(truth.x, population.data.x_pool)
    np.testing.assert_array_equal(truth.y, population.data.y_pool)
    np.testing.assert_array_equal(truth.weights, 1 / len(truth.y))


def test_sigma_zero_changes_nothing():
    plain = Population(PopulationSpec(shifts=()))
    null = Population(PopulationSpec(shifts=(AffineShift(0),)))
    assert fingerprint(plain.client(7)) == fingerprint(null.client(7))


def test_examples_are_drawn_uniformly_with_replacement():
    population = Population(PopulationSpec(seed=2, shifts=(), examples_per_client=50_000))
    pool = {x.tobytes(): k for k, x in enumerate(population.data.x_pool)}
    counts = np.bincount([pool[x.tobytes()] for x in population.client(0).x], minlength=len(pool))
    assert stats.chisquare(counts).pvalue > FALSE_ALARM


@pytest.mark.parametrize("network", NETWORKS)
def test_clients_are_independent_draws_of_the_meta_distribution(network):
    population = Population(PopulationSpec(seed=6, shifts=(LABEL,), network=network))
    y = population.data.y_pool
    shares = np.array([population.distribution(k).weights[y == 0].sum() for k in range(1000)])
    assert stats.kstest(shares, stats.beta(0.5, 9 * 0.5).cdf).pvalue > FALSE_ALARM
    assert stats.spearmanr(shares[:-1], shares[1:]).pvalue > FALSE_ALARM


@pytest.mark.parametrize("networks", list(combinations(NETWORKS, 2)), ids="-".join)
def test_the_networks_are_disjoint_and_independent(networks):
    one, other = (Population(PopulationSpec(shifts=(LABEL,), network=network)) for network in networks)
    assert not {fingerprint(one.client(k)) for k in range(50)} & {fingerprint(other.client(k)) for k in range(50)}
    is_zero = one.data.y_pool == 0
    shares = ([each.distribution(k).weights[is_zero].sum() for k in range(500)] for each in (one, other))
    assert stats.spearmanr(*shares).pvalue > FALSE_ALARM


@pytest.mark.parametrize("network", ["source", "training"])
def test_training_examples_are_draws_of_the_training_split_under_the_shift_of_the_client(network):
    spec = PopulationSpec(seed=2, shifts=(AFFINE, LABEL), examples_per_client=20_000, network=network)
    population = Population(spec)
    truth, held = population.distribution(3), population.training_examples(3)
    shares = np.bincount(truth.y, weights=truth.weights, minlength=10)
    counts = np.bincount(held.y, minlength=10)
    seen = shares > 1e-3
    assert stats.chisquare(counts[seen], shares[seen] / shares[seen].sum() * counts[seen].sum()).pvalue > FALSE_ALARM
    shift, _ = population._drawn_shift(3)
    moved = {x.tobytes() for x in shift.moved(population.data.x_train)}
    assert {x.tobytes() for x in held.x} <= moved
    assert fingerprint(held) == fingerprint(Population(spec).training_examples(3))
    assert fingerprint(held) != fingerprint(population.client(3))


def test_a_shift_added_at_the_end_leaves_the_others_alone():
    affine = Population(PopulationSpec(shifts=(AFFINE,)))
    both = Population(PopulationSpec(shifts=(AFFINE, LABEL)))
    np.testing.assert_array_equal(affine.distribution(3).x, both.distribution(3).x)
    np.testing.assert_array_equal(affine.distribution(3).y, both.distribution(3).y)


def test_what_is_returned_may_be_changed_without_harm():
    population = Population(PopulationSpec(shifts=()))
    before = fingerprint(population.client(0))
    truth = population.distribution(0)
    truth.x[:], truth.y[:] = 0, 0
    assert fingerprint(population.client(0)) == before


def test_spec_from_config():
    spec = spec_from_config(CONFIG)
    assert spec == PopulationSpec(
        dataset="digits",
        seed=3,
        examples_per_client=50,
        shifts=(AffineShift(0.2), DirichletLabelShift(0.7)),
        network="source",
    )
    assert spec_from_config(CONFIG, network="unseen") == replace(spec, network="unseen")
    assert spec_from_config(CONFIG | {"affine-sigma": 0, "dirichlet-concentration": 0.0}).shifts == ()
    assert spec_from_config(CONFIG | {"loss": "zero_one"}) == spec


@pytest.mark.parametrize("key", sorted(CONFIG))
def test_config_without_a_key(key):
    with pytest.raises(ValueError, match=f"the run config must have the key '{key}'.*; add it"):
        spec_from_config({name: value for name, value in CONFIG.items() if name != key})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": -1}, "seed must be .* at least 0, got -1; give"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"seed": 2**63}, "seed must be below 2"),
        ({"examples-per-client": 0}, "examples_per_client must be .* at least 1, got 0; give"),
        ({"examples-per-client": True}, "examples_per_client must be a whole number"),
        ({"affine-sigma": -0.1}, "affine-sigma must be .*>= 0, got -0.1; give 0 for no such shift"),
        ({"affine-sigma": "much"}, "affine-sigma must be .*got 'much'"),
        ({"dirichlet-concentration": float("nan")}, "dirichlet-concentration must be .*got nan; give 0"),
    ],
)
def test_wrong_config_values(change, message):
    with pytest.raises(ValueError, match=message):
        spec_from_config(CONFIG | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shifts": [AFFINE]}, r"shifts must be a tuple of Shift objects, got .*; give"),
        ({"shifts": (0.3,)}, "shifts must be a tuple of Shift objects"),
        ({"network": "other"}, "network must be one of source, unseen, training, target, got 'other'; the unseen"),
    ],
)
def test_wrong_specs(change, message):
    with pytest.raises(ValueError, match=message):
        PopulationSpec(**change)


@pytest.mark.parametrize("k", [-1, 0.5, True, "0", None])
def test_wrong_client_numbers(k):
    population = Population(PopulationSpec())
    for build in (population.client, population.distribution):
        with pytest.raises(ValueError, match=r"k must be a whole number .* got .*; clients are numbered from 0"):
            build(k)


def test_unknown_dataset():
    with pytest.raises(ValueError, match="dataset must be"):
        Population(PopulationSpec(dataset="digit"))


LISTED = {
    "resolution-alphas": "0.4,0.7,0.7,1",
    "resolution-levels": "4,8",
    "colour-alphas": "0.1,0.3,0.7,1",
    "colour-levels": "",
    "rotation-angles": "-15,0",
    "row-affine-stds": "0.1,0.2",
}


def test_spec_from_config_with_lists():
    shifts = (
        ResolutionShift((4, 8), (0.4, 0.7), (0.7, 1.0)),
        ColourShift(low=(0.1, 0.3), high=(0.7, 1.0)),
        RotationShift((-15.0, 0.0)),
        RowAffineShift(0.1, 0.2),
    )
    plain = spec_from_config(CONFIG)
    assert spec_from_config(CONFIG | LISTED) == replace(plain, shifts=plain.shifts + shifts)
    assert spec_from_config(CONFIG | dict.fromkeys(LISTED, "")) == plain
    assert spec_from_config(CONFIG | {"resolution-levels": "4,8"}) == plain  # levels alone are no shift
    for key, wrong in [
        ("resolution-levels", "4.5,8"),
        ("resolution-alphas", "1,2,3"),
        ("row-affine-stds", "1"),
        ("rotation-angles", "a"),
    ]:
        with pytest.raises(ValueError, match="; "):
            spec_from_config(CONFIG | LISTED | {key: wrong})


GROUPED = CONFIG | {"group-sigmas": "0.1,0.3"}


@pytest.mark.parametrize("network", ["source", "unseen"])
def test_without_groups_nothing_changes_and_with_them_a_client_is_one_of_the_network_of_its_groups_strength(network):
    # The reference has no groups: all clients under the strength of client k's group.
    assert spec_from_config(CONFIG | {"group-sigmas": ""}) == spec_from_config(CONFIG)
    spec = spec_from_config(GROUPED, network=network)
    for k in range(6):
        sigma = float(spec.group(k).name.removeprefix("sigma-"))
        plain = Population(spec_from_config(CONFIG | {"affine-sigma": sigma}, network=network))
        assert fingerprint(Population(spec).client(k)) == fingerprint(plain.client(k))
        exact, expected = Population(spec).distribution(k), plain.distribution(k)
        np.testing.assert_array_equal(exact.x, expected.x)
        np.testing.assert_array_equal(exact.weights, expected.weights)


def test_groups_are_equally_likely_and_differ_between_networks_and_seeds():
    num_clients = 3000
    drawn = {}
    for network, seed in (("source", 3), ("unseen", 3), ("source", 4)):
        spec = spec_from_config(GROUPED | {"group-sigmas": "0.1,0.3,0", "seed": seed}, network=network)
        drawn[network, seed] = [spec.group(k).name for k in range(num_clients)]
        counts = [drawn[network, seed].count(name) for name in ("sigma-0.1", "sigma-0.3", "sigma-0")]
        assert stats.chisquare(counts).pvalue > FALSE_ALARM
    for other in (("unseen", 3), ("source", 4)):
        agree = np.mean(np.array(drawn["source", 3]) == np.array(drawn[other]))
        assert stats.binomtest(round(agree * num_clients), num_clients, 1 / 3).pvalue > FALSE_ALARM
    assert spec_from_config(CONFIG).group(0) is None


@pytest.mark.parametrize("value", ["0.1,x", "0.1,-1", -1, True, "0.1,nan", "0.1,0.1"])
def test_group_sigmas_that_mean_nothing_are_refused(value):
    with pytest.raises(ValueError, match="group"):
        spec_from_config(CONFIG | {"group-sigmas": value})


@pytest.mark.parametrize("name", ["", "a" * 101, "line\nbreak", 3])
def test_groups_have_printable_names(name):
    with pytest.raises(ValueError, match="name of a group"):
        ClientGroup(name)
