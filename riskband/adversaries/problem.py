"""Where examples may move: the space, what comes with it, and the refusal of what cannot be answered there."""

from __future__ import annotations

import math
from collections.abc import Sequence

REPRESENTATION = "representation"
"""The space before the model's last linear layer."""
LAYER_PREFIX = "layer:"
"""What the name of the space at a layer's output begins with: "layer:2"."""


class RefusedError(ValueError):
    """A refusal whose text names rules and settings only: it may travel to the server as it is."""


def layer_name(space: str) -> str | None:
    """Return the name of the layer at whose output examples move in this space; None in every other space."""
    return space.removeprefix(LAYER_PREFIX) if space.startswith(LAYER_PREFIX) else None


def check_extras(space: str, *, box: tuple[float, float] | None, distances: Sequence[float], head: str | None) -> None:
    """Check that a space has what is given with it: `head` in representation space only, box and distances elsewhere.

    Raises
    ------
    ValueError
        If it has not.
    """
    if space == REPRESENTATION and (box is not None or len(distances) > 0):
        raise ValueError(
            "box and distances must not be given in representation space; they are for attacks on inputs or at a layer"
        )
    if space != REPRESENTATION and head is not None:
        raise ValueError(f"head must be None in the space {space!r}, got {head!r}; no layer is the head there")


def checked_box(box: Sequence[float]) -> tuple[float, float]:
    """Return (low, high), finite and low < high, as floats; raises ValueError for anything else."""
    try:
        low, high = (float(end) for end in box)
    except (TypeError, ValueError):
        raise ValueError(f"box must be two numbers (low, high), got {box!r}; such as (0, 1) for images") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"box must be finite with low < high, got ({low:g}, {high:g}); or give None for no box")
    return low, high
