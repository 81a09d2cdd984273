"""How a band gets its levels: by the name of a method, by an object that was tuned, or from a recipe.

A local step may ask for levels of different numbers of values, deltas and sides, so a method is a factory of levels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from riskband.answers.risks import ClientRisks
from riskband.bands.levels import (
    STITCHED,
    Levels,
    berk_jones_levels,
    dkw_levels,
    kolmogorov_levels,
    sparse_levels,
    stitched_levels,
    truncated_levels,
)
from riskband.bands.local_steps import LevelsOf
from riskband.bands.pilots import Pilot
from riskband.checks import FloatArray, as_spelled, check_numbers, spelled
from riskband.wording import confidence

FIRST_CLIENTS = "the clients are the first ones that answered, in an order that no answer has influenced"

_SPARSE = "sparse:"
_ROUNDING = 1e-13  # of a crossing probability, which may differ by so much on another machine

NAMED_LEVELS: Mapping[str, LevelsOf] = {
    "berk_jones": berk_jones_levels,
    "dkw": dkw_levels,
    "kolmogorov": kolmogorov_levels,
}

MOST_FOR_ALL_RANKS = 20_000
"""Values up to which the default method has a level of its own for each."""


def default_method(num_values: int, method: str = "berk_jones") -> str:
    """Name of what calibrates this method by default: of very many values, few order statistics are constrained."""
    return method if num_values <= MOST_FOR_ALL_RANKS else f"sparse:{method}"


class LevelMethod(Protocol):
    """What `band` needs of a method."""

    @property
    def name(self) -> str:
        """For certificates."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What certificates from such a band assume beyond what all do."""

    def levels(self, num_values: int, delta: float, sides: str) -> Levels:
        """Levels that hold jointly with probability 1 - delta for the sorted values of independent clients."""

    def check_risks(self, risks: ClientRisks) -> None:
        """Raise ValueError if these answers must not be certified with it."""

    def recipe(self, used: Mapping[str, Levels]) -> str | dict[str, Any]:
        """Plain data from which `resolve_level_method` makes a method that gives the used levels."""


@dataclass(frozen=True)
class NamedLevels:
    """A method that depends on nothing but its name."""

    name: str
    levels: LevelsOf
    assumptions: tuple[str, ...] = ()

    def check_risks(self, risks: ClientRisks) -> None:
        """Accept all answers."""

    def recipe(self, used: Mapping[str, Levels]) -> str:
        """Return the name."""
        return self.name


class TunedMethod:
    """A method whose levels were tuned."""

    objectives: Mapping[str, float]  # what they were tuned for, with the weights
    pilot: Pilot  # what they were tuned on

    @property
    def name(self) -> str:
        """For certificates: the objectives and their weights."""
        named = (name if weight == 1.0 else f"{weight:g} {name}" for name, weight in self.objectives.items())
        return f"optimised ({' + '.join(named)})"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """That the pilot's clients are not among those certified."""
        return self.pilot.assumptions

    def check_risks(self, risks: ClientRisks) -> None:
        """Raise ValueError if the pilot is visibly among these answers; see the documentation for what is not seen."""
        self.pilot.refuse_if_certified(risks)

    def recipe(self, used: Mapping[str, Levels]) -> dict[str, Any]:
        """Plain data: objectives by name, the pilot's values, and the levels that were used."""
        levels = {
            key: {side: array.tolist() for side, array in found._asdict().items() if array is not None}
            for key, found in used.items()
        }
        objectives, pilot = dict(self.objectives), self.pilot.to_dict()
        return {"name": "optimised", "objectives": objectives, "pilot": pilot, "levels": levels}


