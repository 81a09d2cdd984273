"""A run with a target network: how far it is said to be, and what is checked there."""

from __future__ import annotations

import html
import json
import math

import numpy as np
import pytest

import riskband as rb
from riskband.cli import main
from riskband.models.evaluation import example_losses
from server.config import load_config
from server.problems import ConfigError
from server.run.ledger import read_ledger
from server.studies.target_network import target_network
from tests.one_voice import contradictions
from tests.server.running import printed, run_app
from worlds.population import Population, spec_from_config
from worlds.targets import target_changes, target_spec


@pytest.fixture(scope="module")
def found(tmp_path_factory, defaults):
    folder = tmp_path_factory.mktemp("target")
    changes = {"num_clients": 40, "num_unseen": 40, "training_epochs": 2, "affine_sigma": 0.05, "budgets": "0.1,1"}
    changes |= {"figure_format": "svg", "num_target_clients": 12}
    return run_app(folder, defaults, target="affine-sigma:0.8", **changes), folder


def test_a_target_network_is_in_the_report_and_in_the_figure(found):
    report, folder = found
    target = report["target"]
    assert (target["change"], target["num_clients"], len(target["risks"])) == ("affine-sigma:0.8", 40, 40)
    assert target["mean_risk"] == pytest.approx(np.mean(target["risks"]))
    assert target["mean_risk"] > report["unseen"]["mean_risk"] + 0.1
    assert "target network" in (folder / "band.svg").read_text()


def test_its_distance_is_an_estimate_and_a_lower_bound(found):
    report, _ = found
    for name, distance in report["target"]["divergence"].items():
        assert distance["validity"] == "certificate"
        assert distance["delta"] == pytest.approx(0.025 / 5)  # the certificates of the source have the other half
        assert distance["lower_bound"] > 0.03
        for bins in (10, 50):
            estimate = rb.divergence_estimate(
                report["unseen"]["risks"], report["target"]["risks"], divergence=name, bins=bins
            )
            assert distance[f"estimate_{bins}_bins"] == (estimate if math.isfinite(estimate) else None)


def test_certificates_are_checked_at_the_budgets_asked_and_at_those_measured(found):
    report, folder = found
    for name, distance in report["target"]["divergence"].items():
        checks = [check for check in report["target"]["checks"] if check["divergence"] == name]
        measured = [value for key, value in distance.items() if key not in ("delta", "validity") and value is not None]
        assert sorted(check["budget"] for check in checks) == sorted({0.1, 1.0, *measured})
        curve = rb.Certificate.load(folder / "certificates" / f"worst_case_cdf_{name}.json")
        observed = np.mean(np.array(report["target"]["risks"])[:, None] >= curve.axes["threshold"], axis=0)
        for budget, bound in zip(curve.axes["budget"], curve.value, strict=True):
            (check,) = [check for check in checks if check["budget"] == budget]
            inner = (observed > 0) & (observed < 1)
            assert check["cdf_smallest_margin"] == pytest.approx(np.min((bound - observed)[inner]))
            assert check["is_refuted"] == (budget < distance["lower_bound"])
            assert check["cdf_holds"] == bool(np.all(bound >= observed - 1e-12))


def test_few_of_its_clients_tighten_the_certificate_within_the_budget_and_all_share_delta(found):
    report, folder = found
    whole, certificates = report["config"]["delta"], report["certificates"]
    assert report["target"]["num_asked"] == 12
    assert sum(event["delta"] for event in report["findings"]["events"]) == pytest.approx(whole)
    page = (folder / "report.html").read_text()
    assert contradictions(report, page=page, terminal=printed(report), delta=whole) == []
    asked = [check for check in report["target"]["checks"] if check["budget_is"] == "asked"]
    assert len(asked) == 4
    for check in asked:
        name = f"mean@target_{check['divergence']}_{check['budget']:g}"
        certificate = rb.Certificate.load(folder / "certificates" / f"{name}.json")
        assert check["target_mean"] == certificate.value == certificates[name]["value"]
        assert check["target_mean_holds"] == (certificate.lower <= report["target"]["mean_risk"] <= certificate.value)
        estimate = report["target"]["divergence"][check["divergence"]]["estimate_10_bins"]
        assert check["target_mean_holds"] or estimate is None or check["budget"] < estimate  # what it assumes is false
        few = certificate.recipe["arguments"]["target"]["answers"]
        assert len(few["values"]) == 12
        assert rb.verify(json.loads((folder / "certificates" / f"{name}.json").read_text())).ok
        assert len(certificate.recipe["answers"]["values"]) == 40
    text = printed(report)
    heads = "within", "a budget", "mean risk at most", "the same with 12 of its clients", "its mean risk"
    assert [*heads, "means hold", "shares hold"] in [
        [cell.strip() for cell in line.split("┃")[1:-1]] for line in text.splitlines()
    ]
    assert "Target network, KL divergence from the source: at least" in text


