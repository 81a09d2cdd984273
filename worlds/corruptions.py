"""Common corruptions of images, each in five severities: MNIST-C, ImageNet-C and CIFAR-10-C as versions of a pool.

Kinds, formulas and parameters are those of the authors' programs, read in November 2026:

* MNIST-C (Mu and Gilmer 2019): `corruptions.py` of github.com/google-research/mnist-c, for 28 x 28 grey images; the
  nine kinds that [DG] §D.3 used.
* ImageNet-C (Hendrycks and Dietterich 2019): `ImageNet-C/create_c/make_imagenet_c.py` of
  github.com/hendrycks/robustness, for 224 x 224 colour images; the twelve kinds of [DG] §D.3.
* CIFAR-10-C: `make_cifar_c.py` beside it, the same twelve with its parameters for 32 x 32 colour images.

The code is ours, on numpy and scipy alone, and differs from theirs where this is said:

* Nothing is rounded to 256 levels, and nothing is compressed as JPEG.
* Lengths (blurs, shifts, patches) are theirs in units of the side of their images, so images of every size are
  corrupted alike. On images much smaller than theirs, lengths below a pixel do next to nothing: the blurs of ImageNet-C
  at 32 x 32, for which its authors made CIFAR-10-C. The elastic transform has the side in its own formula.
* Glass blur: their filter takes a grey image for one row of colours and blurs columns only; ours blurs both ways.
* Spatter: the water of the first three severities on colour images has no relief (theirs embosses its edges).
* Defocus: the edge of the disk is drawn by area, not pixel by pixel. Zoom blur: about the exact centre.
* An image has one draw for all severities of a kind, so that they differ in strength only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from zlib import crc32

import numpy as np
import scipy  # its ndimage is slow to load, and loads at its first use
from numpy.typing import NDArray

from protocol.checks import checked_count
from worlds.shifts import OneVersionShift
from worlds.versions import ImageVersion, check_images

Array = NDArray[np.float64]
Border = Literal["constant", "mirror", "reflect"]
Rngs = Sequence[np.random.Generator]
Function = Callable[..., Array]
"""From images (num, C, H, W) in [0, 1], a generator for each, the side of an image in units of the side that the
parameters are for, and a severity's parameters, to images of the same shape, clipped afterwards."""

_SPATIAL = (2, 3)
_FOG_SIDE, _FOG_CORNER = 256, 28  # a map of this size is drawn, and this corner of it is the fog
_CHUNK = 64  # images at a time: a fog map takes half a megabyte


