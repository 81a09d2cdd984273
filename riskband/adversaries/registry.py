"""Who may move examples, by name: where, what they prove or find, and what is left out of whose reach.

`adversarial_curves` is the way in; it needs a model and arrays, and no Flower. `docs/adversaries.md` says what is
exact, what is a bound, and how to add an adversary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from torch import nn

from riskband.adversaries.attacks.apgd import Apgd
from riskband.adversaries.attacks.base import client_curves, steadied
from riskband.adversaries.attacks.ensembles import A3, AUTOATTACK, A3PlusPlus, InOrder
from riskband.adversaries.attacks.fab import MinNorm
from riskband.adversaries.attacks.foolbox import FOOLBOX_PREFIX, FoolboxAttack
from riskband.adversaries.attacks.pgd import Pgd
from riskband.adversaries.attacks.square import SQUARE_PREFIX, Square, num_queries
from riskband.adversaries.attacks.wc_dg import WcDg
from riskband.adversaries.attacks.wda import Wda, WdaKnapsack
from riskband.adversaries.base import Adversary
from riskband.adversaries.bounds.sandwich import (
    AutomaticAdversary,
    LipschitzAdversary,
    SandwichAdversary,
    check_bounded_loss,
    is_bounded_loss,
)
from riskband.adversaries.bounds.smoothing import SmoothingAdversary
from riskband.adversaries.curves import AdversarialCurves
from riskband.adversaries.losses import get_loss
from riskband.adversaries.norms import DUAL_EXPONENTS
from riskband.adversaries.problem import (
    LAYER_PREFIX,
    REPRESENTATION,
    SANDWICH_PREFIX,
    SMOOTHING_PREFIX,
    Smoothing,
    TransportProblem,
    layer_name,
)
from riskband.adversaries.representation.ascent import AscentAdversary
from riskband.adversaries.representation.exact import ExactAdversary, LinearHead, RepresentationAdversary, is_exact
from riskband.adversaries.representation.growth import GROWTHS
from riskband.adversaries.spaces import split_at

SPACES = (REPRESENTATION, "input")
"""Where examples move; besides, "layer:NAME": at the output of the layer of this name."""
ORDERS = (1, 2)
"""The cost of moving by a distance t is t**order."""
NORMS = tuple(DUAL_EXPONENTS)
"""Ground norms of the distance."""

REPRESENTATION_ADVERSARIES: dict[
    str, Callable[[LinearHead, TransportProblem, Sequence[float]], RepresentationAdversary]
]
REPRESENTATION_ADVERSARIES = {"exact": ExactAdversary, "ascent": AscentAdversary}
"""In representation space, by name: (head, problem, multipliers) -> the adversary."""


Builder = Callable[[nn.Module, TransportProblem], Adversary]


@dataclass(frozen=True)
class Kind:
    """An adversary of inputs, or of what a layer returns: how to build it from model and problem, and what it does.

    It proves a bound from above ("auto" where one is known), or else is an attack; it may find nothing where the model
    shows no gradients, or attack only within the distances of the problem.
    """

    build: Builder
    proves: bool = False
    needs_gradients: bool = True
    needs_distances: bool = False


def _above(attack: Builder, model: nn.Module, problem: TransportProblem) -> Adversary:
    return SandwichAdversary(attack(model, problem), LipschitzAdversary(model, problem))


INPUT_ADVERSARIES: dict[str, Kind] = {
    "auto": Kind(AutomaticAdversary, proves=True, needs_gradients=False),
    "pgd": Kind(Pgd),
    "apgd": Kind(Apgd),
    "apgd-ce": Kind(partial(Apgd, objective="cross_entropy", num_steps=100)),
    "apgd-dlr": Kind(partial(Apgd, objective="dlr", num_steps=100)),
    "min-norm": Kind(MinNorm),
    "wc-dg": Kind(WcDg),
    "wda": Kind(Wda),
    "wda-knapsack": Kind(WdaKnapsack, needs_gradients=False),
    "square": Kind(Square, needs_gradients=False),
    "autoattack": Kind(partial(InOrder, name="autoattack", parts=AUTOATTACK), needs_distances=True),
    "a3": Kind(A3),
    "a3++": Kind(A3PlusPlus),
    "lipschitz": Kind(LipschitzAdversary, proves=True),
    "sandwich": Kind(partial(_above, WdaKnapsack), proves=True, needs_gradients=False),
}
"""By name. Besides "foolbox:NAME", "sandwich:ATTACK" with any attack, "smoothing:SIGMA", "square:QUERIES"."""


def input_adversary(name: object) -> Kind | None:
    """Return the adversary of inputs of this name; None if there is none. Raises ValueError for a senseless number."""
    if not isinstance(name, str):
        return None
    if name.startswith(SQUARE_PREFIX):
        published = partial(Square, num_steps=num_queries(name), num_refinements=0)
        return Kind(published, needs_gradients=False, needs_distances=True)
    noise = Smoothing.of(name)
    if noise is not None:
        return Kind(SmoothingAdversary, proves=True, needs_gradients=noise.is_attacked)
    if name.startswith(FOOLBOX_PREFIX):
        return Kind(partial(FoolboxAttack, name=name.removeprefix(FOOLBOX_PREFIX)))
    if name.startswith(SANDWICH_PREFIX):
        below = name.removeprefix(SANDWICH_PREFIX)
        attack = None if below.startswith(SANDWICH_PREFIX) else input_adversary(below)  # once
        if attack is None or attack.proves:
            return None
        return replace(attack, build=partial(_above, attack.build), proves=True)
    return INPUT_ADVERSARIES.get(name)


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

    Costs, and so radii, are in the units of what moves to the power of the order. Attacks have the guarantee "lower",
    "lipschitz" and sandwiches "upper", smoothing "upper in expectation": a client's answer may lie below its truth, and
    only the mean over its noise does not. Raises ValueError as `riskband.adversaries.evaluation.example_losses`, which
    has the other parameters, or if the logits do not come from a linear layer, or the model is no chain around the
    layer of the space, has parameters in less than single precision, or nothing is proved of it, such as where its
    logits are random or depend on the batch (`evaluation.is_steady`); an attack only says so.

    Parameters
    ----------
    model : Module
        In representation space the logits must be the output of an `nn.Linear`, elsewhere it must be differentiable in
        what moves; it is left as it was.
    problem : TransportProblem
        Where the examples may move, at what cost, and who moves them.
    multipliers : sequence of float
        Multipliers at which a good answer is wanted; an exact adversary is exact at all of them anyway.
    """
    if problem.space == REPRESENTATION:
        with LinearHead(model, problem.head) as head:
            adversary = REPRESENTATION_ADVERSARIES[_before_head(problem)](head, problem, multipliers)
            found = adversary.curves(head.batches(x, y, loss=problem.loss, batch_size=batch_size))
        return steadied(found, model, x)
    _, attacked = split_at(model, problem.layer)
    mover = _elsewhere(problem).build(attacked, problem)
    return client_curves(mover, model, x, y, loss=problem.loss, batch_size=batch_size, layer=problem.layer)


