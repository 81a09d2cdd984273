"""Practices that made certificates false, and how often they do: before and now.

`python -m benchmarks.honesty` prints the table. Every practice is written out here as it was shipped or as people do
it, so that it can be counted. Deterministic: the seed of network i is i.
"""

from __future__ import annotations

import io
import json
import tomllib
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from scipy.stats import beta, binom

import riskband as rb
from benchmarks.ground_truth import BetaRisks
from riskband.answers.doors import Wanted
from riskband.answers.files import UNSAID, read_risks
from riskband.betting import adaptive_bets, before, fixed_orders, log_average_excess, log_growth
from riskband.certificate import CrossingError
from riskband.checks import FloatArray
from riskband.cli import main
from riskband.functionals.functional import interval_of
from riskband.report.asked import Asked, certified
from riskband.search import bisect_number
from riskband.worst_cases.always_valid import always_valid

DELTA = 0.05
SHARES = np.linspace(0.01, 0.99, 99)  # of bad clients, where exact failure rates are looked at


class Row(NamedTuple):
    """A practice and, from a number of networks, how often it was false, and is now: never, where it is refused."""

    what: str
    rates: Callable[[int], tuple[float, float]]


def largest_false_rate(limits: Sequence[tuple[float, float]], truths: FloatArray, num_clients: int) -> float:
    """Largest probability that a limit is false, over `SHARES` of bad clients, of which the truths are functions.

    `limits` are the lower and the upper one for 0 to `num_clients` bad clients: an exact sum.
    """
    lower, upper = np.array(limits, dtype=float).T[:, :, None]
    is_false = (lower > truths + 1e-7) | (upper < truths - 1e-7)
    chances = binom.pmf(np.arange(num_clients + 1)[:, None], num_clients, SHARES)
    return float(np.max(np.sum(is_false * chances, axis=0)))


def two_kinds(num_clients: int, num_bad: int, num_examples: int = 1) -> rb.ClientRisks:
    """Clients of risk 0 or 1, who measure it, in an order that was drawn once for each number of bad ones."""
    values = np.zeros(num_clients)
    values[:num_bad] = 1.0
    shuffled = np.random.default_rng([num_clients, num_bad]).permutation(values)
    return rb.ClientRisks(shuffled, num_examples, binary=True)


def _sorted_values(num_clients: int, num_bad: int) -> FloatArray:
    return np.sort(two_kinds(num_clients, num_bad).values)


def gini_by_sorted_pairings(num_clients: int, num_bad: int) -> float:
    """Upper end of the Gini coefficient of clients of risk 0 or 1 by fixed pairings of the *sorted* answers.

    As it was shipped: stakes from the pairs before, and the average of 200 capitals at level delta/2.
    """
    played, half = _sorted_values(num_clients, num_bad)[fixed_orders(num_clients, num_orders=200)], num_clients // 2
    first, second, level = played[:, :half], played[:, half : 2 * half], DELTA / 2
    parts, sums, count = np.abs(first - second), first + second, np.arange(1, half + 1)
    ratio = (0.05 + np.cumsum(parts, axis=1)) / (0.1 + np.cumsum(sums, axis=1))
    variance = (0.05 + np.cumsum((parts - ratio * sums) ** 2, axis=1)) / (count + 1)
    stakes = np.sqrt(4.0 * np.log(1.0 / level) / (half * before(variance, 0.05)))

    def survives(value: float) -> bool:
        gains = np.minimum(stakes, 0.9 / max(1.0 - value, 1e-12)) * (value * sums - parts)
        return log_average_excess(np.sum(np.log1p(gains), axis=1), level) < 0.0

    return bisect_number(survives, low=0.0, high=1.0, num_steps=36).upper


def mean_in_sorted_orders(num_clients: int, num_bad: int) -> float:
    """Upper limit of the mean risk by bets on the *sorted* answers, averaged over 200 fixed orders, as shipped."""
    played = _sorted_values(num_clients, num_bad)[fixed_orders(num_clients, num_orders=200)]
    bets = adaptive_bets(played, DELTA)

    def survives(mean: float) -> bool:
        return log_average_excess(np.sum(log_growth(mean, played, bets), axis=1), DELTA) < 0.0

    return bisect_number(survives, low=0.0, high=1.0, num_steps=36).upper


def _gini_rates(_: int) -> tuple[float, float]:
    old = [(0.0, gini_by_sorted_pairings(73, bad)) for bad in range(74)]
    new = [interval_of(two_kinds(73, bad), "gini", delta=DELTA) for bad in range(74)]
    return largest_false_rate(old, 1.0 - SHARES, 73), largest_false_rate(new, 1.0 - SHARES, 73)