def test_what_is_certified_there_is_for_the_budget_that_stands_beside_it(found):
    """By the duals of math §3.2, on grids, for the band that the answers give."""
    report, folder = found
    recipe = rb.Certificate.load(folder / "certificates" / "worst_case_cdf_kl.json").recipe
    answers = rb.ClientRisks(recipe["answers"]["values"], recipe["answers"]["num_examples"])
    law = rb.band(answers, delta=recipe["band"]["delta"], sides="two").distribution_for_means
    scales, shifts = np.geomspace(0.01, 10.0, 4001), np.linspace(-3.0, 1.0, 4001)
    moments = np.exp(law.risks / scales[:, None]) @ law.weights
    squares = np.maximum(law.risks - shifts[:, None], 0.0) ** 2 @ law.weights
    checks = report["target"]["checks"]
    assert {(check["divergence"], check["budget"]) for check in checks} >= {("kl", 0.1), ("chi2", 0.1), ("chi2", 1.0)}
    for check in checks:
        budget = check["budget"]
        expected = {
            "kl": np.min(scales * (budget + np.log(moments))),
            "chi2": np.min(shifts + np.sqrt((1.0 + budget) * squares)),
        }[check["divergence"]]
        assert check["worst_mean"] == pytest.approx(min(expected, 1.0), rel=1e-4)


def test_its_clients_have_exact_risks_and_streams_of_their_own(defaults):
    from protocol.models import build_model

    config = load_config({**defaults, "num-unseen": 3, "examples-per-client": 20, "target": "affine-sigma:0.15"})
    model = build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=0)
    target = target_network(config, model, change=config.to_run_config()["target"], num_asked=2)
    population = Population(target_spec(config.to_run_config(), target="affine-sigma:0.15"))
    client = population.distribution(2)
    exact = client.weights @ example_losses(model, client.x, client.y, loss="zero_one")
    assert target.risks[2] == pytest.approx(exact)
    assert np.array_equal(target.answers.num_examples, [20, 20])  # of three clients two are asked
    unseen = Population(spec_from_config(config.to_run_config(), network="unseen"))
    assert not np.array_equal(unseen.client(0).x, population.client(0).x)  # the same law, other clients


def test_what_a_target_may_be():
    assert target_changes("") == (False, {})
    assert target_changes("reversed, affine-sigma:0.3") == (True, {"affine-sigma": 0.3})
    for wrong in (
        "other",
        "affine-sigma",
        "affine-sigma:x",
        "affine-sigma:-1",
        "affine-sigma:1,affine-sigma:1",
        "seed:1",
    ):
        with pytest.raises(ValueError, match="give"):
            target_changes(wrong)
    with pytest.raises(ValueError, match="needs a resolution or colour shift"):
        target_spec({"dataset": "digits", "seed": 0, "examples-per-client": 5, "affine-sigma": 0.1,
                     "dirichlet-concentration": 1.0}, target="reversed")  # fmt: skip
    with pytest.raises(ValueError, match="must not be given with group-sigmas"):
        target_spec({"dataset": "digits", "seed": 0, "examples-per-client": 5, "affine-sigma": 0.1,
                     "dirichlet-concentration": 1.0, "group-sigmas": "0.1,0.2"}, target="affine-sigma:0.3")  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"target": "elsewhere"},
        {"target": "affine-sigma:0.3", "num-unseen": 0},
        {"target": "affine-sigma:0.3", "num-target-clients": 1},
        {"target": "affine-sigma:0.3", "num-unseen": 8, "num-target-clients": 9},
        {"target": "affine-sigma:0.3", "privacy": "laplace:1"},
        {"target": "affine-sigma:0.3", "strategy": "secure_histogram"},
    ],
)
def test_targets_that_cannot_be_are_refused(defaults, changes):
    with pytest.raises(ConfigError, match=r"target network|privacy"):
        load_config({**defaults, **changes})


def test_without_a_target_there_is_none(defaults, tmp_path):
    assert run_app(tmp_path, defaults)["target"] is None


