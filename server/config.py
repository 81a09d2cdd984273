"""The run configuration: typed sections, or every mistake at once.

Flower hands an app a flat mapping with hyphenated keys. The defaults live in one place, the table
``[tool.flwr.app.config]`` of pyproject.toml; a scenario file or ``-c`` replaces some of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationError, ValidationInfo, create_model, field_validator

from server.problems import ConfigError, problem
from server.sections import Rule, Section
from server.settings import (
    Asking,
    Model,
    Network,
    Question,
    Results,
    Run,
    RunConfig,
    SectionKind,
    brings_own_data,
)
from server.studies import STUDIES

_WITHOUT_DATASET: dict[str, Any] = {
    "num_unseen": 0,
    "training": "checkpoint",
    "target_sigmas": (),
    "group_sigmas": (),
    "group_angles": (),
    "target": "",
}

_OF_MODEL = ("x_shape", "num_classes", "training")  # what is of no consequence where no model is sent


class AnyQuestion(Question):
    """What is certified, by one of the studies."""

    strategy: Literal[tuple(STUDIES)] = Field(  # type: ignore[valid-type]
        description=f"with an evaluator use {' or '.join(name for name in STUDIES if STUDIES[name].asks_losses)}"
    )

    rules: ClassVar[Mapping[str, Rule]] = {
        **Question.rules,
        "strategy": lambda strategy, known: not known.get("evaluator") or STUDIES[strategy].asks_losses,
        "ask": lambda ask, known: ask == "all" or "strategy" not in known or STUDIES[known["strategy"]].can_stop,
    }


_SETTINGS: tuple[type[Section], ...] = tuple(study.settings for study in STUDIES.values())
_SECTIONS: tuple[type[Section], ...] = (Run, Network, Model, AnyQuestion, *_SETTINGS, Asking, Results)


def _fit(value: Any, info: ValidationInfo) -> Any:
    """Check how a field must fit earlier ones: the rules of its section, of the study, and of a run without dataset."""
    name, known = str(info.field_name), info.data
    study = STUDIES.get(known.get("strategy", ""))
    rules = [section.rules[name] for section in _SECTIONS if name in section.rules]
    rules += [study.rules[name]] if study is not None and name in study.rules else []
    is_possible = _fits_dataset(
        name, value, known.get("dataset", ""), has_model=not known.get("evaluator", "not valid")
    )
    if not (is_possible and all(fits(value, known) for fits in rules)):
        raise ValueError  # the field's description says the rule
    return value


def _fits_dataset(name: str, value: Any, dataset: str, *, has_model: bool) -> bool:
    """Whether a setting is possible with a dataset: without one, nothing can be trained, moved or checked."""
    if not brings_own_data(dataset) or (name in _OF_MODEL and not has_model):
        return True
    if name == "x_shape":
        return len(value) > 0
    if name == "num_classes":
        return int(value) >= 2
    return bool(value == _WITHOUT_DATASET.get(name, value))


# One flat model, since mistakes are found together and rules look across sections. Pydantic takes bases from last to
# first.
_Flat: type[Section] = create_model(
    "_Flat", __base__=_SECTIONS[::-1], __validators__={"fit": field_validator("*")(_fit)}
)


def load_config(run_config: Mapping[str, Any]) -> RunConfig:
    """Return the checked configuration from Flower's ``context.run_config``; numbers may come as text.

    Raises ConfigError if anything is wrong; it lists every mistake, not only the first.
    """
    try:
        flat = _Flat.model_validate(dict(run_config))
    except ValidationError as error:
        raise ConfigError([problem(each, _Flat.model_fields) for each in error.errors(include_url=False)]) from None

    def part(kind: type[SectionKind]) -> SectionKind:
        return kind.model_construct(**{name: getattr(flat, name) for name in kind.model_fields})

    settings = tuple(part(kind) for kind in _SETTINGS)
    return RunConfig(part(Run), part(Network), part(Model), part(AnyQuestion), settings, part(Asking), part(Results))
