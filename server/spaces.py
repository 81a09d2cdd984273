"""The keys about where examples move and who moves them: their rules, in words and as checks."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from riskband.adversaries.attacks.foolbox import FOOLBOX_PREFIX
from riskband.adversaries.problem import LAYER_PREFIX, REPRESENTATION, TransportProblem, layer_name
from riskband.adversaries.registry import INPUT_ADVERSARIES, REPRESENTATION_ADVERSARIES, SPACES, check_adversary_name

SPACE_RULE = f"use one of {', '.join(SPACES)}, or {LAYER_PREFIX}NAME for what a layer returns"
BOX_RULE = 'give the ends of the range of what moves such as "0,1", or ""; in representation space ""'
DISTANCES_RULE = (
    'give increasing distances such as "0.1,0.2", or "" to let the attacks choose them; in representation space ""'
)
ADVERSARY_RULE = (
    f'use "auto"; in representation space {", ".join(REPRESENTATION_ADVERSARIES)}: "exact" fits the loss zero_one (and '
    f'margin with order 1), "ascent" the others; elsewhere {", ".join(INPUT_ADVERSARIES)}, sandwich:ATTACK, or '
    f"{FOOLBOX_PREFIX}NAME with a box"
)
HEAD_RULE = (
    'give the name of the model\'s last linear layer, or "" to let the clients find it; only in representation space'
)


def is_space(value: str) -> bool:
    """Return whether there is such a space."""
    return value in SPACES or bool(layer_name(value))


def fits_space(key: str, value: Any, space: str) -> bool:
    """Return whether "head", "box" or "attack_distances" of a run are possible in a space; empty ones always are."""
    if not value:
        return True
    if key == "head":
        return space == REPRESENTATION
    is_increasing = all(before < after for before, after in pairwise(value))
    is_of_its_kind = len(value) == 2 if key == "box" else value[0] > 0.0
    return is_increasing and is_of_its_kind and space != REPRESENTATION


def fits_question(adversary: str, known: Mapping[str, Any]) -> bool:
    """Return whether a run has what an adversary needs; raises ValueError if there is no such adversary.

    Parameters
    ----------
    adversary : str
        Its name.
    known : mapping
        Values of a run's fields, those that are not mistakes themselves.
    """
    if "space" in known:
        check_adversary_name(adversary, space=known["space"])
    fields = ("loss", "transport_order", "transport_norm", "space")
    if known.keys() >= set(fields):  # else another mistake comes first
        loss, order, norm, space = (known[field] for field in fields)
        TransportProblem(loss, order, norm, space, adversary)
    return not (FOOLBOX_PREFIX in adversary and known.get("box") == ())
