"""What the package offers, and what it does not drag in."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
import typing
from importlib import metadata
from pathlib import Path

import pytest

import riskband as rb

FUNCTIONS = [name for name in rb._MODULES if inspect.isfunction(getattr(rb, name))]
CLASSES = [name for name in rb._MODULES if inspect.isclass(getattr(rb, name))]
RETURNED = dict.fromkeys(
    typing.get_type_hints(getattr(rb, name))["return"] for name in FUNCTIONS if name != "report_page"
)
"""What functions give, imported from its own module; a page is text."""
CONSTANTS = ["DIVERGENCES"]


def section(text, name):
    found = re.search(rf"^ *{name}\n *-+\n(.*?)(?=^ *\w+\n *-+\n|\Z)", text, re.DOTALL | re.MULTILINE)
    return found.group(1) if found else ""


def test_all_public_names_are_listed_and_are_functions_classes_or_known_constants():
    assert sorted(rb.__all__) == sorted(rb._MODULES)
    assert dir(rb) == sorted([*rb.__all__, "__version__"])
    assert sorted(rb._MODULES) == sorted([*FUNCTIONS, *CLASSES, *CONSTANTS])


def test_what_is_imported_on_use_is_what_a_type_checker_sees():
    tree = ast.parse(Path(rb.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name: (node.module, alias.asname) for node in block.body[1:] for alias in node.names}
    assert seen == {name: (f"riskband.{module}", None) for name, module in rb._MODULES.items()}


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'riskband' has no attribute 'gimi'"):
        _ = rb.gimi


def test_the_version_is_that_of_the_project_installed_or_not(monkeypatch):
    project = tomllib.loads((Path(rb.__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    monkeypatch.setattr(metadata, "version", lambda name: (_ for _ in ()).throw(metadata.PackageNotFoundError(name)))
    assert rb._version() == rb.__version__ == project["project"]["version"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_document_parameters_and_returns(name):
    function = getattr(rb, name)
    text = inspect.getdoc(function)
    if len(text.splitlines()) == 1:  # a one-liner must at least name what it takes
        documented = text
    else:
        documented = section(text, "Parameters")
        assert section(text, "Returns")
    for parameter in inspect.signature(function).parameters:
        assert re.search(rf"\b{parameter}\b", documented), f"{name} does not document {parameter}"


@pytest.mark.parametrize(
    "cls",
    [
        *(getattr(rb, name) for name in CLASSES),
        *(each for each in RETURNED if inspect.isclass(each) and each.__module__.startswith("riskband")),
    ],
    ids=lambda cls: cls.__name__,
)
def test_classes_document_their_fields_and_methods(cls):
    name = cls.__name__
    text = inspect.getdoc(cls)
    fields = section(text, "Attributes") + section(text, "Parameters")
    for field in cls.__annotations__:
        assert re.search(rf"\b{field}\b", fields), f"{name} does not document {field}"
    for method, value in vars(cls).items():
        is_own = inspect.isfunction(value) or isinstance(value, (classmethod, property))
        if is_own and not method.startswith("_"):
            assert inspect.getdoc(getattr(cls, method)), f"{name}.{method} has no docstring"


def test_the_package_documents_itself():
    assert "certificate" in rb.__doc__
