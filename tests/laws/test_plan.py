"""Plans: the power against closed forms and simulation, what a plan is made of, and what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import beta, binom

import riskband as rb
from papers.benchmarks.plan import Setting, simulated_power
from riskband.cli import main
from riskband.worst_cases.planning import Option, pilot_distribution
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


@pytest.mark.parametrize(("shift", "limit"), [(None, 4), ("chi2:0.05", 7)])
def test_power_for_next_clients_is_a_binomial_sum(shift, limit):
    """At most so many of those that answer may measure more; they are the clients of risk 1."""
    plan = rb.plan(f"next:10:0.5<={limit}", shift=shift, prior=ZERO_OR_ONE, num_examples=50, delta=0.1, num_clients=12)
    within = {} if shift is None else {"divergence": "chi2", "budget": 0.05}
    assert plan.truth == pytest.approx(1.0 if shift is None else 10 * rb.binary_worst_case(0.1, **within))
    for option in {plan.best, *plan.at_hand}:
        size, counts = option.num_clients, np.arange(option.num_clients + 1)
        answers = [rb.ClientRisks(np.repeat([1.0, 0.0], [n, size - n]), 50, True) for n in counts]
        is_sure = [rb.next_clients(each, 10, above=0.5, delta=0.1, **within).value <= limit for each in answers]
        assert option.power == pytest.approx(binom.pmf(counts, size, 0.1) @ is_sure, abs=0.02)
    with pytest.raises(ValueError, match=r"not even 4,096 clients .*; the number is 0.1 on average if"):
        rb.plan("next:1:0.5<=0", prior=ZERO_OR_ONE, num_examples=50, delta=0.1)


def passes(num_failing, num_clients):
    answers = rb.ClientRisks([1.0] * num_failing + [0.0] * (num_clients - num_failing), 50, True)
    return rb.bound(answers, "share:0.5", delta=0.1).upper <= 0.25


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [
        Setting("mean<=0.16", 0.125, 0.066, 20),
        Setting("share:0.3<=0.2", 0.125, 0.066, 50, delta=0.1),
        Setting("worst_mean:kl:0.1<=0.4", 0.125, 0.066, 50, delta=0.1),
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
def test_the_same_seed_gives_the_same_plan_and_other_settings_give_what_they_should():
    plan = small_plan()
    assert plan == rb.plan("mean<=0.25", prior=PRIOR, num_examples=40, delta=0.1)
    assert plan != small_plan(seed=1)
    assert abs(small_plan(seed=1).best.num_clients - plan.best.num_clients) <= 2
    clients = plan.best.num_clients
    assert plan.best.power >= 0.8
    assert small_plan(power=0.95).best.num_clients > clients
    assert small_plan(delta=0.01).best.num_clients > clients
    assert small_plan(target="mean<=0.2").best.num_clients > clients
    assert small_plan(target="mean<=0.3", shift="chi2:0.02").requirement.name == "worst_mean:chi2:0.02"


@pytest.mark.slow
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
        "worst_share:0.3:chi2:0.1<=0.5": share + np.sqrt(0.1 * share * (1 - share)),  # (q - p)² / (p(1 - p)) = 0.1
        "worst_share:0.3:tv:0.1<=0.5": share + 0.1,
        "worst_mean:tv:0<=0.5": law.mean(),
    }
    for text, truth in truths.items():
        assert Requirement.of(text).number.value(risks) == pytest.approx(truth, abs=1e-3), text


REFUSED = {
    "the truth fails": ({"target": "mean<=0.1"}, "it is not true of the assumed network, where the number is 0.12"),
    "no source": ({"prior": None}, "either a prior or a pilot, got none"),
    "two sources": ({"pilot": rb.ClientRisks([0.1, 0.3], 10)}, "either a prior or a pilot, got both"),
    "prior": ({"prior": "gamma:1:2"}, "prior 'gamma:1:2' cannot be read; write prior='beta:MEAN:SD'"),
    "percent": ({"prior": "beta:12:7"}, "needs a mean in (0, 1)"),
    "spread": ({"prior": "beta:0.1:0.5"}, "a standard deviation above 0 and below"),
    "no examples": ({"num_examples": None}, "num_examples must be given with a prior"),
    "examples": ({"num_examples": 0}, "num_examples must be a whole number >= 1, got"),
    "power": ({"power": 80}, "power must lie between delta = 0.1 and 1, got 80"),
    "delta": ({"delta": 5}, "delta must be in (0, 1)"),
    "shift of a quantile": ({"target": "quantile:0.9<=0.3", "shift": "kl:0.1"}, "write 'share:0.3<=0.1' for"),
    "shift": ({"shift": "chi2"}, "cannot be read"),
    "cost": ({"cost": (1.0,)}, "cost must be two numbers >= 0"),
    "costs in words": ({"cost": ("a", "b")}, "of a client and of an example, not both 0, got ('a', 'b')"),
    "costs of two sizes": ({"cost": ([1, 2], 3)}, "cost must be two numbers >= 0"),
    "clients": ({"num_clients": 1}, "num_clients must be a whole number >= 2"),
    "equal pilot": ({"prior": None, "pilot": rb.ClientRisks([0.1] * 20, 10)}, "no difference between them beyond"),
    "single examples": ({"prior": None, "pilot": rb.ClientRisks([0.0, 1.0], 1)}, "at least 2 examples"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_planned_is_refused_and_gives_no_number(changes, message):
    settings = {"target": "mean<=0.25", "prior": PRIOR, "num_examples": 40, "delta": 0.1} | changes
    with pytest.raises(ValueError, match=re.escape(message)):
        rb.plan(settings.pop("target"), **settings)


@pytest.mark.slow
def test_what_no_number_of_clients_reaches_is_said():
    with pytest.raises(ValueError, match="not even 4,096 clients with 2 examples each"):
        rb.plan("share:0.3<=0.05", prior="beta:0.12:0.05", num_examples=2, delta=0.1)


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


@pytest.mark.slow
def test_a_pilot_may_be_a_table(capsys):
    table = Path(__file__).parents[2] / "docs" / "examples" / "risks.csv"
    assert (
        main(["plan", "mean<=0.25", "--pilot", str(table), "--pilot-num-examples", "100", "--num-examples", "20"]) == 0
    )
    assert "the mean of the 200 clients of the pilot, 0.12" in capsys.readouterr().out
