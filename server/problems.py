"""What is wrong with a run configuration, in words: the key, the rule, the value, the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a ConfigError is raised without loading pydantic
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails


class ConfigError(ValueError):
    """The run configuration is wrong; `problems` has one sentence per mistake: key, rule, value, remedy."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


def problem(details: ErrorDetails, fields: Mapping[str, FieldInfo]) -> str:
    """Return one mistake as "key must …, got …; remedy"; the description of a field is its remedy."""
    key = str(details["loc"][0])
    known = {name.replace("_", "-"): field for name, field in fields.items()}
    if details["type"] == "extra_forbidden":
        close = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"the keys are {', '.join(sorted(known))}"
        return f"{key} is not a key of the run configuration; {hint}"
    remedy = known[key].description or ""
    if details["type"] == "missing":
        return f"{key} is missing; " + (remedy or "see [tool.flwr.app.config] in pyproject.toml")
    rule, reasons = details["msg"].replace("Input should", "must", 1).partition(", unable to")[0], [""]
    if details["type"] in ("value_error", "string_pattern_mismatch"):
        rule, reasons = "is not valid", str(details.get("ctx", {}).get("error", "")).split("; ")
    reasons = [reason for reason in reasons if reason not in remedy]  # some end with the remedy
    return "; ".join(filter(None, [f"{key} {rule}, got {details['input']!r}", *reasons, remedy]))
