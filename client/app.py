"""The ClientApp: decode a message, call a plain function, encode the answer.

What is raised here is a refusal, whose text is sent to the server under the client's name (`say_refusals`). So no
text raised here may carry data: our own refusals name rules and settings only, and an exception from anywhere else is
replaced by one that names its type (`details_withheld`); the original stays in the client's own log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_args

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from client.answer_record import question_hash, record_from_config
from client.answering import answered
from client.budget import LIMIT_KEY as BUDGET_KEY
from client.budget import UNLIMITED, budget_from_config, request_of
from client.data import DATA_KEY, EVALUATOR_KEY, data_place, fitted, is_bundled, load_data, require_allowed
from client.evaluator import NO_MODEL, evaluated, evaluator_of, said_hash
from client.identity import checked_name, client_id, partition_of
from client.kept_model import kept_after, weights_of
from client.privacy import LIMIT_KEY as PRIVACY_KEY
from client.privacy import is_private, privacy_from_config
from client.refusals import details_withheld, file_errors_withheld, refuse_as_other_code, say_refusals
from client.secure import rounds
from client.signing import sign_replies
from protocol import wire
from protocol.examples import Held
from protocol.hashes import code_hash, model_hash
from protocol.questions import (
    AdversarialQuery,
    Answer,
    CandidatesQuery,
    ComparisonQuery,
    HelloAnswer,
    HelloQuery,
    LossQuery,
    Query,
)
from protocol.secure import questions as secure
from protocol.weight_sets import separated
from riskband.adversaries.names import class_module
from riskband.checks import RefusedError, check_number
from riskband.models.losses import get_loss

DEVICE_KEY = "device"
"""Of the node config, or else of the run config: where this client's models compute."""

OWN_MODEL_KEY = "local-model"
"""Of the node config: the absolute path of a model of the client's own, of the architecture that a run compares."""

app = ClientApp(mods=[sign_replies, say_refusals, refuse_as_other_code, rounds.refuse_in_the_open])


def answer_question(query: Query, message: Message, context: Context) -> Answer:
    """Answer a question about a model with numbers of this client's examples.

    Raises ValueError if the query names an unknown loss, model or adversary, carries weights that do not fit the model
    or a model that does not fit the examples, exceeds the query budget, or the client has no name or examples; of an
    adversary also if there is no linear head, an example outside the box, or nothing is proved of the model;
    RuntimeError if loading the examples or evaluating the model fails; without the details.
    """
    arrays = weights_of(message, context)
    about: dict[str, Any] = {
        "client_id": client_id(context.node_config),
        "loss": query.loss,
        "code_hash": code_hash(),
        "model_hash": model_hash(arrays),
        "group": _group(context),
    }
    found, left = _numbers(query, arrays, context)
    more = _drawn(context.node_config) if isinstance(query, LossQuery) else {"budget_left": left}
    answer: Answer = wire.answer_type(query)(**about, **found, **more)
    return answer


def answer_hello(query: HelloQuery, message: Message, context: Context) -> HelloAnswer:
    """Answer with this client's name, what is left of its query budget, and what it has on record; nothing is spent.

    Raises ValueError if the client has no name or a budget that could not hold; RuntimeError if the count or the record
    cannot be read.
    """
    name = client_id(context.node_config)
    with file_errors_withheld("counting the query budget"):
        budget_left = budget_from_config(context.node_config).left()
    with file_errors_withheld("reading the answer record"):
        on_record = record_from_config(context.node_config).has_noted(query.question)
    return HelloAnswer(name, code_hash(), budget_left, on_record)


def answer_secure_histogram(query: secure.MaskedQuery, message: Message, context: Context) -> secure.MaskedAnswer:
    """Answer a `HistogramQuery` under masks, for one value of the query budget.

    Raises ValueError as `answer_question`, or as `client.secure.part.holding`, or, when the question has been counted,
    if the client has another number of examples than the one that is asked for; RuntimeError as `answer_question`.
    """
    return rounds.masked_answer(query, message, context, lambda asked, arrays: _numbers(asked, arrays, context)[0])


HANDLERS: Mapping[type, Callable[[Any, Message, Context], object]] = {
    HelloQuery: answer_hello,
    **dict.fromkeys(get_args(Query), answer_question),
    secure.KeysQuery: rounds.keys_answer,
    secure.SharesQuery: rounds.shares_answer,
    secure.MaskedQuery: answer_secure_histogram,
    secure.ConsistencyQuery: rounds.consistency_answer,
    secure.UnmaskQuery: rounds.unmask_answer,
}
"""What answers each question of `protocol.wire.MESSAGES`, from the question, its message and the context."""


def _reply(message: Message, context: Context, kind: type) -> Message:
    query: Any = wire.decode_query(message.content, kind)
    answer = HANDLERS[kind](query, message, context)
    return Message(wire.encode_answer(answer, kept=kept_after(answer, message, context)), reply_to=message)


for _kind in HANDLERS:
    app.query(wire.action(_kind))(partial(_reply, kind=_kind))


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
    if not is_bundled(context.run_config) and budget_from_config(context.node_config).limit is not None:
        raise RefusedError(
            f"a client with a {BUDGET_KEY} trains on bundled data alone: the weights that it would send are more "
            f'numbers than it may give; its owner may say {BUDGET_KEY}="{UNLIMITED}"'
        )
    require_allowed(str(context.run_config.get("model", "")), context.node_config)
    arrays, server_round = wire.decode_training(message.content)
    from client import simulated  # here: a client that has data of its own does not load it

    partition = partition_of(context.node_config)
    weights, num_examples, loss = simulated.trained(
        arrays, context.run_config, partition=partition, server_round=server_round, device=_device(context)
    )
    return Message(wire.encode_trained(weights, num_examples=num_examples, loss=loss), reply_to=message)


