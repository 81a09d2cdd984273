"""What every run may say, as typed sections; each study of `server.studies` brings a section of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
from pydantic import AfterValidator, Field

from client.data import NO_DATASET, is_function_name
from client.evaluator import NO_MODEL, is_evaluator_setting
from client.identity import client_id
from protocol.client_keys import keys_by_name
from protocol.mechanisms import mechanism_of
from protocol.models import BUILT_IN_MODELS, MAX_NUM_CLASSES, ROBUSTBENCH, is_model_name
from riskband.answers.design import design_asked
from riskband.answers.responses import ANSWERED_BY, MISSING, check_missing
from riskband.answers.scaled import Scale
from riskband.bands.methods import resolve_level_method
from riskband.models.evaluation import DEVICES
from riskband.models.losses import LOSSES, OWN
from riskband.report.words import about
from riskband.worst_cases.always_valid import DIRECT, is_direct
from riskband.worst_cases.number import Number
from riskband.worst_cases.requirements import read_requirements
from server.run.folder import FIGURE_SUFFIXES
from server.run.ledger import KEYS_KEY
from server.sections import (
    SPLIT,
    AnyCounts,
    AnyNames,
    AnyNumbers,
    Count,
    Ends,
    Fraction,
    Names,
    Positive,
    Rule,
    Section,
    is_distinct,
    one_of,
    rule,
)
from strategies.asking.replies import num_needed
from worlds.corruptions import CorruptionShift, corruption_shift
from worlds.datasets import BUNDLED_DATASETS, BaseData, load_dataset
from worlds.population import Population, spec_from_config
from worlds.shifts import ColourShift, ResolutionShift, RotationShift, Shift

SectionKind = TypeVar("SectionKind", bound=Section)


def is_absolute(path: str) -> bool:
    """Return whether a path is absolute once ~ is replaced."""
    try:
        return Path(path).expanduser().is_absolute()
    except RuntimeError:  # "~nobody": there is no such user
        return False


def is_dataset(value: str) -> bool:
    """Return whether the run configuration's ``dataset`` is one."""
    kind, _, rest = value.partition(":")
    is_file = kind == "npz" and is_absolute(rest) and Path(rest).expanduser().is_file()
    is_hugging_face = kind == "hf" and bool(rest)
    return value in BUNDLED_DATASETS or is_file or is_hugging_face or brings_own_data(value)


def brings_own_data(dataset: str) -> bool:
    """Return whether the clients have examples that the server cannot know."""
    is_function = is_function_name(dataset) and dataset.partition(":")[0] not in ("npz", "hf")
    return dataset == NO_DATASET or is_function


def _levels(kind: type[ColourShift | ResolutionShift], alphas: tuple[float, ...]) -> Shift:
    """Return a shift with the two ranges of Dirichlet parameters; raises ValueError where they are none."""
    return kind(low=alphas[:2], high=alphas[2:])


class Run(Section):
    """What the run is called, and what all randomness comes from."""

    scenario: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="it names the result folder: letters, digits, '.', '_' and '-' only",
    )
    seed: int = Field(ge=0, lt=2**63, description="the same seed gives the same report")
    about: Annotated[AnyNames, rule(lambda lines: not lines or about(lines))] = Field(
        description='give KEY=VALUE, each key once, such as "author=A. Turing,purpose=release of version 7", or ""'
    )


