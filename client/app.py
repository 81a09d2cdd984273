"""The ClientApp: decode a message, call a plain function, encode the answer.

What is raised here is a refusal, whose text is sent to the server under the client's name (`sign_refusals`). So no
text raised here may carry data: our own refusals name rules and settings only, and an exception from anywhere else is
replaced by one that names its type (`details_withheld`); the original stays in the client's own log.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import nn

from client.answer_record import record_from_config
from client.answering import answered, made_up_example
from client.budget import budget_from_config
from client.data import DATA_KEY, data_place, fitted, load_data
from client.identity import client_group, client_id, partition_of, sign_refusals
from client.noisy_risks import Noise, mean_risks, noisy_curves
from client.privacy import LIMIT_KEY as PRIVACY_KEY
from client.privacy import is_private, privacy_from_config
from client.refusals import details_withheld, files_at_hand
from client.secure.rounds import (
    consistency_reply,
    histogram_reply,
    keys_reply,
    refuse_in_the_open,
    shares_reply,
    unmask_reply,
)
from protocol import wire
from protocol.examples import Examples
from protocol.models import build_model, load_arrays
from protocol.secure.questions import ConsistencyQuery, KeysQuery, MaskedQuery, SharesQuery, UnmaskQuery
from protocol.weight_sets import separated
from riskband.adversaries.losses import get_loss
from riskband.adversaries.problem import RefusedError

app = ClientApp(mods=[sign_refusals, refuse_in_the_open])


@app.query(wire.action(wire.LossQuery))
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
    query, arrays = wire.decode_query(message.content, wire.LossQuery), wire.decode_weights(message.content)
    group = client_group(context)
    found = _risk(query, arrays, context)
    answer = wire.LossAnswer(**found, **_identity(query, arrays, context), group=group)
    return Message(wire.encode_answer(answer), reply_to=message)


@app.query(wire.action(wire.AdversarialQuery))
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
    from riskband.adversaries.registry import AdversarialCurves, adversarial_curves, check_adversary

    query, arrays = wire.decode_query(message.content, wire.AdversarialQuery), wire.decode_weights(message.content)
    names = {"loss": query.loss, "norm": query.norm, "adversary": query.adversary, "space": query.space}
    check_adversary(order=query.order, **names)
    group = client_group(context)
    model, examples = _model_and_examples(query, arrays, context)

    def curves_of(model: nn.Module, x: np.ndarray, y: np.ndarray) -> AdversarialCurves:
        return adversarial_curves(
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
            distances=query.distances,
        )

    def numbers(x: np.ndarray, y: np.ndarray, noise: Noise | None) -> dict[str, Any]:
        if noise is not None:
            guarantee = curves_of(model, *made_up_example(query)).guarantee
            return noisy_curves(model, curves_of, x, y, multipliers=query.multipliers, guarantee=guarantee, noise=noise)
        curves = curves_of(model, x, y)
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
            "num_without_gradient": curves.num_without_gradient,
        }

    found, left = answered(query, arrays, examples, context, numbers)
    answer = wire.AdversarialAnswer(**found, **_identity(query, arrays, context), budget_left=left, group=group)
    return Message(wire.encode_answer(answer), reply_to=message)


@app.query(wire.action(wire.CandidatesQuery))
def answer_candidates(message: Message, context: Context) -> Message:
    """Answer a `CandidatesQuery` with the mean loss of every candidate on this client's examples.

    Raises
    ------
    ValueError
        As `answer_loss`.
    RuntimeError
        As `answer_loss`.
    """
    query, arrays = wire.decode_query(message.content, wire.CandidatesQuery), wire.decode_weights(message.content)
    group = client_group(context)
    for candidate in query.candidates:
        get_loss(candidate.loss)
    examples = _fitting_examples(query, context)
    models = [_model(query, weights) for weights in separated(arrays, num_sets=query.num_weights)]

    def numbers(x: np.ndarray, y: np.ndarray, noise: Noise | None) -> dict[str, Any]:
        judged = [(candidate.weights, candidate.loss) for candidate in query.candidates]
        return {"risks": mean_risks(models, x, y, judged=judged, noise=noise), "num_examples": len(y)}

    found, left = answered(query, arrays, examples, context, numbers)
    answer = wire.CandidatesAnswer(**found, **_identity(query, arrays, context), budget_left=left, group=group)
    return Message(wire.encode_answer(answer), reply_to=message)


@app.query(wire.action(wire.HelloQuery))
def answer_hello(message: Message, context: Context) -> Message:
    """Answer a `HelloQuery` with this client's name, what is left of its query budget, and what it has on record.

    Nothing is spent.

    Raises
    ------
    ValueError
        If the query is malformed, or the client has no name or a budget that could not hold.
    RuntimeError
        If the count or the record cannot be read.
    """
    query = wire.decode_query(message.content, wire.HelloQuery)
    name = client_id(context.node_config)
    with files_at_hand("counting the query budget"):
        budget_left = budget_from_config(context.node_config, client_id=name).left()
    with files_at_hand("reading the answer record"):
        on_record = record_from_config(context.node_config, client_id=name).has_noted(query.question)
    answer = wire.HelloAnswer(name, wire.code_hash(), budget_left, on_record)
    return Message(wire.encode_answer(answer), reply_to=message)


@app.query(wire.action(KeysQuery))
def answer_secure_keys(message: Message, context: Context) -> Message:
    """Begin a secure histogram: send fresh public keys. Raises ValueError if this run has had one."""
    return Message(keys_reply(message, context), reply_to=message)


@app.query(wire.action(SharesQuery))
def answer_secure_shares(message: Message, context: Context) -> Message:
    """Send encrypted shares for the neighbours; raises ValueError as `client.secure.part.shared`."""
    return Message(shares_reply(message, context), reply_to=message)


@app.query(wire.action(MaskedQuery))
def answer_secure_histogram(message: Message, context: Context) -> Message:
    """Answer a `HistogramQuery` under masks, for one value of the query budget.

    Raises
    ------
    ValueError
        As `answer_loss`, or as `client.secure.part.holding`, or, when the question has been counted, if the client has
        another number of examples than the one that is asked for.
    RuntimeError
        As `answer_loss`.
    """
    content = histogram_reply(message, context, lambda query, arrays: _risk(query, arrays, context))
    return Message(content, reply_to=message)


@app.query(wire.action(ConsistencyQuery))
def answer_secure_consistency(message: Message, context: Context) -> Message:
    """Confirm to the neighbours who is in the sum; raises ValueError as `client.secure.part.confirmed`."""
    return Message(consistency_reply(message, context), reply_to=message)


@app.query(wire.action(UnmaskQuery))
def answer_secure_unmask(message: Message, context: Context) -> Message:
    """Send the shares that take the masks off the sum; raises ValueError as `client.secure.part.revealed`."""
    return Message(unmask_reply(message, context), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model that Flower's FedAvg sends on the examples of the simulated client that trains on this node.

    It is another client than the one that answers; see `client.simulated.training_examples`. The keys are FedAvg's own.
    A node on which no client trains returns the model as it came, with weight 0. A client with data of its own refuses:
    they are there to be asked about.
    """
    if data_place(context.node_config, context.run_config) is not None:
        raise RefusedError(
            "a client with data of its own answers questions and does not train: a certificate needs clients that had "
            "no part in training"
        )
    if is_private(context.node_config):
        raise RefusedError(
            f"a client with a {PRIVACY_KEY} does not train: the weights that it would send have no noise"
        )
    torch.set_num_threads(1)
    arrays, server_round = wire.decode_training(message.content)
    from client import simulated  # here: a client that has data of its own does not load it

    partition = partition_of(context.node_config)
    weights, num_examples, loss = simulated.trained(
        arrays, context.run_config, partition=partition, server_round=server_round
    )
    return Message(wire.encode_trained(weights, num_examples=num_examples, loss=loss), reply_to=message)


