"""From a model and the examples of some clients to the answers that transport certificates are made from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from riskband.adversaries.problem import CurveNumbers, TransportProblem
from riskband.adversaries.registry import adversarial_curves
from riskband.answers.adversarial import GUARANTEES, AdversarialAnswers, default_multipliers
from riskband.checks import check_costs, check_kind


def adversarial_answers(
    model: nn.Module,
    clients: Iterable[tuple[npt.ArrayLike, npt.ArrayLike]],
    *,
    radii: npt.ArrayLike,
    multipliers: npt.ArrayLike | None = None,
    loss: str = "zero_one",
    order: int = 2,
    norm: str = "l2",
    space: str = "representation",
    adversary: str = "auto",
    answered_by: str = "fresh",
    batch_size: int = 512,
    **problem: Any,
) -> AdversarialAnswers:
    """Return how large the loss of each client gets when its examples may move; needs no federation.

    The answers, for `riskband.wasserstein_mean` and its siblings, are what is proved of each client, or else what an
    attack reached. The weakest guarantee of a client is that of all. Raises ValueError if a setting, a radius or a
    client's arrays break their rules; or as `adversarial_curves` does.

    Parameters
    ----------
    model : Module
        Returns logits, shape (batch, num_classes). It is left as it was.
    clients : iterable of (x, y)
        The examples of each client, arrays or tensors: inputs (num_examples, *x_shape), labels (num_examples,).
    radii : array_like, shape (num_radii,)
        Cost budgets of one client, increasing strictly from 0, in units of the transport cost.
    multipliers : array_like, shape (num_multipliers,), optional
        Prices of a unit of cost, increasing; by default `riskband.default_multipliers` of the radii.
    loss, order, norm, space, adversary, **problem
        See `TransportProblem`, which also knows head, box, distances, seed and free_distance.
    answered_by : {"fresh", "trainers"}
        Whether these clients had no part in making the model; see `riskband.ClientRisks`.
    batch_size : int
        Examples per forward pass.
    """
    asked = TransportProblem(loss, order, norm, space, adversary, **problem)
    check_kind("model", model, nn.Module, remedy="it returns the logits of a batch of examples")
    budgets = np.atleast_1d(check_costs("radii", radii, remedy="they are costs, in units of the transport cost"))
    prices = np.atleast_1d(default_multipliers(budgets) if multipliers is None else multipliers)
    numbers = [
        adversarial_curves(
            model, np.asarray(x), np.asarray(y), asked, multipliers=prices.tolist(), batch_size=batch_size
        ).at(budgets, prices)
        for x, y in map(_examples, clients)
    ]
    if not numbers:
        raise ValueError("there must be at least one client, got none; give the examples of each as a pair (x, y)")
    return joined_answers(numbers, asked, radii=budgets, multipliers=prices, answered_by=answered_by)


def _examples(client: object) -> Sequence[npt.ArrayLike]:
    if not isinstance(client, tuple | list) or len(client) != 2:
        kind = type(client).__name__
        raise ValueError(
            f"a client must be a pair (x, y) of inputs and labels, got {kind}; write one alone as [(x, y)]"
        )
    return client


def joined_answers(
    clients: Sequence[CurveNumbers],
    problem: TransportProblem,
    *,
    radii: npt.ArrayLike,
    multipliers: npt.ArrayLike,
    **settings: Any,
) -> AdversarialAnswers:
    """Return the numbers of all clients to certify from: of each what is proved, or else what an attack reached.

    They are those at the radii and multipliers; the settings are those of who answered, and the noise. Raises
    ValueError as `AdversarialAnswers`, such as for fewer than two radii.
    """
    guarantee = max((client.guarantee for client in clients), key=GUARANTEES.index)
    units = [client.adversarial_unit for client in clients if client.adversarial_unit > 0.0]
    return AdversarialAnswers(
        radii,
        [client.values for client in clients],
        [client.num_examples for client in clients],
        cost=_cost_words(problem, clients, guarantee),
        guarantee=guarantee,
        binary=problem.is_binary,
        multipliers=multipliers,
        conjugates=[client.conjugates for client in clients],
        unit=float(np.mean(units)) if units else None,
        **settings,
    )


def without_gradient(clients: Iterable[Any]) -> tuple[int, int] | None:
    """Return at how many examples of all clients attacks found no gradient, or a misleading one, and of how many.

    None if no client said: nothing was attacked, or by what needs no gradient, or the answers have noise. Clients have
    the attributes `num_without_gradient` and `num_examples` of `CurveNumbers`.
    """
    counts = [(c.num_without_gradient, c.num_examples) for c in clients if c.num_without_gradient is not None]
    return (sum(count for count, _ in counts), sum(size for _, size in counts)) if counts else None


def attack_words(clients: Iterable[Any]) -> str:
    """Return what must be said of attacks on these clients, "" if nothing: where no gradient led, and of what model.

    Clients as for `without_gradient`, with `is_unsteady`.
    """
    held = list(clients)
    count, size = without_gradient(held) or (0, 0)
    unsteady = sum(client.is_unsteady for client in held)
    words = [f"attacks found no gradient to follow, or a misleading one, at {count} of {size} examples"] * (count > 0)
    if unsteady > 0:
        words.append(
            f"for {unsteady} of {len(held)} clients the model is random or its logits depend on the batch, and what "
            "attacks reached are the losses of single passes"
        )
    return "; ".join(words)


def _cost_words(problem: TransportProblem, clients: Sequence[CurveNumbers], guarantee: str) -> str:
    layer = problem.layer
    place = f"in {problem.space} space" if layer is None else f"at the output of layer {layer}"
    free = problem.free_distance
    beyond = f" beyond {free!r}, up to which every example may move at no cost" if free else ""
    words = f"order {problem.order}, {problem.norm} distance{beyond}, {place}"
    noise = problem.smoothing
    if noise is not None:
        words += (
            f"; of the smoothed model, with Gaussian noise of standard deviation {noise.sigma!r} on its inputs, "
            f"measured on {noise.num_samples} samples of the noise for each example, whose seed {problem.seed} was "
            "chosen before any answer was seen"
        )
    if guarantee != "lower":  # what is proved is proved of all inputs, or outputs, and needs no gradient
        return words
    if problem.box is not None:
        words += f", {'inputs' if layer is None else 'outputs'} in [{problem.box[0]:g}, {problem.box[1]:g}]"
    return "; ".join(filter(None, (words, attack_words(clients))))
