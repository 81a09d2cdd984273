"""Check a certificate: compute it again from the answers it stores and compare every field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from riskband import (
    dispersion,
    dispersion_curves,
    functionals,
    means,
    reweighting,
    selection,
    transport_cdf,
    wasserstein,
)
from riskband.adversarial_answers import AdversarialAnswers
from riskband.bands import Band, band
from riskband.certificate import Certificate
from riskband.divergences import FDivergence
from riskband.functionals import QuantileWeight
from riskband.gini_correlation import gini_correlation
from riskband.group_certificates import group_certificate, rebuilt_group_bands
from riskband.grouping import GroupBands
from riskband.histogram import Histogram, histogram_from_dict
from riskband.joint import JointBand, JointRisks, joint_band, joint_cdf
from riskband.risks import ClientRisks

Recipe = Mapping[str, Any]


def _risks(recipe: Recipe) -> ClientRisks:
    return ClientRisks(**recipe["answers"])


def _answers(recipe: Recipe) -> ClientRisks | Histogram:
    return histogram_from_dict(recipe["answers"]) if "counts" in recipe["answers"] else _risks(recipe)


def _band(recipe: Recipe) -> Band:
    return band(_answers(recipe), **recipe["band"])


def _groups(recipe: Recipe) -> GroupBands:
    return rebuilt_group_bands(_risks(recipe), recipe["groups"], recipe["bands"])


def _candidates(recipe: Recipe) -> dict[str, ClientRisks]:
    return {name: ClientRisks(**answers) for name, answers in recipe["answers"].items()}


def _joint_risks(recipe: Recipe) -> JointRisks:
    return JointRisks(**recipe["answers"])


def _joint_band(recipe: Recipe) -> JointBand:
    return joint_band(_joint_risks(recipe), **recipe["band"])


def _adversarial_answers(recipe: Recipe) -> AdversarialAnswers:
    return AdversarialAnswers(**recipe["answers"])


FUNCTIONS: Mapping[str, tuple[Callable[[Recipe], Any], Callable[..., Certificate]]] = {
    "mean_bound": (_answers, means.mean_bound),
    "mean": (_band, functionals.mean),
    "cvar": (_band, functionals.cvar),
    "quantile": (_band, functionals.quantile),
    "survival": (_band, functionals.survival),
    "weighted_quantile": (_band, functionals.weighted_quantile),
    "worst_case_mean": (_band, reweighting.worst_case_mean),
    "worst_case_cdf": (_band, reweighting.worst_case_cdf),
    "dispersion_certificate": (_band, dispersion.dispersion_certificate),
    "lorenz_certificate": (_band, dispersion_curves.lorenz_certificate),
    "quantile_certificate": (_band, dispersion_curves.quantile_certificate),
    "group_certificate": (_groups, group_certificate),
    "select": (_candidates, selection.selection_certificate),
    "joint_cdf": (_joint_band, joint_cdf),
    "gini_correlation": (_joint_risks, gini_correlation),
    "wasserstein_mean": (_adversarial_answers, wasserstein.wasserstein_mean),
    "wasserstein_cdf": (_adversarial_answers, transport_cdf.wasserstein_cdf),
    "wasserstein_published": (_adversarial_answers, wasserstein.wasserstein_published),
}
"""By the name in the recipe: what it starts from, and the function that makes the certificate of that."""


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
        Bounds and details must agree to 1e-9, other numbers to nine digits, everything else exactly. It tells whether
        the certificate follows from the answers in it; whether these were the clients' answers, only the clients can
        tell. An input that the formula does not use (the numbers of examples behind a betting bound on the mean, the
        seed of a published one, the eta of a band that needs none) may have been changed: the same bound follows.

    Raises
    ------
    ValueError
        If the recipe cannot be followed: an unknown function or divergence, or answers that are not valid risks.
    """
    stored = certificate.to_dict() if isinstance(certificate, Certificate) else certificate
    found = Certificate.from_dict(stored)
    again = _follow(found.recipe, divergences or {}, weights or {}).to_dict()
    # The sentence must say what the other fields do, in today's words or earlier ones; these are compared on their own.
    again["statement"] = (
        found.earlier_statement if stored.get("statement") == found.earlier_statement else found.statement
    )
    problems = [f"{name}: stored, but not part of this certificate" for name in sorted(stored.keys() - again.keys())]
    problems += [f"{name}: missing" for name in again if name not in stored]
    problems += [
        f"{name}: stored {_short(stored[name])}, recomputed {_short(again[name])}"
        for name in again
        if name in stored and not _agree(stored[name], again[name], absolute=1e-9 if name in _COMPUTED else 0.0)
    ]
    return Verification(not problems, tuple(problems))


def _follow(
    recipe: Recipe, divergences: Mapping[str, FDivergence], weights: Mapping[str, QuantileWeight]
) -> Certificate:
    try:
        name, arguments = recipe["function"], dict(recipe["arguments"])
        if name not in FUNCTIONS:
            raise ValueError(f"function of a recipe must be one of {', '.join(sorted(FUNCTIONS))}, got {name!r}")
        start, function = FUNCTIONS[name]
        for argument, known in (("divergence", divergences), ("weight", weights), ("functional", weights)):
            if argument in arguments:  # a user's own, or a name that the function knows
                arguments[argument] = known.get(arguments[argument], arguments[argument])
        return function(start(recipe), **arguments)
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError) as error:
        raise ValueError(
            f"the recipe of the certificate cannot be followed ({error!r}); a certificate with your own divergence or "
            "weight needs it as an argument of verify"
        ) from error


_COMPUTED = ("value", "lower", "details")
_RELATIVE = 1e-9  # what is not computed is copied, but for thresholds that were read off a band


def _agree(stored: Any, again: Any, *, absolute: float) -> bool:
    if isinstance(again, Mapping):
        return (
            isinstance(stored, Mapping)
            and stored.keys() == again.keys()
            and all(_agree(stored[key], again[key], absolute=absolute) for key in again)
        )
    if isinstance(again, list) and any(isinstance(item, (str, bool)) for item in again):
        return bool(stored == again)
    if isinstance(again, (list, float)):
        try:
            raw = np.asarray(stored)
            if raw.size and raw.dtype.kind not in "iuf":  # a number in quotes is not a number
                return False
            first, second = raw.astype(np.float64), np.asarray(again, dtype=np.float64)
        except (TypeError, ValueError):
            return False
        return first.shape == second.shape and bool(
            np.allclose(first, second, rtol=0.0 if absolute else _RELATIVE, atol=absolute)
        )
    return bool(stored == again)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
