"""Groups of clients: one band for each, and how differently they fare (math §10.1, [DC] §3.2).

delta is divided among the groups before their bands are made (Bonferroni), so that all bands hold at once with
probability 1 - delta, and with them every comparison of groups. Groups may overlap.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from riskband.answers.risks import ClientRisks, check_risks, default_eta
from riskband.bands.band import band
from riskband.checks import FloatArray, check_delta, check_flag, spelled
from riskband.functionals.dispersion import Interval
from riskband.functionals.quantiles import check_tail_level
from riskband.functionals.transforms import Transform, resolve_transform
from riskband.groups import group_statistics
from riskband.groups.group_bands import (
    GroupBands,
    Groups,
    check_group_bands,
    check_per_group,
    members_of_groups,
    select_clients,
)
from riskband.groups.group_functionals import Functional, resolve_functional

NESTED_METHODS = ("berk_jones", "dkw")
"""Methods whose levels at each rank fall with the number of clients: the band for more clients holds that for fewer."""


def group_bands(
    risks: ClientRisks,
    groups: Groups,
    *,
    delta: float,
    shares: Mapping[str, float] | None = None,
    **band_settings: Any,
) -> GroupBands:
    """Confidence bands for the CDFs of client risks in several groups, which hold all at once.

    Parameters
    ----------
    risks : ClientRisks
        The answers of all clients.
    groups : sequence of str or None, or mapping
        Either the group of each client, shape (num_clients,), `None` for a client in no group; or, for groups that may
        overlap, the members of each by name: a boolean mask of shape (num_clients,) or indices of clients.
    delta : float
        Probability that any of the bands fails, in (0, 1).
    shares : mapping of str to float, optional
        Part of delta that each group gets, > 0, at most 1 in all. Default: equal parts.
    **band_settings
        As for `band`: method, local, eta, ...; both sides by default.

    Returns
    -------
    GroupBands
        Bands at `delta * shares[name]`: Bonferroni, so groups may share clients. A missing client may belong to any
        group and so may a wrong answer, so every group counts all of them as its own.

    Raises
    ------
    ValueError
        If a group has fewer than two clients, names or indices do not fit, a setting is out of range, or clients are
        missing="worst" under a method that does not stay valid when more of them than belong to a group count in it.

    Examples
    --------
    >>> import riskband as rb
    >>> answers = rb.ClientRisks([0.02, 0.05, 0.10, 0.04], num_examples=100)
    >>> bands = rb.group_bands(answers, ["city", "city", "farm", "farm"], delta=0.1)
    >>> bands.num_clients
    {'city': 2, 'farm': 2}
    """
    check_risks(risks)
    delta = check_delta(delta)
    allowed = inspect.signature(band).parameters.keys() - {"risks", "delta"}
    unknown = sorted(band_settings.keys() - allowed)
    if unknown:
        raise ValueError(f"settings of bands must be among {', '.join(sorted(allowed))}, got {', '.join(unknown)}")
    check_nested(risks, band_settings.get("method", "berk_jones"))
    members = members_of_groups(groups, num_clients=risks.num_clients)
    equal = dict.fromkeys(members, 1.0 / len(members))
    parts = equal if shares is None else check_per_group("shares", shares, tuple(members), is_total=False)
    bands = {}
    for name, indices in members.items():
        answers = select_clients(risks, indices, group=name)
        eta = _eta_of_asked(risks, answers, len(members), **band_settings)
        bands[name] = band(answers, delta=delta * parts[name], **{**band_settings, "eta": eta})
    return GroupBands(risks, members, bands)


def check_nested(risks: ClientRisks, method: object) -> None:
    """Raise ValueError if clients are missing="worst" and the levels of the method do not fall with their number."""
    if risks.num_missing_worst and not (isinstance(method, str) and spelled(method) in NESTED_METHODS):
        raise ValueError(
            f"groups with missing='worst' need method {' or '.join(NESTED_METHODS)}, got {method!r:.80}; how "
            "many clients a group lacks is unknown, and only these levels fall with the number"
        )


def _eta_of_asked(
    risks: ClientRisks, group: ClientRisks, num_groups: int, local: str = "marginal", eta: float | None = None, **_: Any
) -> float | None:
    """Eta, from the number of clients that were asked where a group's number of answers may depend on its risks."""
    if eta is not None or risks.num_missing_worst == 0:
        return eta
    uses_one = local == "counted" or (local == "marginal" and not group.has_equal_sizes)
    return default_eta(risks.num_counted // num_groups) if uses_one else None


def group_intervals(bands: GroupBands, functional: Functional) -> dict[str, Interval]:
    """Bounds on a functional of the CDF of client risks in every group, all at once.

    Parameters
    ----------
    bands : GroupBands
        With both sides.
    functional : str, DispersionMeasure, QuantileWeight or callable
        "mean", "cvar:0.9", "quantile:0.5", "smoothed_median:0.1", a measure of dispersion such as "gini" or
        "atkinson:0.5", a weight on quantiles, or your own function from a `Band` to an `Interval`.

    Returns
    -------
    dict of str to Interval
        Finite numbers, by group.

    Raises
    ------
    ValueError
        If the functional is unknown, or is not bounded in some group.
    """
    check_group_bands(bands)
    chosen = resolve_functional(functional)
    found = {name: chosen.interval(source) for name, source in bands.bands.items()}
    for name, (lower, upper) in found.items():
        if not (np.isfinite(lower) and np.isfinite(upper)):
            raise ValueError(
                f"{chosen.name} cannot be bounded in group {name!r}, got [{lower:g}, {upper:g}]; take a functional "
                "that is bounded, such as mean or gini"
            )
    return found


def group_gap(bands: GroupBands, first: str, second: str, functional: Functional, *, squared: bool = False) -> Interval:
    """Bounds on |T(F_first) - T(F_second)|, or on its square.

    Parameters
    ----------
    bands : GroupBands
        With both sides.
    first, second : str
        Names of two different groups.
    functional : str, DispersionMeasure, QuantileWeight or callable
        T, as for `group_intervals`.
    squared : bool
        Whether to bound (T(F_first) - T(F_second))² instead.

    Returns
    -------
    Interval
        Sharp, given the intervals of both groups: from 0 where they overlap. Source: [DC] §3.2.

    Raises
    ------
    ValueError
        If the groups are unknown or the same, or as for `group_intervals`.
    """
    check_group_bands(bands)
    if bands[first] is bands[second]:
        raise ValueError(f"a gap needs two different groups, got {first!r} twice")
    lower, upper = _ends(bands, functional)
    pair = [bands.names.index(first), bands.names.index(second)]
    least, most = group_statistics.gap_ends(lower[pair], upper[pair])
    return Interval(least**2, most**2) if check_flag("squared", squared) else Interval(least, most)


def largest_gap(bands: GroupBands, functional: Functional) -> Interval:
    """Bounds on the largest |T(F_g) - T(F_g')| over all pairs of groups.

    Parameters
    ----------
    bands : GroupBands
        Of at least two groups, with both sides.
    functional : str, DispersionMeasure, QuantileWeight or callable
        T, as for `group_intervals`.

    Returns
    -------
    Interval
        Sharp, given the intervals of the groups. Source: [DC] §5.1.1.

    Raises
    ------
    ValueError
        If there is only one group, or as for `group_intervals`.
    """
    _require_pairs(bands)
    return Interval(*group_statistics.largest_gap_ends(*_ends(bands, functional)))


def quadratic_gaps(bands: GroupBands, functional: Functional) -> Interval:
    """Bounds on the mean of (T(F_g) - T(F_g'))² over all pairs of different groups, each pair counted once.

    Parameters
    ----------
    bands : GroupBands
        Of at least two groups, with both sides.
    functional : str, DispersionMeasure, QuantileWeight or callable
        T, as for `group_intervals`.

    Returns
    -------
    Interval
        2G/(G - 1) times the interval of `group_variance` at equal weights, G the number of groups. The square for one
        pair is [DC] §3.2, the mean over pairs is ours.

    Raises
    ------
    ValueError
        If there is only one group, or as for `group_intervals`.
    """
    _require_pairs(bands)
    factor = 2.0 * len(bands.names) / (len(bands.names) - 1.0)
    least, most = group_variance(bands, functional)
    return Interval(factor * least, factor * most)


def group_variance(
    bands: GroupBands, functional: Functional, *, weights: Mapping[str, float] | None = None
) -> Interval:
    """Bounds on the variance over groups, E_g (T(F_g) - E_g T(F_g))²: half of E (T_g - T_g')² of two drawn groups.

    Parameters
    ----------
    bands : GroupBands
        With both sides.
    functional : str, DispersionMeasure, QuantileWeight or callable
        T, as for `group_intervals`.
    weights : mapping of str to float, optional
        Probability of each group, fixed before any risk was seen. Default: equal.

    Returns
    -------
    Interval
        Sharp, given the intervals of the groups, for up to 16 of them; with more, the upper end may be larger than the
        sharp one by Σ w_g (width of g / 2)² over the groups that share one centre. Source: [DC] §3.2.

    Raises
    ------
    ValueError
        If weights do not fit the groups, or as for `group_intervals`.
    """
    lower, upper = _ends(bands, functional)
    return Interval(*group_statistics.variance_ends(lower, upper, _weights(bands, weights)))


def worst_group(bands: GroupBands, functional: Functional) -> Interval:
    """Bounds on the largest T(F_g) over all groups.

    Parameters
    ----------
    bands : GroupBands
        With both sides.
    functional : str, DispersionMeasure, QuantileWeight or callable
        T, as for `group_intervals`.

    Returns
    -------
    Interval
        Sharp, given the intervals of the groups.

    Raises
    ------
    ValueError
        As for `group_intervals`.
    """
    return Interval(*group_statistics.maximum_ends(*_ends(bands, functional)))


def weighted_group_mean(
    bands: GroupBands, functional: Functional, *, weights: Mapping[str, float] | None = None
) -> Interval:
    """Bounds on E_g T(F_g) = Σ w_g T(F_g).

    Parameters
    ----------
    bands : GroupBands
        With both sides.
    functional : str, DispersionMeasure, QuantileWeight or callable
        T, as for `group_intervals`.
    weights : mapping of str to float, optional
        Probability of each group, fixed before any risk was seen. Default: equal.

    Returns
    -------
    Interval
        Sharp, given the intervals of the groups. Source: [DC] §5.1.1.

    Raises
    ------
    ValueError
        If weights do not fit the groups, or as for `group_intervals`.
    """
    lower, upper = _ends(bands, functional)
    return Interval(*group_statistics.mean_ends(lower, upper, _weights(bands, weights)))


def group_transform_mean(
    bands: GroupBands,
    functional: Functional,
    transform: Transform | Sequence[float],
    *,
    weights: Mapping[str, float] | None = None,
) -> Interval:
    """Bounds on E_g ξ(T(F_g)), [DC]'s uncertainty of a risk measure over groups, for a ξ of bounded variation.

    Parameters
    ----------
    bands : GroupBands
        With both sides.
    functional : str, DispersionMeasure, QuantileWeight or callable
        T with values in [0, 1], as for `group_intervals`.
    transform : Transform or sequence of float
        ξ on [0, 1]: `absolute_transform`, `smooth_transform`, ..., or coefficients of a polynomial, from the constant
        on.
    weights : mapping of str to float, optional
        Probability of each group, fixed before any risk was seen. Default: equal.

    Returns
    -------
    Interval
        Sharp, given the intervals of the groups. Source: [DC] §3.2.

    Raises
    ------
    ValueError
        If T can leave [0, 1], weights do not fit the groups, or as for `group_intervals`.
    """
    lower, upper = _ends(bands, functional)
    if np.any(lower < 0.0) or np.any(upper > 1.0):
        raise ValueError(
            f"a transform needs a functional with values in [0, 1], got up to {np.max(upper):g}; take for example gini"
        )
    least, most = resolve_transform(transform).extremes(lower, upper)
    parts = _weights(bands, weights)
    return Interval(float(parts @ least), float(parts @ most))


def cvar_fairness(
    bands: GroupBands, functional: Functional = "mean", *, level: float, weights: Mapping[str, float] | None = None
) -> Interval:
    """Bounds on CVaR_g T(F_g) - E_g T(F_g): how much worse the worst-off groups fare than the average group.

    Parameters
    ----------
    bands : GroupBands
        With both sides.
    functional : str, DispersionMeasure, QuantileWeight or callable
        T, as for `group_intervals`.
    level : float
        In [0, 1): the worst `1 - level` of the groups, by weight. 0 gives 0.
    weights : mapping of str to float, optional
        Probability of each group, fixed before any risk was seen. Default: equal.

    Returns
    -------
    Interval
        Sharp, given the intervals of the groups, for up to 16 of them; with more, the upper end may be larger.
        Source: [DC] §3.2, D_CV,α with α = `level` in its explicit (Rockafellar-Uryasev) form; the conditional mean
        "given Z > α" of the text there is a misprint.

    Raises
    ------
    ValueError
        If the level is out of range, weights do not fit the groups, or as for `group_intervals`.
    """
    level = check_tail_level(level)
    lower, upper = _ends(bands, functional)
    return Interval(*group_statistics.cvar_deviation_ends(lower, upper, _weights(bands, weights), level=level))


def _ends(bands: GroupBands, functional: Functional) -> tuple[FloatArray, FloatArray]:
    ends = np.array(list(group_intervals(bands, functional).values()), dtype=np.float64)
    return ends[:, 0], ends[:, 1]


def _require_pairs(bands: GroupBands) -> None:
    check_group_bands(bands)
    if len(bands.names) < 2:
        raise ValueError(f"a gap needs at least 2 groups, got {', '.join(bands.names)} alone; name another group")


def _weights(bands: GroupBands, weights: Mapping[str, float] | None) -> FloatArray:
    if weights is None:
        return np.full(len(bands.names), 1.0 / len(bands.names))
    return np.array(list(check_per_group("weights", weights, bands.names, is_total=True).values()))
