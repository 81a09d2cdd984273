"""Plans: the power against closed forms and simulation, what a plan is made of, and what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import beta, binom, hypergeom

import riskband as rb
from papers.benchmarks.plan import Setting, simulated_power
from riskband.cli import main
from riskband.functionals.functional import interval_of
from riskband.worst_cases.planning import Option, pilot_distribution, truth_on_scale
from riskband.worst_cases.requirements import Requirement

PRIOR = "beta:0.12:0.07"
ZERO_OR_ONE = rb.RiskDistribution(np.array([0.0, 1.0]), np.array([0.9, 1.0]))  # a tenth of the clients always fail


@cache
def small_plan(**changes):
    settings = {"target": "mean<=0.25", "prior": PRIOR, "num_examples": 40, "delta": 0.1} | changes
    return rb.plan(settings.pop("target"), **settings)


@pytest.mark.slow
def test_power_is_that_of_a_closed_form():
    """Clients of risk 0 or 1 measure it exactly, and their number is binomial: the gate passes up to some count."""
    plan = rb.plan("share:0.5<=0.25", prior=ZERO_OR_ONE, num_examples=50, delta=0.1, num_clients=30)
    assert plan.truth == pytest.approx(0.1)
    assert len(plan.tried) >= 2
    for option in {plan.best, *plan.at_hand}:
        largest = -1
        while passes(largest + 1, option.num_clients):
            largest += 1
        assert option.power == pytest.approx(binom.cdf(largest, option.num_clients, 0.1), abs=0.02)


@pytest.mark.parametrize(("shift", "limit"), [pytest.param(None, 4, marks=pytest.mark.slow), ("chi2:0.05", 7)])
def test_power_for_next_clients_is_a_binomial_sum(shift, limit):
    """At most so many of those that answer may measure more; they are the clients of risk 1."""
    plan = rb.plan(
        f"count:0.5@next:10<={limit}", shift=shift, prior=ZERO_OR_ONE, num_examples=50, delta=0.1, num_clients=12
    )
    within = {} if shift is None else {"divergence": "chi2", "budget": 0.05}
    assert plan.truth == pytest.approx(1.0 if shift is None else 10 * rb.binary_worst_case(0.1, **within))
    for option in {plan.best, *plan.at_hand}:
        size, counts = option.num_clients, np.arange(option.num_clients + 1)
        answers = [rb.ClientRisks(np.repeat([1.0, 0.0], [n, size - n]), 50, True) for n in counts]
        is_sure = [rb.next_clients(each, 10, above=0.5, delta=0.1, **within).value <= limit for each in answers]
        assert option.power == pytest.approx(binom.pmf(counts, size, 0.1) @ is_sure, abs=0.02)
    with pytest.raises(ValueError, match=r"not even 4,096 clients .*; the number is 0.1 on average if"):
        rb.plan("count:0.5@next:1<=0", prior=ZERO_OR_ONE, num_examples=50, delta=0.1)


@pytest.mark.parametrize("population", [30, pytest.param(55, marks=pytest.mark.slow)])
def test_power_for_a_whole_federation_is_that_of_a_hypergeometric_test(population):
    """Of so many clients those above the risk are fewer than would make what was seen too rare."""
    limit, at_hand = population // 5, population // 2
    asked = {"prior": ZERO_OR_ONE, "num_examples": 50, "delta": 0.1, "num_clients": at_hand}
    plan = rb.plan(f"count:0.5@all:{population}<={limit}", **asked)
    assert plan.truth == pytest.approx(0.1 * population)
    assert plan.best.num_clients < population
    for option in {plan.best, *plan.at_hand}:
        size, counts = option.num_clients, np.arange(option.num_clients + 1)
        is_sure = hypergeom.cdf(counts, population, limit + 1, size) <= 0.05
        # Three standard errors of 600 certificates, of which no average predicts the steps.
        assert option.power == pytest.approx(binom.pmf(counts, size, 0.1) @ is_sure, abs=0.04)
    assert any("drawn from the population at random" in line for line in plan.assumptions)
    with pytest.raises(ValueError, match=f"not even {population - 1} clients"):
        rb.plan(f"count:0.5@all:{population}<=0", **asked)


@pytest.mark.slow
def test_of_a_federation_those_are_asked_who_do_not_come_next():
    """With 55 clients 45 can be asked for 10 others: for a limit that needs more there is no plan."""
    asked = {"prior": ZERO_OR_ONE, "num_examples": 50, "delta": 0.1}
    endless = rb.plan("count:0.5@next:10<=3", **asked)
    assert endless.best.num_clients > 45
    with pytest.raises(ValueError, match="not even 45 clients with 50 examples each pass"):
        rb.plan("count:0.5@next:10<=3", population=55, **asked)
    assert rb.plan("count:0.5@next:10<=3", population=endless.best.num_clients + 30, **asked).best == endless.best


def changes_of_two_kinds(num_worse, num_clients):
    """Of the first, all of the 200 examples get worse, and of the others none."""
    after = np.repeat([1.0, 0.0], [num_worse, num_clients - num_worse])
    return rb.ClientChanges(np.zeros(num_clients), after, 200, True)


def scores_of_two_kinds(num_bad, num_clients):
    return rb.ClientScores(np.repeat([0.5, 0.9], [num_bad, num_clients - num_bad]), higher_is_better=True)


OF_TWO_KINDS = {  # a tenth of the clients is bad; so many of K may be, in closed form
    "harmed:0.5<=0.25": (changes_of_two_kinds, lambda count, size: beta.ppf(0.95, count + 1, size - count) <= 0.2),
    "quantile:0.75<=0.5": (changes_of_two_kinds, lambda count, size: binom.cdf(count, size, 0.2) <= 0.05),
    "quantile:0.2>=0.8": (scores_of_two_kinds, lambda count, size: binom.cdf(count, size, 0.2) <= 0.05),
    "share:0.8<=0.2": (scores_of_two_kinds, lambda count, size: beta.ppf(0.95, count + 1, size - count) <= 0.2),
}
*SLOW, FAST = OF_TWO_KINDS


@pytest.mark.parametrize("target", [*(pytest.param(each, marks=pytest.mark.slow) for each in SLOW), FAST])
def test_power_of_changes_and_scores_of_two_kinds_is_binomial(target):
    """A true change has a limit in each client, wrong with probability .2: of .25 bad ones, .2 are left."""
    pilot, is_sure = OF_TWO_KINDS[target]
    plan = rb.plan(target, pilot=pilot(3, 30), delta=0.1, num_clients=40, cost=(2.0, 0.0))
    for option in {plan.best, *plan.at_hand}:
        size, counts = option.num_clients, np.arange(option.num_clients)
        assert option.power == pytest.approx(binom.pmf(counts, size, 0.1) @ is_sure(counts, size), abs=0.02)
        assert (option.num_examples, option.cost) == (None, 2.0 * size)
    assert "example" not in plan.statement.partition(" This is an estimate")[0]
    assert plan.to_frame().num_examples.isna().all()
    assert f"cheapest: {plan.best.num_clients} clients" in plan.plot().get_legend_handles_labels()[1]


def test_the_truth_of_a_pilot_is_that_of_its_clients():
    """The worst mean within chi2 of two kinds moves the share of the bad ones as far as it may."""
    share = 0.1 + np.sqrt(0.1 * 0.1 * 0.9)  # (q - p)² / (p(1 - p)) = 0.1
    for target, pilot, truth in (
        ("change<=0.4", changes_of_two_kinds, 0.1),
        ("mean@chi2:0.1<=0.5", changes_of_two_kinds, share),
        ("mean@tv:0.1<=0.6", changes_of_two_kinds, 0.2),
        ("mean>=0.7", scores_of_two_kinds, 0.86),
    ):
        assert truth_on_scale(pilot(3, 30), Requirement.of(target)) == pytest.approx(truth, abs=1e-6)


def simulated_change(num_clients, *, with_counts, target, num_networks=300):
    """Share of networks that pass, of clients drawn from numpy's Beta: an example that differs got worse with q."""
    rng, passed = np.random.default_rng(9), 0
    a, b = beta_parameters(0.5 - 0.01 / 0.2, 0.03 / 0.2)
    for _ in range(num_networks):
        num_differ = rng.binomial(400, 0.1, num_clients)
        worse = rng.binomial(num_differ, rng.beta(a, b, num_clients))
        both = rng.binomial(400 - num_differ, (0.2 - 0.055) / 0.9)  # wrong under both, so that the old risk is 0.2
        old, new = (num_differ - worse + both) / 400, (worse + both) / 400
        answers = rb.ClientChanges(old, new, 400, True, num_worse=worse if with_counts else None)
        passed += rb.require(answers, target, delta=0.1).verdict == "PASS"
    return passed / num_networks


