"""The run configuration: one typed object, or every mistake at once.

Flower hands an app a flat mapping with hyphenated keys. The defaults live in one place, the table
``[tool.flwr.app.config]`` of pyproject.toml; a scenario file or ``-c`` replaces some of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from client.identity import client_id
from protocol.models import MAX_NUM_CLASSES
from protocol.secure.questions import MAX_BINS
from riskband import DIVERGENCES
from riskband.adversaries.losses import LOSSES
from riskband.adversaries.problem import TransportProblem
from riskband.adversaries.registry import NORMS
from riskband.answers.responses import ANSWERED_BY, MISSING
from riskband.bands.methods import resolve_level_method
from riskband.functionals.functional import BOUND_METHODS, FUNCTIONALS, functional
from riskband.selection import SELECTION_METHODS, Objective
from server import inputs, secure, spaces
from server.privacy import PRIVACY_RULE, fits_run
from server.problems import ConfigError, problem
from server.run.folder import FIGURE_SUFFIXES
from strategies.asking.replies import num_needed

__all__ = ["ConfigError", "RunConfig", "load_config"]

Value = TypeVar("Value")


def _split(value: object) -> object:
    """Flower's run configuration has no lists: ``"kl,chi2"`` and ``0.1`` both mean a list."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return (value,) if isinstance(value, int | float) else value


TRAINING_CLIENTS_RULE = (
    'with training "fedavg" so many clients, at most num-clients, train and never answer; 0 means: num-clients'
)

# The description of a field is the remedy that its error messages end with.
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Names = Annotated[tuple[str, ...], BeforeValidator(_split), Field(min_length=1)]
AnyCounts = Annotated[tuple[Count, ...], BeforeValidator(_split)]
Ends = Annotated[tuple[float, ...], BeforeValidator(_split)]
AnyNumbers = Annotated[tuple[Annotated[float, Field(ge=0)], ...], BeforeValidator(_split)]
Numbers = Annotated[AnyNumbers, Field(min_length=1)]


