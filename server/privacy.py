"""The noise that clients add to their answers: the rule of its key, what a report says of it, and in which words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import riskband as rb
from client.privacy import epsilon_at
from protocol.noise import GAUSSIAN, mechanism_of
from riskband.adversaries.problem import layer_name
from riskband.wording import rounded_up

PRIVACY_RULE = (
    'give "laplace:EPSILON" or "gaussian:RHO" with a number from 1e-6 to 1e12, or "" for no noise; with noise local is '
    "marginal or counted, for wasserstein the protocol one-round, cost-bound 0 and no box at a layer; not for "
    "secure_histogram"
)

_DELTA = 1e-6  # at which a rho is also said as an epsilon
_LAWS = {"laplace": "discrete Laplace", "gaussian": "discrete Gaussian"}


def fits_run(privacy: str, known: Mapping[str, Any]) -> bool:
    """Return whether a run's certificates can account for this noise; raises ValueError if there is no such noise.

    Parameters
    ----------
    privacy : str
        The mechanism with the budget of an answer; "" for none.
    known : mapping
        Values of a run's fields, those that are not mistakes themselves.
    """
    if not privacy:
        return True
    mechanism_of(privacy)
    if known.get("strategy") == "wasserstein":
        has_box_at_layer = known.get("box") and layer_name(known.get("space", ""))  # clients refuse that
        return known.get("protocol") != "bisection" and not known.get("cost_bound") and not has_box_at_layer
    return known.get("local") not in ("union", "observed")


def privacy_section(noise: rb.AnswerNoise | None) -> dict[str, Any] | None:
    """Return what a report says of the noise on the answers; None if they have none.

    "epsilon" and "delta" are what the budget of an answer means as approximate differential privacy.
    """
    if noise is None:
        return None
    mechanism = mechanism_of(noise.mechanism)
    return {
        "mechanism": noise.mechanism,
        "num_values": noise.num_values,
        "epsilon": epsilon_at(mechanism, delta=_DELTA),
        "delta": _DELTA if mechanism.name == GAUSSIAN else 0.0,
    }


def privacy_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the line about the noise, if there is any."""
    section = report.get("privacy")
    if section is None:
        return
    mechanism = mechanism_of(section["mechanism"])
    numbers = "one number" if section["num_values"] == 1 else f"{section['num_values']} numbers"
    meaning = (
        f", so epsilon = {rounded_up(section['epsilon'], 2)} at delta = {section['delta']:g}"
        if section["delta"]
        else ""
    )
    yield (
        f"Privacy: every answer of {numbers} has {_LAWS[mechanism.name]} noise, {mechanism.unit} = "
        f"{float(mechanism.budget):g} for each example of a client{meaning}; the bounds allow for the noise."
    )
