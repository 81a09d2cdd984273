"""The dispersion measures by name: each is `dispersion_interval` with its measure (math §5, [DC] §3 and appendix B).

All need a band with both sides, hold on its one event, and raise ValueError as `dispersion_interval` does.
"""

from __future__ import annotations

from riskband.bands.band import Band
from riskband.functionals.dispersion import Interval, dispersion_interval
from riskband.functionals.measures import (
    GINI,
    HOOVER,
    VARIATION,
    atkinson_measure,
    extended_gini_measure,
    generalised_entropy_measure,
    mean_range_measure,
    quantile_range_measure,
    quantile_ratio_measure,
    top_share_measure,
)


def gini(band: Band, *, method: str = "sharp") -> Interval:
    """Gini coefficient, E|R - R'|/(2 E R): 0 if all risks are equal, 1 if one client bears it all.

    Parameters
    ----------
    band : Band
        With both sides.
    method : {"sharp", "plugin", "convex_order"}
        As for `dispersion_interval`.

    Returns
    -------
    Interval
        Numbers in [0, 1]. Source: [DC] definition 2.
    """
    return dispersion_interval(band, GINI, method=method)


def extended_gini(band: Band, *, aversion: float = 3.0, method: str = "sharp") -> Interval:
    """Extended Gini coefficient, 1 - ν∫(1-p)^{ν-1}q(p)dp / E R.

    Parameters
    ----------
    band : Band
        With both sides.
    aversion : float
        ν > 1: the larger, the more the best-off clients count; 2 is the Gini coefficient.
    method : {"sharp", "plugin", "convex_order"}
        As for `dispersion_interval`.

    Returns
    -------
    Interval
        Numbers in [0, 1]. Source: [DC] definition 6.
    """
    return dispersion_interval(band, extended_gini_measure(aversion), method=method)


def atkinson(band: Band, *, aversion: float = 0.5, method: str = "sharp") -> Interval:
    """Atkinson index: the part of the mean risk that equality would save.

    Parameters
    ----------
    band : Band
        With both sides.
    aversion : float
        Aversion to inequality, >= 0. From 1 on the index is 1 as soon as any clients may have risk 0.
    method : {"sharp", "plugin", "convex_order"}
        As for `dispersion_interval`.

    Returns
    -------
    Interval
        Numbers in [0, 1]. Source: [DC] definition 3.
    """
    return dispersion_interval(band, atkinson_measure(aversion), method=method)


def generalised_entropy(band: Band, *, order: float = 2.0, method: str = "sharp") -> Interval:
    """Generalised entropy, E[(R/m)^α - 1]/(α(α - 1)) with m = E R.

    Parameters
    ----------
    band : Band
        With both sides.
    order : float
        α: 1 is `theil`, 0 is `mean_log_deviation`, 2 half the squared `coefficient_of_variation`. Up to 0 it is
        infinite as soon as any clients may have risk 0.
    method : {"sharp", "plugin", "convex_order"}
        As for `dispersion_interval`.

    Returns
    -------
    Interval
        Numbers >= 0, or `inf`. Source: [DC] appendix B.2.
    """
    return dispersion_interval(band, generalised_entropy_measure(order), method=method)


def theil(band: Band, *, method: str = "sharp") -> Interval:
    """Theil index, E (R/m) log(R/m) with m = E R: the generalised entropy of order 1.

    Parameters
    ----------
    band : Band
        With both sides.
    method : {"sharp", "plugin", "convex_order"}
        As for `dispersion_interval`.

    Returns
    -------
    Interval
        Numbers >= 0, or `inf`. Source: [DC] appendix B.2.
    """
    return dispersion_interval(band, generalised_entropy_measure(1.0), method=method)


def mean_log_deviation(band: Band, *, method: str = "sharp") -> Interval:
    """Mean log deviation, E log(m/R) with m = E R: the generalised entropy of order 0.

    Parameters
    ----------
    band : Band
        With both sides.
    method : {"sharp", "plugin", "convex_order"}
        As for `dispersion_interval`.

    Returns
    -------
    Interval
        Numbers >= 0; `inf` as soon as any clients may have risk 0. Source: [DC] appendix B.2.
    """
    return dispersion_interval(band, generalised_entropy_measure(0.0), method=method)


def hoover(band: Band, *, method: str = "sharp") -> Interval:
    """Hoover index: the part of all risk that would have to move to make the risks equal.

    Parameters
    ----------
    band : Band
        With both sides.
    method : {"sharp", "plugin", "convex_order"}
        As for `dispersion_interval`.

    Returns
    -------
    Interval
        Numbers in [0, 1]. Source: [DC] definition 7.
    """
    return dispersion_interval(band, HOOVER, method=method)


def coefficient_of_variation(band: Band, *, method: str = "sharp") -> Interval:
    """Coefficient of variation: standard deviation over mean.

    Parameters
    ----------
    band : Band
        With both sides.
    method : {"sharp", "plugin", "convex_order"}
        As for `dispersion_interval`.

    Returns
    -------
    Interval
        Numbers >= 0, or `inf`. Source: math §5.1.
    """
    return dispersion_interval(band, VARIATION, method=method)


def top_share(band: Band, *, share: float = 0.1, method: str = "sharp") -> Interval:
    """Part of all risk that the worst-off clients bear.

    Parameters
    ----------
    band : Band
        With both sides.
    share : float
        How many clients count as worst-off, in (0, 1).
    method : {"sharp", "plugin", "convex_order"}
        As for `dispersion_interval`.

    Returns
    -------
    Interval
        Numbers in [share, 1]. Source: math §5.1.
    """
    return dispersion_interval(band, top_share_measure(share), method=method)


def quantile_ratio(band: Band, *, low: float = 0.1, high: float = 0.9, method: str = "sharp") -> Interval:
    """Ratio of two quantiles of the risk.

    Parameters
    ----------
    band : Band
        With both sides.
    low, high : float
        Levels, 0 < low < high <= 1.
    method : {"sharp", "plugin"}
        As for `dispersion_interval`; the two agree.

    Returns
    -------
    Interval
        Numbers >= 1, or `inf`; 1 if both quantiles are 0. Source: math §5.1.
    """
    return dispersion_interval(band, quantile_ratio_measure(low, high), method=method)


def quantile_range(band: Band, *, low: float = 0.25, high: float = 0.75, method: str = "sharp") -> Interval:
    """Distance between two quantiles of the risk.

    Parameters
    ----------
    band : Band
        With both sides.
    low, high : float
        Levels, 0 < low < high <= 1.
    method : {"sharp", "plugin"}
        As for `dispersion_interval`; the two agree.

    Returns
    -------
    Interval
        Numbers in [0, 1]. Source: math §5.1.
    """
    return dispersion_interval(band, quantile_range_measure(low, high), method=method)


def mean_range(band: Band, *, num_clients: int, method: str = "sharp") -> Interval:
    """Mean of the largest minus the smallest risk among new clients.

    Parameters
    ----------
    band : Band
        With both sides.
    num_clients : int
        Number of new clients, >= 2.
    method : {"sharp", "plugin", "convex_order"}
        As for `dispersion_interval`.

    Returns
    -------
    Interval
        Numbers in [0, 1]. Source: [DC] example 8, corrected (math §5.4).
    """
    return dispersion_interval(band, mean_range_measure(num_clients), method=method)
