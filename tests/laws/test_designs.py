"""Strata, sampling weights, clusters and odds of answering: what they agree with, who refuses them, and the command."""

from __future__ import annotations

import json
import re
from functools import partial
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import riskband as rb
from riskband.answers.responses import FRESH_CLIENTS, INDEPENDENT_ASKED, INDEPENDENT_CLIENTS, Responses
from riskband.cli import main
from riskband.functionals.functional import FUNCTIONALS, interval_of, resolve
from riskband.verification import FUNCTIONS
from riskband.worst_cases.always_valid import always_valid
from tests.laws.draws import DELTAS, PARAMETERS, client_risks, numbers_of

RNG = np.random.default_rng(31)
SIZE = 60
STRATA = np.where(np.arange(SIZE) < 45, "north", "south")
VALUES = RNG.binomial(50, np.where(STRATA == "north", 0.1, 0.3)) / 50
SHARES = {"north": 0.4, "south": 0.6}
NAMES = [f"H{number}" for number in range(SIZE)]
CLUSTERS = [f"{stratum} {number // 3}" for number, stratum in enumerate(STRATA)]
DESIGNS = {
    "strata": {"strata": STRATA, "shares": SHARES},
    "clusters": {"clusters": CLUSTERS},
    "clusters in strata": {"clusters": CLUSTERS, "strata": STRATA, "shares": SHARES},
    "sampling weights": {"weights": 1 + np.arange(SIZE) % 3, "largest_weight": 4},
}
KNOWING = {  # a certificate of each function that knows designs
    "mean_bound": lambda r: rb.mean_bound(r, delta=0.1),
    "cvar": lambda r: rb.cvar(r, 0.5, delta=0.1),
    "quantile": lambda r: rb.quantile(r, 0.5, delta=0.1),
    "survival": lambda r: rb.survival(r, thresholds=[0.2, 0.4], delta=0.1, local="observed"),
    "worst_case_mean": lambda r: rb.worst_case_mean(r, divergence="kl", budget=[0.0, 0.1], delta=0.1),
    "bound": lambda r: rb.bound(r, "share:0.3@chi2:0.1", delta=0.1),
    "select": lambda r: rb.select({"one": r, "two": r}, objective="mean", delta=0.1).certificate,
    "dispersion_certificate": lambda r: rb.dispersion_certificate(r, "share:0.3", delta=0.1),
}


def answers(name="none", *, values=VALUES, **known):
    if name == "odds":
        return rb.ClientRisks(values, 50, True, names=NAMES, num_missing=9, missing="odds:2", **known)
    return rb.ClientRisks(values, 50, True, names=NAMES, design=DESIGNS.get(name), **known)


def every_number(risks):
    return np.concatenate([np.ravel(make(risks).value) for make in KNOWING.values()])


@pytest.mark.parametrize("name", [*DESIGNS, "odds"])
def test_certificates_say_how_clients_were_drawn_and_verify(name):
    risks = answers(name)
    for function, make in KNOWING.items():
        certificate = make(risks)
        shared = risks.responses.assumptions("x", knows_draws=True)
        assert set(shared) - {"x", FRESH_CLIENTS} <= set(certificate.assumptions)
        assert INDEPENDENT_CLIENTS not in certificate.assumptions
        assert (INDEPENDENT_ASKED in certificate.assumptions) == (name == "odds")
        stored = json.loads(certificate.to_json())
        assert rb.verify(stored).ok, function
        said = stored["recipe"]["answers"]
        for each in said.values() if function == "select" else [said]:
            del each["missing" if name == "odds" else "design"]
        assert not rb.verify(stored).ok, function


@pytest.mark.parametrize("name", [*DESIGNS, "odds"])
def test_the_order_of_the_clients_is_of_no_consequence(name):
    risks = answers(name)
    np.testing.assert_allclose(every_number(risks.of_clients(RNG.permutation(SIZE))), every_number(risks), atol=1e-9)


