"""Natural clients and the factorisation on small made-up ratings; on MovieLens-1M where the file is there."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from papers.benchmarks.selection_movielens import candidate_losses
from worlds.movielens import (
    DEFAULT_FILE,
    Person,
    Ratings,
    fold_in,
    item_vectors,
    load_ratings,
    people,
    recommendation_losses,
    shuffled,
)


def made_up(num_users=60, num_items=40, seed=0):
    """Two tastes: users like films of their own half, mostly; times are a permutation."""
    rng = np.random.default_rng(seed)
    user, item = (axis.ravel() for axis in np.meshgrid(np.arange(num_users), np.arange(num_items), indexing="ij"))
    is_own = user % 2 == item % 2
    rating = np.where(rng.random(user.size) < np.where(is_own, 0.9, 0.05), 5.0, 3.0)
    return Ratings(user, item, rating, rng.permutation(user.size).astype(float))


def test_people_are_those_who_liked_enough_and_their_latest_films_are_to_be_found():
    ratings = Ratings(
        user=np.array([7, 7, 7, 7, 7, 3, 3, 3, 9, 9, 9]),
        item=np.array([1, 2, 3, 4, 2, 1, 2, 3, 5, 6, 4]),
        rating=np.array([5, 5, 5, 4, 5, 5, 5, 4, 5, 5, 5.0]),
        timestamp=np.array([4, 3, 1, 9, 8, 1, 2, 3, 2, 2, 2.0]),
    )
    first, second = people(ratings, min_liked=3, num_to_find=1)
    assert (first.user, first.history.tolist(), first.to_find.tolist()) == (7, [3, 2], [1])  # 2 was liked twice
    assert (second.user, second.history.tolist(), second.to_find.tolist()) == (9, [4, 5], [6])  # ties by number


def test_a_vector_solves_its_own_weighted_least_squares():
    rng = np.random.default_rng(1)
    items, liked = rng.normal(size=(9, 4)), np.array([2, 5, 6])
    found = fold_in([liked, np.empty(0, dtype=int)], items, regularisation=0.7, confidence=3.0)
    weight, target = np.ones(9), np.zeros(9)
    weight[liked], target[liked] = 4.0, 1.0
    rows = np.vstack([np.sqrt(weight)[:, None] * items, np.sqrt(0.7) * np.eye(4)])
    expected = np.linalg.lstsq(rows, np.append(np.sqrt(weight) * target, np.zeros(4)), rcond=None)[0]
    assert_allclose(found[0], expected, atol=1e-12)
    assert_array_equal(found[1], 0.0)


def objective(users, items, liked, *, regularisation, confidence):
    likes = np.zeros((len(users), len(items)))
    for row, films in enumerate(liked):
        likes[row, films] = 1.0
    errors = (1 + confidence * likes) * (likes - users @ items.T) ** 2
    return errors.sum() + regularisation * (np.sum(users**2) + np.sum(items**2))


def test_sweeps_descend_the_objective_and_are_the_same_for_the_same_seed():
    histories = [np.flatnonzero(row) for row in np.random.default_rng(2).random((30, 12)) < 0.3]
    settings = {"regularisation": 1.0, "confidence": 5.0}
    values = []
    for num_sweeps in (1, 2, 5, 20):
        items = item_vectors(histories, num_items=12, rank=3, num_sweeps=num_sweeps, seed=4, **settings)
        values.append(objective(fold_in(histories, items, **settings), items, histories, **settings))
    assert values == sorted(values, reverse=True)
    assert_array_equal(items, item_vectors(histories, num_items=12, rank=3, num_sweeps=20, seed=4, **settings))


def plain_loss(client, scores, threshold, alpha=0.5):
    """[DC] D.2.2, word for word."""
    found = {i for i, score in enumerate(scores) if score >= threshold} - set(client.history.tolist())
    wanted = set(client.to_find.tolist())
    missed_recall = 1 - sum(i in found for i in wanted) / len(wanted)
    missed_precision = 1 - sum(i in wanted for i in found) / len(found) if found else 1.0
    return alpha * missed_recall**2 + (1 - alpha) * missed_precision**2


def test_the_loss_is_that_of_the_paper():
    everyone = people(made_up(), min_liked=6, num_to_find=3)
    items = item_vectors([person.history for person in everyone[:30]], num_items=40, rank=3)
    thresholds = (-1.0, 0.1, 0.5, 0.9, 5.0)
    losses = recommendation_losses(everyone[30:], items, thresholds=thresholds)
    other = recommendation_losses(everyone[30:], items, thresholds=thresholds, recall_weight=0.2)
    for row, client in enumerate(everyone[30:]):
        scores = items @ fold_in([client.history], items)[0]
        assert_allclose(losses[row], [plain_loss(client, scores, cut) for cut in thresholds], atol=1e-12)
        assert_allclose(other[row], [plain_loss(client, scores, cut, 0.2) for cut in thresholds], atol=1e-12)
    assert_array_equal(losses[:, -1], 1.0)  # nothing recommended
    assert np.all((losses >= 0.0) & (losses <= 1.0))


def test_tastes_are_found_and_candidates_are_all_pairs():
    training, clients, others = shuffled(people(made_up(), min_liked=6, num_to_find=3), sizes=(30, 20), seed=1)
    assert len({person.user for group in (training, clients, others) for person in group}) == 60
    found = candidate_losses(training, clients, ranks=(1, 2), thresholds=(-9.0, 0.6), regularisation=1.0)
    assert list(found) == ["rank-1,score--9", "rank-1,score-0.6", "rank-2,score--9", "rank-2,score-0.6"]
    assert all(losses.shape == (20,) for losses in found.values())
    # Two tastes are two signs of one number; who is recommended every film finds all and wades through the rest.
    assert found["rank-1,score-0.6"].mean() < found["rank-1,score--9"].mean() / 2


def test_a_client_that_was_trained_on_is_refused():
    everyone = people(made_up(), min_liked=6, num_to_find=3)
    with pytest.raises(ValueError, match="different people, got 1 in both"):
        candidate_losses(everyone[:10], everyone[9:20])


LIKER = Person(0, np.array([0]), np.array([1]))


def losses_of(clients, thresholds=(0.1,)):
    return recommendation_losses(clients, np.ones((2, 1)), thresholds=thresholds)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: people(made_up(), min_liked=5, num_to_find=5), "num_to_find must be below"),
        (lambda: shuffled([Person(0, np.array([1]), np.array([2]))], sizes=(1,), seed=0), "leave somebody over"),
        (lambda: item_vectors([], num_items=3, rank=1), "at least one"),
        (lambda: item_vectors([np.array([3])], num_items=3, rank=1), "in 0 .. 2"),
        (lambda: item_vectors([np.array([1])], num_items=3, rank=0), "rank must be"),
        (lambda: fold_in([np.array([0])], np.ones((1, 1)), regularisation=0.0), "regularisation must be"),
        (lambda: fold_in([np.array([0])], np.ones((1, 1)), confidence=np.nan), "confidence must be"),
        (lambda: dataclasses.replace(made_up(), rating=np.ones(3)), "of one length"),
        (lambda: dataclasses.replace(made_up(), item=made_up().item - 1), "whole numbers"),
        (lambda: dataclasses.replace(made_up(), timestamp=np.full(2400, np.nan)), "finite"),
        (lambda: Ratings([1], [1], [5.0], [1.0]), "user must be a plain array of whole numbers"),
        (lambda: dataclasses.replace(made_up(), item=made_up().item + 0.5), "item must be a plain array of whole"),
        (lambda: dataclasses.replace(made_up(), rating=np.ma.ones(2400)), "rating must be a plain array of numbers"),
        (lambda: item_vectors([np.array([1.5])], num_items=3, rank=1), "histories must be whole numbers"),
        (lambda: fold_in([], np.ones((1, 1))), "at least one list"),
        (lambda: fold_in([np.array([1])], np.ones((1, 1))), "liked must be in 0 .. 0"),
        (lambda: losses_of([]), "at least one entry"),
        (lambda: losses_of([LIKER], thresholds=[]), "at least one entry"),
        (lambda: losses_of([LIKER], thresholds=[0.1, np.nan]), "thresholds must be a finite number"),
        (lambda: losses_of([LIKER], thresholds=["0.1"]), "thresholds must be a finite number"),
        (lambda: losses_of([dataclasses.replace(LIKER, to_find=np.array([0.5]))]), "to_find must be whole numbers"),
        (lambda: losses_of([dataclasses.replace(LIKER, to_find=np.empty(0))]), "a film to find"),
        (lambda: candidate_losses([], []), "at least one entry each"),
    ],
)
def test_what_makes_no_sense_is_refused(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_both_kinds_of_file_are_read(tmp_path):
    ratings = made_up(num_users=3, num_items=4)
    columns = {name: getattr(ratings, name) for name in ("user", "item", "rating", "timestamp")}
    np.savez(tmp_path / "ratings.npz", **columns, item_titles=np.array(["a", "b"]))
    lines = ["::".join(f"{value:g}" for value in row) for row in zip(*columns.values(), strict=True)]
    (tmp_path / "ratings.dat").write_text("\n".join(lines) + "\n")
    for file in ("ratings.npz", "ratings.dat"):
        found = load_ratings(tmp_path / file)
        for name, column in columns.items():
            assert_array_equal(getattr(found, name), column)


@pytest.mark.parametrize("content", [None, "", "1::2::3\n", "a::b::c::d\n", "1.5::2::5::0\n", "1::inf::5::0\n"])
def test_a_file_that_is_missing_or_damaged_is_refused_with_what_to_do(tmp_path, content):
    file = tmp_path / "ratings.dat"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ValueError, match=r"download ml-1m\.zip"):
        load_ratings(file)


@pytest.mark.skipif(not DEFAULT_FILE.exists(), reason="MovieLens-1M is not on this machine")
def test_movielens_has_as_many_people_as_the_paper_says():
    everyone = people(load_ratings())
    assert len(everyone) == 4050  # [DC] appendix D.2.2
    training, clients, _ = shuffled(everyone, sizes=(300, 200), seed=0)
    found = candidate_losses(training, clients, ranks=(4,), thresholds=(0.3, 5.0))
    assert found["rank-4,score-0.3"].mean() < 0.9
    assert found["rank-4,score-5"].mean() == 1.0
