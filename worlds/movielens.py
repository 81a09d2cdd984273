"""MovieLens users as natural clients, and a matrix factorisation that recommends films to them ([DC] §5.2.2).

A client is a person: the films it rated with five stars, the last five of which are to be found. What travels to a
client is one vector per film; its own vector it computes from its own earlier films. The item vectors are learnt
from other people, so that clients whose losses are certified had no part in training.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.checks import checked_count, checked_number, checked_seed
from worlds.datasets import npz_arrays

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

DEFAULT_FILE = Path.home() / ".cache" / "riskband-data" / "movielens_1m.npz"
HOW_TO_GET_IT = (
    "download ml-1m.zip from https://grouplens.org/datasets/movielens/1m/ (for research, not to be passed on) and name "
    "its ratings.dat, or an .npz file with the arrays user, item, rating and timestamp"
)

TOP_RATING = 5.0
MIN_LIKED, NUM_TO_FIND = 15, 5
"""[DC] appendix D.2.2: people with at least 15 five-star ratings; the 5 latest films are the test set."""


@dataclass(frozen=True, eq=False)
class Ratings:
    """Who rated what, when; arrays of shape (num_ratings,).

    Users and items are whole numbers ≥ 0 with or without gaps, ratings in stars, times in any unit. Raises ValueError
    if the arrays differ in length, are empty, not flat, or hold no finite numbers of their kind.
    """

    user: IntArray
    item: IntArray
    rating: FloatArray
    timestamp: FloatArray

    def __post_init__(self) -> None:
        for name, kinds in (("user", "iu"), ("item", "iu"), ("rating", "iuf"), ("timestamp", "iuf")):
            array = getattr(self, name)
            is_plain = isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray)
            if not is_plain or array.dtype.kind not in kinds:
                numbers = "whole numbers" if kinds == "iu" else "numbers"
                raise ValueError(f"{name} must be a plain array of {numbers}, got {array!r:.80}; use numpy.asarray")
        shapes = {np.shape(array) for array in (self.user, self.item, self.rating, self.timestamp)}
        if len(shapes) > 1 or self.user.ndim != 1 or self.user.size == 0:
            raise ValueError(f"user, item, rating and timestamp must be flat and of one length ≥ 1, got {shapes}")
        if not (np.all(np.isfinite(self.rating)) and np.all(np.isfinite(self.timestamp))):
            raise ValueError("ratings and timestamps must be finite; leave out ratings without a value or a time")
        if self.user.min() < 0 or self.item.min() < 0:
            raise ValueError("users and items must be whole numbers ≥ 0; number them")


@dataclass(frozen=True, eq=False)
class Person:
    """A natural client: the films it liked, which its own vector comes from, but for the latest, which are to find."""

    user: int
    history: IntArray
    to_find: IntArray

    @property
    def liked(self) -> IntArray:
        """All of them."""
        return np.concatenate([self.history, self.to_find])


def load_ratings(path: str | Path = DEFAULT_FILE) -> Ratings:
    """Read ratings from an .npz file, or from MovieLens's own ``ratings.dat``.

    Raises ValueError if there is no such file (the text says how to get it), or it holds no ratings.
    """
    file = Path(path).expanduser()
    if not file.exists():
        raise ValueError(f"the ratings must be in a file, but there is none at {file}; {HOW_TO_GET_IT}")
    try:
        if file.suffix == ".npz":
            columns = list(npz_arrays(file, ("user", "item", "rating", "timestamp")).values())
        else:
            columns = list(np.array(file.read_text().replace("::", " ").split(), dtype=np.float64).reshape(-1, 4).T)
        user, item = (np.asarray(column) for column in columns[:2])
        if not all(np.all((np.abs(ids) < 2**53) & (ids == np.floor(ids))) for ids in (user, item)):
            raise ValueError("users and items must be whole numbers")
        user, item = user.astype(np.int64), item.astype(np.int64)
        return Ratings(user, item, *(np.asarray(column, dtype=np.float64) for column in columns[2:]))
    except Exception as error:
        raise ValueError(f"{file} must hold ratings, but: {error}; {HOW_TO_GET_IT}") from error


def people(ratings: Ratings, *, min_liked: int = MIN_LIKED, num_to_find: int = NUM_TO_FIND) -> tuple[Person, ...]:
    """Return everyone who gave the top rating often enough, in order of user.

    Films are ordered by time, those of one moment by number. Of a film rated twice the first rating counts.
    """
    min_liked = checked_count("min_liked", min_liked, minimum=2, remedy="15 is that of the paper")
    num_to_find = checked_count("num_to_find", num_to_find, minimum=1, remedy="5 is that of the paper")
    if num_to_find >= min_liked:
        raise ValueError(f"num_to_find must be below min_liked, got {num_to_find}; someone's history would be empty")
    liked = ratings.rating >= TOP_RATING
    user, item, time = ratings.user[liked], ratings.item[liked], ratings.timestamp[liked]
    order = np.lexsort((item, time, user))
    user, item = user[order], item[order]
    starts = np.flatnonzero(np.diff(user, prepend=-1))
    found = []
    for name, films in zip(user[starts], np.split(item, starts[1:]), strict=True):
        unique = films[np.sort(np.unique(films, return_index=True)[1])]
        if unique.size >= min_liked:
            found.append(Person(int(name), unique[:-num_to_find], unique[-num_to_find:]))
    return tuple(found)


def count_films(everyone: Iterable[Person]) -> int:
    """Return 1 more than the largest number of a film that one of these people liked."""
    return 1 + max(int(person.liked.max()) for person in everyone)


def shuffled(everyone: Sequence[Person], *, sizes: Sequence[int], seed: int) -> tuple[tuple[Person, ...], ...]:
    """Return disjoint random groups of people of these sizes, the last one with all who are left.

    Raises ValueError if there are not more people than that.
    """
    if sum(sizes) >= len(everyone):
        raise ValueError(f"groups of {list(sizes)} must leave somebody over, got {len(everyone)} people; take fewer")
    order = np.random.default_rng(checked_seed(seed)).permutation(len(everyone))
    return tuple(tuple(everyone[k] for k in part) for part in np.split(order, np.cumsum(sizes)))


def item_vectors(
    histories: Iterable[IntArray],
    *,
    num_items: int,
    rank: int,
    regularisation: float = 10.0,
    confidence: float = 20.0,
    num_sweeps: int = 10,
    seed: int = 0,
) -> FloatArray:
    """Learn one vector per film from who liked what: alternating least squares on implicit feedback.

    Minimises Σ c_ui (p_ui − x_u·y_i)² + regularisation (Σ‖x_u‖² + Σ‖y_i‖²) over users' and items' vectors; p is 1 for
    films liked and 0 for others, c = 1 + confidence · p (Hu, Koren and Volinsky 2008). Both sides are solved for in
    each of the sweeps. Histories are the films that each training user liked, in 0 .. num_items − 1; counts are ≥ 1,
    regularisation and confidence > 0; the seed is that of the first item vectors. The vectors have shape (num_items,
    rank); a film that nobody liked has the vector 0. Raises ValueError if an argument breaks its rule.
    """
    num_items = checked_count("num_items", num_items, minimum=1, remedy="count the films")
    rank = checked_count("rank", rank, minimum=1, remedy="16 is that of the paper")
    num_sweeps = checked_count("num_sweeps", num_sweeps, minimum=1, remedy="10 is enough here")
    liked = [_checked_rows("histories", films) for films in histories]
    everything = np.concatenate(liked) if liked else np.empty(0, dtype=np.int64)
    if everything.size == 0 or everything.min() < 0 or everything.max() >= num_items:
        raise ValueError(f"histories must name films in 0 .. {num_items - 1}, at least one; renumber them")
    by_item = np.repeat(np.arange(len(liked)), [films.size for films in liked])[np.argsort(everything, kind="stable")]
    likers = np.split(by_item, np.cumsum(np.bincount(everything, minlength=num_items))[:-1])
    items = 0.1 * np.random.default_rng(checked_seed(seed)).standard_normal((num_items, rank))
    for _ in range(num_sweeps):
        users = fold_in(liked, items, regularisation=regularisation, confidence=confidence)
        items = fold_in(likers, users, regularisation=regularisation, confidence=confidence)
    return items


def fold_in(
    liked: Sequence[IntArray], vectors: FloatArray, *, regularisation: float = 10.0, confidence: float = 20.0
) -> FloatArray:
    """Return the best vector for each of several lists of what is liked, the vectors of the other side being given.

    For each user the films (or for each film the users) are rows of `vectors`, shape (num_others, rank); a list may be
    empty. The vectors found, shape (len(liked), rank), solve the normal equations: a client computes its own from its
    own films alone. Raises ValueError if a number is not finite and > 0, there is no list, or a list names no rows.
    """
    remedy = "see Hu, Koren and Volinsky 2008"
    regularisation = checked_number("regularisation", regularisation, above=0, remedy=remedy)
    confidence = checked_number("confidence", confidence, above=0, remedy=remedy)
    rows_of = [_checked_rows("liked", rows, num_rows=len(vectors)) for rows in liked]
    if not rows_of:
        raise ValueError("liked must be at least one list, got none; an empty list is one that likes nothing")
    common = vectors.T @ vectors + regularisation * np.eye(vectors.shape[1])
    systems = np.stack([common + confidence * (vectors[rows].T @ vectors[rows]) for rows in rows_of])
    sums = np.stack([vectors[rows].sum(axis=0) for rows in rows_of])
    return np.asarray(np.linalg.solve(systems, (1.0 + confidence) * sums[:, :, None])[:, :, 0])


def _checked_rows(name: str, rows: object, *, num_rows: int | None = None) -> IntArray:
    array = np.asarray(rows)
    is_whole = array.size == 0 or array.dtype.kind in "iu"
    if isinstance(rows, np.ma.MaskedArray) or array.ndim != 1 or not is_whole:
        raise ValueError(f"{name} must be whole numbers in one row each, got {rows!r:.80}; number what is liked")
    if num_rows is not None and array.size and not (array.min() >= 0 and array.max() < num_rows):
        raise ValueError(f"{name} must be in 0 .. {num_rows - 1}, got {array.min()} to {array.max()}; renumber them")
    return array.astype(np.int64)


def recommendation_losses(
    clients: Sequence[Person],
    items: FloatArray,
    *,
    thresholds: Sequence[float],
    recall_weight: float = 0.5,
    **model: float,
) -> FloatArray:
    """Return every client's loss for each threshold above which a film is recommended, (num_clients, num_thresholds).

    With Î the films outside the history whose score is at least the threshold, and I those to find, it is
    α (1 − |Î ∩ I| / |I|)² + (1 − α) (1 − |Î ∩ I| / |Î|)², a mixture of missed recall and missed precision in [0, 1]
    ([DC] appendix D.2.2). For an empty Î, of which the paper says nothing, the precision counts as 0. Recommending
    everything costs about 1 − α; at the paper's α = ½ a list worth reading hardly costs less.

    Each client has something to find. Items are vectors from `item_vectors`; thresholds are scores, about 0 for films
    that nobody likes, about 1 for those that are liked; `recall_weight` is α, in [0, 1]; `model` are `regularisation`
    and `confidence` of `fold_in`.
    """
    remedy = "0.5 is that of the paper"
    recall_weight = checked_number("recall_weight", recall_weight, minimum=0, maximum=1, remedy=remedy)
    if len(clients) == 0 or np.ndim(thresholds) != 1 or np.size(thresholds) == 0:
        raise ValueError("clients and thresholds must be lists with at least one entry, got none; add one")
    cuts = np.array([checked_number("thresholds", cut, remedy="they are scores, such as 0.3") for cut in thresholds])
    if any(_checked_rows("to_find", client.to_find, num_rows=len(items)).size == 0 for client in clients):
        raise ValueError("every client must have a film to find, got one without; leave it out")
    users = fold_in([client.history for client in clients], items, **model)
    losses = np.empty((len(clients), cuts.size))
    for row, (client, vector) in enumerate(zip(clients, users, strict=True)):
        scores = items @ vector
        scores[client.history] = -np.inf
        num_recommended = (scores[:, None] >= cuts).sum(axis=0)
        num_found = (scores[client.to_find][:, None] >= cuts).sum(axis=0)
        missed_recall = 1.0 - num_found / client.to_find.size
        missed_precision = 1.0 - num_found / np.maximum(num_recommended, 1)
        losses[row] = recall_weight * missed_recall**2 + (1.0 - recall_weight) * missed_precision**2
    return losses
