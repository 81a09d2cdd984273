"""Certificates in experiment trackers, and answers from fairlearn; each test is skipped where its package is not."""

import numpy as np
import pandas as pd
import pytest

import riskband as rb

RISKS = rb.ClientRisks([0.1, 0.2, 0.05, 0.3] * 5, 100, names=[f"H{k}" for k in range(20)])
CERTIFICATES = {
    "mean": rb.mean_bound(RISKS, delta=0.05),
    "quantile:0.5": rb.dispersion_certificate(RISKS, "quantile:0.5", delta=0.05),
    "curve": rb.worst_case_mean(rb.band(RISKS, delta=0.05), divergence="kl", budget=[0.1, 0.2]),
}


def estimate():
    return rb.mean_bound(rb.ClientRisks(RISKS.values, 100, answered_by="trainers"), delta=0.05)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_numbers_sentences_and_files_that_verify(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    from riskband.tracking import log_to_mlflow

    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    with mlflow.start_run() as run:
        log_to_mlflow(estimate())
        log_to_mlflow(CERTIFICATES, step=3)  # what is logged last has the sentence and the file of its name
    found = mlflow.get_run(run.info.run_id).data
    median = CERTIFICATES["quantile:0.5"]
    assert found.metrics == {
        "riskband/mean/certificate/upper": CERTIFICATES["mean"].value,
        "riskband/quantile:0.5/certificate/upper": median.value,
        "riskband/quantile:0.5/certificate/lower": median.lower,
        "riskband/mean/estimate/upper": estimate().value,
    }
    assert found.tags["riskband/mean"] == CERTIFICATES["mean"].statement
    assert "carried by" in found.tags["riskband/curve"]
    for name, certificate in CERTIFICATES.items():
        text = mlflow.artifacts.load_text(f"runs:/{run.info.run_id}/riskband/{name}.json")
        assert text == certificate.to_json()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_has_them_too(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    from riskband.tracking import log_to_wandb

    with pytest.raises(ValueError, match=r"call wandb\.init"):
        log_to_wandb(CERTIFICATES)
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staging"))
    with wandb.init(mode="offline", dir=tmp_path, project="hospitals") as run:
        log_to_wandb(CERTIFICATES)
        assert run.summary["riskband/mean/certificate/upper"] == CERTIFICATES["mean"].value
        assert run.summary["riskband/mean"] == CERTIFICATES["mean"].statement
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    kept = {text.decode() for text in files if text.startswith(b'{\n "schema": "riskband.certificate')}
    assert kept == {certificate.to_json() for certificate in CERTIFICATES.values()}


def test_what_is_no_certificate_is_not_logged(monkeypatch):
    from riskband.tracking import _by_name

    with pytest.raises(ValueError, match="must be certificates, by name, got another thing as 'mean'"):
        _by_name({"mean": 0.2})


def frame(metrics, hospitals):
    fairlearn = pytest.importorskip("fairlearn.metrics")
    labels, said = np.array([0, 1, 1, 0, 1, 0]), np.array([0, 1, 0, 0, 0, 0])
    named = {"error": lambda y_true, y_pred: np.mean(y_true != y_pred), "n": fairlearn.count}
    return fairlearn.MetricFrame(
        metrics={name: named[name] for name in metrics}, y_true=labels, y_pred=said, sensitive_features=hospitals
    )


def test_a_metric_frame_of_fairlearn_has_a_client_for_each_value_of_its_feature():
    made = frame(["error", "n"], pd.Series(list("AABBCC"), name="hospital"))
    found = rb.ClientRisks.from_metric_frame(made, loss="error", num_examples="n", answered_by="trainers")
    assert found == rb.ClientRisks([0, 0.5, 0.5], 2, True, names=["A", "B", "C"], answered_by="trainers")


def test_a_metric_frame_is_read_as_other_frames_are():
    said = pd.DataFrame({"hospital": list("AABBCC"), "ward": list("xxyyxx")})
    fairlearn = pytest.importorskip("fairlearn.metrics")
    percent = {"acc": lambda y_true, y_pred: 100 * np.mean(y_true == y_pred), "n": fairlearn.count}
    labels, answers = np.array([0, 1, 1, 0, 1, 0]), np.array([0, 1, 0, 0, 0, 0])
    made = fairlearn.MetricFrame(metrics=percent, y_true=labels, y_pred=answers, sensitive_features=said)
    settings = {"accuracy": "acc", "num_examples": "n", "percent": True, "group": "ward", "num_missing": 1}
    found = rb.ClientRisks.from_metric_frame(made, **settings)
    known = rb.ClientRisks([0, 0.5, 0.5], 2, names=["A", "B", "C"], groups=["x", "y", "x"], num_missing=1)
    assert found == known


def test_what_is_no_table_of_clients_is_refused():
    two = frame(["error", "n"], pd.DataFrame({"h": list("AABBCC"), "ward": list("xxyyxx")}))
    with pytest.raises(ValueError, match="one sensitive feature, whose values are the clients, got h, ward"):
        rb.ClientRisks.from_metric_frame(two, loss="error", num_examples="n")
    with pytest.raises(ValueError, match="column 'n'"):
        rb.ClientRisks.from_metric_frame(frame(["error"], list("AABBCC")), loss="error", num_examples="n")
    with pytest.raises(ValueError, match="must be a MetricFrame of fairlearn with named metrics"):
        rb.ClientRisks.from_metric_frame({"error": [0.1]}, loss="error", num_examples=10)
