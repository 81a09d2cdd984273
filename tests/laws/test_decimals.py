"""Numbers are compared in the decimals that were given, and shares count in the digits that they were rounded to.

The truth is that of fractions.
"""

from __future__ import annotations

import math
from decimal import ROUND_DOWN, ROUND_UP, Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta

import riskband as rb
from riskband.answers.counts import counts_that_round
from riskband.checks import digit_rounding, in_decimals
from riskband.cli import main
from riskband.duals import exponential_duals, pole_duals, square_duals, tail_duals
from riskband.functionals.functional import interval_of
from riskband.groups.comparisons import gap_ends, largest_gap_ends
from riskband.worst_cases.number import Number

DELTA, SIZE = 0.05, 12
DECIMALS = st.integers(1, 4).flatmap(
    lambda places: st.tuples(
        st.lists(st.integers(0, 10**places), min_size=SIZE, max_size=SIZE), st.integers(1, 10**places - 1)
    ).map(lambda drawn: (places, *drawn))
)


def upper_share(count: int, size: int, delta: float) -> float:
    """Clopper and Pearson's upper limit, by scipy."""
    return 1.0 if count == size else float(beta.ppf(1.0 - delta, count + 1, size - count))


def read(door: str, numbers: list[int], places: int) -> rb.ClientRisks:
    """Losses number / 10**places, as they come through a door."""
    texts = [str(Decimal(number).scaleb(-places)) for number in numbers]
    losses, left = np.array(texts, dtype=float), [10**places - number for number in numbers]
    accuracies = np.array([str(Decimal(number).scaleb(-places)) for number in left], dtype=float)
    frame = {"site": [f"s{k}" for k in range(len(numbers))], "n": np.full(len(numbers), 7)}
    columns = {"client": "site", "num_examples": "n", "binary": False}
    if door == "losses":
        return rb.ClientRisks(losses, 7, False)
    if door == "computed":
        return rb.ClientRisks(1.0 - accuracies, 7, False)
    if door == "mirrored twice":
        return rb.ClientRisks(losses, 7, False).mirrored.mirrored
    if door == "single":
        return rb.ClientRisks.from_frame(
            pd.DataFrame(frame | {"loss": losses.astype(np.float32)}), loss="loss", **columns
        )
    percent = np.array([str(Decimal(number).scaleb(2 - places)) for number in left], dtype=float)
    given_as = percent if door == "percent" else accuracies
    frame = pd.DataFrame(frame | {"acc": given_as})
    frame.loc[len(frame)] = ["best", 7, 100.0 if door == "percent" else 1.0]  # a percentage above 1
    found = rb.ClientRisks.from_frame(frame, accuracy="acc", percent=door == "percent", **columns)
    return found.of_clients(np.arange(len(numbers)))


@pytest.mark.parametrize("door", ["losses", "computed", "mirrored twice", "single", "accuracy", "percent"])
@given(drawn=DECIMALS)
def test_thresholds_are_compared_in_the_decimals_that_were_given(door, drawn):
    places, numbers, threshold = drawn
    risks, size, t = read(door, numbers, places), len(numbers), threshold / 10**places
    at_least = sum(Fraction(number, 10**places) >= Fraction(threshold, 10**places) for number in numbers)
    above = sum(number > threshold for number in numbers)
    found = rb.survival(risks, thresholds=t, delta=DELTA, local="observed").value
    assert found == pytest.approx(upper_share(at_least, size, DELTA), rel=1e-9)
    band = rb.band(risks, delta=DELTA, local="observed", method="dkw")
    assert np.sum(np.sort(risks.values) < t) == size - at_least
    assert band.upper(t) >= (size - above) / size
    assert band.lower(t) <= (size - above) / size
    indicator = rb.ClientRisks((np.arange(size) < above).astype(float), 1, True)
    beyond = rb.next_clients(risks, 5, above=t, delta=DELTA)
    expected = rb.next_clients(indicator, 5, above=0.5, delta=DELTA)
    assert (beyond.lower, beyond.value) == (expected.lower, expected.value)


@given(drawn=DECIMALS, shift=st.integers(-3, 3))
def test_changes_are_compared_in_the_decimals_that_were_given(drawn, shift):
    places, old, threshold = drawn
    unit = Fraction(1, 10**places)
    new = [min(max(each + threshold + shift * (k % 3 - 1), 0), 10**places) for k, each in enumerate(old)]
    first, second = (np.array([float(each * unit) for each in some]) for some in (old, new))
    changes = rb.ClientChanges(first, second, 9, False)
    harmed = [(b - a) * unit > threshold * unit for a, b in zip(old, new, strict=True)]
    number = f"harmed:{float(threshold * unit)!r}"
    assert Number.of(number).measured(changes) == sum(harmed) / len(harmed)
    made = rb.bound(changes, number, delta=DELTA, sides="two", local="observed")
    assert made.value == pytest.approx(upper_share(sum(harmed), len(harmed), DELTA / 2), rel=1e-9)
    assert made.lower == pytest.approx(1.0 - upper_share(len(harmed) - sum(harmed), len(harmed), DELTA / 2), rel=1e-9)


