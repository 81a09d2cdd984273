"""The numbers of an adversarial answer with noise: a mean over examples at radius 0, and one for each multiplier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import nn

from client.noisy_risks import Noise, sums_one_by_one
from protocol.noise import LOSS_STEPS
from riskband.adversaries.curves import AdversarialCurves
from riskband.answers.adversarial import GUARANTEES

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
    replacing an example changes each by at most 1 / num_examples. As `client.noisy_risks.sums_one_by_one` says, each
    example is looked at by itself, on a fresh copy of the model, and one on which the adversary fails counts with 1
    everywhere; one on which it proves less than the guarantee has conjugates of 1. Of a conjugate's bounds the one that
    the guarantee is about is sent, as both; the mean cost of a mistake, whose sensitivity is not bounded, is not sent,
    nor is the number of examples without a gradient, which no part of the budget pays for.

    Parameters
    ----------
    model, x, y :
        See `riskband.adversaries.evaluation.example_losses`.
    curves_of : callable
        From a model, inputs and labels to the curves of these examples.
    multipliers : sequence of float
        Prices of a unit of cost.
    guarantee : str
        Of the adversary, whatever the examples; see `riskband.adversaries.registry.GUARANTEES`.
    noise : Noise
        Its mechanism's budget is shared by 1 + num_multipliers numbers.

    Returns
    -------
    dict
        Fields of an `AdversarialAnswer`.
    """

    def numbers_of(model: nn.Module, x: np.ndarray, y: np.ndarray) -> list[float]:
        curves = curves_of(model, x, y)
        lower, upper = curves.conjugates(multipliers)
        if GUARANTEES.index(curves.guarantee) > GUARANTEES.index(guarantee):
            upper = np.ones(len(multipliers))
        return [curves.clean_risk, *(lower if guarantee == "lower" else upper)]

    size = {"num_values": 1 + len(multipliers), "num_steps": LOSS_STEPS}
    sums = sums_one_by_one(model, x, y, numbers_of=numbers_of, steps=[LOSS_STEPS] * size["num_values"])
    clean, *conjugates = [noise.added_to(total, num_examples=len(y), **size) for total in sums]
    return {
        "num_examples": len(y),
        "clean_risk": clean,
        "values_lower": [clean],
        "values_upper": [clean],
        "conjugates_lower": conjugates,
        "conjugates_upper": conjugates,
        "adversarial_unit": 0.0,
        "guarantee": guarantee,
        "num_without_gradient": None,
    }
