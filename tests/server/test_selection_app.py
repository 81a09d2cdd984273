"""The whole app with the strategy "selection", over `InProcessGrid`: what a run writes and what it calls it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.hashes import model_hash
from protocol.models import save_checkpoint
from protocol.questions import CandidatesAnswer
from riskband.cli import main as riskband_command
from riskband.models.evaluation import example_losses, mean_loss
from riskband.wording import rounded_up
from server.config import load_config
from server.problems import ConfigError
from server.run.ledger import read_ledger
from server.settings import RunConfig
from tests.server.running import SMALL, printed, raises, run_app
from tests.server.test_resume import Counting, assert_same_results, cut_ledger
from worlds.datasets import load_dataset
from worlds.population import Population, spec_from_config
from worlds.training import train_centrally

SETTINGS: dict[str, Any] = {
    "strategy": "selection",
    "training_epochs": 3,
    "candidate_epochs": "1,3",
    "abstention_thresholds": "0.6",
    "dispersion_method": "convex_order",
    "learning_rate": 0.003,
}
LOSSES = {"epochs-1": (1, "zero_one"), "epochs-3": (3, "zero_one"), "epochs-3,abstain:0.6": (3, "abstain:0.6")}
FINISHED = {**SETTINGS, "figure_format": "png,svg"}
run = partial(run_app, **SETTINGS)
SEQUENCE = {**SETTINGS, "selection_method": "fixed_sequence", "candidate_epochs": "3,1", "abstention_thresholds": ""}


def config_of(defaults: Mapping[str, Any], **changes: Any) -> RunConfig:
    settings = {key.replace("_", "-"): value for key, value in {**SETTINGS, **changes}.items()}
    return load_config({**defaults, **SMALL, **settings})


def mean_plus_half_gini(risks: np.ndarray) -> float:
    return float(risks.mean() + 0.5 * np.abs(risks[:, None] - risks).mean() / (2.0 * risks.mean()))


@pytest.fixture(scope="module")
def models(defaults: Mapping[str, Any]) -> dict[int, Any]:
    """What the server trains, trained here."""
    data = load_dataset("digits", seed=0)
    return {n: train_centrally(data, model="mlp", seed=0, num_epochs=n, learning_rate=0.003) for n in (1, 3)}


def test_everything_lands_in_the_folder(finished: Path, report: dict[str, Any]) -> None:
    assert list(report["certificates"]) == ["selection"]
    files = {
        "certificates",
        "report.json",
        "report.html",
        "ledger.jsonl",
        "events.jsonl",
        ".riskband.files",
        "selection.png",
        "selection.svg",
    }
    assert {path.name for path in finished.iterdir()} == files
    assert [path.name for path in (finished / "certificates").iterdir()] == ["selection.json"]
    assert report["findings"]["breakdowns"] == []


def test_the_certificate_verifies_by_command_and_a_changed_one_does_not(finished: Path, tmp_path: Path) -> None:
    path = finished / "certificates" / "selection.json"
    assert riskband_command(["verify", str(path)]) == 0
    changed = json.loads(path.read_text())
    values = changed["recipe"]["answers"]["epochs-1"]["values"]  # whichever candidate is touched
    values[0] = 1.0 - values[0]
    (tmp_path / "changed.json").write_text(json.dumps(changed))
    assert riskband_command(["verify", str(tmp_path / "changed.json")]) == 1


def test_the_clients_judged_the_models_that_the_configuration_names(
    finished: Path, models: dict[int, Any], defaults: Mapping[str, Any]
) -> None:
    header, answers = read_ledger(finished / "ledger.jsonl")
    population = Population(spec_from_config(config_of(defaults).to_run_config(), network="source"))
    weights = {f"{i}/{k}": v.numpy() for i, n in enumerate((1, 3)) for k, v in models[n].state_dict().items()}
    assert header["hashes"]["model"] == model_hash(weights)
    assert len(answers) == 12
    for answer in answers:
        assert isinstance(answer, CandidatesAnswer)
        held = population.client(int(answer.client_id.removeprefix("client-")))
        expected = [mean_loss(models[n], held.x, held.y, loss=loss)[0] for n, loss in LOSSES.values()]
        assert answer.risks == pytest.approx(expected, abs=1e-12)


def test_checkpoints_are_trained_as_the_configuration_says(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    training = {"training_margin": 0.5, "training_noise": 0.3}
    run(tmp_path, defaults, **training, candidate_epochs="1,2", abstention_thresholds="", num_unseen=0)
    header, _ = read_ledger(tmp_path / "ledger.jsonl")
    data, settings = load_dataset("digits", seed=0), {"learning_rate": 0.003, "margin": 0.5, "noise_sigma": 0.3}
    trained = [train_centrally(data, model="mlp", seed=0, num_epochs=epochs, **settings) for epochs in (1, 2)]
    weights = {f"{i}/{k}": v.numpy() for i, model in enumerate(trained) for k, v in model.state_dict().items()}
    assert header["hashes"]["model"] == model_hash(weights)


def test_the_table_of_candidates_holds_measured_certified_and_true_objectives(
    finished: Path, report: dict[str, Any], models: dict[int, Any], defaults: Mapping[str, Any]
) -> None:
    answers = sorted(read_ledger(finished / "ledger.jsonl")[1], key=lambda answer: answer.client_id)
    measured = np.array([answer.risks for answer in answers])
    population = Population(spec_from_config(config_of(defaults).to_run_config(), network="unseen"))
    laws = [population.distribution(k) for k in range(8)]
    selection = report["selection"]
    assert [entry["candidate"] for entry in selection["candidates"]] == list(LOSSES)
    for column, (entry, (epochs, loss)) in enumerate(zip(selection["candidates"], LOSSES.values(), strict=True)):
        exact = np.array([law.weights @ example_losses(models[epochs], law.x, law.y, loss=loss) for law in laws])
        assert entry["measured"] == pytest.approx(mean_plus_half_gini(measured[:, column]))
        assert entry["unseen"] == pytest.approx(mean_plus_half_gini(exact))
        np.testing.assert_allclose(report["unseen"]["risks_by_candidate"][entry["candidate"]], exact, atol=1e-12)
        assert entry["bound"] == pytest.approx(entry["terms"]["mean"] + 0.5 * entry["terms"]["gini"])
        assert entry["certified_at_most"] == entry["bound"]
        assert entry["holds"] == (entry["unseen"] <= entry["bound"])
        assert entry["meets_target"] is None
    best = min(selection["candidates"], key=lambda entry: entry["bound"])
    assert best["candidate"] != next(iter(LOSSES))  # so that the choice shows
    assert selection["best"] == selection["shown"] == best["candidate"]
    assert report["certificates"]["selection"]["value"] == best["bound"]
    assert report["certificates"]["selection"]["check"]["observed"] == pytest.approx(best["unseen"])
    assert report["unseen"]["risks"] == report["unseen"]["risks_by_candidate"][best["candidate"]]
    column = list(LOSSES).index(best["candidate"])
    assert report["network"]["mean_empirical_risk"] == pytest.approx(measured[:, column].mean())
    assert selection["candidate_delta"] == pytest.approx(0.05 / 3)
    assert "8 clients: an approximation" in selection["unseen_stand_for"]


def test_the_printed_table_says_what_each_number_is(report: dict[str, Any]) -> None:
    text = printed(report)
    best = next(e for e in report["selection"]["candidates"] if e["candidate"] == report["selection"]["best"])
    for words in (
        "mean+0.5*gini of the risks of unseen clients, by candidate",
        "on 8 unseen",
        "gini ≤",
        rounded_up(best["bound"], 3),
        f"{best['unseen']:.3f}",
        f"under '{best['candidate']}', chosen among 3 candidates, is at most {rounded_up(best['bound'])}",
        "How delta was spent: delta 0.05: 0.01667 for each of 3 candidates",
        "Check: the certificate holds on the unseen clients.",
        "the candidates, their order and the objective were fixed",
    ):
        assert words in text, words
    assert [name for name in LOSSES if f" {name} * " in text] == [best["candidate"]]
    narrow = printed(report, width=80)
    assert all(f" {name} " in narrow for name in LOSSES)  # no name is cut
    assert max(map(len, narrow.splitlines())) <= 80
    assert "│ yes" in narrow  # nor the table
    assert "certified for clients and networks" not in text  # the table of the other strategies would be empty


def test_a_bound_that_the_unseen_clients_exceed_is_not_hidden(report: dict[str, Any]) -> None:
    changed = json.loads(json.dumps(report))
    changed["selection"]["candidates"][0]["holds"] = False
    changed["certificates"]["selection"]["check"]["holds"] = False
    text = printed(changed)
    assert "NO" in text
    assert "NO" not in printed(report)
    assert "the unseen clients exceed selection." in text


@pytest.mark.slow  # test_app says it by default
def test_the_same_seed_gives_the_same_bytes_whatever_the_network_does(
    finished: Path, tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    run(tmp_path, defaults, figure_format="png,svg", grid_seed=1)
    assert_same_results(tmp_path, finished)


@pytest.mark.slow  # test_resume and test_comparison_app say it by default
def test_an_interrupted_run_asks_only_those_who_are_missing(
    finished: Path, tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    cut_ledger(finished, tmp_path, num_answers=7, torn=b'{"client_id": "cli')
    counting = Counting()
    run(tmp_path, defaults, figure_format="png,svg", resume="true", grid_seed=2, behaviours=counting.behaviours())
    assert sum(counting.questions().values()) == 5
    assert_same_results(tmp_path, finished)


@pytest.mark.parametrize("change", [{"candidate_epochs": "2,3"}, {"abstention_thresholds": "0.7"}])
def test_answers_about_other_candidates_are_not_taken_over(
    finished: Path, tmp_path: Path, defaults: Mapping[str, Any], change: dict[str, Any]
) -> None:
    cut_ledger(finished, tmp_path, num_answers=7)
    with pytest.raises(ValueError, match="ledger of another run"):
        run(tmp_path, defaults, figure_format="png,svg", resume="true", **change)


def test_a_sequence_is_tested_in_the_order_written_and_certifies_the_target(
    tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    report = run(tmp_path, defaults, **{**SEQUENCE, "selection_target": 1.2})
    selection = report["selection"]
    assert [entry["candidate"] for entry in selection["candidates"]] == ["epochs-3", "epochs-1"]
    assert selection["candidate_delta"] == selection["delta"]
    first, second = selection["candidates"]
    assert first["bound"] <= 1.2  # so that the test shows something
    assert (first["certified_at_most"], first["meets_target"]) == (1.2, True)
    assert report["certificates"]["selection"]["value"] == 1.2
    assert second["meets_target"] == (second["bound"] <= 1.2)
    assert (second["certified_at_most"] is None) == (second["holds"] is None) == (not second["meets_target"])
    assert riskband_command(["verify", str(tmp_path / "certificates" / "selection.json")]) == 0
    text = printed(report)
    assert "target met" in text
    assert "≤" not in text.split("Clients:")[0]  # no bound of a sequence is called one


def test_a_sequence_that_certifies_nobody_is_a_result_and_not_a_failure(
    tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    report = run(tmp_path, defaults, **{**SEQUENCE, "selection_target": 1e-3, "figure_format": "svg"})
    assert report["certificates"] == {}
    assert list((tmp_path / "certificates").iterdir()) == []
    selection = report["selection"]
    assert (selection["best"], selection["certificate"], selection["shown"]) == (None, None, "epochs-3")
    assert {entry["holds"] for entry in selection["candidates"]} == {None}
    assert (tmp_path / "selection.svg").exists()
    text = printed(report)
    assert "No candidate is certified to have mean+0.5*gini of at most 0.001: there is no certificate" in text
    assert "Check:" not in text
    assert "Assumed:" not in text


def test_who_failed_counts_as_worst_for_every_candidate(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    settings = {"behaviours": {2: raises}, "quorum": 0.8, "num_unseen": 0}
    plain = run(tmp_path / "plain", defaults, **settings)
    careful = run(tmp_path / "careful", defaults, **settings, missing="worst", contamination=1)
    for worse, better in zip(careful["selection"]["candidates"], plain["selection"]["candidates"], strict=True):
        assert worse["terms"]["mean"] > better["terms"]["mean"]
        assert worse["unseen"] is worse["holds"] is None
    assert riskband_command(["verify", str(tmp_path / "careful" / "certificates" / "selection.json")]) == 0
    assert careful["selection"]["unseen_stand_for"] is None
    assert "holds on" not in printed(careful)


def test_for_observed_risks_the_unseen_clients_measure_under_all_candidates(
    tmp_path: Path, defaults: Mapping[str, Any], models: dict[int, Any]
) -> None:
    report = run(tmp_path, defaults, local="observed", objective="mean", abstention_thresholds="")
    population = Population(spec_from_config(config_of(defaults).to_run_config(), network="unseen"))
    for epochs in (1, 3):
        held = [population.client(k) for k in range(8)]
        expected = [mean_loss(models[epochs], each.x, each.y, loss="zero_one")[0] for each in held]
        assert report["unseen"]["risks_by_candidate"][f"epochs-{epochs}"] == pytest.approx(expected)
    assert "measured risk of unseen clients" in report["certificates"]["selection"]["statement"]


@pytest.mark.parametrize("training", ["checkpoint", "fedavg"])
def test_thresholds_on_a_model_from_elsewhere(
    tmp_path: Path, defaults: Mapping[str, Any], models: dict[int, Any], training: str
) -> None:
    save_checkpoint(models[3], tmp_path / "model.pt")
    settings = {"training": training, "checkpoint": str(tmp_path / "model.pt"), "candidate_epochs": ""}
    report = run(tmp_path / "out", defaults, **settings, training_rounds=1, training_epochs=1, num_unseen=2)
    assert [entry["candidate"] for entry in report["selection"]["candidates"]] == ["model", "model,abstain:0.6"]


def test_without_checkpoints_the_final_model_is_the_only_candidate(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    report = run(tmp_path, defaults, candidate_epochs="", abstention_thresholds="", num_unseen=2)
    assert [entry["candidate"] for entry in report["selection"]["candidates"]] == ["epochs-3"]
    assert report["selection"]["candidate_delta"] == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"candidate_epochs": "1,4"}, "candidate-epochs"),  # trained for 3
        ({"candidate_epochs": "1,1"}, "candidate-epochs"),
        ({"candidate_epochs": "0,1"}, "candidate-epochs"),
        ({"candidate_epochs": "1.5"}, "candidate-epochs"),
        ({"candidate_epochs": "last"}, "candidate-epochs"),
        ({"training": "fedavg"}, "candidate-epochs"),
        ({"abstention_thresholds": "0.5,0.50"}, "abstention-thresholds"),
        ({"abstention_thresholds": "1.5"}, "abstention-thresholds"),
        ({"abstention_thresholds": "sure"}, "abstention-thresholds"),
        ({"loss": "brier"}, "abstention-thresholds"),
        ({"objective": "mean+variance"}, "objective"),
        ({"objective": "theil"}, "objective"),  # unbounded
        ({"objective": ""}, "objective"),
        ({"selection_method": "holm"}, "selection-method"),
        ({"selection_method": "fixed_sequence"}, "selection-target"),
        ({"selection_target": -0.1}, "selection-target"),
        ({"selection_target": "inf"}, "selection-target"),
    ],
)
def test_what_cannot_be_selected_is_refused_before_anybody_is_asked(
    tmp_path: Path, defaults: Mapping[str, Any], wrong: dict[str, Any], key: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        run(tmp_path, defaults, **wrong)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{key} ")
    assert not list(tmp_path.iterdir())


def test_all_mistakes_are_named_at_once(defaults: Mapping[str, Any]) -> None:
    wrong = {"candidate_epochs": "9", "loss": "brier", "objective": "regret", "selection_method": "fixed_sequence"}
    with pytest.raises(ConfigError) as caught:
        config_of(defaults, **wrong)
    keys = {problem.split()[0] for problem in caught.value.problems}
    assert keys == {"candidate-epochs", "abstention-thresholds", "objective", "selection-target"}


def test_the_keys_of_a_selection_do_not_bother_other_strategies(defaults: Mapping[str, Any]) -> None:
    config = config_of(defaults, strategy="f_divergence", training="fedavg", loss="brier", training_epochs=1)
    assert load_config(config.to_run_config()) == config
    assert load_config(config_of(defaults).to_run_config()) == config_of(defaults)
