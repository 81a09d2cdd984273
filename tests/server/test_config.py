import math
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riskband import DIVERGENCES
from server.config import load_config
from server.problems import ConfigError
from server.run.folder import ResultFolder
from server.run.lock import FolderError
from server.studies.f_divergence import Settings, settings_of
from tests.sampling import every

PROJECT = Path(__file__).resolve().parents[2]
DEFAULTS = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
SMOOTHED = {"space": "input", "adversary": "smoothing:0.25"}
SCENARIOS = {path.stem: path for path in sorted((PROJECT / "simulations" / "scenarios").glob("*.toml"))}


def test_defaults_are_valid_and_complete() -> None:
    config = load_config(DEFAULTS)
    assert list(config.to_run_config()) == list(DEFAULTS)
    assert config.of(Settings).divergences == ("kl", "chi2")
    assert config.of(Settings).budgets == (0.05, 0.1, 0.2)


@pytest.mark.parametrize("path", every("scenario", SCENARIOS, SCENARIOS))
def test_scenarios_are_valid_and_named_like_their_files(path: Path) -> None:
    scenario = tomllib.loads(path.read_text())
    assert set(scenario) <= set(DEFAULTS)  # Flower refuses keys that have no default
    if scenario.get("training") == "checkpoint":
        scenario["checkpoint"] = str(path)  # a file of the user's, which has to exist
    assert load_config(DEFAULTS | scenario).run.scenario == path.stem


