"""The keys of the study "wasserstein", and what they ask the clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from riskband.adversaries.names import (
    FOOLBOX_PREFIX,
    INPUT_ADVERSARIES,
    LAYER_PREFIX,
    NORMS,
    REPRESENTATION,
    REPRESENTATION_ADVERSARIES,
    SMOOTHING_PREFIX,
    SPACES,
    SQUARE_PREFIX,
    Smoothing,
    check_adversary_name,
    input_adversary,
    layer_name,
)
from riskband.adversaries.problem import TransportProblem
from riskband.models.losses import OWN
from server.sections import AnyNumbers, Count, Ends, Numbers, Rule, Section, increases, is_distinct, one_of, rule
from server.settings import RunConfig


def _fits_question(adversary: str, known: Mapping[str, Any]) -> bool:
    """Whether a run has what an adversary needs; raises ValueError if there is no such adversary."""
    if "space" in known:
        check_adversary_name(adversary, space=known["space"])
    fields = ("loss", "transport_order", "transport_norm", "space")
    if known.keys() >= set(fields) and known["loss"] != OWN:  # else another mistake comes first
        loss, order, norm, space = (known[field] for field in fields)
        TransportProblem(loss, order, norm, space, adversary)
    if (known.get("require") or known.get("free_distance")) and Smoothing.of(adversary) is not None:
        return False
    kind = input_adversary(adversary)
    if kind is not None and kind.needs_distances and known.get("attack_distances") == ():
        return False
    return not (FOOLBOX_PREFIX in adversary and known.get("box") == ())


class Settings(Section):
    """How far examples may move, where, at what cost, and who moves them; and networks to compare with."""

    transport_order: int = Field(ge=1, le=2, description="1: moving by a distance t costs t; 2: it costs t squared")
    transport_norm: Annotated[str, one_of(NORMS)] = Field(
        description=f"use one of {', '.join(NORMS)}; with transport-order 2 only l2"
    )
    free_distance: float = Field(
        ge=0,
        description="every example may move so far at no cost; above 0 for the loss zero_one, without smoothing, "
        "privacy and require",
    )
    cost_budgets: Annotated[Numbers, rule(lambda costs: costs[-1] > 0 and increases(costs))] = Field(
        description='give increasing costs, at least one above 0, such as "0,5,10"'
    )
    cost_thresholds: Annotated[Numbers, rule(lambda each: each[0] > 0 and each[-1] <= 1 and increases(each))] = Field(
        description='give increasing risks in (0, 1], such as "0.3,0.5"'
    )
    num_radii: int = Field(ge=3, le=10_000, description="cost budgets asked of every client; 50 is plenty")
    num_multipliers: int = Field(ge=1, le=10_000, description="prices of cost that share delta; 24 is plenty")
    space: Annotated[str, rule(lambda space: space in SPACES or layer_name(space))] = Field(
        description=f"use one of {', '.join(SPACES)}, or {LAYER_PREFIX}NAME for what a layer returns"
    )
    box: Annotated[Ends, rule(lambda ends: not ends or (len(ends) == 2 and increases(ends)))] = Field(
        description='give the ends of the range of what moves such as "0,1", or ""; in representation space ""'
    )
    attack_distances: Annotated[AnyNumbers, rule(lambda each: not each or (each[0] > 0.0 and increases(each)))] = Field(
        description='give increasing distances such as "0.1,0.2", or "" to let the attacks choose them; in '
        'representation space ""'
    )
    adversary: str = Field(
        description=f'use "auto"; in representation space {", ".join(REPRESENTATION_ADVERSARIES)}: "exact" fits the '
        f'loss zero_one (and margin with order 1), "ascent" the others; elsewhere {", ".join(INPUT_ADVERSARIES)}, '
        f"sandwich:ATTACK, {FOOLBOX_PREFIX}NAME with a box, {SQUARE_PREFIX}QUERIES (like autoattack with "
        f"attack-distances), module:Class, or {SMOOTHING_PREFIX}SIGMA without privacy, "
        "require and free-distance, which is about the model itself"
    )
    head: str = Field(
        description='give the name of the model\'s last linear layer, or "" to let the clients find it; only in '
        "representation space"
    )
    protocol: Literal["one-round", "bisection"]
    bisection_tolerance: float = Field(gt=0, lt=1, description="where the bisection stops, in units of the loss")
    cost_bound: float = Field(ge=0, description="a bound on the cost between any two clients; 0 means: none is known")
    target_sigmas: Annotated[AnyNumbers, rule(is_distinct)] = Field(
        description='give different strengths such as "0.05,0.1", or "" for no targets; with smoothing ""'
    )
    num_targets: Count = Field(description="clients of each target network")

    rules: ClassVar[Mapping[str, Rule]] = {
        "free_distance": lambda free, known: not free or (known.get("loss") == "zero_one" and not known.get("require")),
        "transport_norm": lambda norm, known: norm == "l2" or known.get("transport_order") != 2,
        **dict.fromkeys(
            ("box", "attack_distances"), lambda value, known: not value or known.get("space") != REPRESENTATION
        ),
        "adversary": _fits_question,
        "target_sigmas": lambda sigmas, known: not sigmas or not _is_smoothed(known),
        "head": lambda head, known: not head or known.get("space", REPRESENTATION) == REPRESENTATION,
    }


def fits_noise(noise: str, known: Mapping[str, Any]) -> bool:
    """Return whether the certificates can account for this noise."""
    has_box_at_layer = known.get("box") and layer_name(known.get("space", ""))  # clients refuse that
    needs_values = known.get("protocol") == "bisection" or known.get("cost_bound")
    return not noise or not (needs_values or has_box_at_layer or _is_smoothed(known) or known.get("free_distance"))


def _is_smoothed(known: Mapping[str, Any]) -> bool:
    return Smoothing.of(known.get("adversary", "")) is not None


def transport_problem(config: RunConfig) -> TransportProblem:
    """Return where examples may move, at what cost, and who moves them."""
    chosen = config.of(Settings)
    return TransportProblem(
        loss=config.question.loss,
        order=chosen.transport_order,
        norm=chosen.transport_norm,
        **chosen.model_dump(include={"space", "adversary", "free_distance"}),
        head=chosen.head or None,
        box=(chosen.box[0], chosen.box[1]) if chosen.box else None,
        distances=chosen.attack_distances,
        seed=config.run.seed,
    )
