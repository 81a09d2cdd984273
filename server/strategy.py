"""From the run configuration to the strategy that asks the clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocol.questions import Candidate
from server.config import RunConfig
from server.inputs import model_inputs
from server.run.folder import ResultFolder
from server.run.ledger import Ledger
from server.run.remaining_time import RunDisplay
from strategies.asking.query import QueryStrategy
from strategies.dispersion import Dispersion
from strategies.f_divergence import FDivergence
from strategies.secure.histogram import SecureHistogram
from strategies.selection import SelectionStrategy
from strategies.wasserstein import Wasserstein


def build_strategy(
    config: RunConfig, *, folder: ResultFolder, ledger: Ledger, candidates: Sequence[Candidate] = ()
) -> QueryStrategy:
    """Return the strategy that a run asks with.

    Parameters
    ----------
    config : RunConfig
        Which strategy, and all it needs.
    folder : ResultFolder
        Where it shows its progress.
    ledger : Ledger
        Where every valid answer is written as it arrives.
    candidates : sequence of protocol.questions.Candidate
        What is compared by the strategy "selection".
    """
    x_shape, num_classes = model_inputs(config)
    display = RunDisplay(folder, ledger)
    settings: dict[str, Any] = {
        "num_clients": config.num_clients,
        "quorum": config.quorum,
        "node_timeout": config.node_timeout,
        "reply_timeout": config.reply_timeout,
        "expected_client_ids": config.known_clients,
        "on_answer": display.accept,
        "on_node": display.note_node,
        "earlier": ledger.earlier,
        "respect_budgets": config.respect_query_budgets,
        "on_progress": display.show_progress,
        "model": config.model,
        "x_shape": x_shape,
        "num_classes": num_classes,
        "delta": config.delta,
        "missing": config.missing,
        "contamination": config.contamination,
        "answered_by": config.answered_by,
        "privacy": config.privacy,
        "seed": config.seed,
    }
    if config.strategy == "secure_histogram":
        for name in ("on_answer", "earlier", "respect_budgets", "privacy"):  # they need single answers
            del settings[name]
    if config.strategy == "selection":
        return SelectionStrategy(
            candidates=candidates,
            objective=config.objective,
            selection_settings={
                "seed": settings.pop("seed"),
                "method": config.selection_method,
                "target": config.selection_target or None,
                "band": config.band,
                "local": config.local,
                "dispersion": config.dispersion_method,
            },
            **settings,
        )
    if config.strategy == "wasserstein":
        del settings["seed"]  # the problem's
        return Wasserstein(
            problem=config.transport_problem,
            cost_budgets=config.cost_budgets,
            cost_thresholds=config.cost_thresholds,
            num_radii=config.num_radii,
            num_multipliers=config.num_multipliers,
            protocol=config.protocol,
            bisection_tolerance=config.bisection_tolerance,
            cost_bound=config.cost_bound,
            breakdown_target=config.breakdown_target,
            on_bracket=display.show_bracket,
            **settings,
        )
    settings["loss"] = config.loss
    if config.strategy == "dispersion":
        return Dispersion(
            band=config.band,
            local=config.local,
            measures=config.measures,
            method=config.dispersion_method,
            **settings,
        )
    settings |= {
        "band": config.band,
        "local": config.local,
        "divergences": config.divergences,
        "budgets": config.budgets,
        "thresholds": config.threshold_grid,
        "breakdown_threshold": config.breakdown_threshold,
        "breakdown_target": config.breakdown_target,
    }
    if config.strategy == "secure_histogram":
        return SecureHistogram(
            num_bins=config.histogram_bins,
            num_examples=config.examples_per_client if config.histogram_sizes == "equal" else None,
            num_neighbours=config.secure_neighbours,
            **settings,
        )
    return FDivergence(**settings)
