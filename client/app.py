"""The ClientApp: decode a message, call a plain function, encode the answer.

Flower sends the text of a client's exception to the server. So no text raised here may carry data:
our own refusals name rules and settings only, and an exception from anywhere else is replaced by
one that names its type (`_details_withheld`); the original stays in the client's own log.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, UserConfig
from flwr.clientapp import ClientApp
from torch import nn

from client import wire
from client.answer_record import AnswerRecord, checked_numbers, question_hash, record_from_config
from client.budget import QueryBudget, Request, budget_from_config
from client.data import DATA_KEY, data_place, fitted, load_data
from client.evaluation import mean_loss, mean_losses
from client.hashes import examples_hash
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

    def numbers(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
        risk, num_examples = mean_loss(model, x, y, loss=query.loss)
        return {"risk": risk, "num_examples": num_examples}

    found, _ = _answered(query, arrays, examples, context, Request(losses=1), numbers)
    answer = wire.LossAnswer(**found, **_identity(query, arrays, context), group=group)
    return Message(wire.encode_answer(answer), reply_to=message)


@app.query(wire.ADVERSARIAL_ACTION)
def answer_adversarial_loss(message: Message, context: Context) -> Message:
    """Answer an `AdversarialQuery` with bounds of the largest mean loss at all its radii and multipliers.

    Raises
    ------
    ValueError
        As `answer_loss`, or if there is no such adversary, no linear head, an example outside the box, or a model about
        which nothing is proved.
    RuntimeError
        As `answer_loss`.
    """
    # Imported here: it loads riskband, seconds that a process for one plain loss should not pay.
    from client.adversaries import adversarial_curves, check_adversary

    query, arrays = wire.decode_adversarial_query(message.content)
    names = {"loss": query.loss, "norm": query.norm, "adversary": query.adversary, "space": query.space}
    check_adversary(order=query.order, **names)
    group = client_group(context)
    model, examples = _model_and_examples(query, arrays, context)
    request = Request(losses=1, radii=len(query.radii), multipliers=len(query.multipliers))

    def numbers(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
        curves = adversarial_curves(
            model,
            x,
            y,
            loss=query.loss,
            order=query.order,
            norm=query.norm,
            multipliers=query.multipliers,
            head=query.head,
            adversary=query.adversary,
            space=query.space,
            box=query.box,
            seed=query.seed,
        )
        values_lower, values_upper = curves.values(query.radii)
        conjugates_lower, conjugates_upper = curves.conjugates(query.multipliers)
        return {
            "num_examples": curves.num_examples,
            "clean_risk": curves.clean_risk,
            "values_lower": values_lower.tolist(),
            "values_upper": values_upper.tolist(),
            "conjugates_lower": conjugates_lower.tolist(),
            "conjugates_upper": conjugates_upper.tolist(),
            "adversarial_unit": curves.adversarial_unit,
            "guarantee": curves.guarantee,
        }

    found, left = _answered(query, arrays, examples, context, request, numbers)
    answer = wire.AdversarialAnswer(**found, **_identity(query, arrays, context), budget_left=left, group=group)
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
    for candidate in query.candidates:
        get_loss(candidate.loss)
    examples = _fitting_examples(query, context)
    models = [_model(query, weights) for weights in separated(arrays, num_sets=query.num_weights)]

    def numbers(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
        risks = [
            mean_losses(model, x, y, losses={c.loss for c in query.candidates if c.weights == number})
            for number, model in enumerate(models)
        ]
        return {"risks": [risks[c.weights][c.loss] for c in query.candidates], "num_examples": len(y)}

    request = Request(losses=len(query.candidates))
    found, left = _answered(query, arrays, examples, context, request, numbers)
    answer = wire.CandidatesAnswer(**found, **_identity(query, arrays, context), budget_left=left, group=group)
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
    with _files_at_hand("counting the query budget"):
        budget_left = _budget(context).left()
    answer = wire.HelloAnswer(client_id(context.node_config), wire.code_hash(), budget_left)
    return Message(wire.encode_hello_answer(answer), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model that Flower's FedAvg sends on this client's share of the training split.

    The keys are FedAvg's own. A client whose share is empty returns the model as it came, with
    weight 0. A client with data of its own refuses: they are there to be asked about.
    """
    if data_place(context.node_config, context.run_config) is not None:
        raise RefusedError(
            "a client with data of its own answers questions and does not train: a certificate needs examples that the "
            "model was not trained on"
        )
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
        If the node config has neither ``client-id`` nor ``partition-id``, or the name is not one to 100 printable
        characters.
    """
    if "client-id" in node_config:
        name = str(node_config["client-id"])
        if not wire.is_name(name):
            raise ValueError(
                f"the node config's 'client-id' must be 1 to 100 printable characters, got {len(name)} characters; "
                "shorten it"
            )
        return name
    return f"client-{_partition(node_config):05d}"


def client_group(context: Context) -> str | None:
    """Return this client's group: ``group`` of the node config, or that of the simulation; None if there is none.

    A client with data of its own is in no group but its owner's.

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
    if data_place(context.node_config, context.run_config) is not None:
        return None
    partition = _partition(context.node_config)
    with _details_withheld("finding this client's group"):
        group = spec_from_config(context.run_config).group(partition)
    return None if group is None else group.name