def beta_parameters(mean, spread):
    total = mean * (1.0 - mean) / spread**2 - 1.0
    return mean * total, (1.0 - mean) * total


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "with_counts"),
    [
        ("change<=0.02", True),
        ("quantile:0.8<=0.06", True),
        ("harmed:0.05<=0.3", True),
        ("harmed:0.1<=0.3", False),
    ],
)
def test_power_of_a_law_of_changes_is_that_of_networks_drawn_without_the_plan(target, with_counts, monkeypatch):
    """Two points are allowed for the plan, as above."""
    monkeypatch.setattr("riskband.worst_cases.requirements._LARGEST_TRIED", 0)  # only to save time
    prior = "change:-0.01:0.03:0.1" + ":0.2" * (not with_counts)
    best = rb.plan(target, prior=prior, num_examples=400, delta=0.1).best
    share = simulated_change(best.num_clients, with_counts=with_counts, target=target)
    low, high = binom.ppf([5e-5, 1.0 - 5e-5], 300, [best.power - 0.02, best.power + 0.02]) / 300
    assert low <= share <= high


@pytest.mark.slow
def test_limits_from_two_mean_losses_need_more_clients_than_counts():
    asked = {"num_examples": 2_000, "delta": 0.1}
    counted, alone = (
        rb.plan("harmed:0.05<=0.3", prior=f"change:-0.01:0.02:0.1{old}", **asked).best for old in ("", ":0.3")
    )
    assert alone.num_clients > counted.num_clients


