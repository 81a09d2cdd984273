"""What a study is: its keys, what asks the clients, and what a report says of the answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from flwr.serverapp import Grid
from rich.table import Table
from torch import nn

from protocol.models import model_arrays
from protocol.questions import Candidate, LossQuery
from riskband.answers.scaled import RISK
from riskband.certificate import Certificate
from riskband.worst_cases.number import COST, TARGET
from riskband.worst_cases.requirements import Gate, read_requirements, verdicts_on
from server.checks.unseen import Check, Unseen, unseen_clients
from server.report.cells import certificate_table, loss_in_words
from server.sections import Rule, Section
from server.settings import RunConfig, numbers_of
from server.training import prepare_model
from strategies.asking.query import QueryStrategy

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class UnderTest:
    """What the clients are asked about."""

    arrays: dict[str, np.ndarray]  # all weights, as they travel
    models: tuple[nn.Module, ...]  # one for each set of weights
    candidates: tuple[Candidate, ...] = ()  # what is compared; empty if there is one model and nothing to choose


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A network that was asked, and what is known beside its answers."""

    config: RunConfig  # what was to be evaluated
    study: Study  # how
    conclusion: Any  # what the study's strategy concluded
    unseen: Unseen | None = None  # the unseen clients, if they are known
    # Certificates beside the unseen clients; empty if those are not known.
    checks: Mapping[str, Check] = field(default_factory=dict)
    targets: Sequence[Any] = ()  # networks at a known distance, where the study has any
    gate: Gate | None = None  # the verdicts on what the run requires, if it requires anything

    @property
    def title(self) -> str:
        """What stands above the figure."""
        question = self.config.question
        return f"{self.config.run.scenario}: {loss_in_words(question.loss)} loss, delta = {question.delta:g}"

    @property
    def truth(self) -> Unseen | None:
        """The unseen clients, if they are known and their risks are exact: figures call them true."""
        return None if self.config.question.local == "observed" else self.unseen

    @property
    def unseen_stand_for(self) -> str | None:
        """What a number of the unseen clients' risks stands for; None if they are not known."""
        if self.unseen is None:
            return None
        kind = "measured" if self.config.question.local == "observed" else "exact"
        return (
            f"those of the {kind} risks of {len(self.unseen.risks)} clients: an approximation of what is bounded, "
            "which is the same of the meta-distribution that they were drawn from"
        )


class Study(ABC):
    """One kind of question about a network, from its keys to its figure; subclasses say what is special."""

    settings: ClassVar[type[Section]]  # its keys
    # By field of any section, what this study asks of it.
    rules: ClassVar[Mapping[str, Rule]] = {
        "require": lambda required, known: all(
            number.where not in (COST, TARGET) for number in numbers_of(required, RISK)
        ),
        "privacy": lambda noise, known: not noise or known.get("local") not in ("union", "observed"),
    }
    figure_stem: ClassVar[str]  # name of the figure's files
    asks_losses: ClassVar[bool] = True  # whether it asks for the loss of one model, which an evaluator can say too
    can_stop: ClassVar[bool] = False  # whether it may ask until what is required is decided

    def figure_names(self, config: RunConfig) -> list[str]:
        """Return the names of the figure's files that a run writes."""
        return [f"{self.figure_stem}.{kind}" for kind in config.results.figure_format if kind != "none"]

    def checkpoints(self, config: RunConfig) -> dict[str, str]:
        """Return the files that weights of the run's model are read from, by their keys."""
        return {"checkpoint": config.model.checkpoint} if config.model.training == "checkpoint" else {}

    def prepare(self, config: RunConfig, grid: Grid | None) -> UnderTest:
        """Return what is put before the clients; they are needed now only when ``training = "fedavg"``."""
        if config.network.evaluator:
            return UnderTest({}, ())
        model = prepare_model(config, grid)
        return UnderTest(model_arrays(model), (model,))

    @abstractmethod
    def strategy(self, config: RunConfig, tested: UnderTest, asking: dict[str, Any]) -> QueryStrategy:
        """Return what asks the clients; `asking` has the settings of `strategies.certifying.CertifyingStrategy`."""

    def unseen(self, config: RunConfig, tested: UnderTest, conclusion: Any) -> Unseen | None:
        """Return what can be known of the unseen clients; None: nothing."""
        return unseen_clients(config, tested.models[0])

    def targets(
        self, config: RunConfig, tested: UnderTest, conclusion: Any, show: Callable[[str], None]
    ) -> Sequence[Any]:
        """Return networks at a known distance, if it has any; `show` takes the name of that stage."""
        return ()

    def gate(self, config: RunConfig, conclusion: Any) -> Gate | None:
        """Return the verdicts on what the run requires; None if it requires nothing."""
        asked = read_requirements(config.question.require, None)  # they were checked
        return verdicts_on(conclusion.required, asked, delta=config.question.delta) if asked else None

    def certificates(self, evaluation: Evaluation) -> Mapping[str, Certificate]:
        """Return what is certified, by the names of the files: what the strategy concluded, and more if it has."""
        found: Mapping[str, Certificate] = evaluation.conclusion.certificates
        return found

    def limits(self, config: RunConfig) -> list[tuple[float, float | None]]:
        """Return limits of the mean, or of the share of clients with a risk of at least a threshold.

        How far a network may shift while one is kept is said of them, as of what is required.
        """
        return []

    @abstractmethod
    def sections(self, evaluation: Evaluation) -> dict[str, Any]:
        """Return its sections of report.json as plain data; those that every report has are replaced in their place."""

    @abstractmethod
    def figure(self, evaluation: Evaluation) -> Figure:
        """Return its figure."""

    def tables(self, report: Mapping[str, Any]) -> list[Table]:
        """Return its tables of a report: that of the certificates, and what else it has."""
        return [certificate_table(report, self.within, without=self.elsewhere(report))]

    def elsewhere(self, report: Mapping[str, Any]) -> Collection[str]:
        """Return the certificates that stand in a table of the study's own, and not in that of all."""
        return ()

    def within(self, entry: Mapping[str, Any], point: Mapping[str, float]) -> str:
        """Return which networks a certificate is about at a point of its axes, for the table."""
        return "like the source"

    def lines(self, report: Mapping[str, Any]) -> Iterable[str]:
        """Return what is to be said below the tables, at the end."""
        return ()

    def answer_lines(self, report: Mapping[str, Any]) -> Iterable[str]:
        """Return what is to be said of how the clients answered."""
        return ()

    def privacy_lines(self, report: Mapping[str, Any]) -> Iterable[str]:
        """Return what is to be said of what is known of a single client."""
        return ()

    def worst_network(self, report: Mapping[str, Any]) -> str:
        """Return on which network the certificates for shifted ones are checked."""
        return "for a shifted network: on the worst one within the budget that they can be made into"


def architecture(config: RunConfig) -> dict[str, Any]:
    """Return what questions about a model have in common."""
    x_shape, num_classes = config.model_inputs
    inputs = {"x_shape": x_shape, "num_classes": num_classes}
    return {"model": config.model_name, **inputs, "privacy": config.asking.privacy}


def loss_query(config: RunConfig) -> LossQuery:
    """Return the question about the plain loss."""
    return LossQuery(loss=config.question.loss, **architecture(config))


def finite_ends(interval: Any) -> dict[str, float | None]:
    """Return the ends of an interval for JSON, which has no infinity."""
    return {"lower": finite(interval.lower), "upper": finite(interval.upper)}


def finite(value: Any) -> float | None:
    """Return a number for JSON, None if it is not finite."""
    return float(value) if np.isfinite(value) else None
