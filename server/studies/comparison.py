"""The study "comparison": whether a new model is better than an old one, and for whom it is worse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from flwr.serverapp import Grid
from pydantic import Field

from client.simulated import own_weights
from protocol.models import load_arrays, model_arrays
from protocol.questions import ComparisonQuery
from protocol.weight_sets import joined
from riskband.answers.metrics import first_of
from riskband.models.evaluation import example_losses
from riskband.plots.changes import changes_figure
from riskband.worst_cases.scaled import CHANGES, ScaledNumber
from server.checks.unseen import Unseen, unseen_clients
from server.sections import Names, Rule, Section, is_distinct, rule
from server.settings import is_absolute
from server.studies.study import Evaluation, Study, UnderTest, architecture, families
from server.training import initial_model, model_of_checkpoint
from strategies.comparison import Comparison, ComparisonConclusion

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from server.settings import RunConfig

_LOCAL = "local"
_NUMBERS = {name: kind for name, kind in CHANGES.items() if kind != "worst"}  # that clients that are missing may have


class Settings(Section):
    """What the model is compared with."""

    change_numbers: Annotated[
        Names, rule(lambda names: is_distinct([str(ScaledNumber.of(each, _NUMBERS)) for each in names]))
    ] = Field(description='give different ones, such as "change,harmed:0.05,change_quantile:0.9"')
    old_model: str = Field(
        description='give the absolute path of an existing file with weights of the same model, or "local": what each '
        "client has trained for itself"
    )


class ComparisonStudy(Study):
    """Whether a new model is better than an old one, and for whom it is worse."""

    settings = Settings
    rules: ClassVar[Mapping[str, Rule]] = {
        "require": lambda required, known: families(required) <= _NUMBERS.keys(),
        "privacy": lambda noise, known: not noise,
        "local": lambda local, known: local == "marginal",
        "old_model": lambda place, known: place == _LOCAL or (is_absolute(place) and Path(place).is_file()),
    }
    figure_stem = "comparison"
    asks_losses = False

    def checkpoints(self, config: RunConfig) -> dict[str, str]:
        """Return the files that weights are read from, with that of the old model."""
        place = config.of(Settings).old_model
        return {**super().checkpoints(config), **({} if place == _LOCAL else {"old-model": place})}

    def prepare(self, config: RunConfig, grid: Grid | None) -> UnderTest:
        """Return the new model and, unless each client has its own, the old one."""
        models, place = super().prepare(config, grid).models, config.of(Settings).old_model
        if place != _LOCAL:
            models = (*models, model_of_checkpoint(config, place))
        return UnderTest(joined([model_arrays(model) for model in models]), models)

    def strategy(self, config: RunConfig, tested: UnderTest, asking: dict[str, Any]) -> Comparison:
        """Return what asks about both models."""
        is_old_local = config.of(Settings).old_model == _LOCAL
        query = ComparisonQuery(config.question.loss, **architecture(config), is_old_local=is_old_local)
        return Comparison(query, numbers=config.of(Settings).change_numbers, **asking)

    def unseen(self, config: RunConfig, tested: UnderTest, conclusion: ComparisonConclusion) -> Unseen:
        """Return the exact risks of the unseen clients under both models, of which the old one may be each client's."""
        new = unseen_clients(config, tested.models[0])
        old = _own_risks(config) if len(tested.models) == 1 else unseen_clients(config, tested.models[1]).risks
        return replace(new, by_candidate={"new": new.risks, "old": old})

    def sections(self, evaluation: Evaluation) -> dict[str, Any]:
        """Return the section "comparison": both models at every client, in the order of the clients' names."""
        changes = evaluation.conclusion.changes
        counts = {"num_worse": changes.num_worse, "num_better": changes.num_better}
        section = {
            "old_model": evaluation.config.of(Settings).old_model,
            "old_risks": changes.old.tolist(),
            "new_risks": changes.new.tolist(),
            "changes": changes.values.tolist(),
            **{name: None if each is None else each.tolist() for name, each in counts.items()},
        }
        return {"comparison": section}

    def figure(self, evaluation: Evaluation) -> Figure:
        """Return the figure of all clients, each from its old risk to its new one."""
        result = evaluation.conclusion
        said: dict[str, Any] = {"certificates": tuple(result.certificates.values()), "title": evaluation.title}
        return changes_figure(result.changes.values, old_risks=result.changes.old, **said)

    def lines(self, report: Mapping[str, Any]) -> Iterator[str]:
        """Yield for how many clients, and for whom, the new model is worse."""
        section, names = report["comparison"], report["network"]["client_ids"]
        changes = np.array(section["changes"])
        worse, better = np.flatnonzero(changes > 0.0), np.flatnonzero(changes < 0.0)
        old = "each client's own" if section["old_model"] == _LOCAL else section["old_model"]
        yield (
            f"Measured, the mean loss is {np.mean(section['new_risks']):.4f} with the new model and "
            f"{np.mean(section['old_risks']):.4f} with the old one ({old}); {worse.size} clients got worse, "
            f"{better.size} better, and {changes.size - worse.size - better.size} are as they were."
        )
        if worse.size:
            ranked = worse[np.argsort(-changes[worse], kind="stable")]
            yield f"Worse for {first_of([f'{names[k]} (by {changes[k]:.4f})' for k in ranked])}."


def _own_risks(config: RunConfig) -> np.ndarray:
    """What each unseen client's own model risks."""
    population, model = config.population("unseen"), initial_model(config)
    trained = partial(own_weights, config.to_run_config(), network="unseen", device=config.model.device)
    risks = []
    for k in range(config.network.num_unseen):
        load_arrays(model, trained(partition=k))
        seen = population.distribution(k)
        risks.append(seen.weights @ example_losses(model, seen.x, seen.y, loss=config.question.loss))
    return np.asarray(np.clip(risks, 0.0, 1.0))  # the weights sum to 1 up to rounding
