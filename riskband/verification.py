"""Check a certificate: compute it again from the answers it stores and compare every field."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from riskband.answers.adversarial import AdversarialAnswers
from riskband.answers.histogram import HistogramLimits, HistogramRisks
from riskband.answers.risks import ClientRisks
from riskband.answers.scaled import is_scaled, rebuilt
from riskband.bands.band import band
from riskband.bands.levels import berk_jones_constant
from riskband.certificate import Certificate
from riskband.functionals.dispersion import dispersion_certificate, lorenz_certificate
from riskband.functionals.quantiles import cvar, mean, quantile, quantile_certificate, survival, weighted_quantile
from riskband.functionals.weights import QuantileWeight
from riskband.groups.comparisons import group_certificate
from riskband.groups.group_bands import rebuilt_group_bands
from riskband.means import mean_bound
from riskband.search import smallest_size
from riskband.selection import selection_certificate
from riskband.worst_cases.always_valid import always_valid
from riskband.worst_cases.bounds import Networks, bound
from riskband.worst_cases.divergence_bounds import divergence_lower_bound
from riskband.worst_cases.divergences import DIVERGENCES, FDivergence
from riskband.worst_cases.next_clients import next_clients
from riskband.worst_cases.number import TARGET, Number
from riskband.worst_cases.panels import panel_change
from riskband.worst_cases.reweighting import worst_case_cdf, worst_case_mean
from riskband.worst_cases.wasserstein import wasserstein_cdf, wasserstein_mean, wasserstein_published

Recipe = Mapping[str, Any]

COLLECTION_SCHEMA = "riskband.certificates/1"
"""Of a file or a page that holds several certificates by name."""

_SHOWN = 80  # characters of a stored and of a recomputed field, from shortly before they differ

FUNCTIONS: Mapping[str, Callable[..., Certificate]] = {
    **{
        function.__name__: function
        for function in (
            bound,
            mean_bound,
            mean,
            cvar,
            quantile,
            survival,
            weighted_quantile,
            worst_case_mean,
            worst_case_cdf,
            next_clients,
            divergence_lower_bound,
            always_valid,
            panel_change,
            dispersion_certificate,
            lorenz_certificate,
            quantile_certificate,
            group_certificate,
            wasserstein_mean,
            wasserstein_cdf,
            wasserstein_published,
        )
    },
    "select": selection_certificate,
}
"""The functions that make certificates, by the name in the recipe."""

_BOUNDED_BY_ONE = ("mean", "example_mean", "cvar", "quantile", "share", "largest")
_LARGEST_TRIED = 4_096  # clients
_DOUBTFUL = 20  # one part in so many: how exact the number of clients is where some count as the worst

_COMPUTED = ("value", "lower", "details")
_RELATIVE = 1e-9  # what is not computed is copied, but for thresholds that were read off a band
# The worst network is where the mean is flattest: on another processor the mean is the same to the last digit, and its
# weights are not. Other details are bounds, too.
_WEIGHTS, _OF_WEIGHTS = ("client_weights", "unseen_weight"), 1e-7


def answers_of(data: Mapping[str, Any]) -> Any:
    """Return answers as a certificate's recipe stores them."""
    if "radii" in data:
        return AdversarialAnswers(**data)
    if is_scaled(data):
        return rebuilt(data)
    if "counts" in data:
        return HistogramLimits(**data) if "eta" in data else HistogramRisks(**data)
    return ClientRisks(**data)


def _source(recipe: Recipe) -> Any:
    """What the certificate of a recipe was made of: answers, or what was built from them."""
    if recipe["function"] == "select":
        return {name: ClientRisks(**answers) for name, answers in recipe["answers"].items()}
    answers = answers_of(recipe["answers"])
    if "groups" in recipe:
        return rebuilt_group_bands(answers, recipe["groups"], recipe["bands"])
    if recipe["band"] is None:
        return answers
    return band(answers, **recipe["band"])


def source_of(certificate: Certificate) -> Any:
    """Return what a certificate was made of, by its recipe: answers, a band of them, or a band for each group.

    Raises ValueError if the recipe cannot be followed.
    """
    try:
        return _source(certificate.recipe)
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError) as error:
        raise ValueError(f"the recipe of the certificate cannot be followed ({error!r}); is the file whole?") from error


class Verification(NamedTuple):
    """Outcome of `verify`.

    Attributes
    ----------
    ok : bool
        Whether every field agrees with what the stored answers give.
    problems : tuple of str
        One line for each field that does not.
    """

    ok: bool
    problems: tuple[str, ...]