def test_only_functions_that_know_designs_answer_and_no_new_one_is_forgotten():
    of_others = {  # read off what refuses to be made, see below
        "of bands": [
            "divergence_lower_bound",
            "mean",
            "weighted_quantile",
            "worst_case_cdf",
            "lorenz_certificate",
            "quantile_certificate",
        ],
        "of groups or several": ["group_certificate"],
        "of other answers": ["wasserstein_mean", "wasserstein_cdf"],
        "by ranks, in an order, of two networks, or published": [
            "next_clients",
            "always_valid",
            "wasserstein_published",
        ],
        "of these very clients": ["panel_change"],
    }
    assert {*KNOWING, *chain.from_iterable(of_others.values())} == FUNCTIONS.keys()
    with pytest.raises(ValueError, match="independent draws"):
        answers("strata").responses.assumptions()  # what every other certificate is made with


@pytest.mark.parametrize("name", [*DESIGNS, "odds"])
@pytest.mark.parametrize(
    "make",
    [
        partial(rb.band, delta=0.1),
        partial(rb.band, delta=0.1, local="observed", sides="lower"),
        partial(rb.next_clients, num_next=3, delta=0.1),
        partial(rb.mean_bound, delta=0.1, method="published"),
        partial(rb.mean_bound, delta=0.1, method="hoeffding"),
        partial(rb.mean_bound, delta=0.1, seed=1),
        partial(rb.worst_case_mean, divergence="kl", budget=[0.0, 0.1], delta=0.1, seed=1),
        partial(rb.cvar, level=0.5, delta=0.1, method="band"),
        partial(always_valid, number="mean", delta=0.1),
        lambda r: rb.monitor(rb.mean_bound(rb.ClientRisks([0.1, 0.2] * 9, 50), delta=0.1), r),
        lambda r: rb.bound((r, answers()), "mean@target:kl:0.1", delta=0.1),
        lambda r: rb.bound((answers(), r), "share:0.3@target:kl:0.1", delta=0.1),
        lambda r: rb.divergence_lower_bound(r, answers(), divergence="kl", delta=0.1),
        lambda r: rb.group_bands(r, ["a", "b"] * 30, delta=0.1),
        lambda r: rb.select({"one": r, "two": r}, objective="mean+gini", delta=0.1),
        lambda r: rb.bound(rb.ClientChanges.between(r, r), "change", delta=0.1),
        lambda r: rb.require(r, "gini<=0.3", delta=0.1),
        lambda r: rb.plan("mean<=0.3", delta=0.1, pilot=r, num_examples=50),
    ],
)
def test_all_else_refuses_with_the_reason_and_the_remedy(name, make):
    with pytest.raises(
        ValueError, match=r"must be of clients that are independent draws.*; ask ClientRisks for a mean"
    ):
        make(answers(name))


@pytest.mark.parametrize("name", FUNCTIONALS)
def test_a_functional_knows_designs_or_refuses_them(name):
    chosen = resolve(f"{name}{PARAMETERS.get(name, '')}")
    assert chosen.knows_draws == (name in ("mean", "cvar", "quantile", "share"))
    for design in ("strata", "odds"):
        if chosen.knows_draws:
            lower, upper = interval_of(answers(design), chosen, delta=0.1)
            assert 0.0 <= lower < upper < 1.0
        else:
            with pytest.raises(ValueError, match="independent draws"):
                interval_of(answers(design), chosen, delta=0.1)


KNOWN = (
    "mean",
    "cvar:0.5",
    "quantile:0.5",
    "share:0.5",
    *(f"{name}@chi2:0.1" for name in ("mean", "share:0.5", "quantile:0.5")),
)


@pytest.mark.parametrize("number", numbers_of(rb.ClientRisks))
@pytest.mark.parametrize("name", [*DESIGNS, "odds"])
def test_a_number_of_the_table_of_bounds_knows_designs_or_refuses_them(name, number):
    risks = answers(name)
    if number in KNOWN:
        made = rb.bound(risks, number, delta=0.1)
        assert {*risks.responses.assumptions("x", knows_draws=True)} - {"x"} <= {*made.assumptions}
        assert INDEPENDENT_CLIENTS not in made.assumptions
        assert rb.verify(made.to_dict()).ok
    else:
        with pytest.raises(ValueError, match="independent draws"):
            rb.bound(risks, number, delta=0.1)