def _model_and_examples(
    query: wire.LossQuery | wire.AdversarialQuery, arrays: Mapping[str, np.ndarray], context: Context
) -> tuple[nn.Module, Examples]:
    """Return the model a query is about and this client's examples, which fit each other."""
    get_loss(query.loss)
    # The examples come first: the shapes of a model that does not fit them might take all memory.
    examples = _fitting_examples(query, context)
    return _model(query, arrays), examples


def _model(query: wire.Query, arrays: Mapping[str, np.ndarray]) -> nn.Module:
    torch.set_num_threads(1)
    model = build_model(query.model, x_shape=query.x_shape, num_classes=query.num_classes, seed=0)
    load_arrays(model, arrays)
    return model


def _fitting_examples(query: wire.Query, context: Context) -> Examples:
    """Return this client's examples, which fit the model of the query."""
    own, run = context.node_config, context.run_config
    place = data_place(own, run)
    if place is not None:
        with _details_withheld("loading this client's examples"):
            x, y = load_data(place, own, is_owners=DATA_KEY in own)
            return fitted(x, y, x_shape=query.x_shape)
    partition = _partition(own)
    with _details_withheld("loading this client's examples"):
        examples = Population(spec_from_config(run)).client(partition)
    if len(examples.x) == 0:
        raise ValueError("a client must hold at least one example, this one holds none")
    if examples.x.shape[1:] != query.x_shape:
        raise ValueError(
            f"the model takes inputs of shape {query.x_shape}, this client's have shape "
            f"{examples.x.shape[1:]}: a model that does not fit"
        )
    return examples


def _answered(
    query: wire.Query,
    arrays: Mapping[str, np.ndarray],
    examples: Examples,
    context: Context,
    request: Request,
    numbers: Callable[[np.ndarray, np.ndarray], dict[str, Any]],
) -> tuple[Mapping[str, Any], int | None]:
    """Return the numbers that answer a question, recorded or new, and what is left of the budget (None: no limit).

    New ones are counted before they are computed and recorded before they are sent. What cannot even be computed for a
    made-up example, whatever the client's own are, is refused before it is counted.
    """
    budget, record = _budget(context), _record(context)
    question = None
    if record.path is not None:
        hashes = {"model_hash": wire.model_hash(arrays), "code_hash": wire.code_hash()}
        question = question_hash(query, examples_hash=examples_hash(examples.x, examples.y), **hashes)
    with _files_at_hand("reading the answer record"):
        found = None if question is None else record.find(question)
    with _files_at_hand("counting the query budget"):
        if found is not None:
            return checked_numbers(query, found), budget.left()
    if budget.limit is not None:
        with _details_withheld("evaluating the model on a made-up example"):
            numbers(*_made_up_example(query))
    with _files_at_hand("counting the query budget"):
        left = budget.spend(request, question=question)
    with _details_withheld("evaluating the model"):
        computed = numbers(examples.x, examples.y)
    with _files_at_hand("writing the answer record"):
        return checked_numbers(query, record.keep(question or "", computed)), left


def _made_up_example(query: wire.Query) -> tuple[np.ndarray, np.ndarray]:
    low, high = (query.box if isinstance(query, wire.AdversarialQuery) else None) or (0.0, 1.0)
    x = np.random.default_rng(0).random(size=(1, *query.x_shape), dtype=np.float32)
    return np.clip(x, low, high, dtype=np.float32), np.zeros(1, dtype=np.int64)


def _identity(query: wire.Query, arrays: Mapping[str, np.ndarray], context: Context) -> dict[str, Any]:
    """Who answers, and what the answer is about."""
    return {
        "client_id": client_id(context.node_config),
        "loss": query.loss,
        "code_hash": wire.code_hash(),
        "model_hash": wire.model_hash(arrays),
    }


def _budget(context: Context) -> QueryBudget:
    return budget_from_config(context.node_config, client_id=client_id(context.node_config))


def _record(context: Context) -> AnswerRecord:
    return record_from_config(context.node_config, client_id=client_id(context.node_config))


@contextmanager
def _files_at_hand(step: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise RuntimeError(f"{step} failed with {type(error).__name__}") from error


def _partition(node_config: UserConfig) -> int:
    if "partition-id" not in node_config:
        raise ValueError(
            "the node config must have the key 'partition-id', got none; "
            'start the SuperNode with --node-config "partition-id=0 num-partitions=...", or with a client-id and data'
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
