"""Shifts against the laws they claim (scipy.stats), and the algebra they must obey.

Statistical tests are seeded; over all seeds each would fail by chance with probability 1e-3.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from worlds.shifts import AffineShift, DirichletLabelShift, DrawnShift, combined

SEEDS = st.integers(0, 2**32)
FALSE_ALARM = 1e-3


def images(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.random(shape).astype(np.float32)


def matrix_and_offset(drawn: DrawnShift, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Recover A and B from what the transform does to the origin and to the unit vectors."""
    offset = drawn.moved(np.zeros((1, size), np.float32))[0].astype(float)
    columns = drawn.moved(np.eye(size, dtype=np.float32)).astype(float) - offset
    return columns.T - np.eye(size), offset


def test_affine_entries_have_the_stated_normal_laws():
    rng, size, sigma = np.random.default_rng(1), 40, 0.7
    parts = [matrix_and_offset(AffineShift(sigma).draw(rng, x_shape=(1, 5, 8), num_classes=2), size) for _ in range(25)]
    entries = np.concatenate([matrix.ravel() for matrix, _ in parts])
    offsets = np.concatenate([offset for _, offset in parts])
    assert stats.kstest(entries, stats.norm(scale=sigma / np.sqrt(size)).cdf).pvalue > FALSE_ALARM
    assert stats.kstest(offsets, stats.norm(scale=sigma).cdf).pvalue > FALSE_ALARM


@pytest.mark.parametrize("size", [64, 784])
def test_affine_matrix_moves_an_image_by_sigma_whatever_the_dimension(size):
    rng = np.random.default_rng(2)
    matrix, _ = matrix_and_offset(AffineShift(0.3).draw(rng, x_shape=(size,), num_classes=2), size)
    x = rng.random((size, 1000))
    ratio = np.linalg.norm(matrix @ x, axis=0) / np.linalg.norm(x, axis=0)
    # ‖Ax‖²/(sigma²‖x‖²) is chi-squared with d degrees of freedom over d: relative sd sqrt(2/d), 4 of them here.
    np.testing.assert_allclose(ratio**2, 0.3**2, rtol=4 * np.sqrt(2 / size))


@given(seed=SEEDS, share=st.floats(0, 1), sigma=st.floats(0.01, 2))
def test_the_transform_is_affine(seed, share, sigma):
    rng = np.random.default_rng(seed)
    drawn = AffineShift(sigma).draw(rng, x_shape=(3, 2, 2), num_classes=2)
    one, other = images(rng, 1, 3, 2, 2), images(rng, 1, 3, 2, 2)
    mixed = np.float32(share) * one + np.float32(1 - share) * other
    expected = share * drawn.moved(one) + (1 - share) * drawn.moved(other)
    np.testing.assert_allclose(drawn.moved(mixed), expected, atol=1e-4)


def test_an_image_moves_alike_alone_and_in_a_batch():
    rng = np.random.default_rng(3)
    drawn = AffineShift(0.3).draw(rng, x_shape=(1, 8, 8), num_classes=10)
    x = images(rng, 301, 1, 8, 8)
    together = drawn.moved(x)
    for k in range(0, 301, 50):
        np.testing.assert_array_equal(drawn.moved(x[k : k + 1])[0], together[k])


@given(seed=SEEDS)
def test_sigma_zero_is_the_identity(seed):
    rng = np.random.default_rng(seed)
    x, y = images(rng, 7, 1, 4, 4), rng.integers(0, 3, 7)
    x_moved, y_moved = AffineShift(0).apply(x, y, rng)
    np.testing.assert_array_equal(x_moved, x)
    np.testing.assert_array_equal(y_moved, y)
    assert x_moved is not x
    assert y_moved is not y


def test_class_weights_have_the_dirichlet_marginal():
    rng = np.random.default_rng(4)
    shift = DirichletLabelShift(0.8)
    first = [shift.draw(rng, x_shape=(2,), num_classes=5).class_weights[0] for _ in range(2000)]
    assert stats.kstest(first, stats.beta(0.8, 4 * 0.8).cdf).pvalue > FALSE_ALARM


