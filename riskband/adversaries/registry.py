"""How each adversary is built, by name, and what it says of a client over all radii: `names` has what it may say.

`adversarial_curves` is the way in; it needs a model and arrays, and no Flower. `docs/adversaries.md` says what is
exact, what is a bound, and how to add an adversary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module

import numpy as np
from torch import nn

from riskband.adversaries.attacks.apgd import Apgd
from riskband.adversaries.attacks.base import InputAdversary, client_curves, steadied
from riskband.adversaries.attacks.ensembles import AUTOATTACK, InOrder
from riskband.adversaries.attacks.fab import MinNorm
from riskband.adversaries.attacks.foolbox import FoolboxAttack
from riskband.adversaries.attacks.pgd import Pgd
from riskband.adversaries.attacks.square import Square
from riskband.adversaries.attacks.wc_dg import WcDg
from riskband.adversaries.attacks.wda import Wda, WdaKnapsack
from riskband.adversaries.base import Adversary
from riskband.adversaries.bounds.sandwich import AutomaticAdversary, LipschitzAdversary, SandwichAdversary
from riskband.adversaries.bounds.smoothing import SmoothingAdversary
from riskband.adversaries.curves import AdversarialCurves
from riskband.adversaries.names import (
    FOOLBOX_PREFIX,
    REPRESENTATION,
    SANDWICH_PREFIX,
    SQUARE_PREFIX,
    Smoothing,
    before_head,
    class_module,
    num_queries,
)
from riskband.adversaries.problem import TransportProblem
from riskband.adversaries.representation.ascent import AscentAdversary
from riskband.adversaries.representation.exact import ExactAdversary, LinearHead, RepresentationAdversary
from riskband.adversaries.spaces import split_at
from riskband.checks import RefusedError, kind_of

Builder = Callable[[nn.Module, TransportProblem], Adversary]

_BEFORE_HEAD: dict[str, Callable[[LinearHead, TransportProblem, Sequence[float]], RepresentationAdversary]]
_BEFORE_HEAD = {"exact": ExactAdversary, "ascent": AscentAdversary}


def _above(attack: Builder, model: nn.Module, problem: TransportProblem) -> Adversary:
    return SandwichAdversary(attack(model, problem), LipschitzAdversary(model, problem))


BUILDERS: dict[str, Builder] = {
    "auto": AutomaticAdversary,
    "pgd": Pgd,
    "apgd": Apgd,
    "apgd-ce": partial(Apgd, objective="cross_entropy", num_steps=100),
    "apgd-dlr": partial(Apgd, objective="dlr", num_steps=100),
    "min-norm": MinNorm,
    "wc-dg": WcDg,
    "wda": Wda,
    "wda-knapsack": WdaKnapsack,
    "square": Square,
    "autoattack": partial(InOrder, name="autoattack", parts=AUTOATTACK),
    "lipschitz": LipschitzAdversary,
    "sandwich": partial(_above, WdaKnapsack),
}
"""For each name in `riskband.adversaries.names.INPUT_ADVERSARIES`: (model, problem) -> the adversary."""


def builder(name: str) -> Builder:
    """Return what builds the adversary of inputs of this name, one that `names.input_adversary` knows."""
    if name.startswith(SQUARE_PREFIX):
        return partial(Square, num_steps=num_queries(name), num_refinements=0)  # as published
    if Smoothing.of(name) is not None:
        return SmoothingAdversary
    if name.startswith(FOOLBOX_PREFIX):
        return partial(FoolboxAttack, name=name.removeprefix(FOOLBOX_PREFIX))
    if name.startswith(SANDWICH_PREFIX):
        return partial(_above, builder(name.removeprefix(SANDWICH_PREFIX)))
    return _imported(name) if class_module(name) else BUILDERS[name]


def _imported(name: str) -> Builder:
    """Return the attack that is called "module:Class"; raises RefusedError if there is none that is measured here."""
    module, _, attribute = name.partition(":")
    try:
        kind = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise RefusedError(
            f"adversary must be importable on every client, got {name!r} ({kind_of(error)}); put it on PYTHONPATH"
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, InputAdversary)):
        raise RefusedError(f"adversary must be a subclass of InputAdversary, got {name!r}; it is measured by that")
    return kind


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
    only the mean over its noise does not. Raises ValueError as `riskband.models.evaluation.example_losses`, which
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
        who = before_head(problem.adversary, loss=problem.loss, order=problem.order)
        with LinearHead(model, problem.head) as head:
            adversary = _BEFORE_HEAD[who](head, problem, multipliers)
            found = adversary.curves(head.batches(x, y, loss=problem.loss, batch_size=batch_size))
        return steadied(found, model, x)
    _, attacked = split_at(model, problem.layer)
    mover = builder(problem.adversary)(attacked, problem)
    return client_curves(mover, model, x, y, loss=problem.loss, batch_size=batch_size, layer=problem.layer)