def test_a_rise_of_the_threshold_is_none_above_it(tmp_path, capsys):
    old = np.round(np.random.default_rng(0).uniform(0.1, 0.4, 40), 2)
    assert np.any(np.round(old + 0.02, 2) - old > 0.02)  # in floats
    for name, values in (("old", old), ("new", np.round(old + 0.02, 2))):
        frame = pd.DataFrame({"site": [f"s{k}" for k in range(40)], "n": 100, "loss": values})
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    files = [str(tmp_path / f"{name}.csv") for name in ("old", "new")]
    asked = ["--client", "site", "--num-examples", "n", "--not-binary", "--local", "observed"]
    assert main(["compare", *files, *asked, "--require", "harmed:0.02<=0.1"]) == 0
    assert "PASS: share:0.02<=0.1" in capsys.readouterr().out
    assert main(["compare", *files, *asked, "--require", "harmed:0.0199<=0.1"]) == 1


@given(st.integers(2, 200), st.data())
def test_a_measured_quantile_is_the_first_number_that_its_share_of_clients_does_not_exceed(size, data):
    level = Fraction(data.draw(st.integers(1, 99)), 100)
    scores = rb.ClientScores(np.arange(size) / size, True, name="AUC")
    found = Number.of(f"quantile:{float(level)!r}").measured(scores)
    assert found == float(Fraction(math.ceil(level * size) - 1, size))


@pytest.mark.parametrize(("level", "times"), [("0.5", 2), ("0.5", 3), ("0.9", 2), ("0.9", 5), ("0.1", 2), ("0.8", 7)])
def test_as_many_clients_are_needed_as_chances_that_are_delta_allow(level, times):
    delta = float(Fraction(level) ** times)
    assert rb.num_clients_needed(float(level), delta=delta) == times
    assert rb.quantile(rb.ClientRisks(np.full(times, 0.25), 4), float(level), delta=delta, local="observed").value < 1.0
    if times > 2:
        few = rb.ClientRisks(np.full(times - 1, 0.25), 4)
        assert rb.quantile(few, float(level), delta=delta, local="observed").value == 1.0


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=2, max_size=4))
def test_gaps_between_groups_are_those_of_decimals(drawn):
    ends = np.array([sorted(each) for each in drawn]) / 100
    low, high = ([Fraction(sorted(each)[k], 100) for each in drawn] for k in (0, 1))
    pairs = [(i, j) for i in range(len(drawn)) for j in range(len(drawn)) if i != j]
    expected = float(max(*low, 0) - min(high)), float(max(high[i] - low[j] for i, j in pairs))
    assert largest_gap_ends(ends[:, 0], ends[:, 1]) == (max(expected[0], 0.0), expected[1])
    least = max(low[0] - high[1], low[1] - high[0], Fraction(0))
    assert gap_ends(ends[:2, 0], ends[:2, 1]) == (float(least), float(max(high[0] - low[1], high[1] - low[0])))


def test_what_is_no_decimal_stays_as_it_is():
    values = np.array([1 / 3, 0.1 + 1e-12 / 3, 2 / 7, 1e-20, np.nan, np.inf])
    assert np.array_equal(in_decimals(values)[:3], values[:3])
    assert np.array_equal(in_decimals(values)[3:], [1e-20, np.nan, np.inf], equal_nan=True)
    assert in_decimals(1.0 - 0.8) == 0.2
    assert in_decimals(0.3 - 0.1) == 0.2
    assert in_decimals(-0.1 - 0.2) == -0.3


def counts_by_fractions(shown: Decimal, size: int, half: Fraction) -> list[int]:
    """All counts whose share is so near to what was shown."""
    return [count for count in range(size + 1) if abs(Fraction(count, size) - Fraction(shown)) <= half]


