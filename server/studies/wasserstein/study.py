"""What the study "wasserstein" asks, and what a report says of the answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from rich.table import Table

from protocol.questions import AdversarialAnswer, AdversarialQuery
from riskband.adversaries.answers import attack_words, without_gradient
from riskband.adversaries.names import REPRESENTATION, Smoothing, input_adversary
from riskband.certificate import CERTIFICATE
from riskband.models.losses import get_loss
from riskband.plots.bands import transport_figure
from riskband.wording import down_to_digits, evenly, rounded_up
from server.checks.unseen import Unseen, unseen_clients
from server.report.cells import VERDICTS, certificate_table, new_table, num_rounds
from server.report.report import check_entry, failure_entries
from server.sections import Rule
from server.settings import RunConfig
from server.studies.study import Evaluation, Study, UnderTest, architecture, finite_ends
from server.studies.wasserstein.settings import Settings, fits_noise, transport_problem
from server.studies.wasserstein.targets import TargetNetwork, check_target, exact_curves, target_networks
from strategies.wasserstein import Wasserstein, WassersteinConclusion

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NUM_COSTS = 7  # of a long list of cost budgets, the table of the sandwich shows this many
_ASKED = {"cost_budgets", "cost_thresholds", "num_radii", "num_multipliers", "protocol", "cost_bound"}
_ASKED |= {"bisection_tolerance"}  # these keys are the strategy's own settings
_SUBJECTS = {
    "clients": "The worst mean risk of the clients that answered",
    "upper-bounds": "The worst mean of the upper bounds that the clients answered (no more than a bound of their risk)",
    "noise-samples": "The worst mean of what the clients answered (a bound of their risk, in the mean over the noise)",
    "attacks": "The worst mean that the clients' attacks reached (no bound of their risk)",
    "noise": "The worst mean risk of the clients that answered",
}


class WassersteinStudy(Study):
    """Networks that transport can reach."""

    settings = Settings
    # The published bound knows neither missing nor wrong answers.
    rules: ClassVar[Mapping[str, Rule]] = {
        "require": Study.rules["require"],
        "missing": lambda missing, known: missing == "ignore" or not known.get("cost_bound"),
        "contamination": lambda number, known: number == 0 or not known.get("cost_bound"),
        "privacy": fits_noise,
    }
    figure_stem = "transport"
    asks_losses = False

    def strategy(self, config: RunConfig, tested: UnderTest, asking: dict[str, Any]) -> Wasserstein:
        """Return what asks for adversarial losses."""
        return Wasserstein(
            AdversarialQuery(problem=transport_problem(config), radii=(0.0,), **architecture(config)),
            **config.of(Settings).model_dump(include=_ASKED),
            breakdown_target=config.question.breakdown_target,
            **asking,
        )

    def unseen(self, config: RunConfig, tested: UnderTest, conclusion: Any) -> Unseen | None:
        """Return the exact risks of the unseen clients, with their exact curves where those are known."""
        if Smoothing.of(config.of(Settings).adversary) is not None:
            return None  # their risks are those of the model, not of the smoothed one
        if config.of(Settings).space == REPRESENTATION and get_loss(config.question.loss).binary:
            return exact_curves(config, tested.models[0])
        return unseen_clients(config, tested.models[0], is_measured=False)

    def targets(
        self, config: RunConfig, tested: UnderTest, conclusion: Any, show: Callable[[str], None]
    ) -> tuple[TargetNetwork, ...]:
        """Return the networks of ``target-sigmas``."""
        if config.of(Settings).target_sigmas:
            show("moving unseen clients further and measuring how far that is")
        return target_networks(config, tested.models[0])

    def sections(self, evaluation: Evaluation) -> dict[str, Any]:
        """Return the sections "breakdowns", "transport", "sandwich" and "targets"."""
        result, unseen = evaluation.conclusion, evaluation.unseen
        answers, empirical = result.answers, result.empirical
        unit = answers.unit
        asked = evaluation.config.question
        return {
            "breakdown": _breakdown(result, target=asked.breakdown_target),
            "transport": {
                "cost": answers.cost,
                "guarantee": answers.guarantee,
                "mean_cost_that_makes_an_example_wrong": unit,
                "cost_budgets": empirical.cost_budgets.tolist(),
                "cost_budgets_in_that_unit": None if unit is None else (empirical.cost_budgets / unit).tolist(),
                "empirical_worst_mean": {
                    "about": empirical.about,
                    "lower": empirical.lower.tolist(),
                    "upper": empirical.upper.tolist(),
                },
                "attacks": _attacks(result.outcome.answers),
                "num_rounds": empirical.num_rounds,
                "num_messages": empirical.num_messages,
                "later_failures": failure_entries(empirical.later_failures),
                "query_budget": asdict(result.query_budget),
                # Whether the checks are against the worst network that the unseen clients can be made into.
                "unseen_are_moved": unseen is not None and bool(unseen.curves),
            },
            "sandwich": _sandwich(result),
            "targets": [_target_entry(result, target) for target in evaluation.targets],
        }

    def figure(self, evaluation: Evaluation) -> Figure:
        """Return the figure of the certificates over the cost, with the target networks and the worst unseen ones."""
        result, unseen = evaluation.conclusion, evaluation.unseen
        worst = {name: check.observed for name, check in evaluation.checks.items()} if unseen and unseen.curves else {}
        reached = reached_values(result)
        return transport_figure(
            result.certificates["wasserstein_mean"],
            cdf=result.certificates.get("wasserstein_cdf"),
            networks=[target.point for target in evaluation.targets],
            worst_mean=worst.get("wasserstein_mean"),
            worst_shares=worst.get("wasserstein_cdf"),
            reached_mean=reached.get("wasserstein_mean"),
            reached_shares=reached.get("wasserstein_cdf"),
            unit=result.answers.unit,
            unit_words=_unit_words(evaluation.config.of(Settings).space),
            attack_note=attack_words(result.outcome.answers),
            title=evaluation.title
            + (", smoothed model" if Smoothing.of(evaluation.config.of(Settings).adversary) else ""),
        )

    def tables(self, report: Mapping[str, Any]) -> list[Table]:
        """Return the table of certificates, and where there are any those of the sandwich and of target networks."""
        sandwich, targets = report.get("sandwich"), report.get("targets")
        unit = report["transport"]["mean_cost_that_makes_an_example_wrong"]
        further = [_sandwich_table(sandwich)] if sandwich else []
        further += [_target_table(targets, unit=unit)] if targets else []
        return [certificate_table(report, partial(self.within, unit=unit)), *further]

    def within(self, entry: Mapping[str, Any], point: Mapping[str, float], *, unit: float | None = None) -> str:
        """Return the cost budget, if there is one."""
        return f"cost ≤ {_cost(point['cost_budget'], unit)}" if "cost_budget" in point else "like the source"

    def lines(self, report: Mapping[str, Any]) -> Iterator[str]:
        """Yield what is to be said of the sandwich, and of examples where attacks found no gradient."""
        yield report["breakdown"]["statement"]
        yield from _sandwich_lines(report.get("sandwich"))
        yield from _attack_lines(report)

    def answer_lines(self, report: Mapping[str, Any]) -> Iterator[str]:
        """Yield what is to be said of the cost, and of how the clients answered."""
        transport, space = report["transport"], report["config"]["space"]
        unit, ends = transport["mean_cost_that_makes_an_example_wrong"], transport["empirical_worst_mean"]
        noise = Smoothing.of(report["config"]["adversary"])
        if noise is not None:
            yield (
                f"All risks are those of the smoothed model, with noise of standard deviation {noise.sigma:g} on its "
                "inputs, not of the model itself; unseen clients are not compared with them."
            )
        if unit is not None:
            yield f"Costs: {transport['cost']}; 1 u = {unit:.4g}, {_unit_words(space)}."
        gap = max(np.subtract(ends["upper"], ends["lower"]))
        rounds = num_rounds(transport["num_rounds"])
        subject, num_messages = _SUBJECTS[ends["about"]], transport["num_messages"]
        known = "only estimated, from answers with noise" if ends["about"] == "noise" else f"known to within {gap:.2g}"
        yield f"{subject} is {known}, from {rounds} and {num_messages} messages."
        later = transport["later_failures"]
        if later:
            reasons = Counter(failure["reason"] for failure in later)
            found = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
            yield f"Clients that fell silent after the first round: {len(later)} ({found}); what they had said counts."
        budget = transport["query_budget"]
        left_out, left = len(budget["clients_left_out"]), budget["smallest_left"]
        if left_out or left is not None:
            yield (
                f"Query budgets: asked for {budget['num_radii']} radii and {budget['num_multipliers']} multipliers; "
                f"{left_out} clients left out; the smallest budget left is {'unlimited' if left is None else left}."
            )

    def worst_network(self, report: Mapping[str, Any]) -> str:
        """Return whether the unseen clients were moved."""
        if report["transport"]["unseen_are_moved"]:
            return super().worst_network(report)
        known = "only known for the 0-1 loss in representation space"
        return f"as they are; the worst network that they can be made into is {known}"


def _target_entry(result: WassersteinConclusion, target: TargetNetwork) -> dict[str, Any]:
    cost, unit = target.point.cost, result.answers.unit
    return {
        "sigma": target.sigma,
        "num_clients": len(target.risks),
        "mean_cost": cost,
        "mean_cost_in_unit": None if unit is None else cost / unit,
        "mean_risk": target.point.mean_risk,
        "checks": {
            name: {"bound": bound.tolist(), **check_entry(check)}
            for name, (bound, check) in check_target(result, target).items()
        },
        "costs": target.costs.tolist(),
        "risks": target.risks.tolist(),
    }


def _unit_words(space: str) -> str:
    """What the unit of costs is: known before the model's last linear layer, elsewhere only an upper bound of it."""
    makes = "that makes an example" if space == REPRESENTATION else "at which attacks made an example"
    return f"the mean cost {makes} wrong"


