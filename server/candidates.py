"""What a run evaluates, one model or several candidates to choose among, and the unseen clients' risks under them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from flwr.serverapp import Grid
from torch import nn

from protocol.models import build_model, load_arrays, model_arrays
from protocol.questions import Candidate
from protocol.weight_sets import packed, separated
from riskband.adversaries.evaluation import logit_batches
from riskband.adversaries.losses import get_loss
from server.checks.unseen import Unseen
from server.config import RunConfig
from server.inputs import model_inputs
from server.training import prepare_model
from worlds.candidates import Candidates, abstaining, candidate_models, checkpoints
from worlds.datasets import load_dataset
from worlds.population import Population, spec_from_config


@dataclass(frozen=True, eq=False)
class UnderTest:
    """What the clients are asked about.

    Attributes
    ----------
    arrays : dict of str to ndarray
        All weights, as they travel.
    models : tuple of Module
        One for each set of weights.
    candidates : tuple of Candidate
        What is compared; empty if there is one model and nothing to choose.
    """

    arrays: dict[str, np.ndarray]
    models: tuple[nn.Module, ...]
    candidates: tuple[Candidate, ...] = ()


def prepare(config: RunConfig, grid: Grid) -> UnderTest:
    """Return the model that the run evaluates or, for the strategy "selection", all candidates.

    Parameters
    ----------
    config : RunConfig
        Which models, data and training.
    grid : Grid
        The clients; they are only asked when ``training = "fedavg"``.

    Raises
    ------
    ValueError, TrainingError
        As `prepare_model`.
    """
    if config.strategy != "selection":
        model = prepare_model(config, grid)
        return UnderTest(model_arrays(model), (model,))
    candidates, arrays = packed(_candidate_models(config, grid))
    num_sets = 1 + max(candidate.weights for candidate in candidates)
    x_shape, num_classes = model_inputs(config)
    models = []
    for weights in separated(arrays, num_sets=num_sets):
        model = build_model(config.model, x_shape=x_shape, num_classes=num_classes, seed=config.seed)
        load_arrays(model, weights)
        models.append(model)
    return UnderTest(arrays, tuple(models), candidates)


def unseen_candidates(config: RunConfig, tested: UnderTest, *, shown: str) -> Unseen:
    """Return the risks of the unseen clients under every candidate, exact as in `server.checks.unseen.unseen_clients`.

    For ``local = "observed"`` the unseen clients measure, each on the same examples under all candidates.

    Parameters
    ----------
    config : RunConfig
        Which network.
    tested : UnderTest
        The candidates.
    shown : str
        The candidate whose risks stand for the network: the chosen one.
    """
    population = Population(spec_from_config(config.to_run_config(), network="unseen"))
    risks = {candidate.name: np.empty(config.num_unseen) for candidate in tested.candidates}
    for k in range(config.num_unseen):
        if config.local == "observed":
            held = population.client(k)
            x, y, weights = held.x, held.y, np.full(len(held.y), 1.0 / len(held.y))
        else:
            law = population.distribution(k)
            x, y, weights = law.x, law.y, law.weights
        for number, model in enumerate(tested.models):
            logits, labels = _outputs(model, x, y)
            for candidate in tested.candidates:
                if candidate.weights == number:
                    losses = get_loss(candidate.loss).per_example(logits, labels).numpy()
                    risks[candidate.name][k] = weights @ losses
    clipped = {name: np.clip(each, 0.0, 1.0) for name, each in risks.items()}  # the weights sum to 1 up to rounding
    return Unseen(clipped[shown], by_candidate=clipped)


def _candidate_models(config: RunConfig, grid: Grid) -> Candidates:
    """All candidates, in the order in which a sequence tests them: as they are written in the configuration."""
    if config.training != "central":
        weights = model_arrays(prepare_model(config, grid))
        found: Candidates = {"model": (weights, config.loss)}
        return found | abstaining("model", weights, thresholds=config.abstention_thresholds)
    epochs = config.candidate_epochs or (config.training_epochs,)
    kept = checkpoints(
        load_dataset(config.dataset, seed=config.seed),
        epochs=epochs,
        model=config.model,
        seed=config.seed,
        learning_rate=config.learning_rate,
    )
    models = candidate_models(kept, loss=config.loss, thresholds=config.abstention_thresholds)
    return {name: models[name] for name in dict.fromkeys([*(f"epochs-{epoch}" for epoch in epochs), *models])}


def _outputs(model: nn.Module, x: np.ndarray, y: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and labels of all examples."""
    batches = list(logit_batches(model, x, y))
    return torch.cat([logits for _, _, logits in batches]), torch.cat([labels for _, labels, _ in batches])