def passes(num_failing, num_clients):
    answers = rb.ClientRisks([1.0] * num_failing + [0.0] * (num_clients - num_failing), 50, True)
    return interval_of(answers, "share:0.5", delta=0.1).upper <= 0.25


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [
        Setting("mean<=0.16", 0.125, 0.066, 20),
        Setting("share:0.3<=0.2", 0.125, 0.066, 50, delta=0.1),
        Setting("mean@kl:0.1<=0.4", 0.125, 0.066, 50, delta=0.1),
    ],
    ids=lambda setting: setting.target,
)
def test_power_is_that_of_networks_drawn_without_the_plan(setting):
    """Two points are allowed for the plan; the simulation leaves them by chance with probability 1e-4."""
    prior = f"beta:{setting.mean}:{setting.spread}"
    best = rb.plan(setting.target, prior=prior, num_examples=setting.num_examples, delta=setting.delta).best
    num_networks = 500
    share = simulated_power(setting, best.num_clients, num_networks=num_networks, seed=5)
    low, high = binom.ppf([5e-5, 1.0 - 5e-5], num_networks, [best.power - 0.02, best.power + 0.02]) / num_networks
    assert low <= share <= high


@pytest.mark.slow
@pytest.mark.usefixtures("coarse_plans")
def test_the_same_seed_gives_the_same_plan_and_other_settings_give_what_they_should():
    plan = small_plan()
    assert plan == rb.plan("mean<=0.25", prior=PRIOR, num_examples=40, delta=0.1)
    assert plan != small_plan(seed=1)
    assert small_plan(seed=1).best.num_clients == pytest.approx(plan.best.num_clients, rel=0.2)
    clients = plan.best.num_clients
    assert plan.best.power >= 0.8
    assert small_plan(power=0.95).best.num_clients > clients
    assert small_plan(delta=0.01).best.num_clients > clients
    assert small_plan(target="mean<=0.2").best.num_clients > clients
    assert small_plan(target="mean<=0.3", shift="chi2:0.02").requirement.number == rb.Number.of("mean@chi2:0.02")


@pytest.mark.slow
@pytest.mark.usefixtures("coarse_plans")
def test_the_frontier_falls_with_the_examples_and_the_costs_choose_on_it():
    sizes = (100, 5)
    dear_clients, dear_examples = (small_plan(num_examples=sizes, cost=cost) for cost in ((100.0, 0.0), (0.0, 1.0)))
    few, many = dear_clients.options
    assert (few.num_examples, many.num_examples) == (5, 100)
    assert many.num_clients < few.num_clients
    assert dear_clients.best == many
    assert dear_clients.best.cost == 100.0 * many.num_clients
    assert (dear_examples.best.num_examples, dear_examples.best.cost) == (5, 5.0 * few.num_clients)
    assert small_plan(num_examples=sizes).best._replace(cost=None) == many._replace(cost=None)


