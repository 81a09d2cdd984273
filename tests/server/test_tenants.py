"""`examples/tenant-evaluation`: each tenant evaluates on its own node, and nothing that a prompt says leaves it."""

from __future__ import annotations

import gzip
import importlib
import json
import logging
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

import riskband as rb
from riskband.flower.testing import Delivery
from simulations.launcher import COMPLETED, private_superlink
from tests.server.running import run_app

PROJECT = Path(__file__).resolve().parents[2]
LOGS = PROJECT / "tests" / "evaluations"
EXAMPLE = PROJECT / "examples" / "tenant-evaluation"
SCENARIO = tomllib.loads((EXAMPLE / "tenants.toml").read_text())
CANARY = "Zeisig-4711"  # stands in every prompt, target and output
HARNESS = {"tool": "lm_eval", "score": "acc"}
INSPECT = {"tool": "inspect", "score": "match"}
OWN = {"evaluator": "tenant_evaluation:logged_risk"}
BROKEN = """
from riskband.checks import RefusedError

def risk(context): raise kinds[context.node_config["kind"]](context.node_config["words"])

kinds = {"plain": RuntimeError, "ours": RefusedError, "end": SystemExit}
"""


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The folder of the example, where a client finds its modules."""
    monkeypatch.syspath_prepend(EXAMPLE)
    yield
    for name in ("tenant_evaluation", "simulated_tenants", "broken_tenants"):
        sys.modules.pop(name, None)


def node(**own):
    return SimpleNamespace(node_config=own)


def with_canary(text):
    """What a tool wrote, where every question, and so every prompt, target and output, has the canary in it."""
    for word in ('"2 + 2 =', '"law ', '"history ', '"algebra ', '"False', '"4"', '"target": "'):
        text = text.replace(word, f"{word[:-1]}{CANARY}{word[-1]}" if word == '"4"' else f"{word} {CANARY} ")
    return text


def harness_logs(folder, tenant):
    """The samples that lm-evaluation-harness wrote, but the first ones of each subject, as many as the tenant says."""
    folder.mkdir(parents=True)
    for file in (LOGS / "lm_eval").iterdir():
        lines = with_canary(file.read_text()).splitlines()[tenant % 3 :]
        (folder / file.name).write_text("\n".join(lines))
    return folder


def inspect_log(path):
    text = gzip.decompress((LOGS / "inspect.json.gz").read_bytes()).decode()
    path.write_text(with_canary(text))
    return path


def written(folder):
    """All bytes below a folder."""
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


@pytest.fixture
def run(tmp_path, defaults):
    """Runs the scenario of the example over nodes with these configurations; what they sent is in `run.sent`."""
    sent = []

    def recorded(message, answer):
        reply = answer(message)
        sent.extend(part.deflate() for part in get_all_nested_objects(reply).values())
        yield Delivery(reply)

    def running(configs, **changes):
        configs = {k: {"client-id": f"client-{k:05d}"} | own for k, own in enumerate(configs)}
        scenario = {key.replace("-", "_"): value for key, value in SCENARIO.items()}
        settings = scenario | {"evaluator": "own", "num_clients": len(configs), "reply_timeout": 300.0} | changes
        behaviours = dict.fromkeys(configs, recorded)
        return run_app(tmp_path / "out", defaults, node_configs=configs, behaviours=behaviours, **settings)

    running.sent = sent
    return running


PARROT = """
from inspect_ai.model import ModelAPI, ModelOutput, modelapi
from tenant_evaluation import risk

@modelapi("parrot")
class Parrot(ModelAPI):
    async def generate(self, input, **options):
        if "unspeakable" in input[-1].text:
            raise RuntimeError(f"cannot say {input[-1].text}")
        return ModelOutput.from_content(self.model_name, input[-1].text)
