"""Versions of images beside Pillow, PyTorch and SciPy, which resize, weigh colours and rotate in their own ways."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage
from torch.nn.functional import interpolate

from worlds.versions import Chain, Colour, Original, Resolution, Rotation, chained

ROUNDING = 1e-6  # of float32 in the others
VERSIONS = (
    Original(),
    Resolution(3),
    Resolution(12),
    Colour(0.3),
    Rotation(-33.3),
    Chain((Resolution(5), Colour(0.5))),
)


def images(num_images=7, *, side=8, channels=3, seed=0):
    return np.random.default_rng(seed).random((num_images, channels, side, side), dtype=np.float32)


def seen(version, x):
    return version.apply(x, index=np.arange(len(x)))


@pytest.mark.parametrize("side", [8, 28, 32])
def test_a_resolution_is_an_antialiased_bilinear_resize_and_back(side):
    x = images(side=side)
    for size in (2, 5, side - 1, side + 4):
        found = seen(Resolution(size), x)
        small = interpolate(torch.from_numpy(x).double(), size=(size, size), mode="bilinear", antialias=True)
        back = interpolate(small, size=(side, side), mode="bilinear", antialias=True)
        np.testing.assert_allclose(found, back.numpy(), atol=ROUNDING)
        pillow = Image.fromarray(x[0, 0]).resize((size, size), Image.Resampling.BILINEAR)
        pillow = pillow.resize((side, side), Image.Resampling.BILINEAR)
        np.testing.assert_allclose(found[0, 0], np.asarray(pillow), atol=ROUNDING)


def test_the_size_of_the_image_the_colours_as_they_are_and_no_angle_change_nothing():
    x = images()
    for version in (Original(), Resolution(8), Colour(1.0), Rotation(0.0)):
        np.testing.assert_array_equal(seen(version, x), x)


def test_images_that_are_not_square_keep_their_shape():
    x = images()[:, :, :6]
    small = interpolate(torch.from_numpy(x).double(), size=(4, 4), mode="bilinear", antialias=True)
    back = interpolate(small, size=(6, 8), mode="bilinear", antialias=True)
    np.testing.assert_allclose(seen(Resolution(4), x), back.numpy(), atol=ROUNDING)
    assert seen(Rotation(30), x).shape == x.shape


def test_grey_is_the_luma_of_pillow_and_shares_blend():
    levels = np.random.default_rng(1).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    x = (levels / np.float32(255)).transpose(0, 3, 1, 2)
    for k, image in enumerate(levels):
        pillow = np.asarray(Image.fromarray(image).convert("L"))
        for channel in seen(Colour(0), x)[k]:
            np.testing.assert_allclose(channel * 255, pillow, atol=0.51)  # Pillow's are whole numbers
    grey, half = seen(Colour(0), x), seen(Colour(0.5), x)
    np.testing.assert_allclose(half, (grey + x) / 2, atol=ROUNDING)


@pytest.mark.parametrize("degrees", [15, -33.3, 75, 180])
def test_a_rotation_is_bilinear_with_zeros_beyond_the_border(degrees):
    x = images(side=28)
    expected = ndimage.rotate(
        x.astype(float), degrees, axes=(2, 3), reshape=False, order=1, mode="grid-constant", prefilter=False
    )
    np.testing.assert_allclose(seen(Rotation(degrees), x), expected, atol=ROUNDING)


def test_a_quarter_turn_is_counter_clockwise():
    x = images()
    np.testing.assert_allclose(seen(Rotation(90), x), np.rot90(x, axes=(2, 3)), atol=ROUNDING)


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_an_image_becomes_the_same_alone_and_in_a_batch(version):
    x = images(301)
    together = seen(version, x)
    assert together.dtype == np.float32
    assert together is not x
    assert together.min() >= 0
    assert together.max() <= 1
    for k in range(0, 301, 50):
        alone = version.apply(x[k : k + 1], index=np.array([k]))
        np.testing.assert_array_equal(alone[0], together[k])


def test_versions_are_known_by_their_names_and_values():
    assert [version.name for version in VERSIONS] == [
        "original",
        "resolution-3",
        "resolution-12",
        "colour-0.3",
        "rotation--33.3",
        "resolution-5+colour-0.5",
    ]
    assert {Resolution(5), Resolution(5), Colour(0.3)} == {Resolution(5), Colour(0.3)}


def test_a_chain_applies_its_parts_in_their_order():
    x = images()
    one, other = Resolution(3), Rotation(45)
    both = chained([one, Original(), other])
    np.testing.assert_array_equal(seen(both, x), seen(other, seen(one, x)))
    assert not np.allclose(seen(both, x), seen(chained([other, one]), x))
    assert chained([both, Colour(0)]) == Chain((one, other, Colour(0)))
    assert chained([Original(), one]) == one
    assert chained([Original(), Original()]) == Original()


def test_colour_after_resolution_commutes_up_to_rounding():
    x = images(side=32)
    one, other = Resolution(14), Colour(0.28)
    np.testing.assert_allclose(seen(chained([one, other]), x), seen(chained([other, one]), x), atol=ROUNDING)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (lambda: Resolution(0), "size of a resolution must be a whole number of at least 1, got 0; give"),
        (lambda: Resolution(2.5), "got 2.5; give"),
        (lambda: Colour(1.1), "share of colour must be .* <= 1, got 1.1; 0 is grey"),
        (lambda: Rotation(np.nan), "degrees must be a finite number .*; give an angle"),
        (lambda: seen(Colour(0.5), images(channels=1)), "colour-0.5 must have images of three channels, got 1; leave"),
        (lambda: seen(Rotation(5), np.zeros((3, 4), np.float32)), r"rotation-5 must have images .* got shape \(3, 4\)"),
    ],
)
def test_what_is_no_version_says_why(version, message):
    with pytest.raises(ValueError, match=message):
        version()
