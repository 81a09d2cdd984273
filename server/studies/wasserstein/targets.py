"""Target networks of a simulation: how far they are, how they fare, and whether the certificates cover them.

The distances are measured where the certificates measure them: in the space before the model's head, or between inputs,
with the same ground cost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import torch
from torch import nn

import riskband as rb
from riskband.adversaries.names import REPRESENTATION
from riskband.adversaries.problem import TransportProblem
from riskband.adversaries.representation.exact import ExactAdversary, LinearHead
from riskband.adversaries.spaces import point_batches
from riskband.answers.concave_curves import ConcaveCurve, knapsack_curve
from riskband.plots.bands import TransportPoint
from server.checks.unseen import Check, Unseen, compare, group_names, shares
from server.settings import RunConfig
from server.studies.wasserstein.settings import Settings, transport_problem
from strategies.wasserstein import WassersteinConclusion
from worlds.population import ClientDistribution
from worlds.targets import moved_further, transport_cost

_CERTIFY = MappingProxyType(
    {certify.__name__: certify for certify in (rb.wasserstein_mean, rb.wasserstein_cdf, rb.wasserstein_published)}
)


@dataclass(frozen=True, eq=False)
class TargetNetwork:
    """A network of unseen clients that were moved once more."""

    sigma: float  # strength of the move
    # Shape (num_targets,), optimal transport cost of each client from the unseen client it was made of. Their mean
    # bounds the distance between the networks, up to the sampling of the clients.
    costs: np.ndarray
    risks: np.ndarray  # shape (num_targets,), exact risks, in [0, 1]

    @property
    def point(self) -> TransportPoint:
        """Mean cost and risks, as figures want them."""
        return TransportPoint(float(self.costs.mean()), self.risks)


def target_networks(config: RunConfig, model: nn.Module) -> tuple[TargetNetwork, ...]:
    """Return the network of each sigma in ``target-sigmas``, judged by the model that the clients evaluated."""
    settings = config.of(Settings)
    if not settings.target_sigmas:
        return ()
    population = config.population("unseen")
    costs = np.empty((len(settings.target_sigmas), settings.num_targets))
    risks = np.empty_like(costs)
    for k in range(settings.num_targets):
        before, _ = _points_and_losses(config, model, population.distribution(k))
        for row, sigma in enumerate(settings.target_sigmas):
            client = moved_further(population, k, sigma=sigma)
            after, losses = _points_and_losses(config, model, client)
            costs[row, k] = transport_cost(
                before, after, client.y, client.weights, order=settings.transport_order, norm=settings.transport_norm
            )
            risks[row, k] = client.weights @ losses
    rows = zip(settings.target_sigmas, costs, np.clip(risks, 0.0, 1.0), strict=True)
    return tuple(TargetNetwork(sigma, cost, risk) for sigma, cost, risk in rows)


def check_target(result: WassersteinConclusion, target: TargetNetwork) -> dict[str, tuple[np.ndarray, Check]]:
    """Compare a target network with what is certified at its distance: bounds and checks by certificates' names.

    Bounds of shares have shape (num_thresholds,).
    """
    found = {}
    for name, certificate in result.certificates.items():
        arguments = {**certificate.recipe["arguments"], "cost_budget": target.point.cost}
        if arguments.get("worst_means") is not None or not certificate.kind.endswith("@cost"):
            continue  # found by a bisection, at its own budgets only; or of what is required, about no shift
        if arguments.get("every_budget", True):  # this is the same certificate, read at another budget
            bound = np.asarray(_CERTIFY[certificate.recipe["function"]](result.answers, **arguments).value)
        else:
            bound = _at_next_budget(certificate, target.point.cost)
        is_share = "threshold" in certificate.axes
        observed = shares(target.risks, certificate.axes["threshold"]) if is_share else np.asarray(target.risks.mean())
        found[name] = (bound, compare(bound, observed))
    return found


def _at_next_budget(certificate: rb.Certificate, cost: float) -> np.ndarray:
    """The bound at the least budget asked that is not below a cost, so that the network lies within; 1 beyond all."""
    values = np.asarray(certificate.value)
    index = int(np.searchsorted(certificate.axes["cost_budget"], cost, side="left"))
    return np.asarray(values[index] if index < len(values) else np.ones(values.shape[1:]))


def _points_and_losses(config: RunConfig, model: nn.Module, client: ClientDistribution) -> tuple[np.ndarray, ...]:
    """Where a client's examples are, (num_examples, num_features), and their losses (num_examples,)."""
    problem = transport_problem(config)
    if problem.space != REPRESENTATION:
        batches = list(point_batches(model, client.x, client.y, loss=problem.loss, layer=problem.layer))
    else:
        with LinearHead(model, problem.head) as head:
            batches = list(head.batches(client.x, client.y, loss=problem.loss))
    points = torch.cat([batch.x.flatten(start_dim=1).double() for batch in batches])
    return points.numpy(), torch.cat([batch.losses for batch in batches]).numpy()


def exact_curves(config: RunConfig, model: nn.Module) -> Unseen:
    """Return the unseen clients with their largest risks within a cost budget: 0-1 loss, representation space."""
    population = config.population("unseen")
    num_clients = config.network.num_unseen
    problem, clients = transport_problem(config), [population.distribution(k) for k in range(num_clients)]
    curves = tuple(_exact_curve(problem, model, client) for client in clients)
    unmoved = replace(problem, free_distance=0.0)
    plain = curves if problem == unmoved else [_exact_curve(unmoved, model, client) for client in clients]
    risks = np.array([float(curve(0.0)) for curve in plain])
    return Unseen(risks, curves, group_names(population, num_clients=num_clients))


def _exact_curve(problem: TransportProblem, model: nn.Module, client: ClientDistribution) -> ConcaveCurve:
    with LinearHead(model, problem.head) as head:
        adversary = ExactAdversary(head, problem)
        batches = head.batches(client.x, client.y, loss=problem.loss)
        costs = [adversary.flip_costs(batch).numpy() for batch in batches]
    return knapsack_curve(np.concatenate(costs), client.weights)
