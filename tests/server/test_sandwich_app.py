"""The whole app in input space, over `InProcessGrid`: attacks from below, Lipschitz bounds from above, and the gap."""

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
from protocol.questions import AdversarialAnswer
from riskband.adversaries import adversarial_curves
from riskband.adversaries.attacks.pgd import Pgd
from riskband.checks import RefusedError
from server.config import load_config
from server.problems import ConfigError
from server.run.ledger import read_ledger
from strategies.asking.query import QuorumError
from tests.server.running import printed, run_app
from tests.strategies import network
from tests.transport import input_problem

BUDGETS = [0.0, 0.01, 0.03, 0.1]
INPUT = {
    "strategy": "wasserstein",
    "space": "input",
    "transport_order": 1,
    "cost_budgets": ",".join(map(str, BUDGETS)),
    "cost_thresholds": "0.5",
    "num_radii": 4,
    "model": f"{__name__}:linear",
}
# So few clients certify something only if they may be wrong half of the time, and of few multipliers.
FEW = {"num_clients": 8, "num_unseen": 4, "examples_per_client": 6, "delta": 0.5, "num_multipliers": 4}
MLP = {"model": "mlp", "training_epochs": 5, "target_sigmas": "0.001", "num_targets": 3, "figure_format": "svg"}
FINISHED = INPUT | FEW | MLP | {"adversary": "sandwich:min-norm"}  # a tenth of the time of "auto"
run = partial(run_app, **INPUT, **FEW)
claiming = partial(network.claiming, AdversarialAnswer)


def linear(*, x_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """For a linear model attacks and Lipschitz bounds are both exact, up to rounding."""
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(x_shape)), num_classes))


@pytest.fixture(scope="module")
def of_linear(tmp_path_factory: pytest.TempPathFactory, defaults: Mapping[str, Any]) -> dict[str, Any]:
    return run(
        tmp_path_factory.mktemp("linear"), defaults, affine_sigma=0.0, num_unseen=0, adversary="sandwich:min-norm"
    )


