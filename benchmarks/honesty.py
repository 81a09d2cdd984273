"""How often a bound is false where an assumption of its certificate is: for each, an experiment that counts.

    python -m benchmarks.honesty [--networks 20]

"Windows": 100 clients with uniform risks; of 19 windows of levels (method "truncated:LOW:HIGH") somebody takes the
one that says most. "Seeds": 500 clients with 100 examples each, risks ~ Beta(3, 21); of 1,000 seeds for the order of
the bets somebody takes the one with the smallest bound on the mean. "Trainers": one MLP learns the digits from 60
examples of each of 30 clients under affine shifts. Then 30 clients answer from 100 examples that it has not seen:
those that trained it, or others of the same law. The bound is on the mean risk over that law, whose truth is the mean
exact risk of 50 further clients. Deterministic: the seed of network i is i. First come the practices of
`benchmarks.repaired`.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import riskband as rb
from benchmarks.ground_truth import BetaRisks
from benchmarks.repaired import print_rows
from protocol.models import build_model
from riskband.betting import LARGEST_SHARE_OF_TAILS, adaptive_bets
from riskband.checks import FloatArray
from riskband.models.evaluation import example_losses, mean_loss
from riskband.wording import CHOSEN_BEFORE
from worlds.population import Population, PopulationSpec
from worlds.shifts import AffineShift
from worlds.training import train_epochs

DELTA = 0.05
WINDOWS = [f"truncated:{low / 20:g}:{(low + 1) / 20:g}" for low in range(19)]
NUM_CLIENTS, NUM_UNSEEN = 30, 50
NUM_TRAINING_EXAMPLES, NUM_EXAMPLES = 60, 100
SIGMA = 0.6
NUM_EPOCHS, LEARNING_RATE, BATCH_SIZE = 10, 0.01, 300


class TrainersExperiment(NamedTuple):
    """Bounds of the mean risk, with probability 0.95, from clients that trained the model and from others.

    The truth is the mean risk of clients that neither trained nor answered; all have shape (num_networks,).
    """

    by_trainers: FloatArray
    by_fresh: FloatArray
    truth: FloatArray

    @property
    def failure_rates(self) -> tuple[float, float]:
        """Share of networks in which the bound is false: from trainers, from fresh clients."""
        return float(np.mean(self.by_trainers < self.truth)), float(np.mean(self.by_fresh < self.truth))


def trainers_experiment(num_networks: int, *, seed: int = 0) -> TrainersExperiment:
    """Train one model per network, and bound its mean risk from answers of trainers and of fresh clients."""
    rows = [_trainers_network(seed + number) for number in range(num_networks)]
    return TrainersExperiment(*np.array(rows).T)


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


class ShoppingExperiment(NamedTuple):
    """Whether a certificate is false in each network, (num_networks,): the one that looked best, or the default.

    `assumed` is what the certificates of the best choices say of them; this assumption is broken.
    """

    best_is_false: npt.NDArray[np.bool_]
    fixed_is_false: npt.NDArray[np.bool_]
    assumed: tuple[str, ...]


def windows_experiment(num_networks: int, *, seed: int = 0) -> ShoppingExperiment:
    """Read measured risks off the window that says most: false where any of the windows is."""
    found = []
    for number in range(num_networks):
        risks = rb.ClientRisks(np.random.default_rng(seed + number).random(100), NUM_EXAMPLES, binary=False)
        settings = {"delta": DELTA, "local": "observed", "sides": "lower"}
        bands = [rb.band(risks, method=method, **settings) for method in WINDOWS]
        margins = [np.max(band.lower_levels - band.lower_points) for band in bands]  # above the CDF F(x) = x
        best = bands[int(np.argmax(margins))]
        plain = rb.band(risks, **settings)
        found.append((max(margins) > 0.0, np.any(plain.lower_levels > plain.lower_points), _chosen(rb.mean(best))))
    return _shopping(found)


def seeds_experiment(num_networks: int, *, seed: int = 0, num_seeds: int = 1000) -> ShoppingExperiment:
    """Bound the mean by the seed with the smallest bound: false where the capital of any seed rejects the true mean."""
    law, num_clients, found = BetaRisks(3.0, 21.0), 500, []
    orders = [np.random.default_rng(each).permutation(num_clients) for each in range(num_seeds)]
    for number in range(num_networks):
        _, values = law.draw(np.random.default_rng(seed + number), num_clients=num_clients, num_examples=NUM_EXAMPLES)
        lacking = _least_lacking(np.array(values[orders]), law.mean_risk())
        risks, best = rb.ClientRisks(values, NUM_EXAMPLES), int(np.argmin(lacking))
        shopped = rb.mean_bound(risks, delta=DELTA, seed=best)
        is_false = rb.mean_bound(risks, delta=DELTA).value < law.mean_risk()
        found.append((shopped.value < law.mean_risk(), is_false, _chosen(shopped)))
    return _shopping(found)


def _least_lacking(played: FloatArray, mean: float) -> FloatArray:
    """What bets in each order, shape (num_orders, num_clients), lack at least to refute a mean, on the log scale."""
    num_clients, target, bets = played.shape[1], np.log(1.0 / DELTA), adaptive_bets(played, DELTA)
    lacking = least = np.full(len(played), target)
    for seen in range(num_clients):
        aimed = bets[:, seen] * np.sqrt(lacking / target * num_clients / (num_clients - seen))
        stakes = np.minimum(aimed, LARGEST_SHARE_OF_TAILS / (1.0 - mean))
        lacking = np.maximum(lacking - np.log1p(stakes * (mean - played[:, seen])), 0.0)
        least = np.minimum(least, lacking)
    return least


def _shopping(found: list[tuple[bool, bool, str]]) -> ShoppingExperiment:
    best, fixed, assumed = zip(*found, strict=True)
    return ShoppingExperiment(np.array(best, dtype=bool), np.array(fixed, dtype=bool), assumed)


def _chosen(certificate: rb.Certificate) -> str:
    return next(line for line in certificate.assumptions if line.startswith(CHOSEN_BEFORE))


def print_shopping(name: str, found: ShoppingExperiment) -> None:
    """Print one experiment as a table."""
    print(f"{name}, delta = {DELTA}, {found.best_is_false.size} networks")
    print(f"{'chosen':<32}{'false':>8}")
    print(f"{'by looking: the best of them':<32}{found.best_is_false.mean():>8.2f}")
    print(f"{'before: the default':<32}{found.fixed_is_false.mean():>8.2f}")
    print(f'the best one assumes, and breaks: "{found.assumed[0]}"\n')


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
    print_rows(10 * arguments.networks)
    print_shopping("levels from the best of 19 windows", windows_experiment(10 * arguments.networks))
    print_shopping("bound on the mean from the best of 1,000 seeds", seeds_experiment(5 * arguments.networks))
    print_trainers(arguments.networks)


if __name__ == "__main__":
    main()
