"""The whole app, ServerApp and ClientApps, over `InProcessGrid`: what a run writes, and when it refuses to."""

from __future__ import annotations

import html
import json
import re
import threading
import tomllib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import riskband as rb
from protocol.models import build_model, save_checkpoint
from riskband.answers.responses import FRESH_CLIENTS
from riskband.cli import main
from riskband.models.evaluation import example_losses, mean_loss
from riskband.wording import TRAINERS_ANSWERED
from server.app import _of_simulation
from server.config import load_config
from server.problems import ConfigError
from server.run.folder import read_events
from server.run.ledger import read_ledger
from server.studies import STUDIES
from server.training import TrainingError, prepare_model
from strategies.asking.query import QuorumError
from tests.one_voice import contradictions
from tests.sampling import every
from tests.server.conftest import PROJECT
from tests.server.running import printed, raises, run_app, saved_certificates
from worlds.population import Population, spec_from_config

FINISHED = {"figure_format": "png,svg"}


def test_of_few_clients_the_next_one_stands_beside_what_delta_pays_for(
    finished: Path, tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    """The largest of twelve is below the next one with probability 1/13, whatever clients measure."""
    report = json.loads((finished / "report.json").read_text())
    page, table = (finished / "report.html").read_text(), printed(report)
    largest = max(answer.risk for answer in read_ledger(finished / "ledger.jsonl")[1])
    (name,) = report["findings"]["beside"]
    entry = report["certificates"][name]
    assert (name, entry["value"], entry["delta"]) == ("next_client", largest, pytest.approx(1 / 13))
    assert report["findings"]["delta"] == 0.05
    assert contradictions(report, page=page, terminal=table, delta=0.05) == []
    beside_itself = {**report, "findings": {**report["findings"], "beside": ["mean"]}}
    assert contradictions(beside_itself, page=page, delta=0.05) != []
    for text in (page, table):
        assert "With probability at least 0.95 all of this holds together (delta = 0.05, shared among 5" in text
        assert re.search(r"nine in ten unseen clients have needs 47 clients or more .* 29 if it alone is asked", text)
    assert f"the risk that the next client would measure is at most {largest:.4f}" in page
    assert re.search(rf"The risk that the next client would measure .* {largest:.3f} .* beside: 0\.077, ", table)
    asked = run_app(tmp_path, defaults, require="mean<=0.9")
    assert asked["findings"]["delta"] == pytest.approx(0.05)
    assert "next_client" not in asked["certificates"]


def test_everything_lands_in_the_folder(finished: Path) -> None:
    report = json.loads((finished / "report.json").read_text())
    assert report["network"]["num_answered"] == 12
    assert report["network"]["failures"] == []
    worst_cases = {f"worst_case_{kind}_{name}" for kind in ("mean", "cdf") for name in ("kl", "chi2")}
    assert set(report["certificates"]) == {"next_client", "mean", "survival", "share"} | worst_cases
    events = {name: entry["event"] for name, entry in report["certificates"].items()}
    assert events == {name: "band" if "cdf" in name or name == "survival" else "own" for name in events}
    assert report["certificates"]["share"]["axes"] == {"threshold": [0.3]}
    assert {path.name for path in (finished / "certificates").iterdir()} == {
        f"{name}.json" for name in report["certificates"]
    }
    assert {path.name for path in finished.iterdir()} == {
        "report.json",
        "report.html",
        "ledger.jsonl",
        "events.jsonl",
        ".riskband.files",
        "certificates",
        "band.png",
        "band.svg",
    }


def test_every_saved_certificate_verifies_and_a_changed_one_does_not(finished: Path) -> None:
    for path in saved_certificates(finished):
        assert rb.verify(rb.Certificate.load(path)).ok
    changed = json.loads((finished / "certificates" / "mean.json").read_text())
    changed["value"] -= 0.01
    assert not rb.verify(rb.Certificate.from_dict(changed)).ok


def test_the_ledger_and_the_certificates_hold_the_same_answers(finished: Path) -> None:
    report = json.loads((finished / "report.json").read_text())
    header, answers = read_ledger(finished / "ledger.jsonl")
    by_name = {answer.client_id: answer.risk for answer in answers}
    recipe = json.loads((finished / "certificates" / "survival.json").read_text())["recipe"]
    assert [by_name[name] for name in report["network"]["client_ids"]] == recipe["answers"]["values"]
    assert header["hashes"] == report["hashes"]


def test_choices_were_recorded_before_any_client_was_asked_and_stand_in_the_certificates(finished: Path) -> None:
    report = json.loads((finished / "report.json").read_text())
    recorded = datetime.fromisoformat(report["timing"]["configuration_recorded"])
    asked = next(event for event in read_events(finished / "events.jsonl") if event["event"] == "round_asked")
    assert recorded <= datetime.fromisoformat(asked["time"])
    assert read_ledger(finished / "ledger.jsonl")[0]["config"]["seed"] == report["seed"]
    mean = report["certificates"]["mean"]
    assert mean["method"] == "betting"
    assert f"chosen before any answer was seen: seed {report['seed']}" in mean["assumptions"]


def test_the_same_seed_gives_the_same_bytes_whatever_the_network_does(
    finished: Path, tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    run_app(tmp_path, defaults, grid_seed=1, figure_format="png,svg")
    first, second = (json.loads((folder / "report.json").read_text()) for folder in (finished, tmp_path))
    del first["timing"], second["timing"]
    assert json.dumps(first) == json.dumps(second)
    first_page, second_page = (without_time((folder / "report.html").read_text()) for folder in (finished, tmp_path))
    assert first_page == second_page
    for name in (
        "band.png",
        "band.svg",
        *(f"certificates/{name}.json" for name in first["certificates"]),
    ):
        assert (finished / name).read_bytes() == (tmp_path / name).read_bytes(), name


def without_time(page: str) -> str:
    """A page without when its configuration was recorded, and without the two hashes of what has this in it."""
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:]+\+00:00|(?<=SHA-256 )(<code>)?\w{64}|(?<=style-src ')sha256-[^']+", "", page)


def test_the_page_says_what_the_run_knows_and_its_record_answers_what_it_can(
    tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    report = run_app(tmp_path, defaults, about="author=A. Turing,purpose=release of version 7", require="mean<=0.9")
    page, recorded = (tmp_path / "report.html").read_text(), report["timing"]["configuration_recorded"]
    known = {"Hash of the model": report["hashes"]["model"], "Data": "digits", "Date": recorded}
    for name, text in {**known, "Author": "A. Turing", "Purpose": "release of version 7"}.items():
        assert f"<dt>{name}</dt><dd>{text}</dd>" in page
    assert "Not stated" not in page
    table, _, questions = page.partition("Answered by the record of the run.")[2].partition("</table>")
    answer = f"It is fixed in the run's configuration, recorded at {recorded}, before any client was asked."
    assert html.unescape(table).count(f"<td>{answer}</td>") == table.count('<th scope="row">') == 3
    assert "requirements mean&lt;=0.9" in table
    assert "Did every client report" in questions
    assert "chosen before any answer was seen" not in questions.split("<script")[0].split("All ")[0]
    assert main(["verify", str(tmp_path / "report.html")]) == 0


def test_another_seed_gives_another_model_and_other_answers(
    finished: Path, tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    report = run_app(tmp_path, defaults, seed=1)
    first = json.loads((finished / "report.json").read_text())
    assert report["hashes"]["model"] != first["hashes"]["model"]
    assert report["network"]["mean_empirical_risk"] != first["network"]["mean_empirical_risk"]


def test_failed_clients_are_counted_and_the_rest_is_certified(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    report = run_app(tmp_path, defaults, behaviours={2: raises, 7: raises}, quorum=0.8)
    network = report["network"]
    assert (network["num_asked"], network["num_answered"], network["num_failed"]) == (12, 10, 2)
    assert {failure["reason"] for failure in network["failures"]} == {"client-raised"}
    assert network["clients_without_answer"] == ["client-00002", "client-00007"]
    assert len(network["client_ids"]) == 10


def test_a_client_that_hangs_is_missing_and_the_others_say_what_they_say_without_it(
    tmp_path: Path, defaults: Mapping[str, Any], idle_clock: object
) -> None:
    let_go = threading.Event()
    few = {"quorum": 0.8, "reply_timeout": 4.0, "num_unseen": 0}

    def hang(message: Any, answer: Any) -> list[Any]:
        let_go.wait()
        return []

    hung = run_app(tmp_path / "hung", defaults, behaviours={11: hang}, **few)
    let_go.set()
    silent = run_app(tmp_path / "silent", defaults, behaviours={11: lambda *_: []}, **few)
    assert hung["network"] == silent["network"]
    assert [each["reason"] for each in hung["network"]["failures"]] == ["no-reply"]
    one, other = ((tmp_path / name / "certificates" / "mean.json").read_bytes() for name in ("hung", "silent"))
    assert one == other


def test_a_client_with_a_name_of_its_own_is_only_known_where_any_name_is(
    tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    visitor = {3: {"client-id": "hospital-a"}}
    numbered = run_app(tmp_path, defaults, node_configs=visitor, quorum=0.8)["network"]
    assert [(f["client_id"], f["reason"]) for f in numbered["failures"]] == [("hospital-a", "unknown-client")]
    assert numbered["clients_without_answer"] == ["client-00003"]
    free = run_app(tmp_path, defaults, node_configs=visitor, client_ids="any")["network"]
    assert free["failures"] == []
    assert "hospital-a" in free["client_ids"]
    assert free["clients_without_answer"] is None


def test_below_quorum_the_run_fails_and_keeps_what_it_has(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    with pytest.raises(QuorumError):
        run_app(tmp_path, defaults, behaviours=dict.fromkeys(range(4), raises), quorum=0.9)
    assert not (tmp_path / "report.json").exists()
    assert not (tmp_path / "progress.json").exists()
    failure = json.loads((tmp_path / "failed.json").read_text())
    assert failure["error"] == "QuorumError"
    assert "8" in failure["reason"]
    assert len(read_ledger(tmp_path / "ledger.jsonl")[1]) == 8


def test_a_new_run_replaces_the_results_but_keeps_the_answers(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    run_app(tmp_path, defaults)
    with pytest.raises(QuorumError):
        run_app(tmp_path, defaults, num_nodes=3)
    assert not (tmp_path / "report.json").exists()
    assert list((tmp_path / "certificates").iterdir()) == []
    assert len(read_ledger(tmp_path / "ledger-1.jsonl")[1]) == 12


def test_without_unseen_clients_there_is_no_check(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    report = run_app(tmp_path, defaults, num_unseen=0)
    assert report["unseen"]["num_clients"] == 0
    assert all(entry["check"] is None for entry in report["certificates"].values())


@pytest.mark.parametrize(
    "local", ["marginal", "counted", *(pytest.param(name, marks=pytest.mark.slow) for name in ("union", "observed"))]
)
@pytest.mark.parametrize("loss", ["zero_one", pytest.param("brier", marks=pytest.mark.slow)])
def test_certificates_hold_on_unseen_clients(
    tmp_path: Path, defaults: Mapping[str, Any], local: str, loss: str
) -> None:
    report = run_app(tmp_path, defaults, local=local, loss=loss, num_clients=40, num_unseen=40, delta=0.01)
    assert all(entry["check"]["holds"] for name, entry in report["certificates"].items() if name != "next_client")


@pytest.mark.parametrize(
    "name",
    ["resolution", *(pytest.param(name, marks=pytest.mark.slow) for name in ("colour", "rotation", "row-affine"))],
)
def test_clients_of_the_scenarios_are_those_of_their_population(
    tmp_path: Path, defaults: Mapping[str, Any], name: str
) -> None:
    scenario = tomllib.loads((PROJECT / "simulations" / "scenarios" / f"{name}.toml").read_text())
    changes = {key.replace("-", "_"): value for key, value in scenario.items()}
    changes |= {"num_clients": 20, "num_unseen": 4, "delta": 0.01, "examples_per_client": 400}
    report = run_app(tmp_path, defaults, **changes)
    assert all(entry["check"]["holds"] for name, entry in report["certificates"].items() if name != "next_client")
    config = load_config({**defaults, **report["config"]})
    model = prepare_model(config, grid=None)
    source = Population(spec_from_config(config.to_run_config()))
    answered = {answer.client_id: answer.risk for answer in read_ledger(tmp_path / "ledger.jsonl")[1]}
    for k in range(3):
        held = source.client(k)
        assert answered[f"client-{k:05d}"] == mean_loss(model, held.x, held.y, loss="zero_one")[0]
    unseen = Population(spec_from_config(config.to_run_config(), network="unseen"))
    laws = [unseen.distribution(k) for k in range(2)]
    exact = [law.weights @ example_losses(model, law.x, law.y, loss="zero_one") for law in laws]
    np.testing.assert_allclose(report["unseen"]["risks"][:2], exact, atol=1e-9)


def test_a_shift_that_does_not_fit_the_images_is_refused_before_anybody_is_asked(
    tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    with pytest.raises(ValueError, match="images of three channels, got 1; leave the shift of colours out"):
        run_app(tmp_path, defaults, colour_alphas="0.1,0.3,0.7,1")
    assert not (tmp_path / "ledger.jsonl").exists()


def test_federated_training_does_not_depend_on_the_order_of_replies(
    tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    hashes = [
        run_app(tmp_path / str(seed), defaults, grid_seed=seed, training="fedavg", training_rounds=2)["hashes"]
        for seed in (0, 1)
    ]
    assert hashes[0] == hashes[1]


def test_the_clients_that_train_are_others_than_those_that_answer(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    fresh, trainers = (
        run_app(tmp_path / who, defaults, training="fedavg", training_rounds=1, num_unseen=0, answered_by=who)
        for who in ("fresh", "trainers")
    )
    assert fresh["hashes"]["model"] != trainers["hashes"]["model"]  # the same clients answer, others have trained
    assert [fresh["network"]["answered_by"], trainers["network"]["answered_by"]] == ["fresh", "trainers"]
    assert {entry["validity"] for entry in fresh["certificates"].values()} == {"certificate"}
    assert all(FRESH_CLIENTS in entry["assumptions"] for entry in fresh["certificates"].values())
    assert all("certified" in each["statement"] for each in fresh["findings"]["breakdowns"])
    assert {entry["validity"] for entry in trainers["certificates"].values()} == {"estimate"}
    assert all(TRAINERS_ANSWERED in entry["assumptions"] for entry in trainers["certificates"].values())
    assert all("estimated" in each["statement"] for each in trainers["findings"]["breakdowns"])


@pytest.mark.parametrize("strategy", every("study", STUDIES))
def test_from_clients_that_trained_every_strategy_makes_estimates(
    tmp_path: Path, defaults: Mapping[str, Any], strategy: str
) -> None:
    settings: dict[str, Any] = {"strategy": strategy, "candidate_epochs": "", "cost_budgets": "0,1"}
    settings |= {"num_radii": 3, "num_multipliers": 2, "histogram_bins": 10, "secure_neighbours": 10, "num_unseen": 0}
    settings |= {"old_model": "local"}
    report = run_app(tmp_path, defaults, answered_by="trainers", figure_format="svg", **settings)
    assert {entry["validity"] for entry in report["certificates"].values()} == {"estimate"}
    assert all(TRAINERS_ANSWERED in entry["assumptions"] for entry in report["certificates"].values())
    for path in saved_certificates(tmp_path):
        assert rb.verify(json.loads(path.read_text())).ok


def test_federated_training_needs_a_quorum(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    with pytest.raises(TrainingError, match=r"11 clients must return a model, got 10 in round 1.*client is broken"):
        run_app(tmp_path, defaults, training="fedavg", behaviours={0: raises, 1: raises})
    with pytest.raises(TrainingError, match="11 clients must connect for the training, got 4"):
        run_app(tmp_path, defaults, training="fedavg", num_nodes=4)
    few: dict[str, Any] = {"training": "fedavg", "num_training_clients": 2}  # on the first two nodes
    with pytest.raises(TrainingError, match=r"2 clients must return a model, got 1 in round 1.*client is broken"):
        run_app(tmp_path, defaults, **few, behaviours={0: raises})
    run_app(tmp_path, defaults, **few, behaviours={5: raises}, training_rounds=1)


def test_a_checkpoint_is_evaluated_as_it_is(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    model = build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=5)
    save_checkpoint(model, tmp_path / "model.pt")
    report = run_app(
        tmp_path / "out", defaults, training="checkpoint", checkpoint=str(tmp_path / "model.pt"), quorum=1.0
    )
    # Ten classes and random weights: nine in ten are wrong, give or take.
    assert 0.75 < report["network"]["mean_empirical_risk"] < 1.0


def test_a_missing_checkpoint_is_refused_before_the_folder_is_touched(
    tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    folder = tmp_path / "out"
    with pytest.raises(ConfigError, match=r"checkpoint .*none\.pt.*existing file"):
        run_app(folder, defaults, training="checkpoint", checkpoint=str(tmp_path / "none.pt"))
    assert not folder.exists()


def test_failures_are_named_and_random_node_ids_stand_apart(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    file = str(tmp_path / "budget.sqlite")
    node_configs = {3: {"query-budget": 0, "query-budget-file": file}, 4: {"client-id": "client-00005"}}
    reports = [
        run_app(
            tmp_path / str(seed),
            defaults,
            grid_seed=seed,
            behaviours={2: raises},
            node_configs=node_configs,
            quorum=0.5,
        )
        for seed in (0, 1)
    ]
    timings = [report.pop("timing")["nodes_of_failures"] for report in reports]
    assert reports[0] == reports[1]
    failures = reports[0]["network"]["failures"]
    assert [(failure["client_id"], failure["reason"]) for failure in failures] == [
        (None, "client-raised"),  # not the ClientApp's refusal: the node's process failed
        ("client-00003", "client-raised"),
        ("client-00005", "claimed-twice"),
        ("client-00005", "claimed-twice"),
    ]
    assert failures[1]["detail"].startswith("ValueError: a query must fit")
    for seed, timing in enumerate(timings):
        assert len(set(timing)) == 4
        text = json.dumps(reports[seed])
        assert not any(node_id in text for node_id in timing)
        events = read_events(tmp_path / str(seed) / "events.jsonl")
        (settled,) = [event for event in events if event["event"] == "answers_settled"]
        assert [failure["node"] for failure in settled["failures"]] == timing


def test_risks_in_the_report_are_risks(finished: Path) -> None:
    risks = np.array(json.loads((finished / "report.json").read_text())["unseen"]["risks"])
    assert risks.shape == (8,)
    assert ((risks >= 0) & (risks <= 1)).all()


def test_few_messages_are_under_way_in_flowers_simulation_and_all_where_clients_have_nodes():
    from flwr.server.superlink.fleet.vce.vce_api import _register_nodes
    from flwr.server.superlink.linkstate import LinkStateFactory
    from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.superlink.federation import NoOpFederationManager
    from flwr.superlink.grid import HttpGrid, InMemoryGrid

    state_factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory())
    partitions = _register_nodes(num_nodes=12, state_factory=state_factory)
    names = {node: f"client-{partition:05d}" for node, partition in partitions.items()}
    assert _of_simulation(InMemoryGrid(state_factory)) == {"max_open": 32, "simulated": names}
    assert _of_simulation(object.__new__(HttpGrid)) == {}
