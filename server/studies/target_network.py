"""A target network of a run with f-divergences: how far it seems to be, and whether the certificates cover it there.

Nobody can know an f-divergence from samples. What is said of it is an estimate and a lower confidence bound, of the
distributions of risks (math §3.6); the check is made at every budget that any of these, or the configuration, names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from rich.table import Table
from torch import nn

import riskband as rb
from riskband.models.losses import get_loss
from riskband.report.networks import NO_UPPER_BOUND, certified_target
from riskband.report.words import capital
from riskband.wording import confidence, exactly, rounded_down
from riskband.worst_cases.number import TARGET
from server.checks.unseen import compare, shares
from server.report.cells import VERDICTS, new_table, number, upper_bound
from server.settings import RunConfig
from server.studies.study import Evaluation, finite
from worlds.loss_table import PopulationRisks
from worlds.population import Population
from worlds.targets import target_spec

NUM_BINS = (10, 50)
"""Of the histograms: 10 is that of [RE]."""


@dataclass(frozen=True, eq=False)
class TargetNetwork:
    """A network whose clients' shifts are drawn from other distributions."""

    change: str  # what is different, as configured
    # Shape (num_targets,), of the kind that the certificates are about: exact, or with ``local = "observed"`` measured;
    # in [0, 1]. Empty where they are not known.
    risks: np.ndarray
    answers: rb.ClientRisks  # what those of its clients that are asked answered, or would

    @property
    def known_risks(self) -> np.ndarray | None:
        """The risks, if they are known."""
        return self.risks if self.risks.size else None


def target_network(config: RunConfig, model: nn.Module, *, change: str, num_asked: int) -> TargetNetwork:
    """Return the target network of a run, judged by the model that the clients evaluated; as many clients as unseen.

    Of these so many answer, 0: all. The server computes what they would.
    """
    population = Population(target_spec(config.to_run_config(), target=change))
    found, num_clients = PopulationRisks(population, model, loss=config.question.loss), config.network.num_unseen
    measured = found.measured(num_clients)
    is_binary = get_loss(config.question.loss).binary
    answers = rb.ClientRisks(measured[: num_asked or None], config.network.examples_per_client, binary=is_binary)
    measures = config.question.local == "observed"
    return TargetNetwork(change, measured if measures else found.exact(num_clients), answers)


@lru_cache(maxsize=1)
def target_certificates(
    evaluation: Evaluation, divergences: tuple[str, ...], budgets: tuple[float, ...]
) -> dict[str, rb.Certificate]:
    """Return by the names of their files what is certified of the target network of a run, with half of delta."""
    source = evaluation.conclusion.risks
    asked: dict[str, Any] = {"divergence": divergences, "delta": evaluation.config.question.delta / 2.0}
    asked["budget"] = budgets if source.are_as_measured else ()  # others cannot be bet on
    found = certified_target(source, evaluation.targets[0].answers, **asked, leaves_out=True)
    return {name.replace(":", "_"): each for name, each in found.certificates.items()}


def target_entry(evaluation: Evaluation, *, divergences: tuple[str, ...], budgets: tuple[float, ...]) -> dict[str, Any]:
    """Return the section "target" of a report, as plain data, for what the configuration asks."""
    target, known = evaluation.targets[0], target_certificates(evaluation, divergences, budgets)
    both = evaluation.conclusion.risks.shown_values, target.answers.shown_values
    if evaluation.unseen is not None and target.known_risks is not None:
        both = evaluation.unseen.risks, target.risks
    distances: dict[str, dict[str, Any]] = {}
    for name in divergences:
        bound = known[f"divergence@{TARGET}_{name}"]
        estimates = {bins: rb.divergence_estimate(*both, divergence=name, bins=bins) for bins in NUM_BINS}
        distances[name] = {
            "lower_bound": bound.lower,
            "delta": bound.delta,
            "validity": bound.validity,
            **{f"estimate_{bins}_bins": finite(estimate) for bins, estimate in estimates.items()},
        }
    return {
        "change": target.change,
        "num_clients": len(target.risks),
        "num_asked": target.answers.num_clients,
        "mean_risk": float(target.risks.mean()) if target.risks.size else None,
        "risks": target.risks.tolist(),
        "divergence": distances,
        "checks": [
            check | _with_few(known.get(f"mean@{TARGET}_{name}_{exactly(check['budget'])}"), target)
            for name, distance in distances.items()
            for check in _checks(evaluation, target, name, distance, asked=budgets)
        ],
    }


