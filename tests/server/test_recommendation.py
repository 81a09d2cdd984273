"""People as clients: their pairs, the model, exact risks, and the scenario over the app."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

import riskband as rb
from papers.dispersion.lorenz import made_up_ratings
from riskband.checks import RefusedError
from riskband.functionals.functional import resolve
from tests.server.running import run_app
from worlds import recommendation as world
from worlds.movielens import fold_in

SCENARIO = Path(__file__).resolve().parents[2] / "simulations" / "scenarios" / "movielens.toml"


@pytest.fixture(name="ratings", scope="module")
def _ratings(tmp_path_factory):
    """Ratings of made-up people in a file, in which more than a third answer."""
    file = tmp_path_factory.mktemp("ratings") / "ratings.npz"
    made_up = made_up_ratings(num_people=120, num_films=110, seed=1)
    names = ("user", "item", "rating", "timestamp")
    np.savez(file, **{name: getattr(made_up, name) for name in names})
    return file


@pytest.fixture(name="held", autouse=True)
def _held(ratings, monkeypatch):
    monkeypatch.setenv(world.FILE_VARIABLE, str(ratings))
    return world.held_pairs


def test_a_pair_is_a_film_to_find_and_one_that_was_not_liked(ratings, held):
    _, clients, _, num_films = world._parts(str(ratings))
    x, y = held(3)
    person = clients[3]
    liked, other = (np.where(y == side, x[:, 0], x[:, 1]).astype(int) for side in (0, 1))
    assert x.shape == (world.NUM_EXAMPLES, *world.X_SHAPE)
    assert set(liked) <= set(person.to_find.tolist())
    assert not set(other) & {*person.history.tolist(), *person.to_find.tolist()}
    assert other.max() < num_films
    assert 20 < y.sum() < 80
    history = x[0, 2:][x[0, 2:] >= 0].astype(int)
    assert history.tolist() == person.history[-world.LONGEST_HISTORY :].tolist()
    again = held(3)
    assert np.array_equal(x, again[0])
    assert np.array_equal(y, again[1])


def test_the_model_scores_as_the_factorisation_does(ratings, held):
    model, _ = world.prepared(ratings, seed=0)
    _, clients, _, num_films = world._parts(str(ratings))
    x, _ = held(5)
    items = model.items.numpy()[:num_films]
    (user,) = fold_in([clients[5].history], items, regularisation=10.0, confidence=20.0)
    np.testing.assert_allclose(model(torch.from_numpy(x)), items[x[:, :2].astype(int)] @ user, atol=1e-9)


def test_exact_risks_are_shares_of_wrong_pairs(ratings):
    model, risks = world.prepared(ratings, seed=0)
    _, _, left_out, num_films = world._parts(str(ratings))
    items = model.items.numpy()[:num_films]
    person, risk = left_out[0], risks[0]
    (user,) = fold_in([person.history], items, regularisation=10.0, confidence=20.0)
    liked = {*person.history.tolist(), *person.to_find.tolist()}
    wrong = [
        float(items[o] @ user > items[f] @ user) + 0.5 * float(items[o] @ user == items[f] @ user)
        for f in person.to_find
        for o in range(num_films)
        if o not in liked
    ]
    assert risk == pytest.approx(np.mean(wrong))
    assert risks.mean() < 0.4  # it has learnt something


def test_the_scenario_certifies_people_that_nobody_asked(ratings, defaults, tmp_path, capsys):
    assert world.main(["--out", str(tmp_path / "model.pt"), "--data", str(ratings)]) == 0
    assert "people left out: mean 0." in capsys.readouterr().out
    scenario = tomllib.loads(SCENARIO.read_text()) | {"num-clients": 40, "checkpoint": str(tmp_path / "model.pt")}
    report = run_app(tmp_path / "out", defaults, **scenario)
    _, risks = world.prepared(ratings, seed=0)
    law = rb.RiskDistribution.of_values(risks)
    assert report["network"]["num_answered"] == 40
    assert risks.mean() <= report["certificates"]["dispersion_mean"]["value"] < 0.6
    found = {each["measure"]: each for each in report["dispersion"]["measures"]}
    for name in ("gini", "top_share:0.1"):
        ends = found[name]
        assert ends["lower"] <= resolve(name).value(law) <= ends["upper"]


def test_missing_ratings_are_said_with_how_to_get_them_and_without_a_path(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv(world.FILE_VARIABLE, str(tmp_path / "secret.npz"))
    with pytest.raises(RefusedError, match=r"https://grouplens.org") as caught:
        world.held_pairs(0)
    assert "secret" not in str(caught.value)
    assert world.main(["--out", str(tmp_path / "model.pt"), "--data", str(tmp_path / "none.dat")]) == 2
    assert "https://grouplens.org" in capsys.readouterr().err


def test_there_are_only_so_many_people(held):
    with pytest.raises(RefusedError, match="num-clients must be at most"):
        held(100_000)
