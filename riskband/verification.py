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
from riskband.bands import band
from riskband.certificate import Certificate
from riskband.divergences import FDivergence
from riskband.functionals import QuantileWeight
from riskband.gini_correlation import gini_correlation
from riskband.group_certificates import group_certificate, rebuilt_group_bands
from riskband.joint import JointRisks, joint_band, joint_cdf
from riskband.risks import ClientRisks

FROM_BAND: Mapping[str, Callable[..., Certificate]] = {
    "mean": functionals.mean,
    "cvar": functionals.cvar,
    "quantile": functionals.quantile,
    "survival": functionals.survival,
    "weighted_quantile": functionals.weighted_quantile,
    "worst_case_mean": reweighting.worst_case_mean,
    "worst_case_cdf": reweighting.worst_case_cdf,
    "dispersion_certificate": dispersion.dispersion_certificate,
    "lorenz_certificate": dispersion_curves.lorenz_certificate,
    "quantile_certificate": dispersion_curves.quantile_certificate,
}
FROM_RISKS: Mapping[str, Callable[..., Certificate]] = {"mean_bound": means.mean_bound}
FROM_GROUPS: Mapping[str, Callable[..., Certificate]] = {"group_certificate": group_certificate}
FROM_JOINT_BAND: Mapping[str, Callable[..., Certificate]] = {"joint_cdf": joint_cdf}
FROM_JOINT_RISKS: Mapping[str, Callable[..., Certificate]] = {"gini_correlation": gini_correlation}
FROM_CANDIDATES: Mapping[str, Callable[..., Certificate]] = {"select": selection.selection_certificate}
FROM_ADVERSARIAL_ANSWERS: Mapping[str, Callable[..., Certificate]] = {
    "wasserstein_mean": wasserstein.wasserstein_mean,
    "wasserstein_cdf": transport_cdf.wasserstein_cdf,
    "wasserstein_published": wasserstein.wasserstein_published,
}


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
        tell.

    Raises
    ------
    ValueError
        If the recipe cannot be followed: an unknown function or divergence, or answers that are not valid risks.
    """
    stored = certificate.to_dict() if isinstance(certificate, Certificate) else certificate
    again = _follow(Certificate.from_dict(stored).recipe, divergences or {}, weights or {}).to_dict()
    problems = tuple(
        f"{name}: stored {_short(stored[name])}, recomputed {_short(again[name])}"
        for name in again
        if not _agree(stored[name], again[name], absolute=1e-9 if name in _COMPUTED else 0.0)
    )
    return Verification(not problems, problems)


def _follow(
    recipe: Mapping[str, Any], divergences: Mapping[str, FDivergence], weights: Mapping[str, QuantileWeight]
) -> Certificate:
    try:
        function, arguments = recipe["function"], dict(recipe["arguments"])
        if function in FROM_ADVERSARIAL_ANSWERS:
            return FROM_ADVERSARIAL_ANSWERS[function](AdversarialAnswers(**recipe["answers"]), **arguments)
        if function in FROM_CANDIDATES:
            candidates = {name: ClientRisks(**answers) for name, answers in recipe["answers"].items()}
            return FROM_CANDIDATES[function](candidates, **arguments)
        if function in FROM_JOINT_BAND:
            joint = joint_band(JointRisks(**recipe["answers"]), **recipe["band"])
            return FROM_JOINT_BAND[function](joint, **arguments)
        if function in FROM_JOINT_RISKS:
            return FROM_JOINT_RISKS[function](JointRisks(**recipe["answers"]), **arguments)
        answers = ClientRisks(**recipe["answers"])
        if arguments.get("divergence") in divergences:
            arguments["divergence"] = divergences[arguments["divergence"]]
        if function in FROM_RISKS:
            return FROM_RISKS[function](answers, **arguments)
        if function in FROM_GROUPS:
            arguments["functional"] = weights.get(arguments["functional"], arguments["functional"])
            bands = rebuilt_group_bands(answers, recipe["groups"], recipe["bands"])
            return FROM_GROUPS[function](bands, **arguments)
        if function not in FROM_BAND:
            known = ", ".join(
                sorted((*FROM_BAND, *FROM_RISKS, *FROM_GROUPS, *FROM_CANDIDATES, *FROM_ADVERSARIAL_ANSWERS))
            )
            raise ValueError(f"function of a recipe must be one of {known}, got {function!r}")
        if function == "weighted_quantile":
            arguments["weight"] = weights[arguments["weight"]]
        return FROM_BAND[function](band(answers, **recipe["band"]), **arguments)
    except (KeyError, TypeError, OverflowError) as error:
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