def columns(report: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = report["sandwich"]["network"]
    below, above, gap = (np.array([row[key] for row in rows]) for key in ("estimate", "certificate", "gap"))
    return below, above, gap


def test_the_estimate_lies_below_the_certificate_and_the_gap_is_between(report: dict[str, Any]) -> None:
    below, above, gap = columns(report)
    assert [row["cost_budget"] for row in report["sandwich"]["network"]] == BUDGETS
    np.testing.assert_array_equal(above, report["certificates"]["wasserstein_mean"]["value"])
    np.testing.assert_array_equal(gap, above - below)
    assert np.all(gap >= 0.0)
    assert gap.max() > 0.002  # a hidden layer: the bound is not exact
    assert np.all(np.diff(below) >= 0.0)
    clients = report["sandwich"]["clients"]
    assert np.all(np.array(clients["lower"]) <= np.array(clients["upper"]) + 1e-12)
    assert clients["lower"][0] == clients["upper"][0] == pytest.approx(report["network"]["mean_empirical_risk"])


def test_what_free_moves_may_do_at_cost_0_is_known_from_both_sides_only(
    tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    """Without an attack all that is known from below is the risk as it is; from above, all that a free move may do."""
    free = run(tmp_path, defaults, adversary="lipschitz", free_distance=0.3, num_unseen=0)
    _, answers = read_ledger(tmp_path / "ledger.jsonl")
    ends = free["transport"]["empirical_worst_mean"]
    assert ends["lower"][0] == pytest.approx(free["network"]["mean_empirical_risk"])
    assert ends["upper"][0] == pytest.approx(np.mean([answer.values_upper[0] for answer in answers]))
    assert ends["upper"][0] > ends["lower"][0] + 0.01


def test_the_client_curve_is_the_mean_of_what_each_client_finds_by_itself(
    finished: Path, report: dict[str, Any]
) -> None:
    _, answers = read_ledger(finished / "ledger.jsonl")
    clients = report["sandwich"]["clients"]
    np.testing.assert_allclose(clients["lower"], np.mean([answer.values_lower for answer in answers], axis=0))
    np.testing.assert_allclose(clients["upper"], np.mean([answer.values_upper for answer in answers], axis=0))


def test_the_estimate_is_the_same_formula_on_what_was_reached(finished: Path, report: dict[str, Any]) -> None:
    _, answers = read_ledger(finished / "ledger.jsonl")
    by_name = {answer.client_id: answer for answer in answers}
    ordered = [by_name[name] for name in report["network"]["client_ids"]]
    stored = json.loads((finished / "certificates" / "wasserstein_mean.json").read_text())["recipe"]["answers"]
    reached = rb.AdversarialAnswers(
        stored["radii"],
        [answer.values_lower for answer in ordered],
        FEW["examples_per_client"],
        cost="a cost",
        guarantee="lower",
        binary=True,
        multipliers=stored["multipliers"],
        conjugates=[answer.conjugates_lower for answer in ordered],
    )
    estimate = rb.wasserstein_mean(reached, delta=0.5 / 3, cost_budget=BUDGETS, seed=report["seed"])
    below, above, _ = columns(report)
    assert estimate.validity == "estimate"
    np.testing.assert_allclose(below, np.minimum(estimate.value, above))
    np.testing.assert_array_equal(stored["values"], [answer.values_upper for answer in ordered])


def test_only_the_upper_side_is_called_a_certificate(finished: Path, report: dict[str, Any]) -> None:
    assert report["transport"]["guarantee"] == "upper"
    assert {entry["validity"] for entry in report["certificates"].values()} == {"certificate"}
    assert report["config"]["adversary"] == "sandwich:min-norm"
    text = printed(report)
    for words in (
        "estimate: what attacks reached",
        "certificate: is at most",
        "order 1, l2 distance, in input space; 1 u =",
        "at which attacks made an example wrong",
        "Only the upper end is a certificate",
        "as they are; the worst network",
    ):
        assert words in text, words
    figure = (finished / "transport.svg").read_text()
    assert "estimate: what attacks reached" in figure
    assert "gap: neither reached nor excluded" in figure
    assert figure.count("certificate: ") == 3  # above the figure, and in two legends


def test_unseen_clients_stay_as_they_are_and_targets_are_measured_between_inputs(report: dict[str, Any]) -> None:
    assert not report["transport"]["unseen_are_moved"]
    (target,) = report["targets"]
    # The map of the shift: ||(I + A)x + B - x|| is about sigma * sqrt(||x||² + d), for images of 64 pixels.
    assert 0.001 * 8 * 0.8 < target["mean_cost"] < 0.001 * np.sqrt(64 + 64 * 0.5) * 1.2
    assert all(check["holds"] for check in target["checks"].values())
    assert all(entry["check"]["holds"] for entry in report["certificates"].values())


@pytest.mark.slow
def test_for_a_linear_model_the_sandwich_closes(
    of_linear: dict[str, Any], tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    for report in (of_linear, run(tmp_path, defaults, transport_norm="linf", num_unseen=0)):
        clients = report["sandwich"]["clients"]
        np.testing.assert_allclose(clients["lower"], clients["upper"], atol=1e-5)
        assert 0.0 <= columns(report)[2].max() < 1e-4


def test_answers_of_attacks_alone_are_estimates_without_a_sandwich(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    report = run(tmp_path, defaults, adversary="min-norm", affine_sigma=0.0, box="0,1", num_unseen=0)
    assert report["sandwich"] is None
    assert {entry["validity"] for entry in report["certificates"].values()} == {"estimate"}
    assert "in input space, inputs in [0, 1]" in report["transport"]["cost"]
    assert "sandwich" not in printed(report).lower().replace("quickstart", "")


def test_bounds_alone_are_the_same_certificates_without_a_sandwich(
    of_linear: dict[str, Any], tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    alone = run(tmp_path, defaults, adversary="lipschitz", affine_sigma=0.0, num_unseen=0)
    assert alone["sandwich"] is None
    assert alone["transport"]["mean_cost_that_makes_an_example_wrong"] is None
    np.testing.assert_allclose(columns(of_linear)[1], alone["certificates"]["wasserstein_mean"]["value"], atol=1e-5)


@pytest.mark.slow
def test_a_box_is_about_what_attacks_do_and_not_about_what_is_proved(
    of_linear: dict[str, Any], tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    boxed = run(tmp_path, defaults, affine_sigma=0.0, box="0,1", num_unseen=0)
    free, inside = of_linear["sandwich"]["clients"], boxed["sandwich"]["clients"]
    np.testing.assert_allclose(free["upper"], inside["upper"], atol=1e-5)
    shortfall = np.array(free["lower"]) - np.array(inside["lower"])
    assert shortfall.min() >= -1e-5  # for a linear model the free attack is the best one
    assert shortfall.max() > 0.01
    assert "inputs in [0, 1]" in boxed["sandwich"]["estimate_is_about"]
    assert "inputs in [0, 1]" not in boxed["sandwich"]["certificate_is_about"]


@pytest.mark.slow
def test_at_a_layer_everything_says_so(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    """Before the head of the network the attack is exact and so is the bound: the sandwich closes on the truth."""
    budgets = {"cost_budgets": "0,0.1,0.5", "num_unseen": 4, "examples_per_client": 15}
    at_layer = run(tmp_path / "layer", defaults, **(MLP | budgets), space="layer:2", attack_distances="0.5,2")
    exact = run(tmp_path / "exact", defaults, **(MLP | budgets), space="representation")
    below, above, _ = columns(at_layer)
    np.testing.assert_allclose(below, above, atol=1e-4)
    np.testing.assert_allclose(above, exact["certificates"]["wasserstein_mean"]["value"], atol=1e-4)
    (here,), (there,) = at_layer["targets"], exact["targets"]
    assert here["mean_cost"] == pytest.approx(there["mean_cost"], rel=1e-6)
    words = "order 1, l2 distance, at the output of layer 2"
    assert words in at_layer["transport"]["cost"]
    assert words in at_layer["sandwich"]["certificate_is_about"]
    assert words in at_layer["certificates"]["wasserstein_mean"]["quantity"]
    assert f"{words}; 1 u =" in printed(at_layer)
    assert "the mean cost at which attacks made an example wrong" in (tmp_path / "layer" / "transport.svg").read_text()
    assert at_layer["config"]["attack-distances"] == "0.5,2.0"


@pytest.mark.slow
def test_left_open_a_model_of_which_nothing_is_proved_is_attacked(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    report = run(tmp_path, defaults, model="tests.transport:not_understood", num_unseen=0)
    assert report["transport"]["guarantee"] == "lower"
    assert report["sandwich"] is None
    assert {entry["validity"] for entry in report["certificates"].values()} == {"estimate"}


@pytest.mark.slow
def test_two_sides_of_ascent_are_a_sandwich_too(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    settings = {"space": "representation", "transport_order": 2, "model": "mlp", "num_unseen": 0, "box": ""}
    below, above, _ = columns(run(tmp_path, defaults, loss="brier", **settings))
    assert np.all(below <= above)
    assert np.all(np.diff(below) > 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "lie", "reason", "validity"),
    [
        ("mlp", "lower", "wrong-guarantee", "certificate"),
        ("tests.transport:not_understood", "upper", "contradiction", "estimate"),
    ],
)
def test_the_model_decides_what_auto_proves_and_no_single_client(
    tmp_path: Path, defaults: Mapping[str, Any], model: str, lie: str, reason: str, validity: str
) -> None:
    report = run(
        tmp_path,
        defaults,
        model=model,
        num_unseen=0,
        behaviours={2: claiming(guarantee=lie)},
        quorum=0.8,
    )
    assert [(f["client_id"], f["reason"]) for f in report["network"]["failures"]] == [("client-00002", reason)]
    assert {entry["validity"] for entry in report["certificates"].values()} == {validity}


def test_examples_outside_the_box_are_refused_without_a_word_about_them(
    tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    with pytest.raises(QuorumError) as caught:  # an affine shift leads out of [0, 1]
        run(tmp_path, defaults, box="0,1", affine_sigma=0.3)
    details = {failure.detail for failure in caught.value.outcome.failures}
    (detail,) = details  # the same words from every client
    assert "every entry of the examples must lie in the box [0, 1]" in detail


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("space", {"space": "pixels"}),
        ("box", {"box": "0"}),
        ("box", {"box": "1,0"}),
        ("box", {"box": "0,inf"}),
        ("box", {"box": "0,1", "space": "representation"}),
        ("adversary", {"adversary": "exact"}),
        ("adversary", {"adversary": "foolbox:L2DeepFoolAttack"}),
        ("adversary", {"adversary": "autoattack"}),
        ("adversary", {"adversary": "sandwich:square:5000"}),
        ("adversary", {"adversary": "pgd", "space": "representation"}),
        ("head", {"head": "3"}),
        ("head", {"head": "3", "space": "layer:1"}),
        ("space", {"space": "layer:"}),
        ("box", {"box": "2,1", "space": "layer:1"}),
        ("attack-distances", {"attack-distances": "0,0.1"}),
        ("attack-distances", {"attack-distances": "0.2,0.1"}),
        ("attack-distances", {"attack-distances": "0.1", "space": "representation"}),
        ("adversary", {"adversary": "sandwich:lipschitz"}),
        ("adversary", {"adversary": "sandwich:foolbox:L2PGD", "attack-distances": "0.1"}),
        ("transport-norm", {"transport-order": 2, "transport-norm": "l1"}),
        ("free-distance", {"free-distance": 0.1, "loss": "brier"}),
        ("free-distance", {"free-distance": 0.1, "require": "mean<=0.5"}),
        ("adversary", {"free-distance": 0.1, "adversary": "smoothing:0.25", "transport-norm": "l2"}),
        ("privacy", {"free-distance": 0.1, "privacy": "laplace:1", "adversary": "lipschitz"}),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_starts(
    defaults: Mapping[str, Any], key: str, wrong: dict[str, Any]
) -> None:
    settings = {key.replace("_", "-"): value for key, value in INPUT.items()}
    with pytest.raises(ConfigError) as caught:
        load_config({**defaults, **settings, **wrong})
    (problem,) = caught.value.problems
    assert problem.startswith(f"{key} ")
    assert "; " in problem  # the remedy


@pytest.mark.parametrize(
    "right",
    [
        {"adversary": "foolbox:L2DeepFoolAttack", "box": "0,1"},
        {"adversary": "sandwich:foolbox:L2PGD", "box": "0,1", "attack-distances": "0.1,0.5"},
        {"adversary": "sandwich:square:5000", "attack-distances": "0.1"},
        {"box": "-1,1"},
        {"adversary": "wda", "attack-distances": 0.3},
        {"space": "layer:features.3", "adversary": "sandwich:pgd", "box": "0,9"},
        {"protocol": "bisection"},
    ],
)
def test_what_goes_together_is_accepted(defaults: Mapping[str, Any], right: dict[str, Any]) -> None:
    settings = {key.replace("_", "-"): value for key, value in INPUT.items()}
    config = load_config({**defaults, **settings, **right})
    assert load_config(config.to_run_config()) == config


def test_every_mistake_about_input_space_is_reported_at_once(defaults: Mapping[str, Any]) -> None:
    wrong = {"strategy": "wasserstein", "space": "input", "box": "1", "head": "3", "adversary": "ascent", "delta": 2}
    with pytest.raises(ConfigError) as caught:
        load_config({**defaults, **wrong})
    assert {line.split()[0] for line in caught.value.problems} == {"box", "head", "adversary", "delta"}


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes(
    finished: Path, report: dict[str, Any], tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    again = run_app(tmp_path, defaults, **FINISHED, grid_seed=1)
    assert again["sandwich"] == report["sandwich"]
    assert (tmp_path / "transport.svg").read_bytes() == (finished / "transport.svg").read_bytes()


class Rounding(nn.Module):
    """Rounds its inputs to 16 levels: no gradient anywhere, and a layer of which nothing is proved."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.net(torch.round(15.0 * x) / 15.0)
        return logits


def rounding(*, x_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return Rounding(linear(x_shape=x_shape, num_classes=num_classes))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("adversary", "remedy"),
    [("auto", "random search"), ("apgd", 'use "auto" or "square"')],
)
def test_a_run_whose_attacks_saw_no_gradient_says_so_wherever_its_estimate_is_read(
    tmp_path: Path, defaults: Mapping[str, Any], adversary: str, remedy: str
) -> None:
    # Of a model that is not trained, most examples are wrong as they are, and those are not counted.
    small = {"num_clients": 4, "examples_per_client": 10, "num_unseen": 0, "affine_sigma": 0.0, "box": "0,1"}
    settings = {"model": f"{__name__}:rounding", "training_epochs": 3, "missing": "ignore", **small}
    report = run(tmp_path, defaults, **settings, adversary=adversary, attack_distances="0.3", figure_format="svg")
    _, answers = read_ledger(tmp_path / "ledger.jsonl")
    count = sum(answer.num_without_gradient for answer in answers)
    assert 0 < count <= 40
    words = f"attacks found no gradient to follow, or a misleading one, at {count} of 40 examples"
    assert report["transport"]["attacks"] == {
        "num_examples_without_gradient": count, "num_examples": 40, "num_unsteady_clients": 0, "words": words
    }  # fmt: skip
    assert f"{words}; " in printed(report)
    assert remedy in printed(report)
    stored = json.loads((tmp_path / "certificates" / "wasserstein_mean.json").read_text())
    assert stored["validity"] == "estimate"
    assert words in stored["quantity"] + " ".join(stored["assumptions"])
    assert words in (tmp_path / "transport.svg").read_text()  # as a comment beside the shapes of its letters
    reached = report["transport"]["empirical_worst_mean"]["upper"][-1] - report["network"]["mean_empirical_risk"]
    assert (reached > 0.05) == (adversary == "auto")


class Own(Pgd):
    """An attack of somebody's own."""


def test_an_attack_of_ones_own_is_named_by_module_and_class(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    few = {"num_radii": 4, "num_unseen": 0, "examples_per_client": 5}
    reports = [run(tmp_path / name[-3:], defaults, adversary=name, **few) for name in ("pgd", f"{__name__}:Own")]
    theirs, own = (report["certificates"]["wasserstein_mean"] for report in reports)
    assert own["value"] == theirs["value"]
    assert own["validity"] == "estimate"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (f"{__name__}:Other", "must be importable on every client"),
        (f"{__name__}.nowhere:Own", "must be importable on every client"),
        (f"{__name__}:linear", "must be a subclass of InputAdversary"),
        (f"sandwich:{__name__}:linear", "must be a subclass of InputAdversary"),
    ],
)
def test_what_is_no_attack_is_refused(name: str, problem: str) -> None:
    asked = input_problem("zero_one", 1, "l2", adversary=name)
    net = linear(x_shape=(2,), num_classes=2)
    with pytest.raises(RefusedError, match=problem):
        adversarial_curves(net, np.zeros((3, 2), np.float32), np.zeros(3, np.int64), asked)
