"""The study "comparison": whether a new model is better than an old one, and for whom it is worse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from flwr.serverapp import Grid
from pydantic import Field

from client.simulated import own_weights
from protocol.models import load_arrays, model_arrays
from protocol.questions import ComparisonAnswer, ComparisonQuery
from protocol.weight_sets import joined
from riskband.answers.metrics import first_of
from riskband.models.evaluation import example_losses
from riskband.plots.changes import changes_figure
from server.checks.unseen import Unseen, unseen_clients
from server.sections import Rule, Section
from server.settings import is_absolute
from server.studies.study import Evaluation, Study, UnderTest, architecture
from server.training import initial_model, model_of_checkpoint
from strategies.comparison import Comparison, ComparisonConclusion

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from server.settings import RunConfig

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
        return Comparison(
            ComparisonQuery(config.question.loss, **architecture(config), is_old_local=is_old_local), **asking
        )

    def unseen(self, config: RunConfig, tested: UnderTest, conclusion: ComparisonConclusion) -> Unseen:
        """Return the risks of the unseen clients under both models, of which the old one may be each client's own."""
        new = unseen_clients(config, tested.models[0])
        old = _own_risks(config) if len(tested.models) == 1 else unseen_clients(config, tested.models[1]).risks
        return replace(new, by_candidate={"new": new.risks, "old": old}, changes=new.risks - old)

    def sections(self, evaluation: Evaluation) -> dict[str, Any]:
        """Return the section "comparison": every client under both models."""
        result, unseen = evaluation.conclusion, evaluation.unseen
        changes = result.changes.values
        section = {
            "old_model": evaluation.config.of(Settings).old_model,
            "mean_old_risk": float(result.old_risks.mean()),
            "mean_new_risk": float(result.risks.values.mean()),
            **{f"num_clients_{word}": int(np.sum(which)) for word, which in _sorted_out(changes).items()},
            "clients": [_client_entry(each) for each in result.outcome.answers],
            "unseen_mean_change": None if unseen is None else float(unseen.changes.mean()),
            "unseen_stand_for": evaluation.unseen_stand_for,
        }
        return {"comparison": section}

    def figure(self, evaluation: Evaluation) -> Figure:
        """Return the figure of all clients, each from its old risk to its new one."""
        result = evaluation.conclusion
        return changes_figure(
            result.changes.values,
            old_risks=result.old_risks,
            certificates=tuple(result.certificates.values()),
            title=evaluation.title,
        )

    def lines(self, report: Mapping[str, Any]) -> Iterator[str]:
        """Yield for how many clients, and for whom, the new model is worse."""
        section = report["comparison"]
        old, new = section["mean_old_risk"], section["mean_new_risk"]
        worse, better, same = (section[f"num_clients_{word}"] for word in ("worse", "better", "same"))
        yield (
            f"Measured, the mean loss is {new:.4f} with the new model and {old:.4f} with the old one: {worse} clients got "
            f"worse, {better} better, and {same} are as they were."
        )
        if worse:
            yield f"It is worse for {first_of(_worse_ones(section['clients']))}."
        if section["unseen_stand_for"]:
            yield f"The numbers on unseen clients are {section['unseen_stand_for']}."


def _own_risks(config: RunConfig) -> np.ndarray:
    """What each unseen client's own model risks, exact, or measured on the client's examples; see `Study.unseen`."""
    population, model = config.population("unseen"), initial_model(config)
    trained = partial(own_weights, config.to_run_config(), network="unseen", device=config.model.device)
    measures, risks = config.question.local == "observed", []
    for k in range(config.network.num_unseen):
        load_arrays(model, trained(partition=k))
        seen: Any = population.client(k) if measures else population.distribution(k)
        weights = None if measures else seen.weights
        risks.append(np.average(example_losses(model, seen.x, seen.y, loss=config.question.loss), weights=weights))
    return np.clip(risks, 0.0, 1.0)  # the weights sum to 1 up to rounding


def _sorted_out(changes: np.ndarray) -> dict[str, np.ndarray]:
    return {"worse": changes > 0.0, "better": changes < 0.0, "same": changes == 0.0}


def _client_entry(answer: ComparisonAnswer) -> dict[str, Any]:
    counts = {} if answer.num_worse is None else {"num_worse": answer.num_worse, "num_better": answer.num_better}
    risks = {"old_risk": answer.old_risk, "new_risk": answer.new_risk}
    return {"client": answer.client_id, **risks, **counts, "num_examples": answer.num_examples}


def _worse_ones(clients: Sequence[Mapping[str, Any]]) -> list[str]:
    """Those that got worse, the worst first, and by how much."""
    by_change = {each["client"]: each["new_risk"] - each["old_risk"] for each in clients}
    ranked = sorted(by_change.items(), key=lambda item: -item[1])
    return [f"{name} (by {change:.4f})" for name, change in ranked if change > 0.0]
