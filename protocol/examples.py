"""What a client holds, wherever it comes from: a file, a function, or a simulated network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Examples:
    """The examples one client holds: inputs `x` (num_examples, *x_shape), labels `y` (num_examples,)."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]
