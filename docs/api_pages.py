"""The pages of the API reference, made from the public names when the site is built (a hook of mkdocs.yml)."""

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

import riskband

CHAPTERS = {  # title: modules, by the beginning of their names
    "Answers": ("riskband.answers",),
    "Bands": ("riskband.bands", "riskband.tuning"),
    "Bounds": ("riskband.functionals", "riskband.means"),
    "Worst cases": ("riskband.worst_cases",),
    "Groups": ("riskband.groups",),
    "Selection": ("riskband.selection",),
    "Certificates": ("riskband.certificate", "riskband.verification", "riskband.search"),
    "Adversaries": ("riskband.adversaries",),
}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add one page for each chapter; a public name that belongs to none stops the build."""
    homes = homes_of(riskband) + homes_of(importlib.import_module("riskband.adversaries.registry"))
    for title, modules in CHAPTERS.items():
        shown = [home for home in homes if home.startswith(modules)]
        text = "\n".join([f"# {title}", *(f"\n::: {home}" for home in shown)])
        files.append(File.generated(config, f"api/{title.lower().replace(' ', '-')}.md", content=text))
        homes = [home for home in homes if home not in shown]
    if homes:
        raise PluginError(f"docs/api_pages.py has no chapter for {', '.join(homes)}")
    return files


def homes_of(package: ModuleType) -> list[str]:
    """Return the full name of each public name of a package at the place where it is defined, module by module."""
    return sorted(f"{module_of(getattr(package, name), name)}.{name}" for name in package.__all__)


def module_of(value: object, name: str) -> str:
    """Return the module that defines a class or function, or assigns a constant."""
    if isinstance(value, type) or inspect.isfunction(value):
        return value.__module__
    root = Path(riskband.__file__).parent
    assigned = re.compile(rf"^{name}(: .*)? = ", re.MULTILINE)
    path = next(path for path in root.rglob("*.py") if assigned.search(path.read_text(encoding="utf-8")))
    return ".".join(("riskband", *path.relative_to(root).with_suffix("").parts))
