"""The clients that were not asked: their exact risks, and whether the certificates hold on them.

Only a simulation can do this. It is a check and not a proof: the unseen network is itself a finite
draw from the meta-distribution that the certificates are about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import compress

import numpy as np
from torch import nn

import riskband as rb
from riskband.answers.concave_curves import ConcaveCurve, knapsack_curve, network_curve
from riskband.functionals.dispersion import lorenz_of_distribution
from riskband.functionals.distributions import RiskDistribution
from riskband.functionals.functional import resolve
from riskband.selection import Objective
from riskband.worst_cases.divergences import robust_mean
from riskband.worst_cases.number import FINITE, Number
from server.settings import RunConfig
from worlds.loss_table import PopulationRisks
from worlds.population import Population


@dataclass(frozen=True, eq=False)
class Unseen:
    """What is known of the unseen clients."""

    risks: np.ndarray  # shape (num_unseen,), in [0, 1]
    # Of each client, the largest risk within a cost budget, exact; empty where that is not known.
    curves: tuple[ConcaveCurve, ...] = ()
    groups: tuple[str | None, ...] = ()  # of each client; empty where that is not known
    # Shape (num_unseen,), risks under each candidate of a selection, or under the "new" and the "old" model of a
    # comparison; one of them is the model of `risks`. Empty for one model.
    by_candidate: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def distribution(self) -> RiskDistribution:
        """Empirical distribution of the risks."""
        return RiskDistribution.of_values(self.risks)

    def without_group(self, name: str) -> Unseen:
        """The clients that are not in a group."""
        keep = [group != name for group in self.groups]
        return replace(self, risks=self.risks[keep], groups=tuple(compress(self.groups, keep)))

    def group_risks(self, name: str) -> np.ndarray:
        """Risks of the clients of a group, shape (num_clients of the group,)."""
        return self.risks[[group == name for group in self.groups]] if self.groups else self.risks[:0]


@dataclass(frozen=True, eq=False)
class Check:
    """One certificate beside what was found on the unseen clients."""

    # The certified quantity, computed on the unseen network; shape of the certificate's value. For a worst case it is
    # the worst reweighting of the unseen clients within the budget.
    observed: np.ndarray
    holds: bool  # whether no observed number exceeds its bound
    # Distance from observed number to bound where they are closest; negative where the certificate fails.
    smallest_margin: float


@lru_cache(maxsize=1)  # a study may tell those of its target network from the others
def unseen_clients(config: RunConfig, model: nn.Module, *, is_measured: bool | None = None) -> Unseen:
    """Return what can be known of the unseen clients of a run.

    Risks are exact: every image a client could hold, by its probability. Only for ``local = "observed"``, where the
    certificates are about the risk that a new client would *measure*, or if `is_measured` says so, does each unseen
    client measure on as many examples as the others had.
    """
    population, number = config.population("unseen"), config.network.num_unseen
    measures = config.question.local == "observed" if is_measured is None else is_measured
    found = PopulationRisks(population, model, loss=config.question.loss)
    risks = found.measured(number) if measures else found.exact(number)
    return Unseen(risks, groups=group_names(population, num_clients=number))


def group_names(population: Population, *, num_clients: int) -> tuple[str | None, ...]:
    """Return the groups of a population's clients."""
    groups = [population.spec.group(k) for k in range(num_clients)]
    return tuple(None if group is None else group.name for group in groups)


def check_certificates(certificates: Mapping[str, rb.Certificate], unseen: Unseen) -> dict[str, Check]:
    """Compare every certificate with the same quantity of the unseen network.

    Those about groups that no unseen client is known to be in are left out, and those about so many next clients, which
    are about what these would measure, once.
    """
    return {
        name: compare(certificate.value, _observed(certificate, unseen), lower=certificate.lower)
        for name, certificate in certificates.items()
        if _are_known(certificate, unseen)
    }


