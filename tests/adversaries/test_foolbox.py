"""Attacks of Foolbox by name; skipped where it is not installed, but for how its absence is told."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from riskband.checks import RefusedError
from tests.adversaries.nets import mlp, seeded
from tests.adversaries.test_attacks import flip_distances
from tests.adversaries.test_exact import problem
from tests.adversaries.test_inputs import examples_of, small_net
from tests.transport import curves_of as all_curves_of


def curves_of(name, *, box=(-1.0, 1.0), **settings):
    net = small_net(1)
    x, y = examples_of(net, 1, num_examples=10)
    asked = {"loss": "zero_one", "order": 1, "norm": "l2", "space": "input", "box": box} | settings
    return all_curves_of(net, x, y, adversary=name, **asked)


needs_foolbox = pytest.mark.skipif(find_spec("foolbox") is None, reason="foolbox is not installed")


def test_its_absence_is_told_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "foolbox", None)
    with pytest.raises(RefusedError, match=r'pip install "riskband\[attacks\]"'):
        curves_of("foolbox:L2DeepFoolAttack")


@needs_foolbox
def test_deepfool_is_exact_on_two_classes_of_a_linear_model():
    model, weight, bias, x, y = problem(seed=1, num_examples=12, num_features=5, num_classes=2)
    single = torch.nn.Linear(5, 2)
    single.load_state_dict(model.state_dict())
    curves = all_curves_of(
        single, x, y, loss="zero_one", order=1, space="input", adversary="foolbox:L2DeepFoolAttack", box=(-100, 100)
    )
    assert curves.guarantee == "lower"
    assert curves.adversarial_unit == pytest.approx(flip_distances(weight, bias, x, y, "l2").mean(), rel=1e-4)


@needs_foolbox
def test_attacks_within_a_ball_need_distances():
    with pytest.raises(RefusedError, match="distances must be given for 'L2PGD'"):
        curves_of("foolbox:L2PGD")
    state = torch.random.get_rng_state()
    first, again = (curves_of("foolbox:L2PGD", distances=(0.3, 0.8)).values([0.2, 0.9])[0] for _ in range(2))
    assert first.tolist() == again.tolist()
    assert torch.equal(state, torch.random.get_rng_state())
    assert np.all(first > curves_of("pgd").clean_risk)


def binary_net():
    """Two classes, either side of which noise can reach: Foolbox's pointwise attack needs a flip to start from."""
    net = seeded(lambda: torch.nn.Sequential(torch.nn.Flatten(), mlp(16, 16, 2, seed=1)))
    x = np.random.default_rng(1).uniform(size=(8, 1, 4, 4)).astype(np.float32)
    with torch.no_grad():
        net[1][2].bias -= net(torch.from_numpy(x)).mean(dim=0)
        return net, x, net(torch.from_numpy(x)).argmax(dim=1).numpy()


@needs_foolbox
@pytest.mark.filterwarnings("ignore::UserWarning")  # of Foolbox, where it does not find all flips
@pytest.mark.parametrize("name", ["PointwiseAttack", "SaltAndPepperNoiseAttack"])
def test_the_seed_decides_what_is_drawn_from_global_states_and_leaves_them(name):
    """The pointwise attack draws from NumPy's, the other from torch's."""
    net, x, y = binary_net()
    asked = {"loss": "zero_one", "order": 1, "space": "input", "box": (0.0, 1.0), "adversary": f"foolbox:{name}"}
    states, found = [], []
    for number, seed in enumerate((0, 0, 1)):
        np.random.seed(number)  # noqa: NPY002 - what ran before
        torch.manual_seed(number)
        before = np.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist()  # noqa: NPY002
        found.append(all_curves_of(net, x, y, seed=seed, **asked).values(np.linspace(0.0, 1.0, 9))[0].tolist())
        after = np.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist()  # noqa: NPY002
        states.append(before == after)
    assert all(states)
    assert found[0] == found[1]
    assert found[0] != found[2]  # so the draws matter


@needs_foolbox
def test_an_attack_that_fails_is_a_refusal_without_its_text():
    with pytest.raises(RefusedError, match="'GenAttack' of Foolbox failed with ValueError") as refusal:
        curves_of("foolbox:GenAttack", distances=(0.5,))  # wants a target
    assert str(refusal.value.__cause__) not in str(refusal.value)


@needs_foolbox
def test_it_goes_below_a_bound_and_at_a_layer():
    net = small_net(1)
    x, y = examples_of(net, 1, num_examples=10)
    adversary = "foolbox:L2DeepFoolAttack"
    asked = {"loss": "zero_one", "order": 1, "space": "layer:1", "box": (-9.0, 9.0)}
    alone = all_curves_of(net, x, y, adversary=adversary, **asked)
    joined = all_curves_of(net, x, y, adversary=f"sandwich:{adversary}", **asked)
    exact = all_curves_of(net, x, y, loss="zero_one", order=1)  # a ReLU, a dropout and the head
    assert (alone.guarantee, joined.guarantee) == ("lower", "upper")
    np.testing.assert_array_equal(alone.values([0.1, 0.5])[0], joined.values([0.1, 0.5])[0])
    assert alone.clean_risk < alone.values([0.1])[0][0] <= exact.values([0.1])[1][0] + 1e-6


@needs_foolbox
@pytest.mark.parametrize(
    ("name", "box", "rule"),
    [
        ("L2DeepFoolAttack", None, "box must be given for attacks of Foolbox"),
        ("NoSuchAttack", (-1, 1), "must name a class in foolbox.attacks, got 'NoSuchAttack'"),
        ("base", (-1, 1), "must name a class in foolbox.attacks, got 'base'"),
        ("BinarizationRefinementAttack", (-1, 1), "BinarizationRefinementAttack"),
    ],
)
def test_what_foolbox_cannot_do_is_refused(name, box, rule):
    with pytest.raises(RefusedError, match=rule):
        curves_of(f"foolbox:{name}", box=box)