def verify(
    certificate: Certificate | Mapping[str, Any],
    *,
    divergences: Mapping[str, FDivergence] | None = None,
    weights: Mapping[str, QuantileWeight] | None = None,
) -> Verification:
    """Compute a certificate again from its stored answers and compare.

    Parameters
    ----------
    certificate : Certificate or mapping
        For example `Certificate.load(path)`, or the stored data as `json.load` gives it; then its sentence is compared
        as well.
    divergences, weights : mapping, optional
        Your own divergences and quantile weights by name, if the certificate uses one.

    Returns
    -------
    Verification
        Bounds and details must agree to 1e-9, weights of a worst network to 1e-7, other numbers to nine digits,
        everything else exactly. It tells whether the certificate follows from the answers in it; whether these were the
        clients' answers, only the clients can tell. An input that the formula does not use (the numbers of examples
        behind a betting bound on the mean, the seed of a published one, the eta of a band that needs none) may have
        been changed: the same bound follows.

    Raises
    ------
    ValueError
        If the recipe cannot be followed: an unknown function or divergence, or answers that are not valid risks.
    """
    stored = certificate.to_dict() if isinstance(certificate, Certificate) else certificate
    found = Certificate.from_dict(stored)
    again = _follow(found.recipe, divergences or {}, weights or {}).to_dict()
    # The sentence must say what the other fields do, which are compared on their own.
    again["statement"] = found.statement
    problems = [f"{name}: stored, but not part of this certificate" for name in sorted(stored.keys() - again.keys())]
    problems += [f"{name}: missing" for name in again if name not in stored]
    problems += [
        _difference(name, stored[name], again[name])
        for name in again
        if name in stored and not _agree(stored[name], again[name], absolute=1e-9 if name in _COMPUTED else 0.0)
    ]
    return Verification(not problems, tuple(problems))


def _difference(name: str, stored: Any, again: Any) -> str:
    if name == "assumptions" and isinstance(stored, list):
        lacks = [f"lacks {line!r}" for line in again if line not in stored]
        adds = [f"has {line!r}, which it does not need" for line in stored if line not in again]
        return f"{name}: the certificate {'; '.join([*lacks, *adds]) or 'has them in another order or twice'}"
    # The sentence is made of the stored fields: where one of these was changed, it says the changed number.
    other = "but its other fields say" if name == "statement" else "recomputed"
    shown = (repr(stored), repr(again))
    num_alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*shown, strict=False)))
    start = max(num_alike - 20, 0) if max(map(len, shown)) > _SHOWN else 0
    first, second = (_short(text, start=start) for text in shown)
    return f"{name}: stored {first}, {other} {second}"


@lru_cache(maxsize=64)  # a search, for the report and again for its page
def why_it_says_nothing(certificate: Certificate) -> str | None:
    """Return why an upper bound of a risk or share is 1 somewhere, and how many clients would do.

    None if the bound is below 1 everywhere, or 1 would say something: of a measure of dispersion, or of the share of
    clients above a risk on a curve over it, or of the next clients one by one. The number of clients is what the same
    formula needs if more clients answer as these did: no certificate.
    """
    of_unit = (
        certificate.family in _BOUNDED_BY_ONE
        and "@cost" not in certificate.kind
        and not {"threshold", "k"} & certificate.axes.keys()
    )
    of_unit &= not is_scaled(certificate.recipe["answers"])
    of_unit &= certificate.num_digits > 0  # no number of clients
    if not of_unit or not np.any(np.asarray(certificate.value) >= 1.0):
        return None
    recipe, num_clients = certificate.recipe, _num_values(certificate.recipe)
    if num_clients is None or num_clients >= _LARGEST_TRIED:
        return "this formula gives nothing less for these answers"
    taken = recipe["answers"]
    in_doubt = taken.get("contamination", 0) or (taken.get("num_missing", 0) and taken.get("missing") == "worst")
    doubt = "missing or doubtful clients count as the worst, here in proportion; " if in_doubt else ""
    too_few = max(num_clients, _too_few_for_its_level(recipe))
    # Without doubts the last level is nearly all that matters; with them, their proportion is whole clients anyway.
    steps = {"fineness": _DOUBTFUL} if in_doubt else {"reach": 1 if too_few > num_clients else None}
    enough = smallest_size(too_few, lambda size: _is_below_one(recipe, size), most=_LARGEST_TRIED, **steps)
    if enough is None:
        return f"{doubt}it would stay 1 with {_LARGEST_TRIED:,} clients that answer as these {num_clients} did"
    return f"{doubt}{num_clients} clients are too few; with {enough} that answer as these did it would be just below 1"


