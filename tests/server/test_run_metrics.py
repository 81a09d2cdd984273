"""Metrics of a run: what Prometheus reads while it lasts and afterwards, by the events that its log holds."""

from __future__ import annotations

import json
import re
import shutil
import socket
import urllib.request
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

import riskband as rb
from riskband.cli import main as command
from riskband.flower.testing import Delivery
from server.problems import ConfigError
from server.run.folder import ResultFolder, read_events
from server.run.metrics import METRICS, RunMetrics
from strategies.asking.query import QuorumError
from tests.prometheus import asked, free_port, prometheus, served
from tests.server.running import raises, run_app
from tests.waiting import wait_until

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "riskband.json"
Samples = Mapping[tuple[str, ...], float]


def scraped(port: int, address: str = "127.0.0.1") -> str:
    with urllib.request.urlopen(f"http://{address}:{port}/metrics", timeout=10) as page:
        text: str = page.read().decode()
        return text


def samples(text: str) -> Samples:
    """By name and labels but that of the run, as the client library's own parser reads them."""
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert {sample.labels.pop("run") for sample in found} == {"1"}
    return {(sample.name, *sample.labels.values()): sample.value for sample in found}


def test_metrics_are_served_while_the_run_lasts_and_are_a_file_afterwards(
    tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    port, seen = free_port(), []

    def look(message: Any, answer: Any) -> list[Delivery]:
        seen.append(scraped(port))
        return [Delivery(answer(message))]

    folder, budget = tmp_path / "out", {"query-budget": 7, "query-budget-file": str(tmp_path / "budgets")}
    wrong_name, asks = {3: {"client-id": "hospital-a"}, 4: budget}, {"respect_query_budgets": "true", "quorum": 0.8}
    behaviours = {2: raises, 5: look}
    report = run_app(folder, defaults, behaviours=behaviours, node_configs=wrong_name, metrics_port=port, **asks)

    hello, asked = (samples(text) for text in seen)
    assert hello["riskband_messages_sent_total", "query.hello"] == 12
    assert ("riskband_messages_sent_total", "query.loss") not in hello
    assert asked["riskband_messages_sent_total", "query.loss"] == 10
    with pytest.raises(OSError, match="refused"):
        scraped(port)

    after, metrics = samples((folder / "metrics.prom").read_text()), report["metrics"]
    events = Counter(event["event"] for event in read_events(folder / "events.jsonl"))
    answers = report["network"]["num_answered"]
    assert 0 <= asked["riskband_answers",] < after["riskband_answers",] == events["answer_accepted"] == answers == 10
    assert after["riskband_answer_seconds_count",] == answers
    took = report["timing"]["seconds"]["answers"]
    assert 0.0 < after["riskband_answer_seconds_sum",] <= answers * took
    failures = Counter(each["reason"] for each in report["network"]["failures"])
    reasons = {name[1]: value for name, value in after.items() if name[0] == "riskband_failures"}
    assert reasons == failures == {"client-raised": 1, "unknown-client": 1}
    assert after["riskband_bytes_total", "sent"] == metrics["bytes_sent"]
    assert after["riskband_bytes_total", "received"] == metrics["bytes_received"]
    by_type = {kind: each["num_messages"] for kind, each in metrics["by_type"].items()}
    assert {name[1]: value for name, value in after.items() if name[0] == "riskband_messages_sent_total"} == by_type
    assert after["riskband_budget_left_bucket", "5.0"] == 0
    assert after["riskband_budget_left_bucket", "10.0"] == after["riskband_budget_left_count",] == 1
    assert after["riskband_runs_ended_total", "completed"] == 1


def test_a_run_that_failed_says_why_and_the_resumed_one_counts_the_answers_that_it_had(
    tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    settings = {"num_unseen": 0, "metrics_port": free_port()}
    with pytest.raises(QuorumError):
        run_app(tmp_path, defaults, behaviours=dict.fromkeys(range(4), raises), num_nodes=11, **settings)
    found = samples((tmp_path / "metrics.prom").read_text())
    assert (found["riskband_answers",], found["riskband_failures", "client-raised"]) == (7, 4)
    assert found["riskband_failures", "node-missing"] == 1  # which is known in the end alone
    assert found["riskband_runs_ended_total", "failed"] == 1

    run_app(tmp_path, defaults, resume="true", behaviours={0: raises}, **settings)
    found = samples((tmp_path / "metrics.prom").read_text())
    assert (found["riskband_answers",], found["riskband_answer_seconds_count",]) == (11, 4)
    assert found["riskband_failures", "client-raised"] == 1
    assert ("riskband_failures", "node-missing") not in found


def test_seconds_of_an_answer_are_those_since_it_was_asked_for() -> None:
    metrics = RunMetrics("1")
    asked = {"event": "round_asked", "type": "query.loss", "num_messages": 2, "bytes_sent": 5}
    for second, event in ((0, asked), (3, {"event": "answer_accepted"}), (45, {"event": "answer_accepted"})):
        metrics.count({"time": f"2026-01-01T00:00:{second:02d}+00:00", **event})
    found = samples(generate_latest(metrics.registry).decode())
    limits = {name[1]: value for name, value in found.items() if name[0] == "riskband_answer_seconds_bucket"}
    assert [limits[each] for each in ("2.0", "5.0", "30.0", "60.0", "+Inf")] == [0, 1, 1, 2, 2]
    assert found["riskband_answer_seconds_sum",] == 48


def test_a_port_that_is_taken_or_an_address_of_others_is_refused_in_words(
    tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"metrics-port {port} at 127.0.0.1 must be free, got .*in use"):
            run_app(tmp_path, defaults, metrics_port=port)
    assert "must be free" in json.loads((tmp_path / "failed.json").read_text())["reason"]
    assert not (tmp_path / "ledger.jsonl").exists()  # nobody was asked


def test_from_other_machines_nothing_is_read_unless_that_is_said(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    """127.0.0.2 stands for another address of this machine."""
    port, read = free_port(), []

    def look(message: Any, answer: Any) -> list[Delivery]:
        for address in ("127.0.0.1", "127.0.0.2"):
            try:
                read.append(bool(scraped(port, address)))
            except OSError:
                read.append(False)
        return [Delivery(answer(message))]

    for address in ({}, {"metrics_address": "0.0.0.0"}):
        run_app(tmp_path, defaults, behaviours={1: look}, num_unseen=0, metrics_port=port, **address)
    assert read == [True, False, True, True]


def test_nothing_listens_unless_it_is_asked_for(defaults: Mapping[str, Any]) -> None:
    """And nothing is written then: tests/server/test_app.py knows all files of a run."""
    assert (defaults["metrics-port"], defaults["metrics-address"]) == (0, "127.0.0.1")


def test_the_next_run_removes_the_file(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path)
    folder.clear()
    with folder.writing("metrics.prom") as path:
        path.write_text("riskband_answers 1\n")
    folder.clear()
    assert not (tmp_path / "metrics.prom").exists()


# The dashboard.

QUERIES = [
    target["expr"].replace("$run", ".*")
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    for target in panel["targets"]
]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, defaults: Mapping[str, Any]) -> Path:
    """What a run with failures and budgets left, and what `riskband monitor` wrote of further clients."""
    folder = tmp_path_factory.mktemp("exported")
    budget = {4: {"query-budget": 7, "query-budget-file": str(folder / "budgets")}}
    settings = {"num_unseen": 0, "respect_query_budgets": "true", "metrics_port": free_port()}
    run_app(folder, defaults, behaviours={2: raises}, node_configs=budget, **settings)
    (folder / "fleet.csv").write_text("client,loss\n" + "".join(f"c{k},0.9\n" for k in range(40)))
    before = folder / "before.json"
    rb.mean_bound(rb.ClientRisks([0.1, 0.2] * 50, 100), delta=0.05).save(before)
    options = ["--num-examples", "100", "--prometheus", str(folder / "monitor.prom")]
    assert command(["monitor", str(before), str(folder / "fleet.csv"), *options]) == 4
    return folder


def names_in(text: str) -> set[str]:
    return {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}


def test_what_the_monitor_found_is_a_file_for_prometheus(exported: Path) -> None:
    families = text_string_to_metric_families((exported / "monitor.prom").read_text())
    found = {sample.name: sample for family in families for sample in family.samples}
    assert {name: sample.value for name, sample in found.items() if "e_value" not in name} == {
        "riskband_monitor_alarm": 1,
        "riskband_monitor_clients": 40,
    }
    assert found["riskband_monitor_e_value"].value >= 20
    assert all(sample.labels == {"answers": "fleet.csv"} for sample in found.values())


def test_every_query_of_the_dashboard_is_about_a_metric_that_is_exported(exported: Path) -> None:
    found = names_in((exported / "metrics.prom").read_text() + (exported / "monitor.prom").read_text())
    named = {name for query in QUERIES for name in re.findall(r"riskband_\w+", query)}
    assert named <= found
    # And every metric is shown, but for the parts of a histogram, and how many clients the monitor has.
    shown = {name for name in found if not name.endswith(("_count", "_sum", "_created"))}
    assert shown - named == {"riskband_monitor_clients"}
    assert {f"riskband_{name}" for name in METRICS} <= {re.sub("_(total|bucket)$", "", name) for name in shown}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed (apt install prometheus)")
def test_prometheus_has_an_answer_to_every_query_of_the_dashboard(exported: Path, tmp_path: Path) -> None:
    with served(exported) as port, prometheus(tmp_path, {"/metrics.prom": port, "/monitor.prom": port}) as address:
        for query in QUERIES:
            wait_until(lambda query=query: asked(address, query), timeout=30, what=lambda query=query: query)
        (median,) = asked(address, QUERIES[3])
        assert 0.0 <= float(median["value"][1]) < 60.0
        left = asked(address, next(query for query in QUERIES if "budget_left" in query))
        assert {each["metric"]["le"]: each["value"][1] for each in left}["10.0"] == "1"


def test_the_dashboard_is_whole() -> None:
    """What Grafana needs to import it: ids that differ, panels that do not overlap, a data source to choose."""
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) == 8
    cells = Counter(
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    )
    assert set(cells.values()) == {1}
    assert max(x for x, _ in cells) == 23  # Grafana's grid has 24 columns
    variables = {each["name"] for each in dashboard["templating"]["list"]}
    assert variables == {"datasource", "run"}
    assert all(target["datasource"]["uid"] == "${datasource}" for panel in panels for target in panel["targets"])
