"""How a client comes to the numbers that it sends: recorded or new, counted first, with noise where it is asked for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from random import Random
from secrets import SystemRandom
from typing import Any

import numpy as np
from flwr.app import Context

from client.answer_record import asked_hash, checked_numbers, question_hash, record_from_config
from client.budget import budget_from_config, request_of
from client.data import DATA_KEY, is_bundled
from client.identity import client_id
from client.privacy import is_private, privacy_from_config
from client.refusals import details_withheld, file_errors_withheld
from protocol.examples import Examples, Held
from protocol.hashes import code_hash, examples_hash, model_hash
from protocol.mechanisms import Mechanism
from protocol.questions import AdversarialQuery, Query
from riskband.adversaries.kept import kept_in
from riskband.checks import RefusedError


@dataclass(frozen=True)
class Noise:
    """What makes the numbers of one answer private: a mechanism, and where its randomness comes from."""

    mechanism: Mechanism
    source: Random

    def added_to(self, total: int, *, num_examples: int, num_values: int, num_steps: int) -> float:
        """Return a mean with noise, from the sum over examples in steps; `num_values` numbers share the budget."""
        drawn = self.mechanism.noise(self.source, num_values=num_values, num_steps=num_steps)
        return (total + drawn) / (num_examples * num_steps)


Numbers = Callable[[Held, Noise | None], dict[str, Any]]
"""From examples and the noise to add (None: none) to the fields of an answer."""


def made_up_example(query: Query) -> Examples:
    """Return an input and a label that a model of the query can be tried on, the same for every client."""
    low, high = (query.problem.box if isinstance(query, AdversarialQuery) else None) or (0.0, 1.0)
    x = np.random.default_rng(0).random(size=(1, *query.x_shape), dtype=np.float32)
    return Examples(np.clip(x, low, high, dtype=np.float32), np.zeros(1, dtype=np.int64))


def answered(
    query: Query, arrays: Mapping[str, np.ndarray], examples: Held, context: Context, numbers: Numbers, local: str = ""
) -> tuple[Mapping[str, Any], int | None]:
    """Return the numbers that answer a question, recorded or new, and the query budget left (None: no limit).

    New ones are counted before they are computed and recorded before they are sent. A recorded answer is repeated with
    the noise that it had. What cannot even be computed for a made-up example, whatever the client's own are, is refused
    before it is counted. `local` is the hash of a model of the client's own that the answer depends on.

    Raises ValueError if a budget does not allow the question, or the client's own settings are wrong; RuntimeError if a
    file cannot be used or the evaluation fails, without the details.
    """
    own = context.node_config
    budget, record = budget_from_config(own), record_from_config(own)
    privacy = privacy_from_config(own)
    privacy.require(query.mechanism)
    question, asked = None, ""
    if record.path is not None:
        hashes = {"model_hash": model_hash(arrays), "code_hash": code_hash()}
        asked = asked_hash(query, **hashes)
        question = question_hash(query, examples_hash=examples_hash(examples.x, examples.y) + local, **hashes)
    with file_errors_withheld("reading the answer record"):
        found = None if question is None else record.find(question)
    with file_errors_withheld("counting the query budget"):
        if found is not None:
            return checked_numbers(query, found), budget.left()
        budget.require_left(request_of(query), question=question)
    with file_errors_withheld("counting the privacy budget"):
        privacy.require_left(query.mechanism)
    if query.mechanism is not None and _has_box_at_layer(query):
        raise RefusedError("with privacy there must be no box at a layer: no made-up example tries the model there")
    if (budget.limit is not None or query.mechanism is not None) and not _has_box_at_layer(query):
        with kept_in(record.constants), details_withheld("evaluating the model on a made-up example"):
            numbers(made_up_example(query), None)
    # Another process may have spent the rest meanwhile, and either budget may still refuse: the one that protects the
    # examples is counted first, and that all is paid for is noted last.
    with file_errors_withheld("counting the privacy budget"):
        privacy.spend(query.mechanism)
    with file_errors_withheld("counting the query budget"):
        left = budget.spend(request_of(query), question=question)
    with file_errors_withheld("writing the answer record"):
        record.note(asked)
    with kept_in(record.constants), details_withheld("evaluating the model"):
        computed = numbers(examples, _noise(query, arrays, context))
    with file_errors_withheld("writing the answer record"):
        return checked_numbers(query, record.keep(question or "", computed)), left


def _has_box_at_layer(query: Query) -> bool:
    """Whether a box holds what a layer returns: no input can be made up that is sure to lead into it."""
    return isinstance(query, AdversarialQuery) and None not in (query.problem.box, query.problem.layer)


def _noise(query: Query, arrays: Mapping[str, np.ndarray], context: Context) -> Noise | None:
    if query.mechanism is None:
        return None
    return Noise(query.mechanism, Random(_seed(query, arrays, context)) if _is_simulated(context) else SystemRandom())


def _is_simulated(context: Context) -> bool:
    """Whether the examples are those of a population simulated from bundled data, and so public.

    Only then may the noise be repeatable: who knows its seed, as the server does, can take it away.
    """
    own = context.node_config
    is_somebodys = "client-id" in own or DATA_KEY in own or is_private(own)
    return is_bundled(context.run_config) and not is_somebodys


def _seed(query: Query, arrays: Mapping[str, np.ndarray], context: Context) -> int:
    """A seed for each client, question and run seed, whatever the order in which clients answer."""
    parts = [context.run_config.get("seed"), client_id(context.node_config), asdict(query), model_hash(arrays)]
    return int.from_bytes(hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).digest())
