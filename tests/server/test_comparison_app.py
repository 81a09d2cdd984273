"""The whole app with the strategy "comparison", over `InProcessGrid`, beside both models run here by torch alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import riskband as rb
from protocol.models import build_model, save_checkpoint
from protocol.questions import ComparisonAnswer
from riskband.cli import main as riskband_command
from server.config import load_config
from server.problems import ConfigError
from server.run.ledger import read_ledger
from server.studies.comparison import ComparisonStudy
from simulations.__main__ import main
from tests.one_voice import contradictions
from tests.server.running import SMALL, printed, raises, run_app
from tests.server.test_resume import Counting, assert_same_results, cut_ledger
from worlds.datasets import load_dataset
from worlds.population import Population, spec_from_config
from worlds.training import train_centrally

FINISHED: dict[str, Any] = {
    "strategy": "comparison",
    "old_model": "local",
    "num_clients": 60,
    "num_unseen": 20,
    "training_epochs": 2,
    "dirichlet_concentration": 0.2,
    "require": "change<=0.05,harmed:0.1<=0.2,quantile:0.9<=0.1",
    "figure_format": "svg",
}
NEW, LOCAL = {"seed": 0, "num_epochs": 2, "learning_rate": 0.003}, {"num_epochs": 2, "learning_rate": 0.003}
run = partial(run_app, **{**FINISHED, "num_clients": 12, "num_unseen": 0, "figure_format": "none"})


@pytest.fixture(scope="module")
def new() -> nn.Module:
    """The model that the server trains, trained here."""
    return train_centrally(load_dataset("digits", seed=0), model="mlp", **NEW)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, str]:
    """An old model, and its file."""
    model = train_centrally(load_dataset("digits", seed=0), model="mlp", seed=5, num_epochs=1, learning_rate=0.003)
    path = tmp_path_factory.mktemp("old") / "old.pt"
    save_checkpoint(model, path)
    return model, str(path)


def population(defaults: Mapping[str, Any], *, network: str = "source") -> Population:
    settings = {key.replace("_", "-"): value for key, value in FINISHED.items()}
    return Population(spec_from_config({**defaults, **SMALL, **settings}, network=network))


def own_model(of: Population, k: int) -> nn.Module:
    """What client k trains for itself."""
    from worlds.training import train_epochs

    model, held = build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=0), of.training_examples(k)
    seed = int(np.random.SeedSequence(0, spawn_key=(3, 0, k)).generate_state(1, np.uint64)[0] >> np.uint64(1))
    train_epochs(model, held.x, held.y, seed=seed, **LOCAL)
    return model


def is_wrong(model: nn.Module, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(model.eval()(torch.from_numpy(x)).argmax(dim=1).numpy() != y)


def test_sixty_clients_say_how_many_examples_got_worse_and_better(
    finished: Path, report: dict[str, Any], new: nn.Module, defaults: Mapping[str, Any]
) -> None:
    source, answers = population(defaults), read_ledger(finished / "ledger.jsonl")[1]
    assert len(answers) == 60
    counts = {}
    for answer in answers:
        assert isinstance(answer, ComparisonAnswer)
        k = int(answer.client_id.removeprefix("client-"))
        held = source.client(k)
        before, after = is_wrong(own_model(source, k), held.x, held.y), is_wrong(new, held.x, held.y)
        counts[answer.client_id] = int(np.sum(after & ~before)), int(np.sum(before & ~after))
        assert answer.num_worse == counts[answer.client_id][0]
        assert (answer.old_risk, answer.new_risk) == (before.mean(), after.mean())
    section = report["comparison"]
    names = report["network"]["client_ids"]
    assert list(zip(section["num_worse"], section["num_better"], strict=True)) == [counts[name] for name in names]
    changes = np.array([(worse - better) / 40 for worse, better in (counts[name] for name in names)])
    np.testing.assert_allclose(np.subtract(section["new"], section["old"]), changes, atol=1e-12)
    assert min(changes) < 0 < max(changes)  # so that the test shows something
    text = printed(report)
    assert f"{np.sum(changes > 0)} clients got worse, {np.sum(changes < 0)} better, and {np.sum(changes == 0)}" in text
    of_counts = rb.ClientChanges.from_counts(*zip(*(counts[name] for name in names), strict=True), 40)
    expected = rb.compare(of_counts, delta=0.05, require=FINISHED["require"].split(","))
    values = {each.name: (each.lower, each.value) for each in expected.certificates.values()}
    entries = report["certificates"].values()
    assert {rb.Certificate.load(finished / e["file"]).name: (e.get("lower"), e["value"]) for e in entries} == values
    assert expected.gate is not None
    assert report["gate"]["verdict"] == expected.gate.verdict


def test_the_unseen_clients_true_changes_are_within_what_was_certified(
    report: dict[str, Any], new: nn.Module, defaults: Mapping[str, Any]
) -> None:
    unseen = population(defaults, network="unseen")
    changes = []
    for k in range(20):
        law = unseen.distribution(k)
        old = is_wrong(own_model(unseen, k), law.x, law.y)
        changes.append(law.weights @ (is_wrong(new, law.x, law.y).astype(float) - old))
    observed = {name: entry["check"]["observed"] for name, entry in report["certificates"].items()}
    changes = np.sort(changes)
    assert observed["require_mean"] == pytest.approx(np.mean(changes))
    assert observed["require_share_0.1"] == pytest.approx(np.mean(changes > 0.1))
    assert observed["require_quantile_0.9"] == pytest.approx(changes[17])  # the smallest with 18 of 20 up to it
    assert all(entry["check"]["holds"] for entry in report["certificates"].values())


def test_everything_lands_in_the_folder_and_verifies(finished: Path, report: dict[str, Any]) -> None:
    assert "comparison.svg" in report["figures"]
    text = (finished / "comparison.svg").read_text()
    assert "<svg" in text
    for entry in report["certificates"].values():
        assert riskband_command(["verify", str(finished / entry["file"])]) == 0
    assert riskband_command(["verify", str(finished / "report.html")]) == 0


def test_the_table_says_for_whom_it_is_worse(report: dict[str, Any]) -> None:
    text, changes = printed(report), np.subtract(report["comparison"]["new"], report["comparison"]["old"])
    worst = report["network"]["client_ids"][int(np.argmax(changes))]
    assert f"Worse for {worst} (by {max(changes):.4f})" in text
    assert "(each client's own)" in text
    assert "The share of unseen clients whose risk rises by more than 0.1" in text


def test_which_examples_got_worse_is_nowhere_in_the_results(finished: Path, report: dict[str, Any]) -> None:
    """No list in what is written is as long as a client's examples; of 60 clients there are lists of 60."""

    def lengths(value: Any) -> set[int]:
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        own = {len(value)} if isinstance(value, list) else set()
        return own.union(*map(lengths, parts))

    lines = [json.loads(line) for line in (finished / "ledger.jsonl").read_text().splitlines()]
    assert 40 not in lengths([report, *lines[1:]])


