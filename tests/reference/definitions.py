"""f-divergences written from their definitions, and two that riskband does not know."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
from scipy.optimize import brentq

import riskband as rb

SUPERLINEAR = {"kl": lambda t: t * np.log(t) if t > 0 else 0.0, "chi2": lambda t: (t - 1) ** 2}
FINITE_SLOPE = {"tv": lambda t: abs(t - 1) / 2, "hellinger2": lambda t: (np.sqrt(t) - 1) ** 2}
GENERATORS = SUPERLINEAR | FINITE_SLOPE
PARTS = {  # source·f(target/source) of one atom, convex in both
    "kl": cp.kl_div,
    "chi2": lambda target, source: cp.quad_over_lin(target - source, source),
    "tv": lambda target, source: cp.abs(target - source) / 2,
    "hellinger2": lambda target, source: target + source - 2 * cp.geo_mean(cp.hstack([target, source])),
}


def program_cost(target, source, name):
    """D_f of two discrete laws for cvxpy, each a variable or an array of probabilities."""
    return cp.sum([PARTS[name](q, p) for q, p in zip(target, source, strict=True)])


def distance(target, source, name):
    """D_f of two discrete laws by its definition; mass where the source has none costs f's slope at infinity."""
    f, new = GENERATORS[name], target[source == 0.0].sum()
    if new > 0.0 and name in SUPERLINEAR:
        return np.inf
    return sum(p * f(q / p) for q, p in zip(target, source, strict=True) if p > 0.0) + new * f(1e18) / 1e18


def worst_event(p, f, budget):
    """max{q >= p : p f(q/p) + (1-p) f((1-q)/(1-p)) <= budget} for 0 < p < 1, by brentq."""

    def excess(q):
        return p * f(q / p) + (1 - p) * f((1 - q) / (1 - p)) - budget

    return 1.0 if excess(1.0) <= 0 else brentq(excess, p, 1.0, xtol=1e-15)


def le_cam():
    """Vincze and Le Cam."""
    return rb.custom_divergence(
        "le-cam",
        lambda t: (t - 1) ** 2 / (t + 1),
        slope_at_infinity=1.0,
        cvxpy_generator=lambda cp, t: t - 3 + 4 * cp.inv_pos(t + 1),
    )


def cubic():
    """Power divergence of order 3."""
    return rb.custom_divergence(
        "cubic",
        lambda t: (t**3 - 3 * t + 2) / 6,
        slope_at_infinity=np.inf,
        cvxpy_generator=lambda cp, t: (cp.power(t, 3) - 3 * t + 2) / 6,
    )


def tilted_hellinger(tilt):
    """Squared Hellinger plus tilt·(t - 1), which is the same divergence."""
    return rb.custom_divergence(
        "tilted",
        lambda t: (np.sqrt(t) - 1) ** 2 + tilt * (t - 1),
        slope_at_infinity=1.0 + tilt,
        cvxpy_generator=lambda cp, t: t + 1 - 2 * cp.sqrt(t) + tilt * (t - 1),
    )