def _num_values(recipe: Recipe) -> int | None:
    answers = recipe["answers"]
    is_tuned = isinstance((recipe["band"] or {}).get("method"), Mapping)  # its levels are for so many clients
    is_own = recipe["arguments"].get("divergence", "kl") not in DIVERGENCES  # a divergence that only its user has
    of_others = "@others", "@all", f"@{TARGET}"
    is_own |= any(place in str(recipe["arguments"].get("number")) for place in of_others)
    is_own |= bool({"population", "batches"} & recipe["arguments"].keys())  # of so many clients, and no more
    return None if is_tuned or is_own or "values" not in answers or "radii" in answers else len(answers["values"])


def _too_few_for_its_level(recipe: Recipe) -> int:
    """Largest number of clients of whom no Berk-Jones band reaches the highest level that is read off; 0 if unknown.

    The band ends at the level c^(1/K), where c falls with K: from too few clients, each constant says how many are at
    least needed, and three or four of them where that ends. `local` steps only lower the levels.
    """
    number, taken = Number.of(recipe["arguments"].get("number", "mean")), recipe["band"] or {}
    level = float(np.max(recipe["arguments"].get("level", number.point if number.family == "quantile" else 0.0)))
    if taken.get("method") != "berk_jones" or not 0.0 < level < 1.0:
        return 0
    size, needed = 0, 1
    while size < needed < _LARGEST_TRIED:
        size = needed
        constant = berk_jones_constant(size, taken["delta"], is_two_sided=taken["sides"] == "two")
        needed = math.ceil(math.log(constant) / math.log(level))
    return min(needed, _LARGEST_TRIED) - 1


def _is_below_one(recipe: Recipe, num_clients: int) -> bool:
    """Whether so many clients, whose answers have the distribution of these, would be bounded below 1."""
    more = ClientRisks(**recipe["answers"]).resized(num_clients)
    found = _follow({**recipe, "answers": more.to_dict()}, {}, {})
    return bool(np.all(np.asarray(found.value) < 1.0))


def _follow(
    recipe: Recipe, divergences: Mapping[str, FDivergence], weights: Mapping[str, QuantileWeight]
) -> Certificate:
    try:
        name, arguments = recipe["function"], dict(recipe["arguments"])
        if name not in FUNCTIONS:
            raise ValueError(f"function of a recipe must be one of {', '.join(sorted(FUNCTIONS))}, got {name!r}")
        for argument in arguments.keys() & {"divergence", "weight", "functional", "measure"}:
            own = divergences if argument == "divergence" else weights  # or a name that the function knows
            arguments[argument] = own.get(arguments[argument], arguments[argument])
        if isinstance(arguments.get("target"), Mapping):  # clients of a second network
            arguments["target"] = _source({"function": name, **arguments["target"]})
        if "later" in arguments:  # evaluations of a panel
            arguments["later"] = [_source({"function": name, **each}) for each in arguments["later"]]
        source = _source(recipe)
        if name == "bound" and "target" in arguments:
            source = Networks(source, arguments.pop("target"))
        return FUNCTIONS[name](source, **arguments)
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError) as error:
        raise ValueError(
            f"the recipe of the certificate cannot be followed ({error!r}); a certificate with your own divergence or "
            "weight needs it as an argument of verify"
        ) from error


def _agree(stored: Any, again: Any, *, absolute: float) -> bool:
    if isinstance(again, Mapping):
        return (
            isinstance(stored, Mapping)
            and stored.keys() == again.keys()
            and all(_agree(stored[k], again[k], absolute=_OF_WEIGHTS if k in _WEIGHTS else absolute) for k in again)
        )
    is_text = isinstance(again, list) and any(isinstance(item, (str, bool, Mapping)) for item in again)
    if is_text or not isinstance(again, (list, float)):
        return bool(stored == again)
    try:
        raw = np.asarray(stored)
        if raw.size and raw.dtype.kind not in "iuf":  # a number in quotes is not a number
            return False
        first, second = raw.astype(np.float64), np.asarray(again, dtype=np.float64)
    except (TypeError, ValueError):
        return False
    relative = 0.0 if absolute else _RELATIVE
    return first.shape == second.shape and bool(np.allclose(first, second, rtol=relative, atol=absolute))


def _short(text: str, *, start: int) -> str:
    return f"{'...' * (start > 0)}{text[start : start + _SHOWN]}{'...' * (len(text) > start + _SHOWN)}"
