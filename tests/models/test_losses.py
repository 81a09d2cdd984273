"""Losses against SciPy and scikit-learn, and the laws every loss must obey."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import log_softmax, softmax
from sklearn.metrics import log_loss, zero_one_loss

from riskband.models.losses import ABSTENTION_COST, CROSS_ENTROPY_CAP, LOSSES, get_loss
from tests.sampling import every

RNG = np.random.default_rng(1)
LOGITS = RNG.normal(size=(500, 4))
LABELS = RNG.integers(4, size=500)


def losses(name, logits=LOGITS, labels=LABELS):
    return get_loss(name).per_example(torch.as_tensor(logits), torch.as_tensor(labels)).numpy()


def test_zero_one_is_scikit_learns():
    expected = zero_one_loss(LABELS, LOGITS.argmax(axis=1))
    assert losses("zero_one").mean() == pytest.approx(expected, abs=1e-15)


def test_brier_is_half_the_squared_distance_from_the_label():
    expected = ((softmax(LOGITS, axis=1) - np.eye(4)[LABELS]) ** 2).sum(axis=1) / 2
    np.testing.assert_allclose(losses("brier"), expected, rtol=1e-12)


def test_cross_entropy_is_scikit_learns_below_the_cap():
    nats = -log_softmax(LOGITS, axis=1)[np.arange(500), LABELS]
    assert nats.max() < CROSS_ENTROPY_CAP
    expected = log_loss(LABELS, softmax(LOGITS, axis=1)) / CROSS_ENTROPY_CAP
    assert losses("cross_entropy").mean() == pytest.approx(expected, rel=1e-12)


def test_a_hopeless_prediction_costs_1_and_a_perfect_one_0():
    logits, labels = np.array([[1000.0, 0.0], [0.0, 1000.0]]), np.array([1, 1])
    for name in LOSSES:
        np.testing.assert_allclose(losses(name, logits, labels), [1.0, 0.0], atol=1e-12)


logit_rows = arrays(np.float64, (6, 3), elements=st.floats(-1e6, 1e6))
label_rows = arrays(np.int64, 6, elements=st.integers(0, 2))


@pytest.mark.parametrize("name", every("loss", LOSSES))
@given(logits=logit_rows, labels=label_rows)
def test_every_loss_lies_in_the_unit_interval(name, logits, labels):
    values = losses(name, logits, labels)
    assert values.shape == (6,)
    assert values.min() >= 0
    assert values.max() <= 1
    if LOSSES[name].binary:
        assert set(values) <= {0.0, 1.0}


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_a_loss_is_known_by_the_name_it_carries(name):
    assert get_loss(name).name == name


@pytest.mark.parametrize("name", sorted(set(LOSSES) - {"zero_one", "margin"}))
def test_smooth_losses_have_gradients(name):
    logits = torch.as_tensor(LOGITS).clone().requires_grad_()
    LOSSES[name].per_example(logits, torch.as_tensor(LABELS)).sum().backward()
    assert logits.grad is not None
    assert torch.all(logits.grad.abs().sum(dim=1) > 0)


def test_the_margin_loss_rises_by_half_the_margin_and_is_a_half_on_the_boundary():
    logits = np.array([[3.0, 0.0, 1.0], [0.25, 0.0, 0.0], [0.0, 0.0, -5.0], [0.0, 0.5, 0.0], [0.0, -1.0, 7.0]])
    np.testing.assert_array_equal(losses("margin", logits, np.zeros(5, dtype=np.int64)), [0.0, 0.375, 0.5, 0.75, 1.0])
    wrong = LOGITS.argmax(axis=1) != LABELS
    np.testing.assert_array_equal(losses("margin") > 0.5, wrong)


def test_an_unknown_loss_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="must be one of brier, cross_entropy, margin, zero_one, got 'accuracy'"):
        get_loss("accuracy")


def test_a_model_that_may_abstain_pays_a_fixed_price_where_it_is_not_sure():
    probabilities = softmax(LOGITS, axis=1)
    is_sure, is_wrong = probabilities.max(axis=1) >= 0.6, LOGITS.argmax(axis=1) != LABELS
    assert 0 < is_sure.mean() < 1
    np.testing.assert_array_equal(losses("abstain:0.6"), np.where(is_sure, is_wrong, 0.25))
    assert ABSTENTION_COST == 0.25
    assert not get_loss("abstain:0.6").binary


@given(logits=logit_rows, labels=label_rows)
def test_a_threshold_of_0_is_the_zero_one_loss_and_one_out_of_reach_always_abstains(logits, labels):
    np.testing.assert_array_equal(losses("abstain:0", logits, labels), losses("zero_one", logits, labels))
    assert set(losses("abstain:0.9", logits, labels)) <= {0.0, 0.25, 1.0}
    np.testing.assert_array_equal(losses("abstain:0.9", np.zeros((6, 3)), labels), np.full(6, 0.25))


@pytest.mark.parametrize("name", ["abstain:0.8", "abstain:1.0", "abstain:0.1"])
def test_a_loss_with_a_threshold_is_known_by_its_name(name):
    assert get_loss(name).name == name
    assert get_loss("abstain:.8").name == "abstain:0.8"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("abstain", "needs a number"),
        ("abstain:", "needs a number"),
        ("abstain:high", "needs a number"),
        ("abstain:1.5", "must be in"),
        ("abstain:nan", "must be in"),
        ("abstain:-0.1", "must be in"),
        ("zero_one:0.5", "must be one of"),
    ],
)
def test_a_threshold_that_is_none_is_refused(name, text):
    with pytest.raises(ValueError, match=text):
        get_loss(name)
