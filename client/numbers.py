"""What a question comes to on a client's examples, as it is or with noise: plain functions, no Flower.

The ClientApp loads this module with its first question about a model, since it loads torch: Flower's simulation loads
the app itself once more, in the process where Ray then starts.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from client.answering import Noise, made_up_example
from client.refusals import details_withheld
from protocol.examples import Held
from protocol.mechanisms import LOSS_STEPS, steps_of
from protocol.models import build_model, load_arrays
from protocol.questions import AdversarialQuery, CandidatesQuery, ComparisonQuery, Query
from riskband.models.evaluation import chosen_device, example_losses, mean_losses
from riskband.models.losses import get_loss

if TYPE_CHECKING:
    from riskband.adversaries.curves import AdversarialCurves

gc.freeze()  # torch stays: no collection looks at it again, nor the last one, for half a second, when a worker ends

Judged = tuple[int, str]
"""Which of the models, from 0, and by which loss."""

NumbersOf = Callable[[nn.Module, np.ndarray, np.ndarray], Sequence[float]]
"""From a model and the input and label of one example to its numbers, in [0, 1]."""

CurvesOf = Callable[[nn.Module, np.ndarray, np.ndarray], "AdversarialCurves"]


def queried_model(query: Query, arrays: Mapping[str, np.ndarray], *, device: str) -> nn.Module:
    """Return the model that a question is about, on a device of `riskband.models.evaluation.DEVICES`.

    Raises ValueError if there is no such model or device, or the weights do not fit the model; RuntimeError if the
    question asks for noise, and the model cannot be copied.
    """
    torch.set_num_threads(1)
    model = build_model(query.model, x_shape=query.x_shape, num_classes=query.num_classes, seed=0)
    load_arrays(model, arrays)
    model.to(chosen_device(device))
    if query.mechanism is not None:
        with details_withheld("copying the model"):  # as is done for every example, when it has been paid for
            deepcopy(model)
    return model


def answer_numbers(query: Query, models: Sequence[nn.Module], examples: Held, noise: Noise | None) -> dict[str, Any]:
    """Return the fields of an answer that are about a client's examples; see `mean_risks` and `noisy_curves`.

    There is one model, or those of the sets of weights that candidates use, or a new and an old one. Only the losses of
    the examples are looked at where no more is needed.
    """
    if isinstance(query, AdversarialQuery):
        return _adversarial_numbers(query, models[0], examples.x, examples.y, noise)
    if isinstance(query, ComparisonQuery):
        return change_numbers(models[0], models[1], examples, loss=query.loss)
    judged = [(0, query.loss)]
    if isinstance(query, CandidatesQuery):
        judged = [(candidate.weights, candidate.loss) for candidate in query.candidates]
    risks = mean_risks(models, examples, judged=judged, noise=noise)
    found = {"risks": risks} if isinstance(query, CandidatesQuery) else {"risk": risks[0]}
    return {**found, "num_examples": len(examples.y)}


def change_numbers(new: nn.Module, old: nn.Module, examples: Held, *, loss: str) -> dict[str, Any]:
    """Return the mean loss of both models, and of how many examples it got larger if a loss is 0 or 1; never which."""
    before, after = (example_losses(model, examples.x, examples.y, loss=loss) for model in (old, new))
    num_worse = int(np.sum(after > before)) if get_loss(loss).binary else None
    risks = {"old_risk": float(before.mean()), "new_risk": float(after.mean())}
    return {**risks, "num_worse": num_worse, "num_examples": len(before)}


def _adversarial_numbers(
    query: AdversarialQuery, model: nn.Module, x: np.ndarray, y: np.ndarray, noise: Noise | None
) -> dict[str, Any]:
    # Imported here: it loads riskband, seconds that a process for one plain loss should not pay.
    from riskband.adversaries.registry import adversarial_curves

    def curves_of(model: nn.Module, x: np.ndarray, y: np.ndarray) -> AdversarialCurves:
        return adversarial_curves(model, x, y, query.problem, multipliers=query.multipliers)

    if noise is None:
        return asdict(curves_of(model, x, y).at(query.radii, query.multipliers))
    made_up = made_up_example(query)
    tried = curves_of(model, made_up.x, made_up.y)
    found = noisy_curves(model, curves_of, x, y, multipliers=query.multipliers, guarantee=tried.guarantee, noise=noise)
    return {**found, "is_unsteady": tried.is_unsteady}


def mean_risks(
    models: Sequence[nn.Module], examples: Held, *, judged: Sequence[Judged], noise: Noise | None
) -> list[float]:
    """Return the mean loss of each model and loss that is judged, in that order.

    Without noise they are in [0, 1], with the errors of `riskband.models.evaluation.mean_losses`. Else the answer
    spends the mechanism's budget: each number is (S + N) / (num_examples * steps), S the sum of the losses rounded up
    to steps, N whole-number noise; it may lie outside of [0, 1]. `sums_one_by_one` says what takes the place of errors.
    """
    names = [{loss for number, loss in judged if number == index} for index in range(len(models))]
    if noise is None:
        plain = [examples.mean_losses(model, losses=losses) for model, losses in zip(models, names, strict=True)]
        return [plain[number][loss] for number, loss in judged]
    x, y = examples.x, examples.y
    sums = [summed_steps(model, x, y, losses=losses) for model, losses in zip(models, names, strict=True)]
    numbers = []
    for number, loss in judged:
        size = {"num_values": len(judged), "num_steps": steps_of(is_binary=get_loss(loss).binary)}
        numbers.append(noise.added_to(sums[number][loss], num_examples=len(y), **size))
    return numbers


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
    replacing an example changes each by at most 1 / num_examples. As `sums_one_by_one` says, each
    example is looked at by itself, on a fresh copy of the model, and one on which the adversary fails counts with 1
    everywhere; one on which it proves less than the guarantee has conjugates of 1. Of a conjugate's bounds the one that
    the guarantee is about is sent, as both; the mean cost of a mistake, whose sensitivity is not bounded, is not sent,
    nor is the number of examples without a gradient, which no part of the budget pays for. The mechanism's budget is
    shared by 1 + num_multipliers numbers. The guarantee is that of the adversary, whatever the examples; see
    `riskband.answers.adversarial.GUARANTEES`.
    """
    from riskband.answers.adversarial import GUARANTEES  # here: it takes seconds that no plain loss should pay

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


