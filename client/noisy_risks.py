"""Mean losses of several models on one client's examples, as they are or with noise: plain functions, no Flower."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from random import Random

import numpy as np
from torch import nn

from client.evaluation import mean_losses
from client.losses import get_loss
from client.noise import Mechanism, steps_of

Judged = tuple[int, str]
"""Which of the models, from 0, and by which loss."""


@dataclass(frozen=True)
class Noise:
    """What makes the numbers of one answer private: a mechanism, and where its randomness comes from."""

    mechanism: Mechanism
    source: Random


def mean_risks(
    models: Sequence[nn.Module], x: np.ndarray, y: np.ndarray, *, judged: Sequence[Judged], noise: Noise | None
) -> list[float]:
    """Return the mean loss of each model and loss that is judged.

    Parameters
    ----------
    models : sequence of Module
        See `client.evaluation.example_losses`, as for `x` and `y`.
    judged : sequence of (int, str)
        What to compute, in the order of the answer.
    noise : Noise or None
        None: the mean losses, in [0, 1], with the errors of `client.evaluation.mean_losses`. Else the answer spends the
        mechanism's budget: each number is (S + N) / (num_examples * steps), S the sum of the losses rounded up to
        steps, N whole-number noise; it may lie outside of [0, 1]. `summed_steps` says what takes the place of errors.
    """
    names = [{loss for number, loss in judged if number == index} for index in range(len(models))]
    if noise is None:
        plain = [mean_losses(model, x, y, losses=losses) for model, losses in zip(models, names, strict=True)]
        return [plain[number][loss] for number, loss in judged]
    sums = [summed_steps(model, x, y, losses=losses) for model, losses in zip(models, names, strict=True)]
    numbers = []
    for number, loss in judged:
        steps = steps_of(is_binary=get_loss(loss).binary)
        drawn = noise.mechanism.noise(noise.source, num_values=len(judged), num_steps=steps)
        numbers.append((sums[number][loss] + drawn) / (len(y) * steps))
    return numbers


def summed_steps(model: nn.Module, x: np.ndarray, y: np.ndarray, *, losses: set[str]) -> dict[str, int]:
    """Return the sum over examples of each loss, in steps, by name.

    Replacing one example changes a sum by at most the steps of a loss of 1, whatever the model does: each example is
    evaluated by itself on a fresh copy of the model, so none decides the loss of another, not even by what the model
    remembers in itself; and one on which the evaluation fails (a logit that is not finite, a label beyond the classes)
    has loss 1. An error would tell the server that such an example is there.

    Parameters
    ----------
    model, x, y :
        See `client.evaluation.example_losses`.
    losses : set of str
        Names in `client.losses`.
    """
    steps = {name: steps_of(is_binary=get_loss(name).binary) for name in losses}
    sums = dict.fromkeys(losses, 0)
    for index in range(len(y)):
        try:
            found = mean_losses(deepcopy(model), x[index : index + 1], y[index : index + 1], losses=losses)
            rounded = {name: math.ceil(found[name] * steps[name]) for name in losses}
        except KeyboardInterrupt:
            raise
        except BaseException:  # a model of somebody else's may raise anything, such as SystemExit
            rounded = steps
        for name in losses:
            sums[name] += min(max(rounded[name], 0), steps[name])
    return sums
