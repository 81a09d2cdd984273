"""The published JSON schemas, and what is wrong with a document by one of them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import referencing

FOLDER = Path(__file__).parents[1] / "docs" / "schemas"
SCHEMAS = {
    name: json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))
    for name in ("certificate", "certificates", "report")
}


@cache
def _validator(kind: str) -> Any:
    """A validator that knows all schemas and asks no network."""
    files = [(each["$id"], referencing.Resource.from_contents(each)) for each in SCHEMAS.values()]
    return jsonschema.Draft202012Validator(SCHEMAS[kind], registry=referencing.Registry().with_resources(files))


def problems(kind: str, document: Any) -> list[str]:
    """What is wrong with a document, with the place; nothing if it fits."""
    return [f"{error.json_path}: {error.message}" for error in _validator(kind).iter_errors(document)]