@pytest.mark.usefixtures("coarse_plans")
def test_what_there_is_is_compared_with_what_is_needed():
    too_few = small_plan(num_clients=9)
    enough = replace(too_few, at_hand=(Option(200, 40, 0.99),))
    assert too_few.at_hand[0].power < 0.8
    assert too_few.statement.startswith(f"You have 9 clients, you need {too_few.best.num_clients}: ")
    assert enough.statement.startswith("You have 200 clients, which is enough: ")
    for plan in (too_few, enough):
        assert "This is an estimate: the risks of clients are taken to be Beta-distributed" in plan.statement
        assert len(repr(plan)) < 200
        assert str(plan) == plan.statement
        assert json.loads(json.dumps(plan.to_dict(), allow_nan=False))["validity"] == "estimate"
        assert len(plan.to_frame()) == 1
        assert plan.plot().get_xlabel() == "clients"
    frontier = replace(too_few, options=(Option(30, 20, 0.81), too_few.best))
    assert frontier.plot().get_ylabel() == "clients"
    assert frontier != too_few == replace(too_few)
    assert "<svg" in frontier._repr_html_()


def test_the_noise_of_the_examples_is_taken_out_of_a_pilot():
    rng, law = np.random.default_rng(3), beta(3, 21)
    answers = rng.binomial(10, law.rvs(2_000, random_state=rng)) / 10
    (found, said), (wider, of_others) = (
        pilot_distribution(rb.ClientRisks(answers, 10, is_binary)) for is_binary in (True, False)
    )
    assert found.mean == pytest.approx(wider.mean, abs=1e-4) == answers.mean()
    assert spread(found) == pytest.approx(law.std(), abs=0.006)
    assert spread(wider) == pytest.approx(answers.std(), rel=0.01)
    assert "is taken out" in said[0]
    assert "is left, since the loss is not 0-1" in of_others[0]
    _, lines = pilot_distribution(rb.ClientRisks(answers, 10, answered_by="trainers"))
    assert any("helped to train" in line for line in lines)


def spread(found):
    return float(np.sqrt(found.weights @ (found.risks - found.mean) ** 2))


def test_the_truth_of_a_known_law_is_that_of_scipy():
    law = beta(3, 21)
    risks = rb.RiskDistribution.of_values(law.ppf((np.arange(4_000) + 0.5) / 4_000))
    share = law.sf(0.3)
    truths = {
        "mean<=0.5": law.mean(),
        "quantile:0.9<=0.5": law.ppf(0.9),
        "share:0.3<=0.5": share,
        "share:0.3@chi2:0.1<=0.5": share + np.sqrt(0.1 * share * (1 - share)),  # (q - p)² / (p(1 - p)) = 0.1
        "share:0.3@tv:0.1<=0.5": share + 0.1,
        "mean@tv:0<=0.5": law.mean(),
    }
    for text, truth in truths.items():
        assert Requirement.of(text).number.value(risks) == pytest.approx(truth, abs=1e-3), text


