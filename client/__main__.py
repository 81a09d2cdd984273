"""``python -m client --dry-run``: what this client would answer, what it would spend, what it would refuse.

The ClientApp itself answers, in this process. Nothing is sent, counted or recorded.

Exit status: 0 it would answer; 1 it would refuse; 2 the command line or the client's own configuration is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click
import numpy as np
from flwr.app import Message
from flwr.common.config import parse_config_args

from client import wire
from client.answer_record import FILE_KEY as RECORD_KEY
from client.answer_record import checked_numbers, question_hash, record_from_config
from client.app import app, client_id
from client.budget import FILE_KEY, LIMIT_KEY, Request, budget_from_config
from client.data import DATA_KEY, NO_DATASET, fitted, image_shape, load_data
from client.hashes import code_hash, examples_hash, model_hash
from client.questions import AdversarialQuery, LossQuery
from simulations.engine import InProcessGrid
from simulations.models import build_model, load_arrays, model_arrays
from simulations.training import load_checkpoint

_LOSS, _ADVERSARIAL = wire.LOSS_ACTION, wire.ADVERSARIAL_ACTION
_EXIT_REFUSED, _EXIT_USAGE = 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
        The command line without the program's name; default: `sys.argv`.
    """
    options = _parser().parse_args(arguments)
    try:
        own = parse_config_args([options.node_config])
        name = client_id(own)
        if DATA_KEY not in own:
            raise ValueError(f"the node config must have the key {DATA_KEY!r} for a dry run; see docs/clients.md")
        budget = budget_from_config(own, client_id=name)
        record = record_from_config(own, client_id=name)
        x, y = load_data(str(own[DATA_KEY]), own)
        query = _query(options, np.asarray(x), np.asarray(y))
        arrays = _arrays(options, query)
        examples = fitted(x, y, x_shape=query.x_shape, num_classes=query.num_classes)
        left = budget.left()
        hashes = {"model_hash": model_hash(arrays), "code_hash": code_hash()}
        question = question_hash(query, examples_hash=examples_hash(examples.x, examples.y), **hashes)
        found = record.find(question)
        is_free = found is not None and bool(checked_numbers(query, found))
    except click.ClickException as error:  # Flower's, of a node config that is not one
        return _say_error(error.message)
    except Exception as error:  # this is the owner's own machine: here the details help
        return _say_error(f"{type(error).__name__}: {error}")
    size = _size(query)
    weights = "the checkpoint" if options.checkpoint else "random weights (no --checkpoint)"
    print(f"{name}: {len(examples.y)} examples of shape {query.x_shape}; asked about {query.model!r} with {weights}")
    if left is not None and size > left and not is_free:
        print(f"it would REFUSE: the question takes {size} values of the query budget, {left} are left")
        return _EXIT_REFUSED
    reply = _reply(query, arrays, own)
    if reply.has_error():
        print("it would REFUSE; this text would go to the server:")
        print(f"  {reply.error.reason}")
        return _EXIT_REFUSED
    decode = wire.decode_adversarial_answer if isinstance(query, AdversarialQuery) else wire.decode_answer
    answer: dict[str, Any] = asdict(decode(reply.content))
    if "budget_left" in answer and left is not None:  # a copy without a budget has answered
        answer["budget_left"] = left if is_free else left - size
    print("it would answer, and nothing else would leave this machine:")
    print(json.dumps(answer, indent=2))
    print(_cost(size, left, is_free=is_free))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m client", description="Ask your own client a question, on your own machine."
    )
    parser.add_argument("--dry-run", action="store_true", required=True, help="the only thing that this command does")
    parser.add_argument("--node-config", required=True, help='as for flower-supernode: \'client-id="a" data="/path"\'')
    parser.add_argument("--query", choices=[_LOSS, _ADVERSARIAL], default=_LOSS)
    parser.add_argument("--model", required=True, help="cnn, mlp or module:factory")
    parser.add_argument("--checkpoint", help="file with the model's weights; default: random ones")
    parser.add_argument("--loss", default="zero_one")
    parser.add_argument("--x-shape", help='shape of one input, such as "3,32,32"; default: that of your examples')
    parser.add_argument("--num-classes", type=int, help="default: your largest label and one more")
    group = parser.add_argument_group(f"for --query {_ADVERSARIAL}")
    group.add_argument("--order", type=int, default=2)
    group.add_argument("--norm", default="l2")
    group.add_argument("--radii", default="0,1", help="cost budgets")
    group.add_argument("--multipliers", default="1", help="prices of a unit of cost")
    group.add_argument("--space", default="representation")
    group.add_argument("--adversary", default="auto")
    return parser


def _query(options: argparse.Namespace, x: np.ndarray, y: np.ndarray) -> LossQuery | AdversarialQuery:
    x_shape = tuple(int(size) for size in options.x_shape.split(",")) if options.x_shape else image_shape(x.shape[1:])
    num_classes = options.num_classes or int(y.max()) + 1
    if options.query == _LOSS:
        return LossQuery(options.loss, options.model, x_shape, num_classes)
    return AdversarialQuery(
        options.loss,
        options.model,
        x_shape,
        num_classes,
        order=options.order,
        norm=options.norm,
        radii=_numbers(options.radii),
        multipliers=_numbers(options.multipliers),
        space=options.space,
        adversary=options.adversary,
    )


def _arrays(options: argparse.Namespace, query: LossQuery | AdversarialQuery) -> dict[str, np.ndarray]:
    model = build_model(query.model, x_shape=query.x_shape, num_classes=query.num_classes, seed=0)
    if options.checkpoint:
        load_arrays(model, load_checkpoint(options.checkpoint))
    return model_arrays(model)


def _reply(query: LossQuery | AdversarialQuery, arrays: dict[str, np.ndarray], own: dict[str, Any]) -> Message:
    """What the ClientApp replies; a copy of it that counts and records nothing."""
    kept_out = {LIMIT_KEY, FILE_KEY, RECORD_KEY}
    node_config = {key: value for key, value in own.items() if key not in kept_out}
    run_config = {"dataset": NO_DATASET}
    grid = InProcessGrid(app, num_clients=1, run_config=run_config, node_configs={0: node_config})
    (node_id,) = grid.get_node_ids()
    message = Message(wire.encode_query(query, arrays), node_id, wire.message_type(query))
    (reply,) = grid.send_and_receive([message])
    return reply


def _size(query: LossQuery | AdversarialQuery) -> int:
    if isinstance(query, AdversarialQuery):
        return Request(losses=1, radii=len(query.radii), multipliers=len(query.multipliers)).size
    return Request(losses=1).size


def _cost(size: int, left: int | None, *, is_free: bool) -> str:
    if is_free:
        return "it would spend nothing: the answer record holds this answer"
    if left is None:
        return f"it would give away {size} values; there is no query budget"
    return f"it would spend {size} values of the query budget: {left} are left now, {left - size} afterwards"


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(",") if part.strip())


def _say_error(text: str) -> int:
    print(f"error: {text}", file=sys.stderr)
    return _EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
