"""``python -m client --dry-run``: what this client would answer, what it would spend, what it would refuse.

The ClientApp itself answers, in this process. Nothing is sent, counted or recorded.

Exit status: 0 it would answer; 1 it would refuse; 2 the command line or the client's own configuration is wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click
import numpy as np
from flwr.app import Message
from flwr.common.config import parse_config_args
from torch import nn

from client.answer_record import FILE_KEY as RECORD_KEY
from client.answer_record import checked_numbers, question_hash, record_from_config
from client.app import app
from client.budget import FILE_KEY, LIMIT_KEY, UNLIMITED, QueryBudget, budget_from_config, request_of
from client.data import DATA_KEY, EVALUATOR_KEY, NO_DATASET, fitted, image_shape, load_data
from client.evaluator import NO_MODEL, OWN_EVALUATOR
from client.identity import client_id
from client.privacy import FILE_KEY as PRIVACY_FILE_KEY
from client.privacy import LIMIT_KEY as PRIVACY_KEY
from client.privacy import PrivacyBudget, PrivacyBudgetError, epsilon_at, privacy_from_config
from protocol import wire
from protocol.hashes import code_hash, examples_hash, model_hash
from protocol.mechanisms import Mechanism, all_digits
from protocol.models import build_model, load_weights, model_arrays
from protocol.questions import AdversarialQuery, CandidatesQuery, LossQuery, Query
from protocol.weight_sets import packed
from riskband.adversaries.problem import TransportProblem, checked_box
from riskband.flower.testing import InProcessGrid

_LOSS, _ADVERSARIAL, _CANDIDATES = map(wire.action, (LossQuery, AdversarialQuery, CandidatesQuery))
_EXIT_REFUSED, _EXIT_USAGE = 1, 2
_DELTA = 1e-6  # at which a privacy budget is also said as an epsilon


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default that of `sys.argv`, and return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        own = parse_config_args([options.node_config])
        name = client_id(own)
        is_evaluated = EVALUATOR_KEY in own and options.model == NO_MODEL
        if not (is_evaluated or DATA_KEY in own):
            keys = f"the key {DATA_KEY!r} for a dry run, or {EVALUATOR_KEY!r} for one without --model"
            raise ValueError(f"the node config must have {keys}; see docs/clients.md")
        budget = budget_from_config(own)
        record = record_from_config(own)
        privacy = privacy_from_config(own)
        query: Query = LossQuery(options.loss, NO_MODEL, (), 0)
        arrays: dict[str, np.ndarray] = {}
        about = "asked for what its evaluator says"
        found = None
        if not is_evaluated:
            x, y = load_data(str(own[DATA_KEY]), own)
            query, arrays = _question(options, np.asarray(x), np.asarray(y))
            examples = fitted(x, y, x_shape=query.x_shape, num_classes=query.num_classes)
            weights = ", ".join(options.checkpoint) if options.checkpoint else "random weights (no --checkpoint)"
            about = f"{len(examples.y)} examples of shape {query.x_shape}; asked about {query.model!r} with {weights}"
            hashes = {"model_hash": model_hash(arrays), "code_hash": code_hash()}
            found = record.find(question_hash(query, examples_hash=examples_hash(examples.x, examples.y), **hashes))
        left = budget.left()
        is_free = found is not None and bool(checked_numbers(query, found))
        refusal = _privacy_refusal(privacy, query.mechanism, is_free=is_free)
    except click.ClickException as error:  # Flower's, of a node config that is not one
        return _say_error(error.message)
    except Exception as error:  # this is the owner's own machine: here the details help
        return _say_error(str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}")
    size = request_of(query).size
    print(f"{name}: {about}")
    if left is not None and size > left and not is_free:
        refusal = f"the question takes {size} values of the query budget, {left} are left"
    if refusal:
        print(f"it would REFUSE: {refusal}")
        return _EXIT_REFUSED
    reply = _reply(query, arrays, own)
    if reply.has_error():
        return _say_refusal(reply)
    answer = _said(query, reply) | (found or {})  # what is recorded had other noise
    if "budget_left" in answer and left is not None:  # a copy without a budget has answered
        answer["budget_left"] = left if is_free else left - size
    print("it would answer, and nothing else would leave this machine:")
    print(json.dumps(answer, indent=2))
    print(_cost(size, budget, left, is_free=is_free))
    print(_privacy_cost(privacy, query.mechanism, is_free=is_free))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m client", description="Ask your own client a question, on your own machine."
    )
    parser.add_argument(
        "--dry-run", action="store_true", required=True, help="answer here, and send nothing: always needed"
    )
    parser.add_argument("--node-config", required=True, help='as for flower-supernode: \'client-id="a" data="/path"\'')
    parser.add_argument("--query", choices=[_LOSS, _ADVERSARIAL, _CANDIDATES], default=_LOSS)
    model = "a name as in a run's config, such as cnn or module:factory; none is needed of an evaluator"
    parser.add_argument("--model", default=NO_MODEL, help=model)
    parser.add_argument(
        "--checkpoint",
        action="append",
        help=f"file with the model's weights; default: random ones; for --query {_CANDIDATES} give it once for each",
    )
    parser.add_argument("--loss", default="zero_one", help=f'for --query {_CANDIDATES} also "zero_one,abstain:0.8"')
    parser.add_argument("--x-shape", help='shape of one input, such as "3,32,32"; default: that of your examples')
    parser.add_argument("--privacy", default="", help='noise, such as "laplace:0.5"; default: none')
    parser.add_argument("--num-classes", type=int, help="default: your largest label and one more")
    parser.add_argument(
        "--print-app-hash",
        action="version",
        version=code_hash(),
        help="print the hash of this code, for app-hash of a node config, and exit",
    )
    group = parser.add_argument_group(f"for --query {_ADVERSARIAL}")
    group.add_argument("--order", type=int, default=2)
    group.add_argument("--norm", default="l2")
    group.add_argument("--radii", default="0,1", help="cost budgets")
    group.add_argument("--multipliers", default="1", help="prices of a unit of cost")
    group.add_argument("--space", default="representation", help="representation, input or layer:NAME")
    group.add_argument("--adversary", default="auto")
    group.add_argument("--head", help="the model's last linear layer; default: the client finds it")
    group.add_argument("--box", default="", help='range of what moves, such as "0,1"; default: any value')
    group.add_argument("--distances", default="", help="where attacks within a ball look; default: they choose")
    group.add_argument("--seed", type=int, default=0, help="of the random starts of attacks")
    group.add_argument("--free-distance", type=float, default=0.0, help="every example may move so far at no cost")
    return parser


def _question(options: argparse.Namespace, x: np.ndarray, y: np.ndarray) -> tuple[Query, dict[str, np.ndarray]]:
    """What the command line asks, and the weights that travel with it."""
    x_shape = tuple(int(size) for size in options.x_shape.split(",")) if options.x_shape else image_shape(x.shape[1:])
    num_classes = options.num_classes or int(fitted(x, y, x_shape=image_shape(x.shape[1:])).y.max()) + 1
    model = build_model(options.model, x_shape=x_shape, num_classes=num_classes, seed=0)
    sets = [_weights(model, checkpoint) for checkpoint in options.checkpoint or [None]]
    if options.query == _CANDIDATES:
        judged = enumerate(sets, start=1)
        named = {f"{n}/{loss}": (weights, loss) for n, weights in judged for loss in options.loss.split(",")}
        candidates, arrays = packed(named)
        return CandidatesQuery(options.model, x_shape, num_classes, candidates, options.privacy), arrays
    if len(sets) > 1:
        raise ValueError(f"--checkpoint must be given once for --query {options.query}, got {len(sets)}; choose one")
    if options.query == _LOSS:
        return LossQuery(options.loss, options.model, x_shape, num_classes, options.privacy), sets[0]
    as_given = ("loss", "order", "norm", "space", "adversary", "head", "seed", "free_distance")
    problem = TransportProblem(
        **{name: getattr(options, name) for name in as_given},
        box=checked_box(_numbers(options.box)) if options.box else None,
        distances=_numbers(options.distances),
    )
    radii, multipliers = _numbers(options.radii), _numbers(options.multipliers)
    query = AdversarialQuery(options.model, x_shape, num_classes, problem, radii, multipliers, options.privacy)
    return query, sets[0]


def _weights(model: nn.Module, checkpoint: str | None) -> dict[str, np.ndarray]:
    """Those of a file, else those that the model came with."""
    if checkpoint is not None:
        load_weights(model, checkpoint)
    return model_arrays(model)


def _reply(query: Query, arrays: dict[str, np.ndarray], own: dict[str, Any]) -> Message:
    """What the ClientApp replies; a copy of it that counts and records nothing."""
    kept_out = {LIMIT_KEY, FILE_KEY, RECORD_KEY, PRIVACY_KEY, PRIVACY_FILE_KEY}
    node_config = {key: value for key, value in own.items() if key not in kept_out} | {LIMIT_KEY: UNLIMITED}
    run_config = {"dataset": NO_DATASET, EVALUATOR_KEY: OWN_EVALUATOR if query.model == NO_MODEL else ""}
    grid = InProcessGrid(app, num_clients=1, run_config=run_config, node_configs={0: node_config})
    (node_id,) = grid.get_node_ids()
    message = Message(wire.encode_query(query, arrays), node_id, wire.message_type(query))
    (reply,) = grid.send_and_receive([message])
    return reply


def _said(query: Query, reply: Message) -> dict[str, Any]:
    return asdict(wire.decode_answer(reply.content, wire.answer_type(query)))


def _say_refusal(reply: Message) -> int:
    print("it would REFUSE; this text would go to the server:")
    print(f"  {reply.error.reason}")
    return _EXIT_REFUSED


def _cost(size: int, budget: QueryBudget, left: int | None, *, is_free: bool) -> str:
    values = "1 value" if size == 1 else f"{size} values"
    if is_free:
        return "it would spend nothing: the answer record holds this answer"
    if left is None:
        return f"it would give away {values}; there is no query budget"
    limit = f"{budget.limit} values{budget.month and ' a month'}"
    spent = f"{left} are left now, {left - size} afterwards"
    return f"it would spend {values} of the query budget: {spent}; it is of {limit}, counted in {budget.path}"


def _privacy_refusal(privacy: PrivacyBudget, asked: Mechanism | None, *, is_free: bool) -> str:
    """The words in which the privacy budget forbids the answer; empty if it does not."""
    try:
        (privacy.require if is_free else privacy.require_left)(asked)
    except PrivacyBudgetError as error:
        return str(error)
    return ""


def _privacy_cost(privacy: PrivacyBudget, asked: Mechanism | None, *, is_free: bool) -> str:
    if asked is None:
        return "its numbers have no noise; there is no privacy budget"
    left, cost = privacy.left(), f"{asked.unit} = {all_digits(asked.budget)}"
    if privacy.total is None or left is None:
        when = "repeated from the answer record" if is_free else "drawn anew for every answer"
        return f"its noise is {when}, at {cost} each; there is no privacy budget"
    if is_free:
        return "nor would it spend any of the privacy budget: the recorded answer is repeated with its noise"
    epsilon = math.ceil(100.0 * epsilon_at(privacy.total, delta=_DELTA)) / 100.0
    meaning = f"epsilon = {epsilon:g} at delta = {_DELTA:g}"
    return (
        f"it would spend {cost} of the privacy budget: {all_digits(left)} are left now, "
        f"{all_digits(left - asked.budget)} afterwards; all of it, {privacy.total.unit} = "
        f"{all_digits(privacy.total.budget)}, means {meaning}"
    )


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(",") if part.strip())


def _say_error(text: str) -> int:
    print(f"error: {text}", file=sys.stderr)
    return _EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
