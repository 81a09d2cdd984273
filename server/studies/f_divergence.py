"""The study "f_divergence": networks of the same clients, reweighted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from flwr.serverapp import Grid
from pydantic import Field
from rich.table import Table

from riskband import DIVERGENCES, Certificate
from riskband.answers.responses import MISSING, UNTIL_DECIDED
from riskband.plots.bands import band_figure
from riskband.worst_cases.number import TARGET
from server.checks.unseen import Unseen, unseen_clients
from server.sections import Names, Numbers, Rule, Section, is_distinct, one_of, rule
from server.settings import RunConfig
from server.studies import target_network as networks
from server.studies.study import Evaluation, Study, UnderTest, loss_query
from strategies.f_divergence import FDivergence
from worlds.population import groups_of
from worlds.targets import HOW_TO_CHANGE, target_changes, target_spec

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_GROUP = "group:"


def _group(target: str) -> str:
    """The group of clients that are of the target network; "" if there is none."""
    return target.removeprefix(_GROUP) if target.startswith(_GROUP) else ""


def _may_be(target: str, known: Mapping[str, Any]) -> bool:
    """Return whether a target may be: in a simulation with groups one of these, in others any that owners may name."""
    made = [each.name for each in groups_of(known.get("group_sigmas", ()), known.get("group_angles", ()))]
    return not target or (not made or _group(target) in made if _group(target) else known.get("num_unseen", 2) >= 2)


class Settings(Section):
    """Which shifts, and where curves are read."""

    divergences: Annotated[Names, one_of(DIVERGENCES)] = Field(
        description=f"give a comma-separated list of {', '.join(DIVERGENCES)}"
    )
    budgets: Annotated[Numbers, rule(is_distinct)] = Field(
        description='give a comma-separated list such as "0.05,0.1"; 0 means no shift'
    )
    thresholds: int = Field(ge=1, le=10_000, description="the number of risks at which curves are read")
    target: Annotated[str, rule(lambda text: bool(_group(text)) or target_changes(text) is not None)] = Field(
        description=f'{HOW_TO_CHANGE}; it has num-unseen clients, at least 2; or "{_GROUP}NAME": those of the run in '
        "this group, such as sigma-0.3 of group-sigmas, with missing ignore and contamination 0; neither with privacy"
    )
    num_target_clients: Annotated[int, rule(lambda number: number != 1)] = Field(
        ge=0, description="so many of num-unseen clients of a target network are asked, at least 2; 0 means: all"
    )


def settings_of(config: RunConfig) -> dict[str, Any]:
    """Return what `strategies.f_divergence.FDivergence` takes from the configuration beside what all strategies do."""
    chosen, question = config.of(Settings), config.question
    return {
        **chosen.model_dump(include={"divergences", "budgets"}),
        **question.model_dump(include={"band", "local", "breakdown_threshold"}),
        "thresholds": np.arange(1, chosen.thresholds + 1) / chosen.thresholds,
    }


def asked_of(evaluation: Evaluation) -> dict[str, Any]:
    """Return what a run asks of its target network."""
    return evaluation.config.of(Settings).model_dump(include={"divergences", "budgets"})


class FDivergenceStudy(Study):
    """Networks of the same clients, reweighted."""

    settings: ClassVar[type[Section]] = Settings
    rules: ClassVar[Mapping[str, Rule]] = {
        "target": _may_be,
        "num_target_clients": lambda size, known: (
            size <= known.get("num_unseen", size) or not known.get("target") or bool(_group(known["target"]))
        ),
        "require": Study.rules["require"],
        "missing": lambda missing, known: missing == "ignore" or not _group(known.get("target", "")),
        "contamination": lambda number, known: number == 0 or not _group(known.get("target", "")),
        "privacy": lambda noise, known: Study.rules["privacy"](noise, known) and not (noise and known.get("target")),
    }
    figure_stem = "band"
    can_stop: ClassVar[bool] = True

    def figure_names(self, config: RunConfig) -> list[str]:
        """Return the names of the figure's files; there is no figure where no band was asked for, or there is none."""
        has_band = config.asking.ask != UNTIL_DECIDED and not config.asking.design and config.asking.missing in MISSING
        return super().figure_names(config) if has_band else []

    def prepare(self, config: RunConfig, grid: Grid | None) -> UnderTest:
        """Return what is put before the clients; a target network that cannot be is refused before."""
        if not _group(config.of(Settings).target):
            target_spec(config.to_run_config(), target=config.of(Settings).target)
        return super().prepare(config, grid)

    def strategy(self, config: RunConfig, tested: UnderTest, asking: dict[str, Any]) -> FDivergence:
        """Return what asks for losses; half of delta is for what is said of a target network, if there is one."""
        if target := config.of(Settings).target:
            asking |= {"delta": asking["delta"] / 2.0, "has_next": False, "target_group": _group(target)}
        return FDivergence(loss_query(config), **settings_of(config), **asking)

    def unseen(self, config: RunConfig, tested: UnderTest, conclusion: Any) -> Unseen | None:
        """Return what can be known of the unseen clients of the source network."""
        found, group = super().unseen(config, tested, conclusion), _group(config.of(Settings).target)
        return found.without_group(group) if found is not None and group else found

    def targets(
        self, config: RunConfig, tested: UnderTest, conclusion: Any, show: Callable[[str], None]
    ) -> Sequence[Any]:
        """Return the network of ``target``, if there is one."""
        chosen = config.of(Settings)
        group = _group(chosen.target)
        if not chosen.target or (group and conclusion.target is None):
            return ()
        if group:
            risks = np.empty(0)
            if config.network.num_unseen:
                risks = unseen_clients(config, tested.models[0]).group_risks(group)
            return (networks.TargetNetwork(chosen.target, risks, conclusion.target),)
        show("computing the risks of the target network")
        num_asked = chosen.num_target_clients
        return (networks.target_network(config, tested.models[0], change=chosen.target, num_asked=num_asked),)

    def certificates(self, evaluation: Evaluation) -> Mapping[str, Certificate]:
        """Return what the strategy certified, and what is certified of the target network, if there is one."""
        found, asked = super().certificates(evaluation), asked_of(evaluation)
        return {**found, **networks.target_certificates(evaluation, **asked)} if evaluation.targets else found

    def limits(self, config: RunConfig) -> list[tuple[float, float | None]]:
        """Return the share of failing clients that is accepted."""
        return [(config.question.breakdown_target, config.question.breakdown_threshold)]

    def sections(self, evaluation: Evaluation) -> dict[str, Any]:
        """Return the section "target": a network that did shift."""
        return {"target": networks.target_entry(evaluation, **asked_of(evaluation)) if evaluation.targets else None}

    def figure(self, evaluation: Evaluation) -> Figure:
        """Return the figure of the band, with the curves of the first divergence."""
        result, first = evaluation.conclusion, evaluation.config.of(Settings).divergences[0]
        return band_figure(
            result.band,
            worst_case=result.certificates.get(f"worst_case_cdf_{first}"),
            unseen_risks=None if evaluation.truth is None else evaluation.truth.risks,
            target_risks=evaluation.targets[0].known_risks if evaluation.targets and evaluation.truth else None,
            title=evaluation.title,
        )

    def tables(self, report: Mapping[str, Any]) -> list[Table]:
        """Return the table of certificates, and where there is one that of the target network."""
        found = report.get("target")
        return [*super().tables(report), *([networks.target_table(found)] if found else [])]

    def elsewhere(self, report: Mapping[str, Any]) -> Collection[str]:
        """Return the certificates of the target network."""
        return [name for name, each in report["certificates"].items() if each["kind"].endswith(f"@{TARGET}")]

    def lines(self, report: Mapping[str, Any]) -> Iterator[str]:
        """Yield how far the target network is, or that nothing is known of it."""
        if report.get("target"):
            yield from networks.target_lines(report["target"])
        elif group := _group(report["config"].get("target", "")):
            said = (
                f"NO TARGET NETWORK: fewer than two clients that answered are in the group {group!r}, so all of this is"
            )
            yield f"{said} about others. ledger.jsonl has the group of each: if it is wrong, repair it and ask again."

    def within(self, entry: Mapping[str, Any], point: Mapping[str, float]) -> str:
        """Return the divergence and its budget, where there are any."""
        if "budget" not in point:
            return "like the source"
        return f"within {networks.short_title(entry['divergence'])} {point['budget']:g}"
