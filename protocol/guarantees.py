"""Which guarantees a correct answer to a question may have: loss, adversary and model decide, never the examples."""

from __future__ import annotations

from functools import lru_cache

import torch

from protocol.models import build_model
from protocol.questions import AdversarialQuery
from riskband.adversaries.bounds.sandwich import is_understood
from riskband.adversaries.names import REPRESENTATION
from riskband.adversaries.spaces import points_at, split_at

_NUM_REMEMBERED = 16


def possible_guarantees(query: AdversarialQuery) -> tuple[str, ...]:
    """Return the guarantees that a correct answer may have, the strongest first.

    One of `riskband.answers.adversarial.GUARANTEES`; for "auto" on inputs or at a layer two, "upper" and "lower", where
    the model cannot be built here.
    """
    best = query.problem.best_guarantee
    is_known = best != "upper" or query.problem.space == REPRESENTATION or query.problem.adversary != "auto"
    return (best,) if is_known else _of_automatic(query.model, query.x_shape, query.num_classes, query.problem.layer)


@lru_cache(maxsize=_NUM_REMEMBERED)
def _of_automatic(model: str, x_shape: tuple[int, ...], num_classes: int, layer: str | None) -> tuple[str, ...]:
    """What "auto" gives for a loss with a bound: its weights aside, the model decides."""
    try:
        built = build_model(model, x_shape=x_shape, num_classes=num_classes, seed=0).eval()
        front, tail = split_at(built, layer)
        point_shape = points_at(front, torch.zeros(1, *x_shape)).shape[1:]
        return ("upper",) if is_understood(tail, point_shape) else ("lower",)
    except KeyboardInterrupt:
        raise
    except BaseException:  # a model of somebody else's may raise anything; whoever has it says what is proved
        return ("upper", "lower")
