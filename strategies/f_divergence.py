"""One round of losses -> one band -> every certificate under f-divergence shifts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import riskband as rb
from riskband.answers.histogram import PlainAnswers, clients_above
from riskband.functionals.quantiles import SINGLE_LOCAL
from riskband.report.asked import are_few, budgets_beside, next_of_few
from riskband.worst_cases.number import Number
from strategies.asking.query import RoundOutcome
from strategies.certifying import BandStrategy, Conclusion, by_file


@dataclass(frozen=True, eq=False, kw_only=True)
class FDivergenceConclusion(Conclusion):
    """Certificates "mean", "survival", and for each divergence "worst_case_mean_<name>" and "worst_case_cdf_<name>".

    For `local` "marginal" and "observed", unless the answers are counts, "share" is the number of "survival" that is
    asked for: the share of clients at or above the breakdown threshold.
    """

    # Two-sided; "survival" and every "worst_case_cdf_<name>" are read off it, so they hold together, for every
    # threshold and budget. The others have parts of delta of their own: the mean, the share, what is required, and for
    # each divergence the worst means at all budgets asked. Where answers are not what the clients measured (noise,
    # counts, clients that are missing and count as the worst, or may be wrong) the worst means are read off the band.
    # Of clients that are no independent draws there is neither a band nor what is read off it.
    # If nothing is required of few clients, "next_client" stands beside all this, with a probability of its own.
    band: rb.Band | None
    target: rb.ClientRisks | None = None  # of the clients of the target network, if two or more answered
    target_group: str = ""  # theirs

    @property
    def client_ids(self) -> tuple[str, ...]:
        """The clients of the source network."""
        return tuple(answer.client_id for answer in _members(self.outcome, self.target_group, are_meant=False).answers)


@dataclass(eq=False, kw_only=True)
class FDivergence(BandStrategy):
    """Ask every client for its plain loss once; certify unseen clients and reweighted networks."""

    divergences: Sequence[str]  # names in `riskband.DIVERGENCES`
    budgets: Sequence[float]  # sizes of the divergence balls, >= 0
    thresholds: Sequence[float] | np.ndarray  # shape (num_thresholds,), risks in [0, 1] at which curves are read
    breakdown_threshold: float  # a risk in [0, 1], from which on a client counts as failing
    has_next: bool = True  # whether the next client stands beside the others, if nothing is required of few
    target_group: str = ""  # clients in this group are of the target network, and all others of the source; "": none

    def answered(self, outcome: RoundOutcome[Any]) -> PlainAnswers:
        """Return what the answers say of the risks of the source network's clients."""
        return self.plain_risks(_members(outcome, self.target_group, are_meant=False))

    def concluded(
        self, outcome: RoundOutcome[Any], risks: PlainAnswers, found: Mapping[str, rb.Certificate]
    ) -> Conclusion:
        """Return a conclusion with these certificates of what is required, by its names, and with no others."""
        return Conclusion(outcome=outcome, risks=clients_above(risks), certificates=by_file(found), required=found)

    def conclude(self, outcome: RoundOutcome[Any]) -> FDivergenceConclusion:
        """Return the certificates that the valid answers give; see `QueryStrategy.conclude`."""
        risks, required = self.answered(outcome), self.numbers_required
        mean, share = Number("mean"), Number("share", (self.breakdown_threshold,))
        bet_on = risks if self.can_bet_on(risks) else None
        budgets = {
            name: np.array(budgets_beside(required, divergence=name, budgets=self.budgets)) for name in self.divergences
        }
        single = risks if isinstance(risks, rb.ClientRisks) and self.local in SINGLE_LOCAL else None
        has_share = single is not None and share not in required
        num_own = (mean not in required) + has_share + len(self.own_numbers(risks, required))
        has_band = not isinstance(risks, rb.ClientRisks) or risks.are_independent
        num_parts = has_band + num_own + (bet_on is not None) * sum(sizes.size > 0 for sizes in budgets.values())
        certificates, part = dict[str, rb.Certificate](), self.delta / num_parts
        band = rb.band(risks, sides="two", delta=part, **self.band_settings) if has_band else None
        found = self.certificates_required(risks, required, delta=part, band=band)
        seed = self.seed if has_band else None
        certificates["mean"] = found.get("mean") or rb.mean_bound(risks, delta=part, seed=seed)
        if band is not None:
            certificates["survival"] = rb.survival(band, thresholds=self.thresholds)
        if single is not None and has_share:
            asked = [self.breakdown_threshold]
            certificates["share"] = rb.survival(single, thresholds=asked, delta=part, local=self.local)
        for name, sizes in budgets.items():
            if sizes.size:
                own: dict[str, Any] = {} if bet_on is None else {"delta": part, "seed": seed}
                source: Any = band if bet_on is None else bet_on
                certificates[f"worst_case_mean_{name}"] = rb.worst_case_mean(
                    source, divergence=name, budget=sizes, **own
                )
            if band is not None:
                certificates[f"worst_case_cdf_{name}"] = rb.worst_case_cdf(
                    band, divergence=name, budget=np.asarray(self.budgets, dtype=np.float64), thresholds=self.thresholds
                )
        certificates |= by_file({name: each for name, each in found.items() if name != "mean"})
        if self.has_next and bet_on is not None and not required and are_few(bet_on, delta=self.delta / 3.0):
            certificates |= next_of_few(bet_on)
        members = _members(outcome, self.target_group, are_meant=True) if self.target_group else None
        return FDivergenceConclusion(
            outcome=outcome,
            risks=clients_above(risks),
            certificates=certificates,
            required=found,
            band=band,
            target=self.plain_risks(members) if members is not None and len(members.answers) > 1 else None,
            target_group=self.target_group,
        )


def _members(outcome: RoundOutcome[Any], group: str, *, are_meant: bool) -> RoundOutcome[Any]:
    """The answers of the members of a group alone, or of all others; raises ValueError if these are fewer than two."""
    if not group:
        return outcome
    found = tuple(each for each in outcome.answers if (each.group == group) == are_meant)
    if len(found) < 2 and not are_meant:
        raise ValueError(
            f"two clients or more must be outside of the group {group!r}, got {len(found)}; ask others, too"
        )
    return replace(outcome, answers=found)
