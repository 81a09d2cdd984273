"""What further evaluations of the same clients say: whether this panel has become worse (math §17.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from riskband.answers.metrics import first_of
from riskband.answers.risks import ClientRisks
from riskband.certificate import Certificate
from riskband.checks import FloatArray, IntArray
from riskband.report.monitored import ALARM, NO_ALARM, Monitoring, check_alpha
from riskband.wording import evenly, short_delta
from riskband.worst_cases.panels import panel_change, panel_evidence, panel_of


class NotWorse(NamedTuple):
    """What is doubted: that the panel's mean risk was never above that at its beginning."""

    name: str = "panel_change"
    bound: str = "never above 0"
    plain: str = "panel_change"
    limit: float = 0.0


@dataclass(frozen=True, eq=False, repr=False)
class PanelMonitoring(Monitoring):
    """As `Monitoring`, of the same clients at one time and at later ones; the looks are at evaluations.

    Attributes
    ----------
    later : tuple of ClientRisks
        The later evaluations; `answers` are those at the beginning.
    """

    claims: Mapping[str, Any]
    answers: ClientRisks
    later: tuple[ClientRisks, ...]

    unit = "evaluations"
    note = "It is about these clients alone. Each is taken to have measured new examples at each evaluation."

    def _words(self) -> str:
        return f"{self.verdict} after {len(self.later)} evaluations of {self.answers.num_clients} clients"

    @property
    def statement(self) -> str:
        """Whether there is an alarm, what that means, and by how much the panel has changed, in one line."""
        needed, e_values = f"{1.0 / self.alpha:.4g}", self.e_values
        if self.alarm_at is None:
            said = f"e-value {e_values[-1]:.3g} after {len(self.later)} later evaluations of this panel of "
            said += f"{self.answers.num_clients} clients, never above {e_values.max():.3g}"
            return f"{NO_ALARM}: {said}; an alarm needs {needed}. {self.today}"
        return (
            f"{ALARM} at later evaluation {self.alarm_at} of {len(self.later)}: this panel of "
            f"{self.answers.num_clients} clients has become worse than it was at its beginning (e-value "
            f"{e_values[self.alarm_at - 1]:.3g}, an alarm needs {needed}; false alarms, ever: with probability at most "
            f"{short_delta(self.alpha)}). {self.today}"
        )

    @property
    def today(self) -> str:
        """By how much the panel has changed, and whose answers are left out."""
        (change,) = self.certificates.values()
        parts = [f"At all times {change.statement}"]
        if self.left_out:
            parts.append(f"Not of the panel, and left out: {first_of(list(self.left_out))}.")
        return " ".join(parts)

    @cached_property
    def _today(self) -> dict[str, Certificate | None]:
        return {NotWorse().name: panel_change(self.answers, self.later, delta=self.delta)}

    def trajectory(self, number: str, *, most: int = 40) -> tuple[IntArray, FloatArray, FloatArray]:
        """Return at most so many numbers of later evaluations, and both ends of the change as certified after each."""
        sizes = self.sizes[evenly(self.sizes.size, most)]
        found = [panel_change(self.answers, self.later[:size], delta=self.delta) for size in sizes.tolist()]
        return sizes, np.array([each.lower for each in found]), np.array([each.value for each in found])


def monitor_panel(baseline: ClientRisks, later: Sequence[ClientRisks], *, alpha: float) -> PanelMonitoring:
    """Say whether the same clients have become worse, however often that is asked.

    Parameters
    ----------
    baseline, later : ClientRisks, sequence of ClientRisks
        As for `panel_change`.
    alpha : float
        Probability of an alarm at any time while their mean risk is never above that at the beginning, and of an
        interval that fails at any time, in (0, 1).

    Raises ValueError as `panel_change`.
    """
    seen, others = panel_of(baseline, later)
    level = check_alpha(alpha)
    return PanelMonitoring(
        claims={"panel": NotWorse()},
        left_out=dict.fromkeys(others, "it is not of the panel"),
        answers=baseline,
        alpha=level,
        delta=level,
        sizes=np.arange(1, len(later) + 1),
        capital=panel_evidence(seen)[None],
        later=tuple(later),
    )
