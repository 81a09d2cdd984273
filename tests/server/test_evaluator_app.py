"""Clients of any kind: scikit-learn's models, judged by functions of the clients' own, over the in-process grid."""

from __future__ import annotations

import html
import json
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict

import riskband as rb
from client.data import data_place
from client.evaluator import NO_MODEL, evaluated, evaluator_of, evaluator_place
from protocol.questions import LossQuery
from riskband.checks import RefusedError
from riskband.functionals.functional import interval_of
from server.config import load_config
from server.problems import ConfigError
from strategies.asking.query import QuorumError
from tests.server.running import run_app
from worlds import federations

SCENARIO = Path(__file__).resolve().parents[2] / "simulations" / "scenarios" / "insteval.toml"
FOREST = """
import numpy as np
from riskband.checks import RefusedError
from sklearn.datasets import load_digits
from sklearn.tree import DecisionTreeClassifier

X, Y = load_digits(return_X_y=True)
MODEL = DecisionTreeClassifier(max_depth=8, random_state=0).fit(X[:900], Y[:900])
NUM_CLIENTS = 12


def own(number):
    rows = np.arange(900 + number, len(X), NUM_CLIENTS)
    return X[rows], Y[rows]


def risk(context):
    x, y = own(context.node_config["partition-id"])
    return 1.0 - MODEL.score(x, y), len(y)


def brier(context):
    x, y = own(context.node_config["partition-id"])
    said = MODEL.predict_proba(x) - np.eye(10)[y]
    return float((said ** 2).sum(axis=1).mean() / 2), len(y)


def two(context, more=0): return 0.5, 10
def percent(context): return 12.5, 10
def nothing(context): return None
def empty(context): return 0.5, 0
def broken(context): raise ValueError("the secret of hospital 7")
def refused(context): raise RefusedError("the secret of hospital 7")  # as a library may that the function calls
def half(context): return 0.55, 10
"""

EVALUATED = {"dataset": "none", "num_unseen": 0}


@pytest.fixture(scope="module", autouse=True)
def forest(tmp_path_factory):
    """The module of the clients' owners, importable as `my_forest`."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "my_forest.py").write_text(FOREST)
    sys.path.insert(0, str(folder))
    import my_forest

    yield my_forest
    sys.path.remove(str(folder))
    del sys.modules["my_forest"]


def true_risks(forest):
    return [1.0 - forest.MODEL.score(*forest.own(k)) for k in range(forest.NUM_CLIENTS)]


def test_a_scikit_learn_model_is_certified_as_it_stands(tmp_path, defaults, forest):
    report = run_app(tmp_path, defaults, evaluator="my_forest:risk", require="mean<=0.6", **EVALUATED)
    expected = true_risks(forest)
    stored = json.loads((tmp_path / "certificates" / "mean.json").read_text())
    assert sorted(stored["recipe"]["answers"]["values"]) == pytest.approx(sorted(expected))
    assert stored["recipe"]["answers"]["binary"] is True
    assert report["network"]["mean_empirical_risk"] == pytest.approx(np.mean(expected))
    assert report["gate"]["verdict"] == "PASS"
    page = html.unescape((tmp_path / "report.html").read_text())
    assert "each client's own function (my_forest:risk); nothing ties the answers to one model" in page
    assert report["hashes"]["model"] not in page  # the hash of no weights
    assert report["hashes"]["code"] in page
    assert rb.verify(stored).ok
    answers = rb.ClientRisks(**stored["recipe"]["answers"])
    assert stored["value"] == interval_of(answers, "mean", delta=stored["delta"]).upper
    assert report["metrics"]["bytes_sent"] < 12 * 2_000  # no model travels


def test_another_loss_and_the_owners_function_first(tmp_path, defaults, forest):
    own = {k: {"client-id": f"client-{k:05d}", "partition-id": k, "evaluator": "my_forest:brier"} for k in range(12)}
    report = run_app(
        tmp_path, defaults, evaluator="own", loss="own", strategy="dispersion", node_configs=own, **EVALUATED
    )
    stored = json.loads((tmp_path / "certificates" / "mean.json").read_text())["recipe"]["answers"]
    assert stored["binary"] is False
    assert report["network"]["mean_empirical_risk"] == pytest.approx(
        np.mean([forest.brier(_Context(k))[0] for k in range(12)])
    )


class _Context:
    def __init__(self, number):
        self.node_config = {"partition-id": number}


TINY_BERT = """
import torch
from transformers import BertConfig, BertForSequenceClassification