@given(st.lists(st.tuples(st.integers(1, 800), st.floats(0.0, 1.0)), min_size=2, max_size=6), st.integers(1, 4))
def test_rounded_shares_stand_for_all_counts_that_round_to_them(drawn, places):
    sizes = np.array([size for size, _ in drawn])
    right = [min(int(share * (size + 1)), size) for size, share in drawn]
    unit = Decimal(1).scaleb(-places)
    # Rounded up or down, as a tie may be: whoever rounds, the count is among those that are kept.
    shown = [
        (Decimal(count) / Decimal(size)).quantize(unit, ROUND_UP if 2 * r > 1 else ROUND_DOWN)
        for count, size in zip(right, sizes.tolist(), strict=True)
        for r in [((Decimal(count) / Decimal(size)) / unit) % 1]
    ]
    shares = np.array(list(map(float, shown)))
    if not np.any((shares > 0.0) & (shares < 1.0)):
        return
    least, most, _ = counts_that_round(shares, sizes)
    halves = digit_rounding(shares)
    assert np.all((least <= right) & (right <= most))
    for k, each in enumerate(shown):
        expected = counts_by_fractions(each, int(sizes[k]), Fraction(float(halves[k])).limit_denominator(10**9))
        assert (least[k], most[k]) == (expected[0], expected[-1])


def rounded_frame(seed: int, *, places: int, sizes: tuple[int, int]) -> tuple[pd.DataFrame, np.ndarray]:
    """A table of accuracies in percent that were rounded, and the errors behind them."""
    rng = np.random.default_rng(seed)
    num_examples = rng.integers(*sizes, 60)
    wrong = rng.binomial(num_examples, rng.beta(2, 15, 60))
    accuracies = np.round(100.0 * (1.0 - wrong / num_examples), places)
    names = [f"s{k}" for k in range(60)]
    return pd.DataFrame({"site": names, "n": num_examples, "acc": accuracies}), wrong


def risks_of(frame: pd.DataFrame, **said: object) -> rb.ClientRisks:
    return rb.ClientRisks.from_frame(frame, accuracy="acc", percent=True, num_examples="n", client="site", **said)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("places", "sizes"), [(1, (100, 900)), (1, (2_000, 9_000)), (0, (100, 900))])
def test_a_bound_of_rounded_accuracies_is_never_on_the_wrong_side_of_that_of_the_counts(seed, places, sizes):
    frame, wrong = rounded_frame(seed, places=places, sizes=sizes)
    risks, exact = risks_of(frame), rb.ClientRisks(wrong / frame.n, frame.n, True)
    assert risks.binary
    assert np.all(risks.values >= exact.values)
    assert np.all(risks.below.values <= exact.values)
    assert np.all(risks.mirrored.values >= 1.0 - exact.values - 1e-12)
    assert np.all(risks.mirrored.below.values <= 1.0 - exact.values + 1e-12)
    points = np.linspace(0.0, 1.0, 41)
    for local in ("marginal", "counted", "union", "observed"):
        ours, theirs = (rb.band(each, delta=DELTA, local=local) for each in (risks, exact))
        assert np.all(ours.lower(points) <= theirs.lower(points) + 1e-12)
        assert np.all(ours.upper(points) >= theirs.upper(points) - 1e-12)
    for make in (
        lambda each: rb.quantile(each, 0.9, delta=DELTA).value,
        lambda each: rb.survival(each, thresholds=0.2, delta=DELTA).value,
        lambda each: rb.next_clients(each, 10, delta=DELTA).value,
        lambda each: rb.next_clients(each, 10, above=0.2, delta=DELTA).value,
        lambda each: -rb.next_clients(each, 10, above=0.2, delta=DELTA).lower,
        lambda each: -np.array(interval_of(each, "mean", delta=DELTA).lower),
        lambda each: interval_of(each, "mean", delta=DELTA).upper,
        lambda each: -np.array(interval_of(each, "share:0.2", delta=DELTA).lower),
        lambda each: interval_of(each, "example_mean:9000", delta=DELTA).upper,
        lambda each: -np.array(interval_of(each, "example_mean:9000", delta=DELTA).lower),
    ):
        assert np.all(make(risks) >= make(exact) - 1e-12)
    made = rb.quantile(risks, 0.9, delta=DELTA)
    digits = {1: "0.0005", 0: "0.005"}[places]
    line = f"the means were rounded to the digits that were given, by at most {digits}"
    assert sum(each.startswith(line) for each in made.assumptions) == 1
    assert rb.verify(rb.Certificate.from_json(made.to_json())).ok


def test_the_nearest_count_is_too_small_for_some_clients():
    """The negative control: of clients with more than a count for each digit, the nearest has too few errors."""
    frame, wrong = rounded_frame(0, places=1, sizes=(2_000, 9_000))
    nearest = np.rint(frame.n * (1.0 - frame.acc / 100.0))
    assert np.any(nearest < wrong)
    assert np.any(nearest > wrong)


