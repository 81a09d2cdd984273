"""Sequences: what was certified of the first clients still holds, however the others come."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import riskband as rb
from riskband.certificate import CrossingError
from riskband.worst_cases.always_valid import DIRECT, always_valid
from riskband.worst_cases.number import ON_SCALE, Number

NUMBERS = (
    *("mean", "share:0.3", "quantile:0.8", "cvar:0.5", "mean@chi2:0.1", "mean@kl:0.1"),
    *("share:0.3@chi2:0.1", "quantile:0.8@tv:0.1"),
)
COUNTS = st.lists(st.integers(0, 20), min_size=4, max_size=60)


def ends(made):
    return (made.value, made.value if made.lower is None else made.lower)


@given(counts=COUNTS, number=st.sampled_from(NUMBERS), data=st.data())
@settings(max_examples=settings().max_examples * 3 // 8, deadline=None)
def test_further_clients_only_narrow_it(counts, number, data):
    size = data.draw(st.integers(2, len(counts) - 1))
    whole = np.array(counts) / 20
    first, last = (
        always_valid(rb.ClientRisks(values, 20, binary=True), number, delta=1e-6) for values in (whole[:size], whole)
    )
    assert ends(last)[0] <= ends(first)[0] + 1e-9
    assert last.lower is None or last.lower >= first.lower - 1e-9


@given(counts=COUNTS, sizes=st.lists(st.integers(1, 7), min_size=1), number=st.sampled_from((*NUMBERS, "gini")))
@settings(max_examples=40, deadline=None)
def test_clients_that_come_one_by_one_may_be_added_together(counts, sizes, number):
    alone, batched = (rb.Sequence(number, delta=1e-6, binary=True) for _ in range(2))
    for count in counts:
        alone.add(values=count / 20, num_examples=20)
    start = 0
    while start < len(counts):
        sizes = [*sizes[1:], sizes[0]]
        some = np.array(counts[start : start + sizes[0]]) / 20
        batched.add(values=some, num_examples=[20] * some.size, batches=[1] * some.size)
        start += sizes[0]
    assert {name: made.to_dict() for name, made in alone.certificates.items()} == {
        name: made.to_dict() for name, made in batched.certificates.items()
    }


def test_what_is_decided_stays_so_and_ends_the_asking():
    rng = np.random.default_rng(0)
    sequence, seen = rb.Sequence(["mean<=0.3", "share:0.5<=0.4", "gini<=0.99"], delta=0.05, order="committed"), []
    while sum(seen) < 3:  # the verdict, and two clients more
        seen.append(sequence.add(values=rng.binomial(100, rng.beta(3, 21)) / 100, num_examples=100))
    assert seen[-3:] == [True] * 3
    assert sequence.gate.verdict == "PASS"
    assert len(seen) > 20  # the band has nothing to say before
    assert sum(made.delta for made in sequence.certificates.values()) == pytest.approx(0.05)
    assert sequence.band.risks.num_clients == 16  # of 25
    for name, made in sequence.certificates.items():
        assert rb.verify(made).ok
        assert made.is_always_valid
        assert made.name == name
        assert not any("how many clients were asked" in line for line in made.assumptions)


@pytest.mark.parametrize(("losses", "verdict"), [([0.6, 0.7, 0.5, 0.65] * 8, "FAIL"), ([0.6, 0.1], "NOT DECIDED")])
def test_other_verdicts(losses, verdict):
    sequence = rb.Sequence("mean<=0.2", delta=0.05)
    is_decided = sequence.add(values=losses, num_examples=[20] * len(losses))
    assert sequence.gate.verdict == verdict
    assert is_decided is (verdict == "FAIL")
    assert ("further clients may be asked" in sequence.gate.statement) is (verdict == "NOT DECIDED")


def test_before_the_second_client_nothing_is_said():
    sequence = rb.Sequence("mean<=0.2", delta=0.05)
    assert not sequence.add(values=0.1, num_examples=10)
    assert sequence.answers is None
    assert sequence.certificates == {}
    assert sequence.gate.verdict == "NOT DECIDED"
    assert rb.Sequence("mean", delta=0.05).gate is None


def test_answers_of_a_class_and_columns_are_the_same():
    changes = rb.ClientChanges.from_counts([3, 0, 1], [0, 2, 1], 100, num_missing=1)
    whole, single = (rb.Sequence("harmed:0.02", delta=0.1, of=rb.ClientChanges) for _ in range(2))
    whole.add(changes, batches=[1] * 3)
    for k in range(3):
        single.add(old=changes.old[k], new=changes.new[k], num_examples=100, num_worse=changes.num_worse[k])
    single.add(old=[0.1], new=[0.1], num_examples=[100], num_worse=[0], num_missing=1)
    whole.add(old=[0.1], new=[0.1], num_examples=[100], num_worse=[0])
    assert whole.certificates["share:0.02"].to_dict() == single.certificates["share:0.02"].to_dict()
    assert whole.answers.num_missing == 1


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ("count:0.3@next:5<=2", "next_clients"),
        ("mean@target:chi2:0.1<=0.2", "riskband shift"),  # once found out only after all had been asked
        ("divergence@target:chi2", "riskband shift"),
        ([], "must be asked for numbers"),
        (["gini", "harmed:0.1"], "'gini' is of risks"),  # once found out only with the first answers
        ("mean=0.2", "mean"),
        ("gimi", "gimi"),
    ],
)
def test_what_cannot_be_asked(asked, problem):
    with pytest.raises(ValueError, match=problem):
        rb.Sequence(asked, delta=0.05)


def test_a_limit_is_one_of_the_numbers_that_clients_have():
    """Which is known when they answer, or before that if it is said."""
    with pytest.raises(ValueError, match="and not all, got <= 2"):
        rb.Sequence("mean<=2", delta=0.05, of=rb.ClientRisks)
    sequence = rb.Sequence("mean<=2", delta=0.05)
    with pytest.raises(ValueError, match="and not all, got <= 2"):
        sequence.add(values=0.1, num_examples=10)
    assert not sequence.add(rb.ClientScores([1.0, 3.0], False, high=10.0))
    assert sequence.gate.verdict == "NOT DECIDED"


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"values": 0.1}, "num_examples"),
        ({}, "got nothing"),
        ({"values": [0.1, 0.2], "num_examples": [10] * 3}, "one entry of each"),
        ({"answers": [0.1, 0.2]}, "answers must be ClientRisks"),
        ({"values": 1.2, "num_examples": 10}, r"\[0, 1\]"),
        ({"values": 0.123, "num_examples": 10}, "binary"),
    ],
)
def test_clients_that_do_not_fit_are_not_added(columns, problem):
    sequence = rb.Sequence("mean", delta=0.05)
    sequence.add(rb.ClientRisks([0.1, 0.2], 10))
    with pytest.raises(ValueError, match=problem):
        sequence.add(**columns)
    assert sequence.answers.num_clients == 2
    sequence.add(values=0.3, num_examples=10)
    assert sequence.answers.num_clients == 3


def test_one_number_of_examples_is_that_of_all_clients():
    sequence = rb.Sequence("mean", delta=0.05)
    sequence.add(values=[0.1, 0.2], num_examples=10)
    assert sequence.answers == rb.ClientRisks([0.1, 0.2], 10, ask="until-decided")
    assert repr(sequence) == "Sequence(mean, 2 clients, delta=0.05)"


@pytest.mark.parametrize(
    ("asked", "answers"),
    [
        ("change<=0.2", rb.ClientRisks([0.1, 0.2], 10)),
        ("harmed:0.1", rb.ClientScores([0.1, 0.2], True)),
    ],
)
def test_words_of_changes_ask_for_changes(asked, answers):
    sequence = rb.Sequence(asked, delta=0.05)
    with pytest.raises(ValueError, match=f"of one kind, ClientChanges .*, got {type(answers).__name__} "):
        sequence.add(answers)
    assert sequence.answers is None


@pytest.mark.parametrize(("wrong", "said"), [(np.nan, "must not be NaN"), (-0.5, "got -0.5"), (1.5, "got 1.5")])
def test_what_is_wrong_with_the_first_client_is_said_at_once(wrong, said):
    sequence = rb.Sequence("mean<=0.3", delta=0.05)
    with pytest.raises(ValueError, match=said):
        sequence.add(values=wrong, num_examples=10)
    with pytest.raises(ValueError, match="num_examples must be whole"):
        sequence.add(values=0.1, num_examples=0.5)
    for risk, name in ((0.1, "a"), (0.2, "b")):
        sequence.add(values=risk, num_examples=10, names=name)
    assert sequence.answers == rb.ClientRisks([0.1, 0.2], 10, names=["a", "b"], ask="until-decided")


def test_answers_of_another_kind_are_refused():
    sequence = rb.Sequence("mean", delta=0.05)
    sequence.add(rb.ClientRisks([0.1, 0.2], 10))
    for other in (rb.ClientRisks([0.123, 0.2], 10, binary=False), rb.ClientScores([0.1, 0.2], True)):
        with pytest.raises(ValueError, match="of one kind"):
            sequence.add(other)
    with pytest.raises(ValueError, match="contamination"):
        rb.Sequence("mean", delta=0.05).add(rb.ClientRisks([0.1] * 9, 10, contamination=1))


def test_a_network_that_changes_makes_limits_cross():
    sequence = rb.Sequence("mean", delta=0.05)
    sequence.add(values=[0.0] * 60, num_examples=[100] * 60)
    sequence.add(values=[0.9] * 40, num_examples=[100] * 40)
    with pytest.raises(ValueError, match=r"must not cross, got .*has the network changed.* in batches"):
        _ = sequence.certificates


BETA = np.random.default_rng(5).beta(3, 21, size=(3, 250))
TRUTHS = {
    "mean": 0.125,
    "share:0.2": 0.10707,
    "quantile:0.9": 0.21461,
    "cvar:0.5": 0.17711,
    "mean@chi2:0.1": 0.14592,
}
PARAMETERS = {"share": ":0.2", "quantile": ":0.9", "cvar": ":0.5"}


@pytest.mark.parametrize("number", [*TRUTHS, "gini"])
def test_a_table_that_is_sorted_is_one_batch(number):
    """Of each client by itself the shares and worst means of such networks were all false."""
    made = []
    for risks in BETA:
        values = np.random.default_rng(6).binomial(100, risks) / 100
        sorted_one, as_drawn = (rb.Sequence(number, delta=0.05) for _ in range(2))
        sorted_one.add(rb.ClientRisks(np.sort(values), 100))
        as_drawn.add(rb.ClientRisks(values, 100))
        made += sorted_one.certificates.values()
        other = as_drawn.certificates[number]
        assert made[-1].value == pytest.approx(other.value, abs=1e-6 if number in TRUTHS else 0.0)
        assert rb.verify(made[-1]).ok
    if number in TRUTHS:
        assert sum(each.value < TRUTHS[number] for each in made) == 0
        assert all("within one, clients may be drawn without" in " ".join(each.assumptions) for each in made)
        assert made[-1].value < 3.0 * TRUTHS[number] or number == "share:0.2"  # and it says something


def test_bands_of_batches_are_of_whole_ones():
    sequence = rb.Sequence("gini", delta=0.05, binary=False)
    for size, used in ((10, 0), (30, 40), (30, 70), (50, 70), (20, 140)):
        sequence.add(values=np.linspace(0.0, 0.3, size), num_examples=100)
        assert (0 if sequence.band is None else sequence.band.risks.num_clients) == used


@pytest.mark.parametrize("number", [*NUMBERS, "gini"])
@pytest.mark.parametrize("said", [{"order": "committed"}, {}])
def test_clients_that_come_sorted_one_by_one_are_refused(number, said):
    sequence = rb.Sequence(number, delta=0.05, **said)
    sequence.add(values=np.arange(40) / 100, num_examples=100, batches=[1] * 40)
    with (
        pytest.raises(CrossingError, match=r"they were sorted.*batches=")
        if number in NUMBERS
        else pytest.raises(CrossingError, match="they were sorted")
    ):
        _ = sequence.certificates


KINDS = {
    "risks": lambda values: rb.ClientRisks(values, 100, False),
    "changes": lambda values: rb.ClientChanges(0.0 * values, values, 100, False),
    "scores": lambda values: rb.ClientScores(values, True),
}
CELLS = [
    (kind, f"{family}{PARAMETERS.get(family, '')}{shift}")
    for kind in KINDS
    for family in (DIRECT if kind == "risks" else ON_SCALE)
    for shift in ("", "@chi2:0.1" * (family != "cvar"))
]


@pytest.mark.parametrize(("kind", "number"), dict.fromkeys(CELLS))
def test_no_bound_excludes_what_it_measured(kind, number):
    """Networks whose first 60 clients may answer 0, which is later no longer what was measured."""
    family, num_refused = Number.of(number).family, 0
    for seed in range(10):
        values = np.random.default_rng(seed).permutation(np.repeat([0.0, 0.05, 0.9], [60, 30, 20]))
        for some in (values, np.append(np.zeros(60), values)):
            answers = KINDS[kind](some)
            try:
                made = always_valid(answers, number, delta=0.3)
            except CrossingError:
                num_refused += 1
                continue
            measured = [np.mean(answers.values)]
            if family == "share":
                measured = [np.mean(some < 0.2 if kind == "scores" else some > 0.2)]
            elif family == "quantile":  # any number between two clients is one
                measured = [np.quantile(some, 0.9, method=method) for method in ("inverted_cdf", "higher")]
            is_from_above = kind != "scores" or family == "share"
            assert (made.lower is None) == (is_from_above and ("@" in number or family == "cvar"))
            assert made.lower is None or made.lower <= max(measured) + 1e-12
            assert min(measured) <= made.value + 1e-12
    assert num_refused < 20  # most are bounded


def test_the_same_client_twice_is_refused_by_name_unless_repeats_are_draws():
    first, again = (rb.ClientRisks([0.1, 0.2], 10, names=[name, "b"]) for name in ("a", "c"))
    sequence, drawn = rb.Sequence("mean", delta=0.05), rb.Sequence("mean", delta=0.05, repeats="draws")
    for each in (sequence, drawn):
        each.add(values=first.values, num_examples=10, names=first.names)
    with pytest.raises(ValueError, match=r"got 'b' more than once \(4 answers of 3 clients\).*repeats='draws'"):
        sequence.add(again)
    assert sequence.answers.names == first.names
    drawn.add(values=again.values, num_examples=10, names=again.names)
    made = drawn.certificates["mean"]
    assert drawn.answers.names == ("a", "b", "c", "b")
    assert sum("was drawn anew each time" in line for line in made.assumptions) == 1
    assert made.recipe["answers"]["repeats"] == "draws"
    assert rb.verify(made).ok
    assert not any("drawn anew" in line for line in sequence.certificates["mean"].assumptions)


@pytest.mark.parametrize("first", [np.nan, -0.5, 1.2])
def test_the_first_client_alone_is_looked_at_too(first):
    sequence = rb.Sequence("mean", delta=0.05)
    with pytest.raises(ValueError, match=r"NaN|\[0, 1\]"):
        sequence.add(values=first, num_examples=10)
    sequence.add(values=0.1, num_examples=10, names=["a"])
    assert not sequence.add(values=0.2, num_examples=10, names=["b"])