class Network(Section):
    """The clients and what they hold."""

    dataset: Annotated[str, rule(is_dataset)] = Field(
        description='use "digits", "colour-digits", "npz:/absolute/path.npz" (a file that exists), "hf:OWNER/NAME", '
        '"none" (each client brings its own data) or "module:function" (which gives them)'
    )
    evaluator: Annotated[str, rule(is_evaluator_setting)] = Field(
        description='give "module:function", "own" (that of each node config) or ""; with dataset "none"'
    )
    x_shape: AnyCounts = Field(
        description='give the shape of one input such as "3,32,32"; needed where the server has no dataset'
    )
    num_classes: int = Field(
        ge=0,
        le=MAX_NUM_CLASSES,
        description=f"give the number of classes, 2 to {MAX_NUM_CLASSES}; needed where the server has no dataset",
    )
    num_clients: int = Field(ge=2, description="give 2 or more: one client shows no spread between clients")
    num_unseen: int = Field(
        ge=0,
        description="0 means: do not check the certificates on unseen clients; 0 where the server has no dataset",
    )
    examples_per_client: Count = Field(description="every client answers from this many examples")
    affine_sigma: float = Field(ge=0, le=1e6, description="0 means: no affine shift")
    dirichlet_concentration: float = Field(ge=0, le=1e6, description="0 means: no label shift; small means strong")
    resolution_alphas: Annotated[Ends, rule(lambda ends: not ends or _levels(ResolutionShift, ends))] = Field(
        description='give two ranges of positive numbers such as "0.4,0.7,0.7,1", the Dirichlet parameters of low and '
        'of high resolutions, or "" for no such shift'
    )
    resolution_levels: Annotated[AnyCounts, rule(lambda levels: ResolutionShift(levels))] = Field(
        description='give two or more different sizes in pixels such as "14,18,26,32", the low ones first'
    )
    colour_alphas: Annotated[Ends, rule(lambda ends: not ends or _levels(ColourShift, ends))] = Field(
        description='give two ranges of positive numbers such as "0.1,0.3,0.7,1", the Dirichlet parameters of grey and '
        'of coloured images, or "" for no such shift'
    )
    colour_levels: Annotated[Ends, rule(lambda levels: ColourShift(levels))] = Field(
        description='give two or more different shares in [0, 1] such as "0,0.5,1", the grey ones first'
    )
    rotation_angles: Annotated[Ends, rule(lambda angles: not angles or RotationShift(angles))] = Field(
        description='give different angles from -360 to 360 degrees such as "0,15,30", or "" for no rotation'
    )
    row_affine_stds: Annotated[AnyNumbers, rule(lambda stds: len(stds) in (0, 2) and max(stds, default=0) <= 1e6)] = (
        Field(description='give two numbers up to 1e6 such as "0.05,0.05", or "" for no such shift')
    )
    corruptions: Annotated[str, rule(lambda text: not text or corruption_shift(text))] = Field(
        description='use "mnist-c" (grey images), "cifar10-c" or "imagenet-c" (colour), some of its kinds as in '
        '"mnist-c:fog,shear", or "" for no such shift'
    )
    severities: Annotated[AnyCounts, rule(lambda severities: CorruptionShift(severities=severities))] = Field(
        description='give different severities of corruptions, from 1 to 5, such as "1,2,3,4,5"'
    )
    group_sigmas: Annotated[AnyNumbers, rule(lambda sigmas: is_distinct(sigmas) and max(sigmas, default=0) <= 1e6)] = (
        Field(description='give different strengths up to 1e6 such as "0.1,0.3", or "" for no groups')
    )
    group_angles: Annotated[Ends, rule(lambda angles: not angles or RotationShift(angles))] = Field(
        description='give different angles from -360 to 360 degrees such as "0,15", or "" for no groups; not with '
        "group-sigmas"
    )

    rules: ClassVar[Mapping[str, Rule]] = {
        "evaluator": lambda evaluator, known: not evaluator or known.get("dataset", NO_DATASET) == NO_DATASET,
        "group_angles": lambda angles, known: not (angles and known.get("group_sigmas")),
    }


