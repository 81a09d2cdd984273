"""How objects are shown and compared: one line, equality by content, a page in a notebook, a table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_FIGURES = "riskband.plots.objects"  # imported by its name, on use: figures know the objects, and these no figures
_LONGEST = 160  # characters of what a line says of one object before its settings
_MOST_GROUPS = 6  # in one line


class Shown:
    """An object with one line for a console, which is equal to another if its content is."""

    shown: ClassVar[tuple[str, ...]] = ()
    """Attributes that the line names; "risks.num_clients" is one of an attribute."""

    def __repr__(self) -> str:
        said = [self._words(), *(_fact(name, value) for name, value in self._facts().items() if value is not None)]
        return f"{type(self).__name__}({', '.join(filter(None, said))})"

    def _words(self) -> str:
        """What the line says before the attributes."""
        return ""

    def _facts(self) -> dict[str, object]:
        """What the line names; what is None is left out."""
        return {name.rpartition(".")[2]: attrgetter(name)(self) for name in self.shown}

    def __eq__(self, other: object) -> bool:
        return same_fields(self, other) if isinstance(other, Shown) else NotImplemented

    def __hash__(self) -> int:
        return content_hash(self)


class Drawn(Shown, ABC):
    """An object with a sentence, assumptions and a figure."""

    assumptions: tuple[str, ...]

    @property
    def remark(self) -> str:
        """What is known beside the statement, for people; empty if nothing is."""
        return ""

    @property
    @abstractmethod
    def statement(self) -> str:
        """What it says, as one English sentence."""

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw it by the library's own figures, and return the axes; needs matplotlib.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw. Default: axes of a new figure, which `save_figure` writes: ``band.plot().figure``.

        Returns
        -------
        matplotlib.axes.Axes
            The axes.

        Raises
        ------
        ValueError
            For a certificate over more than two axes.
        """
        axes: Axes = import_module(_FIGURES).plot(self, ax)
        return axes

    def _repr_html_(self) -> str:
        from html import escape

        lines = "".join(f"<li>{escape(line)}</li>" for line in self.assumptions)
        sentence = escape(self.statement)
        remark = f"<p>{escape(self.remark)}</p>" if self.remark else ""
        said = f"<p><strong>{sentence}</strong></p>{remark}<p>This holds if:</p><ul>{lines}</ul>"
        return f"<div>{said}{_inline_figure(self)}</div>"


def _inline_figure(thing: Drawn) -> str:
    """The figure as SVG; nothing without matplotlib, or where there is no figure."""
    if find_spec("matplotlib") is None:
        return ""
    try:
        return str(import_module(_FIGURES).inline_svg(thing))
    except ValueError:
        return ""


def shortened(text: str) -> str:
    """Return a text, cut where it is too long for one line."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _fact(name: str, value: object) -> str:
    if name == "num_clients" and isinstance(value, int):
        return f"{value} clients"
    return f"{name}={_in_short(value)}"


def _in_short(value: object) -> str:
    """A value in a few characters: of an array its ends."""
    if isinstance(value, np.ndarray) and value.size:
        low, high = value.min(), value.max()
        return f"{low:g}" if low == high else f"{low:g} to {high:g}"
    if isinstance(value, Mapping):
        named = [f"{name}: {_in_short(each)}" for name, each in list(value.items())[:_MOST_GROUPS]]
        return f"{{{', '.join([*named, *(['…'] if len(value) > _MOST_GROUPS else [])])}}}"
    return f"{value:.15g}" if isinstance(value, float) else shortened(repr(value))


def to_pandas(columns: Mapping[str, object]) -> pd.DataFrame:
    """Return a frame of pandas with these columns; raises ImportError, with what to do, if pandas is not there."""
    if find_spec("pandas") is None:
        raise ImportError("to_frame needs pandas, which is not installed; run: pip install pandas")
    import pandas as pd

    return pd.DataFrame(dict(columns))


def same_fields(first: object, second: object) -> bool:
    """Whether two dataclasses (or tuples, or mappings) of one type have equal fields; arrays by their entries."""
    if type(first) is not type(second):
        return False
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return np.array_equal(first, second)
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(map(same_fields, first, second))
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(same_fields(first[name], second[name]) for name in first)
    if not is_dataclass(first):
        return bool(first == second)
    return all(same_fields(getattr(first, each.name), getattr(second, each.name)) for each in fields(first))


def content_hash(value: object) -> int:
    """Return a hash of what `same_fields` compares."""
    if isinstance(value, np.ndarray):
        return hash(tuple(value.ravel().tolist()))
    if isinstance(value, Mapping):
        return hash(frozenset((name, content_hash(each)) for name, each in value.items()))
    if isinstance(value, (tuple, list)):
        return hash(tuple(map(content_hash, value)))
    if is_dataclass(value):
        return hash(tuple(content_hash(getattr(value, each.name)) for each in fields(value)))
    return hash(value)
