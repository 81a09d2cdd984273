"""The numbers of an adversarial answer with noise: a mean over examples at radius 0, and one for each multiplier."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from torch import nn

from client.adversaries import GUARANTEES, AdversarialCurves
from client.noise import LOSS_STEPS
from client.noisy_risks import Noise

CurvesOf = Callable[[nn.Module, np.ndarray, np.ndarray], AdversarialCurves]


def noisy_curves(
    model: nn.Module,
    curves_of: CurvesOf,
    x: np.ndarray,
    y: np.ndarray,
    *,
    multipliers: Sequence[float],
    guarantee: str,
    noise: Noise,
) -> dict[str, Any]:
    """Return the numbers that answer an `AdversarialQuery` at the radius 0, with noise.

    A conjugate is a mean over examples of a supremum in [0, 1], and the risk without movement is a mean of losses:
    replacing an example changes each by at most 1 / num_examples. As in `client.noisy_risks.summed_steps` each example
    is looked at by itself, on a fresh copy of the model, and one on which the adversary fails counts with 1 everywhere;
    one on which it proves less than the guarantee has conjugates of 1. Of a conjugate's bounds the one that the
    guarantee is about is sent, as both; the mean cost of a mistake, whose sensitivity is not bounded, is not sent.

    Parameters
    ----------
    model, x, y :
        See `client.evaluation.example_losses`.
    curves_of : callable
        From a model, inputs and labels to the curves of these examples.
    multipliers : sequence of float
        Prices of a unit of cost.
    guarantee : str
        Of the adversary, whatever the examples; see `client.adversaries.GUARANTEES`.
    noise : Noise
        Its mechanism's budget is shared by 1 + num_multipliers numbers.

    Returns
    -------
    dict
        Fields of an `AdversarialAnswer`.
    """
    sums = [0] * (1 + len(multipliers))
    for index in range(len(y)):
        example = x[index : index + 1], y[index : index + 1]
        found = _steps_of(model, curves_of, *example, multipliers=multipliers, guarantee=guarantee)
        sums = [total + steps for total, steps in zip(sums, found, strict=True)]
    drawn = [noise.mechanism.noise(noise.source, num_values=len(sums), num_steps=LOSS_STEPS) for _ in sums]
    clean, *conjugates = [(total + each) / (len(y) * LOSS_STEPS) for total, each in zip(sums, drawn, strict=True)]
    return {
        "num_examples": len(y),
        "clean_risk": clean,
        "values_lower": [clean],
        "values_upper": [clean],
        "conjugates_lower": conjugates,
        "conjugates_upper": conjugates,
        "adversarial_unit": 0.0,
        "guarantee": guarantee,
    }


def _steps_of(
    model: nn.Module,
    curves_of: CurvesOf,
    x: np.ndarray,
    y: np.ndarray,
    *,
    multipliers: Sequence[float],
    guarantee: str,
) -> list[int]:
    """The numbers of one example in steps, rounded up, each from 0 to that of a loss of 1."""
    try:
        curves = curves_of(deepcopy(model), x, y)
        lower, upper = curves.conjugates(multipliers)
        if GUARANTEES.index(curves.guarantee) > GUARANTEES.index(guarantee):
            upper = np.ones(len(multipliers))
        numbers = [curves.clean_risk, *(lower if guarantee == "lower" else upper)]
        return [min(max(math.ceil(number * LOSS_STEPS), 0), LOSS_STEPS) for number in numbers]
    except KeyboardInterrupt:
        raise
    except BaseException:  # as in `client.noisy_risks.summed_steps`
        return [LOSS_STEPS] * (1 + len(multipliers))