class Model(Section):
    """The model that is evaluated."""

    model: Annotated[str, rule(is_model_name)] = Field(
        min_length=1,
        description=f'use {", ".join(BUILT_IN_MODELS)}, "{ROBUSTBENCH}IDENTIFIER" or "module:factory"',
    )
    training: Literal["central", "fedavg", "checkpoint"] = Field(
        description='use "central", "fedavg" or "checkpoint"; where the server has no dataset, "checkpoint"'
    )
    checkpoint: str = Field(
        description="give the absolute path of an existing file that torch.save(model.state_dict(), path) wrote, or "
        "of one of RobustBench"
    )
    device: Literal[DEVICES] = Field(  # type: ignore[valid-type]
        description='use "cpu", "cuda" or "auto" (a GPU if there is one); the node config of a client may say otherwise'
    )
    training_rounds: Count = Field(description='rounds of FedAvg; only used when training is "fedavg"')
    num_training_clients: int = Field(
        ge=0,
        description='with training "fedavg" so many clients, at most num-clients, train and never answer; 0 means: '
        "num-clients",
    )
    training_epochs: Count = Field(description="passes over the training examples (per round in FedAvg)")
    learning_rate: float = Field(gt=0, le=1, description="0.001 to 0.1 is usual")
    training_margin: float = Field(
        ge=0,
        le=1e3,
        description="the margin between logits that training asks for; 0 means: the cross-entropy as it is",
    )
    training_noise: float = Field(
        ge=0,
        le=1e3,
        description="standard deviation of the noise on the inputs of the training, such as that of the smoothing; 0 "
        "means: none",
    )

    rules: ClassVar[Mapping[str, Rule]] = {
        "checkpoint": lambda path, known: (
            known.get("training") != "checkpoint" or (is_absolute(path) and Path(path).is_file())
        ),
        "num_training_clients": lambda number, known: number <= known.get("num_clients", np.inf),
    }


def numbers_of(required: Iterable[str], scale: Scale | None = None) -> list[Number]:
    """Return the numbers that requirements are about; raises ValueError for one that there is not on this scale."""
    return [requirement.number for requirement in read_requirements(required, scale)]


def _requirement(text: str) -> str:
    """Return a requirement as it is written; raises ValueError, also for what counts examples.

    Whether it says "change" is kept, until it is known whether the answers are changes.
    """
    (found,) = read_requirements(text, None)
    if found.number.family == "example_mean":
        raise ValueError
    return text if found.number.is_change else str(found)


class Question(Section):
    """What is certified."""

    strategy: str  # a study's name
    loss: Annotated[str, one_of({*LOSSES, OWN})] = Field(
        description=f'use one of {", ".join(sorted(LOSSES))}; with an evaluator zero_one, or "own" for others in [0, 1]'
    )
    delta: float = Field(ge=1e-6, lt=1, description="delta is the probability of failure, not the confidence")
    breakdown_threshold: Fraction = Field(description="a client fails when its risk reaches this loss, in [0, 1]")
    breakdown_target: float = Field(gt=0, lt=1, description="the share of failing clients, or mean risk, you accept")
    require: Annotated[tuple[Annotated[str, AfterValidator(_requirement)], ...], SPLIT] = Field(
        description='give requirements such as "mean<=0.2,quantile:0.9<=0.3", or ""; not for selection, no '
        "example_mean (clients answer from samples, whose sizes are not their own), and next clients neither for "
        "secure_histogram nor with privacy; for comparison such as "
        '"change<=0.01,harmed:0.02<=0.1"'
    )
    band: Annotated[str, rule(resolve_level_method)] = Field(
        description='use "berk_jones", "dkw", "kolmogorov", or "truncated:0.5:0.95" for a range of quantiles only'
    )
    local: Literal["marginal", "counted", "union", "observed"] = Field(description="for comparison marginal")

    rules: ClassVar[Mapping[str, Rule]] = {
        "loss": lambda loss, known: (
            loss in (("zero_one", OWN) if known.get("evaluator") else LOSSES)
            or (loss == OWN and "evaluator" not in known)
        ),  # one that is not valid is a mistake, and the loss is none
    }


