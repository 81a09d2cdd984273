"""A certificate: a bound, the probability that it fails, and everything it needs to be checked again."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence, Sized
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from riskband import wording
from riskband.checks import FloatArray, check_delta, check_numbers, set_fields
from riskband.wording import (
    chosen_before,
    confidence,
    evenly,
    exactly,
    in_full,
    rounded_down,
    rounded_up,
    rounded_up_strictly,
)
from riskband.wording.shown import Drawn, shortened, to_pandas

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "riskband.certificate/1"

USUAL_DELTA = 0.05

_CURVES = {  # what is bounded over their axes, by the function in the recipe; of a measure it is in its name
    "mean_bound": "mean",
    "survival": "share",
    "worst_case_mean": "mean",
    "worst_case_cdf": "share",
    "next_clients": "largest",
    "divergence_lower_bound": "divergence",
    "wasserstein_mean": "mean",
    "wasserstein_published": "mean",
    "wasserstein_cdf": "share",
    "lorenz_certificate": "lorenz",
    "quantile_certificate": "quantile",
    "select": "selection",
}
_PARAMETERS = ("measure", "weight", "comparison", "functional", "first", "second", "objective")
_POINTS = ("k", "above", "level", "thresholds")  # what follows the functional in a name
_PLACES = ("cost", "target", "next", "others", "all")  # what a population begins with, unless it is a divergence
_NUM_SHOWN, _LONG = 3, 8  # points of a curve or clients in a sentence, and characters of a threshold
_ROUNDING = 1e-9  # of a weight: a client that weighs as all do does not carry the worst case
_CROSSING = 1e-9  # by which ends may cross, both found by searches

CERTIFICATE = "certificate"
REFUTED = "refuted"
ESTIMATE = "estimate"

PUBLISHED = "[RE]"  # begins the method of a formula as [RE] published it

_PREFACE = {  # from the strongest to the weakest
    CERTIFICATE: "",
    REFUTED: f"By a published formula that is {wording.FALSE_IN_GENERAL}: ",
    ESTIMATE: "Estimate, not a proved bound: ",
}


def weakest_validity(assumptions: Collection[str], validity: str = CERTIFICATE) -> str:
    """Return the weaker of `validity` and, where the clients that answered helped to train the model, "estimate"."""
    found = ESTIMATE if wording.TRAINERS_ANSWERED in assumptions else CERTIFICATE
    return max(validity, found, key=list(_PREFACE).index)


def as_sentence(claim: str, *, delta: float, validity: str = CERTIFICATE) -> str:
    """Return a claim about unseen clients as a sentence that says how sure it is, and what it is."""
    draw = "over the draw of the clients and their examples"
    return f"{_PREFACE[validity]}with probability at least {confidence(delta)} {draw}, {claim}."


class CrossingError(ValueError):
    """Two bounds of one number contradict each other, or what was measured of it: something they assume is false."""


def check_ends(
    quantity: str,
    lower: float | FloatArray | None,
    upper: float | FloatArray | None,
    *,
    assumptions: Collection[str],
    measured: float | None = None,
) -> None:
    """Raise CrossingError if ends cross by more than rounding, or exclude what was measured of the number itself."""
    for low, high, rule in (
        (lower, upper, "must not cross, got {} below and {} above: one of them is false"),
        (measured, upper, "must not exclude what was measured, got {} measured and {} above"),
        (lower, measured, "must not exclude what was measured, got {} below and {} measured"),
    ):
        if low is None or high is None or not np.any(crossing := np.greater(low, np.add(high, _CROSSING))):
            continue
        ends = [in_full(np.broadcast_to(end, crossing.shape).flat[int(np.argmax(crossing))]) for end in (low, high)]
        suspects = [line for each in wording.DOUBTED_FIRST for line in assumptions if each in line] or assumptions
        rarely = "By chance that is rarer than delta; more likely this is false (has the network changed?)"
        raise CrossingError(
            f"the bounds of {quantity} {rule.format(*ends)}. {rarely}: {'; '.join(suspects)}. Do without what is "
            "false, or take a smaller delta"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Certificate(Drawn):
    """A bound on a property of clients that nobody has measured: an upper one, or bounds from both sides.

    Attributes
    ----------
    quantity : str
        What is bounded, as the subject of a sentence.
    value : float or ndarray
        The upper bound; an array over `axes`, in their order, if there are any. `inf` if nothing bounds the number
        from above, and then `lower` is the bound.
    axes : mapping of str to ndarray
        Names and points of the axes of `value`, each of shape (num_points,); those of a single number are left out. The
        bound holds for all points at once.
    delta : float
        Probability that the bound fails, in (0, 1).
    validity : {"certificate", "refuted", "estimate"}
        `certificate` for a proved bound, `refuted` for a published formula with a known counterexample, kept to compare
        with, `estimate` when an attack stood in for the worst case. An `estimate` too, whatever is said here, if the
        assumptions say that the clients that answered helped to train the model: see `weakest_validity`.
    method : str
        Name of the formula.
    assumptions : tuple of str
        What must be true for `delta` to be right. A `delta` other than 0.05 is added to them: it must not be chosen by
        looking at the bound.
    lower : float, ndarray or None
        The lower bound, of the shape of `value`; `None` if only the upper one is certified. Bounds that cross are a
        `CrossingError`: something in `assumptions` is false.
    details : mapping of str to ndarray
        Results that come with the bound, such as the worst-case weight of each client.
    recipe : mapping
        Function, arguments, band and answers, as plain data: enough for `verify` to compute the bound again; from the
        function `recipe`.
    measured : float, optional
        What the clients measured of the very number that is bounded, if its mean is that number: no bound may exclude
        it. It is not kept.
    """

    quantity: str
    value: float | FloatArray
    delta: float
    method: str
    assumptions: tuple[str, ...]
    recipe: Mapping[str, Any]
    validity: str = CERTIFICATE
    axes: Mapping[str, FloatArray] = field(default_factory=dict)
    details: Mapping[str, FloatArray] = field(default_factory=dict)
    lower: float | FloatArray | None = None
    measured: InitVar[float | None] = None

    shown = ("delta", "method", "validity")

    def __post_init__(self, measured: float | None) -> None:
        check_delta(self.delta)
        of_delta = chosen_before(delta=(self.delta, USUAL_DELTA))
        if not set(of_delta) <= set(self.assumptions):
            set_fields(self, assumptions=(*self.assumptions, *of_delta))
        if not isinstance(self.recipe, Mapping):
            raise ValueError(f"the recipe of a certificate must be a mapping, got {type(self.recipe).__name__}")
        set_fields(
            self,
            value=_number_or_curve(self.value),
            lower=None if self.lower is None else _number_or_curve(self.lower),
            axes={name: points for name, points in self.axes.items() if np.ndim(points)},
        )
        for array in (*self.axes.values(), *self.details.values()):
            if isinstance(array, np.ndarray):
                array.flags.writeable = False
        if self.validity not in _PREFACE:
            raise ValueError(f"validity must be one of {', '.join(_PREFACE)}, got {self.validity!r}")
        set_fields(self, validity=weakest_validity(self.assumptions, self.validity))
        shape = tuple(len(points) for points in self.axes.values())
        for bound in (self.value,) if self.lower is None else (self.lower, self.value):
            if np.shape(bound) != shape:
                raise ValueError(f"bounds must have the shape of the axes, {shape}, got {np.shape(bound)}")
            if not (np.all(np.isfinite(bound)) or (self.is_open and self.lower not in (None, bound))):
                raise ValueError("the value of a certificate must be finite, but where only a lower bound is certified")
        check_ends(self.quantity, self.lower, self.value, assumptions=self.assumptions, measured=measured)
        if self.lower is not None:  # cut by no more than rounding
            set_fields(self, lower=_number_or_curve(np.minimum(self.lower, self.value)))

    @property
    def name(self) -> str:
        """What is bounded, as `rb.bound` and requirements name it: "mean", "mean@chi2:0.1".

        Points of a curve are left out, if there is more than one. Two certificates of one name bound the same quantity,
        if they are of the same answers.
        """
        given = self._given
        if isinstance(given.get("number"), str):
            return str(given["number"])
        function = str(self.recipe.get("function"))
        kind = () if given.keys() & {"measure", "weight", "comparison"} else (_CURVES.get(function, function),)
        kind = ("count",) if "above" in given else ("mean",) if given.get("mean") else kind
        functional = ":".join([*kind, *_points_of(given, (*_PARAMETERS, *_POINTS))])
        return "@".join(filter(None, (functional, self._population)))

    @property
    def _population(self) -> str:
        """What follows @ in the name: a shift, a cost, a target network, or clients of a finite number."""
        given, places = self._given, []
        if "population" in given and ("including_seen" in given and given.get("num_next") is None):
            places = ["all" if given["including_seen"] else "others", *_points_of(given, ("population",))]
        elif "num_next" in given:
            places = ["next", *_points_of(given, ("num_next",))]
        elif "cost_budget" in given:
            places = ["cost", *_points_of(given, ("cost_budget",))]
        elif isinstance(given.get("target"), Mapping):  # of a selection it is a number
            places = ["target"]
        return ":".join([*places, *_points_of(given, ("divergence", "budget"))])

    @property
    def kind(self) -> str:
        """What is bounded, without its parameters: "mean", "quantile", "mean@chi2", "count@next", "gini"."""
        functional, _, population = self.name.partition("@")
        family = functional.partition(":")[0]
        return f"{family}@{population.partition(':')[0]}" if population else family

    @property
    def family(self) -> str:
        """The functional that is bounded, without its parameters and its population."""
        return self.kind.partition("@")[0]

    @property
    def point(self) -> float:
        """Level of a quantile, or threshold of a share; NaN of all else, and of curves over it."""
        _, _, point = self.name.partition("@")[0].partition(":")
        return float(point) if point and self.family in ("quantile", "share") else math.nan

    @property
    def shift(self) -> tuple[str, list[float]] | None:
        """The divergence of a shifted or target network, and the budgets that the bound is for; None without one."""
        given, place = self._given, self.name.partition("@")[2].split(":")
        if "number" not in given:
            budgets = np.ravel(given.get("budget", [])).tolist()
            return (str(given["divergence"]), budgets) if given.get("divergence") is not None else None
        is_shifted = len(place) > 1 and place[-2] not in _PLACES
        return (place[-2], [float(place[-1])]) if is_shifted else None

    @property
    def num_digits(self) -> int:
        """Digits after the point with which bounds are said: none of a number of clients."""
        return 0 if self.family == "count" else 4

    @property
    def _given(self) -> Mapping[str, Any]:
        """The arguments in the recipe."""
        given = self.recipe.get("arguments")
        return given if isinstance(given, Mapping) else {}

    @property
    def is_published(self) -> bool:
        """Whether it is a formula of [RE] as it was published, to compare with."""
        return self.method.startswith(PUBLISHED)

    @property
    def event(self) -> str:
        """What it shares its probability of error with: all of its "band", all "groups", or nothing: its "own"."""
        if "groups" in self.recipe:
            return "groups"
        return "own" if self.recipe.get("band") is None else "band"

    @property
    def is_open(self) -> bool:
        """Whether it is one number that nothing bounds from above."""
        return not self.axes and bool(np.all(np.equal(self.value, np.inf)))

    @property
    def is_always_valid(self) -> bool:
        """Whether it holds for all numbers of clients at once, so that more may be asked because of it."""
        band = self.recipe.get("band") or {}
        return self.recipe.get("function") in ("always_valid", "panel_change") or band.get("method") == "stitched"

    @property
    def ends(self) -> tuple[FloatArray | None, FloatArray | None]:
        """The lower and the upper bound; None for an end of the range of changes or scores, which says nothing."""
        found, bounds = self.recipe.get("answers"), (self.lower, None if self.is_open else self.value)
        answers = found if isinstance(found, Mapping) else {}
        ends = (-1.0, 1.0) if {"old", "num_examples"} <= answers.keys() else (answers.get("low"), answers.get("high"))
        if None not in ends and self.family == "share":
            ends = 0.0, 1.0
        ends = ends if self.num_digits else (None, None)  # a number of clients says something at its ends, too
        lower, upper = (
            None if bound is None or np.all(bound == end) else np.asarray(bound)
            for bound, end in zip(bounds, ends, strict=True)
        )
        return lower, upper

    @property
    def statement(self) -> str:
        """The certificate as one English sentence, without its assumptions; of a curve, with some of its numbers."""
        bound = f"{self._curve}: {self._points}" if self.axes else self._bound_at(())
        return as_sentence(f"{self.quantity} {bound}", delta=self.delta, validity=self.validity)

    @property
    def carried_by(self) -> dict[str, float]:
        """By name, the weights of the clients that carry the worst case, the heaviest first.

        They are those that weigh more in it than each does among the clients that were measured; of several budgets, in
        the worst case of the largest one. Empty if the clients have no names, or the bound says nothing of single ones.
        """
        names, weights = self._names, self.details.get("client_weights")
        if not names or weights is None:
            return {}
        heaviest = weights[int(np.argmax(self.axes["budget"]))] if np.ndim(weights) == 2 else weights
        order = np.argsort(-heaviest, kind="stable").tolist()
        return {names[k]: float(heaviest[k]) for k in order if heaviest[k] > (1.0 + _ROUNDING) / len(names)}

    @property
    def remark(self) -> str:
        """Who carries the worst case, as a sentence; empty where `carried_by` is."""
        named = self.carried_by
        if not named:
            return ""
        size, budget = len(self._names), " of the largest budget" if "budget" in self.axes else ""
        shares = [f"{weight:.2g}" for weight in named.values()]
        shares[0] = f"weight {shares[0]} instead of {1.0 / size:.2g}"
        heaviest = [f"{name} ({share})" for name, share in zip(named, shares[:_NUM_SHOWN], strict=False)]
        most = f", most of all {', '.join(heaviest)}"
        return f"The worst case{budget} is carried by {len(named)} of {size} clients{most}."

    @property
    def _names(self) -> Sequence[str]:
        answers = self.recipe.get("answers")
        found = answers.get("names") if isinstance(answers, Mapping) else None
        return found if isinstance(found, list) else ()

    def __str__(self) -> str:
        """Return the `statement`, and where clients have names who carries the worst case."""
        return f"{self.statement} {self.remark}".rstrip()

    def _words(self) -> str:
        sizes = " and ".join(f"{name} ({len(points)} points)" for name, points in self.axes.items())
        bound = f"{self._curve.partition(',')[0]} over {sizes}" if self.axes else self._bound_at(())
        return f"{shortened(self.quantity)} {bound}"

    def _facts(self) -> dict[str, object]:
        answers = self.recipe.get("answers")
        values = answers.get("values") if isinstance(answers, Mapping) else None
        num_clients = len(values) if isinstance(values, Sized) else None
        return {"num_clients": num_clients, **super()._facts()}

    def __float__(self) -> float:
        """Return `value`, if the certificate is one number; raises TypeError otherwise."""
        if self.axes:
            found = f"a curve over {' and '.join(self.axes)}; read `value`, or ask for one point of it"
            raise TypeError(f"float() needs a certificate of one number, got {found}")
        if self.lower is not None:
            raise TypeError("float() needs a certificate of one number, got two ends; read `lower` or `value`")
        return float(self.value)

    def to_frame(self) -> pd.DataFrame:
        """Return the bounds as a data frame of pandas, a row for each point of the axes.

        Its columns are the axes, `lower` if there is one, `value`, and, the same in every row, `quantity`, `delta`,
        `validity` and `method`. Raises ImportError, with what to do, if pandas is not installed.
        """
        grid = np.meshgrid(*self.axes.values(), indexing="ij")
        lower = {} if self.lower is None else {"lower": np.ravel(self.lower)}
        shared = {"quantity": self.quantity, "delta": self.delta, "validity": self.validity, "method": self.method}
        points = {name: part.ravel() for name, part in zip(self.axes, grid, strict=True)}
        return to_pandas({**points, **lower, "value": np.ravel(self.value), **shared})

    @property
    def _curve(self) -> str:
        names = " and ".join(name.replace("_", " ") for name in self.axes)
        lower, upper = self.ends
        sides = "is at least the given curve" if upper is None else "lies between the given curves"
        sides = "is at most the given curve" if lower is None else sides
        return f"{sides}, for every {names} at once"

    @property
    def _points(self) -> str:
        """Bounds at three points of the curve: the ends of what is not trivial, and its middle."""
        is_telling = np.asarray(self.value) < 1.0
        if self.lower is not None:
            is_telling |= np.asarray(self.lower) > 0.0
        places = np.argwhere(is_telling if np.any(is_telling) else np.ones_like(is_telling))
        chosen = places[evenly(len(places), _NUM_SHOWN)]
        return "; ".join(f"{self._bound_at(tuple(place))} at {self._name_of(place)}" for place in chosen.tolist())

    def _name_of(self, place: list[int]) -> str:
        points = zip(self.axes.items(), place, strict=True)
        return " and ".join(f"{name.replace('_', ' ')} {self._shown(name, axis[i])}" for (name, axis), i in points)

    def _shown(self, axis: str, point: float) -> str:
        # The share of clients with a risk of at least a threshold falls: what holds at one holds at a larger one.
        is_long = len(exactly(point)) > _LONG or float(exactly(point)) < point
        return rounded_up_strictly(point) if axis == "threshold" and self.lower is None and is_long else exactly(point)

    def _bound_at(self, place: tuple[int, ...]) -> str:
        digits, is_curve, (low, high) = self.num_digits, bool(self.axes), self.ends
        lower = "" if low is None else rounded_down(low[place], digits)
        upper = "" if high is None else rounded_up(high[place], digits)
        if lower and upper:
            return f"{lower} to {upper}" if is_curve else f"lies between {lower} and {upper}"
        if lower:
            return f"{lower} or more" if is_curve else f"is at least {lower}"
        none = "not bounded by these answers"
        return upper or none if is_curve else f"is at most {upper}" if upper else f"is {none}"

    def __eq__(self, other: object) -> bool:
        """Whether both have the same content; verification, which allows for rounding, is another matter."""
        if not isinstance(other, Certificate):
            return NotImplemented
        return self is other or self._content() == other._content()

    def __hash__(self) -> int:
        """Return a hash of the content."""
        return hash((self.quantity, self.method, self.validity, self.delta, tuple(np.ravel(self.value).tolist())))

    def _content(self) -> Any:
        return json.loads(json.dumps(self.to_dict()))  # as a file would hold it: tuples become lists

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate as plain data for JSON, with its schema version."""
        return {
            "schema": SCHEMA,
            "kind": self.kind,
            "statement": self.statement,
            "quantity": self.quantity,
            "validity": self.validity,
            "delta": self.delta,
            "method": self.method,
            "axes": {name: np.asarray(points).tolist() for name, points in self.axes.items()},
            "value": None if self.is_open else np.asarray(self.value).tolist(),
            **({} if self.lower is None else {"lower": np.asarray(self.lower).tolist()}),
            "details": {name: np.asarray(values).tolist() for name, values in self.details.items()},
            "assumptions": list(self.assumptions),
            "recipe": dict(self.recipe),
        }

    def to_json(self) -> str:
        """Return the certificate as JSON text; the same certificate gives the same bytes."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n"

    def save(self, path: str | Path) -> None:
        """Write `to_json` to a file."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Certificate:
        """Rebuild a certificate from `to_dict`; its statement is made from the other fields.

        To have the stored one compared, give the stored data to `verify`. Raises ValueError if the schema is unknown,
        or a field is missing, malformed or foreign.
        """
        found = data.get("schema") if isinstance(data, Mapping) else type(data).__name__
        if found != SCHEMA:
            has_several = isinstance(data, Mapping) and "certificates" in data
            several = "it holds several, so give one of its 'certificates' to Certificate.from_dict"
            remedy = several if has_several else "is this a certificate?"
            raise ValueError(f"schema must be {SCHEMA!r}, got {found!r}; {remedy}")
        try:
            certificate = cls._from_fields(data)
            expected = certificate.to_dict()
            repr(certificate), json.dumps(expected, allow_nan=False)  # who holds one can show it, and save it
        except (LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"a certificate needs every field of {SCHEMA}; missing or malformed: {error}") from error
        if data.keys() != expected.keys():
            wrong = ", ".join(sorted(data.keys() ^ expected.keys()))
            raise ValueError(
                f"a certificate of {SCHEMA} has all of its fields and no others; missing or foreign: {wrong}"
            )
        return certificate

    @classmethod
    def _from_fields(cls, data: Mapping[str, Any]) -> Certificate:
        if not all(isinstance(text, str) for text in (data["quantity"], data["method"], *data["assumptions"])):
            raise TypeError("quantity, method and assumptions must be text")
        return cls(
            quantity=data["quantity"],
            value=np.inf if data["value"] is None else _numbers("value", data["value"]),
            lower=_numbers("lower", data["lower"]) if "lower" in data else None,
            delta=check_delta(data["delta"]),
            method=data["method"],
            assumptions=tuple(data["assumptions"]),
            recipe=data["recipe"],
            validity=data["validity"],
            axes={name: _numbers(name, points) for name, points in data["axes"].items()},
            details={name: _numbers(name, values) for name, values in data["details"].items()},
        )

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """Rebuild a certificate from `to_json`; raises ValueError for anything else."""
        try:
            data = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"a certificate must be JSON, got text that is not: {error}") from error
        return cls.from_dict(data)

    @classmethod
    def load(cls, path: str | Path) -> Certificate:
        """Read a certificate that `save` wrote; raises ValueError or OSError."""
        return cls.from_json(Path(path).read_text(encoding="utf-8"))


class Source(Protocol):
    """What certificates are made of: answers, or what was built from them."""

    def provenance(self) -> dict[str, Any]:
        """Plain data from which `verify` makes the same again: the fields "band" and "answers" of a recipe."""


def recipe(function: str, arguments: Mapping[str, Any], source: Source) -> dict[str, Any]:
    """Plain data from which `verify` computes a certificate again.

    They are the public name of the function that made it, its first argument (the source), and the others as it
    understood them.
    """
    plain = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in arguments.items()}
    return {"function": function, "arguments": plain, **source.provenance()}


def _points_of(given: Mapping[str, Any], names: Collection[str]) -> list[str]:
    """The arguments of these names in words, but for curves of several points."""
    values = (given.get(name) for name in names)
    single = (each[0] if isinstance(each, list) and len(each) == 1 else each for each in values)
    return [each if isinstance(each, str) else exactly(each) for each in single if isinstance(each, (str, float, int))]


def _number_or_curve(bound: float | FloatArray) -> float | FloatArray:
    return bound if np.ndim(bound) else float(bound)


def _numbers(name: str, values: object) -> FloatArray:
    return check_numbers(f"{name} of a certificate", values, remedy=f"a certificate needs every field of {SCHEMA}")
