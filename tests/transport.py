"""Transport problems, and questions about them, from single settings."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from torch import Tensor, nn

from protocol.questions import AdversarialQuery
from riskband.adversaries.curves import AdversarialCurves
from riskband.adversaries.problem import TransportProblem
from riskband.adversaries.registry import adversarial_curves

_SETTINGS = {field.name for field in dataclasses.fields(TransportProblem)}


class Sorted(nn.Module):
    """A layer of which nothing is proved."""

    def forward(self, x: Tensor) -> Tensor:
        """Return every row in increasing order."""
        return x.sort(dim=1).values


def not_understood(*, x_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A model of which nothing is proved: `Sorted` is its layer 1."""
    return nn.Sequential(nn.Flatten(), Sorted(), nn.Linear(int(np.prod(x_shape)), num_classes))


def input_problem(*args: Any, **settings: Any) -> TransportProblem:
    """A problem whose examples move in input space."""
    return TransportProblem(*args, **{"space": "input"} | settings)


def curves_of(
    model: nn.Module, x: np.ndarray, y: np.ndarray, *, multipliers: Any = (), batch_size: int = 512, **settings: Any
) -> AdversarialCurves:
    """`adversarial_curves` of the problem with these settings."""
    problem = TransportProblem(**settings)
    return adversarial_curves(model, x, y, problem, multipliers=multipliers, batch_size=batch_size)


def adversarial_query(
    loss: str, model: str, x_shape: tuple[int, ...], num_classes: int, **asked: Any
) -> AdversarialQuery:
    """A question about the problem with these settings."""
    settings = {name: asked.pop(name) for name in _SETTINGS & asked.keys()}
    return AdversarialQuery(model, x_shape, num_classes, TransportProblem(loss, **settings), **asked)


def changed(query: AdversarialQuery, **changes: Any) -> AdversarialQuery:
    """The question with some settings changed, of its problem or its own."""
    settings = {name: changes.pop(name) for name in _SETTINGS & changes.keys()}
    return dataclasses.replace(query, problem=dataclasses.replace(query.problem, **settings), **changes)