_PLAIN: dict[str, Any] = {"target": "", "local": "marginal", "missing": "ignore", "answered_by": "fresh"}
_PLAIN |= {"contamination": 0, "privacy": "", "design": ""}
_FIT_FOR_DESIGNS: dict[str, Any] = {"strategy": "f_divergence", "missing": "ignore", "num_unseen": 0, "target": ""}
_FIT_FOR_DESIGNS |= {"privacy": "", "contamination": 0}


def _unfit(known: Mapping[str, Any], fit: Mapping[str, Any]) -> list[str]:
    return [key.replace("_", "-") for key, value in fit.items() if known.get(key, value) != value]


def _can_be_decided(known: Mapping[str, Any]) -> bool:
    """Return True; raises ValueError with what a sequence cannot take, or what leaves everything open."""
    unfit = _unfit(known, _PLAIN)
    required = known.get("require", ("mean<=0.5",))
    unfit += [] if required and all(map(is_direct, numbers_of(required))) else ["require"]
    if unfit:
        raise ValueError(f"not with {', '.join(unfit)} as here")
    return True


class Asking(Section):
    """Who may answer, and how patient the server is."""

    client_ids: Literal["numbered", "any"]
    client_keys: Annotated[
        str, rule(lambda path: not path or (is_absolute(path) and keys_by_name(path, called=KEYS_KEY)))
    ] = Field(
        description="give the absolute path of a list of the clients' public keys with their names, as "
        'deploy.make_keys makes it, whose signatures the answers must have, or "": clients do not sign'
    )
    quorum: float = Field(gt=0, le=1, description="the fraction of num-clients that must answer")
    missing: Annotated[str, rule(check_missing)] = Field(
        description=f"use one of {', '.join(MISSING)}, for clients without valid answer, or for f_divergence odds:3; "
        "with a cost-bound only ignore"
    )
    answered_by: Annotated[str, one_of(ANSWERED_BY)] = Field(
        description=f"use one of {', '.join(ANSWERED_BY)}; fresh: the clients had no part in making the model"
    )
    contamination: int = Field(
        ge=0,
        description="so many of the answers may be wrong: fewer than quorum asks for; with a cost-bound only 0",
    )
    privacy: Annotated[str, rule(lambda noise: not noise or mechanism_of(noise))] = Field(
        description='give "laplace:EPSILON" or "gaussian:RHO" with a number from 1e-6 to 1e12, or "" for no noise; '
        "with noise local is marginal or counted, for wasserstein the protocol one-round, cost-bound 0, no box at a "
        "layer and no smoothing; not for secure_histogram or comparison, nor with an evaluator or required next clients"
    )
    design: Annotated[str, rule(lambda text: design_asked(text) is not None)] = Field(
        description='give "strata:north=0.4,south=0.6", "weights:LARGEST", "clusters" or "clusters,strata:…", or "" of '
        "independent clients; for f_divergence alone, with num-unseen 0, no target, privacy or contamination, and "
        "missing ignore"
    )
    ask: Literal["all", "until-decided"] = Field(
        description='use "all", or "until-decided", for which something is required, of risks no other number than '
        f"{', '.join(DIRECT)}, the first three also @chi2:0.1; strategy is f_divergence without target, or comparison, "
        'local marginal, missing ignore, answered-by fresh, contamination 0, privacy "" and design ""'
    )
    batch_size: Count = Field(description="so many clients are asked at once until it is decided; 1 or more")
    max_clients: Annotated[int, rule(lambda number: number != 1)] = Field(
        ge=0, description="of num-clients no more are asked until it is decided; 2 or more, and 0 means: all"
    )
    node_timeout: Positive = Field(description="seconds to wait for the clients to connect")
    reply_timeout: Positive = Field(description="seconds to wait for the answers of one round")
    respect_query_budgets: bool = Field(
        description="true: ask the clients first what they have left, one more round; for secure_histogram false"
    )
    resume: bool = Field(description="true: continue the run whose ledger is in the output folder")

    rules: ClassVar[Mapping[str, Rule]] = {
        "privacy": lambda noise, known: (
            not noise
            or not (known.get("evaluator") or any(number.is_finite for number in numbers_of(known.get("require", ()))))
        ),
        "missing": lambda missing, known: missing in MISSING or known.get("strategy", "") == "f_divergence",
        "design": lambda design, known: not (design and _unfit(known, _FIT_FOR_DESIGNS)),
        "contamination": lambda number, known: (
            number == 0
            or not {"num_clients", "quorum"} <= known.keys()
            or number < num_needed(known["num_clients"], known["quorum"])
        ),
        "ask": lambda ask, known: ask == "all" or _can_be_decided(known),
        "max_clients": lambda number, known: number <= known.get("num_clients", np.inf),
    }


