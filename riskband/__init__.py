"""riskband: how badly can a federated model do on clients that nobody has measured.

The library turns per-client mean losses into certificates: bounds that hold with probability 1 - delta, with every
assumption written down. It knows nothing of Flower; the Flower App in the same repository asks the clients.
"""

from riskband.answers.adversarial import AdversarialAnswers, default_multipliers
from riskband.answers.histogram import HistogramLimits, HistogramRisks, risk_histogram
from riskband.answers.joint import JointRisks
from riskband.answers.noise import AnswerNoise
from riskband.answers.risks import ClientRisks
from riskband.bands.band import Band, band
from riskband.bands.crossing import crossing_probability
from riskband.bands.joint import JointBand, joint_band, joint_cdf
from riskband.bands.pilots import ClientSplit, split_clients
from riskband.certificate import Certificate
from riskband.functionals.dispersion import (
    ExtremalLaws,
    Interval,
    dispersion_certificate,
    dispersion_interval,
    extremal_laws,
    lorenz,
    measured_dispersion,
)
from riskband.functionals.dispersion_curves import lorenz_certificate, quantile_certificate
from riskband.functionals.gini_correlation import gini_correlation, measured_gini_correlation
from riskband.functionals.inequality import (
    atkinson,
    coefficient_of_variation,
    extended_gini,
    generalised_entropy,
    gini,
    hoover,
    mean_log_deviation,
    mean_range,
    quantile_range,
    quantile_ratio,
    theil,
    top_share,
)
from riskband.functionals.laws import RiskLaw
from riskband.functionals.measures import DispersionMeasure
from riskband.functionals.objective import Objective
from riskband.functionals.quantile_measures import (
    LINEAR,
    cvar_interval,
    maximum_weight,
    mean_interval,
    minimum_weight,
    quantile_interval,
    smoothed_median_weight,
    transformed_quantile_interval,
    weighted_quantile_interval,
)
from riskband.functionals.quantiles import (
    QuantileWeight,
    cvar,
    interval_weight,
    mean,
    num_clients_needed,
    quantile,
    survival,
    tail_weight,
    weighted_quantile,
)
from riskband.functionals.transforms import Transform, absolute_transform, polynomial_transform, smooth_transform
from riskband.groups.comparisons import (
    cvar_fairness,
    group_bands,
    group_gap,
    group_intervals,
    group_transform_mean,
    group_variance,
    largest_gap,
    quadratic_gaps,
    weighted_group_mean,
    worst_group,
)
from riskband.groups.group_bands import GroupBands
from riskband.groups.group_certificates import group_certificate
from riskband.means import mean_bound
from riskband.search import Bracket
from riskband.selection import CandidateBound, Selection, select
from riskband.tuning.optimised_levels import OptimisedLevels
from riskband.verification import Verification, verify
from riskband.worst_cases.divergences import (
    CHI2,
    DIVERGENCES,
    HELLINGER2,
    KL,
    TV,
    FDivergence,
    binary_worst_case,
    custom_divergence,
)
from riskband.worst_cases.reweighting import breakdown, worst_case_cdf, worst_case_mean
from riskband.worst_cases.wasserstein import (
    wasserstein_breakdown,
    wasserstein_cdf,
    wasserstein_mean,
    wasserstein_published,
)

__all__ = [
    "CHI2",
    "DIVERGENCES",
    "HELLINGER2",
    "KL",
    "LINEAR",
    "TV",
    "AdversarialAnswers",
    "AnswerNoise",
    "Band",
    "Bracket",
    "CandidateBound",
    "Certificate",
    "ClientRisks",
    "ClientSplit",
    "DispersionMeasure",
    "ExtremalLaws",
    "FDivergence",
    "GroupBands",
    "HistogramLimits",
    "HistogramRisks",
    "Interval",
    "JointBand",
    "JointRisks",
    "Objective",
    "OptimisedLevels",
    "QuantileWeight",
    "RiskLaw",
    "Selection",
    "Transform",
    "Verification",
    "absolute_transform",
    "atkinson",
    "band",
    "binary_worst_case",
    "breakdown",
    "coefficient_of_variation",
    "crossing_probability",
    "custom_divergence",
    "cvar",
    "cvar_fairness",
    "cvar_interval",
    "default_multipliers",
    "dispersion_certificate",
    "dispersion_interval",
    "extended_gini",
    "extremal_laws",
    "generalised_entropy",
    "gini",
    "gini_correlation",
    "group_bands",
    "group_certificate",
    "group_gap",
    "group_intervals",
    "group_transform_mean",
    "group_variance",
    "hoover",
    "interval_weight",
    "joint_band",
    "joint_cdf",
    "largest_gap",
    "lorenz",
    "lorenz_certificate",
    "maximum_weight",
    "mean",
    "mean_bound",
    "mean_interval",
    "mean_log_deviation",
    "mean_range",
    "measured_dispersion",
    "measured_gini_correlation",
    "minimum_weight",
    "num_clients_needed",
    "polynomial_transform",
    "quadratic_gaps",
    "quantile",
    "quantile_certificate",
    "quantile_interval",
    "quantile_range",
    "quantile_ratio",
    "risk_histogram",
    "select",
    "smooth_transform",
    "smoothed_median_weight",
    "split_clients",
    "survival",
    "tail_weight",
    "theil",
    "top_share",
    "transformed_quantile_interval",
    "verify",
    "wasserstein_breakdown",
    "wasserstein_cdf",
    "wasserstein_mean",
    "wasserstein_published",
    "weighted_group_mean",
    "weighted_quantile",
    "weighted_quantile_interval",
    "worst_case_cdf",
    "worst_case_mean",
    "worst_group",
]
