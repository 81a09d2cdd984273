"""The study "selection": which of several candidate models is certified to be the best."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import torch
from flwr.serverapp import Grid
from pydantic import AfterValidator, Field
from rich.markup import escape
from rich.table import Table

from protocol.models import load_arrays, model_arrays
from protocol.questions import CandidatesQuery
from protocol.weight_sets import packed, separated
from riskband.functionals.distributions import RiskDistribution
from riskband.models.evaluation import logit_batches
from riskband.models.losses import get_loss
from riskband.plots.selection import certified_of, selection_figure
from riskband.selection import SELECTION_METHODS, CandidateBound, Objective, Selection
from server.checks.unseen import Unseen, compare
from server.report.cells import VERDICTS, new_table, number, unseen_headers, upper_bound
from server.sections import AnyCounts, AnyNumbers, Rule, Section, is_distinct, one_of, rule
from server.settings import RunConfig
from server.studies import dispersion
from server.studies.study import Evaluation, Study, UnderTest, architecture
from server.training import central_settings, initial_model, prepare_model
from strategies.dispersion import band_method
from strategies.selection import SelectionConclusion, SelectionStrategy
from worlds.candidates import Candidates, abstaining, candidate_models, checkpoints

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MET = {True: "yes", False: "no"}
_CHOSEN = " *"
_WIDEST_NAME = 30  # longer ones are folded, none is cut


class Settings(Section):
    """The candidates, and what is to be small."""

    candidate_epochs: Annotated[AnyCounts, rule(is_distinct)] = Field(
        description='give different numbers from 1 to training-epochs such as "1,2,5"; only training "central" has '
        'checkpoints on its way, for the others give ""'
    )
    abstention_thresholds: Annotated[AnyNumbers, rule(lambda each: is_distinct(each) and max(each, default=0) <= 1)] = (
        Field(
            description='give different probabilities such as "0.5,0.8", or ""; they need the loss zero_one, since '
            "losses that mean other things cannot be compared"
        )
    )
    objective: Annotated[str, AfterValidator(lambda text: str(Objective(text)))] = Field(
        description='give a sum such as "mean+0.5*gini" of mean, cvar:0.9, quantile:0.9 and measures that are bounded'
    )
    selection_method: Annotated[str, one_of(SELECTION_METHODS)] = Field(
        description=f"use one of {', '.join(SELECTION_METHODS)}"
    )
    selection_target: float = Field(ge=0, description="fixed_sequence tests against a target above 0; 0 means: none")


def _are_checkpoints(epochs: tuple[int, ...], known: Mapping[str, Any]) -> bool:
    has_checkpoints = known.get("training", "central") == "central"
    return not epochs or (has_checkpoints and max(epochs) <= known.get("training_epochs", np.inf))


class SelectionStudy(Study):
    """Which of several candidate models is certified to be the best."""

    settings = Settings
    rules: ClassVar[Mapping[str, Rule]] = {
        **Study.rules,
        "require": lambda required, known: not required,  # whose risks: those of the model that they choose
        "candidate_epochs": _are_checkpoints,
        "abstention_thresholds": lambda each, known: not each or known.get("loss", "zero_one") == "zero_one",
        "selection_target": lambda target, known: target > 0 or known.get("selection_method") != "fixed_sequence",
    }
    figure_stem = "selection"
    asks_losses = False

    def prepare(self, config: RunConfig, grid: Grid | None) -> UnderTest:
        """Return all candidates; the clients are only needed when ``training = "fedavg"``."""
        candidates, arrays = packed(_candidate_models(config, grid))
        num_sets = 1 + max(candidate.weights for candidate in candidates)
        models = tuple(initial_model(config) for _ in range(num_sets))
        for model, weights in zip(models, separated(arrays, num_sets=num_sets), strict=True):
            load_arrays(model, weights)
        return UnderTest(arrays, models, candidates)

    def strategy(self, config: RunConfig, tested: UnderTest, asking: dict[str, Any]) -> SelectionStrategy:
        """Return what asks for the losses under all candidates."""
        chosen, question = config.of(Settings), config.question
        return SelectionStrategy(
            CandidatesQuery(candidates=tested.candidates, **architecture(config)),
            objective=chosen.objective,
            selection_settings={
                "seed": config.run.seed,
                "method": chosen.selection_method,
                "target": chosen.selection_target or None,
                **question.model_dump(include={"band", "local"}),
                "dispersion": band_method(config.of(dispersion.Settings).dispersion_method),
            },
            **asking,
        )

    def unseen(self, config: RunConfig, tested: UnderTest, result: SelectionConclusion) -> Unseen:
        """Return the risks of the unseen clients under every candidate, exact as in `Study.unseen`.

        For ``local = "observed"`` the unseen clients measure, each on the same examples under all candidates. The risks
        under the candidate that is shown stand for the network.
        """
        population, is_measured = config.population("unseen"), config.question.local == "observed"
        risks = {candidate.name: np.empty(config.network.num_unseen) for candidate in tested.candidates}
        for k in range(config.network.num_unseen):
            held: Any = population.client(k) if is_measured else population.distribution(k)
            weights = np.full(len(held.y), 1.0 / len(held.y)) if is_measured else held.weights
            for index, model in enumerate(tested.models):
                batches = list(logit_batches(model, held.x, held.y))
                labels, logits = (torch.cat([batch[place] for batch in batches]) for place in (1, 2))
                for candidate in tested.candidates:
                    if candidate.weights == index:
                        losses = get_loss(candidate.loss).per_example(logits, labels).numpy()
                        risks[candidate.name][k] = weights @ losses
        clipped = {name: np.clip(each, 0.0, 1.0) for name, each in risks.items()}  # the weights sum to 1 up to rounding
        return Unseen(clipped[result.shown], by_candidate=clipped)

    def sections(self, evaluation: Evaluation) -> dict[str, Any]:
        """Return the section "selection": the table of all candidates, which was chosen, and how delta was spent."""
        result = evaluation.conclusion
        selection = result.selection
        section = {
            "objective": str(selection.objective),
            **{name: getattr(selection, name) for name in ("method", "target", "best")},
            "certificate": next(iter(result.certificates), None),  # None: a sequence that certifies no candidate
            "shown": result.shown,  # "network" and "unseen" are about this candidate
            **{name: getattr(selection, name) for name in ("delta", "candidate_delta", "spending")},
            "candidates": [_candidate_entry(selection, each, evaluation.unseen) for each in selection.candidates],
            "unseen_stand_for": evaluation.unseen_stand_for,
        }
        return {"selection": section}

    def figure(self, evaluation: Evaluation) -> Figure:
        """Return the figure of all candidates."""
        objective = evaluation.conclusion.selection.objective
        return selection_figure(
            evaluation.conclusion.selection,
            unseen_risks=None if evaluation.truth is None else evaluation.truth.by_candidate,
            title=f"{evaluation.config.run.scenario}: which candidate has the smallest {objective}?",
        )

    def tables(self, report: Mapping[str, Any]) -> list[Table]:
        """Return the table of all candidates."""
        selection, of_unseen = report["selection"], unseen_headers(report)
        is_sequence, has_target = selection["method"] == "fixed_sequence", selection["target"] is not None
        # Bounds in a sequence are tested one by one and do not hold together: no "≤" for them.
        terms = [] if is_sequence else list(selection["candidates"][0]["terms"])
        bounded = [">is at most", *([">tested"] if is_sequence else []), *(f">{name} ≤" for name in terms), ">measured"]
        table = new_table(
            f"{report['scenario']}: {selection['objective']} of the risks of unseen clients, by candidate",
            *[f"candidate ({_CHOSEN.strip()} chosen)", *bounded, *(["target met"] if has_target else []), *of_unseen],
        )
        longest = max(len(each["candidate"]) + len(_CHOSEN) for each in selection["candidates"])
        table.columns[0].overflow, table.columns[0].no_wrap = "fold", longest <= _WIDEST_NAME
        for each in selection["candidates"]:
            bounds = [each["bound"]] if is_sequence else [each["terms"][name] for name in terms]
            met = [_MET[each["meets_target"]]] if has_target else []
            checked = [number(each["unseen"]), VERDICTS[each["holds"]]] if of_unseen else []
            name = escape(each["candidate"]) + (_CHOSEN if each["candidate"] == selection["best"] else "")
            at_most = map(upper_bound, [each["certified_at_most"], *bounds])
            table.add_row(name, *at_most, number(each["measured"]), *met, *checked)
        return [table]

    def lines(self, report: Mapping[str, Any]) -> Iterator[str]:
        """Yield what is to be said below the table."""
        selection = report["selection"]
        if selection["certificate"] is None:
            yield (
                f"No candidate is certified to have {selection['objective']} of at most {selection['target']:g}: there "
                "is no certificate, and the bounds that were tested are none."
            )
        else:
            yield report["certificates"][selection["certificate"]]["statement"]
        yield f"How delta was spent: {selection['spending']}."
        if selection["unseen_stand_for"]:
            yield f"The numbers on unseen clients are {selection['unseen_stand_for']}."


def _candidate_models(config: RunConfig, grid: Grid | None) -> Candidates:
    """All candidates, in the order in which a sequence tests them: as they are written in the configuration."""
    chosen = config.of(Settings)
    if config.model.training != "central":
        weights = model_arrays(prepare_model(config, grid))
        found: Candidates = {"model": (weights, config.question.loss)}
        return found | abstaining("model", weights, thresholds=chosen.abstention_thresholds)
    epochs = chosen.candidate_epochs or (config.model.training_epochs,)
    kept = checkpoints(config.dataset, epochs=epochs, **central_settings(config))
    models = candidate_models(kept, loss=config.question.loss, thresholds=chosen.abstention_thresholds)
    return {name: models[name] for name in dict.fromkeys([*(f"epochs-{epoch}" for epoch in epochs), *models])}


def _candidate_entry(selection: Selection, candidate: CandidateBound, unseen: Unseen | None) -> dict[str, Any]:
    certified, value, holds = certified_of(selection, candidate), None, None
    if unseen is not None:
        value = selection.objective.of_distribution(RiskDistribution.of_values(unseen.by_candidate[candidate.name]))
        holds = None if certified is None else compare(certified, np.asarray(value)).holds
    return {
        "candidate": candidate.name,
        "bound": candidate.bound,
        "certified_at_most": certified,
        "meets_target": None if selection.target is None else candidate.is_certified,
        "measured": candidate.measured,
        "unseen": value,
        "holds": holds,
        "terms": dict(candidate.terms),
    }
