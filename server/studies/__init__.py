"""The studies by the name that the key ``strategy`` gives them; in this order their keys stand in a report."""

from __future__ import annotations

from server.settings import RunConfig
from server.studies.comparison import ComparisonStudy
from server.studies.dispersion import DispersionStudy
from server.studies.f_divergence import FDivergenceStudy
from server.studies.secure_histogram import SecureHistogramStudy
from server.studies.selection import SelectionStudy
from server.studies.study import Study
from server.studies.wasserstein.study import WassersteinStudy

STUDIES: dict[str, Study] = {
    "f_divergence": FDivergenceStudy(),
    "secure_histogram": SecureHistogramStudy(),
    "dispersion": DispersionStudy(),
    "selection": SelectionStudy(),
    "comparison": ComparisonStudy(),
    "wasserstein": WassersteinStudy(),
}


def study_of(config: RunConfig) -> Study:
    """Return what a run does."""
    return STUDIES[config.question.strategy]
