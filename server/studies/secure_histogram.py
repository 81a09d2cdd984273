"""The study "secure_histogram": as "f_divergence", from counts of clients; no single answer is ever seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from protocol.secure.questions import MAX_BINS
from server.sections import Rule, Section, one_of, rule
from server.settings import RunConfig, numbers_of
from server.studies.f_divergence import FDivergenceStudy, settings_of
from server.studies.study import Evaluation, UnderTest, loss_query
from strategies.secure.histogram import SIZES, SecureHistogram


class Settings(Section):
    """How the clients are counted."""

    histogram_bins: int = Field(ge=1, le=MAX_BINS, description="the number of bins of equal width; 50 is plenty")
    histogram_sizes: Annotated[str, one_of(SIZES)] = Field(
        description=f'use one of {", ".join(SIZES)}; with "private" in the strategy secure_histogram, local is '
        "marginal or counted"
    )
    secure_group_size: Annotated[int, rule(lambda number: number not in (1, 2))] = Field(
        ge=0,
        description="if the counts do not add up, clients are asked again in groups of at least so many, 3 or more; 0: "
        "never",
    )
    secure_neighbours: int = Field(
        ge=2, multiple_of=2, description="give an even number; a client shares its secrets with so many others"
    )


class SecureHistogramStudy(FDivergenceStudy):
    """As `FDivergenceStudy`, from counts of clients."""

    settings = Settings
    can_stop = False
    rules: ClassVar[Mapping[str, Rule]] = {
        **dict.fromkeys(("privacy", "respect_query_budgets"), lambda value, known: not value),
        "target": lambda target, known: not target,
        "require": lambda required, known: (  # no single answer is ever seen
            FDivergenceStudy.rules["require"](required, known)
            and not any(number.is_finite for number in numbers_of(required))
        ),
        "histogram_sizes": lambda sizes, known: sizes == "equal" or known.get("local") not in ("union", "observed"),
    }

    def strategy(self, config: RunConfig, tested: UnderTest, asking: dict[str, Any]) -> SecureHistogram:
        """Return what asks for masked histograms."""
        chosen = config.of(Settings)
        return SecureHistogram(
            loss_query(config),
            num_bins=chosen.histogram_bins,
            num_examples=config.network.examples_per_client if chosen.histogram_sizes == "equal" else None,
            num_neighbours=chosen.secure_neighbours,
            **settings_of(config),
            group_size=chosen.secure_group_size,
            **asking,
        )

    def sections(self, evaluation: Evaluation) -> dict[str, Any]:
        """Return the sections of "f_divergence", and "secure_aggregation": what is known of the clients."""
        outcome = evaluation.conclusion.outcome
        wanted = evaluation.config.of(Settings).secure_neighbours
        return {
            **super().sections(evaluation),
            "secure_aggregation": {
                "num_neighbours": min(wanted, outcome.num_asked - 1),
                "num_late_failures": len(outcome.late_failures),
                "groups": [list(group) for group in outcome.groups],
                "wrong_groups": [list(group) for group in outcome.wrong_groups],
                "counts": [list(row) for row in outcome.counts],
                # So much may the empirical risks, which are the upper ends of bins, be too large.
                "bin_width": 1.0 / len(outcome.counts[0]),
            },
        }

    def privacy_lines(self, report: Mapping[str, Any]) -> Iterator[str]:
        """Yield the line about what is known of the clients."""
        section = report["secure_aggregation"]
        what = "risks" if len(section["counts"]) == 1 else "upper limits, lower limits and risks"
        late = section["num_late_failures"]
        yield (
            f"Secure aggregation: of the clients' {what} only the sum of their histograms is known, in bins of width "
            f"{section['bin_width']:g}; each shared its secrets with {section['num_neighbours']} others"
            f"{f'; {late} fell silent after they had been counted' if late else ''}."
        )
        if section["groups"]:
            wrong = "; ".join(", ".join(group) for group in section["wrong_groups"])
            who = f"in each of these someone sent a wrong vector or share: {wrong}" if wrong else "no sum was wrong"
            yield (
                f"That sum was wrong. {len(section['groups'])} groups were asked again, for a sum each: {who}. Clients "
                "without an answer count as the worst."
            )