@dataclass(frozen=True)
class Corruption(ImageVersion):
    """The image under one corruption.

    An image depends on its own pixels, its number and the kind alone; `severity` is 0, which leaves images as they are,
    to 5. `benchmark` is a name in `BENCHMARKS`, `kind` one in its table.
    """

    kind: str
    severity: int
    benchmark: str = "mnist-c"

    def __post_init__(self) -> None:
        table = table_of(self.benchmark)
        if self.kind not in table:
            raise ValueError(
                f"kind of {self.benchmark} must be one of {', '.join(table)}, got {self.kind!r}; see BENCHMARKS"
            )
        checked_count("severity", self.severity, minimum=0, remedy="0 is the image itself, 5 the strongest")
        if self.severity > 5:
            raise ValueError(f"severity must be at most 5, got {self.severity}; there are no parameters beyond")

    @property
    def name(self) -> str:
        """Such as "fog-3"."""
        return f"{self.kind}-{self.severity}"

    def apply(self, x: NDArray[np.float32], *, index: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the corrupted images, in [0, 1].

        Raises ValueError unless they have height and width, and the channels of the benchmark: one for MNIST-C, else
        three.
        """
        check_images(x, self.name)
        num_channels = 1 if self.benchmark == "mnist-c" else 3
        if x.shape[1] != num_channels:
            raise ValueError(
                f"{self.name} of {self.benchmark} must have images of {num_channels} channel(s), got {x.shape[1]}; "
                "mnist-c is for grey images, imagenet-c and cifar10-c are for colour"
            )
        if self.severity == 0:
            return x.copy()
        function, severities = table_of(self.benchmark)[self.kind]
        scale = x.shape[2] / BENCHMARKS[self.benchmark][1]
        found = np.empty_like(x)
        for start in range(0, len(x), _CHUNK):
            part = slice(start, start + _CHUNK)
            rngs = [_rng(self.kind, int(number)) for number in index[part]]
            found[part] = function(x[part].astype(np.float64), rngs, scale, *severities[self.severity - 1]).clip(0, 1)
        return found


@dataclass(frozen=True)
class CorruptionShift(OneVersionShift):
    """Each client sees all its images under one corruption: a kind and a severity of its own, all equally likely.

    With a `worlds.shifts.RotationShift` before it a client is a draw of (angle, corruption). `kinds` () are all of the
    benchmark; see `Corruption`.
    """

    kinds: tuple[str, ...] = ()
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)
    benchmark: str = "mnist-c"

    def __post_init__(self) -> None:
        for name, given in (("kinds", self.kinds), ("severities", self.severities)):
            if len(set(given)) < len(given) or (name == "severities" and not given):
                raise ValueError(f"{name} must be different ones, got {given!r}; name each once")
        _ = self.versions  # each corruption checks itself

    @property
    def versions(self) -> tuple[ImageVersion, ...]:
        """One for each kind and severity, the severities of a kind one after the other."""
        kinds = self.kinds or tuple(table_of(self.benchmark))
        return tuple(Corruption(kind, severity, self.benchmark) for kind in kinds for severity in self.severities)


def corruption_shift(text: str, severities: tuple[int, ...] = (1, 2, 3, 4, 5)) -> CorruptionShift:
    """Return the shift that a text names: "mnist-c", all kinds of a benchmark, or "mnist-c:fog,shear", some of them.

    Raises ValueError for other texts, and as `CorruptionShift`.
    """
    benchmark, separator, names = text.partition(":")
    kinds = tuple(name.strip() for name in names.split(",")) if separator else ()
    return CorruptionShift(kinds, severities, benchmark.strip())


def table_of(benchmark: str) -> Table:
    """Return the table of a benchmark, from kinds to functions and parameters; raises ValueError if there is none."""
    if benchmark not in BENCHMARKS:
        raise ValueError(f"benchmark must be one of {', '.join(BENCHMARKS)}, got {benchmark!r}; choose one of them")
    return BENCHMARKS[benchmark][0]


def _rng(kind: str, number: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(crc32(kind.encode()), spawn_key=(number,)))


def _drawn(rngs: Rngs, draw: Callable[[np.random.Generator], object]) -> Array:
    """Return what each image's own generator draws, stacked."""
    return np.stack([np.asarray(draw(rng), dtype=np.float64) for rng in rngs])


# Noise. ------------------------------------------------------------------------------------------------------------


def _gaussian_noise(x: Array, rngs: Rngs, scale: float, sd: float) -> Array:
    return x + sd * _drawn(rngs, lambda rng: rng.standard_normal(x.shape[1:]))


def _shot_noise(x: Array, rngs: Rngs, scale: float, photons: float) -> Array:
    return np.stack([rng.poisson(image * photons) / photons for image, rng in zip(x, rngs, strict=True)])


def _impulse_noise(x: Array, rngs: Rngs, scale: float, share: float) -> Array:
    coin = _drawn(rngs, lambda rng: rng.random(x.shape[1:]))
    return np.where(coin < share / 2, 1.0, np.where(coin > 1 - share / 2, 0.0, x))


def _speckle_noise(x: Array, rngs: Rngs, scale: float, sd: float) -> Array:
    return x + x * sd * _drawn(rngs, lambda rng: rng.standard_normal(x.shape[1:]))


# Blur. -------------------------------------------------------------------------------------------------------------


def _gaussian_blur(x: Array, rngs: Rngs, scale: float, sigma: float) -> Array:
    return _blurred(x, sigma * scale)


def _glass_blur(x: Array, rngs: Rngs, scale: float, sigma: float, pixels: float, num_passes: float) -> Array:
    """Blur, swap half of the pixels with one nearby, in reading order from the end, and blur again."""
    reach = max(round(pixels * scale), 1)
    x, side = _blurred(x, sigma * scale), x.shape[2]
    each = np.arange(len(x))
    places = [(h, w) for h in range(side - reach, reach, -1) for w in range(side - reach, reach, -1)]
    for _ in range(int(num_passes)):
        steps = np.stack([rng.integers(-reach, reach, (2, len(places))) for rng in rngs])
        is_swapped = np.stack([rng.random(len(places)) < 0.5 for rng in rngs])
        for number, (h, w) in enumerate(places):
            down, right = np.where(is_swapped[:, number], steps[:, :, number].T, 0)
            there = x[each, :, h + down, w + right]
            x[each, :, h + down, w + right] = x[each, :, h, w]
            x[each, :, h, w] = there
    return _blurred(x, sigma * scale)


def _defocus_blur(x: Array, rngs: Rngs, scale: float, radius: float, alias: float) -> Array:
    radius, alias = radius * scale, alias * scale
    kernel = scipy.ndimage.gaussian_filter(_disk(radius), alias, truncate=1 / max(alias, 1e-3), mode="constant")
    return scipy.ndimage.convolve(x, (kernel / kernel.sum())[None, None], mode="mirror")


def _zoom_blur(x: Array, rngs: Rngs, scale: float, end: float, step: float) -> Array:
    """Mean of the image, counted twice, and of enlargements up to a factor."""
    factors = np.arange(1, end, step)
    total = x.copy()
    for factor in factors:
        total += _enlarged(_enlarged(x, factor, axis=2), factor, axis=3)
    return total / (len(factors) + 1)


def _enlarged(x: Array, factor: float, *, axis: int) -> Array:
    """Enlarge about the centre along one axis, interpolated linearly."""
    size = x.shape[axis]
    at = (np.arange(size) - (size - 1) / 2) / factor + (size - 1) / 2
    low = np.clip(at.astype(int), 0, size - 2)
    share = (at - low).reshape([-1 if each == axis else 1 for each in range(4)])
    return np.asarray(x.take(low, axis) * (1 - share) + x.take(low + 1, axis) * share)


def _blurred(x: Array, sigma: float) -> Array:
    return scipy.ndimage.gaussian_filter(x, sigma, axes=_SPATIAL, mode="nearest")


def _disk(radius: float) -> Array:
    """Return the shares of pixels that lie in a disk around the middle one, with a pixel of margin."""
    num_fine, reach = 9, int(np.ceil(radius)) + 1
    fine = (np.arange((2 * reach + 1) * num_fine) + 0.5) / num_fine - reach - 0.5
    inside = (fine[:, None] ** 2 + fine**2 <= max(radius, 0.5) ** 2).astype(np.float64)
    size = 2 * reach + 1
    shares: Array = inside.reshape(size, num_fine, size, num_fine).mean(axis=(1, 3))
    return shares


# Geometry. ---------------------------------------------------------------------------------------------------------


def _shear(x: Array, rngs: Rngs, scale: float, angle: float) -> Array:
    angles = angle * _signs(rngs)[:, 0]
    return _mapped(x, [np.array([[np.cos(each), 0], [-np.sin(each), 1]]) for each in angles])


def _scale(x: Array, rngs: Rngs, scale: float, share: float) -> Array:
    return _mapped(x, [np.eye(2) / share] * len(x))


def _translate(x: Array, rngs: Rngs, scale: float, pixels: float) -> Array:
    return _mapped(x, [np.eye(2)] * len(x), pixels * scale * _signs(rngs))


def _elastic_transform(x: Array, rngs: Rngs, scale: float, height: float, sigma: float, jitter: float) -> Array:
    """Move three points at random, which gives an affine map, and then every pixel, by a smooth random field."""
    side, is_grey = x.shape[2], x.shape[1] == 1
    height, sigma, jitter = (side * share for share in (height, sigma, jitter))
    pixels = np.indices(x.shape[2:]).reshape(2, -1)
    borders: tuple[Border, Border] = ("constant", "constant") if is_grey else ("mirror", "reflect")
    found = np.empty_like(x)
    for number, (image, rng) in enumerate(zip(x, rngs, strict=True)):
        matrix, offset = _jittered(side, rng.uniform(-jitter, jitter, (3, 2)))
        noise = rng.uniform(-1, 1, (2, *x.shape[2:]))
        field = height * scipy.ndimage.gaussian_filter(noise, sigma, axes=(1, 2), mode="reflect", truncate=3)
        at = pixels + field.reshape(2, -1)
        for channel, before in enumerate(image):
            moved = scipy.ndimage.affine_transform(before, matrix, offset, order=1, mode=borders[0])
            after = scipy.ndimage.map_coordinates(moved, at, order=1, mode=borders[1])
            found[number, channel] = after.reshape(x.shape[2:])
    return found


def _jittered(side: int, steps: Array) -> tuple[Array, Array]:
    """Return matrix and offset of the map, from pixels of the new image to the old, that moves three points."""
    reach, centre = side // 3, side // 2
    before = centre + reach * np.array([[1, 1], [1, -1], [-1, -1]])
    after = np.column_stack([before + steps, np.ones(3)])
    found = np.linalg.lstsq(after, before, rcond=None)[0]  # three points that fell on a line have no map of their own
    return found[:2].T, found[2]


def _signs(rngs: Rngs) -> Array:
    return _drawn(rngs, lambda rng: rng.choice([-1, 1], 2))


def _mapped(x: Array, matrices: Sequence[Array], steps: Array | None = None) -> Array:
    """Return images whose pixel at p is the old one at matrix @ (p - centre) + centre + step; black where that is off.

    Interpolated linearly, as theirs. Rows come before columns.
    """
    centre = (np.array(x.shape[2:]) - 1) / 2
    steps = np.zeros((len(x), 2)) if steps is None else steps
    found = np.empty_like(x)
    for number, (image, matrix, step) in enumerate(zip(x, matrices, steps, strict=True)):
        offset = centre - matrix @ centre + step
        found[number] = [scipy.ndimage.affine_transform(channel, matrix, offset, order=1) for channel in image]
    return found


# Weather and colour. -----------------------------------------------------------------------------------------------


def _fog(x: Array, rngs: Rngs, scale: float, strength: float, decay: float) -> Array:
    # One at a time: a map fits into a cache, sixty do not.
    maps = [_plasma(rng, decay)[:_FOG_CORNER, :_FOG_CORNER] for rng in rngs]
    fog = scipy.ndimage.zoom(
        np.stack(maps)[:, None], (1, 1, x.shape[2] / _FOG_CORNER, x.shape[3] / _FOG_CORNER), order=1
    )
    brightest = x.max(axis=(1, 2, 3), keepdims=True)
    found: Array = (x + strength * fog) * brightest / (brightest + strength)
    return found


def _plasma(rng: np.random.Generator, decay: float) -> Array:
    """Return a height map (256, 256) in [0, 1] on a torus: midpoints, moved at random, of diamonds and squares."""
    heights = np.zeros((_FOG_SIDE, _FOG_SIDE))
    step, roughness = _FOG_SIDE, 100.0

    def middle(total: Array) -> Array:
        return total / 4 + rng.uniform(-(roughness**2), roughness**2, total.shape)

    while step >= 2:
        half = step // 2
        corners = heights[::step, ::step]
        pairs = corners + np.roll(corners, -1, axis=0)
        centres = middle(pairs + np.roll(pairs, -1, axis=1))
        heights[half::step, half::step] = centres
        sides = corners + np.roll(corners, -1, axis=1)
        heights[::step, half::step] = middle(centres + np.roll(centres, 1, axis=0) + sides)
        heights[half::step, ::step] = middle(centres + np.roll(centres, 1, axis=1) + pairs)
        step, roughness = half, roughness / decay
    heights -= heights.min()
    return np.asarray(heights / heights.max())


def _spatter(x: Array, rngs: Rngs, scale: float, *parameters: float) -> Array:
    """Drops of water (colour images, the last parameter 0) or mud, where smooth noise exceeds a threshold."""
    mean, sd, sigma, threshold, last, is_mud = parameters
    noise = _drawn(rngs, lambda rng: rng.standard_normal(x.shape[2:]))[:, None]
    # White noise on a coarser grid must be weaker for drops of the same share.
    liquid = mean + sd * min(scale, 1.0) * _blurred(noise, sigma * scale)
    if is_mud or x.shape[1] == 1:
        share = _blurred((liquid > threshold).astype(np.float64), last * scale)
        share = np.where(share < 0.8, 0.0, share)
        return x * (1 - share) + share * _colour(_MUD, x)
    drops = np.where(liquid < threshold, 0.0, liquid)
    return np.asarray(
        x + last * drops / np.maximum(drops.max(axis=_SPATIAL, keepdims=True), 1e-12) * _colour(_WATER, x)
    )


_MUD, _WATER = (63, 42, 20), (175, 238, 238)


def _colour(levels: tuple[int, ...], x: Array) -> Array:
    return np.array(levels[: x.shape[1]])[:, None, None] / 255


def _contrast(x: Array, rngs: Rngs, scale: float, share: float) -> Array:
    mean = x.mean(axis=_SPATIAL, keepdims=True)
    found: Array = (x - mean) * share + mean
    return found


def _brightness(x: Array, rngs: Rngs, scale: float, plus: float) -> Array:
    """Add to the value of HSV: hue and saturation stay, so the colours are scaled alike; black becomes grey."""
    value = x.max(axis=1, keepdims=True)
    brighter = (value + plus).clip(0, 1)
    return np.asarray(np.where(value > 0, x * brighter / np.where(value > 0, value, 1), brighter))


def _saturate(x: Array, rngs: Rngs, scale: float, factor: float, plus: float) -> Array:
    """Scale the saturation of HSV and add to it; grey has hue 0, so what is added makes it red, as theirs does."""
    value = x.max(axis=1, keepdims=True)
    spread = value - x.min(axis=1, keepdims=True)
    saturation = spread / np.where(value > 0, value, 1)
    found = (saturation * factor + plus).clip(0, 1)
    lack = np.where(spread > 0, (value - x) / np.where(spread > 0, spread, 1), np.array([0, 1, 1])[:, None, None])
    return np.asarray(value - lack * found * value)


# The published parameters. -----------------------------------------------------------------------------------------

Table = Mapping[str, tuple[Function, tuple[tuple[float, ...], ...]]]

_SHOT = (_shot_noise, ((60,), (25,), (12,), (5,), (3,)))
_IMPULSE = (_impulse_noise, ((0.03,), (0.06,), (0.09,), (0.17,), (0.27,)))
_SPATTER = (
    _spatter,
    (
        (0.65, 0.3, 4, 0.69, 0.6, 0),
        (0.65, 0.3, 3, 0.68, 0.6, 0),
        (0.65, 0.3, 2, 0.68, 0.5, 0),
        (0.65, 0.3, 1, 0.65, 1.5, 1),
        (0.67, 0.4, 1, 0.65, 1.5, 1),
    ),
)
_ELASTIC = (
    _elastic_transform,
    ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)),
)

