"""The certified best of several recommenders for people nobody has measured: MovieLens-1M users as natural clients.

    python -m papers.benchmarks.selection_movielens [--data FILE] [--objective mean+0.5*gini] [--recall-weight 0.5]

Item vectors are learnt from some people; others measure the loss of [DC] §5.2.2 under every candidate (a rank of the
factorisation and a score above which a film is recommended); the rest show what the certificate is about.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np

import riskband as rb
from riskband.selection import Selection
from worlds.movielens import (
    DEFAULT_FILE,
    Person,
    count_films,
    item_vectors,
    load_ratings,
    people,
    recommendation_losses,
    shuffled,
)

NUM_TRAINING = 1050
# Every loss is one number of one person, so nothing is said about a risk behind it: the law is that of the losses.
MEASURED = {"local": "observed", "mean_share": 0.25}


def candidate_losses(
    training: Sequence[Person],
    clients: Sequence[Person],
    *,
    ranks: Sequence[int] = (4, 16, 32),
    thresholds: Sequence[float] = (0.05, 0.1, 0.2, 0.3, 0.5),
    recall_weight: float = 0.5,
    seed: int = 0,
    **model: float,
) -> dict[str, np.ndarray]:
    """Return each client's loss under every candidate: a rank of the factorisation with a threshold.

    The item vectors are learnt from all likes of the people for training, none of whom is a client; `seed` and
    `**model` are those of `item_vectors`, the rest those of `recommendation_losses`. Losses (num_clients,) are returned
    by name, such as "rank-16,score-0.5". Raises ValueError if somebody is in both groups, or a group or a list of
    candidates is empty.
    """
    if not (training and clients and len(ranks) and len(thresholds)):
        raise ValueError("training, clients, ranks and thresholds must have at least one entry each, got none; add one")
    both = {person.user for person in training} & {person.user for person in clients}
    if both:
        raise ValueError(f"training and clients must be different people, got {len(both)} in both; split them")
    histories, num_items = [person.liked for person in training], count_films((*training, *clients))
    found: dict[str, np.ndarray] = {}
    for rank in ranks:
        items = item_vectors(histories, num_items=num_items, rank=rank, seed=seed, **model)  # type: ignore[arg-type]
        losses = recommendation_losses(clients, items, thresholds=thresholds, recall_weight=recall_weight, **model)
        found |= {f"rank-{rank},score-{cut:g}": losses[:, j] for j, cut in enumerate(thresholds)}
    return found


def answers(losses: np.ndarray) -> rb.ClientRisks:
    """Losses of people, one each, as answers of clients."""
    return rb.ClientRisks(losses, 1, binary=False)


def compare(found: Selection, truth: dict[str, float], objective: rb.Objective) -> None:
    print(found.table())
    print(f"objective {objective} of the people that were left out, by candidate:")
    for name, value in truth.items():
        print(f"  {name}: {value:.4f}{' <- certified best' if name == found.best else ''}")
    assert found.best is not None
    assert found.certificate is not None
    print(found.certificate.statement)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=str(DEFAULT_FILE))
    parser.add_argument("--objective", default="mean+0.5*gini")
    parser.add_argument("--recall-weight", type=float, default=0.5, help="0.5 is that of the paper")
    parser.add_argument("--delta", type=float, default=0.05)
    parser.add_argument("--clients", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    try:
        objective = rb.Objective(arguments.objective)
        sizes = (NUM_TRAINING, arguments.clients)
        training, clients, others = shuffled(people(load_ratings(arguments.data)), sizes=sizes, seed=arguments.seed)
        print(f"{len(training)} people train, {len(clients)} measure, {len(others)} are left out")
        losses = candidate_losses(
            training, (*clients, *others), recall_weight=arguments.recall_weight, seed=arguments.seed
        )
    except ValueError as error:
        sys.exit(str(error))
    measured = {name: answers(values[: len(clients)]) for name, values in losses.items()}
    truth = {
        name: objective.of_distribution(rb.RiskDistribution.of_values(values[len(clients) :]))
        for name, values in losses.items()
    }
    compare(rb.select(measured, objective=objective, delta=arguments.delta, **MEASURED), truth, objective)


if __name__ == "__main__":
    main()