OF_PILOT = {"target": "mean>=0.8", "prior": None, "pilot": scores_of_two_kinds(3, 30)}
REFUSED = {
    "the truth fails": ({"target": "mean<=0.1"}, "it is not true of the assumed network, where the number is 0.12"),
    "no source": ({"prior": None}, "either a prior or a pilot, got none"),
    "two sources": ({"pilot": rb.ClientRisks([0.1, 0.3], 10)}, "either a prior or a pilot, got both"),
    "prior": ({"prior": "gamma:1:2"}, "prior 'gamma:1:2' cannot be read; write prior='beta:0.12:0.07'"),
    "percent": ({"prior": "beta:12:7"}, "needs a mean in (0, 1)"),
    "spread": ({"prior": "beta:0.1:0.5"}, "a standard deviation above 0 and below"),
    "no examples": ({"num_examples": None}, "num_examples must be given with a prior"),
    "examples": ({"num_examples": 0}, "num_examples must be a whole number >= 1, got"),
    "power": ({"power": 80}, "power must lie between delta = 0.1 and 1, got 80"),
    "delta": ({"delta": 5}, "delta must be in (0, 1)"),
    "shift of a measure of dispersion": ({"target": "gini<=0.3", "shift": "kl:0.1"}, "'gini@kl:0.1'"),
    "shift": ({"shift": "chi2"}, "cannot be read"),
    "cost": ({"cost": (1.0,)}, "cost must be two numbers >= 0"),
    "costs in words": ({"cost": ("a", "b")}, "of a client and of an example, not both 0, got ('a', 'b')"),
    "costs of two sizes": ({"cost": ([1, 2], 3)}, "cost must be two numbers >= 0"),
    "clients": ({"num_clients": 1}, "num_clients must be a whole number >= 2"),
    "equal pilot": ({"prior": None, "pilot": rb.ClientRisks([0.1] * 20, 10)}, "no difference between them beyond"),
    "a change of risks": ({"target": "change<=0.1"}, "'change' and 'harmed' are numbers of changes, got the risk"),
    "a shifted change of risks": ({"target": "harmed:0.2<=0.1", "shift": "kl:0.1"}, "numbers of changes, got the risk"),
    "a risk of changes": ({"prior": "change:0:0.02:0.1", "target": "gini<=0.1"}, "'gini' is of risks"),
    "too few numbers": ({"prior": "change:0:0.02"}, "cannot be read; write prior='change:MEAN:SD:DIFFER'"),
    "more change than differs": ({"prior": "change:0:0.2:0.1"}, "MEAN² + SD² must be below DIFFER²"),
    "a smaller old risk than differs": ({"prior": "change:0:0.02:0.1:0.04"}, "OLD from (DIFFER - MEAN)/2 to"),
    "binary changes": ({"prior": "change:0:0.02:0.1", "binary": True}, "binary is about risks"),
    "examples of a pilot": ({**OF_PILOT}, "keep their examples; leave num_examples out"),
    "cost of its examples": ({**OF_PILOT, "num_examples": None, "cost": (1, 1)}, "which is 0 where clients keep those"),
    "a limit of no score": (
        {**OF_PILOT, "num_examples": None, "target": "mean>=80"},
        "that is the range of the score",
    ),
    "an untrue pilot": ({**OF_PILOT, "num_examples": None, "target": "mean>=0.9"}, "where the number is 0.86"),
    "a share of a federation": ({"population": 55, "target": "share:0.3<=0.1"}, "write 'count:0.3@all:55<=5'"),
    "a population for a mean": ({"population": 55}, "population goes with next clients of the network itself"),
    "no one left to ask": (
        {"population": 21, "target": "count:0.3@next:20<=3"},
        "must leave 2 clients to ask beside the next 20",
    ),
    "more than there are": ({"num_clients": 55, "target": "count:0.3@all:55<=3"}, "num_clients must be at most 54"),
    "single examples": ({"prior": None, "pilot": rb.ClientRisks([0.0, 1.0], 1)}, "at least 2 examples"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_planned_is_refused_and_gives_no_number(changes, message):
    settings = {"target": "mean<=0.25", "prior": PRIOR, "num_examples": 40, "delta": 0.1} | changes
    with pytest.raises(ValueError, match=re.escape(message)):
        rb.plan(settings.pop("target"), **settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "remedy"),
    [
        ({"prior": "beta:0.12:0.05", "num_examples": 2, "target": "share:0.3<=0.05"}, "give each client more examples"),
        (
            {"pilot": rb.ClientChanges.from_counts([0, 1] * 9, [1, 0] * 9, 5), "target": "harmed:0.3<=0.2"},
            "a pilot with",
        ),
    ],
)
def test_what_no_number_of_clients_reaches_is_said_with_what_can_be_done(asked, remedy):
    with pytest.raises(ValueError, match=f"not even 4,096 clients .*{remedy}"):
        rb.plan(delta=0.1, **asked)


@pytest.mark.usefixtures("coarse_plans")
def test_the_command_prints_the_plan_of_the_library(tmp_path, capsys):
    figure = tmp_path / "plan.png"
    asked = ["--prior", PRIOR, "--num-examples", "40", "--delta", "0.1", "--num-clients", "9"]
    assert main(["plan", "mean<=0.25", *asked, "--plot", str(figure), "--json"]) == 0
    said, told = capsys.readouterr()
    assert json.loads(said) == small_plan(num_clients=9).to_dict()
    assert "clients with 40 examples each pass with probability about" in told
    assert figure.stat().st_size > 1_000
    assert main(["plan", "mean<=0.1", *asked]) == 2
    said, told = capsys.readouterr()
    assert said == ""
    assert "no number of clients makes it pass" in told
    table = tmp_path / "pilot.csv"
    table.write_text("loss,n\n" + "\n".join(f"{value},50" for value in (0.1, 0.2, 0.04, 0.12, 0.3, 0.08)))
    assert main(["plan", "mean<=0.4", "--pilot", str(table)]) == 2
    assert "--pilot-num-examples" in capsys.readouterr().err


def test_all_wrong_options_are_said_at_once(tmp_path, capsys):
    wrong = {
        "--delta": ["7"],
        "--power": ["3"],
        "--seed": ["-1"],
        "--cost": ["-1", "0"],
        "--num-clients": ["1"],
        "--num-examples": ["0"],
        "--population": ["30"],
        "--plot": ["figure.txt"],
    }
    table = tmp_path / "pilot.csv"
    table.write_text("auc\n0.5\n0.6\n")
    words = [word for option, values in wrong.items() for word in (option, *values)]
    column = "must have a column 'loss'"
    for source, more in (
        (["--prior", "beta:2:0.1"], ["a Beta distribution on [0, 1]"]),
        (["--pilot", str(table)], ["--pilot needs --pilot-num-examples", column]),
        (["--pilot", str(table), "--pilot-num-examples", "9"], [column]),
    ):
        assert main(["plan", "mean<=0.2", *source, *words]) == 2
        out, error = capsys.readouterr()
        lines = error.splitlines()
        rules = [f"{option.removeprefix('--').replace('-', '_')} " for option in wrong]
        starts = [line.removeprefix("riskband: ").removeprefix("--") for line in lines]
        assert all(sum(start.startswith(rule) for start in starts) == 1 for rule in rules), error
        assert all(each in error for each in more)
        assert len(lines) == len(wrong) + len(more)
        assert out == ""
    assert main(["plan", "mean<=2", "--prior", "beta:2:0.1", "--delta", "7"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 4  # and --num-examples is missing


@pytest.mark.usefixtures("coarse_plans")
def test_a_pilot_may_be_a_table(capsys):
    table = Path(__file__).parents[2] / "docs" / "examples" / "risks.csv"
    assert (
        main(["plan", "mean<=0.25", "--pilot", str(table), "--pilot-num-examples", "100", "--num-examples", "20"]) == 0
    )
    assert "the mean of the 200 clients of the pilot, 0.12" in capsys.readouterr().out


@pytest.fixture
def tables(tmp_path):
    files = [str(tmp_path / name) for name in ("old.csv", "new.csv", "auc.csv")]
    names = [f"h{k}" for k in range(30)]
    for file, column, values in (
        (files[0], "loss", [0.2] * 30),
        (files[1], "loss", [0.2] * 27 + [0.3] * 3),
        (files[2], "auc", [0.9] * 27 + [0.5] * 3),
    ):
        rows = (f"{name},{value},100" for name, value in zip(names, values, strict=True))
        Path(file).write_text(f"hospital,{column},n\n" + "\n".join(rows))
    of_changes = ["plan", "change<=0.1", "--pilot", *files[:2], "--client", "hospital", "--delta", "0.1"]
    return of_changes, ["plan", "quantile:0.2>=0.8", "--pilot", files[2], "--column", "auc", "--score", "AUC"]


@pytest.mark.usefixtures("coarse_plans")
def test_a_pilot_may_be_two_tables_or_one_of_scores(tables, capsys):
    of_changes, of_scores = tables
    changes = rb.ClientChanges([0.2] * 30, [0.2] * 27 + [0.3] * 3, 100)
    for asked, pilot, delta in (
        ([*of_changes, "--pilot-num-examples", "n"], changes, 0.1),
        ([*of_scores, "--higher-is-better"], scores_of_two_kinds(3, 30), 0.05),
    ):
        assert main([*asked, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["best"] == rb.plan(asked[1], pilot=pilot, delta=delta).best._asdict()


def test_a_pilot_that_is_not_read_is_said_and_gives_no_plan(tables, capsys):
    of_changes, of_scores = tables
    for asked, said in (
        (of_changes, ["--pilot needs --pilot-num-examples"]),
        ([*of_changes[:5], "--score", "AUC"], ["--score needs one --pilot", "--score needs --higher-is-better"]),
        ([*of_scores, "--higher-is-better", "--percent"], ["--percent needs losses"]),
        ([*of_changes[:5], of_scores[3], "--pilot-num-examples", "n"], ["an old and a new model, got 3"]),
        ([*of_changes[:5], "--pilot-num-examples", "n"], ["--client: the column by which rows match"]),
        ([*of_changes, "--pilot-num-examples", "m"], [f"{file} must have a column" for file in of_changes[3:5]]),
        (["plan", "mean<=0.2", "--prior", PRIOR, "--num-examples", "9", "--range", "0", "5"], ["--range need --score"]),
    ):
        assert main(asked) == 2
        error = capsys.readouterr().err
        assert all(each in error for each in said), error
