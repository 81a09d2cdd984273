"""f-divergences written from their definitions, and two that riskband does not know."""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq

import riskband as rb

SUPERLINEAR = {"kl": lambda t: t * np.log(t) if t > 0 else 0.0, "chi2": lambda t: (t - 1) ** 2}
FINITE_SLOPE = {"tv": lambda t: abs(t - 1) / 2, "hellinger2": lambda t: (np.sqrt(t) - 1) ** 2}
GENERATORS = SUPERLINEAR | FINITE_SLOPE


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
