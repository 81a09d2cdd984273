"""Shifts: what makes one client's distribution differ from the next client's.

A `Shift` is a distribution from which every client draws its own `DrawnShift`: class proportions, a mixture of
versions of the images, a map of the images, or all of them. A new kind of shift is one frozen dataclass with one
method, `draw`, and with the property `versions` if it has any.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from protocol.checks import checked_count, checked_number
from worlds.versions import Colour, ImageVersion, Original, Resolution, Rotation, chained, check_images

Transform = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""A map of a batch of images (num_examples, *x_shape) to images of the same shape."""


@dataclass(frozen=True, eq=False)
class DrawnShift:
    """The shift of one client."""

    class_weights: NDArray[np.float64] | None = None
    """Probability of each class, shape (num_classes,), summing to 1; None keeps those of the pool."""
    transform: Transform | None = None
    """Map of the images, the same for all images of the client; None keeps them as they are."""
    versions: tuple[ImageVersion, ...] = ()
    """Each example is one image in one of these versions, drawn independently of its label; the transform comes after.
    () for the images as they are."""
    version_weights: NDArray[np.float64] | None = None
    """Probability of each version, (num_versions,), summing to 1; None if there are none."""

    @property
    def versions_or_original(self) -> tuple[ImageVersion, ...]:
        """The versions, at least one."""
        return self.versions or (Original(),)

    @property
    def weights_of_versions(self) -> NDArray[np.float64]:
        """Probability of each of `versions_or_original`."""
        return np.ones(1) if self.version_weights is None else self.version_weights

    def draw_versions(self, rng: np.random.Generator, num_examples: int) -> NDArray[np.intp]:
        """Draw the version of each of some examples, (num_examples,); without versions nothing is drawn."""
        if self.version_weights is None:
            return np.zeros(num_examples, dtype=np.intp)
        return np.asarray(rng.choice(len(self.versions), size=num_examples, p=self.version_weights), dtype=np.intp)

    def seen(
        self, x: NDArray[np.float32], *, index: NDArray[np.intp], version: NDArray[np.intp]
    ) -> NDArray[np.float32]:
        """Return images of a pool as the client sees them, each in a version and after the transform, as a new array.

        `x` has all images of the pool, (num_images, *x_shape); `index` and `version`, (num_examples,), are the number
        of each image in the pool, and of its version in `versions_or_original`.
        """
        chosen = x[index]
        for number, each in enumerate(self.versions):
            rows = np.flatnonzero(version == number)
            if len(rows):
                chosen[rows] = each.apply(chosen[rows], index=index[rows])
        return self.moved(chosen)

    def moved(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the images `x` (num_examples, *x_shape) after this client's transform, as a new array."""
        return x.copy() if self.transform is None else self.transform(x)

    def example_weights(self, y: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the probability of each example, (num_examples,), that gives the classes their weights.

        Within a class all examples are equally likely; the weights sum to 1. Raises ValueError if no example belongs to
        a class of positive weight.
        """
        if self.class_weights is None:
            return np.full(len(y), 1 / len(y))
        counts = np.bincount(y, minlength=len(self.class_weights))
        weights: NDArray[np.float64] = self.class_weights[y] / counts[y]
        total = float(weights.sum())
        if total <= 0:
            raise ValueError(
                "at least one class of positive weight must have examples, "
                f"got examples of the classes {np.flatnonzero(counts).tolist()} only; "
                "give examples of every class, or a larger concentration"
            )
        return weights / total


class Shift(ABC):
    """A distribution of shifts. Subclasses are frozen dataclasses that write `draw`."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, *, x_shape: tuple[int, ...], num_classes: int) -> DrawnShift:
        """Draw the shift of one client, for images of shape `x_shape` and labels 0 .. num_classes − 1."""

    @property
    def versions(self) -> tuple[ImageVersion, ...]:
        """The versions of every shift that is drawn, in their order; () if it has none."""
        return ()

    def reversed(self) -> Shift:
        """Return the shift of the target network: of what is rare here there is much; itself if it has no reverse."""
        return self

    def apply(
        self, x: NDArray[np.float32], y: NDArray[np.int64], rng: np.random.Generator
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Draw one shift and return the examples under it, as many as were given.

        `x` has shape (num_examples, *x_shape), `y` (num_examples,). Where the shift changes the class proportions, the
        examples are drawn again with replacement. Raises ValueError if there are no examples, or not as many images as
        labels.
        """
        check_pairs(x, y)
        drawn = self.draw(rng, x_shape=x.shape[1:], num_classes=int(y.max()) + 1)
        if drawn.class_weights is not None:
            index = rng.choice(len(y), size=len(y), p=drawn.example_weights(y))
            x, y = x[index], y[index]
        return drawn.seen(x, index=np.arange(len(y)), version=drawn.draw_versions(rng, len(y))), y.copy()


@dataclass(frozen=True)
class AffineShift(Shift):
    """Each client sees its images through its own affine map, x → (I + A)x + B on the flattened image.

    A_ij ~ N(0, sigma²/d) and B_i ~ N(0, sigma²), all independent, with d the number of pixels: then ‖Ax‖ ≈ sigma·‖x‖
    whatever the size of the image. `sigma` lies in [0, 1e6]; with 0 the images are unchanged. The result is not clipped
    to [0, 1], so that the map stays affine.
    """

    sigma: float

    def __post_init__(self) -> None:
        checked_number("sigma", self.sigma, minimum=0, maximum=1e6, remedy="give 0 for no affine shift")

    def draw(self, rng: np.random.Generator, *, x_shape: tuple[int, ...], num_classes: int) -> DrawnShift:
        """Draw A (d, d), then B (d,), for d pixels; `num_classes` plays no part."""
        if self.sigma == 0:
            return DrawnShift()
        size = checked_count("the number of pixels", int(np.prod(x_shape)), minimum=1, remedy="check x_shape")
        matrix = self.sigma / np.sqrt(size) * rng.standard_normal((size, size))
        offset = self.sigma * rng.standard_normal(size)
        return DrawnShift(transform=_affine_transform(matrix, offset))


@dataclass(frozen=True)
class DirichletLabelShift(Shift):
    """Each client has its own class proportions, drawn from Dirichlet(concentration, …, concentration).

    Given its class, an image is drawn as before: only P(y) differs between clients, not P(x | y). The concentration
    lies in (0, 1e6]; small values give clients that hold few classes, large values nearly equal proportions.
    """

    concentration: float

    def __post_init__(self) -> None:
        remedy = "leave the shift out for no label shift, or give a large value for a weak one"
        checked_number("concentration", self.concentration, above=0, maximum=1e6, remedy=remedy)

    def draw(self, rng: np.random.Generator, *, x_shape: tuple[int, ...], num_classes: int) -> DrawnShift:
        """Draw the class proportions (num_classes,); `x_shape` plays no part."""
        return DrawnShift(class_weights=rng.dirichlet(np.full(num_classes, float(self.concentration))))


@dataclass(frozen=True)
class RowAffineShift(Shift):
    """Each client sees each channel through an affine map of its own that mixes the rows ([RE] §5.1).

    A channel u of height H, with values in [−1, 1], becomes (I + N)u + B, where all entries are independent,
    N (H, H) ~ N(0, matrix_std²) and B (H, width) ~ N(0, offset_std²). Images have values in [0, 1] here:
    x = (u + 1) / 2 becomes x + Nx + (B − N1) / 2. Both numbers lie in [0, 1e6]; the result is not clipped.
    """

    matrix_std: float
    offset_std: float

    def __post_init__(self) -> None:
        for name in ("matrix_std", "offset_std"):
            checked_number(name, getattr(self, name), minimum=0, maximum=1e6, remedy="give 0 for none")

    def draw(self, rng: np.random.Generator, *, x_shape: tuple[int, ...], num_classes: int) -> DrawnShift:
        """Draw N (channels, height, height), then B (channels, height, width); `num_classes` plays no part."""
        check_images(np.empty((0, *x_shape), np.float32), "a row-affine shift")
        channels, height, _ = x_shape
        matrix = self.matrix_std * rng.standard_normal((channels, height, height))
        offset = self.offset_std * rng.standard_normal(x_shape)
        return DrawnShift(transform=_row_affine_transform(matrix, (offset - matrix.sum(axis=2, keepdims=True)) / 2))


@dataclass(frozen=True)
class _LevelShift(Shift):
    """Each client has its own shares of the levels of a version."""

    of_level: ClassVar[type[Any]]
    levels: tuple[float, ...]
    low: tuple[float, ...] = (0.4, 0.7)
    high: tuple[float, ...] = (0.7, 1.0)
    reverse: bool = False

    def __post_init__(self) -> None:
        if len(self.levels) < 2 or len(set(self.levels)) < len(self.levels):
            raise ValueError(f"levels must be two or more different numbers, got {self.levels!r}; name each once")
        for name in ("low", "high"):
            ends = getattr(self, name)
            if len(ends) != 2 or not 0 < ends[0] <= ends[1] <= 1e6:
                raise ValueError(
                    f"{name} must be a range of positive numbers up to 1e6, got {ends!r}; give one such as (0.4, 0.7)"
                )
        _ = self.versions  # each level checks itself

    @property
    def versions(self) -> tuple[ImageVersion, ...]:
        """One for each level."""
        return tuple(self.of_level(level) for level in self.levels)

    def reversed(self) -> Self:
        """Return the shift with the two ranges exchanged."""
        return replace(self, reverse=not self.reverse)

    def draw(self, rng: np.random.Generator, *, x_shape: tuple[int, ...], num_classes: int) -> DrawnShift:
        """Draw the parameters (num_levels,), then the shares (num_levels,); `num_classes` plays no part."""
        return DrawnShift(versions=self.versions, version_weights=rng.dirichlet(self.parameters(rng, num_clients=1)[0]))

    def parameters(self, rng: np.random.Generator, *, num_clients: int) -> NDArray[np.float64]:
        """Draw the parameters of the Dirichlet distributions of some clients, (num_clients, num_levels)."""
        first, second = (self.high, self.low) if self.reverse else (self.low, self.high)
        half = len(self.levels) // 2
        sizes = (num_clients, half), (num_clients, len(self.levels) - half)
        drawn = [rng.uniform(ends[0], ends[1], size) for ends, size in zip((first, second), sizes, strict=True)]
        return np.concatenate(drawn, axis=1)


@dataclass(frozen=True)
class ResolutionShift(_LevelShift):
    """Each client has its own shares of resolutions ([RE] §5.1).

    The first half of the levels, the low resolutions, have parameters alpha_l ~ U(low), the others U(high), and the
    shares of all levels are drawn from Dirichlet(alpha). `reverse` exchanges the ranges, as in the target network.
    `levels` are sizes in pixels, see `worlds.versions.Resolution`.
    """

    of_level = Resolution
    levels: tuple[int, ...] = (14, 16, 18, 20, 26, 28, 30, 32)


@dataclass(frozen=True)
class ColourShift(_LevelShift):
    """Each client has its own shares of images that are more or less grey ([RE] §5.1).

    As `ResolutionShift`, with levels of colour in [0, 1], see `worlds.versions.Colour`: the first half are the grey
    ones.
    """

    of_level = Colour
    levels: tuple[float, ...] = (0.0, 0.14, 0.28, 0.42, 0.56, 0.7, 0.84, 1.0)


@dataclass(frozen=True)
class OneVersionShift(Shift, ABC):
    """Each client sees all its images in one version, drawn from some that are equally likely; subclasses name them."""

    def draw(self, rng: np.random.Generator, *, x_shape: tuple[int, ...], num_classes: int) -> DrawnShift:
        """Draw the number of the version; `x_shape` and `num_classes` play no part."""
        weights = np.zeros(len(self.versions))
        weights[rng.integers(len(weights))] = 1
        return DrawnShift(versions=self.versions, version_weights=weights)


@dataclass(frozen=True)
class RotationShift(OneVersionShift):
    """Each client sees its images rotated by an angle of its own, one of `angles` (degrees), equally likely."""

    angles: tuple[float, ...] = (0.0, 15.0, 30.0, 45.0, 60.0, 75.0)

    def __post_init__(self) -> None:
        if not self.angles or len(set(self.angles)) < len(self.angles):
            raise ValueError(f"angles must be one or more different numbers, got {self.angles!r}; name each once")
        _ = self.versions  # each angle checks itself

    @property
    def versions(self) -> tuple[ImageVersion, ...]:
        """One for each angle."""
        return tuple(Rotation(angle) for angle in self.angles)


def check_pairs(x: NDArray[np.float32], y: NDArray[np.int64]) -> None:
    """Raise ValueError unless there are images, and as many labels."""
    if len(x) != len(y) or len(y) == 0:
        raise ValueError(
            f"x and y must have the same length of at least 1, got {len(x)} and {len(y)}; give one label for each image"
        )


def combined(parts: Sequence[DrawnShift]) -> DrawnShift:
    """Return the shift of a client that is under all of `parts`.

    Versions come first, each of one part after each of the parts before, drawn independently; then the transforms, in
    the order given. Raises ValueError if two parts set the class weights: a client has one distribution of its classes.
    """
    class_weights = [part.class_weights for part in parts if part.class_weights is not None]
    transforms = [part.transform for part in parts if part.transform is not None]
    version_weights = [part.version_weights for part in parts if part.version_weights is not None]
    if len(class_weights) > 1:
        raise ValueError(
            f"at most one shift may set the class weights, got {len(class_weights)}; leave all but one label shift out"
        )
    return DrawnShift(
        class_weights=class_weights[0] if class_weights else None,
        transform=reduce(_composed, transforms) if transforms else None,
        versions=combined_versions([part.versions for part in parts]),
        version_weights=reduce(np.multiply.outer, version_weights).ravel() if version_weights else None,
    )


def combined_versions(parts: Sequence[tuple[ImageVersion, ...]]) -> tuple[ImageVersion, ...]:
    """Return the versions of a client whose shifts have these, in the order of `combined`; () if none has any."""
    given = [versions for versions in parts if versions]
    return tuple(chained(each) for each in product(*given)) if given else ()


def _composed(first: Transform, second: Transform) -> Transform:
    return lambda x: second(first(x))


def _affine_transform(matrix: NDArray[np.float64], offset: NDArray[np.float64]) -> Transform:
    def transform(x: NDArray[np.float32]) -> NDArray[np.float32]:
        # In float64, so that the float32 result does not depend on how the product was blocked: an image
        # is the same whether it is moved alone (a client's example) or with the whole pool (the truth).
        flat = x.reshape(len(x), -1).astype(np.float64)
        return (flat + flat @ matrix.T + offset).astype(np.float32).reshape(x.shape)

    return transform


def _row_affine_transform(matrix: NDArray[np.float64], offset: NDArray[np.float64]) -> Transform:
    def transform(x: NDArray[np.float32]) -> NDArray[np.float32]:
        wide = x.astype(np.float64)  # one product for each channel of each image, whatever the batch
        return np.asarray(wide + matrix @ wide + offset, dtype=np.float32)

    return transform
