"""The study "comparison": whether a new model is better than an old one, and for whom it is worse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from flwr.serverapp import Grid
from pydantic import Field

from client.simulated import own_weights
from protocol.models import load_arrays, model_arrays
from protocol.questions import ComparisonQuery
from protocol.weight_sets import joined
from riskband.answers.metrics import first_of
from riskband.answers.scaled import CHANGE
from riskband.models.evaluation import example_losses
from riskband.plots.changes import changes_figure
from riskband.worst_cases.number import SHIFTED
from server.checks.unseen import Unseen, unseen_clients
from server.sections import Rule, Section
from server.settings import RunConfig, is_absolute, numbers_of
from server.studies.study import Evaluation, Study, UnderTest, architecture
from server.training import initial_model, model_of_checkpoint
from strategies.comparison import Comparison, ComparisonConclusion

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LOCAL = "local"


class Settings(Section):
    """What the model is compared with."""

    old_model: str = Field(
        description='give the absolute path of an existing file with weights of the same model, or "local": what each '
        "client has trained for itself"
    )


class ComparisonStudy(Study):
    """Whether a new model is better than an old one, and for whom it is worse."""

    settings = Settings
    rules: ClassVar[Mapping[str, Rule]] = {
        # No worst cases, which answers that may be missing or wrong do not have.
        "require": lambda required, known: all(number.where != SHIFTED for number in numbers_of(required, CHANGE)),
        "privacy": lambda noise, known: not noise,
        "local": lambda local, known: local == "marginal",
        "old_model": lambda place, known: place == _LOCAL or (is_absolute(place) and Path(place).is_file()),
    }
    figure_stem = "comparison"
    asks_losses = False
    can_stop = True

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
        return Comparison(query, **asking)

    def unseen(self, config: RunConfig, tested: UnderTest, conclusion: ComparisonConclusion) -> Unseen:
        """Return the exact risks of the unseen clients under both models, of which the old one may be each client's."""
        new = unseen_clients(config, tested.models[0])
        old = _own_risks(config) if len(tested.models) == 1 else unseen_clients(config, tested.models[1]).risks
        return replace(new, by_candidate={"new": new.risks, "old": old})

    def sections(self, evaluation: Evaluation) -> dict[str, Any]:
        """Return the section "comparison": both models at every client, in the order of the clients' names."""
        names, changes = ("old", "new", "num_worse", "num_better"), evaluation.conclusion.changes
        said = {name: None if (each := getattr(changes, name)) is None else each.tolist() for name in names}
        return {"comparison": {"old_model": evaluation.config.of(Settings).old_model, **said}}

    def figure(self, evaluation: Evaluation) -> Figure:
        """Return the figure of all clients, each from its old risk to its new one."""
        result = evaluation.conclusion
        said: dict[str, Any] = {"certificates": tuple(result.certificates.values()), "title": evaluation.title}
        return changes_figure(result.changes.values, old_risks=result.changes.old, **said)

    def lines(self, report: Mapping[str, Any]) -> Iterator[str]:
        """Yield for how many clients, and for whom, the new model is worse."""
        section, names = report["comparison"], report["network"]["client_ids"]
        old, new = np.array(section["old"]), np.array(section["new"])
        num_worse, num_better = np.sum(new > old), np.sum(new < old)
        what = "each client's own" if section["old_model"] == _LOCAL else section["old_model"]
        yield (
            f"Measured, the mean loss is {new.mean():.4f} with the new model and {old.mean():.4f} with the old one "
            f"({what}); {num_worse} {'client' if num_worse == 1 else 'clients'} got worse, {num_better} better, and "
            f"{old.size - num_worse - num_better} are as they were."
        )
        ranked = np.argsort(old - new, kind="stable")[:num_worse]
        if num_worse:
            yield f"Worse for {first_of([f'{names[k]} (by {new[k] - old[k]:.4f})' for k in ranked])}."


def _own_risks(config: RunConfig) -> np.ndarray:
    """What each unseen client's own model risks."""
    population, model = config.population("unseen"), initial_model(config)
    settings, device, risks = config.to_run_config(), config.model.device, []
    for k in range(config.network.num_unseen):
        load_arrays(model, own_weights(settings, partition=k, device=device, network="unseen"))
        seen = population.distribution(k)
        risks.append(seen.weights @ example_losses(model, seen.x, seen.y, loss=config.question.loss))
    return np.asarray(np.clip(risks, 0.0, 1.0))  # the weights sum to 1 up to rounding
