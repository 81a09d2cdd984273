"""Questions to a client and its answers, as plain data. `client.wire` puts them on the network.

A question and its answer form a pair: `LossQuery` and `LossAnswer`, `AdversarialQuery` and `AdversarialAnswer`,
`HelloQuery` and `HelloAnswer`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise


class RefusedError(ValueError):
    """A refusal whose text names rules and settings only: it may travel to the server as it is."""


@dataclass(frozen=True)
class LossQuery:
    """The question "what is this model's mean loss on your examples?".

    Attributes
    ----------
    loss : str
        A name in `client.losses.LOSSES`.
    model : str
        The architecture, a name that `simulations.models.build_model` knows.
    x_shape : tuple of int
        Shape of one example, such as ``(1, 8, 8)``.
    num_classes : int
        Number of classes the model tells apart.
    """

    loss: str
    model: str
    x_shape: tuple[int, ...]
    num_classes: int


@dataclass(frozen=True)
class LossAnswer:
    """One client's answer to a `LossQuery`; what it claims, not yet checked.

    Attributes
    ----------
    client_id : str
        The client's stable name (Flower's node ids change with every run).
    risk : float
        Mean loss on the client's examples; an honest one lies in [0, 1].
    num_examples : int
        How many examples the mean was taken over.
    loss : str
        The loss that was computed.
    code_hash, model_hash : str
        What computed it: `code_hash` and `model_hash` as seen by the client.
    """

    client_id: str
    risk: float
    num_examples: int
    loss: str
    code_hash: str
    model_hash: str


@dataclass(frozen=True)
class AdversarialQuery:
    """The question "how large does the mean loss get when your examples move, at these budgets?".

    Attributes
    ----------
    loss, model, x_shape, num_classes :
        See `LossQuery`.
    order : int
        1: moving by a distance t costs t; 2: it costs t squared.
    norm : str
        Of the distance: "l1", "l2" or "linf".
    radii : tuple of float
        Cost budgets, in units of the cost (for order 2: of the distance squared), increasing strictly from >= 0; any
        number.
    multipliers : tuple of float
        Prices of a unit of cost, increasing strictly from >= 0; any number.
    head : str or None
        The model's last linear layer; None lets the client find it.
    space : str
        Where examples move: "representation", the space before the head.
    adversary : str
        "exact", "ascent" or "auto"; see `client.adversaries`.

    Raises
    ------
    ValueError
        If radii or multipliers are not finite, not >= 0 or do not increase.
    """

    loss: str
    model: str
    x_shape: tuple[int, ...]
    num_classes: int
    order: int
    norm: str = "l2"
    radii: tuple[float, ...] = ()
    multipliers: tuple[float, ...] = ()
    head: str | None = None
    space: str = "representation"
    adversary: str = "auto"

    def __post_init__(self) -> None:
        # Any sequence is welcome; a query must be hashable, and two equal ones the same bytes.
        object.__setattr__(self, "radii", _checked_grid("radii", self.radii))
        object.__setattr__(self, "multipliers", _checked_grid("multipliers", self.multipliers))


@dataclass(frozen=True)
class AdversarialAnswer:
    """One client's answer to an `AdversarialQuery`; what it claims, not yet checked.

    Attributes
    ----------
    client_id, num_examples, loss, code_hash, model_hash :
        See `LossAnswer`.
    clean_risk : float
        Mean loss without any movement, what a `LossQuery` is answered with.
    values_lower, values_upper : tuple of float, one per radius
        Bounds of the client's adversarial risk; equal if the guarantee is "exact".
    conjugates_lower, conjugates_upper : tuple of float, one per multiplier
        Bounds of the mean over examples of the supremum of loss - multiplier * cost.
    adversarial_unit : float
        Mean cost of the cheapest misclassified point, in units of the cost; 0 if no movement misclassifies anything.
    guarantee : str
        What the upper bounds are: "exact", "upper" (proven) or "lower" (only the lower bounds mean something).
    budget_left : int or None
        Values that the client will still answer; None: no limit.
    """

    client_id: str
    num_examples: int
    loss: str
    clean_risk: float
    values_lower: tuple[float, ...]
    values_upper: tuple[float, ...]
    conjugates_lower: tuple[float, ...]
    conjugates_upper: tuple[float, ...]
    adversarial_unit: float
    guarantee: str
    code_hash: str
    model_hash: str
    budget_left: int | None = None


@dataclass(frozen=True)
class HelloQuery:
    """The question "who are you, and what will you still answer?". It touches no examples and no model."""


@dataclass(frozen=True)
class HelloAnswer:
    """One client's answer to a `HelloQuery`, which spends nothing of its query budget.

    Attributes
    ----------
    client_id, code_hash :
        See `LossAnswer`.
    budget_left : int or None
        Values that the client will still answer; None: no limit.
    """

    client_id: str
    code_hash: str
    budget_left: int | None = None


Query = LossQuery | AdversarialQuery
Answer = LossAnswer | AdversarialAnswer


def _checked_grid(name: str, values: Iterable[float]) -> tuple[float, ...]:
    grid = tuple(float(value) for value in values)
    if not all(math.isfinite(entry) and entry >= 0.0 for entry in grid):
        raise ValueError(f"{name} must be finite and >= 0; they are in units of the transport cost, or prices of one")
    if any(after <= before for before, after in pairwise(grid)):
        raise ValueError(f"{name} must increase strictly; sort them and ask each once")
    return grid
