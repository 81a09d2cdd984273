# ruff: noqa: I001, RUF022 - names are in the order of their chapters, and several are imported at once by their own name
"""riskband: how badly can a federated model do on clients that nobody has measured.

The library turns per-client mean losses into certificates: bounds that hold with probability 1 - delta, with every
assumption written down. Of Flower only `riskband.flower` knows, for apps of your own; the Flower App in the same
repository asks the clients.

`__all__` lists the names that most users type. Those of `_NAMES` beyond it are as public; their modules document them.
All are imported on use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

# fmt: off
__all__ = [
    # answers
    "ClientRisks", "HistogramRisks", "JointRisks", "AdversarialAnswers", "AnswerNoise", "risk_histogram",
    "num_clients_needed",
    # bands
    "Band", "band", "JointBand", "joint_band", "OptimisedLevels", "split_clients",
    # bounds
    "Interval", "bound", "mean_bound", "mean", "quantile", "cvar", "survival", "weighted_quantile", "QuantileWeight",
    "joint_cdf", "gini", "lorenz_certificate", "quantile_certificate", "dispersion_certificate",
    # worst cases
    "DIVERGENCES", "custom_divergence", "binary_worst_case", "worst_case_cdf", "worst_case_mean", "breakdown",
    "wasserstein_mean", "wasserstein_cdf", "wasserstein_breakdown",
    # groups
    "group_bands", "group_certificate", "group_intervals", "group_gap", "worst_group", "largest_gap", "cvar_fairness",
    # selection
    "Objective", "select",
    # requirements
    "require", "plan",
    # certificates
    "Certificate", "verify", "report_page",
]
# fmt: on

# For each module, the names that `riskband` offers from it; a test compares them with the imports below.
_NAMES = {
    "answers.adversarial": "AdversarialAnswers default_multipliers",
    "answers.histogram": "HistogramLimits HistogramRisks risk_histogram",
    "answers.joint": "JointRisks",
    "answers.noise": "AnswerNoise",
    "answers.risks": "ClientRisks",
    "bands.band": "Band band",
    "bands.crossing": "crossing_probability",
    "bands.joint": "JointBand joint_band joint_cdf",
    "bands.pilots": "ClientSplit split_clients",
    "certificate": "Certificate",
    "functionals.dispersion": (
        "atkinson coefficient_of_variation dispersion_certificate dispersion_interval extended_gini "
        "extremal_distributions generalised_entropy gini hoover lorenz lorenz_certificate mean_log_deviation "
        "mean_range measured_dispersion quantile_range quantile_ratio theil top_share"
    ),
    "functionals.functional": "ExtremalDistributions Functional Interval bound functional",
    "functionals.gini_correlation": "gini_correlation measured_gini_correlation",
    "functionals.distributions": "RiskDistribution",
    "functionals.quantiles": (
        "cvar cvar_interval mean mean_interval num_clients_needed quantile quantile_certificate quantile_interval "
        "survival transformed_quantile_interval weighted_quantile weighted_quantile_interval"
    ),
    "functionals.transforms": "Transform absolute_transform polynomial_transform smooth_transform",
    "functionals.weights": (
        "LINEAR QuantileWeight interval_weight maximum_weight minimum_weight smoothed_median_weight tail_weight"
    ),
    "groups.comparisons": (
        "cvar_fairness group_certificate group_gap group_intervals group_transform_mean group_variance largest_gap "
        "quadratic_gaps weighted_group_mean worst_group"
    ),
    "groups.group_bands": "GroupBands group_bands",
    "means": "mean_bound",
    "report.page": "report_page",
    "search": "Bracket",
    "selection": "CandidateBound Objective Selection select",
    "tuning": "OptimisedLevels",
    "verification": "Verification verify",
    "worst_cases.divergence_bounds": "DivergenceBound divergence_estimate divergence_lower_bound",
    "worst_cases.divergences": "CHI2 DIVERGENCES FDivergence HELLINGER2 KL TV binary_worst_case custom_divergence",
    "worst_cases.planning": "Option Plan plan",
    "worst_cases.requirements": "Gate Requirement Verdict require",
    "worst_cases.reweighting": "breakdown worst_case_cdf worst_case_mean",
    "worst_cases.wasserstein": "wasserstein_breakdown wasserstein_cdf wasserstein_mean wasserstein_published",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

if TYPE_CHECKING:
    __version__: str
    from riskband.answers.adversarial import AdversarialAnswers, default_multipliers as default_multipliers
    from riskband.answers.histogram import HistogramLimits as HistogramLimits, HistogramRisks, risk_histogram
    from riskband.answers.joint import JointRisks
    from riskband.answers.noise import AnswerNoise
    from riskband.answers.risks import ClientRisks
    from riskband.bands.band import Band, band
    from riskband.bands.crossing import crossing_probability as crossing_probability
    from riskband.bands.joint import JointBand, joint_band, joint_cdf
    from riskband.bands.pilots import ClientSplit as ClientSplit, split_clients
    from riskband.certificate import Certificate
    from riskband.functionals.dispersion import (
        atkinson as atkinson,
        coefficient_of_variation as coefficient_of_variation,
        dispersion_certificate,
        dispersion_interval as dispersion_interval,
        extended_gini as extended_gini,
        extremal_distributions as extremal_distributions,
        generalised_entropy as generalised_entropy,
        gini,
        hoover as hoover,
        lorenz as lorenz,
        lorenz_certificate,
        mean_log_deviation as mean_log_deviation,
        mean_range as mean_range,
        measured_dispersion as measured_dispersion,
        quantile_range as quantile_range,
        quantile_ratio as quantile_ratio,
        theil as theil,
        top_share as top_share,
    )
    from riskband.functionals.functional import (
        ExtremalDistributions as ExtremalDistributions,
        Functional as Functional,
        Interval,
        bound,
        functional as functional,
    )
    from riskband.functionals.gini_correlation import (
        gini_correlation as gini_correlation,
        measured_gini_correlation as measured_gini_correlation,
    )
    from riskband.functionals.distributions import RiskDistribution as RiskDistribution
    from riskband.functionals.quantiles import (
        cvar,
        cvar_interval as cvar_interval,
        mean,
        mean_interval as mean_interval,
        num_clients_needed,
        quantile,
        quantile_certificate,
        quantile_interval as quantile_interval,
        survival,
        transformed_quantile_interval as transformed_quantile_interval,
        weighted_quantile,
        weighted_quantile_interval as weighted_quantile_interval,
    )
    from riskband.functionals.transforms import (
        Transform as Transform,
        absolute_transform as absolute_transform,
        polynomial_transform as polynomial_transform,
        smooth_transform as smooth_transform,
    )
    from riskband.functionals.weights import (
        LINEAR as LINEAR,
        QuantileWeight,
        interval_weight as interval_weight,
        maximum_weight as maximum_weight,
        minimum_weight as minimum_weight,
        smoothed_median_weight as smoothed_median_weight,
        tail_weight as tail_weight,
    )
    from riskband.groups.comparisons import (
        cvar_fairness,
        group_certificate,
        group_gap,
        group_intervals,
        group_transform_mean as group_transform_mean,
        group_variance as group_variance,
        largest_gap,
        quadratic_gaps as quadratic_gaps,
        weighted_group_mean as weighted_group_mean,
        worst_group,
    )
    from riskband.groups.group_bands import GroupBands as GroupBands, group_bands
    from riskband.means import mean_bound
    from riskband.report.page import report_page
    from riskband.search import Bracket as Bracket
    from riskband.selection import CandidateBound as CandidateBound, Objective, Selection as Selection, select
    from riskband.tuning import OptimisedLevels
    from riskband.verification import Verification as Verification, verify
    from riskband.worst_cases.divergence_bounds import (
        DivergenceBound as DivergenceBound,
        divergence_estimate as divergence_estimate,
        divergence_lower_bound as divergence_lower_bound,
    )
    from riskband.worst_cases.divergences import (
        CHI2 as CHI2,
        DIVERGENCES,
        HELLINGER2 as HELLINGER2,
        KL as KL,
        TV as TV,
        FDivergence as FDivergence,
        binary_worst_case,
        custom_divergence,
    )
    from riskband.worst_cases.planning import Option as Option, Plan as Plan, plan
    from riskband.worst_cases.requirements import (
        Gate as Gate,
        Requirement as Requirement,
        Verdict as Verdict,
        require,
    )
    from riskband.worst_cases.reweighting import breakdown, worst_case_cdf, worst_case_mean
    from riskband.worst_cases.wasserstein import (
        wasserstein_breakdown,
        wasserstein_cdf,
        wasserstein_mean,
        wasserstein_published as wasserstein_published,
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
