"""The ClientApp: decode a message, call a plain function, encode the answer.

Flower sends the text of a client's exception to the server. So no text raised here may carry data:
our own refusals name rules and settings only, and an exception from anywhere else is replaced by
one that names its type (`_details_withheld`); the original stays in the client's own log.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from flwr.app import Context, Message, UserConfig
from flwr.clientapp import ClientApp

from client import wire
from client.evaluation import mean_loss
from client.losses import get_loss
from client.training import local_seed, training_partition
from simulations.datasets import load_dataset
from simulations.models import build_model, load_arrays, model_arrays
from simulations.population import Examples, Population, spec_from_config
from simulations.training import train_epochs

app = ClientApp()


@app.query(wire.LOSS_ACTION)
def answer_loss(message: Message, context: Context) -> Message:
    """Answer a `LossQuery` with the model's mean loss on this client's examples.

    Raises
    ------
    ValueError
        If the query is malformed, names an unknown loss or model, carries weights that do not fit
        the model or a model that does not fit the examples, or the client has no name or examples.
    RuntimeError
        If loading the examples or evaluating the model fails; without the details.
    """
    torch.set_num_threads(1)
    query, arrays = wire.decode_query(message.content)
    get_loss(query.loss)
    model = build_model(query.model, x_shape=query.x_shape, num_classes=query.num_classes, seed=0)
    load_arrays(model, arrays)
    examples = _own_examples(context)
    if len(examples.x) == 0:
        raise ValueError("a client must hold at least one example, this one holds none")
    if examples.x.shape[1:] != query.x_shape:
        raise ValueError(
            f"the model takes inputs of shape {query.x_shape}, this client's have shape "
            f"{examples.x.shape[1:]}: a model that does not fit"
        )
    with _details_withheld("evaluating the model"):
        risk, num_examples = mean_loss(model, examples.x, examples.y, loss=query.loss)
    answer = wire.LossAnswer(
        client_id=client_id(context.node_config),
        risk=risk,
        num_examples=num_examples,
        loss=query.loss,
        code_hash=wire.code_hash(),
        model_hash=wire.model_hash(arrays),
    )
    return Message(wire.encode_answer(answer), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model that Flower's FedAvg sends on this client's share of the training split.

    The keys are FedAvg's own. A client whose share is empty returns the model as it came, with
    weight 0.
    """
    torch.set_num_threads(1)
    arrays, server_round = wire.decode_training(message.content)
    config, partition = context.run_config, _partition(context.node_config)
    with _details_withheld("loading this client's training examples"):
        data = load_dataset(str(config["dataset"]), seed=int(config["seed"]))
        own = training_partition(
            data.y_train,
            partition=partition,
            num_partitions=int(context.node_config["num-partitions"]),
            concentration=float(config["dirichlet-concentration"]),
            seed=int(config["seed"]),
        )
    x_shape = data.x_train.shape[1:]
    model = build_model(str(config["model"]), x_shape=x_shape, num_classes=data.num_classes, seed=0)
    load_arrays(model, arrays)
    loss = 0.0
    if len(own) > 0:
        with _details_withheld("training the model"):
            loss = train_epochs(
                model,
                data.x_train[own],
                data.y_train[own],
                seed=local_seed(int(config["seed"]), round=server_round, partition=partition),
                num_epochs=int(config["training-epochs"]),
                learning_rate=float(config["learning-rate"]),
            )
    return Message(wire.encode_trained(model_arrays(model), num_examples=len(own), loss=loss), reply_to=message)


def client_id(node_config: UserConfig) -> str:
    """Return this client's stable name: ``client-id`` of the node config, or one by partition.

    Raises
    ------
    ValueError
        If the node config has neither ``client-id`` nor ``partition-id``.
    """
    if "client-id" in node_config:
        return str(node_config["client-id"])
    return f"client-{_partition(node_config):05d}"


def _own_examples(context: Context) -> Examples:
    partition = _partition(context.node_config)
    with _details_withheld("loading this client's examples"):
        return Population(spec_from_config(context.run_config)).client(partition)


def _partition(node_config: UserConfig) -> int:
    if "partition-id" not in node_config:
        raise ValueError(
            "the node config must have the key 'partition-id', got none; "
            'start the SuperNode with --node-config "partition-id=0 num-partitions=..."'
        )
    return int(node_config["partition-id"])


@contextmanager
def _details_withheld(step: str) -> Iterator[None]:
    """Replace an exception by one whose text says only which step failed and how."""
    try:
        yield
    except Exception as error:
        raise RuntimeError(
            f"{step} failed with {type(error).__name__}; the details are in this client's own log"
        ) from error
