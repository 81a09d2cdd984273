"""The model that is evaluated: trained here, on domains or not, trained by the clients, or read from a file."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch import nn

from protocol.codec import to_array_record, to_arrays
from protocol.hashes import model_hash
from protocol.models import build_model, load_arrays, load_weights, model_arrays
from protocol.wire import decode_refusal, num_training_examples, unguessable
from server.settings import RunConfig
from strategies.asking.replies import num_needed, one_line
from worlds.training import train_centrally

_POLL_INTERVAL = 0.2


class TrainingError(RuntimeError):
    """Too few clients took part in the federated training."""


class RepeatableFedAvg(FedAvg):
    """Flower's FedAvg over all `num_nodes` nodes in every round, of which `num_needed` must return a trained model.

    The same replies give the same model: a sum of floats depends on its order, and replies come in any order from nodes
    with random ids, so they are sorted by what they hold.
    """

    def __init__(self, *, num_nodes: int, num_needed: int) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=num_nodes, min_available_nodes=num_nodes)
        self.num_needed = num_needed

    def configure_train(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        """Return the messages of Flower's strategy, to which no other node can reply: see `wire.unguessable`."""
        messages = list(super().configure_train(*args, **kwargs))
        for message in messages:
            message.metadata.group_id = unguessable(message.metadata.group_id)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the models in an order that does not depend on the network.

        Raises TrainingError if fewer than `num_needed` clients returned a model.
        """
        replies = list(replies)
        returned = [reply for reply in replies if not reply.has_error()]
        num_trained = sum(num_training_examples(reply.content) > 0 for reply in returned)
        if num_trained < self.num_needed:
            reasons = [_words(reply) for reply in replies if reply.has_error()]
            raise TrainingError(
                f"{self.num_needed} clients must return a model, got {num_trained} in round {server_round}; "
                f"the first failure: {reasons[0] if reasons else 'no reply in time'}; "
                "lower quorum, or raise reply-timeout"
            )
        return super().aggregate_train(server_round, sorted(returned, key=_content_key))


def prepare_model(config: RunConfig, grid: Grid | None) -> nn.Module:
    """Return the model that the run evaluates, as ``training`` says; "fedavg" asks the clients.

    Raises ValueError if the dataset, model or checkpoint cannot be had, or do not fit each other; TrainingError if too
    few clients take part in the federated training.
    """
    if config.model.training == "central":
        return train_centrally(config.dataset, num_epochs=config.model.training_epochs, **central_settings(config))
    if config.model.training == "checkpoint":
        return model_of_checkpoint(config, config.model.checkpoint)
    model = initial_model(config)
    assert grid is not None  # the clients are needed
    load_arrays(model, to_arrays(_train_federated(config, grid, to_array_record(model_arrays(model)))))
    return model


def central_settings(config: RunConfig) -> dict[str, Any]:
    """Return what `worlds.training.train_centrally` is to be told, but for the data and the number of epochs."""
    return {
        "model": config.model.model,
        "seed": config.run.seed,
        "learning_rate": config.model.learning_rate,
        "device": config.model.device,
        "margin": config.model.training_margin,
        "noise_sigma": config.model.training_noise,
    }


def model_of_checkpoint(config: RunConfig, path: str) -> nn.Module:
    """Return the model of a run with the weights in a file; raises as `prepare_model`."""
    model = initial_model(config)
    load_weights(model, path)
    return model


def initial_model(config: RunConfig) -> nn.Module:
    """Return the model of a run, before any training."""
    x_shape, num_classes = config.model_inputs
    return build_model(config.model.model, x_shape=x_shape, num_classes=num_classes, seed=config.run.seed)


def _train_federated(config: RunConfig, grid: Grid, initial: ArrayRecord) -> ArrayRecord:
    num_nodes = _wait_for_nodes(config, grid)
    num_trainers = config.model.num_training_clients or config.network.num_clients
    strategy = RepeatableFedAvg(num_nodes=num_nodes, num_needed=num_needed(num_trainers, config.asking.quorum))
    result = strategy.start(grid, initial, num_rounds=config.model.training_rounds, timeout=config.asking.reply_timeout)
    return result.arrays


def _wait_for_nodes(config: RunConfig, grid: Grid) -> int:
    """Wait for all clients, but not for ever, as Flower's own sampling would."""
    deadline = time.monotonic() + config.asking.node_timeout
    while (num_nodes := len(list(grid.get_node_ids()))) < config.network.num_clients and time.monotonic() < deadline:
        time.sleep(_POLL_INTERVAL)
    if num_nodes < config.num_needed:
        raise TrainingError(
            f"{config.num_needed} clients must connect for the training, got {num_nodes} within "
            f"{config.asking.node_timeout:g} s; start as many nodes as num-clients says, or lower num-clients"
        )
    return num_nodes


def _words(reply: Message) -> str:
    refusal = decode_refusal(str(reply.error.reason))
    if refusal is None:
        return str(reply.error.reason)
    return one_line(refusal.text if refusal.client_id is None else f"{refusal.client_id}: {refusal.text}")


def _content_key(reply: Message) -> tuple[str, list[str]]:
    content = reply.content
    arrays = next(iter(content.array_records.values()))
    metrics = [repr(sorted(record.items())) for record in content.metric_records.values()]
    return model_hash(to_arrays(arrays)), metrics
