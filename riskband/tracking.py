"""Certificates in experiment trackers: MLflow and Weights & Biases, which are loaded only where they are used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from riskband.certificate import Certificate
from riskband.checks import check_installed


def log_to_mlflow(certificates: Certificate | Mapping[str, Certificate], *, step: int | None = None) -> None:
    """Add certificates to the active run of MLflow, which begins if there is none.

    A bound that is one number becomes a metric "riskband/NAME/VALIDITY/upper" (and "/lower"), so that an estimate is
    never drawn among certificates; each sentence a tag; each certificate a file "riskband/NAME.json", for
    ``riskband verify``. The files hold what the clients answered.

    Parameters
    ----------
    certificates : Certificate or mapping of str to Certificate
        By name; one alone has the name of the function that made it.
    step : int, optional
        Of the metrics, such as the round.

    Raises
    ------
    ImportError
        If MLflow is not installed: ``pip install "riskband[tracking]"``.
    """
    check_installed("mlflow", extra="tracking")
    import mlflow

    for name, certificate in _by_name(certificates).items():
        mlflow.log_metrics(dict(_numbers(name, certificate)), step=step)
        mlflow.set_tag(f"riskband/{name}", str(certificate))
        mlflow.log_text(certificate.to_json(), f"riskband/{name}.json")


def log_to_wandb(certificates: Certificate | Mapping[str, Certificate], *, run: Any = None) -> None:
    """Add certificates to a run of Weights & Biases, as `log_to_mlflow` does: numbers and sentences to its summary.

    The run is by default the one that ``wandb.init`` began last; raises ValueError if there is none, and as there.
    """
    check_installed("wandb", extra="tracking")
    import wandb

    run = wandb.run if run is None else run
    if run is None:
        raise ValueError("a run of Weights & Biases must have begun, got none; call wandb.init() first")
    files = wandb.Artifact("riskband", type="certificate")
    for name, certificate in _by_name(certificates).items():
        run.summary.update({**dict(_numbers(name, certificate)), f"riskband/{name}": str(certificate)})
        with files.new_file(f"{name}.json", encoding="utf-8") as file:
            file.write(certificate.to_json())
    run.log_artifact(files)


def _by_name(certificates: Certificate | Mapping[str, Certificate]) -> Mapping[str, Certificate]:
    if isinstance(certificates, Certificate):
        return {certificates.name: certificates}
    wrong = [name for name, each in certificates.items() if not isinstance(each, Certificate)]
    if wrong:
        raise ValueError(f"what is logged must be certificates, by name, got another thing as {wrong[0]!r}")
    return certificates


def _numbers(name: str, certificate: Certificate) -> Iterator[tuple[str, float]]:
    """The ends of a bound that is one number; a curve is in its file."""
    if certificate.axes:
        return
    key = f"riskband/{name}/{certificate.validity}"
    if not certificate.is_open:
        yield f"{key}/upper", float(certificate.value)
    if certificate.lower is not None:
        yield f"{key}/lower", float(certificate.lower)