def summed_steps(model: nn.Module, x: np.ndarray, y: np.ndarray, *, losses: set[str]) -> dict[str, int]:
    """Return the sum over examples of each loss, in steps, by name; arguments as for `sums_one_by_one`."""
    names = sorted(losses)

    def numbers_of(model: nn.Module, x: np.ndarray, y: np.ndarray) -> list[float]:
        found = mean_losses(model, x, y, losses=losses)
        return [found[name] for name in names]

    steps = [steps_of(is_binary=get_loss(name).binary) for name in names]
    return dict(zip(names, sums_one_by_one(model, x, y, numbers_of=numbers_of, steps=steps), strict=True))


def sums_one_by_one(
    model: nn.Module, x: np.ndarray, y: np.ndarray, *, numbers_of: NumbersOf, steps: Sequence[int]
) -> list[int]:
    """Return the sums over examples of some numbers, each rounded up to steps.

    Replacing one example changes a sum by at most the steps of a 1, whatever the model does: each example is
    evaluated by itself on a fresh copy of the model, so none decides the numbers of another, not even by what the model
    remembers in itself; and one on which the evaluation fails (a logit that is not finite, a label beyond the classes)
    counts with 1 everywhere. An error would tell the server that such an example is there.

    `numbers_of` gives the numbers of one example, and `steps` says for each of them how many steps make a 1.
    """
    sums = [0] * len(steps)
    for index in range(len(y)):
        try:
            found = numbers_of(deepcopy(model), x[index : index + 1], y[index : index + 1])
            rounded = [math.ceil(number * most) for number, most in zip(found, steps, strict=True)]
        except KeyboardInterrupt:
            raise
        except BaseException:  # a model of somebody else's may raise anything, such as SystemExit
            rounded = list(steps)
        sums = [total + min(max(each, 0), most) for total, each, most in zip(sums, rounded, steps, strict=True)]
    return sums
