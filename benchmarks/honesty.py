"""How often a bound is false where an assumption of its certificate is: for each, an experiment that counts.

    python -m benchmarks.honesty [--networks 20]

"Trainers": one MLP learns the digits from 60 examples of each of 30 clients under affine shifts. Then 30 clients answer
from 100 examples that it has not seen: those that trained it, or others of the same law. The bound is on the mean risk
over that law, whose truth is the mean exact risk of 50 further clients. Deterministic: the seed of network i is i.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import riskband as rb
from client.evaluation import example_losses, mean_loss
from simulations.models import build_model
from simulations.population import Population, PopulationSpec
from simulations.shifts import AffineShift
from simulations.training import train_epochs

DELTA = 0.05
NUM_CLIENTS, NUM_UNSEEN = 30, 50
NUM_TRAINING_EXAMPLES, NUM_EXAMPLES = 60, 100
SIGMA = 0.6
NUM_EPOCHS, LEARNING_RATE, BATCH_SIZE = 10, 0.01, 300


class TrainersExperiment(NamedTuple):
    """Bounds from clients that trained the model and from others, each of shape (num_networks,).

    Attributes
    ----------
    by_trainers, by_fresh : ndarray
        Bound on the mean risk that holds with probability 0.95, from the answers of either.
    truth : ndarray
        Mean risk of clients that neither trained nor answered.
    """

    by_trainers: npt.NDArray[np.float64]
    by_fresh: npt.NDArray[np.float64]
    truth: npt.NDArray[np.float64]

    @property
    def failure_rates(self) -> tuple[float, float]:
        """Share of networks in which the bound is false: from trainers, from fresh clients."""
        return float(np.mean(self.by_trainers < self.truth)), float(np.mean(self.by_fresh < self.truth))


def trainers_experiment(num_networks: int, *, seed: int = 0) -> TrainersExperiment:
    """Train one model per network, and bound its mean risk from answers of trainers and of fresh clients."""
    rows = [_trainers_network(seed + number) for number in range(num_networks)]
    return TrainersExperiment(*np.array(rows).T)


def trainers_failure_rates(num_networks: int, seed: int = 0) -> tuple[float, float]:
    """Return `failure_rates` of `trainers_experiment`."""
    return trainers_experiment(num_networks, seed=seed).failure_rates


def _trainers_network(seed: int) -> tuple[float, float, float]:
    model = _trained_model(_population("training", NUM_TRAINING_EXAMPLES, seed), seed=seed)
    bounds = [_mean_bound(model, _population(name, NUM_EXAMPLES, seed)) for name in ("training", "source")]
    unseen = _population("unseen", NUM_EXAMPLES, seed)
    laws = (unseen.distribution(k) for k in range(NUM_UNSEEN))
    risks = [law.weights @ example_losses(model, law.x, law.y, loss="zero_one") for law in laws]
    return bounds[0], bounds[1], float(np.mean(risks))


def _population(network: str, num_examples: int, seed: int) -> Population:
    spec = PopulationSpec(seed=seed, examples_per_client=num_examples, shifts=(AffineShift(SIGMA),), network=network)
    return Population(spec)


def _trained_model(population: Population, *, seed: int) -> nn.Module:
    held = [population.training_examples(k) for k in range(NUM_CLIENTS)]
    x, y = np.concatenate([each.x for each in held]), np.concatenate([each.y for each in held])
    model = build_model("mlp", x_shape=x.shape[1:], num_classes=10, seed=seed)
    train_epochs(model, x, y, seed=seed, num_epochs=NUM_EPOCHS, learning_rate=LEARNING_RATE, batch_size=BATCH_SIZE)
    return model


def _mean_bound(model: nn.Module, population: Population) -> float:
    held = [population.client(k) for k in range(NUM_CLIENTS)]
    losses = [mean_loss(model, each.x, each.y, loss="zero_one")[0] for each in held]
    return float(rb.mean_bound(rb.ClientRisks(losses, NUM_EXAMPLES), delta=DELTA).value)


def print_trainers(num_networks: int) -> None:
    """Print the experiment as a table."""
    found = trainers_experiment(num_networks)
    print(f"bound on the mean risk, delta = {DELTA}, K = {NUM_CLIENTS} clients, {num_networks} networks")
    print(f"{'who answered':<32}{'bound':>8}{'truth':>8}{'false':>8}")
    rows = zip(("clients that trained the model", "clients that did not"), found[:2], found.failure_rates, strict=True)
    for name, bounds, rate in rows:
        print(f"{name:<32}{bounds.mean():>8.3f}{found.truth.mean():>8.3f}{rate:>8.2f}")


def main() -> None:
    """Run all experiments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=20, help="networks per experiment (default: 20)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print_trainers(arguments.networks)


if __name__ == "__main__":
    main()
