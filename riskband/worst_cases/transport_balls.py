"""What every certificate for a Wasserstein ball shares: its budgets, words, label and recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from riskband.answers.adversarial import AdversarialAnswers, checked_multipliers, default_multipliers
from riskband.bands.band import shared_assumptions
from riskband.certificate import CERTIFICATE, ESTIMATE
from riskband.checks import FloatArray, check_costs
from riskband.wording import exactly, in_short


def check_budgets(cost_budget: npt.ArrayLike) -> FloatArray:
    """Return cost budgets >= 0 of shape () or (num_budgets,); raises ValueError for anything else."""
    return check_costs("cost_budget", cost_budget, remedy="it is a mean transport cost, and 0 means no shift")


def conjugates_on_grid(
    answers: AdversarialAnswers, budgets: FloatArray, multipliers: npt.ArrayLike | None
) -> tuple[FloatArray, FloatArray]:
    """Return multipliers fixed before any answer, and the clients' conjugates at them.

    Parameters
    ----------
    answers : AdversarialAnswers
        The clients' answers.
    budgets : ndarray
        Cost budgets of interest.
    multipliers : array_like, shape (num_multipliers,), or None
        The grid; None: the one that the clients answered, or else `default_multipliers` of the budgets.

    Returns
    -------
    multipliers : ndarray, shape (num_multipliers,)
        The grid.
    conjugates : ndarray, shape (num_clients, num_multipliers)
        In [0, 1]; as answered, or upper bounds from the curves. With noise, as answered.

    Raises
    ------
    ValueError
        If the multipliers are no prices, or have to be chosen and no budget is positive; or, with noise, if they are
        not those that the clients answered.
    """
    if answers.noise is not None:
        return _noisy_conjugates(answers, multipliers)
    if multipliers is None and answers.multipliers is not None and answers.conjugates is not None:
        # As answered, up to rounding: no less than what the values at the radii imply.
        implied = [np.max(answers.values - price * answers.radii, axis=1) for price in answers.multipliers]
        phi = np.maximum(answers.conjugates, np.stack(implied, axis=1)) + answers.rounding[:, np.newaxis]
        return answers.multipliers, np.minimum(phi, 1.0)
    grid = default_multipliers(budgets) if multipliers is None else checked_multipliers(multipliers)
    return grid, answers.conjugates_at(grid)


def _noisy_conjugates(answers: AdversarialAnswers, multipliers: npt.ArrayLike | None) -> tuple[FloatArray, FloatArray]:
    """The conjugates as answered: nothing may be made of noisy numbers before their mean is taken."""
    grid, phi = answers.multipliers, answers.conjugates
    is_other = (
        multipliers is not None and grid is not None and not np.array_equal(checked_multipliers(multipliers), grid)
    )
    if grid is None or phi is None or is_other:
        raise ValueError(
            "noisy answers must hold the conjugates at the multipliers of the bound, got others or none; ask the "
            "clients for conjugates, and leave multipliers out"
        )
    return grid, phi


def ball(answers: AdversarialAnswers, budgets: FloatArray) -> str:
    """Return the ball in words."""
    size = "the cost budget" if budgets.ndim else f"cost {exactly(float(budgets))}"
    return f"any network within {size} of the source network ({answers.cost})"


def ball_assumptions(answers: AdversarialAnswers) -> tuple[str, ...]:
    """Return what every certificate for the ball assumes."""
    return (
        *shared_assumptions(answers.clean),
        f"the target network is within the stated mean transport cost of the source network ({answers.cost})",
    )


def validity_of(answers: AdversarialAnswers) -> str:
    """Return the label of a proved formula: an estimate where an attack stood in for a client's worst case."""
    return ESTIMATE if answers.guarantee == "lower" else CERTIFICATE


def multipliers_chosen(
    answers: AdversarialAnswers, budgets: FloatArray, multipliers: npt.ArrayLike | None
) -> dict[str, tuple[object, object]]:
    """Return what fixed the grid of `conjugates_on_grid`, as a choice of `chosen_before`: prices, or the budgets."""
    if multipliers is None:
        multipliers = answers.multipliers
    name, numbers = ("cost budget", budgets) if multipliers is None else ("multipliers", multipliers)
    return {name: (in_short(np.asarray(numbers, dtype=np.float64)), None)}


def ball_recipe(function: str, arguments: Mapping[str, Any], answers: AdversarialAnswers) -> dict[str, Any]:
    """Return plain data from which `verify` computes a certificate again; as `riskband.certificate.recipe`."""
    return {
        "function": function,
        "arguments": dict(arguments),
        "band": None,
        "answers": {
            "radii": answers.radii.tolist(),
            "values": answers.values.tolist(),
            "num_examples": answers.num_examples.tolist(),
            "cost": answers.cost,
            "guarantee": answers.guarantee,
            "binary": answers.binary,
            "multipliers": None if answers.multipliers is None else answers.multipliers.tolist(),
            "conjugates": None if answers.conjugates is None else answers.conjugates.tolist(),
            "unit": answers.unit,
            **answers.clean.who_answered,
        },
    }
