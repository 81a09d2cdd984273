"""What the package offers, and what it does not drag in."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest

import riskband as rb

FUNCTIONS = [name for name in rb.__all__ if inspect.isfunction(getattr(rb, name))]
CLASSES = [name for name in rb.__all__ if inspect.isclass(getattr(rb, name))]
CONSTANTS = ["CHI2", "DIVERGENCES", "HELLINGER2", "KL", "LINEAR", "TV"]


def section(text, name):
    found = re.search(rf"^ *{name}\n *-+\n(.*?)(?=^ *\w+\n *-+\n|\Z)", text, re.DOTALL | re.MULTILINE)
    return found.group(1) if found else ""


def test_names_are_sorted_constants_then_classes_then_functions():
    def rank(name):
        return (not name.isupper(), not name[0].isupper(), name)

    assert rb.__all__ == sorted(rb.__all__, key=rank)
    assert sorted(rb.__all__) == sorted([*FUNCTIONS, *CLASSES, *CONSTANTS])


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


@pytest.mark.parametrize("name", CLASSES)
def test_classes_document_their_fields_and_methods(name):
    cls = getattr(rb, name)
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


def test_importing_riskband_imports_neither_flower_nor_torch():
    code = (
        "import sys, riskband, riskband.cli, riskband.plots.bands;"
        "print([m for m in ('flwr', 'torch', 'ray', 'cvxpy', 'flwr_datasets') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
