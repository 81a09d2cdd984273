"""Candidate models to choose among: checkpoints of one training run, and decision thresholds on one model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.checks import checked_count, checked_number
from protocol.models import model_arrays
from worlds.datasets import BaseData
from worlds.training import train_centrally

Weights = dict[str, NDArray[np.generic]]
Candidates = dict[str, tuple[Weights, str]]
"""Weights and loss of each candidate by its name, as `protocol.weight_sets.packed` takes them."""


def checkpoints(data: BaseData, *, epochs: Iterable[int], **training: Any) -> dict[int, Weights]:
    """Train one model and return its weights after given numbers of epochs, by epoch, ascending.

    `epochs` are different whole numbers ≥ 1; the largest is how long is trained. The weights of epoch e are bit for bit
    what `train_centrally`, whose other arguments follow, gives with `num_epochs=e`. Raises ValueError if there is no
    epoch, one is there twice, or an argument breaks its rule.
    """
    remedy = "name the numbers of passes after which the weights are kept, as in (1, 2, 5)"
    wanted = sorted(checked_count("each epoch", epoch, minimum=1, remedy=remedy) for epoch in epochs)
    if not wanted or len(set(wanted)) < len(wanted):
        raise ValueError(f"epochs must be one or more different numbers, got {wanted}; {remedy}")
    kept: dict[int, Weights] = {}

    def keep(epoch: int, model: Any) -> None:
        if epoch in wanted:
            kept[epoch] = model_arrays(model)

    train_centrally(data, num_epochs=wanted[-1], after_epoch=keep, **training)
    return kept


def candidate_models(
    weights_by_epoch: Mapping[int, Weights], *, loss: str, thresholds: Iterable[float] = ()
) -> Candidates:
    """Return every checkpoint as a candidate, and the last one with each decision threshold.

    They are named "epochs-10" and "epochs-10,abstain:0.8", in this order, wherever this runs; the weights are as from
    `checkpoints`. Risks of candidates are compared as they are: next to thresholds take the loss "zero_one", of which
    "abstain:0" is another name. The last checkpoint abstains where its largest probability is below a threshold. Raises
    ValueError if there is no checkpoint, or a threshold is not in [0, 1] or is there twice.
    """
    if not weights_by_epoch:
        raise ValueError("weights_by_epoch must hold at least one checkpoint, got none; see checkpoints")
    last = max(weights_by_epoch)
    found: Candidates = {f"epochs-{epoch}": (weights_by_epoch[epoch], loss) for epoch in sorted(weights_by_epoch)}
    return found | abstaining(f"epochs-{last}", weights_by_epoch[last], thresholds=thresholds)


def abstaining(name: str, weights: Weights, *, thresholds: Iterable[float]) -> Candidates:
    """Return one model with each of several decision thresholds, named "NAME,abstain:THRESHOLD"; see above."""
    remedy = "it is a probability, such as 0.8"
    numbers = [checked_number("each threshold", value, minimum=0, maximum=1, remedy=remedy) for value in thresholds]
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"thresholds must differ, got {numbers}; name each once")
    return {f"{name},abstain:{number!r}": (weights, f"abstain:{number!r}") for number in numbers}
