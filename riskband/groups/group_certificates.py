"""Certificates for comparisons of groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from riskband.answers.risks import ClientRisks
from riskband.bands.band import band
from riskband.certificate import Certificate, recipe
from riskband.checks import check_choice
from riskband.functionals.dispersion import Interval
from riskband.functionals.laws import RiskLaw
from riskband.functionals.transforms import Transform
from riskband.groups import comparisons
from riskband.groups.comparisons import check_nested, group_intervals
from riskband.groups.group_bands import GroupBands, members_of_groups, select_clients
from riskband.groups.group_functionals import Functional, resolve_functional

COMPARISONS: Mapping[str, Callable[..., Interval]] = {
    "group_gap": comparisons.group_gap,
    "largest_gap": comparisons.largest_gap,
    "quadratic_gaps": comparisons.quadratic_gaps,
    "group_variance": comparisons.group_variance,
    "worst_group": comparisons.worst_group,
    "weighted_group_mean": comparisons.weighted_group_mean,
    "group_transform_mean": comparisons.group_transform_mean,
    "cvar_fairness": comparisons.cvar_fairness,
}

MAX_NAMES = 8
"""More groups than these are not listed in a statement."""


def group_certificate(bands: GroupBands, comparison: str, functional: Functional, **options: Any) -> Certificate:
    """Certificate for a comparison of groups.

    Parameters
    ----------
    bands : GroupBands
        With both sides.
    comparison : str
        Name of the function that gives the interval: "group_gap", "largest_gap", "quadratic_gaps", "group_variance",
        "worst_group", "weighted_group_mean", "group_transform_mean" or "cvar_fairness".
    functional : str, DispersionMeasure or QuantileWeight
        As for `group_intervals`, but no function of your own: `verify` could not find it.
    **options
        The other arguments of that function; a transform as coefficients of a polynomial, for the same reason.

    Returns
    -------
    Certificate
        Both ends. Its delta is that of all bands together: every certificate and interval of `bands` holds on the same
        event. `details` has, in the order of `bands.names`, `group_lower`, `group_upper`, `group_measured` (for the
        measured risks), `group_num_clients` and `group_delta`.

    Raises
    ------
    ValueError
        As for that function, or if the functional or the transform has no name.
    """
    comparison = check_choice("comparison", comparison, COMPARISONS)
    chosen = resolve_functional(functional)
    if not chosen.name or chosen.of_law is None:
        raise ValueError(
            f"a certificate needs a functional with a name, got {functional!r}; use a QuantileWeight, or the interval "
            f"of {comparison}"
        )
    if isinstance(options.get("transform"), Transform):
        raise ValueError(
            f"a certificate needs the transform as coefficients of a polynomial, got {options['transform'].name!r}; "
            f"use them, or the interval of {comparison}"
        )
    try:
        lower, upper = COMPARISONS[comparison](bands, functional=functional, **options)
    except TypeError as error:
        raise ValueError(f"options of {comparison} do not fit: {error}; see its documentation") from error
    ends = np.array(list(group_intervals(bands, functional).values()))
    measured = [chosen.of_law(RiskLaw.of_values(source.risks.shown_values)) for source in bands.bands.values()]
    return Certificate(
        quantity=_quantity(comparison, chosen.quantity, bands, options),
        value=float(upper),
        lower=float(lower),
        delta=bands.delta,
        method=f"Bonferroni over {len(bands.names)} groups, {next(iter(bands.bands.values())).method} bands",
        assumptions=bands.assumptions,
        details={
            "group_lower": ends[:, 0],
            "group_upper": ends[:, 1],
            "group_measured": np.array(measured),
            "group_num_clients": np.array(list(bands.num_clients.values()), dtype=np.float64),
            "group_delta": np.array(list(bands.deltas.values())),
        },
        recipe={
            **recipe(
                "group_certificate",
                {"comparison": comparison, "functional": chosen.name, **_plain(options)},
                bands.risks,
            ),
            "groups": {name: indices.tolist() for name, indices in bands.members.items()},
            "bands": {name: source.recipe() for name, source in bands.bands.items()},
        },
    )


def rebuilt_group_bands(
    risks: ClientRisks, members: Mapping[str, npt.ArrayLike], recipes: Mapping[str, Mapping[str, Any]]
) -> GroupBands:
    """Group bands from the fields `groups` and `bands` of a recipe.

    Parameters
    ----------
    risks : ClientRisks
        The answers of all clients.
    members : mapping of str to list of int
        Indices of the clients of each group.
    recipes : mapping of str to mapping
        `Band.recipe` of each group.

    Returns
    -------
    GroupBands
        As they were.

    Raises
    ------
    ValueError
        If the groups are not valid, or not the same in both fields, or the bands are not as `group_bands` makes them.
    """
    found = members_of_groups(members, num_clients=risks.num_clients)
    if found.keys() != recipes.keys():
        raise ValueError(f"a recipe needs one band for each group, got {', '.join(recipes)} for {', '.join(found)}")
    ways = [[_way(each.get("method")), each.get("local"), each.get("sides")] for each in recipes.values()]
    if any(way != ways[0] for way in ways):
        raise ValueError("the bands of all groups must be made in one way: by one method, local step and sides")
    check_nested(risks, ways[0][0])
    bands = {name: band(select_clients(risks, indices, group=name), **recipes[name]) for name, indices in found.items()}
    return GroupBands(risks, found, bands)


def _way(method: object) -> object:
    """A method without the levels that it gave, which differ from group to group if they were tuned."""
    return {**method, "levels": None} if isinstance(method, Mapping) else method


def _quantity(comparison: str, quantity: str, bands: GroupBands, options: Mapping[str, Any]) -> str:
    subject = f"{quantity} of {bands.subject}"
    if comparison == "group_gap":
        squared = "squared " if options.get("squared") else ""
        return f"the {squared}difference between the groups {options['first']!r} and {options['second']!r} in {subject}"
    weighted = "" if options.get("weights") is None else "weighted "
    if comparison == "group_transform_mean":
        subject = f"the polynomial {_plain(options)['transform']} of {subject}"
    beginning = {
        "largest_gap": "the largest difference between two of {} in",
        "quadratic_gaps": "the mean squared difference between two of {} in",
        "group_variance": f"the {weighted}variance over {{}} of",
        "worst_group": "in the worst of {}",
        "weighted_group_mean": f"the {weighted}mean over {{}} of",
        "group_transform_mean": f"the {weighted}mean over {{}} of",
        "cvar_fairness": f"the {weighted}CVaR deviation (level {_plain(options).get('level')}) over {{}} of",
    }[comparison]
    names = ", ".join(map(repr, bands.names)) if len(bands.names) <= MAX_NAMES else "named in the recipe"
    return f"{beginning.format(f'{len(bands.names)} groups ({names})')} {subject}"


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as plain data for JSON."""
    plain = dict(options)
    if plain.get("weights") is not None:
        plain["weights"] = {str(name): float(weight) for name, weight in plain["weights"].items()}
    if "transform" in plain:
        plain["transform"] = [float(coefficient) for coefficient in plain["transform"]]
    if "level" in plain:
        plain["level"] = float(plain["level"])
    if "squared" in plain:
        plain["squared"] = bool(plain["squared"])
    return plain