def reached_values(result: WassersteinConclusion) -> dict[str, np.ndarray]:
    """Return the estimates under the names of the certificates, of their shapes, nowhere above them; or nothing.

    A certificate from upper bounds also bounds what attacks reached. So where its formula, whose bets depend on the
    data, happens to give less than the estimate's own, that is the better estimate.
    """
    certificates = result.certificates
    return {name: np.minimum(found.value, certificates[name].value) for name, found in result.reached.items()}


def _breakdown(result: WassersteinConclusion, *, target: float) -> dict[str, Any]:
    """Up to which cost the mean is certified to be at most a target."""
    found = result.breakdowns["wasserstein_mean"]
    said = "certified" if result.certificates["wasserstein_mean"].validity == CERTIFICATE else "estimated"
    goal = f"it is {said} that the mean risk is at most {target:g}"
    if np.isneginf(found.lower):
        words = f"Not even without a shift {goal.replace('it is', 'is it', 1)}."
    else:
        further = " and possibly beyond," if np.isposinf(found.upper) else ""
        words = f"Up to cost budget {down_to_digits(found.lower)}{further} {goal}."
    return {"statement": words, **finite_ends(found)}


def _sandwich(result: WassersteinConclusion) -> dict[str, Any] | None:
    """The section ``sandwich``; None where the answers have no two sides.

    ``network`` is about the mean risk of a network within each cost budget, at the same delta on both sides;
    ``clients`` about the mean over the clients that answered, when each may spend the same radius.
    """
    reached = reached_values(result)
    if not reached:
        return None
    estimates, certified = reached["wasserstein_mean"], np.asarray(result.certificates["wasserstein_mean"].value)
    replies = result.outcome.answers
    ends = {
        "lower": np.mean([answer.values_lower for answer in replies], axis=0),
        "upper": np.mean([answer.values_upper for answer in replies], axis=0),
    }
    budgets = result.certificates["wasserstein_mean"].axes["cost_budget"]
    return {
        "estimate_is_about": result.reached["wasserstein_mean"].quantity,
        "certificate_is_about": result.certificates["wasserstein_mean"].quantity,
        "network": [
            {"cost_budget": budget, "certificate": above, "estimate": below, "gap": above - below}
            for budget, above, below in zip(budgets.tolist(), certified.tolist(), estimates.tolist(), strict=True)
        ],
        "clients": {"radii": result.answers.radii.tolist(), **{side: each.tolist() for side, each in ends.items()}},
    }


