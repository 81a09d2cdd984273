"""Lorenz curves of two hypotheses on MovieLens-1M ([DC] Figure 3): who bears the loss of a recommender.

A hypothesis is a score above which a film is recommended. The bounds hold for all hypotheses at once, so two may be
chosen by them: h1 has the smallest certified mean, h0 the largest bound on the Atkinson index. Two things differ from
the paper: the people whose losses are certified had no part in learning the films' vectors, and these are learnt by
alternating least squares.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import riskband as rb
from papers.experiment import Experiment, Request, Result
from protocol.checks import checked_count, checked_seed
from riskband.functionals.dispersion import lorenz_of_distribution
from riskband.functionals.functional import interval_of, resolve
from riskband.plots.bands import ANSWERS, BOUNDS, UNSEEN, blank_figure, legend_under
from worlds import movielens
from worlds.movielens import FloatArray, Person

DELTA, RANK, NUM_HYPOTHESES = 0.05, 16, 100
MEASURES = ("atkinson:0.5", "gini")
METHODS = {"published": "plugin", "sharp": "sharp"}
LONGEST_LIST = 0.1
"""Of all films: what recommends more to the average person for training is no hypothesis to choose. The loss of the
paper is about ½ for everybody who is recommended everything, and a larger one for most hypotheses."""
SHARES = np.linspace(0.0, 1.0, 51)


def made_up_ratings(*, num_people: int, num_films: int, seed: int = 0) -> movielens.Ratings:
    """Return ratings of people who do not exist, for where no file may be asked for: each film has a taste and a fame.

    Everyone has rated half of the films, and gave five stars to a third of these: those nearest to the own taste, by
    and large, or the best known. Raises ValueError if there are not two people and 20 films.
    """
    num_people = checked_count("num_people", num_people, minimum=2, remedy="300 are enough to learn from")
    num_films = checked_count("num_films", num_films, minimum=20, remedy="100 are enough to learn from")
    rng = np.random.default_rng(checked_seed(seed))
    films, fame = rng.standard_normal((num_films, 3)), rng.standard_normal(num_films)
    tastes = rng.standard_normal((num_people, 3))
    liking = tastes @ films.T + fame + rng.standard_normal((num_people, num_films))
    rated = rng.random((num_people, num_films)) < 0.5
    user, item = np.nonzero(rated)
    cuts = np.array([np.quantile(row[mask], 2 / 3) for row, mask in zip(liking, rated, strict=True)])
    rating = np.where(liking[user, item] > cuts[user], movielens.TOP_RATING, 3.0)
    return movielens.Ratings(user, item, rating, rng.permutation(user.size).astype(np.float64))


def run(request: Request) -> Result:
    """Learn, bound every hypothesis, choose two, and compare with the people that were left out."""
    ratings = (
        made_up_ratings(num_people=320, num_films=90, seed=request.seed)
        if request.quick
        else movielens.load_ratings(request.file("movielens_1m"))
    )
    everyone = movielens.people(ratings, min_liked=10 if request.quick else 15)
    num_clients = request.num_clients(full=1500, quick=100)
    sizes = (100 if request.quick else 1050, num_clients)
    training, clients, left_out = movielens.shuffled(everyone, sizes=sizes, seed=request.seed)
    scores, list_lengths, losses = _losses(training, (*clients, *left_out), seed=request.seed)
    measured, truth = losses[:num_clients], losses[num_clients:]
    bounds = _bounds(measured)
    useful = np.flatnonzero(list_lengths <= LONGEST_LIST)
    mean, atkinson = (np.array(bounds["sharp"][name])[useful, 1] for name in ("mean", "atkinson:0.5"))
    chosen = {"h0": int(useful[np.argmax(atkinson)]), "h1": int(useful[np.argmin(mean)])}
    known = [rb.RiskDistribution.of_values(column) for column in truth.T]
    return {
        "num_people": {"training": len(training), "measured": len(clients), "left_out": len(left_out)},
        "delta": DELTA,
        "validity": {"published": "certificate, plug-in of [DC] on a Berk-Jones band", "sharp": "certificate"},
        "scores": scores.tolist(),
        "list_lengths": list_lengths.tolist(),
        "truth": {name: [resolve(name).value(law) for law in known] for name in ("mean", *MEASURES)},
        "bounds": bounds,
        "chosen": chosen,
        "everything": _everything(truth, bounds),
        "curves": {name: _curves(measured[:, index], known[index]) for name, index in chosen.items()},
        "table": [
            _row(name, scores[index], measure, known[index], {way: bounds[way][measure][index] for way in METHODS})
            for name, index in chosen.items()
            for measure in ("mean", *MEASURES)
        ],
    }


def _row(
    name: str, score: float, measure: str, law: rb.RiskDistribution, intervals: dict[str, list[float]]
) -> dict[str, Any]:
    row = {"hypothesis": name, "score": float(score), "measure": measure}
    row["left out"] = float(resolve(measure).value(law))
    for way, (lower, upper) in intervals.items():
        row |= {f"{way} from": lower, f"{way} to": upper}
    return row


def _losses(
    training: Sequence[Person], others: Sequence[Person], *, seed: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Scores (num_hypotheses,), mean shares of films they recommend to training people, and losses of the others."""
    likes = [person.liked for person in training]
    items = movielens.item_vectors(likes, num_items=movielens.count_films((*training, *others)), rank=RANK, seed=seed)
    table = movielens.fold_in(likes, items) @ items.T
    scores = np.linspace(table.min(), table.max(), NUM_HYPOTHESES)
    lengths = 1.0 - np.searchsorted(np.sort(table, axis=None), scores) / table.size
    return scores, lengths, movielens.recommendation_losses(others, items, thresholds=scores.tolist())


