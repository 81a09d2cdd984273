"""Attacks of Foolbox by name; skipped where it is not installed, but for how its absence is told."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from client.adversaries import adversarial_curves
from tests.client.adversaries.test_attacks import flip_distances
from tests.client.adversaries.test_exact import problem
from tests.client.adversaries.test_inputs import examples_of, small_net


def curves_of(name, *, box=(-1.0, 1.0), **settings):
    net = small_net(1)
    x, y = examples_of(net, 1, num_examples=10)
    asked = {"loss": "zero_one", "order": 1, "norm": "l2", "space": "input", "box": box} | settings
    return adversarial_curves(net, x, y, adversary=name, **asked)


needs_foolbox = pytest.mark.skipif(find_spec("foolbox") is None, reason="foolbox is not installed")


def test_its_absence_is_told_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "foolbox", None)
    with pytest.raises(ValueError, match=r'pip install "riskband\[attacks\]"'):
        curves_of("foolbox:L2DeepFoolAttack")


@needs_foolbox
def test_deepfool_is_exact_on_two_classes_of_a_linear_model():
    model, weight, bias, x, y = problem(seed=1, num_examples=12, num_features=5, num_classes=2)
    single = torch.nn.Linear(5, 2)
    single.load_state_dict(model.state_dict())
    curves = adversarial_curves(
        single, x, y, loss="zero_one", order=1, space="input", adversary="foolbox:L2DeepFoolAttack", box=(-100, 100)
    )
    assert curves.guarantee == "lower"
    assert curves.adversarial_unit == pytest.approx(flip_distances(weight, bias, x, y, "l2").mean(), rel=1e-4)


@needs_foolbox
def test_attacks_within_a_ball_need_distances():
    with pytest.raises(ValueError, match="distances must be given for 'L2PGD'"):
        curves_of("foolbox:L2PGD")
    state = torch.random.get_rng_state()
    first, again = (curves_of("foolbox:L2PGD", distances=(0.3, 0.8)).values([0.2, 0.9])[0] for _ in range(2))
    assert first.tolist() == again.tolist()
    assert torch.equal(state, torch.random.get_rng_state())
    assert np.all(first > curves_of("pgd").clean_risk)


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
    with pytest.raises(ValueError, match=rule):
        curves_of(f"foolbox:{name}", box=box)
