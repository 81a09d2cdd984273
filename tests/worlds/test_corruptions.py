"""Corruptions against what they must do (closed forms, colorsys, Pillow, scipy.stats), and the laws of a version.

Statistical tests are seeded; over all seeds each would fail by chance with probability 1e-3.
"""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage, stats

from worlds.corruptions import BENCHMARKS, Corruption, CorruptionShift, table_of
from worlds.datasets import load_dataset
from worlds.population import Population, PopulationSpec
from worlds.shifts import RotationShift
from worlds.versions import Rotation, chained

FALSE_ALARM = 1e-3
ALL = [(benchmark, kind) for benchmark in BENCHMARKS for kind in table_of(benchmark)]
# With the published parameters a larger severity does not change these more (fog: the fourth has the strength of the
# third, and is rougher; spatter: mud after water, or drops of another size; saturate: less, then more colour; elastic:
# a strong map, then fine noise).
NOT_ORDERED = {"fog", "spatter", "saturate", "elastic-transform"}


def images(benchmark: str, num_images: int = 8) -> np.ndarray:
    """Digits, 28 x 28 as for MNIST-C, or coloured smooth fields of the benchmark's side."""
    if benchmark == "mnist-c":
        digits = load_dataset("digits").x_pool[:num_images]
        return ndimage.zoom(digits, (1, 1, 3.5, 3.5), order=1).astype(np.float32)
    side = BENCHMARKS[benchmark][1]
    fields = np.random.default_rng(0).random((num_images, 3, 4, 4))
    return ndimage.zoom(fields, (1, 1, side / 4, side / 4), order=1).astype(np.float32)


def of(benchmark: str, kind: str, severity: int, x: np.ndarray, index: np.ndarray | None = None) -> np.ndarray:
    return Corruption(kind, severity, benchmark).apply(x, index=np.arange(len(x)) if index is None else index)


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_severity_zero_is_the_image_and_severities_are_ordered(benchmark):
    x = images(benchmark, 8 if benchmark != "imagenet-c" else 1)
    for kind in table_of(benchmark):
        assert of(benchmark, kind, 0, x).tobytes() == x.tobytes()
        found = [of(benchmark, kind, severity, x) for severity in range(1, 6)]
        assert all(each.dtype == np.float32 and each.min() >= 0 and each.max() <= 1 for each in found), kind
        changes = [float(np.square(each - x).mean()) for each in found]
        assert changes[0] > 0, kind
        assert kind in NOT_ORDERED or all(np.diff(changes) > 0), (kind, changes)


@pytest.mark.parametrize("benchmark", ["mnist-c", "cifar10-c"])
def test_an_image_depends_on_itself_and_its_number_only(benchmark):
    x, order = images(benchmark), np.random.default_rng(1).permutation(8)
    for kind in table_of(benchmark):
        together = of(benchmark, kind, 4, x)
        assert together.tobytes() == of(benchmark, kind, 4, x).tobytes(), kind
        assert together[order].tobytes() == of(benchmark, kind, 4, x[order], order).tobytes(), kind
        assert together[[3]].tobytes() == of(benchmark, kind, 4, x[[3]], np.array([3])).tobytes(), kind


def test_noise_has_the_published_laws():
    """On a grey of 0.5, far enough from 0 and 1 for the first severities to be clipped next to never."""
    x = np.full((40, 3, 32, 32), 0.5, np.float32)
    for kind, severity, sd in (("gaussian-noise", 1, 0.08), ("speckle-noise", 2, 0.5 * 0.2)):
        noise = (of("imagenet-c", kind, severity, x) - x).ravel()
        assert stats.kstest(noise, stats.norm(scale=sd).cdf).pvalue > FALSE_ALARM
    photons = np.rint(of("imagenet-c", "shot-noise", 1, x) * 60).astype(int).ravel()
    counts = np.bincount(photons, minlength=61)[15:46]
    expected = stats.poisson(30).pmf(np.arange(15, 46))
    assert stats.chisquare(counts, expected / expected.sum() * counts.sum()).pvalue > FALSE_ALARM
    found = of("imagenet-c", "impulse-noise", 4, x)
    for value in (0, 1):
        assert stats.binomtest(int((found == value).sum()), found.size, 0.17 / 2).pvalue > FALSE_ALARM