class Results(Section):
    """Where the results go, and who may watch."""

    output_dir: Annotated[str, rule(lambda path: path == "" or is_absolute(path))] = Field(
        description='give an absolute path, or "" for ~/riskband-results/<scenario>'
    )
    figure_format: Annotated[
        Names, rule(lambda kinds: kinds == ("none",) or (is_distinct(kinds) and {*kinds} <= {*FIGURE_SUFFIXES}))
    ] = Field(description=f'give a comma-separated list of {", ".join(FIGURE_SUFFIXES)}, or "none"')
    metrics_port: int = Field(
        ge=0, le=65535, description="where Prometheus reads while the run lasts; 0 means: nowhere"
    )
    metrics_address: str = Field(min_length=1, description='"127.0.0.1" is this machine alone, "0.0.0.0" everybody')


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run. Build it with `server.config.load_config`."""

    # What every run has.
    run: Run
    network: Network
    model: Model
    question: Question
    settings: tuple[Section, ...]  # those of all studies; see `of`
    asking: Asking
    results: Results

    def of(self, kind: type[SectionKind]) -> SectionKind:
        """Return the settings of a study."""
        return next(each for each in self.settings if isinstance(each, kind))

    @property
    def output_folder(self) -> Path:
        """The absolute folder that receives every result."""
        if self.results.output_dir:
            return Path(self.results.output_dir).expanduser()
        return Path.home() / "riskband-results" / self.run.scenario

    @property
    def model_name(self) -> str:
        """The model that clients are asked about; `NO_MODEL` where each asks a function of its own."""
        return NO_MODEL if self.network.evaluator else self.model.model

    @property
    def model_inputs(self) -> tuple[tuple[int, ...], int]:
        """The shape of one input and the number of classes of the model that the run evaluates."""
        if brings_own_data(self.network.dataset):
            return self.network.x_shape, self.network.num_classes
        return self.dataset.x_train.shape[1:], self.dataset.num_classes

    @property
    def dataset(self) -> BaseData:
        """What the server trains on, and what the clients of a simulation are drawn from."""
        return load_dataset(self.network.dataset, seed=self.run.seed)

    def population(self, network: str = "source") -> Population:
        """Return the clients of a simulated network; "source" are those that are asked."""
        return Population(spec_from_config(self.to_run_config(), network=network))

    @property
    def known_clients(self) -> frozenset[str] | None:
        """Names that may answer; None accepts any."""
        if self.asking.client_ids == "any":
            return None
        return frozenset(client_id({"partition-id": k}) for k in range(self.network.num_clients))

    @property
    def num_needed(self) -> int:
        """How many valid answers the quorum asks for."""
        return num_needed(self.network.num_clients, self.asking.quorum)

    def to_run_config(self) -> dict[str, str | int | float]:
        """Return the flat mapping that Flower carries; `server.config.load_config` of it gives this object back."""
        sections = (self.run, self.network, self.model, self.question, *self.settings, self.asking, self.results)
        values = {key: value for section in sections for key, value in section.model_dump(by_alias=True).items()}
        return {key: ",".join(map(str, v)) if isinstance(v, tuple) else v for key, v in values.items()}
