# ruff: noqa: RUF022 - names are in the order of their chapters
"""riskband: how badly can a federated model do on clients that nobody has measured.

The library turns per-client mean losses into certificates: bounds that hold with probability 1 - delta, with every
assumption written down. Of Flower only `riskband.flower` knows, for apps of your own; the Flower App in the same
repository asks the clients.

All names are imported on use. What their functions return, and what they are made of, is documented with them and
imported from its own module.
"""

from importlib import import_module
from typing import TYPE_CHECKING

# fmt: off
__all__ = [
    # answers
    "ClientRisks", "ClientChanges", "ClientScores", "HistogramLimits", "HistogramRisks", "AdversarialAnswers",
    "AnswerNoise", "RiskDistribution", "risk_histogram", "default_multipliers", "num_clients_needed",
    # bands
    "Band", "band", "OptimisedLevels", "split_clients",
    # bounds
    "Interval", "Number", "bound", "mean_bound", "mean", "quantile", "cvar", "survival", "weighted_quantile",
    "QuantileWeight", "lorenz_certificate", "quantile_certificate", "dispersion_certificate", "measured_dispersion",
    "extremal_distributions",
    # worst cases
    "DIVERGENCES", "custom_divergence", "binary_worst_case", "worst_case_cdf", "worst_case_mean", "breakdown",
    "next_clients", "divergence_estimate", "divergence_lower_bound", "panel_change",
    "wasserstein_mean", "wasserstein_cdf", "wasserstein_breakdown", "wasserstein_published",
    # groups
    "group_bands", "group_certificate", "group_intervals",
    # selection
    "Objective", "select",
    # two models, and requirements
    "compare", "require", "plan",
    # over time
    "Sequence", "monitor",
    # certificates
    "Certificate", "verify", "report_page",
]
# fmt: on

# For each module, the names that `riskband` offers from it; a test compares them with the imports below.
_NAMES = {
    "answers.adversarial": "AdversarialAnswers default_multipliers",
    "answers.histogram": "HistogramLimits HistogramRisks risk_histogram",
    "answers.noise": "AnswerNoise",
    "answers.risks": "ClientRisks",
    "answers.scaled": "ClientChanges ClientScores",
    "bands.band": "Band band",
    "bands.pilots": "split_clients",
    "certificate": "Certificate",
    "functionals.dispersion": "dispersion_certificate extremal_distributions lorenz_certificate measured_dispersion",
    "functionals.distributions": "RiskDistribution",
    "functionals.functional": "Interval",
    "functionals.quantiles": "cvar mean num_clients_needed quantile quantile_certificate survival weighted_quantile",
    "functionals.weights": "QuantileWeight",
    "groups.comparisons": "group_certificate group_intervals",
    "groups.group_bands": "group_bands",
    "means": "mean_bound",
    "worst_cases.bounds": "bound",
    "worst_cases.number": "Number",
    "report.compared": "compare",
    "report.monitored": "monitor",
    "report.page": "report_page",
    "selection": "Objective select",
    "tuning": "OptimisedLevels",
    "verification": "verify",
    "worst_cases.divergence_bounds": "divergence_estimate divergence_lower_bound",
    "worst_cases.divergences": "DIVERGENCES binary_worst_case custom_divergence",
    "worst_cases.next_clients": "next_clients",
    "worst_cases.panels": "panel_change",
    "worst_cases.planning": "plan",
    "worst_cases.requirements": "require",
    "worst_cases.reweighting": "breakdown worst_case_cdf worst_case_mean",
    "worst_cases.sequences": "Sequence",
    "worst_cases.wasserstein": "wasserstein_breakdown wasserstein_cdf wasserstein_mean wasserstein_published",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

if TYPE_CHECKING:
    __version__: str
    from riskband.answers.adversarial import AdversarialAnswers, default_multipliers
    from riskband.answers.histogram import HistogramLimits, HistogramRisks, risk_histogram
    from riskband.answers.noise import AnswerNoise
    from riskband.answers.risks import ClientRisks
    from riskband.answers.scaled import ClientChanges, ClientScores
    from riskband.bands.band import Band, band
    from riskband.bands.pilots import split_clients
    from riskband.certificate import Certificate
    from riskband.functionals.dispersion import (
        dispersion_certificate,
        extremal_distributions,
        lorenz_certificate,
        measured_dispersion,
    )
    from riskband.functionals.distributions import RiskDistribution
    from riskband.functionals.functional import Interval
    from riskband.functionals.quantiles import (
        cvar,
        mean,
        num_clients_needed,
        quantile,
        quantile_certificate,
        survival,
        weighted_quantile,
    )
    from riskband.functionals.weights import QuantileWeight
    from riskband.groups.comparisons import group_certificate, group_intervals
    from riskband.groups.group_bands import group_bands
    from riskband.means import mean_bound
    from riskband.report.compared import compare
    from riskband.report.monitored import monitor
    from riskband.report.page import report_page
    from riskband.selection import Objective, select
    from riskband.tuning import OptimisedLevels
    from riskband.verification import verify
    from riskband.worst_cases.bounds import bound
    from riskband.worst_cases.divergence_bounds import divergence_estimate, divergence_lower_bound
    from riskband.worst_cases.divergences import DIVERGENCES, binary_worst_case, custom_divergence
    from riskband.worst_cases.next_clients import next_clients
    from riskband.worst_cases.number import Number
    from riskband.worst_cases.panels import panel_change
    from riskband.worst_cases.planning import plan
    from riskband.worst_cases.requirements import require
    from riskband.worst_cases.reweighting import breakdown, worst_case_cdf, worst_case_mean
    from riskband.worst_cases.sequences import Sequence
    from riskband.worst_cases.wasserstein import (
        wasserstein_breakdown,
        wasserstein_cdf,
        wasserstein_mean,
        wasserstein_published,
    )
else:

    def __getattr__(name: str) -> object:
        """Import what is asked for: a name of `_NAMES`, or the version."""
        if name == "__version__":
            value = _version()
        elif name in _MODULES:
            value = getattr(import_module(f"riskband.{_MODULES[name]}"), name)
        else:
            raise AttributeError(f"module 'riskband' has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version
    from pathlib import Path

    try:
        return version("riskband")
    except PackageNotFoundError:  # an app that Flower unpacked is not installed; its pyproject.toml lies beside it
        import tomllib

        project = Path(__file__).parents[1] / "pyproject.toml"
        return str(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"])