@dataclass(frozen=True, eq=False)
class StoredLevels(TunedMethod):
    """Levels that were tuned once, as a recipe holds them. They are checked, not computed again."""

    objectives: Mapping[str, float]
    pilot: Pilot
    stored: Mapping[str, Levels]  # by `level_key`

    @classmethod
    def from_recipe(cls, data: Mapping[str, Any]) -> StoredLevels:
        """Read what `recipe` wrote; raises ValueError for anything else."""
        if data.keys() != {"name", "objectives", "pilot", "levels"} or data["name"] != "optimised":
            raise ValueError(
                f"a stored method must be 'optimised', with its objectives, pilot and levels, got {data!r:.80}"
            )
        try:
            objectives = {str(name): float(weight) for name, weight in data["objectives"].items()}
            stored = {str(key): _checked_levels(key, sides) for key, sides in data["levels"].items()}
        except (AttributeError, TypeError, OverflowError) as error:
            raise ValueError(
                f"objectives and levels of a stored method must be mappings of numbers: {error}"
            ) from error
        return cls(objectives, Pilot.from_dict(data["pilot"]), stored)

    def levels(self, num_values: int, delta: float, sides: str) -> Levels:
        """Levels from the store; raises ValueError unless they hold with probability 1 - delta."""
        found = self.stored.get(level_key(num_values, delta, sides))
        if found is None or (found.lower is None, found.upper is None) != (sides == "upper", sides == "lower"):
            raise ValueError(
                f"the stored method must have levels for {num_values} values, delta={delta:g} and sides={sides!r}, got "
                f"{', '.join(self.stored) or 'none'}; tune again with OptimisedLevels"
            )
        for side in (found.lower, found.upper):
            if side is not None and side.size != num_values:
                raise ValueError(f"stored levels must be one for each of {num_values} values, got {side.size}")
        if found.coverage < 1.0 - delta - _ROUNDING:
            raise ValueError(
                f"stored levels must hold with probability {confidence(delta)}, got {found.coverage:.9g}; were they "
                "changed?"
            )
        return found


def resolve_level_method(method: object) -> LevelMethod:
    """Return the method of a name, "truncated:LOW:HIGH" or what `Band.recipe` holds of a tuned one.

    A method is returned as it is; raises ValueError for anything else.
    """
    if isinstance(method, Mapping):
        return StoredLevels.from_recipe(method)
    if isinstance(method, str):
        name = as_spelled(method, NAMED_LEVELS)
        if name is not None:
            return NamedLevels(name, NAMED_LEVELS[name])
        if spelled(method) == STITCHED:
            return NamedLevels(STITCHED, stitched_levels, (FIRST_CLIENTS,))
        levels_of = _with_parameters(spelled(method))
        if levels_of is not None:
            return NamedLevels(spelled(method), levels_of)
    elif all(hasattr(method, name) for name in ("name", "assumptions", "levels", "check_risks", "recipe")):
        return method  # type: ignore[return-value]
    raise ValueError(
        f"method must be one of {', '.join(sorted(NAMED_LEVELS))}, truncated:LOW:HIGH, "
        f"sparse:berk_jones, sparse:truncated:LOW:HIGH or an OptimisedLevels, got {method!r:.80}"
    )


def level_key(num_values: int, delta: float, sides: str) -> str:
    """Name of a request for levels."""
    return f"{num_values}:{float(delta)!r}:{sides}"


def _with_parameters(method: str) -> LevelsOf | None:
    """Levels of a name with parameters, if it is one: for every order statistic, or after "sparse:" for few."""
    levels_of, name = truncated_levels, method
    if method.startswith(_SPARSE):
        levels_of, name = sparse_levels, method.removeprefix(_SPARSE)
        if name == "berk_jones":
            return sparse_levels
    if name.split(":")[0] != "truncated":
        return None
    try:
        low, high = (float(text) for text in name.split(":")[1:])
    except ValueError:
        low = high = np.nan
    if not 0.0 <= low < high <= 1.0:
        raise ValueError(
            f"a truncated band needs a range 0 <= LOW < HIGH <= 1 of the CDF, got {method!r}; write truncated:0.5:0.95"
        )
    return partial(levels_of, low=low, high=high)


def _checked_levels(key: str, sides: Mapping[str, Any]) -> Levels:
    if not sides.keys() <= {"lower", "upper"}:
        raise ValueError(f"stored levels must have a lower and an upper side at most, got {', '.join(sides)} for {key}")
    arrays: dict[str, FloatArray] = {}
    for side, values in sides.items():
        array = check_numbers("stored levels", values, remedy="tune again with OptimisedLevels")
        if array.ndim != 1 or not np.all((array >= 0.0) & (array <= 1.0)) or np.any(np.diff(array) < 0.0):
            raise ValueError(f"stored levels must be nondecreasing numbers in [0, 1], the {side} ones of {key} are not")
        arrays[side] = array
    return Levels(arrays.get("lower"), arrays.get("upper"))
