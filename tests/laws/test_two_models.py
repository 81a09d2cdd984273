"""Laws of changes between two models and of scores: mirrors, orders, ranges, refusals, and what verification sees."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import riskband as rb
from riskband.certificate import Certificate
from riskband.report.compared import certified_on_scale
from tests.laws.draws import DELTAS

OF_CHANGES = ["change", "quantile:0.8", "quantile:0.1", "harmed:0.02", "harmed:-0.1"]
OF_SCORES = ["mean", "quantile:0.8", "quantile:0.1", "share:0.5"]
WHO = st.sampled_from([{}, {"contamination": 1}, {"num_missing": 2, "missing": "worst"}, {"num_missing": 1}])
LOCALS = st.sampled_from(["marginal", "observed"])


@st.composite
def changes(draw, **who):
    size = draw(st.integers(2, 12))
    sizes = np.array(draw(st.lists(st.integers(1, 60), min_size=size, max_size=size)))
    shares = np.array(draw(st.lists(st.tuples(*[st.floats(0.0, 1.0)] * 2), min_size=size, max_size=size)))
    worse = np.rint(shares[:, 0] * sizes)
    better = np.rint(shares[:, 1] * (sizes - worse))
    if draw(st.booleans()):
        return rb.ClientChanges.from_counts(worse, better, sizes, **who or draw(WHO))
    return rb.ClientChanges(shares[:, 0], shares[:, 1], sizes, binary=False, **who or draw(WHO))


@st.composite
def scores(draw):
    values = draw(st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.77, 1.0]), min_size=2, max_size=12))
    return rb.ClientScores(values, draw(st.booleans()), **draw(WHO))


def ends(answers, number, delta=0.1, local="marginal"):
    if isinstance(answers, rb.ClientChanges):
        made = rb.bound(answers, number, delta=delta, sides="two", local=local)
    else:
        made = rb.bound(answers, number, delta=delta, sides="two")
    return np.array([made.lower, made.value])


@given(changes(), st.sampled_from(OF_CHANGES), DELTAS, LOCALS)
def test_bounds_on_changes_grow_with_confidence_and_verify(answers, number, delta, local):
    low, high = ends(answers, number, delta, local)
    wider = ends(answers, number, delta / 3, local)
    assert wider[0] <= low <= high <= wider[1]
    one = rb.bound(answers, number, delta=delta / 2, local=local)
    assert one.value == high
    assert one.lower is None
    assert rb.verify(json.loads(one.to_json())) == (True, ())
    assert Certificate.from_json(one.to_json()) == one


@given(scores(), st.sampled_from(OF_SCORES), DELTAS)
def test_bounds_on_scores_grow_with_confidence_and_verify(answers, number, delta):
    low, high = ends(answers, number, delta)
    wider = ends(answers, number, delta / 3)
    assert wider[0] <= low <= high <= wider[1]
    one = rb.bound(answers, number, delta=delta / 2)
    if answers.higher_is_better and "share" not in number:
        assert (one.lower, one.value) == (low, 1.0)
    else:
        assert (one.lower, one.value) == (None, high)
    assert rb.verify(json.loads(one.to_json())) == (True, ())


@given(st.data(), DELTAS, LOCALS)
def test_to_swap_the_models_turns_every_interval_round(data, delta, local):
    answers = data.draw(changes())
    for number, mirrored in (("change", "change"), ("quantile:0.8", "quantile:0.2")):
        turned = -ends(answers.mirrored, mirrored, delta, local)[::-1]
        np.testing.assert_allclose(ends(answers, number, delta, local), turned, atol=1e-9)
    assert answers.mirrored.mirrored.to_dict() == answers.to_dict()


@given(scores(), DELTAS)
def test_one_minus_a_score_in_the_other_direction_is_the_same(answers, delta):
    other = rb.ClientScores(1.0 - answers.values, not answers.higher_is_better, **answers.responses.to_dict())
    pairs = [("mean", "mean"), ("quantile:0.8", "quantile:0.2")]
    for number, mirrored in pairs:
        np.testing.assert_allclose(ends(answers, number, delta), 1.0 - ends(other, mirrored, delta)[::-1], atol=1e-9)
    np.testing.assert_array_equal(ends(answers, "share:0.5", delta), ends(other, "share:0.5", delta))
    found, turned = (rb.next_clients(each, 3, delta=delta) for each in (answers, other))
    best = [np.asarray(each.value if each.lower is None else each.lower) for each in (found, turned)]
    np.testing.assert_allclose(best[0], 1.0 - best[1], atol=1e-9)


@given(scores(), st.sampled_from([(0.0, 1440.0), (-40.0, -3.0), (-1e6, 1e-3)]), DELTAS)
def test_another_range_moves_every_bound_as_it_moves_the_scores(answers, into, delta):
    def moved(numbers):
        return into[0] * (1.0 - np.asarray(numbers)) + into[1] * np.asarray(numbers)

    who = answers.responses.to_dict()
    other = rb.ClientScores(moved(answers.values), answers.higher_is_better, low=into[0], high=into[1], **who)
    for number in ("mean", "quantile:0.8", "quantile:0.1"):
        expected = moved(ends(answers, number, delta))
        np.testing.assert_allclose(ends(other, number, delta), expected, atol=1e-9 * (into[1] - into[0]))


@given(
    st.data(), st.sampled_from([*OF_CHANGES, "mean@chi2:0.1", "share:0.02@kl:0.1", "quantile:0.8@kl:0.1"]), st.randoms()
)
def test_neither_the_order_nor_the_names_of_clients_count(data, number, random):
    answers = data.draw(changes(num_missing=0))
    order = random.sample(range(len(answers)), len(answers))
    names = [f"hospital {k}" for k in range(len(answers))]
    plain = answers.to_dict() | {"names": names}
    shuffled = {
        key: [plain[key][k] for k in order]
        for key in ("old", "new", "num_examples", "num_worse", "names")
        if key in plain
    }
    found, again = (rb.bound(rb.ClientChanges(**each), number, delta=0.1) for each in (plain, plain | shuffled))
    assert found.value == pytest.approx(again.value, abs=1e-12)
    if "@" not in number:
        assert rb.bound(answers, number, delta=0.1).value == pytest.approx(found.value, abs=1e-12)


MANY = np.random.default_rng(0).integers(0, 6, (2, 40))
SHIFTED = ["mean@kl:0.1", "share:0.02@kl:0.1", "quantile:0.8@kl:0.1"]
CHANGES = rb.ClientChanges.from_counts(*MANY, 100, names=[f"hospital {k}" for k in range(40)])
MINUTES = rb.ClientScores(MANY.sum(axis=0) * 100.0 + 7.0, False, name="minutes", high=1440.0)
MADE = {
    **{f"{number} of changes": rb.bound(CHANGES, number, delta=0.1) for number in [*OF_CHANGES, *SHIFTED]},
    **{f"{number} of scores": rb.bound(MINUTES, number, delta=0.1) for number in [*OF_SCORES, *SHIFTED]},
    "next": rb.next_clients(CHANGES, 5, delta=0.1),
    "next scores": rb.next_clients(MINUTES.mirrored, 5, delta=0.1, divergence="chi2", budget=[0.0, 0.1]),
    "next of all": rb.next_clients(MINUTES, population=50, delta=0.1, including_seen=True),
    "next rank": rb.next_clients(MINUTES, 1, rank=1),
    "number of next": rb.next_clients(CHANGES, 5, above=-0.01, delta=0.1, divergence="chi2", budget=0.1),
    "number of next others": rb.next_clients(MINUTES.mirrored, 5, above=700.0, delta=0.1, population=50),
}


@pytest.mark.parametrize("name", MADE)
def test_whatever_is_changed_in_a_certificate_is_seen(name):
    stored = json.loads(MADE[name].to_json())
    assert rb.verify(stored) == (True, ())
    assert Certificate.from_dict(stored) == MADE[name]
    answers = stored["recipe"]["answers"]
    for wrong in (
        {"value": (np.asarray(stored["value"]) - 1e-3).tolist()},
        {"lower": (np.asarray(stored.get("lower", stored["value"])) - 1e-3).tolist()},
        {"delta": stored["delta"] / 2},
        {"assumptions": stored["assumptions"][1:]},
        {"quantity": f"{stored['quantity']} really"},
        {"recipe": stored["recipe"] | {"answers": answers | {"contamination": 9}}},
    ):
        try:
            assert not rb.verify(stored | wrong).ok, wrong
        except ValueError:
            assert "mean@kl" in name  # of which a recipe with wrong answers cannot be followed


def test_a_worst_mean_assumes_what_its_bets_do():
    """Their order must say nothing about the changes; until this test no certificate said so."""
    made = MADE["mean@kl:0.1 of changes"]
    of_unit = rb.worst_case_mean(CHANGES.unit, divergence="kl", budget=0.1, delta=0.1)
    assert made.method == of_unit.method
    assert made.value == pytest.approx(2.0 * of_unit.value - 1.0)
    order = "the order of the clients in the input, or of their names, says nothing about their answers"
    assert order in made.assumptions
    assert order not in MADE["change of changes"].assumptions


def test_limits_of_counts_assume_losses_of_0_or_1_and_nothing_else_does():
    line = "every example's loss is 0 or 1"
    other = rb.ClientChanges(CHANGES.old, CHANGES.new, 100, binary=False)
    assert line in MADE["harmed:0.02 of changes"].assumptions
    for made in (
        MADE["change of changes"],
        MADE["mean@kl:0.1 of changes"],
        rb.bound(CHANGES, "harmed:0.02", delta=0.1, local="observed"),
        rb.bound(other, "harmed:0.02", delta=0.1),
    ):
        assert line not in made.assumptions


def test_a_finite_federation_is_drawn_by_lot_and_from_nothing_else():
    found = rb.next_clients(CHANGES, population=50, delta=0.1)
    assert (
        "the clients that were asked were drawn from the population at random, without replacement" in found.assumptions
    )
    assert not any("meta-distribution" in line for line in found.assumptions)


@pytest.mark.parametrize("is_worse", [np.less, np.greater], ids=["higher is better", "lower is better"])
def test_how_many_of_the_next_measure_worse_is_counted_in_the_unit_of_the_answers(is_worse):
    """As of risks with as many above; what is equal is not worse, and what is larger in the last digit is."""
    values = np.array([0.02 + 1.5e-15, 0.02, 0.02, 0.01, 0.5, 0.03] * 5)
    assert values[0] > 0.02 == values[1]  # which the unit of risks does not tell apart
    bad = is_worse(values, 0.02)
    found = rb.next_clients(rb.ClientScores(values, is_worse is np.less, low=-1.0), 8, above=0.02, delta=0.1)
    expected = rb.next_clients(rb.ClientRisks(bad.astype(float), 1), 8, above=0.5, delta=0.1)
    assert (found.lower, found.value) == (expected.lower, expected.value)
    assert 0.0 < found.value < 8.0
    way = "below" if is_worse is np.less else "above"
    assert found.quantity == f"the number of clients, of the next 8, that would measure the score {way} 0.02"
    assert f"score {way} which clients count 0.02" in " ".join(found.assumptions)
    assert found.name == "count:0.02@next:8"


def test_one_of_the_next_is_a_number_of_clients_and_no_end_of_a_range():
    """At most one client is worse, which is not the score 1; at least none, which is not the score 0."""
    aucs = rb.ClientScores([0.9] * 60 + [0.6], True, name="AUC")
    found = rb.next_clients(aucs, 5, above=0.8, delta=0.1)
    assert (found.lower, found.value) == (0.0, 1.0)
    assert "would measure the AUC below 0.8 lies between 0 and 1." in found.statement
    page = rb.report_page(rb.compare(CHANGES, require="count:0.04@next:5<=3"))
    assert "change of the risk above 0.04 lies between 0 and" in page


@pytest.mark.parametrize("delta", [0.6, 0.9, 0.99])
def test_little_confidence_is_no_error(delta):
    """Of one end only that end was computed, and is compared with no other; until this test both ends crossed."""
    for number in ("quantile:0.5", "change"):
        found = rb.bound(CHANGES, number, delta=delta, local="observed")
        assert found.value <= rb.bound(CHANGES, number, delta=0.1, local="observed").value


def test_several_models_share_delta_and_names_match_in_any_order():
    names, values = ["a", "b", "c", "d"], np.array([0.1, 0.2, 0.3, 0.4])
    old = rb.ClientRisks(values, 100, names=names)
    new = rb.ClientRisks(values[::-1] - 0.05, 100, names=names[::-1])
    changes = rb.ClientChanges.between(old, new)
    np.testing.assert_allclose(changes.values, -0.05)
    assert changes.names == tuple(names)
    alone = rb.compare(old, new, delta=0.05, numbers=["change", "harmed:0.05"])
    several = rb.compare(old, dict.fromkeys("abcd", new), delta=0.2, numbers=["change", "harmed:0.05"])
    assert several.keys() == {"a", "b", "c", "d"}
    assert {each.delta for each in alone.certificates.values()} == {0.025}
    for found in several.values():
        assert found.certificates == alone.certificates


def test_what_is_required_of_scores_and_changes_has_the_direction_that_is_written():
    aucs = rb.ClientScores([0.9] * 40, True, name="AUC")
    for text, verdict in (
        ("mean>=0.7", "PASS"),
        ("mean<=0.7", "FAIL"),
        ("mean>=0.905", "NOT DECIDED"),
        ("quantile:0.1>=0.9", "PASS"),
        ("share:0.8<=0.1", "PASS"),
        ("share:0.9<=0.1", "FAIL"),
        ("mean@chi2:0.1>=0.6", "PASS"),
        ("mean@chi2:0.1>=0.99", "FAIL"),
        ("mean@chi2:0.1<=0.95", "PASS"),
        ("mean@chi2:0.1>=0.89", "NOT DECIDED"),
    ):
        assert rb.require(aucs, text, delta=0.05).verdict == verdict, text
    better = rb.ClientChanges([0.5] * 40, [0.4] * 40, 1_000)
    for text, verdict in (
        ("change<=0.01", "PASS"),
        ("change>=0.2", "FAIL"),
        ("harmed:0.02<=0.2", "PASS"),
        ("harmed:-0.2>=0.5", "PASS"),
        ("mean@chi2:0.1<=-0.09", "NOT DECIDED"),
        ("mean@chi2:0.1>=-0.5", "PASS"),
    ):
        assert rb.require(better, text, delta=0.05).verdict == verdict, text
    found = {name: rb.bound(aucs, name, delta=0.025).lower for name in ("mean", "mean@chi2:0.1")}
    assert found["mean@chi2:0.1"] < found["mean"]
    between = f"mean@chi2:0.1>={np.mean(list(found.values()))}"  # what the mean without a shift would meet
    assert rb.require(aucs, between, delta=0.05).verdict == "NOT DECIDED"
    minutes = rb.ClientScores([60.0] * 40, False, name="minutes", high=1440.0)
    assert rb.require(minutes, "quantile:0.9<=60", delta=0.05).verdict == "PASS"


def test_answers_that_differ_in_anything_are_not_equal():
    changes = [([0.1, 0.2], [0.1, 0.3], 10), ([0.1, 0.2], [0.1, 0.3], 20), ([0.1, 0.2], [0.2, 0.3], 10)]
    labels = [{}, {"names": ["a", "b"]}, {"groups": ["x", None]}, {"num_missing": 1}, {"contamination": 1}]
    made = [lambda each=each: rb.ClientChanges(*each) for each in changes]
    made += [lambda who=who: rb.ClientChanges(*changes[0], num_worse=[0, 2], **who) for who in labels]
    made += [
        lambda who=who: rb.ClientScores([0.1, 0.2], True, **who) for who in [*labels, {"name": "AUC"}, {"high": 2.0}]
    ]
    made.append(lambda: rb.ClientScores([0.1, 0.2], False))
    for first, one in enumerate(made):
        for second, other in enumerate(made):
            assert (one() == other()) == (first == second)
        assert hash(one()) == hash(one())


@pytest.mark.parametrize(
    ("answers", "number", "rule"),
    [
        (CHANGES, "gini", "'gini' is of risks; of a change of the risk there are mean, quantile, share"),
        (MINUTES, "cvar:0.9@chi2:0.1", "is of risks; of the minutes there are mean, quantile, share"),
        (MINUTES, "change", "got the minutes of clients; ask for 'mean'"),
        (MINUTES, "harmed:60", "got the minutes of clients; ask for 'share:60'"),
        (MINUTES, "share:1500", r"must lie in \[0, 1440\]"),
        (CHANGES, "harmed:-1.5", r"must lie in \[-1, 1\]"),
    ],
)
def test_what_is_required_is_a_number_of_these_answers(answers, number, rule):
    for ask in (
        lambda: rb.bound(answers, number, delta=0.1),
        lambda: rb.require(answers, f"{number}<=0.2", delta=0.1),
        lambda: rb.Sequence([number], delta=0.1, of=type(answers)).add(answers),
    ):
        with pytest.raises(ValueError, match=rule):
            ask()


@pytest.mark.parametrize("word", ["change", "harmed:0.02", "harmed:0.02@kl:0.1", "change@kl:0.1"])
def test_words_of_changes_name_the_numbers_that_they_are(word):
    number = word.replace("change", "mean").replace("harmed", "share")
    assert rb.bound(CHANGES, word, delta=0.1).to_dict() == rb.bound(CHANGES, number, delta=0.1).to_dict()
    assert rb.bound(CHANGES, word, delta=0.1).name == str(rb.Number.of(word)) == number


MANY_WORSE = np.random.default_rng(1).binomial(2_000, np.random.default_rng(2).beta(1.0, 9.0, 400))
LARGE = {
    "changes": rb.ClientChanges.from_counts(MANY_WORSE, 0 * MANY_WORSE, 2_000),
    "minutes": rb.ClientScores(MANY_WORSE / 2.0, False, high=1440.0),
    "the more the better": rb.ClientScores(MANY_WORSE / 2.0, True, high=1440.0),
}


@pytest.mark.parametrize("answers", LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("divergence", rb.DIVERGENCES)
def test_shares_and_quantiles_within_a_budget_are_those_of_the_worst_network_of_two_kinds(answers, divergence):
    """Of two kinds of clients a share p becomes the largest q; beyond a quantile there is no more than allowed."""
    ball, end = {"divergence": divergence, "budget": 0.02}, "lower" if answers.scale.is_higher_better else "value"
    at = float(np.quantile(answers.values, 0.1 if answers.scale.is_higher_better else 0.9, method="nearest"))

    def bound(number):
        return getattr(rb.bound(answers, number, delta=0.1), "value" if number.startswith("share") else end)

    plain = bound(f"share:{at!r}")
    assert plain < bound(f"share:{at!r}@{divergence}:0.02") == rb.binary_worst_case(plain, **ball) < 1.0
    assert bound(f"share:{at!r}@{divergence}:0") == plain
    shares = np.arange(1, 31) / 100  # of clients beyond a quantile of the source
    is_within = np.array([rb.binary_worst_case(share, **ball) <= 0.3 for share in shares])
    near, far = shares[is_within].max(), shares[~is_within].min()
    assert far == pytest.approx(near + 0.01)
    beyond = [bound(f"quantile:{share if end == 'lower' else 1.0 - share}") for share in (0.3, far, near)]
    beyond.insert(2, bound(f"quantile:{0.3 if end == 'lower' else 0.7}@{divergence}:0.02"))
    assert beyond == sorted(beyond, reverse=end == "lower")
    assert beyond[0] != beyond[2]


@pytest.mark.parametrize("delta", [0.05, 0.2])
def test_few_are_told_how_many_clients_bound_nine_in_ten_at_the_delta_of_the_mean(delta):
    def of(num_clients):
        changes = rb.ClientChanges.from_counts([1] * num_clients, [2] * num_clients, 5_000)
        return changes, rb.ClientScores([0.4] * num_clients, False)

    for few in of(9):
        found = certified_on_scale(few, delta=delta)
        said = re.fullmatch(
            rf"a bound of .* at delta = {delta:g}, and (\d+) if it alone is asked for", found.more_clients
        )
        for num_clients, is_bounded in ((int(said[1]) - 1, False), (int(said[1]), True)):
            answers = next(each for each in of(num_clients) if type(each) is type(few))
            top = rb.bound(answers, "quantile:0.9", delta=found.certificates["mean"].delta).value
            assert (top < 1.0) == is_bounded


def test_estimates_stay_estimates():
    trained = rb.ClientChanges.from_counts(*MANY, 100, answered_by="trainers")
    assert rb.bound(trained, "change", delta=0.1).validity == "estimate"
    assert rb.next_clients(trained, 3, delta=0.1).validity == "estimate"
    assert rb.require(trained, "change<=0.9", delta=0.1).verdict == "NOT DECIDED"


def risks(values, sizes=100, **rest):
    return rb.ClientRisks(values, sizes, **rest)


AB = risks([0.1, 0.2], names=["a", "b"])
REFUSED = {
    "other clients": (
        lambda: rb.ClientChanges.between(AB, risks([0.1, 0.2], names=["a", "c"])),
        "same clients, got b only in the old one and c only in the new one; drop them",
    ),
    "a client twice": (lambda: risks([0.1, 0.2], names=["a", "a"]), "a"),
    "no names": (lambda: rb.ClientChanges.between(AB, risks([0.1, 0.2])), "names in both evaluations or in neither"),
    "other sizes": (
        lambda: rb.ClientChanges.between(AB, risks([0.1, 0.2], [100, 50], names=["a", "b"])),
        "other numbers of them in 1 clients, first b; evaluate them again",
    ),
    "other responses": (
        lambda: rb.ClientChanges.between(AB, risks([0.1, 0.2], names=["a", "b"], num_missing=1)),
        "say the same of who answered",
    ),
    "noise": (
        lambda: rb.ClientChanges.between(*[risks([0.1, 0.2], noise="laplace:0.5", binary=True)] * 2),
        "answers without noise",
    ),
    "other numbers": (lambda: rb.ClientChanges([0.1] * 3, [0.1] * 2, 10), "got 3 and 2; match them"),
    "too many worse": (
        lambda: rb.ClientChanges([0.1] * 2, [0.3] * 2, 10, num_worse=[4, 2]),
        "contradicts old and new; leave it out",
    ),
    "too few worse": (lambda: rb.ClientChanges([0.1] * 2, [0.3] * 2, 10, num_worse=[1, 2]), "contradicts old and new"),
    "parts of examples": (lambda: rb.ClientChanges([0.1] * 2, [0.3] * 2, 10, num_worse=[2.5, 2]), "contradicts"),
    "losses that are not counted": (
        lambda: rb.ClientChanges([0.1] * 2, [0.3] * 2, 10, False, num_worse=[2, 2]),
        "for losses 0 or 1",
    ),
    "more than all": (lambda: rb.ClientChanges.from_counts([80, 1], [80, 1], 100), "contradicts"),
    "more than one": (lambda: rb.ClientChanges.from_counts([101, 1], [0, 1], 100), "none above its number of examples"),
    "out of range": (
        lambda: rb.ClientScores([0.5, 1.5], True, name="AUC"),
        r"every AUC must lie in \[0, 1\], got 1.5; .*low=\.\.\., high=",
    ),
    "no number": (lambda: rb.ClientScores([0.5, np.nan], True), "got nan"),
    "one score": (lambda: rb.ClientScores([0.5], True), "at least 2 clients"),
    "no range": (lambda: rb.ClientScores([0.5, 0.5], True, low=1.0), "low must be below high"),
    "endless range": (lambda: rb.ClientScores([0.5, 0.5], True, low=-1.7e308, high=1.7e308), "by a finite number"),
    "no direction": (lambda: rb.ClientScores([0.5, 0.5], "yes"), "higher_is_better"),
    "no name": (lambda: rb.ClientScores([0.5, 0.5], True, name=" "), "printable characters"),
    "none next": (lambda: rb.next_clients(CHANGES, 0, delta=0.1), "num_next must be a whole number >= 1, got 0"),
    "fewer than asked": (
        lambda: rb.next_clients(CHANGES, population=30, delta=0.1),
        "above the number of clients asked, 40, got 30",
    ),
    "true changes of the next": (
        lambda: rb.next_clients(CHANGES, 3, delta=0.1, local="marginal"),
        "got local='marginal'; leave it out of changes and scores",
    ),
    "a change that none exceeds": (
        lambda: rb.require(CHANGES, "count:1@next:5<=3", delta=0.1),
        r"'count:1@next:5' must be in \[-1, 1\), got 1.0; no client measures worse than 1",
    ),
    "an AUC that none is below": (
        lambda: rb.next_clients(rb.ClientScores([0.5] * 9, True), 5, above=0, delta=0.1),
        r"above must be in \(0, 1\], got 0; no client measures worse than 0",
    ),
    "minutes beyond the day": (
        lambda: rb.require(MINUTES, "count:1500@next:5<=3", delta=0.1),
        r"in \[0, 1440\), got 1500",
    ),
    "nothing to bound": (lambda: rb.bound(CHANGES, "ginny", delta=0.1), "cannot be read"),
    "a level above 1": (lambda: rb.bound(CHANGES, "quantile:1.1", delta=0.1), r"level must lie in \[0, 1\]"),
    "a cost": (lambda: rb.bound(CHANGES, "mean@cost:0.1", delta=0.1), "'mean@cost:0.1' is of risks"),
    "a worst case from both sides": (
        lambda: rb.bound(CHANGES, "mean@kl:0.1", delta=0.1, sides="two"),
        "is bounded from its bad end alone, got sides='two'",
    ),
    "no threshold": (lambda: rb.bound(CHANGES, "harmed:nan", delta=0.1), "finite"),
    "no delta": (lambda: rb.bound(CHANGES, "change", delta=0.0), "delta must be in"),
    "risks": (lambda: rb.bound(AB, "change", delta=0.1), "got the risk of clients; ask for 'mean'"),
    "changes for risks": (lambda: rb.mean_bound(CHANGES, delta=0.1), "must be of type ClientRisks"),
    "a change required": (lambda: rb.require(MINUTES, "change<=0.1", delta=0.1), "ask for 'mean'"),
    "a limit in percent": (
        lambda: rb.require(rb.ClientScores([0.5] * 9, False), "mean<=70", delta=0.1),
        "some of its values from 0 to 1 and not all, got <= 70; that is the range of the score",
    ),
    "a worst mean in doubt": (
        lambda: rb.bound(rb.ClientScores([0.5] * 9, True, contamination=1), "mean@chi2:0.1", delta=0.1),
        "does not know missing or wrong answers; use a mean",
    ),
    "a ball of no size": (
        lambda: rb.compare(CHANGES, divergence="chi2"),
        "a divergence and a budget above 0 go together, got 'chi2'",
    ),
    "a size of no ball": (lambda: rb.compare(CHANGES, budget=0.1), "go together, got None and 0.1"),
    "another step to true changes": (
        lambda: rb.compare(CHANGES, num_next=3, local="union"),
        "local must be one of .*, got 'union'",
    ),
    "one model": (lambda: rb.compare(AB), "needs two models"),
    "three models": (lambda: rb.compare(CHANGES, AB), "leave the second argument out"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_said_is_refused(case):
    attempt, words = REFUSED[case]
    with pytest.raises(ValueError, match=words):
        attempt()