SIZES = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
torch.manual_seed(0)
MODEL = BertForSequenceClassification(BertConfig(**SIZES, max_position_embeddings=16, num_labels=2)).eval()


def own(number):
    draw = torch.Generator().manual_seed(number)
    words = torch.randint(0, 50, (30, 8), generator=draw)
    return words, (words[:, 0] + number > 25).long()


def risk(context):
    words, labels = own(context.node_config["partition-id"])
    with torch.inference_mode():
        said = MODEL(input_ids=words).logits.argmax(dim=1)
    return float((said != labels).double().mean()), len(labels)
"""


@pytest.mark.slow
def test_a_transformer_is_certified_as_it_stands(tmp_path, defaults, monkeypatch):
    pytest.importorskip("transformers", reason="transformers is not installed")
    (tmp_path / "my_bert.py").write_text(TINY_BERT)
    monkeypatch.syspath_prepend(tmp_path)
    import my_bert

    run_app(tmp_path / "out", defaults, evaluator="my_bert:risk", **EVALUATED)
    stored = json.loads((tmp_path / "out" / "certificates" / "mean.json").read_text())
    expected = []
    for number in range(12):
        words, labels = my_bert.own(number)
        said = [int(my_bert.MODEL(input_ids=row[None]).logits.argmax()) for row in words]
        expected.append(sum(one != other for one, other in zip(said, labels.tolist(), strict=True)) / 30)
    assert stored["recipe"]["answers"]["values"] == expected
    assert rb.verify(stored).ok


@pytest.mark.slow
def test_boosted_trees_are_certified_as_they_stand(tmp_path, defaults, monkeypatch):
    xgboost = pytest.importorskip("xgboost", reason="xgboost is not installed")
    trees = xgboost.XGBClassifier(n_estimators=5, max_depth=3, n_jobs=1)
    import my_forest

    trees.fit(my_forest.X[:900], my_forest.Y[:900])
    monkeypatch.setattr(my_forest, "MODEL", trees)
    run_app(tmp_path, defaults, evaluator="my_forest:risk", **EVALUATED)
    stored = json.loads((tmp_path / "certificates" / "mean.json").read_text())
    assert stored["recipe"]["answers"]["values"] == pytest.approx(true_risks(my_forest))


@pytest.mark.slow
def test_counts_alone_can_be_asked_for(tmp_path, defaults, forest):
    secure = {"strategy": "secure_histogram", "histogram_sizes": "private", "secure_neighbours": 10}
    report = run_app(tmp_path, defaults, evaluator="my_forest:risk", **secure, **EVALUATED)
    counts = np.array(report["secure_aggregation"]["counts"])
    edges = np.linspace(0.0, 1.0, counts.shape[1] + 1)
    expected = [np.searchsorted(edges, risk - 1e-12) - 1 for risk in true_risks(forest)]
    assert counts[-1].tolist() == np.bincount(np.maximum(expected, 0), minlength=counts.shape[1]).tolist()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("two", "must have one parameter, called context"),
        ("percent", "must be a number in [0, 1]"),
        ("nothing", "must return the mean loss and the number of examples"),
        ("empty", "must be a whole number from 1"),
        ("missing", "must be importable, got AttributeError"),
    ],
)
def test_a_function_that_says_no_mean_loss_is_refused(name, said):
    own = {"partition-id": 3, "evaluator": f"my_forest:{name}"}
    context = Context(run_id=1, node_id=1, node_config=own, state=RecordDict(), run_config={})
    with pytest.raises(RefusedError) as caught:
        evaluated(evaluator_of(LossQuery("zero_one", NO_MODEL, (), 0), context), context)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("own", "kind", "words"),
    [({"evaluator": "my_forest:refused"}, ValueError, "^$"), ({}, RefusedError, "secret")],
    ids=["an owner's", "simulated"],
)
def test_words_of_a_library_reach_nobody_but_in_a_simulation(own, kind, words):
    run_config = {"evaluator": "my_forest:refused"}
    context = Context(run_id=1, node_id=1, node_config=own, state=RecordDict(), run_config=run_config)
    with pytest.raises(kind, match=words) as caught:
        evaluated(evaluator_of(LossQuery("zero_one", NO_MODEL, (), 0), context), context)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken", "calling the client's evaluator failed with ValueError; the details are in"),
        ("half", "a zero_one risk is a whole number out of num_examples, got 0.55 of 10"),
    ],
)
def test_what_the_function_raises_stays_with_the_client_and_what_cannot_be_is_found(tmp_path, defaults, name, said):
    with pytest.raises(QuorumError) as caught:
        run_app(tmp_path, defaults, evaluator=f"my_forest:{name}", num_clients=2, **EVALUATED)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("own", [{}, {"data": "my_forest:own"}])
def test_a_server_names_no_function_to_a_client_with_a_name_unless_it_may(tmp_path, defaults, own):
    def configs(**more):
        return {k: {"client-id": f"client-{k:05d}", "partition-id": k, **own, **more} for k in range(2)}

    asked = {"evaluator": "my_forest:risk", "num_clients": 2, **EVALUATED}
    with pytest.raises(QuorumError, match="it is not for a server to choose what a client runs"):
        run_app(tmp_path / "refused", defaults, node_configs=configs(), **asked)
    allowed = configs(**{"allow-run-dataset": True, "allow-modules": "my_forest"})
    assert run_app(tmp_path / "allowed", defaults, node_configs=allowed, **asked)["network"]["num_answered"] == 2
    noisy = {"privacy-budget": "laplace:1", "privacy-budget-file": str(tmp_path / "p.sqlite")}
    private = configs(evaluator="my_forest:risk", **noisy)
    with pytest.raises(QuorumError, match="noise on answers, and a privacy-budget, need a model"):
        run_app(tmp_path / "private", defaults, node_configs=private, **asked)


@pytest.mark.parametrize(
    "own", [{"query-budget": 5}, {"client-id": "north"}, {"data": "my_forest:own"}, {"group": "a"}]
)
def test_of_a_node_that_somebody_configured_a_run_names_no_evaluator(own):
    run = {"evaluator": "my_forest:risk"}
    assert evaluator_place({"partition-id": 0, "num-partitions": 2}, run) == "my_forest:risk"
    leave = {"allow-run-dataset": True, "allow-modules": "my_forest"}
    assert evaluator_place({"partition-id": 0, **own, **leave}, run) == "my_forest:risk"
    with pytest.raises(RefusedError, match="it is not for a server to choose"):
        evaluator_place({"partition-id": 0, **own}, run)


def test_of_a_node_with_an_evaluator_a_run_names_no_data():
    with pytest.raises(RefusedError, match="it is not for a server to choose"):
        data_place({"partition-id": 0, "evaluator": "my_forest:risk"}, {"dataset": "os:getcwd"})


@pytest.mark.slow
def test_the_query_budget_counts_what_an_evaluator_says(tmp_path, defaults):
    limit = {"evaluator": "my_forest:risk", "query-budget": 1}
    own = {k: {"partition-id": k, "query-budget-file": str(tmp_path / f"{k}.sqlite"), **limit} for k in range(2)}
    asked = {"evaluator": "own", "num_clients": 2, "node_configs": own, **EVALUATED}
    run_app(tmp_path / "first", defaults, **asked)
    with pytest.raises(QuorumError, match="query budget of 1 values"):
        run_app(tmp_path / "second", defaults, **asked)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"evaluator": "my_forest"}, "evaluator is not valid"),
        ({"dataset": "digits"}, "evaluator is not valid"),
        ({"num-unseen": 5}, "num-unseen"),
        ({"strategy": "selection"}, "with an evaluator use f_divergence or secure_histogram or dispersion"),
        ({"strategy": "wasserstein"}, "strategy is not valid"),
        ({"loss": "brier"}, 'with an evaluator zero_one, or "own"'),
        ({"privacy": "laplace:1"}, "nor with an evaluator"),
        ({"evaluator": "", "loss": "own"}, "loss is not valid"),
        ({"evaluator": ""}, "x-shape"),
    ],
)
def test_what_does_not_fit_an_evaluator_is_refused_at_once(defaults, changes, said):
    usual = {**defaults, "dataset": "none", "num-unseen": 0, "evaluator": "my_forest:risk"}
    load_config(usual)
    with pytest.raises(ConfigError) as caught:
        load_config(usual | changes)
    assert said in str(caught.value)


@pytest.mark.slow
def test_lecturers_are_certified_by_those_who_train_no_model(tables, defaults, tmp_path):
    scenario = tomllib.loads(SCENARIO.read_text(encoding="utf-8"))
    report = run_app(tmp_path, defaults, **scenario | {"num-clients": 60})
    assert report["network"]["num_answered"] == 60
    risks = federations.evaluated("insteval-lecturers").answers.values
    assert risks.mean() <= report["certificates"]["mean"]["value"] < 0.4
