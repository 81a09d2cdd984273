"""Who may move examples, by name: where, at what cost, what they prove, and which names go together. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from riskband.checks import LARGEST_COST, SMALLEST_COST, RefusedError
from riskband.models.losses import get_loss

REPRESENTATION = "representation"
"""The space before the model's last linear layer."""
LAYER_PREFIX = "layer:"
"""What the name of the space at a layer's output begins with: "layer:2"."""
SMOOTHING_PREFIX = "smoothing:"
"""What the adversary's name begins with if the smoothed model is meant: "smoothing:0.25"."""
SANDWICH_PREFIX = "sandwich:"
"""What the adversary's name begins with if an attack is named below a bound: "sandwich:pgd"."""
NUM_NOISE_SAMPLES = (100, 300, 1000, 3000)
"""Noise samples of an example for which the bound of a smoothed model is proved."""
FOOLBOX_PREFIX = "foolbox:"
"""What the adversary's name begins with if it is an attack of Foolbox."""
SQUARE_PREFIX = "square:"
"""What the adversary's name begins with if it is the published Square with so many queries: "square:5000"."""
SPACES = (REPRESENTATION, "input")
"""Where examples move; besides, "layer:NAME": at the output of the layer of this name."""
ORDERS = (1, 2)
"""The cost of moving by a distance t is t**order."""
NORMS = ("l1", "l2", "linf")
"""Ground norms of the distance."""
REPRESENTATION_ADVERSARIES = ("exact", "ascent")
"""In representation space, by name."""
SLOPED_LOSSES = ("margin", "cross_entropy", "brier")
"""Losses of which it is known how fast they grow with the margin (`riskband.adversaries.representation.growth`)."""
_MOST_QUERIES = 100_000  # of one example: twenty times what is published


@dataclass(frozen=True)
class Kind:
    """What an adversary of inputs, or of what a layer returns, does; `registry.BUILDERS` has how it is built.

    It proves a bound from above ("auto" where one is known), or else is an attack; it may find nothing where the model
    shows no gradients, or attack only within the distances of the problem.
    """

    proves: bool = False
    needs_gradients: bool = True
    needs_distances: bool = False


INPUT_ADVERSARIES: dict[str, Kind] = {
    "auto": Kind(proves=True, needs_gradients=False),
    "pgd": Kind(),
    "apgd": Kind(),
    "apgd-ce": Kind(),
    "apgd-dlr": Kind(),
    "min-norm": Kind(),
    "wc-dg": Kind(),
    "wda": Kind(),
    "wda-knapsack": Kind(needs_gradients=False),
    "square": Kind(needs_gradients=False),
    "autoattack": Kind(needs_distances=True),
    "lipschitz": Kind(proves=True),
    "sandwich": Kind(proves=True, needs_gradients=False),
}
"""By name. Besides "foolbox:NAME", "sandwich:ATTACK" with any attack, "smoothing:SIGMA", "square:QUERIES", and
"module:Class" for an attack of one's own."""


def layer_name(space: str) -> str | None:
    """Return the name of the layer at whose output examples move in this space; None in every other space."""
    return space.removeprefix(LAYER_PREFIX) if space.startswith(LAYER_PREFIX) else None


