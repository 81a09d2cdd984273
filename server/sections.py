"""What a section of the run configuration is made of: typed keys, each with the remedy that its errors end with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

Value = TypeVar("Value")


def _split(value: object) -> object:
    """Flower's run configuration has no lists: ``"kl,chi2"`` and ``0.1`` both mean a list."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return (value,) if isinstance(value, int | float) else value


SPLIT = BeforeValidator(_split)
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
AnyNames = Annotated[tuple[str, ...], SPLIT]
Names = Annotated[AnyNames, Field(min_length=1)]
AnyCounts = Annotated[tuple[Count, ...], SPLIT]
Ends = Annotated[tuple[float, ...], SPLIT]
AnyNumbers = Annotated[tuple[Annotated[float, Field(ge=0)], ...], SPLIT]
Numbers = Annotated[AnyNumbers, Field(min_length=1)]

Rule = Callable[[Any, Mapping[str, Any]], object]
"""Whether a value fits the other keys: those of earlier fields that are no mistakes. May raise ValueError."""


class Section(BaseModel):
    """Keys of the run configuration that belong together.

    The attributes are the keys of ``[tool.flwr.app.config]`` with underscores for hyphens; what each means stands
    beside it there. Comma-separated keys are tuples here. The description of a field is the remedy that its errors end
    with.
    """

    # By field, how it must fit earlier ones, also of other sections: all are checked together.
    rules: ClassVar[Mapping[str, Rule]] = {}

    model_config = ConfigDict(
        alias_generator=lambda name: name.replace("_", "-"),
        allow_inf_nan=False,
        coerce_numbers_to_str=True,
        extra="forbid",
        frozen=True,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_truth_value(cls, value: Value, info: ValidationInfo) -> Value:
        """Refuse true and false, which Python counts as 1 and 0, for everything but a switch."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError
        return value


def rule(holds: Callable[[Any], object]) -> AfterValidator:
    """Return the check of a field's own rule, which the description of the field says in words."""

    def check(value: Value) -> Value:
        if not holds(value):
            raise ValueError
        return value

    return AfterValidator(check)


def one_of(known: Collection[str]) -> AfterValidator:
    """Return the check that a name, or each of several different names, is known."""
    return rule(lambda value: value in known if isinstance(value, str) else is_distinct(value) and {*value} <= {*known})


def is_distinct(values: Collection[Any]) -> bool:
    """Return whether no value stands twice."""
    return len(set(values)) == len(values)


def increases(values: Sequence[float]) -> bool:
    """Return whether each value is above the one before it."""
    return all(before < after for before, after in pairwise(values))