def test_an_interrupted_run_asks_only_those_who_are_missing(
    finished: Path, tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    cut_ledger(finished, tmp_path, num_answers=50)
    counting = Counting()
    run_app(tmp_path, defaults, **FINISHED, resume="true", grid_seed=2, behaviours=counting.behaviours(60))
    assert sum(counting.questions().values()) == 10
    assert_same_results(tmp_path, finished)


def test_a_checkpoint_is_the_old_model(
    tmp_path: Path, defaults: Mapping[str, Any], old: tuple[nn.Module, str], new: nn.Module
) -> None:
    report = run(tmp_path, defaults, old_model=old[1], num_unseen=3)
    source = population(defaults)
    for k in range(12):
        held, section = source.client(k), report["comparison"]
        risks = [float(is_wrong(model, held.x, held.y).mean()) for model in (old[0], new)]
        assert [section["old"][k], section["new"][k]] == risks
    law = population(defaults, network="unseen").distribution(1)
    found = report["unseen"]["risks_by_candidate"]
    exact = {name: law.weights @ is_wrong(model, law.x, law.y) for name, model in (("old", old[0]), ("new", new))}
    assert {name: risks[1] for name, risks in found.items()} == pytest.approx(exact)
    assert old[1] in printed(report)


def test_a_model_that_nobody_changed_passes(tmp_path: Path, defaults: Mapping[str, Any], new: nn.Module) -> None:
    save_checkpoint(new, tmp_path / "same.pt")
    files = {"old_model": str(tmp_path / "same.pt"), "training": "checkpoint", "checkpoint": str(tmp_path / "same.pt")}
    limits = "change<=0.1,harmed:0.1<=0.1"
    report = run(tmp_path / "out", defaults, **files, num_clients=60, require=limits)
    assert report["comparison"]["num_worse"] == report["comparison"]["num_better"] == [0] * 60
    assert report["gate"]["verdict"] == "PASS"


def test_of_another_loss_the_mean_change_is_certified(
    tmp_path: Path, defaults: Mapping[str, Any], old: tuple[nn.Module, str]
) -> None:
    report = run(tmp_path, defaults, loss="brier", old_model=old[1], require="change<=0.1")
    section = report["comparison"]
    assert section["num_worse"] is section["num_better"] is None
    assert list(report["certificates"]) == ["require_mean"]
    recipe = rb.Certificate.load(tmp_path / "certificates" / "require_mean.json").recipe
    assert not recipe["answers"]["binary"]


def test_who_is_missing_counts_as_worst_where_that_is_asked(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    settings = {"behaviours": {2: raises}, "quorum": 0.8, "require": "change<=0.1,harmed:0.05<=0.2"}
    plain = run(tmp_path / "plain", defaults, **settings)
    careful = run(tmp_path / "careful", defaults, **settings, missing="worst", contamination=1)
    for name in ("require_mean", "require_share_0.05"):
        assert careful["certificates"][name]["value"] > plain["certificates"][name]["value"]


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"old_model": ""}, "old-model"),
        ({"old_model": "/no/such/old.pt"}, "old-model"),
        ({"old_model": "old.pt"}, "old-model"),
        ({"require": "gini<=0.2"}, "require"),
        ({"require": "count:1@next:20<=3"}, "require"),
        ({"privacy": "laplace:1"}, "privacy"),
        ({"local": "observed"}, "local"),
        ({"require": "mean@chi2:0.1<=0.05"}, "require"),
        ({"strategy": "wasserstein"}, "require"),
        ({"strategy": "dispersion"}, "require"),
        ({"strategy": "secure_histogram", "privacy": ""}, "require"),
        ({"strategy": "f_divergence"}, "require"),
        ({"strategy": "selection"}, "require"),
    ],
    ids=str,
)
def test_what_cannot_be_compared_is_refused_before_anybody_is_asked(
    defaults: Mapping[str, Any], wrong: dict[str, Any], key: str
) -> None:
    settings = {name.replace("_", "-"): value for name, value in {**FINISHED, **wrong}.items()}
    with pytest.raises(ConfigError) as caught:
        load_config({**defaults, **SMALL, "candidate-epochs": "1", **settings})
    assert [problem.split()[0] for problem in caught.value.problems] == [key]
    assert ";" in caught.value.problems[0]  # with a remedy


