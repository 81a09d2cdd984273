"""The ClientApp: decode a message, call a plain function, encode the answer.

Flower sends the text of a client's exception to the server. So no text raised here may carry data:
our own refusals name rules and settings only, and an exception from anywhere else is replaced by
one that names its type (`_details_withheld`); the original stays in the client's own log.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from flwr.app import Context, Message, UserConfig
from flwr.clientapp import ClientApp
from torch import nn

from client import wire
from client.budget import QueryBudget, Request, budget_from_config
from client.evaluation import mean_loss, mean_losses
from client.losses import get_loss
from client.questions import RefusedError
from client.training import local_seed, training_partition
from client.weight_sets import separated
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
        the model or a model that does not fit the examples, exceeds the query budget, or the client
        has no name or examples.
    RuntimeError
        If loading the examples or evaluating the model fails; without the details.
    """
    query, arrays = wire.decode_query(message.content)
    group = client_group(context)
    model, examples = _model_and_examples(query, arrays, context)
    _spend(context, Request(losses=1))
    with _details_withheld("evaluating the model"):
        risk, num_examples = mean_loss(model, examples.x, examples.y, loss=query.loss)
    answer = wire.LossAnswer(
        client_id=client_id(context.node_config),
        risk=risk,
        num_examples=num_examples,
        loss=query.loss,
        code_hash=wire.code_hash(),
        model_hash=wire.model_hash(arrays),
        group=group,
    )
    return Message(wire.encode_answer(answer), reply_to=message)


@app.query(wire.ADVERSARIAL_ACTION)
def answer_adversarial_loss(message: Message, context: Context) -> Message:
    """Answer an `AdversarialQuery` with bounds of the largest mean loss at all its radii and multipliers.

    Raises
    ------
    ValueError
        As `answer_loss`, or if there is no such adversary, or no linear head.
    RuntimeError
        As `answer_loss`.
    """
    # Imported here: it loads riskband, seconds that a process for one plain loss should not pay.
    from client.adversaries import adversarial_curves, check_adversary

    query, arrays = wire.decode_adversarial_query(message.content)
    check_adversary(loss=query.loss, order=query.order, norm=query.norm, adversary=query.adversary, space=query.space)
    group = client_group(context)
    model, examples = _model_and_examples(query, arrays, context)
    request = Request(losses=1, radii=len(query.radii), multipliers=len(query.multipliers))
    budget_left = _spend(context, request)
    with _details_withheld("evaluating the model"):
        curves = adversarial_curves(
            model,
            examples.x,
            examples.y,
            loss=query.loss,
            order=query.order,
            norm=query.norm,
            multipliers=query.multipliers,
            head=query.head,
            adversary=query.adversary,
        )
    values_lower, values_upper = curves.values(query.radii)
    conjugates_lower, conjugates_upper = curves.conjugates(query.multipliers)
    answer = wire.AdversarialAnswer(
        client_id=client_id(context.node_config),
        num_examples=curves.num_examples,
        loss=query.loss,
        clean_risk=curves.clean_risk,
        values_lower=tuple(values_lower.tolist()),
        values_upper=tuple(values_upper.tolist()),
        conjugates_lower=tuple(conjugates_lower.tolist()),
        conjugates_upper=tuple(conjugates_upper.tolist()),
        adversarial_unit=curves.adversarial_unit,
        guarantee=curves.guarantee,
        code_hash=wire.code_hash(),
        model_hash=wire.model_hash(arrays),
        budget_left=budget_left,
        group=group,
    )
    return Message(wire.encode_answer(answer), reply_to=message)