class RunConfig(BaseModel):
    """Everything that decides a run. Build it with `load_config`.

    The attributes are the keys of ``[tool.flwr.app.config]`` with underscores for hyphens; what each
    means stands beside it there. Comma-separated keys are tuples here.
    """

    model_config = ConfigDict(
        alias_generator=lambda name: name.replace("_", "-"),
        allow_inf_nan=False,
        coerce_numbers_to_str=True,
        extra="forbid",
        frozen=True,
    )

    scenario: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="it names the result folder: letters, digits, '.', '_' and '-' only",
    )
    seed: int = Field(ge=0, lt=2**63, description="the same seed gives the same report")

    dataset: str = Field(description=inputs.DATASET_RULE)
    x_shape: AnyCounts = Field(description=inputs.X_SHAPE_RULE)
    num_classes: int = Field(ge=0, le=MAX_NUM_CLASSES, description=inputs.NUM_CLASSES_RULE)
    num_clients: int = Field(ge=2, description="the spread between clients cannot be seen in one client")
    num_unseen: int = Field(ge=0, description=inputs.NUM_UNSEEN_RULE)
    examples_per_client: Count = Field(description="every client answers from this many examples")
    affine_sigma: float = Field(ge=0, le=1e6, description="0 means: no affine shift")
    dirichlet_concentration: float = Field(ge=0, le=1e6, description="0 means: no label shift; small means strong")
    group_sigmas: AnyNumbers = Field(
        description='give different strengths up to 1e6 such as "0.1,0.3", or "" for no groups'
    )

    model: str = Field(min_length=1, description='use "cnn", "mlp" or "module:factory"')
    training: Literal["central", "fedavg", "checkpoint"] = Field(description=inputs.TRAINING_RULE)
    checkpoint: str = Field(description="give the absolute path of an existing file that worlds.training saved")
    training_rounds: Count = Field(description='rounds of FedAvg; only used when training is "fedavg"')
    num_training_clients: int = Field(ge=0, description=TRAINING_CLIENTS_RULE)
    training_epochs: Count = Field(description="passes over the training examples (per round in FedAvg)")
    learning_rate: float = Field(gt=0, le=1, description="0.001 to 0.1 is usual")

    strategy: Literal["f_divergence", "wasserstein", "dispersion", "selection", "secure_histogram"]
    loss: str = Field(description=f"use one of {', '.join(sorted(LOSSES))}")
    delta: float = Field(ge=1e-6, lt=1, description="delta is the probability of failure, not the confidence")
    breakdown_threshold: Fraction = Field(description="a client fails when its risk reaches this loss, in [0, 1]")
    breakdown_target: float = Field(gt=0, lt=1, description="the share of failing clients, or mean risk, you accept")

    band: str = Field(description='use "berk_jones", "dkw", or "truncated:0.5:0.95" for levels in a range only')
    local: Literal["marginal", "counted", "union", "observed"]
    divergences: Names = Field(description=f"give a comma-separated list of {', '.join(DIVERGENCES)}")
    budgets: Numbers = Field(description='give a comma-separated list such as "0.05,0.1"; 0 means no shift')
    thresholds: int = Field(ge=1, le=10_000, description="the number of risks at which curves are read")

    histogram_bins: int = Field(ge=1, le=MAX_BINS, description="the number of bins of equal width; 50 is plenty")
    histogram_sizes: str = Field(description=secure.SIZES_RULE)
    secure_neighbours: int = Field(ge=2, multiple_of=2, description=secure.NEIGHBOURS_RULE)

    measures: Names = Field(
        description=f'give different ones such as "gini,atkinson:0.5"; the names are {", ".join(sorted(FUNCTIONALS))}'
    )
    dispersion_method: str = Field(description=f"use one of {', '.join(BOUND_METHODS)}")

    candidate_epochs: AnyCounts = Field(
        description='give different numbers from 1 to training-epochs such as "1,2,5"; only training "central" has '
        'checkpoints on its way, for the others give ""'
    )
    abstention_thresholds: AnyNumbers = Field(
        description='give different probabilities such as "0.5,0.8", or ""; they need the loss zero_one, since losses '
        "that mean other things cannot be compared"
    )
    objective: str = Field(
        description='give a sum such as "mean+0.5*gini" of mean, cvar:0.9, quantile:0.9 and measures that are bounded'
    )
    selection_method: str = Field(description=f"use one of {', '.join(SELECTION_METHODS)}")
    selection_target: float = Field(ge=0, description="fixed_sequence tests against a target above 0; 0 means: none")

    transport_order: int = Field(ge=1, le=2, description="1: moving by a distance t costs t; 2: it costs t squared")
    transport_norm: str = Field(description=f"use one of {', '.join(NORMS)}; with transport-order 2 only l2")
    cost_budgets: Numbers = Field(description='give increasing costs, at least one above 0, such as "0,5,10"')
    cost_thresholds: Numbers = Field(description='give increasing risks in (0, 1], such as "0.3,0.5"')
    num_radii: int = Field(ge=3, le=10_000, description="cost budgets asked of every client; 50 is plenty")
    num_multipliers: int = Field(ge=1, le=10_000, description="prices of cost that share delta; 24 is plenty")
    space: str = Field(description=spaces.SPACE_RULE)
    box: Ends = Field(description=spaces.BOX_RULE)
    attack_distances: AnyNumbers = Field(description=spaces.DISTANCES_RULE)
    adversary: str = Field(description=spaces.ADVERSARY_RULE)
    head: str = Field(description=spaces.HEAD_RULE)
    protocol: Literal["one-round", "bisection"]
    bisection_tolerance: float = Field(gt=0, lt=1, description="where the bisection stops, in units of the loss")
    cost_bound: float = Field(ge=0, description="a bound on the cost between any two clients; 0 means: none is known")
    target_sigmas: AnyNumbers = Field(description='give different strengths such as "0.05,0.1", or "" for no targets')
    num_targets: Count = Field(description="clients of each target network")

    client_ids: Literal["numbered", "any"]
    quorum: float = Field(gt=0, le=1, description="the fraction of num-clients that must answer")
    missing: str = Field(
        description=f"use one of {', '.join(MISSING)}, for clients without valid answer; with a cost-bound only ignore"
    )
    answered_by: str = Field(
        description=f"use one of {', '.join(ANSWERED_BY)}; fresh: the clients had no part in making the model"
    )
    contamination: int = Field(
        ge=0,
        description="so many of the answers may be wrong: fewer than quorum asks for; with a cost-bound only 0",
    )
    privacy: str = Field(description=PRIVACY_RULE)
    node_timeout: Positive = Field(description="seconds to wait for the clients to connect")
    reply_timeout: Positive = Field(description="seconds to wait for the answers of one round")
    respect_query_budgets: bool = Field(
        description="true: ask the clients first what they have left, one more round; for secure_histogram false"
    )
    resume: bool = Field(
        description="true: continue the run whose ledger is in the output folder; for secure_histogram false"
    )
    output_dir: str = Field(description='give an absolute path, or "" for ~/riskband-results/<scenario>')
    figure_format: Names = Field(description=f"give a comma-separated list of {', '.join(FIGURE_SUFFIXES)}")

    @field_validator("dataset")
    @classmethod
    def _is_dataset(cls, value: str) -> str:
        return _require(inputs.is_dataset(value), value)

    @field_validator("x_shape", "num_classes", "num_unseen", "training", "target_sigmas", "group_sigmas")
    @classmethod
    def _fits_dataset(cls, value: Value, info: ValidationInfo) -> Value:
        return _require(inputs.fits_dataset(str(info.field_name), value, info.data.get("dataset", "")), value)

    @field_validator("checkpoint")
    @classmethod
    def _is_checkpoint(cls, value: str, info: ValidationInfo) -> str:
        is_file = inputs.is_absolute(value) and Path(value).is_file()
        return _require(info.data.get("training") != "checkpoint" or is_file, value)

    @field_validator("model")
    @classmethod
    def _is_model(cls, value: str) -> str:
        module, _, factory = value.partition(":")
        return _require(value in ("cnn", "mlp") or (module and factory), value)

    @field_validator("loss")
    @classmethod
    def _is_loss(cls, value: str) -> str:
        return _require(value in LOSSES, value)

    @field_validator("divergences")
    @classmethod
    def _are_divergences(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _require(_are_distinct(value, DIVERGENCES), value)

    @field_validator("figure_format")
    @classmethod
    def _are_figure_formats(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _require(_are_distinct(value, FIGURE_SUFFIXES), value)

    @field_validator("budgets", "target_sigmas")
    @classmethod
    def _are_budgets(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        return _require(len(set(value)) == len(value), value)

    @field_validator("group_sigmas")
    @classmethod
    def _are_group_sigmas(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        return _require(len(set(value)) == len(value) and all(sigma <= 1e6 for sigma in value), value)

    @field_validator("band")
    @classmethod
    def _is_band_method(cls, value: str) -> str:
        resolve_level_method(value)
        return value

    @field_validator("measures")
    @classmethod
    def _are_measures(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        names = tuple(functional(measure).name for measure in value)  # theil is generalised_entropy:1
        return _require(len(set(names)) == len(names), value)

    @field_validator("dispersion_method")
    @classmethod
    def _is_dispersion_method(cls, value: str) -> str:
        return _require(value in BOUND_METHODS, value)

    @field_validator("candidate_epochs")
    @classmethod
    def _are_candidate_epochs(cls, value: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        _require(len(set(value)) == len(value), value)
        if info.data.get("strategy") != "selection" or not value:
            return value
        has_checkpoints = info.data.get("training", "central") == "central"
        return _require(has_checkpoints and max(value) <= info.data.get("training_epochs", np.inf), value)

    @field_validator("abstention_thresholds")
    @classmethod
    def _are_abstention_thresholds(cls, value: tuple[float, ...], info: ValidationInfo) -> tuple[float, ...]:
        is_comparable = info.data.get("strategy") != "selection" or info.data.get("loss", "zero_one") == "zero_one"
        is_fine = len(set(value)) == len(value) and max(value, default=0.0) <= 1.0 and (is_comparable or not value)
        return _require(is_fine, value)

    @field_validator("objective")
    @classmethod
    def _is_objective(cls, value: str) -> str:
        return str(Objective(value))

    @field_validator("selection_method")
    @classmethod
    def _is_selection_method(cls, value: str) -> str:
        return _require(value in SELECTION_METHODS, value)

    @field_validator("selection_target")
    @classmethod
    def _is_selection_target(cls, value: float, info: ValidationInfo) -> float:
        is_needed = (info.data.get("strategy"), info.data.get("selection_method")) == ("selection", "fixed_sequence")
        return _require(value > 0.0 or not is_needed, value)

    @field_validator("missing")
    @classmethod
    def _is_missing(cls, value: str, info: ValidationInfo) -> str:
        return _require(value in MISSING and (value == "ignore" or not _has_published(info.data)), value)

    @field_validator("answered_by")
    @classmethod
    def _is_answered_by(cls, value: str) -> str:
        return _require(value in ANSWERED_BY, value)

    @field_validator("num_training_clients")
    @classmethod
    def _are_training_clients(cls, value: int, info: ValidationInfo) -> int:
        return _require(value <= info.data.get("num_clients", np.inf), value)

    @field_validator("contamination")
    @classmethod
    def _is_contamination(cls, value: int, info: ValidationInfo) -> int:
        known = {name: info.data[name] for name in ("num_clients", "quorum") if name in info.data}
        is_below = len(known) < 2 or value < num_needed(**known)
        return _require(value == 0 or (is_below and not _has_published(info.data)), value)

    @field_validator("privacy")
    @classmethod
    def _is_privacy(cls, value: str, info: ValidationInfo) -> str:
        return _require(fits_run(value, info.data) and secure.fits_strategy(value, info.data), value)

    @field_validator("respect_query_budgets", "resume")
    @classmethod
    def _has_single_answers(cls, value: bool, info: ValidationInfo) -> bool:
        return _require(secure.fits_strategy(value, info.data), value)

    @field_validator("histogram_sizes")
    @classmethod
    def _are_histogram_sizes(cls, value: str, info: ValidationInfo) -> str:
        return _require(secure.fits_sizes(value, info.data), value)

    @field_validator("transport_norm")
    @classmethod
    def _is_transport_norm(cls, value: str, info: ValidationInfo) -> str:
        return _require(value in NORMS and (value == "l2" or info.data.get("transport_order") != 2), value)

    @field_validator("cost_budgets", "cost_thresholds")
    @classmethod
    def _do_increase(cls, value: tuple[float, ...], info: ValidationInfo) -> tuple[float, ...]:
        is_in_range = value[-1] > 0 if info.field_name == "cost_budgets" else value[0] > 0 and value[-1] <= 1
        return _require(is_in_range and all(a < b for a, b in pairwise(value)), value)

    @field_validator("adversary")
    @classmethod
    def _is_adversary(cls, value: str, info: ValidationInfo) -> str:
        return _require(spaces.fits_question(value, info.data), value)

    @field_validator("space")
    @classmethod
    def _is_space(cls, value: str) -> str:
        return _require(spaces.is_space(value), value)

    @field_validator("head", "box", "attack_distances")
    @classmethod
    def _fits_space(cls, value: Value, info: ValidationInfo) -> Value:
        is_fine = "space" not in info.data or spaces.fits_space(str(info.field_name), value, info.data["space"])
        return _require(is_fine, value)

    @field_validator("output_dir")
    @classmethod
    def _is_output_dir(cls, value: str) -> str:
        return _require(value == "" or inputs.is_absolute(value), value)

    @property
    def output_folder(self) -> Path:
        """The absolute folder that receives every result."""
        if self.output_dir:
            return Path(self.output_dir).expanduser()
        return Path.home() / "riskband-results" / self.scenario

    @property
    def transport_problem(self) -> TransportProblem:
        """Where examples may move, at what cost, and who moves them."""
        return TransportProblem(
            loss=self.loss,
            order=self.transport_order,
            norm=self.transport_norm,
            space=self.space,
            adversary=self.adversary,
            head=self.head or None,
            box=(self.box[0], self.box[1]) if self.box else None,
            distances=self.attack_distances,
            seed=self.seed,
        )

    @property
    def threshold_grid(self) -> np.ndarray:
        """Risks at which curves are read, shape (thresholds,), evenly spaced in (0, 1]."""
        return np.arange(1, self.thresholds + 1) / self.thresholds

    @property
    def known_clients(self) -> frozenset[str] | None:
        """Names that may answer; None accepts any."""
        if self.client_ids == "any":
            return None
        return frozenset(client_id({"partition-id": k}) for k in range(self.num_clients))

    @property
    def num_trainers(self) -> int:
        """How many clients train when `training` is "fedavg"."""
        return self.num_training_clients or self.num_clients

    @property
    def num_needed(self) -> int:
        """How many valid answers the quorum asks for."""
        return num_needed(self.num_clients, self.quorum)

    def to_run_config(self) -> dict[str, str | int | float]:
        """Return the flat mapping that Flower carries; `load_config` of it gives this object back."""
        values = self.model_dump(by_alias=True)
        return {key: ",".join(map(str, v)) if isinstance(v, tuple) else v for key, v in values.items()}


def load_config(run_config: Mapping[str, Any]) -> RunConfig:
    """Return the checked configuration.

    Parameters
    ----------
    run_config : mapping of str to scalar
        Flower's run configuration (``context.run_config``). Numbers may come as text, as on a
        command line.

    Raises
    ------
    ConfigError
        If anything is wrong; it lists every mistake, not only the first.
    """
    try:
        return RunConfig.model_validate(dict(run_config))
    except ValidationError as error:
        raise ConfigError([problem(each, RunConfig.model_fields) for each in error.errors(include_url=False)]) from None


def _require(condition: object, value: Value) -> Value:
    if not condition:
        raise ValueError  # the field's description says the rule
    return value


def _has_published(values: Mapping[str, Any]) -> bool:
    """Whether the published transport bound is asked for: it knows neither missing nor wrong answers."""
    return values.get("strategy") == "wasserstein" and values.get("cost_bound", 0.0) > 0.0


def _are_distinct(names: tuple[str, ...], known: Collection[str]) -> bool:
    return len(set(names)) == len(names) and set(names) <= set(known)
