"""riskband: how badly can a federated model do on clients that nobody has measured.

The library turns per-client mean losses into certificates: bounds that hold with probability 1 - delta, with every
assumption written down. It knows nothing of Flower; the Flower App in the same repository asks the clients.
"""

from riskband.adversarial_answers import AdversarialAnswers, default_multipliers
from riskband.bands import Band, band
from riskband.certificate import Certificate
from riskband.crossing import crossing_probability
from riskband.divergences import (
    CHI2,
    DIVERGENCES,
    HELLINGER2,
    KL,
    TV,
    FDivergence,
    binary_worst_case,
    custom_divergence,
)
from riskband.functionals import (
    QuantileWeight,
    cvar,
    interval_weight,
    mean,
    quantile,
    survival,
    tail_weight,
    weighted_quantile,
)
from riskband.means import mean_bound
from riskband.reweighting import breakdown, worst_case_cdf, worst_case_mean
from riskband.risks import ClientRisks
from riskband.search import Bracket
from riskband.verification import Verification, verify
from riskband.wasserstein import (
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
    "TV",
    "AdversarialAnswers",
    "Band",
    "Bracket",
    "Certificate",
    "ClientRisks",
    "FDivergence",
    "QuantileWeight",
    "Verification",
    "band",
    "binary_worst_case",
    "breakdown",
    "crossing_probability",
    "custom_divergence",
    "cvar",
    "default_multipliers",
    "interval_weight",
    "mean",
    "mean_bound",
    "quantile",
    "survival",
    "tail_weight",
    "verify",
    "wasserstein_breakdown",
    "wasserstein_cdf",
    "wasserstein_mean",
    "wasserstein_published",
    "weighted_quantile",
    "worst_case_cdf",
    "worst_case_mean",
]