@pytest.mark.parametrize(
    ("key", "value", "start"),
    [
        ("num-clients", "abc", "num-clients must be a valid integer, got 'abc'; give 2 or more"),
        ("require", "example_mean:2000<=0.2", "require is not valid, got 'example_mean:2000<=0.2'; give requirements"),
        (
            "measures",
            "gini,example_mean:2000",
            "measures is not valid, got 'gini,example_mean:2000'; functional must be one",
        ),
        ("resume", "perhaps", "resume must be a valid boolean, got 'perhaps'; true: continue"),
        ("scenario", "../x", "scenario is not valid, got '../x'; it names the result folder: letters"),
        (
            "target",
            "foo:1",
            "target is not valid, got 'foo:1'; a target network must be other shifts, each named once,",
        ),
    ],
)
def test_a_mistake_is_said_once_and_without_words_of_a_parser(key: str, value: str, start: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(DEFAULTS | {key: value})
    (problem,) = caught.value.problems
    assert problem.startswith(start)
    assert problem.count('give "reversed"') == (key == "target")


def test_all_wrong_requirements_are_named() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(DEFAULTS | {"require": "mean<0.3,mean<=0.2,foo<=0.2"})
    assert [problem.split(";")[0] for problem in caught.value.problems] == [
        f"require is not valid, got '{text}'" for text in ("mean<0.3", "foo<=0.2")
    ]


@pytest.mark.parametrize("key", ["thresholds", "examples-per-client", "divergences", "budgets", "delta"])
def test_true_is_no_number(key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key} is not valid, got True"):
        load_config(DEFAULTS | {key: True})
    assert load_config(DEFAULTS | {"resume": True}).asking.resume


def test_a_slip_in_the_evaluator_makes_no_mistake_of_what_goes_with_one() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(DEFAULTS | {"dataset": "none", "loss": "own", "num-unseen": 0, "evaluator": "mine:my-risk"})
    (problem,) = caught.value.problems
    assert problem.startswith("evaluator is not valid, got 'mine:my-risk'; give")


def test_every_mistake_is_reported_at_once_with_key_value_and_remedy() -> None:
    wrong = {
        "delta": 1.5,
        "quorum": 0,
        "loss": "mse",
        "dataset": "mnist",
        "training": "checkpoint",
        "checkpoint": "model.pt",
        "divergences": "kl,kl",
        "budgets": "0.1,-1",
        "output-dir": "results",
        "num-client": 10,
        "thresholds": math.nan,
        "figure-format": "",
        "strategy": "wassertein",
        "transport-order": 3,
        "transport-norm": "l3",
        "cost-budgets": "0",
        "cost-thresholds": "0.5,0.3",
        "num-radii": 2,
        "num-multipliers": 0,
        "adversary": "pgd",
        "protocol": "one_round",
        "bisection-tolerance": 0,
        "cost-bound": -1,
        "target-sigmas": "0.1,0.1",
        "resolution-alphas": "0.4,0.7",
        "resolution-levels": "8",
        "colour-alphas": "0,1,1,2",
        "colour-levels": "0,2",
        "rotation-angles": "10,10",
        "row-affine-stds": "0.1",
        "num-targets": 0,
        "resume": "perhaps",
        "respect-query-budgets": 2,
    }
    with pytest.raises(ConfigError) as caught:
        load_config(DEFAULTS | wrong)
    problems = caught.value.problems
    for key in wrong.keys() - {"training"}:
        assert any(problem.startswith(key) for problem in problems), key
    assert len(problems) == len(wrong) - 1
    (delta,) = [problem for problem in problems if problem.startswith("delta")]
    assert delta == "delta must be less than 1, got 1.5; delta is the probability of failure, not the confidence"
    assert any("did you mean num-clients?" in problem for problem in problems)


@pytest.mark.parametrize(
    ("key", "wrong", "remedy"),
    [
        ("transport-norm", {"transport-order": 2, "transport-norm": "linf"}, "with transport-order 2 only l2"),
        ("adversary", {"loss": "brier", "adversary": "exact"}, '"exact" fits the loss zero_one'),
        ("adversary", {"loss": "zero_one", "adversary": "ascent"}, '"ascent" the others'),
        ("cost-budgets", {"cost-budgets": "0,0"}, "at least one above 0"),
        ("cost-budgets", {"cost-budgets": ""}, "give increasing costs"),
        ("cost-thresholds", {"cost-thresholds": "0,0.5"}, "risks in (0, 1]"),
        ("cost-thresholds", {"cost-thresholds": "0.5,1.1"}, "risks in (0, 1]"),
        ("num-radii", {"num-radii": 2}, "50 is plenty"),
        ("answered-by", {"answered-by": "trainer"}, "use one of fresh, trainers"),
        ("figure-format", {"figure-format": "png,none"}, 'png, svg, pdf, or "none"'),
        ("about", {"about": "author=A,B"}, "give KEY=VALUE, each key once"),
        ("num-training-clients", {"num-training-clients": -1}, "train and never answer"),
        ("num-training-clients", {"num-clients": 20, "num-training-clients": 21}, "at most num-clients"),
        ("group-angles", {"group-angles": "0,15", "group-sigmas": "0.1,0.2"}, "not with group-sigmas"),
        ("adversary", SMOOTHED | {"require": "mean<=0.5"}, "the model itself"),
        ("target-sigmas", SMOOTHED | {"target-sigmas": "0.1"}, "with smoothing"),
    ],
)
def test_what_does_not_go_together_is_reported_under_one_key(key: str, wrong: dict[str, object], remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(DEFAULTS | {"strategy": "wasserstein"} | wrong)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{key} ")
    assert remedy in problem


@pytest.mark.parametrize(
    "right",
    [
        {"transport-order": 1, "transport-norm": "linf"},
        {"transport-order": "1", "transport-norm": "l1", "loss": "margin", "adversary": "exact"},
        {"loss": "brier", "adversary": "ascent"},
        {"target-sigmas": ""},
        SMOOTHED,
        {"target-sigmas": 0.1},
        {"cost-budgets": 3},
        {"band": "truncated:0.5:0.95"},
        {"answered-by": "trainers", "training": "fedavg"},
        {"num-clients": 20, "num-training-clients": 20},
    ],
)
def test_what_goes_together_is_accepted(right: dict[str, object]) -> None:
    config = load_config(DEFAULTS | {"strategy": "wasserstein"} | right)
    assert load_config(config.to_run_config()) == config


def test_missing_keys_are_named() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({})
    assert len(caught.value.problems) == len(DEFAULTS)
    assert all("is missing" in problem for problem in caught.value.problems)


def test_text_from_a_command_line_is_read_like_typed_values() -> None:
    as_text = {key: str(value) for key, value in DEFAULTS.items()}
    assert load_config(as_text) == load_config(DEFAULTS)
    assert load_config(DEFAULTS | {"budgets": 0.1}).of(Settings).budgets == (0.1,)


@given(
    delta=st.floats(1e-6, 1, exclude_max=True),
    budgets=st.lists(st.floats(0, 1e6), min_size=1, max_size=5, unique=True),
    divergences=st.lists(st.sampled_from(sorted(DIVERGENCES)), min_size=1, unique=True),
)
def test_what_flower_carries_gives_the_same_configuration_back(
    delta: float, budgets: list[float], divergences: list[str]
) -> None:
    changes = {"delta": delta, "budgets": ",".join(map(repr, budgets)), "divergences": ",".join(divergences)}
    config = load_config(DEFAULTS | changes)
    carried = config.to_run_config()
    assert set(carried) == set(DEFAULTS)
    assert all(isinstance(value, str | int | float) for value in carried.values())
    assert load_config(carried) == config
    assert config.of(Settings).budgets == tuple(budgets)


def test_thresholds_are_spread_over_the_unit_interval() -> None:
    np.testing.assert_allclose(
        settings_of(load_config(DEFAULTS | {"thresholds": 4}))["thresholds"], [0.25, 0.5, 0.75, 1]
    )


def test_results_go_to_the_folder_given_or_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_config(DEFAULTS).output_folder == tmp_path / "riskband-results" / "quickstart"
    assert load_config(DEFAULTS | {"output-dir": "/some/where"}).output_folder == Path("/some/where")
    assert load_config(DEFAULTS | {"output-dir": "~/there"}).output_folder == tmp_path / "there"


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("model", "resnet", '"module:factory"'),
        ("model", ":", '"module:factory"'),
        ("dataset", "npz:/absent/data.npz", "a file that exists"),
        ("dataset", "npz:~nobody-of-this-name/x.npz", "a file that exists"),
        ("output-dir", "~nobody-of-this-name/x", "absolute path"),
        ("learning-rate", 2, "0.001 to 0.1 is usual"),
        ("affine-sigma", 1e7, "no affine shift"),
        ("dirichlet-concentration", 1e9, "no label shift"),
        ("delta", 1e-12, "probability of failure"),
        ("band", "truncated:0.9:0.1", "a range of quantiles only"),
        ("band", "berk-johns", '"berk_jones"'),
    ],
)
def test_what_would_fail_later_is_refused_before_anything_starts(key: str, value: object, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(DEFAULTS | {key: value})
    (problem,) = caught.value.problems
    assert problem.startswith(f"{key} ")
    assert remedy in problem


def test_a_checkpoint_must_exist(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    with pytest.raises(ConfigError, match="existing file"):
        load_config(DEFAULTS | {"training": "checkpoint", "checkpoint": str(path)})
    path.touch()
    assert load_config(DEFAULTS | {"training": "checkpoint", "checkpoint": str(path)}).model.checkpoint == str(path)


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    own = tmp_path / "certificates" / "diploma.json"
    own.parent.mkdir()
    own.touch()
    with pytest.raises(FolderError, match=r"diploma.json is in the way"):
        ResultFolder(tmp_path).clear()
    own.rename(tmp_path / "diploma.csv")
    with pytest.raises(FolderError, match="holds files that no run wrote"):
        ResultFolder(tmp_path).clear()
    ResultFolder(tmp_path).write_json("report.json", {"mine": 1})
    ResultFolder(tmp_path).clear()
    assert {path.name for path in tmp_path.iterdir()} == {"diploma.csv", "certificates"}


def test_a_cleared_folder_can_be_cleared_again(tmp_path: Path) -> None:
    """As the launcher does, and then the app."""
    for _ in range(2):
        ResultFolder(tmp_path / "new").clear()
