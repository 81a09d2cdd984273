"""Adversaries: how bad a client's loss gets when its examples may move, over all cost budgets at once.

`adversarial_curves` is the way in; it needs a model and arrays, and no Flower. `docs/adversaries.md` says what is
exact, what is a bound, and how to add an adversary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from torch import nn

from client.adversaries.ascent import AscentAdversary
from client.adversaries.base import Adversary, Batch, Evidence
from client.adversaries.curves import AdversarialCurves, Points
from client.adversaries.radial import DUAL_NORMS, GROWTHS
from client.adversaries.representation import ExactAdversary, LinearHead, RepresentationAdversary, is_exact
from client.evaluation import logit_batches
from client.losses import get_loss
from riskband.adversarial_answers import GUARANTEES

__all__ = [
    "ADVERSARIES",
    "GUARANTEES",
    "NORMS",
    "ORDERS",
    "SPACES",
    "AdversarialCurves",
    "Adversary",
    "Batch",
    "Evidence",
    "Points",
    "adversarial_curves",
    "check_adversary",
]

SPACES = ("representation",)
"""Where examples move."""
ORDERS = (1, 2)
"""The cost of moving by a distance t is t**order."""
NORMS = tuple(DUAL_NORMS)
"""Ground norms of the distance."""

Builder = Callable[..., RepresentationAdversary]
ADVERSARIES: dict[str, Builder] = {
    "exact": lambda head, multipliers, **settings: ExactAdversary(head, **settings),
    "ascent": lambda head, multipliers, **settings: AscentAdversary(head, multipliers=multipliers, **settings),
}
"""By name: (head, loss=, order=, norm=, multipliers=) -> the adversary."""


def adversarial_curves(
    model: nn.Module,
    x: np.ndarray,
    y: np.ndarray,
    *,
    loss: str,
    order: int,
    norm: str = "l2",
    multipliers: Sequence[float] = (),
    head: str | None = None,
    adversary: str = "auto",
    batch_size: int = 512,
) -> AdversarialCurves:
    """Return a client's adversarial risk over all radii and multipliers, in representation space.

    Parameters
    ----------
    model, x, y, batch_size :
        See `client.evaluation.example_losses`. The logits must be the output of an `nn.Linear`; the model is left as
        it was.
    loss : str
        A name in `client.losses.LOSSES`.
    order : int
        1: moving by a distance t costs t; 2: it costs t squared (norm "l2" only).
    norm : str
        Norm of the distance between representations: "l1", "l2" or "linf".
    multipliers : sequence of float
        Multipliers at which a good answer is wanted; an exact adversary is exact at all of them anyway.
    head : str, optional
        Name of the last linear layer; found by itself if not given.
    adversary : str
        "exact", "ascent", or "auto": exact where there is an exact one.

    Returns
    -------
    AdversarialCurves
        Costs, and so radii, are in the units of the representation, to the power of the order.

    Raises
    ------
    ValueError
        If an argument is unknown, nothing fits the loss, or the logits do not come from a linear layer; or as
        `client.evaluation.example_losses` does.
    """
    check_adversary(loss=loss, order=order, norm=norm, adversary=adversary)
    per_example = get_loss(loss).per_example
    with LinearHead(model, head) as watched:

        def batches() -> Iterator[Batch]:
            for xs, ys, logits in logit_batches(model, x, y, batch_size=batch_size):
                watched.check(logits)
                yield Batch(x=xs, labels=ys, logits=logits, losses=per_example(logits, ys))

        name = adversary if adversary != "auto" else ("exact" if is_exact(loss=loss, order=order) else "ascent")
        return ADVERSARIES[name](watched, multipliers, loss=loss, order=order, norm=norm).curves(batches())


def check_adversary(*, loss: str, order: int, norm: str, adversary: str, space: str = "representation") -> None:
    """Check that there is such an adversary.

    Raises
    ------
    ValueError
        If one of the names is unknown, or they do not go together.
    """
    get_loss(loss)
    _check_choice("space", space, SPACES)
    _check_choice("order", order, ORDERS)
    _check_choice("norm", norm, NORMS)
    _check_choice("adversary", adversary, ("auto", *ADVERSARIES))
    if order == 2 and norm != "l2":
        raise ValueError(f"norm must be 'l2' when order is 2, got {norm!r}; use order 1 for other norms")
    if adversary == "exact" and not is_exact(loss=loss, order=order):
        raise ValueError(
            f"there is no exact adversary for the loss {loss!r} with costs of order {order}; "
            "use 'ascent' or 'auto', which return an upper and a lower bound"
        )
    if adversary == "ascent" and loss not in GROWTHS:
        raise ValueError(f"the adversary 'ascent' needs a loss with slopes, got {loss!r}; use 'exact' or 'auto'")


def _check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}")