def _mean_rates(_: int) -> tuple[float, float]:
    old = [(0.0, mean_in_sorted_orders(83, bad)) for bad in range(84)]
    new = [(0.0, float(rb.mean_bound(two_kinds(83, bad), delta=DELTA).value)) for bad in range(84)]
    return largest_false_rate(old, SHARES, 83), largest_false_rate(new, SHARES, 83)


def share_of_asking_on(num_networks: int) -> tuple[float, float]:
    """How often an exact upper limit of a share of 0.2 is false: the best for 30 to 300 clients, and that for 300."""
    is_bad = np.random.default_rng(0).random((num_networks, 300)) < 0.2
    counts, asked = np.cumsum(is_bad, axis=1)[:, 29:], np.arange(30, 301)
    limits = beta.ppf(1.0 - DELTA, counts + 1, asked - counts)
    return float(np.mean(limits.min(axis=1) < 0.2)), float(np.mean(limits[:, -1] < 0.2))


def _repeated_rows(rng: np.random.Generator) -> tuple[bool, bool]:
    """Every one of 60 hospitals ten times in a table."""
    law, sites = BetaRisks(0.3, 2.1), np.tile(np.arange(60), 10)
    losses = np.tile(law.draw(rng, num_clients=60, num_examples=1000)[1], 10)
    old = rb.mean_bound(rb.ClientRisks(losses, 1000, True), delta=DELTA).value
    return old < law.mean_risk(), not _is_refused({"site": sites, "loss": losses, "n": np.full(600, 1000)}, "loss")


def _mixed_rounds(rng: np.random.Generator) -> tuple[bool, bool]:
    """FL4Health's reports of 120 clients, 40 of them last evaluated before the model doubled its risks."""
    law = BetaRisks(3.0, 21.0)
    risks, _ = law.draw(rng, num_clients=120, num_examples=1)
    counts = rng.binomial(100, [risks / 2.0, risks])  # of rounds 2 and 3
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        for k, (second, third) in enumerate(counts.T.tolist()):
            rounds = {"2": second} if k < 40 else {"2": second, "3": third}
            told = {each: {"eval_round_metrics": {"error": wrong / 100, "n": 100}} for each, wrong in rounds.items()}
            text = json.dumps({"host_type": "client", "rounds": told})
            Path(folder, f"client_{k}.json").write_text(text, encoding="utf-8")
        warnings.simplefilter("ignore", UserWarning)  # it names the 40
        read = read_risks(str(folder), Wanted("n", loss="error", binary=True), framework="fl4health")
    last = np.append(counts[0, :40], counts[1, 40:]) / 100
    old, new = (rb.mean_bound(each, delta=DELTA).value < law.mean_risk() for each in (rb.ClientRisks(last, 100), read))
    return bool(old), bool(new)


def _auc_as_a_loss(rng: np.random.Generator) -> tuple[bool, bool]:
    """The AUC of 60 clients, .7 each, of 3 positive examples of 1,000, as a mean of 1,000 losses."""
    shift = np.sqrt(2.0) * 0.5244005127080407  # AUC = Phi(shift / sqrt 2) = .7
    positive, negative = rng.normal(shift, size=(60, 3, 1)), rng.normal(size=(60, 1, 997))
    risks = 1.0 - np.mean(positive > negative, axis=(1, 2))
    old = rb.quantile(rb.ClientRisks(risks, 1000, False), 0.25, delta=DELTA).value
    return bool(old < 0.3), not _is_refused({"auc": risks, "n": np.full(60, 1000)}, "auc")


def _cross_entropy_below_one(rng: np.random.Generator) -> tuple[bool, bool]:
    """A loss of .1 in the mean that is 100 once in 500 examples, in networks where no client's mean is above 1."""
    drawn = np.where(rng.random((20, 20)) < 1 / 500, 100.0, rng.uniform(0.0, 0.2, (20, 20))).mean(axis=1)
    if drawn.max() > 1.0:
        return False, False
    old = rb.mean_bound(rb.ClientRisks(drawn, 20, False), delta=DELTA).value
    return bool(old < 0.2998), not _is_refused({"cross_entropy": drawn, "n": np.full(20, 20)}, "cross_entropy")


def _batches_as_examples(rng: np.random.Generator) -> tuple[bool, bool]:
    """Accuracies of 40 examples, said to be of 1: nothing false, and nothing said where a bound of .3 was to be had."""
    losses = rng.binomial(40, rng.beta(3, 21, 60)) / 40
    old = rb.survival(rb.ClientRisks(losses, 1, False), thresholds=0.5, delta=DELTA).value
    try:
        rb.ClientRisks(losses, 1, True)
    except ValueError:
        return bool(old == 1.0), False
    return bool(old == 1.0), True