"""


def test_the_mean_loss_of_a_log_is_what_the_tool_itself_counted(tmp_path):
    module = importlib.import_module("tenant_evaluation")
    log = inspect_log(tmp_path / "log.json")
    accuracy = json.loads(log.read_text())["results"]["scores"][0]["metrics"]["accuracy"]["value"]
    assert module.logged_risk(node(log=str(log), **INSPECT)) == (pytest.approx(1.0 - accuracy), 32)
    for own, problem in {
        ("score", "macth"): "--column must be one of match, includes, got 'macth'",
        ("tool", "lmeval"): "the tool must be one of inspect, lm_eval, got 'lmeval'",
        ("errors", "missing"): "errors must be wrong or leave_out, got 'missing'",
    }.items():
        with pytest.raises(ValueError, match=problem):
            module.logged_risk(node(**{"log": str(log), **INSPECT, own[0]: own[1]}))
    with pytest.raises(ValueError, match="must have tool, log and score, got no tool and no score"):
        module.logged_risk(node(log=str(log)))
    lines = [json.loads(line) for file in (LOGS / "lm_eval").iterdir() for line in file.read_text().splitlines()]
    expected = 1.0 - np.mean([line["acc"] for line in lines])
    assert module.logged_risk(node(log=str(LOGS / "lm_eval"), **HARNESS)) == (pytest.approx(expected), len(lines))


def test_tenants_with_logs_are_certified_and_no_prompt_target_or_output_leaves(tmp_path, run):
    logs = [harness_logs(tmp_path / "tenants" / str(k), k) for k in range(12)]
    report = run([{**OWN, **HARNESS, "log": str(log)} for log in logs])
    expected = []
    for log in logs:
        lines = [json.loads(line) for file in log.iterdir() for line in file.read_text().splitlines()]
        expected.append((sum(line["acc"] == 0.0 for line in lines), len(lines)))
    stored = json.loads((tmp_path / "out" / "certificates" / "mean.json").read_text())
    answers = rb.ClientRisks(**stored["recipe"]["answers"])
    assert sorted(np.round(answers.values * answers.num_examples)) == sorted(wrong for wrong, _ in expected)
    assert sorted(answers.num_examples) == sorted(size for _, size in expected)
    assert {each["requirement"] for each in report["gate"]["requirements"]} == set(SCENARIO["require"].split(","))
    assert rb.verify(stored).ok
    assert written(tmp_path / "tenants").count(CANARY.encode()) > 12 * 12 * 3
    for seen in (b"".join(run.sent), written(tmp_path / "out")):
        assert b"client-00003" in seen  # it can be read
        assert CANARY.encode() not in seen


def a_line_that_is_no_json(folder):
    log = harness_logs(folder / "line", 0)
    next(log.iterdir()).write_text(f'{{"doc": "{CANARY}')
    return {**OWN, **HARNESS, "log": str(log)}


def a_score_that_is_no_number(folder):
    log = harness_logs(folder / CANARY, 0)
    for file in log.iterdir():
        file.write_text(file.read_text().replace('"acc": ', f'"acc": "{CANARY}", "was": '))
    return {**OWN, **HARNESS, "log": str(log)}


def a_log_of_an_evaluation_that_failed(folder):
    log = inspect_log(folder / f"{CANARY}.json")
    log.write_text(log.read_text().replace('"status": "success"', f'"status": "{CANARY}"'))
    return {**OWN, **INSPECT, "log": str(log)}


def raises(kind):
    return lambda folder: {"evaluator": "broken_tenants:risk", "kind": kind, "words": f"cannot answer {CANARY}"}


BROKEN_TENANTS = [
    a_line_that_is_no_json,
    a_score_that_is_no_number,
    a_log_of_an_evaluation_that_failed,
    *map(raises, ("plain", "ours", "end")),
]


def test_no_prompt_leaves_in_the_words_of_an_error(tmp_path, run, monkeypatch, caplog):
    (tmp_path / "broken_tenants.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    broken = [make(tmp_path / "tenants") for make in BROKEN_TENANTS]
    honest = {**OWN, **HARNESS, "log": str(LOGS / "lm_eval")}
    with caplog.at_level(logging.ERROR):
        report = run([*broken, *[honest] * 4], quorum=0.4)
    assert report["network"]["num_answered"] == 4
    assert CANARY in caplog.text  # in the tenants' own logs
    for seen in (b"".join(run.sent), written(tmp_path / "out")):
        assert b"client-00000" in seen
        assert b"the details are in this client's own log" in seen
        assert CANARY.encode() not in seen


def needs(tool):
    return pytest.importorskip(tool, reason=f"{tool} is not installed")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of inspect
def test_simulated_tenants_run_inspect_and_the_model_is_wrong_where_there_is_a_carry(tmp_path, run):
    needs("inspect_ai")
    module = importlib.import_module("simulated_tenants")
    report = run([{"evaluator": "simulated_tenants:risk"}] * 3)
    sums = [[sample.input.split()[::2] for sample in module.prompts_of(tenant)] for tenant in range(3)]
    wrong = [sum(int(one[-1]) + int(other[-1]) > 9 for one, other in found) for found in sums]
    stored = json.loads((tmp_path / "out" / "certificates" / "mean.json").read_text())
    assert sorted(stored["recipe"]["answers"]["values"]) == pytest.approx(sorted(each / 50 for each in wrong))
    assert sum(wrong) > 0
    assert report["network"]["mean_empirical_risk"] == pytest.approx(sum(wrong) / 150)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of inspect
def test_inspect_runs_on_a_tenants_own_prompts_and_they_stay_also_if_the_model_raises(
    tmp_path, run, monkeypatch, caplog
):
    needs("inspect_ai")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "parrots.py").write_text(PARROT)
    own = []
    for tenant in range(5):
        lines = [{"input": f"{CANARY}-{k}", "target": f"{CANARY}-{min(k, tenant + 2)}"} for k in range(10)]
        lines += [{"input": f"{CANARY} unspeakable", "target": CANARY}] if tenant == 4 else []
        file = tmp_path / f"{tenant}.jsonl"
        file.write_text("\n".join(map(json.dumps, lines)))
        own.append({"evaluator": "parrots:risk", "prompts": str(file), "language-model": "parrot/grey"})
    # Inspect, and a library that another test has loaded before, may have switched Flower's log off.
    for setting, usual in (("disabled", False), ("propagate", True)):
        monkeypatch.setattr(logging.getLogger("flwr"), setting, usual)
    with caplog.at_level(logging.ERROR):
        report = run(own, quorum=0.8)
    assert report["network"]["mean_empirical_risk"] == pytest.approx(np.mean([0.7, 0.6, 0.5, 0.4]))
    assert f"cannot say {CANARY} unspeakable" in caplog.text
    for seen in (b"".join(run.sent), written(tmp_path / "out")):
        assert b"client-00004" in seen
        assert b"the details are in this client's own log" in seen
        assert CANARY.encode() not in seen


@pytest.mark.slow
def test_a_log_that_lm_evaluation_harness_has_just_written_says_what_it_printed(tmp_path):
    needs("lm_eval")
    tasks = [f"toy_{subject}" for subject in ("algebra", "history", "law")]
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "dummy", "--tasks", *tasks, "--log_samples"]
    command += ["--include_path", str(LOGS / "lm_eval_tasks"), "--output_path", str(tmp_path)]
    subprocess.run(command, cwd=LOGS / "lm_eval_tasks", check=True, capture_output=True)
    (file,) = tmp_path.rglob("results_*.json")
    printed = [found["acc,none"] for found in json.loads(file.read_text())["results"].values()]
    module = importlib.import_module("tenant_evaluation")
    assert module.logged_risk(node(log=str(tmp_path), **HARNESS)) == (pytest.approx(1.0 - np.mean(printed)), 18)


@pytest.mark.slow
def test_real_nodes_tell_a_real_superlink_the_score_and_nothing_of_a_prompt(tmp_path):
    config = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"] | SCENARIO
    config |= {"evaluator": "own", "num-clients": 3, "quorum": 0.6, "client-ids": "any", "node-timeout": 180.0}
    config |= {"output-dir": str(tmp_path / "out"), "figure-format": "none", "reply-timeout": 300.0}
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "broken_tenants.py").write_text(BROKEN)
    paths = os.pathsep.join([str(EXAMPLE), str(tmp_path / "modules")])
    own = [f'evaluator="broken_tenants:risk" kind="plain" words="{CANARY}"']
    for k in (1, 2):
        log = harness_logs(tmp_path / "tenants" / str(k), k)
        own.append(f'evaluator="tenant_evaluation:logged_risk" tool="lm_eval" score="acc" log="{log}"')
    with private_superlink(is_simulation=False, environment={"PYTHONPATH": paths}) as superlink:
        for k, more in enumerate(own):
            superlink.start_supernode(partition_id=k, num_partitions=3, own=f'client-id="tenant-{k}" {more}')
        superlink.start_run(PROJECT, num_supernodes=None, run_config=config).wait(200)
        assert superlink.run_status().status == COMPLETED, superlink.log_tail()
        logs = list(superlink.home.glob("supernode-*.log"))
        assert CANARY in "".join(log.read_text() for log in logs)
        for log in logs:
            log.unlink()
        seen = written(superlink.home) + written(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "report.json").read_text())["network"]["num_answered"] == 2
    assert seen.count(b"tenant-1") > 1
    assert CANARY.encode() not in seen
