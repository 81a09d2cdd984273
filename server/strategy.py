"""From the run configuration to the strategy that asks the clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import riskband as rb
from client.wire import Candidate
from server.config import RunConfig
from server.folder import ResultFolder
from server.inputs import model_inputs
from server.ledger import Ledger
from strategies.dispersion import Dispersion
from strategies.f_divergence import FDivergence
from strategies.query import Progress, QueryStrategy
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
    candidates : sequence of client.wire.Candidate
        What is compared by the strategy "selection".
    """
    x_shape, num_classes = model_inputs(config)
    display = _Display(folder)
    settings: dict[str, Any] = {
        "num_clients": config.num_clients,
        "quorum": config.quorum,
        "node_timeout": config.node_timeout,
        "reply_timeout": config.reply_timeout,
        "expected_client_ids": config.known_clients,
        "on_answer": ledger.append,
        "earlier": ledger.earlier,
        "respect_budgets": config.respect_query_budgets,
        "on_progress": display.show_progress,
        "model": config.model,
        "x_shape": x_shape,
        "num_classes": num_classes,
        "delta": config.delta,
        "missing": config.missing,
        "contamination": config.contamination,
    }
    if config.strategy == "selection":
        return SelectionStrategy(
            candidates=candidates,
            objective=config.objective,
            selection_settings={
                "method": config.selection_method,
                "target": config.selection_target or None,
                "band": config.band,
                "local": config.local,
                "dispersion": config.dispersion_method,
            },
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
    if config.strategy == "wasserstein":
        return Wasserstein(
            order=config.transport_order,
            norm=config.transport_norm,
            adversary=config.adversary,
            head=config.head,
            space=config.space,
            box=config.input_box,
            seed=config.seed,
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
    return FDivergence(
        band=config.band,
        local=config.local,
        divergences=config.divergences,
        budgets=config.budgets,
        thresholds=config.threshold_grid,
        breakdown_threshold=config.breakdown_threshold,
        breakdown_target=config.breakdown_target,
        **settings,
    )


class _Display:
    """What the strategy is doing, in the run's progress file."""

    def __init__(self, folder: ResultFolder) -> None:
        self._folder = folder
        self._detail = ""

    def show_progress(self, progress: Progress) -> None:
        counts = {"asked": progress.asked, "answered": progress.answered, "failed": progress.failed}
        self._folder.show_stage("asking the clients", detail=self._detail, **counts)

    def show_bracket(self, cost_budget: float, bracket: rb.Bracket) -> None:
        self._detail = f"worst mean risk at cost {cost_budget:g}: {bracket.lower:.4f} to {bracket.upper:.4f}"
        self._folder.show_stage("asking the clients", detail=self._detail)