@pytest.mark.parametrize("benchmark", ["imagenet-c", "cifar10-c"])
def test_colours_are_those_of_colorsys(benchmark):
    """Hue, saturation and value, and grey pixels with what is published of them: saturation makes them red."""
    x = np.random.default_rng(2).random((1, 3, 6, 6)).astype(np.float32)
    x[0, :, 0, 0], x[0, :, 0, 1] = 0.0, 0.4
    for severity in range(1, 6):
        (plus,) = table_of(benchmark)["brightness"][1][severity - 1]
        factor, more = table_of(benchmark)["saturate"][1][severity - 1]
        hsv = [colorsys.rgb_to_hsv(*pixel) for pixel in x[0].reshape(3, -1).T.astype(float)]
        brighter = [colorsys.hsv_to_rgb(h, s, min(v + plus, 1)) for h, s, v in hsv]
        stronger = [colorsys.hsv_to_rgb(h, min(s * factor + more, 1), v) for h, s, v in hsv]
        for kind, expected in (("brightness", brighter), ("saturate", stronger)):
            found = of(benchmark, kind, severity, x)[0].reshape(3, -1).T
            np.testing.assert_allclose(found, expected, atol=1e-6, err_msg=kind)


def test_contrast_keeps_each_channels_mean():
    x = images("cifar10-c")
    found = of("cifar10-c", "contrast", 5, x)
    np.testing.assert_allclose(found.mean(axis=(2, 3)), x.mean(axis=(2, 3)), atol=1e-5)
    np.testing.assert_allclose(np.ptp(found, axis=(2, 3)), 0.15 * np.ptp(x, axis=(2, 3)), rtol=1e-4)


def test_maps_of_the_plane_are_those_of_pillow():
    """Pixel centres are at whole numbers here and at halves there; compared where all four neighbours are inside."""
    x = images("mnist-c", 3)
    sine, cosine = np.sin(0.6), np.cos(0.6)
    # (a, b, d, e): the old place of column and row, about the centre.
    sheared = [(1, -sign * sine, 0, cosine, 0, 0) for sign in (1, -1)]
    moved = [(1, 0, 0, 1, 3 * right, 3 * down) for right in (1, -1) for down in (1, -1)]
    cases = (("shear", 3, sheared), ("scale", 5, [(2, 0, 0, 2, 0, 0)]), ("translate", 3, moved))
    for kind, severity, candidates in cases:
        for image, found in zip(x, of("mnist-c", kind, severity, x), strict=True):
            errors = []
            for a, b, d, e, right, down in candidates:
                numbers = (a, b, 14 - 14 * (a + b) + right, d, e, 14 - 14 * (d + e) + down)
                there = Image.fromarray(image[0]).transform((28, 28), Image.Transform.AFFINE, numbers, Image.BILINEAR)
                errors.append(np.abs(np.asarray(there) - found[0])[6:22, 6:22].max())
            assert min(errors) < 1e-3, (kind, errors)


def test_glass_blur_moves_pixels_and_keeps_their_sum():
    x = np.zeros((4, 1, 28, 28), np.float32)
    x[:, :, 10:18, 10:18] = 1
    found = of("mnist-c", "glass-blur", 3, x)
    np.testing.assert_allclose(found.sum(axis=(1, 2, 3)), 64, rtol=1e-3)


def test_fog_is_the_published_formula_at_its_ends():
    """(x + c fog) max / (max + c): a black image stays black, a white one has at least 1 / (1 + c)."""
    white, black = np.ones((3, 1, 28, 28), np.float32), np.zeros((3, 1, 28, 28), np.float32)
    assert np.all(of("mnist-c", "fog", 5, black) == 0)  # the brightest pixel is 0, by which all is multiplied
    found = of("mnist-c", "fog", 5, white)
    assert found.min() >= 1 / 4


@pytest.mark.parametrize(
    "make",
    [
        lambda: Corruption("frost", 1),
        lambda: Corruption("fog", 6),
        lambda: Corruption("fog", -1),
        lambda: Corruption("fog", 1, "mnist"),
        lambda: Corruption("fog", 1, "cifar10-c"),
        lambda: CorruptionShift(kinds=("fog", "fog")),
        lambda: CorruptionShift(severities=()),
        lambda: Corruption("fog", 1).apply(np.zeros((1, 3, 8, 8), np.float32), index=np.zeros(1, int)),
        lambda: Corruption("fog", 1).apply(np.zeros((1, 64), np.float32), index=np.zeros(1, int)),
    ],
)
def test_bad_input_is_refused(make):
    with pytest.raises(ValueError, match="must"):
        make()


def test_clients_are_draws_of_angle_and_corruption():
    shifts = (RotationShift((0.0, 30.0)), CorruptionShift(severities=(1, 5)))
    population = Population(PopulationSpec(shifts=shifts, examples_per_client=5))
    assert len(population.versions) == 2 * 9 * 2
    assert chained((Rotation(30.0), Corruption("shear", 5))) in population.versions
    index, version = population.client_rows(4)
    assert len(set(version)) == 1
    expected = population.versions[version[0]].apply(population.data.x_pool[index], index=index)
    assert population.client(4).x.tobytes() == expected.tobytes()