def test_models_of_two_architectures_are_refused_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_checkpoint(build_model("cnn", x_shape=(1, 8, 8), num_classes=10, seed=0), tmp_path / "old.pt")
    status = main(["comparison", "--out", str(tmp_path / "out"), "--set", f"old-model={tmp_path / 'old.pt'}"])
    assert status == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: old-model '{tmp_path / 'old.pt'}' cannot be evaluated: ")
    assert "build the model with the name" in error
    assert not (tmp_path / "out").exists()


def test_a_missing_old_model_is_refused_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["comparison", "--out", str(tmp_path / "out"), "--set", f"old-model={tmp_path / 'old.pt'}"]) == 2
    assert 'give the absolute path of an existing file with weights of the same model, or "local"' in (
        capsys.readouterr().err
    )


def test_of_few_clients_the_change_of_the_next_one_stands_beside(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    report = run(tmp_path, defaults, require="", delta=0.02)
    mean, of_next = report["certificates"].values()
    section = report["comparison"]
    assert of_next["value"] == pytest.approx(np.max(np.subtract(section["new"], section["old"])))
    assert (of_next["delta"], mean["delta"]) == (pytest.approx(1 / 13), 0.02)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert contradictions(report, page=page, terminal=printed(report), delta=0.02) == []
    assert "With probability at least 0.98 this holds" in printed(report)


def test_how_many_of_the_next_clients_get_worse_is_required(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    report = run(tmp_path, defaults, require="count:0.3@next:5<=4,change<=0.5")
    stored = rb.Certificate.load(tmp_path / "certificates" / "require_count_0.3@next_5.json")
    changes = rb.ClientChanges(**stored.recipe["answers"])
    assert stored == rb.bound(changes, "count:0.3@next:5", sides="two", delta=0.025)
    assert report["gate"]["requirements"][0]["upper"] == stored.value
    assert rb.verify(stored).ok
    assert f"risk above 0.3 │                │ {stored.value:10.0f} │ its own" in printed(report, width=180)


def test_one_client_is_no_clients() -> None:
    section = {"old": [0.1, 0.2], "new": [0.2, 0.2], "old_model": "local"}
    report = {"comparison": section, "network": {"client_ids": ["a", "b"]}}
    assert "; 1 client got worse, 0 better, and 1 are as they were." in next(iter(ComparisonStudy().lines(report)))