def _with_few(certificate: rb.Certificate | None, target: TargetNetwork) -> dict[str, Any]:
    """What the clients of the target that were asked add at a budget; None where nothing was asked for."""
    if certificate is None or not target.risks.size:
        return {"target_mean": certificate and certificate.value, "target_mean_holds": None}
    check = compare(certificate.value, np.asarray(target.risks.mean()), lower=certificate.lower)
    return {"target_mean": certificate.value, "target_mean_holds": check.holds}


def _checks(
    evaluation: Evaluation, target: TargetNetwork, divergence: str, distance: Mapping[str, Any], asked: Sequence[float]
) -> Iterator[dict[str, Any]]:
    """What is certified within each budget that was asked or measured, from the smallest, beside the target network."""
    measured = ("lower_bound", *(f"estimate_{bins}_bins" for bins in NUM_BINS))
    budgets = dict.fromkeys(asked, "asked") | {distance[name]: name for name in measured if distance[name] is not None}
    thresholds = evaluation.conclusion.certificates[f"worst_case_cdf_{divergence}"].axes["threshold"]
    risks = target.known_risks
    if risks is not None:
        observed, mean = shares(risks, thresholds), np.asarray(risks.mean())
        is_there = (observed > 0) & (observed < 1)  # elsewhere a margin of 0 is no news
    for budget in sorted(budgets):
        ball: dict[str, Any] = {"divergence": divergence, "budget": [budget]}
        bound = np.asarray(rb.worst_case_cdf(evaluation.conclusion.band, **ball, thresholds=thresholds).value)[0]
        mean_bound = np.asarray(rb.worst_case_mean(evaluation.conclusion.band, **ball).value)[0]
        holds: dict[str, Any] = dict.fromkeys(("cdf_holds", "cdf_smallest_margin", "mean_holds"))
        if risks is not None:
            cdf = compare(bound[is_there], observed[is_there]) if np.any(is_there) else compare(bound, observed)
            holds = {"cdf_holds": cdf.holds, "cdf_smallest_margin": cdf.smallest_margin}
            holds["mean_holds"] = compare(mean_bound, mean).holds
        yield {
            "divergence": divergence,
            "budget": budget,
            "budget_is": budgets[budget],
            "worst_mean": float(mean_bound),
            **holds,
            "is_refuted": budget < distance["lower_bound"],  # the network is proved to be further away
        }


def short_title(divergence: str) -> str:
    """Return what a divergence is called before a budget: "KL", "χ²"."""
    return rb.DIVERGENCES[divergence].title.removesuffix(" divergence")


def target_table(section: Mapping[str, Any]) -> Table:
    """Return the table of what is certified at each budget beside the target network."""
    asked = f">the same with {section['num_asked']} of its clients"
    title = f"the target network ({section['change']}), {section['num_clients'] or section['num_asked']} clients"
    heads = "within", "a budget", ">mean risk at most", asked, ">its mean risk", "means hold", "shares hold"
    table = new_table(title, *heads)
    for check in section["checks"]:
        table.add_row(
            f"{short_title(check['divergence'])} {check['budget']:.4g}",
            check["budget_is"].replace("_", " ") + (", too small" if check["is_refuted"] else ""),
            upper_bound(check["worst_mean"]),
            upper_bound(check["target_mean"]),
            number(section["mean_risk"]),
            VERDICTS[check["mean_holds"] and check["target_mean_holds"] is not False],
            VERDICTS[check["cdf_holds"]],
        )
    return table


def target_lines(section: Mapping[str, Any]) -> Iterator[str]:
    """Yield how far the target network is, one line for each divergence."""
    for name, distance in section["divergence"].items():
        at_least, sure = f"at least {rounded_down(distance['lower_bound'])}", confidence(distance["delta"])
        estimates = ", ".join(
            f"{'infinite' if found is None else format(found, '.4g')} with {bins} bins"
            for bins in NUM_BINS
            for found in [distance[f"estimate_{bins}_bins"]]
        )
        yield (
            f"Target network, {rb.DIVERGENCES[name].title} from the source: {at_least} ({distance['validity']}, "
            f"confidence {sure}); estimates from histograms of risks: {estimates}. {capital(NO_UPPER_BOUND)}."
        )
