"""Adversaries: how bad a client's loss gets when its examples may move, over all cost budgets at once.

`adversarial_curves` is the way in; it needs a model and arrays, and no Flower. `docs/adversaries.md` says what is
exact, what is a bound, and how to add an adversary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from torch import nn

from riskband.adversaries.attacks.apgd import Apgd
from riskband.adversaries.attacks.base import InputAdversary, client_curves
from riskband.adversaries.attacks.foolbox_adapter import FOOLBOX_PREFIX, FoolboxAttack
from riskband.adversaries.attacks.minnorm import MinNorm
from riskband.adversaries.attacks.pgd import Pgd
from riskband.adversaries.attacks.square import Square
from riskband.adversaries.attacks.wc_dg import WcDg
from riskband.adversaries.attacks.wda import Wda, WdaKnapsack, WdaResult, wda_accuracy, wda_attack
from riskband.adversaries.attacks.witness import Witness
from riskband.adversaries.base import Adversary, Batch, Evidence
from riskband.adversaries.bounds.automatic import AutomaticAdversary
from riskband.adversaries.bounds.lipschitz import margin_constants
from riskband.adversaries.bounds.relu_slopes import GrowthSlopes, growth_slopes
from riskband.adversaries.bounds.sandwich import (
    LipschitzAdversary,
    SandwichAdversary,
    check_bounded_loss,
    is_bounded_loss,
)
from riskband.adversaries.curves import AdversarialCurves, Points
from riskband.adversaries.evaluation import logit_batches
from riskband.adversaries.losses import get_loss
from riskband.adversaries.problem import LAYER_PREFIX, REPRESENTATION, TransportProblem, layer_name
from riskband.adversaries.representation.ascent import AscentAdversary
from riskband.adversaries.representation.exact import ExactAdversary, LinearHead, RepresentationAdversary, is_exact
from riskband.adversaries.representation.growth import DUAL_NORMS, GROWTHS
from riskband.adversaries.spaces import split_at
from riskband.answers.adversarial import GUARANTEES

__all__ = [
    "ADVERSARIES",
    "ATTACKS",
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
    "LipschitzAdversary",
    "Points",
    "SandwichAdversary",
    "TransportProblem",
    "WdaResult",
    "Witness",
    "adversarial_curves",
    "can_prove",
    "check_adversary_name",
    "growth_slopes",
    "margin_constants",
    "searches_without_gradients",
    "wda_accuracy",
    "wda_attack",
]

SPACES = (REPRESENTATION, "input")
"""Where examples move; besides, "layer:NAME": at the output of the layer of this name."""
ORDERS = (1, 2)
"""The cost of moving by a distance t is t**order."""
NORMS = tuple(DUAL_NORMS)
"""Ground norms of the distance."""

_SANDWICH_PREFIX = "sandwich:"

Builder = Callable[..., RepresentationAdversary]
ADVERSARIES: dict[str, Builder] = {
    "exact": lambda head, problem, multipliers: ExactAdversary(head, problem),
    "ascent": lambda head, problem, multipliers: AscentAdversary(head, problem, multipliers=multipliers),
}
"""In representation space, by name: (head, problem, multipliers) -> the adversary."""
ATTACKS: dict[str, Callable[[nn.Module, TransportProblem], InputAdversary]] = {
    "pgd": Pgd,
    "apgd": Apgd,
    "min-norm": MinNorm,
    "wc-dg": WcDg,
    "wda": Wda,
    "wda-knapsack": WdaKnapsack,
    "square": Square,
}
"""On inputs, or what a layer returns, by name: (model, problem) -> the attack."""
INPUT_ADVERSARIES: dict[str, Callable[[nn.Module, TransportProblem], Adversary]] = {
    "auto": AutomaticAdversary,
    **ATTACKS,
    "lipschitz": LipschitzAdversary,
    "sandwich": lambda model, problem: SandwichAdversary(
        WdaKnapsack(model, problem), LipschitzAdversary(model, problem)
    ),
}
"""The same with what proves a bound; besides, "foolbox:NAME", and "sandwich:ATTACK" with any attack below."""


def adversarial_curves(
    model: nn.Module,
    x: np.ndarray,
    y: np.ndarray,
    problem: TransportProblem,
    *,
    multipliers: Sequence[float] = (),
    batch_size: int = 512,
) -> AdversarialCurves:
    """Return a client's adversarial risk over all radii and multipliers.

    Parameters
    ----------
    model, x, y, batch_size :
        See `riskband.adversaries.evaluation.example_losses`. In representation space the logits must be the output of
        an `nn.Linear`, elsewhere the model differentiable in what moves; it is left as it was.
    problem : TransportProblem
        Where the examples may move, at what cost, and who moves them.
    multipliers : sequence of float
        Multipliers at which a good answer is wanted; an exact adversary is exact at all of them anyway.

    Returns
    -------
    AdversarialCurves
        Costs, and so radii, are in the units of what moves to the power of the order. Attacks have the guarantee
        "lower", "lipschitz" and sandwiches "upper".

    Raises
    ------
    ValueError
        If the logits do not come from a linear layer, or the model is no chain around the layer of the space, has
        parameters in less than single precision, or nothing is proved of it; or as
        `riskband.adversaries.evaluation.example_losses` does.
    """
    if problem.space != REPRESENTATION:
        _, attacked = split_at(model, problem.layer)
        mover = _input_adversary(problem.adversary, attacked, problem)
        return client_curves(mover, model, x, y, loss=problem.loss, batch_size=batch_size, layer=problem.layer)
    per_example = get_loss(problem.loss).per_example
    with LinearHead(model, problem.head) as watched:

        def batches() -> Iterator[Batch]:
            for xs, ys, logits in logit_batches(model, x, y, batch_size=batch_size):
                watched.check(logits)
                yield Batch(x=xs, labels=ys, logits=logits, losses=per_example(logits, ys))

        best = "exact" if is_exact(problem) else "ascent"
        name = best if problem.adversary == "auto" else problem.adversary
        return ADVERSARIES[name](watched, problem, multipliers).curves(batches())


def can_prove(problem: TransportProblem) -> bool:
    """Return whether the adversary proves a bound from above for the loss, where the model lets it."""
    if problem.space == REPRESENTATION:
        return True
    kind = problem.adversary.partition(":")[0]
    return kind in ("lipschitz", "sandwich") or (kind == "auto" and is_bounded_loss(problem.loss))


def searches_without_gradients(adversary: str) -> bool:
    """Return whether this adversary of inputs searches at random where the model shows no gradient."""
    return adversary.removeprefix(_SANDWICH_PREFIX) in ("auto", "sandwich", "wda-knapsack", "square")


def _input_adversary(name: str, model: nn.Module, problem: TransportProblem) -> Adversary:
    if name.startswith(FOOLBOX_PREFIX):
        return FoolboxAttack(model, problem, name=name.removeprefix(FOOLBOX_PREFIX))
    if name.startswith(_SANDWICH_PREFIX):
        below = _input_adversary(name.removeprefix(_SANDWICH_PREFIX), model, problem)
        return SandwichAdversary(below, LipschitzAdversary(model, problem))
    return INPUT_ADVERSARIES[name](model, problem)


def check_names(problem: TransportProblem) -> None:
    """Check that there is such a loss, cost and adversary, and that they go together; raises ValueError."""
    loss, adversary = problem.loss, problem.adversary
    get_loss(loss)
    check_adversary_name(adversary, space=problem.space)
    _check_choice("order", problem.order, ORDERS)
    _check_choice("norm", problem.norm, NORMS)
    if problem.order == 2 and problem.norm != "l2":
        raise ValueError(f"norm must be 'l2' when order is 2, got {problem.norm!r}; use order 1 for other norms")
    if problem.space != REPRESENTATION:  # an attack needs no slopes of the loss: it may raise the margin
        if adversary != "auto" and can_prove(problem):
            check_bounded_loss(loss)
        return
    if adversary == "exact" and not is_exact(problem):
        raise ValueError(
            f"there is no exact adversary for the loss {loss!r} with costs of order {problem.order}; "
            "use 'ascent' or 'auto', which return an upper and a lower bound"
        )
    if adversary == "auto" and loss not in GROWTHS and not is_exact(problem):
        raise ValueError(f"there is no adversary for the loss {loss!r}; it can be asked plainly, as the mean loss")
    if adversary == "ascent" and loss not in GROWTHS:
        raise ValueError(f"the adversary 'ascent' needs a loss with slopes, got {loss!r}; use 'exact' or 'auto'")


def check_adversary_name(adversary: str, *, space: str) -> None:
    """Check that there is such a space, and an adversary of this name in it; raises ValueError."""
    if not (isinstance(space, str) and layer_name(space)):
        _check_choice("space", space, SPACES, further=f"{LAYER_PREFIX}NAME")
    if space == REPRESENTATION:
        _check_choice("adversary", adversary, ("auto", *ADVERSARIES))
    elif not _has_known_prefix(adversary):
        further = f"{FOOLBOX_PREFIX}NAME, {_SANDWICH_PREFIX}ATTACK"
        _check_choice("adversary", adversary, tuple(INPUT_ADVERSARIES), further=further)


def _has_known_prefix(adversary: object) -> bool:
    """Whether this is "foolbox:NAME", or a sandwich with an attack below."""
    if not isinstance(adversary, str):
        return False
    attack = adversary.removeprefix(_SANDWICH_PREFIX)
    return attack.startswith(FOOLBOX_PREFIX) or (attack != adversary and attack in ATTACKS)


def _check_choice(name: str, value: object, choices: Sequence[object], *, further: str = "") -> None:
    if value not in choices:
        shown = ", ".join([*map(str, choices), *([further] if further else [])])
        raise ValueError(f"{name} must be one of {shown}, got {value!r}")