def best_guarantee(problem: TransportProblem) -> str:
    """Return the strongest guarantee that an answer may have, one of `riskband.answers.adversarial.GUARANTEES`.

    The adversary "auto" gives less where nothing is known of the model.
    """
    if problem.space == REPRESENTATION:
        return "exact" if _before_head(problem) == "exact" else "upper"
    if problem.smoothing is not None:
        return "upper in expectation"
    is_auto = problem.adversary == "auto"
    return "upper" if _elsewhere(problem).proves and (is_bounded_loss(problem.loss) or not is_auto) else "lower"


def _before_head(problem: TransportProblem) -> str:
    if problem.adversary != "auto":
        return problem.adversary
    return "exact" if is_exact(problem) else "ascent"


def _elsewhere(problem: TransportProblem) -> Kind:
    kind = input_adversary(problem.adversary)
    assert kind is not None  # `check_names`
    return kind


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
        if adversary != "auto" and _elsewhere(problem).proves:
            check_bounded_loss(loss)
        if problem.smoothing is not None:
            _check_smoothing(problem)
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


def _check_smoothing(problem: TransportProblem) -> None:
    """Check that the bound of a smoothed model is about this loss, norm and space; raises ValueError."""
    for name, wanted in (("loss", "zero_one"), ("norm", "l2"), ("space", "input")):
        if getattr(problem, name) != wanted:
            raise ValueError(
                f"{name} must be {wanted!r} with smoothing, got {getattr(problem, name)!r}; what is proved is the "
                "probability of an error with Gaussian noise on the inputs, by their l2 distance"
            )


def check_adversary_name(adversary: str, *, space: str) -> None:
    """Check that there is such a space, and an adversary of this name in it; raises ValueError."""
    if not (isinstance(space, str) and layer_name(space)):
        _check_choice("space", space, SPACES, further=f"{LAYER_PREFIX}NAME")
    if space == REPRESENTATION:
        _check_choice("adversary", adversary, ("auto", *REPRESENTATION_ADVERSARIES))
    elif input_adversary(adversary) is None:
        further = f"{FOOLBOX_PREFIX}NAME, {SMOOTHING_PREFIX}SIGMA, {SQUARE_PREFIX}QUERIES, {SANDWICH_PREFIX}ATTACK"
        _check_choice("adversary", adversary, tuple(INPUT_ADVERSARIES), further=further)


def _check_choice(name: str, value: object, choices: Sequence[object], *, further: str = "") -> None:
    if value not in choices:
        shown = ", ".join([*map(str, choices), *([further] if further else [])])
        raise ValueError(f"{name} must be one of {shown}, got {value!r}")