def _bounds(measured: FloatArray) -> dict[str, dict[str, list[list[float]]]]:
    """For each method and measure the interval of every hypothesis; all hold at once."""
    found: dict[str, dict[str, list[list[float]]]] = {}
    bands = [_band(column) for column in measured.T]
    for method, reading in METHODS.items():
        rows = found[method] = {"mean": [_ends(interval_of(band, "mean")) for band in bands]}
        rows |= {name: [_ends(interval_of(band, name, method=reading)) for band in bands] for name in MEASURES}
    return found


def _band(losses: FloatArray) -> rb.Band:
    """The band of one hypothesis; each loss is one number of one person, and is what the certificates are about."""
    answers = rb.ClientRisks(losses, 1, binary=False)
    return rb.band(answers, delta=DELTA / NUM_HYPOTHESES, method="berk_jones", local="observed")


def _ends(interval: rb.Interval) -> list[float]:
    return [float(interval.lower), float(interval.upper)]


def _curves(losses: FloatArray, law: rb.RiskDistribution) -> dict[str, Any]:
    """The Lorenz curve of the people left out, and its bounds."""
    found: dict[str, Any] = {"shares": SHARES.tolist(), "truth": lorenz_of_distribution(law, SHARES).tolist()}
    band = _band(losses)
    for method, reading in METHODS.items():
        curve = rb.lorenz_certificate(band, shares=SHARES, method=reading)
        found[method] = {"lower": np.asarray(curve.lower).tolist(), "upper": np.asarray(curve.value).tolist()}
    return found


def _everything(truth: FloatArray, bounds: dict[str, Any]) -> dict[str, float]:
    """What the hypothesis with the smallest certified mean is worth: with this loss it recommends nearly everything."""
    best = int(np.argmin([upper for _, upper in bounds["sharp"]["mean"]]))
    return {"hypothesis": best, "mean": float(truth[:, best].mean()), "mean_to": bounds["sharp"]["mean"][best][1]}


def figure(result: Result) -> Figure:
    """Draw the bounds over the hypotheses, and the Lorenz curves of the two that were chosen."""
    drawn = blank_figure(11.0, 4.8)
    left, right = drawn.subplots(1, 2)
    _draw_bounds(left, result)
    _draw_curves(right, result)
    numbers = result["num_people"]
    drawn.suptitle(
        f"{numbers['measured']} people measured, {numbers['left_out']} left out; all bounds at once, "
        f"delta = {result['delta']:g}",
        fontsize="medium",
    )
    return drawn


def _draw_bounds(axes: Axes, result: Result) -> None:
    scores = result["scores"]
    for method, color, style in (("published", ANSWERS, ":"), ("sharp", BOUNDS, "-")):
        ends = np.array(result["bounds"][method]["atkinson:0.5"])
        axes.plot(scores, ends[:, 1], color=color, ls=style, label=f"{LABELS[method]}: at most; thin: at least")
        axes.plot(scores, ends[:, 0], color=color, ls=style, lw=0.8)
    axes.plot(scores, result["truth"]["atkinson:0.5"], color=UNSEEN, lw=2, label="people left out")
    for name, index in result["chosen"].items():
        axes.axvline(scores[index], color=COLOURS[name], lw=1, ls="--", label=f"chosen: {NAMES[name]}")
    axes.set(xlabel="score above which a film is recommended", ylabel="Atkinson index of the losses (aversion ½)")
    legend_under(axes, 0.14)


LABELS = {"published": "as published", "sharp": "certificate"}
NAMES = {"h0": "h0, the largest bound", "h1": "h1, the smallest certified mean"}
COLOURS = {"h0": "#96234a", "h1": "#2e8b57"}


def _draw_curves(axes: Axes, result: Result) -> None:
    axes.axhline(0, color="black", lw=0.8)
    for name, curve in result["curves"].items():
        shares, color = np.array(curve["shares"]), COLOURS[name]
        gap = {key: shares - np.array(curve["sharp"][key]) for key in ("lower", "upper")}
        label = f"{name}: {LABELS['sharp']}"
        axes.fill_between(shares, gap["upper"], gap["lower"], color=color, alpha=0.2, lw=0, label=label)
        for key in ("lower", "upper"):
            shown = f"{name}: {LABELS['published']}" if key == "lower" else ""
            axes.plot(shares, shares - np.array(curve["published"][key]), color=color, ls=":", lw=1, label=shown)
        axes.plot(shares, shares - np.array(curve["truth"]), color=color, lw=2, label=f"{name}: people left out")
    axes.set(xlabel="share p of the people, best-off first", ylabel="p − their share of all loss (Lorenz)")
    legend_under(axes, 0.14)


LORENZ = Experiment(
    name="lorenz",
    paper="[DC] Figure 3: Lorenz curves of two hypotheses on MovieLens-1M",
    sets=("movielens_1m",),
    run=run,
    figure=figure,
)
