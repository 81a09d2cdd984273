"""Adversaries: how bad a client's loss gets when its examples may move, over all cost budgets at once.

`adversarial_curves` is the way in; it needs a model and arrays, and no Flower. `docs/adversaries.md` says what is
exact, what is a bound, and how to add an adversary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from torch import nn

from client.adversaries.ascent import AscentAdversary
from client.adversaries.attacks import Pgd
from client.adversaries.base import Adversary, Batch, Evidence
from client.adversaries.curves import AdversarialCurves, Points
from client.adversaries.foolbox_adapter import FOOLBOX_PREFIX, FoolboxAttack
from client.adversaries.inputs import InputAdversary, InputProblem, client_curves
from client.adversaries.lipschitz import LipschitzAdversary, SandwichAdversary, check_bounded_loss
from client.adversaries.lipschitz_bounds import margin_constants
from client.adversaries.minnorm import MinNorm
from client.adversaries.radial import DUAL_NORMS, GROWTHS
from client.adversaries.relu_slopes import GrowthSlopes, growth_slopes
from client.adversaries.representation import ExactAdversary, LinearHead, RepresentationAdversary, is_exact
from client.adversaries.wc_dg import WcDg
from client.adversaries.wda import Wda, WdaKnapsack, WdaResult, wda_accuracy, wda_attack
from client.adversaries.witness import Witness
from client.evaluation import logit_batches
from client.losses import get_loss
from riskband.adversarial_answers import GUARANTEES

__all__ = [
    "ADVERSARIES",
    "GUARANTEES",
    "INPUT_ADVERSARIES",
    "NORMS",
    "ORDERS",
    "SPACES",
    "AdversarialCurves",
    "Adversary",
    "Batch",
    "Evidence",
    "GrowthSlopes",
    "InputAdversary",
    "InputProblem",
    "LipschitzAdversary",
    "Points",
    "SandwichAdversary",
    "WdaResult",
    "Witness",
    "adversarial_curves",
    "check_adversary",
    "growth_slopes",
    "margin_constants",
    "wda_accuracy",
    "wda_attack",
]

SPACES = ("representation", "input")
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
"""In representation space, by name: (head, loss=, order=, norm=, multipliers=) -> the adversary."""
INPUT_ADVERSARIES: dict[str, Callable[[nn.Module, InputProblem], Adversary]] = {
    "pgd": Pgd,
    "min-norm": MinNorm,
    "wc-dg": WcDg,
    "wda": Wda,
    "wda-knapsack": WdaKnapsack,
    "lipschitz": LipschitzAdversary,
    "sandwich": lambda model, problem: SandwichAdversary(
        WdaKnapsack(model, problem), LipschitzAdversary(model, problem)
    ),
}
"""In input space, by name: (model, problem) -> the adversary."""


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
    space: str = "representation",
    box: tuple[float, float] | None = None,
    distances: Sequence[float] = (),
    seed: int = 0,
) -> AdversarialCurves:
    """Return a client's adversarial risk over all radii and multipliers.

    Parameters
    ----------
    model, x, y, batch_size :
        See `client.evaluation.example_losses`. In representation space the logits must be the output of an
        `nn.Linear`, in input space the model differentiable in its inputs; it is left as it was.
    loss : str
        A name in `client.losses.LOSSES`.
    order : int
        1: moving by a distance t costs t; 2: it costs t squared (norm "l2" only).
    norm : str
        Norm of the distance between representations, or inputs: "l1", "l2" or "linf".
    multipliers : sequence of float
        Multipliers at which a good answer is wanted; an exact adversary is exact at all of them anyway.
    head : str, optional
        Name of the last linear layer; found by itself if not given. Representation space only.
    adversary : str
        In representation space "exact", "ascent", or "auto": exact where there is an exact one. In input space a name
        in `INPUT_ADVERSARIES`, "foolbox:NAME" for an attack of Foolbox, or "auto": "wda-knapsack". "lipschitz" proves a
        bound, "sandwich" does so above "wda-knapsack".
    space : str
        Where examples move: "representation" or "input".
    box : (float, float), optional
        Smallest and largest value that an entry of an input may have; the answer is about moves within it. Input space
        only, as what follows.
    distances : sequence of float
        Distances at which attacks within a ball look; by themselves they choose some for each example.
    seed : int
        Of random starts; the same seed gives the same answer.

    Returns
    -------
    AdversarialCurves
        Costs, and so radii, are in the units of the representation, or the input, to the power of the order. Attacks
        in input space have the guarantee "lower", "lipschitz" and "sandwich" have "upper".

    Raises
    ------
    ValueError
        If an argument is unknown, nothing fits the loss, or the logits do not come from a linear layer; or as
        `client.evaluation.example_losses` does.
    """
    check_adversary(loss=loss, order=order, norm=norm, adversary=adversary, space=space)
    if space == "input":
        if head is not None:
            raise ValueError(f"head must be None in input space, got {head!r}; no layer is singled out there")
        problem = InputProblem(
            loss, order, norm, box=box, distances=tuple(distances), multipliers=tuple(multipliers), seed=seed
        )
        mover = _input_adversary(adversary, model, problem)
        return client_curves(mover, model, x, y, loss=loss, batch_size=batch_size)
    if box is not None or len(distances) > 0:
        raise ValueError("box and distances must not be given in representation space; they are about inputs")
    per_example = get_loss(loss).per_example
    with LinearHead(model, head) as watched:

        def batches() -> Iterator[Batch]:
            for xs, ys, logits in logit_batches(model, x, y, batch_size=batch_size):
                watched.check(logits)
                yield Batch(x=xs, labels=ys, logits=logits, losses=per_example(logits, ys))

        name = adversary if adversary != "auto" else ("exact" if is_exact(loss=loss, order=order) else "ascent")
        return ADVERSARIES[name](watched, multipliers, loss=loss, order=order, norm=norm).curves(batches())


def _input_adversary(name: str, model: nn.Module, problem: InputProblem) -> Adversary:
    if name.startswith(FOOLBOX_PREFIX):
        return FoolboxAttack(model, problem, name=name.removeprefix(FOOLBOX_PREFIX))
    return INPUT_ADVERSARIES["wda-knapsack" if name == "auto" else name](model, problem)


def check_adversary(
    *,
    loss: str,
    order: int,
    norm: str,
    adversary: str,
    space: str = "representation",
) -> None:
    """Check that there is such an adversary.

    Parameters
    ----------
    loss, order, norm, adversary, space :
        See `adversarial_curves`.

    Raises
    ------
    ValueError
        If one of the names is unknown, or they do not go together.
    """
    get_loss(loss)
    _check_choice("space", space, SPACES)
    _check_choice("order", order, ORDERS)
    _check_choice("norm", norm, NORMS)
    if not (space == "input" and isinstance(adversary, str) and adversary.startswith(FOOLBOX_PREFIX)):
        _check_choice("adversary", adversary, ("auto", *(ADVERSARIES if space != "input" else INPUT_ADVERSARIES)))
    if order == 2 and norm != "l2":
        raise ValueError(f"norm must be 'l2' when order is 2, got {norm!r}; use order 1 for other norms")
    if adversary in ("lipschitz", "sandwich"):
        check_bounded_loss(loss)
    if space == "input":  # an attack needs no slopes of the loss: it may raise the margin
        return
    if adversary == "exact" and not is_exact(loss=loss, order=order):
        raise ValueError(
            f"there is no exact adversary for the loss {loss!r} with costs of order {order}; "
            "use 'ascent' or 'auto', which return an upper and a lower bound"
        )
    if adversary == "auto" and loss not in GROWTHS and not is_exact(loss=loss, order=order):
        raise ValueError(f"there is no adversary for the loss {loss!r}; it can be asked plainly, as the mean loss")
    if adversary == "ascent" and loss not in GROWTHS:
        raise ValueError(f"the adversary 'ascent' needs a loss with slopes, got {loss!r}; use 'exact' or 'auto'")


def _check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}")