def _risk(query: wire.LossQuery, arrays: Mapping[str, np.ndarray], context: Context) -> Mapping[str, Any]:
    """Return the mean loss of the model and the number of examples, recorded or new."""
    model, examples = _model_and_examples(query, arrays, context)

    def numbers(x: np.ndarray, y: np.ndarray, noise: Noise | None) -> dict[str, Any]:
        (risk,) = mean_risks([model], x, y, judged=[(0, query.loss)], noise=noise)
        return {"risk": risk, "num_examples": len(y)}

    return answered(query, arrays, examples, context, numbers)[0]


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
    if query.mechanism is not None:
        with details_withheld("copying the model"):  # as is done for every example, when it has been paid for
            deepcopy(model)
    return model


def _fitting_examples(query: wire.Query, context: Context) -> Examples:
    """Return this client's examples, which fit the model of the query."""
    own, run = context.node_config, context.run_config
    # Before anything is loaded: whether it can be may depend on a single example.
    privacy_from_config(own, client_id=client_id(own)).require(query.mechanism)
    place = data_place(own, run)
    if place is not None:
        with details_withheld("loading this client's examples"):
            x, y = load_data(place, own, is_owners=DATA_KEY in own)
            return fitted(x, y, x_shape=query.x_shape, check_values=query.mechanism is None)
    partition = partition_of(own)
    with details_withheld("loading this client's examples"):
        from client import simulated  # here: a client that has data of its own does not load it

        examples = simulated.examples(run, partition=partition)
    if len(examples.x) == 0:
        raise ValueError("a client must hold at least one example, this one holds none")
    if examples.x.shape[1:] != query.x_shape:
        raise ValueError(
            f"the model takes inputs of shape {query.x_shape}, this client's have shape "
            f"{examples.x.shape[1:]}: a model that does not fit"
        )
    return examples


def _identity(query: wire.Query, arrays: Mapping[str, np.ndarray], context: Context) -> dict[str, Any]:
    """Who answers, and what the answer is about."""
    return {
        "client_id": client_id(context.node_config),
        "loss": query.loss,
        "code_hash": wire.code_hash(),
        "model_hash": wire.model_hash(arrays),
    }