def compare(bound: float | np.ndarray, observed: np.ndarray, *, lower: float | np.ndarray | None = None) -> Check:
    """Return the check of a bound, or of bounds from both sides, beside what was observed, of the same shape."""
    margin = float(np.min(np.asarray(bound) - observed))
    if lower is not None:
        margin = min(margin, float(np.min(observed - np.asarray(lower))))
    return Check(observed=observed, holds=margin >= -1e-12, smallest_margin=margin)  # rounding is no failure


def shares(risks: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Share of clients whose risk is at least a threshold, shape (num_thresholds,)."""
    return np.asarray(np.mean(risks[:, np.newaxis] >= thresholds, axis=0))


def _observed(certificate: rb.Certificate, unseen: Unseen) -> np.ndarray:
    """What the certificate bounds, on the finite network of the unseen clients."""
    function, arguments, axes = certificate.recipe["function"], certificate.recipe["arguments"], certificate.axes
    risks = unseen.risks
    match function:
        case "mean_bound":
            return np.asarray(risks.mean())
        case "survival":
            return shares(risks, axes["threshold"])
        case "worst_case_cdf":
            tails, budgets = shares(risks, np.ravel(arguments["thresholds"])), np.reshape(arguments["budget"], (-1, 1))
            found = rb.binary_worst_case(tails, divergence=arguments["divergence"], budget=budgets)
            return found.reshape(np.shape(certificate.value))
        case "worst_case_mean":
            divergence, equal = rb.DIVERGENCES[arguments["divergence"]], np.full(len(risks), 1 / len(risks))
            sizes = np.ravel(arguments["budget"]).tolist()
            found = np.array([robust_mean(risks, equal, divergence=divergence, budget=size)[0] for size in sizes])
            return found.reshape(np.shape(certificate.value))
        case "wasserstein_mean" | "wasserstein_published":
            budgets = axes["cost_budget"]
            return network_curve(unseen.curves)(budgets) if unseen.curves else np.full(len(budgets), risks.mean())
        case "wasserstein_cdf" if not unseen.curves:
            return np.tile(shares(risks, axes["threshold"]), (len(axes["cost_budget"]), 1))
        case "wasserstein_cdf":
            pushes = [knapsack_curve([curve.inverse(t) for curve in unseen.curves]) for t in axes["threshold"]]
            return np.stack([push(axes["cost_budget"]) for push in pushes], axis=-1)
        case "dispersion_certificate":
            return np.asarray(resolve(arguments["measure"]).value(unseen.distribution))
        case "bound" | "always_valid" if not unseen.by_candidate:
            return np.asarray(Number.of(certificate.name).value(unseen.distribution))
        case "bound" | "always_valid":
            old, new = (unseen.by_candidate[name] for name in ("old", "new"))
            changes = rb.ClientChanges(old, new, num_examples=1, binary=False)
            return np.asarray(Number.of(certificate.name).measured(changes))
        case "select":
            return np.asarray(Objective(arguments["objective"]).of_distribution(unseen.distribution))
        case "lorenz_certificate":
            return lorenz_of_distribution(unseen.distribution, axes["share"])
        case "quantile_certificate":
            return unseen.distribution.quantile(axes["level"])
        case "group_certificate" if (arguments["comparison"], arguments["functional"]) == ("largest_gap", "mean"):
            return np.asarray(np.ptp(_group_means(certificate, unseen)))
        case "group_certificate" if (arguments["comparison"], arguments["functional"]) == ("worst_group", "mean"):
            return np.asarray(np.max(_group_means(certificate, unseen)))
    raise ValueError(f"there is no check for certificates made by {function!r}; add one to server.checks.unseen")


def _group_means(certificate: rb.Certificate, unseen: Unseen) -> np.ndarray:
    """Mean risk of the unseen clients of each group that the certificate is about."""
    return np.array([unseen.group_risks(name).mean() for name in certificate.recipe["groups"]])


def _are_known(certificate: rb.Certificate, unseen: Unseen) -> bool:
    if certificate.kind.partition("@")[2] in FINITE:
        return False
    return all(len(unseen.group_risks(name)) > 0 for name in certificate.recipe.get("groups", ()))
