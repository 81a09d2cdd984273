"""MovieLens as a network of clients, one for each person, who says which of two films it likes better.

An example of a client is a pair of films in random order, one of the five that the person liked last and one that it
did not give five stars; the label says which is which. A client's risk under 0-1 loss is 1 minus the area under the ROC
curve of its films to find. What travels is one vector per film; the person's own vector is computed on the client, from
the films that it liked before.

    python -m worlds.recommendation --out MODEL.pt [--data FILE] [--seed 0]

learns the vectors of films from 1,050 people, writes them for the scenario ``movielens``, whose clients are 1,500
others, and prints the exact risks of the rest, which that scenario's certificates are about.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from protocol.models import save_checkpoint
from riskband.checks import RefusedError
from worlds import movielens
from worlds.movielens import DEFAULT_FILE, HOW_TO_GET_IT, FloatArray, Person

FILE_VARIABLE = "RISKBAND_MOVIELENS"
"""The environment variable that names the file of ratings, of every client's process; else `DEFAULT_FILE`."""

NUM_TRAINING, NUM_CLIENTS = 1050, 1500
NUM_EXAMPLES = 100
LONGEST_HISTORY = 200
MAX_FILMS = 4000
"""Rows of the table of vectors; films of MovieLens-1M have numbers below it."""

X_SHAPE = (2 + LONGEST_HISTORY,)
"""An input: both films, then those liked before, latest last, filled up with −1."""

RANK, REGULARISATION, CONFIDENCE = 16, 10.0, 20.0
_FACTORISATION: dict[str, Any] = {"regularisation": REGULARISATION, "confidence": CONFIDENCE}
_SPLIT_SEED, _EXAMPLE_STREAM = 0, 7


class Recommender(nn.Module):
    """Scores of both films of a pair, from one vector per film and the films that the person liked before.

    The person's vector solves the normal equations of `worlds.movielens.fold_in`; logits have shape (num_examples, 2).
    """

    items: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("items", torch.zeros(MAX_FILMS, RANK, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the first two entries of each row of `x` (num_examples, *X_SHAPE)."""
        films = x.long()
        liked = self.items[films[:, 2:].clamp(min=0)] * (films[:, 2:] >= 0).unsqueeze(2)
        common = self.items.T @ self.items + REGULARISATION * torch.eye(RANK, dtype=self.items.dtype)
        systems = common + CONFIDENCE * liked.transpose(1, 2) @ liked
        users = torch.linalg.solve(systems, (1 + CONFIDENCE) * liked.sum(dim=1))
        scores: Tensor = self.items[films[:, :2]] @ users.unsqueeze(2)
        return scores.squeeze(2)


def held_pairs(partition_id: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return what the person of a node holds: `NUM_EXAMPLES` pairs, (num_examples, *X_SHAPE), and labels 0 or 1.

    The person is number `partition_id` ≥ 0 of those who answer. Raises ValueError if there is no file of ratings, or
    there are not so many people in it.
    """
    _, clients, _, num_films = _parts(os.environ.get(FILE_VARIABLE, str(DEFAULT_FILE)))
    if partition_id >= len(clients):
        raise RefusedError(f"num-clients must be at most {len(clients)}, the people who answer, got more; lower it")
    person = clients[partition_id]
    rng = np.random.default_rng(np.random.SeedSequence(_SPLIT_SEED, spawn_key=(_EXAMPLE_STREAM, person.user)))
    liked = rng.choice(person.to_find, NUM_EXAMPLES)
    other = rng.choice(_not_liked(person, num_films), NUM_EXAMPLES)
    label = rng.integers(2, size=NUM_EXAMPLES)
    x = np.full((NUM_EXAMPLES, *X_SHAPE), -1, dtype=np.float32)
    x[:, 0], x[:, 1] = np.where(label == 0, liked, other), np.where(label == 0, other, liked)
    history = person.history[-LONGEST_HISTORY:]
    x[:, 2 : 2 + len(history)] = history
    return x, label


def exact_risks(clients: Sequence[Person], items: FloatArray, *, num_films: int) -> FloatArray:
    """Return each person's risk over all its pairs, (num_clients,); of equal scores, one order in two is wrong."""
    users = movielens.fold_in([person.history[-LONGEST_HISTORY:] for person in clients], items, **_FACTORISATION)
    risks = []
    for person, user in zip(clients, users, strict=True):
        found, others = items[person.to_find] @ user, items[_not_liked(person, num_films)] @ user
        ranks = [np.searchsorted(np.sort(others), found, side=side) for side in ("left", "right")]
        risks.append(1.0 - np.mean(ranks) / others.size)
    return np.array(risks)


def prepared(path: str | Path, *, seed: int) -> tuple[Recommender, FloatArray]:
    """Return the model learnt from the people for training, and the exact risks of those left out.

    Raises ValueError as `worlds.movielens.load_ratings`.
    """
    training, _, left_out, num_films = _parts(str(path))
    likes = [person.liked for person in training]
    items = movielens.item_vectors(likes, num_items=num_films, rank=RANK, seed=seed, **_FACTORISATION)
    model = Recommender()
    model.items[:num_films] = torch.from_numpy(items)
    return model, exact_risks(left_out, items, num_films=num_films)


@lru_cache(maxsize=2)
def _parts(path: str) -> tuple[tuple[Person, ...], tuple[Person, ...], tuple[Person, ...], int]:
    """People for training, who answer, and who are left out, always the same; and the number of films."""
    try:
        everyone = movielens.people(movielens.load_ratings(path))
    except ValueError as error:
        if Path(path).expanduser().exists():
            raise
        # What a client raises may travel to the server: no path.
        raise RefusedError(
            f"a client of MovieLens needs the ratings, got no file; {HOW_TO_GET_IT} in the variable {FILE_VARIABLE}"
        ) from error
    num_films = movielens.count_films(everyone)
    if num_films > MAX_FILMS:
        raise RefusedError(f"films must have numbers below {MAX_FILMS}, got larger ones; number them from 0")
    # As in docs/selection.md; of fewer people, the same shares.
    sizes = [len(everyone) * number // 4050 for number in (NUM_TRAINING, NUM_CLIENTS)]
    training, clients, left_out = movielens.shuffled(everyone, sizes=sizes, seed=_SPLIT_SEED)
    return training, clients, left_out, num_films


def _not_liked(person: Person, num_films: int) -> NDArray[np.int64]:
    return np.setdiff1d(np.arange(num_films), person.liked)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status: 2 if there are no ratings."""
    parser = argparse.ArgumentParser(prog="python -m worlds.recommendation", description="Learn vectors of films.")
    parser.add_argument("--out", metavar="MODEL.pt", type=Path, required=True)
    default = os.environ.get(FILE_VARIABLE, str(DEFAULT_FILE))
    parser.add_argument("--data", metavar="FILE", default=default, help="ratings.dat, or an .npz of ratings")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        model, risks = prepared(options.data, seed=options.seed)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    save_checkpoint(model, options.out)
    print(f"{options.out.absolute()}: pass it on as --set checkpoint={options.out.absolute()}")
    largest = ", ".join(f"{np.mean(risks >= cut):.3f} at least {cut:g}" for cut in (0.1, 0.3, 0.5))
    print(f"exact risks of {risks.size} people left out: mean {risks.mean():.4f}; share with a risk of {largest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
