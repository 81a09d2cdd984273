"""The clients nobody asked: their exact risks, and whether the certificates hold on them.

Only a simulation can do this. It is a check and not a proof: the unseen network is itself a finite
draw from the meta-distribution that the certificates are about.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import nn

import riskband as rb
from client.evaluation import example_losses, mean_loss
from riskband.divergences import robust_mean
from server.config import RunConfig
from simulations.population import Population, spec_from_config


@dataclass(frozen=True, eq=False)
class Check:
    """One certificate beside what was found on the unseen clients.

    Attributes
    ----------
    observed : ndarray
        The certified quantity, computed on the unseen network; shape of the certificate's value. For a
        worst case it is the worst reweighting of the unseen clients within the budget.
    holds : bool
        Whether no observed number exceeds its bound.
    smallest_margin : float
        Bound minus observed number where they are closest; negative where the certificate fails.
    """

    observed: np.ndarray
    holds: bool
    smallest_margin: float


def unseen_risks(config: RunConfig, model: nn.Module) -> np.ndarray:
    """Return the risks of the unseen clients, shape (num_unseen,), each in [0, 1].

    They are exact: every image a client could hold, by its probability. Only for ``local = "observed"``,
    where the certificates are about the risk that a new client would *measure*, does each unseen client
    measure on as many examples as the others had.

    Parameters
    ----------
    config : RunConfig
        Which network.
    model : Module
        The model that the clients evaluated.
    """
    population = Population(spec_from_config(config.to_run_config(), network="unseen"))

    def exact_risk(k: int) -> float:
        client = population.distribution(k)
        return float(client.weights @ example_losses(model, client.x, client.y, loss=config.loss))

    def measured_risk(k: int) -> float:
        client = population.client(k)
        return mean_loss(model, client.x, client.y, loss=config.loss)[0]

    risk_of = measured_risk if config.local == "observed" else exact_risk
    return np.clip([risk_of(k) for k in range(config.num_unseen)], 0.0, 1.0)  # the weights sum to 1 up to rounding


def check_certificates(certificates: dict[str, rb.Certificate], risks: np.ndarray) -> dict[str, Check]:
    """Compare every certificate with the same quantity of the unseen network.

    Parameters
    ----------
    certificates : dict of str to Certificate
        As `strategies.f_divergence.FDivergence` names them.
    risks : ndarray, shape (num_unseen,)
        Risks of the unseen clients.

    Returns
    -------
    dict of str to Check
        Under the names of the certificates.
    """
    return {name: _check(certificate, _observed(certificate, risks)) for name, certificate in certificates.items()}


def _check(certificate: rb.Certificate, observed: np.ndarray) -> Check:
    margin = float(np.min(np.asarray(certificate.value) - observed))
    return Check(observed=observed, holds=margin >= -1e-12, smallest_margin=margin)  # rounding is no failure


def _observed(certificate: rb.Certificate, risks: np.ndarray) -> np.ndarray:
    """What the certificate bounds, read off a finite network whose risks are known."""
    function, arguments, axes = certificate.recipe["function"], certificate.recipe["arguments"], certificate.axes
    match function:
        case "mean_bound":
            return np.asarray(risks.mean())
        case "survival":
            return _shares(risks, axes["threshold"])
        case "worst_case_cdf":
            shares, budgets = _shares(risks, axes["threshold"]), axes["budget"][:, np.newaxis]
            return rb.binary_worst_case(shares, divergence=arguments["divergence"], budget=budgets)
        case "worst_case_mean":
            divergence, equal = rb.DIVERGENCES[arguments["divergence"]], np.full(len(risks), 1 / len(risks))
            budgets = axes["budget"].tolist()
            return np.array([robust_mean(risks, equal, divergence=divergence, budget=size)[0] for size in budgets])
    raise ValueError(f"there is no check for certificates made by {function!r}; add one to server.truth")


def _shares(risks: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Share of clients whose risk is at least a threshold, shape (num_thresholds,)."""
    return np.asarray(np.mean(risks[:, np.newaxis] >= thresholds, axis=0))