def _attacks(answers: Sequence[AdversarialAnswer]) -> dict[str, Any] | None:
    """What is known of how well attacks could see, and of what model; None if no client said."""
    found = without_gradient(answers)
    unsteady = sum(answer.is_unsteady for answer in answers)
    if found is None and unsteady == 0:
        return None
    count, size = found or (None, sum(answer.num_examples for answer in answers))
    numbers = {"num_examples_without_gradient": count, "num_examples": size, "num_unsteady_clients": unsteady}
    return {**numbers, "words": attack_words(answers)}


def _target_table(targets: Sequence[Mapping[str, Any]], *, unit: float | None) -> Table:
    title = "Unseen clients, moved further: the distance is measured, the risks are exact"
    table = new_table(title, ">sigma", "mean cost", ">mean risk", ">is at most", "holds")
    for target in targets:
        checks = target["checks"]
        holds = all(check["holds"] for check in checks.values())
        distance, bound = _cost(target["mean_cost"], unit), checks["wasserstein_mean"]["bound"]
        numbers = f"{target['mean_risk']:.3f}", rounded_up(bound, 3)
        table.add_row(f"{target['sigma']:g}", distance, *numbers, VERDICTS[holds])
    return table


def _sandwich_table(section: Mapping[str, Any]) -> Table:
    headers = "cost ≤", ">estimate: what attacks reached", ">certificate: is at most", ">gap"
    table = new_table("The sandwich: mean risk on any network within a cost budget", *headers)
    rows = section["network"]
    for index in evenly(len(rows), _NUM_COSTS):
        row = rows[index]
        above = rounded_up(row["certificate"], num_digits=3)  # a bound is never shown smaller than it is
        table.add_row(f"{row['cost_budget']:.3g}", f"{row['estimate']:.3f}", above, f"{row['gap']:.3f}")
    return table


def _cost(cost: float, unit: float | None) -> str:
    return f"{cost:.3g}" + ("" if unit is None else f" ({cost / unit:.2g} u)")


def _attack_lines(report: Mapping[str, Any]) -> Iterator[str]:
    section = report["transport"].get("attacks")
    if section is None or not section["words"]:
        return
    if not section["num_examples_without_gradient"]:
        yield f"Estimate: {section['words']}."
        return
    adversary = report["config"]["adversary"]
    kind = input_adversary(adversary)
    if kind is not None and not kind.needs_gradients:
        detail = "random search (the Square Attack) looked there, too, and may miss much"
    else:
        detail = f'{adversary!r} is blind there, and its estimate says nothing of them; use "auto" or "square"'
    yield f"Estimate: {section['words']}; {detail}."


def _sandwich_lines(section: Mapping[str, Any] | None) -> Iterator[str]:
    if section is not None:
        widest = max(section["network"], key=lambda row: row["gap"])
        yield (
            f"Sandwich: the widest gap is {widest['gap']:.3f}, at cost {widest['cost_budget']:.3g}: attacks reached no "
            "more, and nothing less was proved. Only the upper end is a certificate."
        )