@dataclass(frozen=True)
class Smoothing:
    """Gaussian noise that makes a randomised classifier of a model, and how often it is drawn for each example."""

    sigma: float
    """Standard deviation of the noise on every entry of an input."""
    num_samples: int = 1000
    """One of `NUM_NOISE_SAMPLES`."""
    is_attacked: bool = False
    """Whether the smoothed model is attacked as well, for an estimate below its bound."""

    @classmethod
    def of(cls, adversary: str) -> Smoothing | None:
        """Return the noise of "smoothing:SIGMA" or "smoothing:SIGMA:SAMPLES"; None for any other adversary.

        With "sandwich:" before it the smoothed model is attacked, too. Raises ValueError if the numbers make no sense.
        """
        name = adversary.removeprefix(SANDWICH_PREFIX)
        if not name.startswith(SMOOTHING_PREFIX):
            return None
        sigma, _, samples = name.removeprefix(SMOOTHING_PREFIX).partition(":")
        try:
            noise = cls(float(sigma), int(samples or cls.num_samples), is_attacked=name != adversary)
        except ValueError:
            noise = cls(math.nan)
        if not (SMALLEST_COST <= noise.sigma <= LARGEST_COST and noise.num_samples in NUM_NOISE_SAMPLES):
            raise ValueError(
                "smoothing must be 'smoothing:SIGMA', a standard deviation above 0, or 'smoothing:SIGMA:SAMPLES' with "
                f"one of {', '.join(map(str, NUM_NOISE_SAMPLES))} noise samples of each example, got {adversary!r}; "
                "such as 'smoothing:0.25'"
            )
        return noise


def num_queries(name: str) -> int:
    """Return the number in "square:QUERIES"; raises ValueError if there is none, or one out of range."""
    digits = name.removeprefix(SQUARE_PREFIX)
    queries = int(digits) if digits.isdecimal() and digits.isascii() else 0
    if not 1 <= queries <= _MOST_QUERIES:
        raise ValueError(
            f"square must be 'square:QUERIES', a whole number from 1 to {_MOST_QUERIES}, got {name!r}; as published: "
            "'square:5000'"
        )
    return queries


def input_adversary(name: object) -> Kind | None:
    """Return the adversary of inputs of this name; None if there is none. Raises ValueError for a senseless number."""
    if not isinstance(name, str):
        return None
    if name.startswith(SQUARE_PREFIX):
        num_queries(name)
        return Kind(needs_gradients=False, needs_distances=True)
    noise = Smoothing.of(name)
    if noise is not None:
        return Kind(proves=True, needs_gradients=noise.is_attacked)
    if name.startswith(FOOLBOX_PREFIX):
        return Kind()
    if name.startswith(SANDWICH_PREFIX):
        below = name.removeprefix(SANDWICH_PREFIX)
        attack = None if below.startswith(SANDWICH_PREFIX) else input_adversary(below)  # once
        return None if attack is None or attack.proves else replace(attack, proves=True)
    return Kind() if class_module(name) else INPUT_ADVERSARIES.get(name)


def class_module(name: str) -> str:
    """Return the module of an adversary that is called "module:Class", as it is or in a sandwich; "" of any other."""
    module, _, attribute = name.removeprefix(SANDWICH_PREFIX).partition(":")
    is_other = f"{module}:" in (FOOLBOX_PREFIX, SMOOTHING_PREFIX, SQUARE_PREFIX, SANDWICH_PREFIX)
    is_class = attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))
    return module if is_class and not is_other else ""


def is_exact(*, loss: str, order: int) -> bool:
    """Return whether the worst case in representation space is known.

    Of the 0-1 loss always. Of the margin loss with order-1 costs: it is convex along every line up to where it
    saturates, so half measures never pay.
    """
    return loss == "zero_one" or (loss == "margin" and order == 1)


def is_bounded_loss(loss: str) -> bool:
    """Return whether a Lipschitz bound is known for this loss."""
    return loss == "zero_one" or loss in SLOPED_LOSSES


def check_bounded_loss(loss: str) -> None:
    """Check that a Lipschitz bound is known for this loss; raises RefusedError."""
    if not is_bounded_loss(loss):
        raise RefusedError(
            f"Lipschitz bounds are known for the losses zero_one, {', '.join(SLOPED_LOSSES)}, got {loss!r}; use an "
            "attack, which needs none"
        )


def before_head(adversary: str, *, loss: str, order: int) -> str:
    """Return who moves in representation space: of "auto", the exact adversary where there is one."""
    if adversary != "auto":
        return adversary
    return "exact" if is_exact(loss=loss, order=order) else "ascent"


