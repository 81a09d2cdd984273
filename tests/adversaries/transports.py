"""Brute force for the tests: every transport to finitely many points, as a linear program."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix
from scipy.special import log_softmax, softmax

EXPONENTS = {"l1": 1, "l2": 2, "linf": np.inf}


def losses_at(name, logits, label):
    """Per-row losses of a label, written again from their definitions; shape (num_rows,)."""
    wrong = np.delete(logits, label, axis=1).max(axis=1) - logits[:, label]
    if name == "zero_one":
        return (wrong >= 0.0).astype(float)  # the adversary may stand on the boundary, or just beyond
    if name == "margin":
        return np.clip((1.0 + wrong) / 2.0, 0.0, 1.0)
    if name == "cross_entropy":
        return np.minimum(-log_softmax(logits, axis=1)[:, label], 10.0) / 10.0
    return ((softmax(logits, axis=1) - np.eye(logits.shape[1])[label]) ** 2).sum(axis=1) / 2.0


def cost_matrix(z, targets, *, order, norm):
    return np.linalg.norm(z[:, None] - targets[None], ord=EXPONENTS[norm], axis=2) ** order


def best_transports(costs, losses, radii):
    """Largest mean loss over all transports of mean cost at most each radius.

    costs, losses: (num_examples, num_targets), what moving example i to target t costs and gives.
    """
    num_examples, num_targets = costs.shape
    rows = np.repeat(np.arange(num_examples), num_targets)
    mass = coo_matrix((np.ones(costs.size), (rows, np.arange(costs.size))))
    values = []
    for radius in radii:
        solution = linprog(
            -losses.ravel(),
            A_ub=costs.reshape(1, -1),
            b_ub=[radius],
            A_eq=mass,
            b_eq=np.full(num_examples, 1.0 / num_examples),
            method="highs",
        )
        assert solution.success
        values.append(-solution.fun)
    return np.array(values)