OTHERS = {
    "counts": lambda **how: rb.HistogramRisks([0.0, 0.15, 1.0], [30, 30], 10, binary=True, **how),
    "counts of limits": lambda **how: rb.HistogramLimits([0.0, 1.0], [[SIZE]] * 3, eta=0.1, binary=True, **how),
    "changes and scores": lambda **how: rb.ClientScores(VALUES, True, **how),
    "curves": lambda **how: rb.AdversarialAnswers(
        [0.0, 1.0], np.ones((SIZE, 2)), 10, guarantee="exact", cost="order 1", binary=False, **how
    ),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_kinds_of_answers_have_no_design(kind):
    OTHERS[kind](num_missing=3)
    with pytest.raises(ValueError, match=f"{kind} must be of clients that are independent draws"):
        OTHERS[kind](num_missing=3, missing="odds:2")
    with pytest.raises((TypeError, ValueError), match="design"):
        OTHERS[kind](design=DESIGNS["strata"])


@given(client_risks(), DELTAS, st.floats(0.5, 3.0))
def test_designs_that_say_nothing_give_the_bound_for_independent_clients(risks, delta, weight):
    size = risks.num_clients
    nothing = [
        {"weights": np.full(size, weight), "largest_weight": weight},
        {"clusters": [f"chain {number}" for number in range(size)]},
        {"strata": ["all"] * size, "shares": {"all": 1.0}},
        {"strata": np.arange(size) % 2, "shares": {"0": (size - size // 2) / size, "1": size // 2 / size}},
    ]
    expected = interval_of(risks, "mean", delta=delta)
    for design in nothing:
        same = rb.ClientRisks(risks.values, risks.num_examples, risks.binary, design=design)
        assert interval_of(same, "mean", delta=delta) == pytest.approx(expected, abs=1e-9)


@settings(max_examples=settings().max_examples * 3 // 8)
@given(client_risks(), DELTAS, st.integers(1, 8), st.floats(1.01, 30.0), st.floats(1.1, 10.0))
def test_bounds_grow_with_the_odds_up_to_the_worst(risks, delta, num_missing, odds, times):
    def ends(missing, of="mean"):
        who = {"num_missing": num_missing, "missing": missing}
        return interval_of(rb.ClientRisks(risks.values, risks.num_examples, risks.binary, **who), of, delta=delta)

    for of in ("mean", "share:0.3"):
        smaller, larger = ends(f"odds:{odds}", of), ends(f"odds:{odds * times}", of)
        assert larger.lower <= smaller.lower + 1e-9
        assert smaller.upper <= larger.upper + 1e-9
    assert ends("ignore").upper <= ends(f"odds:{odds}").upper + 1e-9
    assert ends("odds:1") == ends("ignore")
    many = rb.ClientRisks(risks.values, risks.num_examples, risks.binary, num_missing=num_missing, missing="odds:inf")
    assert (many.missing, many.are_independent) == ("worst", True)
    none = rb.ClientRisks(risks.values, risks.num_examples, risks.binary, missing=f"odds:{odds}")
    assert rb.mean_bound(none, delta=delta).assumptions == rb.mean_bound(risks, delta=delta).assumptions


def test_the_share_of_silent_clients_is_the_closed_form():
    """Of very many clients, a share p of those that answered and odds Γ: Γp/(Γp + 1 - p) of those that did not."""
    p, odds, size = 0.2, 3.0, 100_000
    is_above = np.arange(size) < p * size
    risks = rb.ClientRisks(np.where(is_above, 0.9, 0.1), 50, False, num_missing=size, missing=f"odds:{odds}")
    of_silent = odds * p / (odds * p + 1 - p)
    found = rb.survival(risks, thresholds=0.5, delta=0.05, local="observed").value
    assert found == pytest.approx((p + of_silent) / 2, abs=0.01)
    assert found > (p + of_silent) / 2


def test_what_is_said_of_a_design_and_more_clients_like_these():
    risks = answers("clusters in strata")
    assert "design='clusters in strata'" in repr(risks)
    assert risks == answers("clusters in strata") != answers("strata")
    more = risks.resized(4 * SIZE)
    assert more.design is not None
    assert risks.design is not None
    assert more.design.num_units == 4 * risks.design.num_units
    assert rb.mean_bound(more, delta=0.1).value < rb.mean_bound(risks, delta=0.1).value
    assert rb.ClientRisks(**risks.to_dict()) == risks


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ({"design": {"strata": STRATA}}, "strata and shares of a design must be given together"),
        ({"design": {"weights": np.ones(SIZE)}}, "weights and largest_weight of a design must be given together"),
        ({"design": {}}, "must have strata, clusters"),
        ({"design": DESIGNS["strata"] | DESIGNS["sampling weights"]}, "must have strata, clusters"),
        ({"design": {"strata": STRATA, "shares": {"north": 0.4, "south": 0.5}}}, "sum of 0.9; scale them"),
        ({"design": {"strata": STRATA, "shares": {"north": -0.4, "south": 1.4}}}, "must lie in"),
        ({"design": {"strata": STRATA, "shares": {"north": 1.0}}}, "got none for south"),
        ({"design": {"strata": STRATA, "shares": SHARES | {"south": 0.5, "west": 0.1}}}, "got none of west"),
        ({"design": {"strata": [*STRATA[1:], None], "shares": SHARES}}, "strata must name one for every client"),
        ({"design": {"strata": STRATA[1:], "shares": SHARES}}, "for each of 60 clients, got 59"),
        ({"design": {**DESIGNS["strata"], "clusters": NAMES[1:]}}, "for each of 60 clients, got 59 and 60"),
        ({"design": {"weights": np.arange(SIZE), "largest_weight": 99}}, "above 0 and at most largest_weight, 99"),
        ({"design": {"weights": np.full(SIZE, 3.0), "largest_weight": 2}}, "got 3 to 3"),
        ({"design": {"weights": np.ones(SIZE), "largest_weight": np.inf}}, "largest_weight, inf"),
        ({"design": {"clusters": ["one"] * SIZE}}, "at least two clusters"),
        ({"design": {**DESIGNS["strata"], "clusters": ["one", "two"] * 30}}, "must be in one stratum, got 'one'"),
        ({"design": DESIGNS["strata"], "noise": "laplace:1"}, "must be without noise"),
        ({"design": DESIGNS["strata"], "contamination": 1}, "must be without noise, contamination"),
        ({"design": DESIGNS["strata"], "num_missing": 3, "missing": "worst"}, "got missing='worst'"),
        ({"num_missing": 3, "missing": "odds:2", "contamination": 1}, "missing='odds:2' must be without noise"),
        ({"missing": "odds:0.5"}, "a factor >= 1, got missing='odds:0.5'"),
        ({"missing": "odds:GAMMA"}, "a factor >= 1"),
    ],
)
def test_wrong_designs_are_refused(known, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        rb.ClientRisks(VALUES, 50, True, **known)


def test_odds_at_which_a_verdict_flips():
    def verdict(missing, required="mean<=0.24"):
        risks = rb.ClientRisks(VALUES, 50, True, num_missing=9, missing=missing)
        return rb.require(risks, required, delta=0.05).verdicts[0]

    found = verdict("odds:2")
    most = float(re.search(r"factor of up to ([\d.]+) it is PASS", found.statement)[1])
    assert found.verdict == "PASS"
    assert 2.0 < most < 100.0
    assert verdict(f"odds:{0.99 * most}").verdict == "PASS"
    beyond = verdict(f"odds:{1.01 * most}")
    assert beyond.verdict == "NOT DECIDED"
    assert f"factor of up to {most:g} it is PASS" in beyond.statement
    assert (
        "would not be decided if the silent clients were missing at random" in verdict("odds:2", "mean<=0.16").statement
    )
    assert "odds" not in verdict("ignore").statement


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "answers.csv"
    rows = zip(NAMES, STRATA, CLUSTERS, DESIGNS["sampling weights"]["weights"], VALUES, strict=True)
    path.write_text("\n".join(["client,region,chain,w,loss", *(",".join(map(str, row)) for row in rows)]))
    (tmp_path / "shares.csv").write_text("region;share\nnorth;0,4\nsouth;0,6\n")
    return path


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (["--stratum", "region", "--shares", "shares.csv"], "strata"),
        (["--stratum", "region", "--shares", "shares.csv", "--cluster", "chain"], "clusters in strata"),
        (["--cluster", "chain"], "clusters"),
        (["--sampling-weight", "w", "--largest-weight", "4"], "sampling weights"),
        (["--missing", "odds:2", "--num-missing", "9"], "odds"),
    ],
)
def test_the_command_reads_designs(table, flags, name, capsys, monkeypatch):
    monkeypatch.chdir(table.parent)
    ask = ["certify", table.name, "--num-examples", "50", "--client", "client", *flags, "--mean", "--out", "found.json"]
    assert main(ask) == 0
    (found,) = json.loads((table.parent / "found.json").read_text())["certificates"].values()
    risks = answers(name)
    assert found["value"] == pytest.approx(rb.mean_bound(risks, delta=0.05).value)
    printed = capsys.readouterr().out
    for line in risks.responses.assumptions(knows_draws=True):
        assert f"  - {line}\n" in printed
    said = "9, with odds of answering that differ by at most a factor of 2"
    assert said in printed if name == "odds" else f"How clients were drawn: by {name}\n" in printed
    assert main(["verify", "found.json"]) == 0
    assert main(["report", "found.json", "--out", "page.html"]) == 0
    assert (said if name == "odds" else f"by {name}") in (table.parent / "page.html").read_text()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--stratum", "region"], "strata and shares of a design must be given together"),
        (["--stratum", "place", "--shares", "shares.csv"], "must have a column 'place'"),
        (["--stratum", "region", "--shares", "twice.csv"], "must name every stratum once, got 'north' again"),
        (["--stratum", "region", "--shares", "few.csv"], "got none for south"),
        (["--sampling-weight", "chain", "--largest-weight", "4"], "column 'chain' must hold numbers"),
        (["--cluster", "loss"], "must be named by columns beside those of the losses"),
        (["--missing", "odds:2"], "--missing odds:2 needs --num-missing"),
        (["--missing", "odd"], "missing must be one of ignore, odds:GAMMA, worst"),
        (["--cluster", "chain", "--measure", "gini"], "the Gini coefficient must be of clients that are independent"),
        (["--cluster", "chain", "--score", "AUC", "--higher-is-better"], "--cluster needs losses"),
        (["--cluster", "holes"], "column 'holes' must have a value in every row, got none in line 2"),
    ],
)
def test_the_command_refuses_wrong_designs(table, flags, message, capsys, monkeypatch):
    monkeypatch.chdir(table.parent)
    (table.parent / "twice.csv").write_text("region,share\nnorth,0.4\nnorth,0.6\n")
    (table.parent / "few.csv").write_text("region,share\nnorth,1\n")
    lines = table.read_text().splitlines()
    table.write_text("\n".join(f"{line},{end}" for line, end in zip(lines, ["holes", "", *"ab" * 30], strict=False)))
    assert main(["certify", table.name, "--num-examples", "50", "--client", "client", *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_frame_reads_designs():
    frame = {"loss": VALUES, "n": [50] * SIZE, "region": STRATA, "chain": CLUSTERS}
    of_frame = rb.ClientRisks.from_frame(
        frame, loss="loss", num_examples="n", stratum="region", shares=SHARES, cluster="chain"
    )
    expected = answers("clusters in strata")
    assert of_frame.design == expected.design
    assert rb.mean_bound(of_frame, delta=0.1).value == rb.mean_bound(expected, delta=0.1).value


def test_a_design_or_odds_are_what_makes_clients_dependent():
    assert Responses(5).are_independent
    assert Responses(5, num_missing=2, missing="worst").are_independent
    assert not Responses(5, num_missing=2, missing="odds:2").are_independent
