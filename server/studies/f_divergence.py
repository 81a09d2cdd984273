"""The study "f_divergence": networks of the same clients, reweighted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from riskband import DIVERGENCES
from riskband.plots.bands import band_figure
from server.sections import Names, Numbers, Section, is_distinct, one_of, rule
from server.studies.study import Evaluation, Study, UnderTest, breakdowns, loss_query
from strategies.f_divergence import FDivergence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from server.config import RunConfig


class Settings(Section):
    """Which shifts, and where curves are read."""

    divergences: Annotated[Names, one_of(DIVERGENCES)] = Field(
        description=f"give a comma-separated list of {', '.join(DIVERGENCES)}"
    )
    budgets: Annotated[Numbers, rule(is_distinct)] = Field(
        description='give a comma-separated list such as "0.05,0.1"; 0 means no shift'
    )
    thresholds: int = Field(ge=1, le=10_000, description="the number of risks at which curves are read")


def settings_of(config: RunConfig) -> dict[str, Any]:
    """Return what `strategies.f_divergence.FDivergence` takes from the configuration beside what all strategies do."""
    chosen, question = config.of(Settings), config.question
    return {
        **dict(chosen),
        "thresholds": np.arange(1, chosen.thresholds + 1) / chosen.thresholds,
        "band": question.band,
        "local": question.local,
        "breakdown_threshold": question.breakdown_threshold,
        "breakdown_target": question.breakdown_target,
    }


class FDivergenceStudy(Study):
    """Networks of the same clients, reweighted."""

    settings: ClassVar[type[Section]] = Settings
    figure_stem = "band"

    def strategy(
        self, config: RunConfig, tested: UnderTest, asking: dict[str, Any], show: Callable[[str], None]
    ) -> FDivergence:
        """Return what asks for losses."""
        return FDivergence(loss_query(config), **settings_of(config), **asking)

    def sections(self, evaluation: Evaluation) -> dict[str, Any]:
        """Return the section "breakdowns": how far the network may shift."""
        asked = evaluation.config.question
        goal = f"at most {asked.breakdown_target:g} of the clients have a risk of {asked.breakdown_threshold:g} or more"
        return {"breakdowns": breakdowns(evaluation, budget="budget", source="worst_case_cdf_{}", goal=goal)}

    def figure(self, evaluation: Evaluation) -> Figure:
        """Return the figure of the band, with the curves of the first divergence."""
        result, first = evaluation.conclusion, evaluation.config.of(Settings).divergences[0]
        return band_figure(
            result.band,
            worst_case=result.certificates.get(f"worst_case_cdf_{first}"),
            unseen_risks=None if evaluation.truth is None else evaluation.truth.risks,
            title=evaluation.title,
        )

    def within(self, entry: Mapping[str, Any], point: Mapping[str, float]) -> str:
        """Return the divergence and its budget, where there are any."""
        return f"within {entry['divergence']} {point['budget']:g}" if "budget" in point else "like the source"
