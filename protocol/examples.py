"""What a client holds, wherever it comes from: a file, a function, or a simulated network."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Held(Protocol):
    """What a question is answered from."""

    @property
    def x(self) -> NDArray[np.float32]:
        """Inputs (num_examples, *x_shape)."""

    @property
    def y(self) -> NDArray[np.int64]:
        """Labels (num_examples,)."""

    def mean_losses(self, model: Any, *, losses: Collection[str]) -> dict[str, float]:
        """Return the mean of each of several losses of a model, by name."""


@dataclass(frozen=True, eq=False)
class Examples:
    """The examples one client holds: inputs `x` (num_examples, *x_shape), labels `y` (num_examples,)."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]

    def mean_losses(self, model: Any, *, losses: Collection[str]) -> dict[str, float]:
        """Run the model; see `riskband.models.evaluation.mean_losses`."""
        from riskband.models.evaluation import mean_losses  # here: it loads torch

        return mean_losses(model, self.x, self.y, losses=losses)