def test_outcomes_of_bets_grow_with_the_count_where_it_may_be_one_that_is_larger():
    sizes = np.full(101, 100)
    risks = rb.ClientRisks(np.arange(101) / 100, sizes, True, rounding=0.02)
    assert risks.below is not risks
    for dual in (
        *tail_duals(risks, 0.9),
        *square_duals(risks, 0.1),
        *exponential_duals(risks, 0.1),
        *pole_duals(risks, 0.1),
    ):
        assert np.all(np.diff(dual.outcomes) >= -1e-15)
    exact = square_duals(rb.ClientRisks(risks.values, sizes, True), 0.1)
    assert any(np.any(np.diff(dual.outcomes) < -1e-3) for dual in exact)  # the square without bias does not


@pytest.mark.parametrize("seed", range(3))
def test_changes_between_rounded_accuracies_are_bounded_from_both_sides(seed):
    (old, wrong_old), (new, wrong_new) = (rounded_frame(seed + k, places=0, sizes=(100, 900)) for k in (0, 10))
    new["n"] = old.n
    wrong_new = np.minimum(wrong_new, old.n.to_numpy())
    new["acc"] = np.round(100.0 * (1.0 - wrong_new / old.n))
    changes = rb.ClientChanges.between(risks_of(old), risks_of(new))
    exact = rb.ClientChanges(wrong_old / old.n, wrong_new / old.n, old.n, True)
    assert changes.binary
    assert np.all(changes.values >= exact.values)
    assert np.any(changes.values > exact.values)
    assert np.all(changes.below.values <= exact.values)
    assert np.all(changes.mirrored.values >= -exact.values)
    for eta in (0.1, 0.3):
        assert np.all(changes.upper_limits(eta) >= exact.upper_limits(eta) - 1e-12)
        assert np.all(changes.lower_limits(eta) <= exact.lower_limits(eta) + 1e-12)
    for number in ("change", "harmed:0.02", "quantile:0.9"):
        for local in ("marginal", "observed"):
            ours, theirs = (rb.bound(each, number, delta=DELTA, sides="two", local=local) for each in (changes, exact))
            assert ours.value >= theirs.value - 1e-12
            assert ours.lower <= theirs.lower + 1e-12
    with pytest.raises(ValueError, match="rounded means must be of 0-1 losses in both"):
        rb.ClientChanges.between(risks_of(old), risks_of(new, binary=False))
    made = rb.bound(changes, "change", delta=DELTA, sides="two")
    assert any("bounds from below the fewest" in each for each in made.assumptions)
    assert rb.verify(rb.Certificate.from_json(made.to_json())).ok


def test_rounded_percentages_are_shares_and_keep_their_kind_of_loss(tmp_path, capsys):
    frame = pd.DataFrame({"site": ["a", "b", "c", "d"], "n": [712, 472, 123, 2_840], "acc": [90.3, 92.2, 81.3, 88.9]})
    frame.to_csv(tmp_path / "rounded.csv", index=False)
    asked = [str(tmp_path / "rounded.csv"), "--column", "acc", "--percent", "--client", "site", "--num-examples", "n"]
    assert main(["certify", *asked, "--binary", "--mean", "--out", str(tmp_path / "found.json")]) == 0
    printed = capsys.readouterr().out
    assert "0-1 losses" in printed
    assert "rounded to the digits that were given, by at most 0.0005;" in printed
    risks = risks_of(frame)
    # 643 of 712 are .9031, 435 of 472 are .9216, 100 of 123 are .8130, and 2,524 to 2,526 of 2,840 round to .889.
    assert np.rint(risks.values * frame.n).tolist() == [69.0, 37.0, 23.0, 2_840.0 - 2_524.0]
    assert np.rint(risks.below.values * frame.n).tolist()[:3] == [69.0, 37.0, 23.0]
    assert risks_of(frame, binary=True).values.tolist() == risks.values.tolist()
    as_given = risks_of(frame, binary=False)
    assert not as_given.binary
    assert as_given.values.tolist() == [0.097, 0.078, 0.187, 0.111]
    losses = frame.assign(loss=as_given.values)
    said = rb.ClientRisks.from_frame(losses, loss="loss", num_examples="n", client="site", binary=True)
    assert said.values.tolist() == risks.values.tolist()
    with pytest.raises(ValueError, match=r"0\.5 of 7 examples is impossible"):
        rb.ClientRisks([0.5, 0.097, 0.333], [7, 712, 3], True)


def test_columns_of_zeros_and_ones_have_no_digits_that_they_were_rounded_to():
    frame = pd.DataFrame({"site": ["a", "b", "c"], "n": 50, "acc": [100.0, 100.0, 0.0]})
    assert risks_of(frame).values.tolist() == [0.0, 0.0, 1.0]