MNIST_C: Table = {
    "shot-noise": _SHOT,
    "impulse-noise": _IMPULSE,
    "glass-blur": (_glass_blur, ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2))),
    "shear": (_shear, ((0.2,), (0.4,), (0.6,), (0.8,), (1.0,))),
    "scale": (_scale, ((0.9,), (0.8,), (0.7,), (0.6,), (0.5,))),
    "translate": (_translate, ((1,), (2,), (3,), (4,), (5,))),
    "fog": (_fog, ((1.5, 2), (2.0, 2), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))),
    "spatter": _SPATTER,
    "elastic-transform": _ELASTIC,
}
IMAGENET_C: Table = {
    "gaussian-noise": (_gaussian_noise, ((0.08,), (0.12,), (0.18,), (0.26,), (0.38,))),
    "shot-noise": _SHOT,
    "impulse-noise": _IMPULSE,
    "speckle-noise": (_speckle_noise, ((0.15,), (0.2,), (0.35,), (0.45,), (0.6,))),
    "gaussian-blur": (_gaussian_blur, ((1,), (2,), (3,), (4,), (6,))),
    "defocus-blur": (_defocus_blur, ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))),
    "zoom-blur": (_zoom_blur, ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))),
    "spatter": _SPATTER,
    "contrast": (_contrast, ((0.4,), (0.3,), (0.2,), (0.1,), (0.05,))),
    "brightness": (_brightness, ((0.1,), (0.2,), (0.3,), (0.4,), (0.5,))),
    "saturate": (_saturate, ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2))),
    "elastic-transform": _ELASTIC,
}
CIFAR10_C: Table = {
    "gaussian-noise": (_gaussian_noise, ((0.04,), (0.06,), (0.08,), (0.09,), (0.1,))),
    "shot-noise": (_shot_noise, ((500,), (250,), (100,), (75,), (50,))),
    "impulse-noise": (_impulse_noise, ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,))),
    "speckle-noise": (_speckle_noise, ((0.06,), (0.1,), (0.12,), (0.16,), (0.2,))),
    "gaussian-blur": (_gaussian_blur, ((0.4,), (0.6,), (0.7,), (0.8,), (1,))),
    "defocus-blur": (_defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "zoom-blur": (_zoom_blur, ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01))),
    "spatter": (
        _spatter,
        (
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ),
    ),
    "contrast": (_contrast, ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,))),
    "brightness": (_brightness, ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,))),
    "saturate": (_saturate, ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))),
    "elastic-transform": (
        _elastic_transform,
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    ),
}

BENCHMARKS: Mapping[str, tuple[Table, int]] = {
    "mnist-c": (MNIST_C, 28),
    "imagenet-c": (IMAGENET_C, 224),
    "cifar10-c": (CIFAR10_C, 32),
}
"""Tables by name, from kinds to functions and the parameters of severities 1 .. 5, and the side that they are for."""
