"""Shifts: what makes one client's distribution differ from the next client's.

A `Shift` is a distribution from which every client draws its own `DrawnShift`: class proportions, a map of the
images, or both. A new kind of shift is one frozen dataclass with one method, `draw`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from protocol.checks import checked_count, checked_number

Transform = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""A map of a batch of images (num_examples, *x_shape) to images of the same shape."""


@dataclass(frozen=True, eq=False)
class DrawnShift:
    """The shift of one client.

    Attributes
    ----------
    class_weights
        Probability of each class, shape (num_classes,), summing to 1; None keeps those of the pool.
    transform
        Map of the images, the same for all images of the client; None keeps them as they are.
    """

    class_weights: NDArray[np.float64] | None = None
    transform: Transform | None = None

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
        return drawn.moved(x), y.copy()


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


def check_pairs(x: NDArray[np.float32], y: NDArray[np.int64]) -> None:
    """Raise ValueError unless there are images, and as many labels."""
    if len(x) != len(y) or len(y) == 0:
        raise ValueError(
            f"x and y must have the same length of at least 1, got {len(x)} and {len(y)}; give one label for each image"
        )


def combined(parts: Sequence[DrawnShift]) -> DrawnShift:
    """Return the shift of a client that is under all of `parts`, their transforms in the order given.

    Raises ValueError if two of them set the class weights: a client has one distribution of its classes.
    """
    class_weights = [part.class_weights for part in parts if part.class_weights is not None]
    transforms = [part.transform for part in parts if part.transform is not None]
    if len(class_weights) > 1:
        raise ValueError(
            f"at most one shift may set the class weights, got {len(class_weights)}; leave all but one label shift out"
        )
    return DrawnShift(
        class_weights=class_weights[0] if class_weights else None,
        transform=reduce(_composed, transforms) if transforms else None,
    )


def _composed(first: Transform, second: Transform) -> Transform:
    return lambda x: second(first(x))


def _affine_transform(matrix: NDArray[np.float64], offset: NDArray[np.float64]) -> Transform:
    def transform(x: NDArray[np.float32]) -> NDArray[np.float32]:
        # In float64, so that the float32 result does not depend on how the product was blocked: an image
        # is the same whether it is moved alone (a client's example) or with the whole pool (the truth).
        flat = x.reshape(len(x), -1).astype(np.float64)
        return (flat + flat @ matrix.T + offset).astype(np.float32).reshape(x.shape)

    return transform
