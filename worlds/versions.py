"""Versions of an image: fixed maps, which make of every image of a pool another image of the same shape.

Clients that are mixtures of such versions share a loss table (`worlds.loss_table`): a model sees every image in every
version once, whatever the number of clients. A new kind of version is one frozen dataclass with `name` and `apply`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy  # loads its modules on use
from numpy.typing import NDArray

from protocol.checks import checked_count, checked_number

_LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601


class ImageVersion(ABC):
    """A map of images. Subclasses are frozen dataclasses: equal versions give equal bytes."""

    @property
    @abstractmethod
    def name(self) -> str:
        """A short name, such as "resolution-14"."""

    @abstractmethod
    def apply(self, x: NDArray[np.float32], *, index: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return images in this version, as a new array of the same shape.

        An image becomes the same whether it is alone or in a batch. `x` has shape (num_images, channels, height,
        width), in [0, 1]; `index` is the number of each image in its pool: the seed of what is random in a version.
        """


@dataclass(frozen=True)
class Original(ImageVersion):
    """The image as it is."""

    @property
    def name(self) -> str:
        """The name "original"."""
        return "original"

    def apply(self, x: NDArray[np.float32], *, index: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return a copy."""
        return x.copy()


@dataclass(frozen=True)
class Resolution(ImageVersion):
    """The image after a resize to `size` × `size` pixels and back, both bilinear with antialiasing.

    `size` is at least 1. The weights are those of Pillow's and torchvision's antialiased bilinear resize. At the size
    of the image nothing changes.
    """

    size: int

    def __post_init__(self) -> None:
        checked_count("size of a resolution", self.size, minimum=1, remedy="give a number of pixels such as 14")

    @property
    def name(self) -> str:
        """Such as "resolution-14"."""
        return f"resolution-{self.size}"

    def apply(self, x: NDArray[np.float32], *, index: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the images after the resize; raises ValueError unless they have height and width."""
        check_images(x, self.name)
        rows, columns = (_there_and_back(side, self.size) for side in x.shape[2:])
        # One product for each image: what it becomes does not depend on the batch.
        return np.asarray(rows @ x.astype(np.float64) @ columns.T, dtype=np.float32)


@dataclass(frozen=True)
class Colour(ImageVersion):
    """A blend of the image with its grey version: (1 − share) · grey(x) + share · x.

    Grey is the luma of ITU-R BT.601, 0.299 R + 0.587 G + 0.114 B, in all three channels. `share` lies in [0, 1].
    """

    share: float

    def __post_init__(self) -> None:
        remedy = "0 is grey, 1 is the image"
        checked_number("share of colour", self.share, minimum=0, maximum=1, remedy=remedy)

    @property
    def name(self) -> str:
        """Such as "colour-0.56"."""
        return f"colour-{self.share:g}"

    def apply(self, x: NDArray[np.float32], *, index: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the blends; raises ValueError unless the images have three channels."""
        check_images(x, self.name)
        if x.shape[1] != 3:
            raise ValueError(
                f"{self.name} must have images of three channels, got {x.shape[1]}; leave the shift of colours out"
            )
        grey = sum(weight * x[:, [channel]].astype(np.float64) for channel, weight in enumerate(_LUMA))
        return np.asarray((1 - self.share) * grey + self.share * x, dtype=np.float32)


@dataclass(frozen=True)
class Rotation(ImageVersion):
    """The image rotated about its centre, counter-clockwise; bilinear, with zeros beyond the border.

    `degrees` lies in [−360, 360].
    """

    degrees: float

    def __post_init__(self) -> None:
        checked_number("degrees", self.degrees, minimum=-360, maximum=360, remedy="give an angle such as 15")

    @property
    def name(self) -> str:
        """Such as "rotation-30"."""
        return f"rotation-{self.degrees:g}"

    def apply(self, x: NDArray[np.float32], *, index: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the rotated images; raises ValueError unless they have height and width."""
        check_images(x, self.name)
        flat = x.reshape(-1, x.shape[2] * x.shape[3]).astype(np.float64)
        turned = _rotation(self.degrees, *x.shape[2:]) @ flat.T  # sparse: each column is a sum of its own
        return np.ascontiguousarray(turned.T, dtype=np.float32).reshape(x.shape)


@dataclass(frozen=True)
class Chain(ImageVersion):
    """One version after another; make it with `chained`."""

    parts: tuple[ImageVersion, ...]

    @property
    def name(self) -> str:
        """Such as "resolution-14+colour-0.56"."""
        return "+".join(part.name for part in self.parts)

    def apply(self, x: NDArray[np.float32], *, index: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the images after all parts, in their order."""
        for part in self.parts:
            x = part.apply(x, index=index)
        return x


def chained(versions: Iterable[ImageVersion]) -> ImageVersion:
    """Return the version that applies these in their order."""
    parts = [part for each in versions for part in (each.parts if isinstance(each, Chain) else (each,))]
    parts = [part for part in parts if part != Original()]
    if not parts:
        return Original()
    return parts[0] if len(parts) == 1 else Chain(tuple(parts))


def check_images(x: NDArray[np.float32], name: str) -> None:
    """Raise ValueError unless `x` holds images of channels, height and width; `name` is what they are for."""
    if x.ndim != 4:
        raise ValueError(
            f"{name} must have images (num_images, channels, height, width), got shape {x.shape}; "
            "leave this shift out where the inputs are no images"
        )


@lru_cache(maxsize=64)
def _there_and_back(side: int, size: int) -> NDArray[np.float64]:
    return _resize(size, side) @ _resize(side, size)


def _resize(before: int, after: int) -> NDArray[np.float64]:
    """Weights (after, before) of a bilinear resize; the filter is as wide as a pixel of the coarser side."""
    scale = before / after
    centres = (np.arange(after) + 0.5) * scale
    distance = np.abs(np.arange(before) + 0.5 - centres[:, np.newaxis])
    weights = np.maximum(0, 1 - distance / max(scale, 1))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


@lru_cache(maxsize=64)
def _rotation(degrees: float, height: int, width: int) -> scipy.sparse.csr_array:
    """Weights (pixels, pixels) with which the pixels of an image make those of the rotated one."""
    cos, sin = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    down, right = np.meshgrid(np.arange(height) - (height - 1) / 2, np.arange(width) - (width - 1) / 2, indexing="ij")
    rows = cos * down + sin * right + (height - 1) / 2
    columns = cos * right - sin * down + (width - 1) / 2
    size, parts = height * width, []
    for row in (np.floor(rows), np.floor(rows) + 1):
        for column in (np.floor(columns), np.floor(columns) + 1):
            weight = (1 - np.abs(rows - row)) * (1 - np.abs(columns - column))
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width) & (weight > 0)
            source = (row * width + column)[inside].astype(int)
            parts.append(scipy.sparse.csr_array((weight[inside], (np.flatnonzero(inside), source)), shape=(size, size)))
    return scipy.sparse.csr_array(parts[0] + parts[1] + parts[2] + parts[3])
