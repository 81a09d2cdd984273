"""The whole app with secure aggregation: the counts are those of the losses that it would have been told."""

from __future__ import annotations

import json

import numpy as np
import pytest

import riskband as rb
from riskband.answers.risks import default_eta
from riskband.cli import main
from server.config import load_config
from server.problems import ConfigError
from strategies.asking.query import QuorumError
from tests.server.running import printed, run_app, saved_certificates
from tests.strategies.network import name_of
from tests.strategies.secure_network import adding

NUM, SIZE, BINS = 12, 40, 20
SECURE = {"strategy": "secure_histogram", "histogram_bins": BINS}


@pytest.fixture(scope="module")
def plain(tmp_path_factory, defaults):
    """The losses of the same clients, told one by one."""
    folder = tmp_path_factory.mktemp("plain")
    run_app(folder, defaults)
    answers = json.loads((folder / "certificates" / "survival.json").read_text())["recipe"]["answers"]
    return rb.ClientRisks(answers["values"], answers["num_examples"], answers["binary"])


@pytest.mark.parametrize("sizes", ["equal", "private"])
def test_the_counts_are_those_of_the_plain_answers(tmp_path, defaults, plain, sizes):
    report = run_app(tmp_path, defaults, histogram_sizes=sizes, **SECURE)
    eta = None if sizes == "equal" else default_eta(NUM)
    edges = np.linspace(0.0, 1.0, BINS + 1)
    expected = rb.risk_histogram(plain.values, plain.num_examples, edges=edges, binary=True, eta=eta)
    assert report["secure_aggregation"]["counts"] == np.atleast_2d(expected).tolist()
    assert report["network"]["num_answered"] == NUM
    assert {entry["validity"] for entry in report["certificates"].values()} == {"certificate"}
    assert all(entry["check"]["holds"] for entry in report["certificates"].values())
    for path in saved_certificates(tmp_path):
        stored = json.loads(path.read_text())
        assert rb.verify(stored).ok
        assert "counts" in stored["recipe"]["answers"]
    ledger = (tmp_path / "ledger.jsonl").read_text().splitlines()
    assert len(ledger) == 2  # the header, and the sum: there is no answer to keep
    assert json.loads(ledger[1])["counts"] == np.atleast_2d(expected).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("has_record", [False, True])
def test_every_histogram_takes_one_value_of_the_budget(tmp_path, defaults, has_record):
    """Also with an answer record: the difference of two sums shows who is in one only."""

    def own(number):
        files = {"query-budget-file": str(tmp_path / f"{number}.sqlite")}
        files |= {"answer-record-file": files["query-budget-file"]} if has_record else {}
        return {"query-budget": 2, **files}

    configs = {number: own(number) for number in range(NUM)}
    first, second = (run_app(tmp_path / name, defaults, node_configs=configs, **SECURE) for name in ("a", "b"))
    assert first["secure_aggregation"] == second["secure_aggregation"]
    with pytest.raises(QuorumError, match="query budget of 2 values"):
        run_app(tmp_path / "c", defaults, node_configs=configs, **SECURE)
    with pytest.raises(QuorumError, match="query budget of 2 values"):
        run_app(tmp_path / "plain", defaults, node_configs=configs)


def test_clients_that_want_company_take_part_and_answer_nothing_else(tmp_path, defaults):
    configs = {number: {"secure-min-clients": NUM, "secure-complete-graph": True} for number in range(NUM)}
    report = run_app(tmp_path / "secure", defaults, node_configs=configs, **SECURE)
    assert report["network"]["num_answered"] == NUM
    with pytest.raises(QuorumError, match="secure histograms only"):
        run_app(tmp_path / "plain", defaults, node_configs=configs)


@pytest.mark.parametrize(
    "changes",
    [
        {"respect-query-budgets": "true"},
        {"privacy": "laplace:1"},
        {"histogram-sizes": "private", "local": "union"},
        {"histogram-sizes": "unknown"},
        {"histogram-bins": 0},
        {"secure-neighbours": 7},
        {"secure-group-size": 2},
    ],
    ids=str,
)
def test_settings_that_do_not_fit_are_refused(defaults, changes):
    with pytest.raises(ConfigError) as error:
        load_config({**defaults, "strategy": "secure_histogram", **changes})
    assert any(str(key) in problem for key in changes for problem in error.value.problems)


@pytest.mark.slow
def test_one_liar_is_named_with_its_group_and_a_resumed_run_asks_nobody_again(tmp_path, defaults):
    """Each pays for two histograms, and no more is left; so a question would be refused."""

    def own(number):
        return {"secure-min-clients": 4, "query-budget": 2, "query-budget-file": str(tmp_path / f"{number}.sqlite")}

    run = {"secure_group_size": 4, **SECURE}
    run |= {"behaviours": {5: adding({0: 1})}, "node_configs": {number: own(number) for number in range(NUM)}}
    report = run_app(tmp_path / "run", defaults, **run)
    (group,) = report["secure_aggregation"]["wrong_groups"]
    assert len(group) == 4
    assert name_of(5) in group
    assert [(each["client_id"], each["reason"]) for each in report["network"]["failures"]] == [
        (name, "wrong-sum") for name in group
    ]
    assert report["network"]["num_answered"] == NUM - 4
    assert {entry["validity"] for entry in report["certificates"].values()} == {"certificate"}
    for path in saved_certificates(tmp_path / "run"):
        stored = json.loads(path.read_text())
        assert rb.verify(stored).ok
        assert stored["recipe"]["answers"]["missing"] == "worst"
    assert f"{group[0]}, {group[1]}" in printed(report)
    assert main(["verify", str(tmp_path / "run")]) == 0

    resumed = run_app(tmp_path / "run", defaults, resume="true", **run)
    same = ("secure_aggregation", "network", "certificates", "findings")
    assert {key: resumed[key] for key in same} == {key: report[key] for key in same}
    with pytest.raises(QuorumError, match="query budget of 2 values"):
        run_app(tmp_path / "more", defaults, **run)