def _empty_clients_as_perfect(rng: np.random.Generator) -> tuple[bool, bool]:
    """A fifth of 200 clients has no example, and a mean loss of 0."""
    sizes = np.where(rng.random(200) < 0.2, 0, 50)
    losses = rng.binomial(sizes, rng.beta(4, 16, 200)) / np.maximum(sizes, 1)
    old = rb.mean_bound(rb.ClientRisks(losses, np.maximum(sizes, 1), False), delta=DELTA).value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it names them
        now = rb.ClientRisks.from_frame({"loss": losses, "n": sizes}, loss="loss", num_examples="n")
    return bool(old < 0.2), bool(rb.mean_bound(now, delta=DELTA).value < 0.2)


def _trainers_in_a_table(rng: np.random.Generator) -> tuple[bool, bool]:
    """Clients that trained, at half the risk of others, in a CSV file; now the first line says what was taken."""
    law = BetaRisks(3.0, 21.0)
    losses = rng.binomial(100, law.draw(rng, num_clients=60, num_examples=1)[0] / 2.0) / 100
    with TemporaryDirectory() as folder:
        table, printed, said = Path(folder, "kept.csv"), io.StringIO(), io.StringIO()
        table.write_text("loss\n" + "\n".join(map(repr, losses.tolist())), encoding="utf-8")
        with redirect_stdout(printed), redirect_stderr(said):
            main(["certify", str(table), "--num-examples", "100", "--json"])
    is_false = json.loads(printed.getvalue())["certificates"]["mean"]["value"] < law.mean_risk()
    return bool(is_false), "say --answered-by trainers" not in said.getvalue()


def stratified_ledger(rng: np.random.Generator) -> tuple[bool, bool]:
    """A run that asked 30 clients of a stratum with 30 % of all and 10 of the other, with larger risks: its ledger."""
    risks = np.append(rng.beta(2.0, 38.0, 30), rng.beta(6.0, 4.0, 10))
    config = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]
    said = {"num-clients": 40, "design": "strata:north=0.3,south=0.7"}
    lines = [{"schema": "riskband.ledger/2", "hashes": {}, "config": config | said}]
    for k, value in enumerate((rng.binomial(20, risks) / 20).tolist()):
        drawn_from = {"group": None, "stratum": "north" if k < 30 else "south"}
        lines.append({"client_id": f"client-{k:05d}", "risk": value, "num_examples": 20, **drawn_from})
    with TemporaryDirectory() as folder:
        path = Path(folder, "ledger.jsonl")
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        read = read_risks(str(path), UNSAID)
    alike = rb.ClientRisks(read.values, read.num_examples, read.binary)
    old, new = (rb.mean_bound(each, delta=DELTA).value < 0.3 * 0.05 + 0.7 * 0.6 for each in (alike, read))
    return bool(old), bool(new)


def _published_mean(rng: np.random.Generator) -> tuple[bool, bool]:
    """[RE] Theorem 5.2 within KL 1, beside ours; 2 % of 2,000 clients are always wrong, and the others never."""
    ball = {"divergence": "kl", "budget": 1.0}
    truth = float(rb.binary_worst_case(0.02, **ball))
    risks = np.repeat([1.0, 0.0], (num_bad := int(rng.binomial(2000, 0.02)), 2000 - num_bad))
    band = rb.band(rb.ClientRisks(risks, 1000, binary=True), delta=DELTA, sides="lower")
    old, new = (rb.worst_case_mean(band, **ball, method=method).value < truth for method in ("published", "sharp"))
    return bool(old), bool(new)


def _thresholds_in_floats(rng: np.random.Generator) -> tuple[bool, bool]:
    """Changes of .02 at every client, so nobody is harmed by more: from below, with differences of floats before."""
    old = rng.integers(10, 40, 40) / 100
    new = np.round(old + 0.02, 2)
    not_harmed = int(np.sum(new - old <= 0.02))
    found = rb.bound(rb.ClientChanges(old, new, 100, False), "harmed:0.02", delta=DELTA, sides="two", local="observed")
    return float(beta.ppf(DELTA / 2, 40 - not_harmed, not_harmed + 1)) > 0.0, bool(found.lower > 0.0)


def _is_refused(table: dict[str, FloatArray], loss: str) -> bool:
    try:
        rb.ClientRisks.from_frame(table, loss=loss, num_examples="n")
    except ValueError:
        return True
    return False


def _same_clients_every_day(rng: np.random.Generator) -> tuple[bool, bool]:
    """Twelve clients, each on thirty days, as 360 draws."""
    risks = np.tile(rng.beta(3, 21, 12), 30)
    values, names = rng.binomial(100, risks) / 100, [f"site {k % 12}" for k in range(360)]
    told = always_valid(rb.ClientRisks(values, 100), "mean", delta=DELTA, batches=[12] * 30)
    sequence = rb.Sequence("mean", delta=DELTA)
    with suppress(ValueError):
        sequence.add(values=values, num_examples=100, names=names)
    return _misses(told, 0.125), any(_misses(each, 0.125) for each in sequence.certificates.values())