def _numbers(query: Query, arrays: Mapping[str, np.ndarray], context: Context) -> tuple[Mapping[str, Any], int | None]:
    """Return the numbers that answer a question, and the query budget left; see `client.answering.answered`."""
    several = query if isinstance(query, CandidatesQuery | ComparisonQuery) else None
    for judged in query.candidates if isinstance(query, CandidatesQuery) else [query]:
        get_loss(judged.loss)
    if query.model == NO_MODEL:
        return _own_numbers(query, arrays, context)
    require_allowed(query.model, context.node_config)
    if isinstance(query, AdversarialQuery) and (module := class_module(query.problem.adversary)):
        require_allowed(f"{module}:", context.node_config)
    # The examples come first: the shapes of a model that does not fit them might take all memory.
    examples = _fitting_examples(query, context)
    sets = separated(arrays, num_sets=several.num_weights) if several else [arrays]
    from client.numbers import answer_numbers, queried_model  # here: it loads torch, and Flower loads the app twice

    local = [_own_weights(query, context)] if isinstance(query, ComparisonQuery) and query.is_old_local else []
    models = [queried_model(query, weights, device=_device(context)) for weights in [*sets, *local]]
    numbers = partial(answer_numbers, query, models)
    return answered(query, arrays, examples, context, numbers, "".join(map(model_hash, local)))


def _own_weights(query: Query, context: Context) -> Mapping[str, np.ndarray]:
    """Return those of this client's own model: in its owner's file, or trained as a simulation says."""
    own, run = context.node_config, context.run_config
    if OWN_MODEL_KEY in own:
        with details_withheld("loading this client's own model"):
            from protocol.models import load_checkpoint  # here: it loads torch

            return load_checkpoint(str(own[OWN_MODEL_KEY]))
    if data_place(own, run) is not None:
        raise RefusedError(
            f"the node config must have the key {OWN_MODEL_KEY!r} to compare with a client's own model, got none; give "
            f"the absolute path of weights of the model {query.model!r}, as torch.save(model.state_dict(), path) writes"
        )
    require_allowed(str(run.get("model", "")), own)
    with details_withheld("training this client's own model"):
        from client import simulated  # here: a client that has data of its own does not load it

        return simulated.own_weights(run, partition=partition_of(own), device=_device(context))


def _own_numbers(
    query: Query, arrays: Mapping[str, np.ndarray], context: Context
) -> tuple[Mapping[str, Any], int | None]:
    """Return what the client's own function says, and the query budget left; every call is paid for before it is made.

    The function may call what costs money, and only its answer says what examples there are: each call is a new one.
    """
    record = record_from_config(context.node_config)
    with details_withheld("finding the client's evaluator"):
        function = evaluator_of(query, context)
    with file_errors_withheld("counting the query budget"):
        left = budget_from_config(context.node_config).spend(request_of(query))
    with details_withheld("calling the client's evaluator"):
        risk, size = evaluated(function, context)
    about = {"model_hash": model_hash(arrays), "code_hash": code_hash(), "examples_hash": said_hash(risk, size)}
    with file_errors_withheld("writing the answer record"):
        return record.keep(question_hash(query, **about), {"risk": risk, "num_examples": size}), left


def _group(context: Context) -> str | None:
    """Return this client's group: ``group`` of the node config, or that of the simulation; None if there is none.

    A client with data of its own is in no group but its owner's.
    """
    own = context.node_config.get("group")
    if own is not None:
        return checked_name("group", own)
    is_evaluated = bool(context.run_config.get(EVALUATOR_KEY))
    if is_evaluated or data_place(context.node_config, context.run_config) is not None:
        return None
    partition = partition_of(context.node_config)
    with details_withheld("finding this client's group"):
        from client import simulated  # here: a client that has data of its own does not load it

        return simulated.group_name(context.run_config, partition=partition)


def _drawn(own: Mapping[str, Any]) -> dict[str, Any]:
    """Return how this client was drawn: ``stratum``, ``cluster`` and ``sampling-weight`` of the node config, if any."""
    found: dict[str, Any] = {key: checked_name(key, own[key]) for key in ("stratum", "cluster") if key in own}
    if "sampling-weight" in own:
        called, remedy = "the node config's 'sampling-weight'", "clients were drawn in proportion to 1 / weight"
        found["sampling_weight"] = check_number(called, own["sampling-weight"], remedy=remedy)
    return found


def _device(context: Context) -> str:
    return str(context.node_config.get(DEVICE_KEY, context.run_config.get(DEVICE_KEY, "cpu")))


def _fitting_examples(query: Query, context: Context) -> Held:
    """Return this client's examples, which fit the model of the query."""
    own, run = context.node_config, context.run_config
    # Before anything is loaded: whether it can be may depend on a single example.
    privacy_from_config(own).require(query.mechanism)
    place = data_place(own, run)
    if place is not None:
        with details_withheld("loading this client's examples"):
            x, y = load_data(place, own, is_owners=DATA_KEY in own)
            return fitted(x, y, x_shape=query.x_shape, check_values=query.mechanism is None)
    partition = partition_of(own)
    with details_withheld("loading this client's examples"):
        from client import simulated  # here: a client that has data of its own does not load it

        examples = simulated.examples(run, partition=partition, model=query.model)
    if examples.x_shape != query.x_shape:
        raise ValueError(
            f"the model takes inputs of shape {query.x_shape}, this client's have shape "
            f"{examples.x_shape}: a model that does not fit"
        )
    return examples