@given(seed=SEEDS, concentration=st.floats(1e-300, 1e6), num_classes=st.integers(2, 20))
def test_class_weights_are_a_probability_vector(seed, concentration, num_classes):
    rng = np.random.default_rng(seed)
    weights = DirichletLabelShift(concentration).draw(rng, x_shape=(1,), num_classes=num_classes).class_weights
    assert weights.shape == (num_classes,)
    assert np.all(weights >= 0)
    assert weights.sum() == pytest.approx(1)


@given(seed=SEEDS, counts=st.lists(st.integers(1, 9), min_size=2, max_size=6))
def test_example_weights_give_each_class_its_share_evenly(seed, counts):
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    class_weights = rng.dirichlet(np.ones(len(counts)))
    weights = DrawnShift(class_weights=class_weights).example_weights(y)
    assert weights.sum() == pytest.approx(1)
    for label, share in enumerate(class_weights):
        np.testing.assert_allclose(weights[y == label], share / counts[label])


@given(seed=SEEDS, num_examples=st.integers(1, 30), shift=st.sampled_from([AffineShift(0.4), DirichletLabelShift(0.3)]))
def test_apply_keeps_number_shape_and_input(seed, num_examples, shift):
    rng = np.random.default_rng(seed)
    x, y = images(rng, num_examples, 1, 3, 3), rng.integers(0, 2, num_examples)
    before = x.copy(), y.copy()
    x_moved, y_moved = shift.apply(x, y, np.random.default_rng(seed))
    again = shift.apply(x, y, np.random.default_rng(seed))
    assert x_moved.shape == x.shape
    assert y_moved.shape == y.shape
    assert (x_moved.dtype, y_moved.dtype) == (np.float32, np.int64)
    np.testing.assert_array_equal(x, before[0])
    np.testing.assert_array_equal(y, before[1])
    np.testing.assert_array_equal(x_moved, again[0])


def test_label_shift_keeps_each_image_with_its_label():
    rng = np.random.default_rng(5)
    y = rng.integers(0, 4, 500)
    x = np.repeat(y[:, None], 3, axis=1).astype(np.float32)
    x_moved, y_moved = DirichletLabelShift(0.5).apply(x, y, rng)
    np.testing.assert_array_equal(x_moved[:, 0], y_moved)
    assert not np.array_equal(np.bincount(y_moved, minlength=4), np.bincount(y, minlength=4))


def test_combined_transforms_run_in_order():
    def add(x):
        return x + 1

    def double(x):
        return 2 * x

    x = np.ones((1, 1), np.float32)
    both = combined([DrawnShift(transform=add), DrawnShift(), DrawnShift(transform=double)])
    assert both.moved(x).item() == 4
    assert combined([]).moved(x).item() == 1


def test_two_label_shifts_are_refused():
    weights = np.array([0.5, 0.5])
    with pytest.raises(ValueError, match=r"at most one .* got 2; leave"):
        combined([DrawnShift(class_weights=weights)] * 2)


@pytest.mark.parametrize("sigma", [-0.1, 2e6, np.nan, np.inf, "0.3", True, None])
def test_wrong_sigma(sigma):
    with pytest.raises(ValueError, match=r"sigma must be .*>= 0 and <= 1e\+06, got .*; give 0"):
        AffineShift(sigma)


@pytest.mark.parametrize("concentration", [0, -1, 2e6, np.nan, np.inf, "1"])
def test_wrong_concentration(concentration):
    with pytest.raises(ValueError, match=r"concentration must be .*> 0 and <= 1e\+06, got .*; leave"):
        DirichletLabelShift(concentration)


def test_wrong_examples():
    rng, x = np.random.default_rng(0), np.zeros((3, 2), np.float32)
    with pytest.raises(ValueError, match="got 3 and 2; give one label for each image"):
        AffineShift(0.1).apply(x, np.zeros(2, np.int64), rng)
    with pytest.raises(ValueError, match="at least 1, got 0 and 0"):
        AffineShift(0.1).apply(x[:0], np.zeros(0, np.int64), rng)
    with pytest.raises(ValueError, match=r"got examples of the classes \[0\] only"):
        DrawnShift(class_weights=np.array([0.0, 1.0])).example_weights(np.zeros(3, np.int64))