def _sorted_table(rng: np.random.Generator) -> tuple[bool, bool]:
    """A table sorted by its losses, two clients after two others; now it is one batch."""
    values = np.sort(rng.binomial(100, rng.beta(3, 21, 400)) / 100)
    sequence = rb.Sequence("share:0.2", delta=DELTA)
    sequence.add(values=values, num_examples=100)
    (now,) = sequence.certificates.values()
    was_false = True  # also where the bound would exclude what was measured, which is an error now
    with suppress(CrossingError):
        was_false = _misses(always_valid(sequence.answers, now.name, delta=DELTA, batches=[2] * 200), 0.1071)
    return was_false, _misses(now, 0.1071)


def _target_beyond_its_budget(rng: np.random.Generator) -> tuple[bool, bool]:
    """Ten clients of a target with mean .9, said to be within χ² .1 of the source: both limits were the upper one."""
    source, target = (
        rb.ClientRisks(rng.binomial(100, rng.beta(*law, size)) / 100, 100)
        for law, size in (((3, 21), 40), ((9, 1), 10))
    )
    alone = rb.worst_case_mean(source, divergence="chi2", budget=0.1, delta=DELTA)
    with suppress(CrossingError):
        return True, _misses(rb.bound((source, target), "mean@target:chi2:0.1", delta=DELTA), 0.9)
    return bool(alone.value < 0.9), False


def _next_of_twelve(rng: np.random.Generator) -> tuple[bool, bool]:
    """The next client by its rank, 1/13, in what holds together with probability .95; now beside it."""
    risks = rng.beta(3, 21, 13)
    found = certified(rb.ClientRisks(rng.binomial(1000, risks[:12]) / 1000, 1000), Asked(delta=DELTA))
    joint = [each for name, each in found.certificates.items() if name not in found.beside]
    is_false = any(_misses(each, 0.125) for each in joint)
    next_is_above = rng.binomial(1000, risks[12]) / 1000 > found.certificates["next_client"].value
    return is_false or bool(next_is_above), is_false or found.delta > DELTA


def _misses(made: rb.Certificate, truth: float) -> bool:
    return bool(made.value < truth or (made.lower is not None and made.lower > truth))


def drawn(practice: Callable[[np.random.Generator], tuple[bool, bool]], num_networks: int) -> tuple[float, float]:
    """Share of networks in which a practice is false, before and now."""
    found = [practice(np.random.default_rng(seed)) for seed in range(num_networks)]
    was_false, is_false = np.mean(found, axis=0).tolist()
    return was_false, is_false


ROWS = (
    Row("1. Gini coefficient by pairings of sorted answers, K = 73 (exact)", _gini_rates),
    Row("2. mean by bets on sorted answers, K = 83 (exact)", _mean_rates),
    Row("4. clients asked until an exact limit of a share pleases, K = 30 to 300", share_of_asking_on),
    Row("5. every row ten times", partial(drawn, _repeated_rows)),
    Row("6. reports of different rounds (FL4Health)", partial(drawn, _mixed_rounds)),
    Row("7. an AUC as a mean of losses: a quantile", partial(drawn, _auc_as_a_loss)),
    Row("7. a cross-entropy whose means lie below 1", partial(drawn, _cross_entropy_below_one)),
    Row("8. batches as examples: a share says nothing", partial(drawn, _batches_as_examples)),
    Row("9. clients without an example as perfect ones", partial(drawn, _empty_clients_as_perfect)),
    Row("10. trainers' answers saved as a table, without a word", partial(drawn, _trainers_in_a_table)),
    Row("the ledger of a stratified run as of independent draws", partial(drawn, stratified_ledger)),
    Row("thresholds compared after rounding: who gets worse by more than .02", partial(drawn, _thresholds_in_floats)),
    Row("the same twelve clients on thirty days as 360 draws", partial(drawn, _same_clients_every_day)),
    Row("a share of clients that come sorted, at all times", partial(drawn, _sorted_table)),
    Row("limits that cross, cut to one number: a target beyond its budget", partial(drawn, _target_beyond_its_budget)),
    Row("what is certified together of 12 clients", lambda num_networks: drawn(_next_of_twelve, 20 * num_networks)),
    Row("12. the published worst mean within KL 1 (beside ours)", partial(drawn, _published_mean)),
)


def print_rows(num_networks: int) -> None:
    """Print how often each practice is false, at delta = 0.05."""
    print(f"{'false at delta = 0.05':<72}{'before':>8}{'now':>8}")
    for row in ROWS:
        was_false, is_false = row.rates(num_networks)
        print(f"{row.what:<72}{was_false:>8.3f}{is_false:>8.3f}", flush=True)
    print("(3. the exact scan of every bound from answers is tests/validity/test_exact_scan.py)\n")