@app.query(wire.CANDIDATES_ACTION)
def answer_candidates(message: Message, context: Context) -> Message:
    """Answer a `CandidatesQuery` with the mean loss of every candidate on this client's examples.

    Raises
    ------
    ValueError
        As `answer_loss`.
    RuntimeError
        As `answer_loss`.
    """
    query, arrays = wire.decode_candidates_query(message.content)
    group = client_group(context)
    models = [_model(query, weights) for weights in separated(arrays, num_sets=query.num_weights)]
    for candidate in query.candidates:
        get_loss(candidate.loss)
    examples = _fitting_examples(query, context)
    budget_left = _spend(context, Request(losses=len(query.candidates)))
    with _details_withheld("evaluating the candidates"):
        found = [
            mean_losses(model, examples.x, examples.y, losses={c.loss for c in query.candidates if c.weights == number})
            for number, model in enumerate(models)
        ]
    answer = wire.CandidatesAnswer(
        client_id=client_id(context.node_config),
        risks=tuple(found[candidate.weights][candidate.loss] for candidate in query.candidates),
        num_examples=len(examples.y),
        loss=query.loss,
        code_hash=wire.code_hash(),
        model_hash=wire.model_hash(arrays),
        budget_left=budget_left,
        group=group,
    )
    return Message(wire.encode_answer(answer), reply_to=message)


@app.query(wire.HELLO_ACTION)
def answer_hello(message: Message, context: Context) -> Message:
    """Answer a `HelloQuery` with this client's name and what is left of its query budget; nothing is spent.

    Raises
    ------
    ValueError
        If the query is malformed, or the client has no name or a budget that could not hold.
    RuntimeError
        If the count cannot be read.
    """
    wire.decode_hello(message.content)
    with _counting():
        budget_left = _budget(context).left()
    answer = wire.HelloAnswer(client_id(context.node_config), wire.code_hash(), budget_left)
    return Message(wire.encode_hello_answer(answer), reply_to=message)


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


def client_group(context: Context) -> str | None:
    """Return this client's group: ``group`` of the node config, or that of the simulation; None if there is none.

    Raises
    ------
    ValueError
        If the name that the owner gave is not one to 100 printable characters. Its text stays here.
    """
    own = context.node_config.get("group")
    if own is not None:
        name = str(own)
        if not wire.is_name(name):
            raise ValueError(
                f"the node config's 'group' must be 1 to 100 printable characters, got {len(name)} characters; "
                "shorten it, or leave it out for no group"
            )
        return name
    partition = _partition(context.node_config)
    with _details_withheld("finding this client's group"):
        group = spec_from_config(context.run_config).group(partition)
    return None if group is None else group.name


def _model_and_examples(
    query: wire.LossQuery | wire.AdversarialQuery, arrays: Mapping[str, np.ndarray], context: Context
) -> tuple[nn.Module, Examples]:
    """Return the model a query is about and this client's examples, which fit each other."""
    get_loss(query.loss)
    return _model(query, arrays), _fitting_examples(query, context)


def _model(query: wire.Query, arrays: Mapping[str, np.ndarray]) -> nn.Module:
    torch.set_num_threads(1)
    model = build_model(query.model, x_shape=query.x_shape, num_classes=query.num_classes, seed=0)
    load_arrays(model, arrays)
    return model


def _fitting_examples(query: wire.Query, context: Context) -> Examples:
    """Return this client's examples, which fit the model of the query."""
    examples = _own_examples(context)
    if len(examples.x) == 0:
        raise ValueError("a client must hold at least one example, this one holds none")
    if examples.x.shape[1:] != query.x_shape:
        raise ValueError(
            f"the model takes inputs of shape {query.x_shape}, this client's have shape "
            f"{examples.x.shape[1:]}: a model that does not fit"
        )
    return examples


def _spend(context: Context, request: Request) -> int | None:
    """Count the values that are about to be answered; return how many are left, None if there is no limit."""
    with _counting():
        return _budget(context).spend(request)


def _budget(context: Context) -> QueryBudget:
    return budget_from_config(context.node_config, client_id=client_id(context.node_config))


@contextmanager
def _counting() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise RuntimeError(f"counting the query budget failed with {type(error).__name__}") from error


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
    except RefusedError:
        raise
    except Exception as error:
        raise RuntimeError(
            f"{step} failed with {type(error).__name__}; the details are in this client's own log"
        ) from error