def best_guarantee(*, loss: str, order: int, space: str, adversary: str) -> str:
    """Return the strongest guarantee that an answer may have, one of `riskband.answers.adversarial.GUARANTEES`.

    The adversary "auto" gives less where nothing is known of the model. Raises ValueError for a name that there is not.
    """
    if space == REPRESENTATION:
        return "exact" if before_head(adversary, loss=loss, order=order) == "exact" else "upper"
    if Smoothing.of(adversary) is not None:
        return "upper in expectation"
    check_adversary_name(adversary, space=space)
    kind = input_adversary(adversary)
    has_bound = is_bounded_loss(loss) or adversary != "auto"
    return "upper" if kind is not None and kind.proves and has_bound else "lower"


def check_names(*, loss: str, order: int, norm: str, space: str, adversary: str) -> None:
    """Check that there is such a loss, cost and adversary, and that they go together; raises ValueError."""
    get_loss(loss)
    check_adversary_name(adversary, space=space)
    _check_choice("order", order, ORDERS)
    _check_choice("norm", norm, NORMS)
    if order == 2 and norm != "l2":
        raise ValueError(f"norm must be 'l2' when order is 2, got {norm!r}; use order 1 for other norms")
    if space != REPRESENTATION:  # an attack needs no slopes of the loss: it may raise the margin
        kind = input_adversary(adversary)
        if adversary != "auto" and kind is not None and kind.proves:
            check_bounded_loss(loss)
        if Smoothing.of(adversary) is not None:
            _check_smoothing(loss=loss, norm=norm, space=space)
        return
    if adversary == "exact" and not is_exact(loss=loss, order=order):
        raise ValueError(
            f"there is no exact adversary for the loss {loss!r} with costs of order {order}; "
            "use 'ascent' or 'auto', which return an upper and a lower bound"
        )
    if adversary == "auto" and loss not in SLOPED_LOSSES and not is_exact(loss=loss, order=order):
        raise ValueError(f"there is no adversary for the loss {loss!r}; it can be asked plainly, as the mean loss")
    if adversary == "ascent" and loss not in SLOPED_LOSSES:
        raise ValueError(f"the adversary 'ascent' needs a loss with slopes, got {loss!r}; use 'exact' or 'auto'")


def _check_smoothing(**given: str) -> None:
    """Check that the bound of a smoothed model is about this loss, norm and space; raises ValueError."""
    for name, wanted in (("loss", "zero_one"), ("norm", "l2"), ("space", "input")):
        if given[name] != wanted:
            raise ValueError(
                f"{name} must be {wanted!r} with smoothing, got {given[name]!r}; what is proved is the probability of "
                "an error with Gaussian noise on the inputs, by their l2 distance"
            )


def check_adversary_name(adversary: str, *, space: str) -> None:
    """Check that there is such a space, and an adversary of this name in it; raises ValueError."""
    if not (isinstance(space, str) and layer_name(space)):
        _check_choice("space", space, SPACES, further=f"{LAYER_PREFIX}NAME")
    if space == REPRESENTATION:
        _check_choice("adversary", adversary, ("auto", *REPRESENTATION_ADVERSARIES))
    elif input_adversary(adversary) is None:
        further = f"{FOOLBOX_PREFIX}NAME, {SMOOTHING_PREFIX}SIGMA, {SQUARE_PREFIX}QUERIES, {SANDWICH_PREFIX}ATTACK, "
        further += "module:Class"
        _check_choice("adversary", adversary, tuple(INPUT_ADVERSARIES), further=further)


def _check_choice(name: str, value: object, choices: Sequence[object], *, further: str = "") -> None:
    if value not in choices:
        shown = ", ".join([*map(str, choices), *([further] if further else [])])
        raise ValueError(f"{name} must be one of {shown}, got {value!r}")