IN_GROUPS = {"num_clients": 40, "num_unseen": 40, "training_epochs": 2, "budgets": "0.1,1", "figure_format": "svg"}
IN_GROUPS |= {"group_sigmas": "0.05,0.6", "affine_sigma": 0.0, "target": "group:sigma-0.6"}


@pytest.mark.parametrize("num_unseen", [40, 0])
def test_clients_of_a_target_network_are_asked_in_the_same_run_and_stand_beside_the_source(
    tmp_path, defaults, num_unseen
):
    report = run_app(tmp_path, defaults, **IN_GROUPS | {"num_unseen": num_unseen})
    target, certificates = report["target"], report["certificates"]
    answers = {answer.client_id: answer for answer in read_ledger(tmp_path / "ledger.jsonl")[1]}
    in_it = [each for each in answers.values() if each.group == "sigma-0.6"]
    assert report["network"]["num_answered"] == len(answers) == 40
    assert 2 <= target["num_asked"] == len(in_it) < 40
    mean = rb.Certificate.load(tmp_path / "certificates" / "mean.json")
    others = [each.risk for each in answers.values() if each not in in_it]
    assert sorted(mean.recipe["answers"]["values"]) == sorted(others)
    two = rb.Certificate.load(tmp_path / "certificates" / "mean@target_chi2_1.json")
    assert sorted(two.recipe["arguments"]["target"]["answers"]["values"]) == sorted(each.risk for each in in_it)
    assert sum(event["delta"] for event in report["findings"]["events"]) == pytest.approx(report["config"]["delta"])
    holds = [check["target_mean_holds"] for check in target["checks"] if check["budget_is"] == "asked"]
    if num_unseen:
        risks = np.array(report["unseen"]["risks"])
        assert len(risks) + target["num_clients"] == 40
        assert target["mean_risk"] == np.mean(target["risks"]) > risks.mean() + 0.1
        assert True in holds
    else:
        assert target["mean_risk"] is None
        assert holds == [None] * 4
    assert certificates["mean@target_chi2_1"]["value"] < 1.0
    page = (tmp_path / "report.html").read_text()
    assert contradictions(report, page=page, terminal=printed(report), delta=report["config"]["delta"]) == []
    assert main(["verify", str(tmp_path)]) == 0


@pytest.mark.parametrize("num_in_it", [0, 1])
def test_a_group_that_too_few_say_costs_nobody_the_report_of_the_others(tmp_path, defaults, num_in_it):
    """All were asked, and their budgets are spent; of the others their own risks are bounded, whoever is not there."""
    settings = {"num_clients": 30, "num_unseen": 0, "target": "group:west"}
    nodes = {k: {"group": "west" if k < num_in_it else "West"} for k in range(30)}
    report = run_app(tmp_path, defaults, node_configs=nodes, **settings)
    said = "NO TARGET NETWORK: fewer than two clients that answered are in the group 'west'"
    assert said in printed(report)
    assert said in html.unescape((tmp_path / "report.html").read_text())
    assert report["target"] is None
    answers = [each for each in read_ledger(tmp_path / "ledger.jsonl")[1] if each.group == "West"]
    recipe = rb.Certificate.load(tmp_path / "certificates" / "mean.json").recipe
    assert sorted(recipe["answers"]["values"]) == sorted(each.risk for each in answers)
    assert len(answers) == 30 - num_in_it
    # The target's half of delta is spent on nothing: which clients are left out depends on no risk, so all of it holds.
    assert sum(event["delta"] for event in report["findings"]["events"]) == pytest.approx(report["config"]["delta"] / 2)
    assert main(["verify", str(tmp_path)]) == 0


def test_without_a_source_there_is_no_report(tmp_path, defaults):
    nodes = {k: {"group": "west"} for k in range(29)}
    with pytest.raises(ValueError, match="outside of the group 'west', got 1"):
        run_app(tmp_path, defaults, node_configs=nodes, num_clients=30, num_unseen=0, target="group:west")


def test_a_group_that_a_simulation_does_not_make_is_refused_and_so_is_what_has_no_derivation(tmp_path, defaults):
    with pytest.raises(ConfigError, match=r"got 'group:sigma-7'; .* in this group, such as sigma-0\.3 of group-sigmas"):
        run_app(tmp_path / "none", defaults, **IN_GROUPS | {"target": "group:sigma-7"})
    for wrong in ({"missing": "worst"}, {"contamination": 1}, {"privacy": "laplace:1"}, {"target": "group:"}):
        with pytest.raises(ConfigError):
            run_app(tmp_path / "wrong", defaults, **IN_GROUPS | wrong)
