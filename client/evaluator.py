"""A client of any kind: a function of its owner's says its mean loss, whatever the model is; no model is sent.

What is raised here may travel to the server, so it names rules only: no paths, no values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
from flwr.app import Context

from client.data import ALLOW_KEY, EVALUATOR_KEY, has_own_data, imported, is_function_name, require_allowed
from client.privacy import LIMIT_KEY as PRIVACY_KEY
from client.privacy import is_private
from protocol.hashes import examples_hash
from protocol.questions import LossQuery, Query
from riskband.checks import MAX_EXAMPLES, RefusedError

OWN_EVALUATOR = "own"
"""The run config's ``evaluator`` of a run in which the node config of every client names one."""

_OF_A_SIMULATION = {"partition-id", "num-partitions"}  # keys of its nodes, which nobody else configured

NO_MODEL = "none"
"""The model of a question that every client answers with its evaluator."""


def is_evaluator_setting(value: str) -> bool:
    """Return whether a run config's ``evaluator`` is valid; "" means that there is none."""
    return value in ("", OWN_EVALUATOR) or is_function_name(value)


def evaluator_place(node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> str:
    """Return "module:function" of the function that says this client's mean loss.

    The owner's comes first. The run's stands for it on simulated clients, or with the node config's leave.

    Raises ValueError if neither names one, or the client does not let the run do so, or as `require_allowed`.
    """
    place = str(node_config.get(EVALUATOR_KEY, run_config.get(EVALUATOR_KEY, "")))
    if not is_function_name(place):
        raise RefusedError(
            f"the node config must have the key {EVALUATOR_KEY!r} in a run that sends no model, got none of the form "
            '"module:function"; name the function that returns the mean loss and the number of examples'
        )
    is_somebodys = not node_config.keys() <= _OF_A_SIMULATION
    if EVALUATOR_KEY not in node_config and is_somebodys and node_config.get(ALLOW_KEY) is not True:
        raise RefusedError(
            f"the node config must have {EVALUATOR_KEY!r}, or {ALLOW_KEY}=true, in a run whose config names a "
            "function: it is not for a server to choose what a client runs"
        )
    if EVALUATOR_KEY not in node_config:
        require_allowed(place, node_config)
    return place


def evaluator_of(query: Query, context: Context) -> Callable[[Context], Any]:
    """Return the client's own function, which answers the question; nothing is called yet.

    Raises ValueError if the question needs a model or noise, the client has a privacy budget, or there is no such
    function.
    """
    if not isinstance(query, LossQuery):
        raise RefusedError("without a model only plain losses can be asked for")
    if query.mechanism is not None or is_private(context.node_config):
        raise RefusedError(
            f"noise on answers, and a {PRIVACY_KEY}, need a model: nobody can tell how far one example moves what a "
            "function of the client's own returns"
        )
    function: Callable[[Context], Any] = imported(
        evaluator_place(context.node_config, context.run_config), key=EVALUATOR_KEY
    )
    # The server may have named it: only what is meant to be called so is called.
    if list(inspect.signature(function).parameters) != ["context"]:
        raise RefusedError(f"the function of {EVALUATOR_KEY!r} must have one parameter, called context")
    return function


def evaluated(function: Callable[[Context], Any], context: Context) -> tuple[float, int]:
    """Return the mean loss and the number of examples that the client's own function says.

    Raises ValueError if it does not return a mean loss in [0, 1] and a number of examples.
    """
    try:
        said = function(context)
    except RefusedError as error:  # of a library that the function calls: not our words, which may travel
        if not has_own_data(context.node_config):  # but in a simulation there is nothing to keep
            raise
        raise ValueError from error
    return _checked(said)


def said_hash(risk: float, num_examples: int) -> str:
    """Return what an answer record knows a client's examples by: all that is known of them."""
    return examples_hash(np.array([risk]), np.array([num_examples]))


def _checked(said: object) -> tuple[float, int]:
    if not (isinstance(said, tuple | list) and len(said) == 2):
        raise RefusedError(
            f"the function of {EVALUATOR_KEY!r} must return the mean loss and the number of examples, got another thing"
        )
    risk, size = said
    is_risk = isinstance(risk, Real) and not isinstance(risk, bool) and 0.0 <= float(risk) <= 1.0  # not of NaN
    if not is_risk:
        raise RefusedError(
            f"the mean loss of {EVALUATOR_KEY!r} must be a number in [0, 1], got another; every example's loss must "
            "lie in [0, 1]; divide a percentage by 100, and make a tensor a number with float(…)"
        )
    is_size = isinstance(size, Integral) and not isinstance(size, bool) and 1 <= int(size) <= MAX_EXAMPLES
    if not is_size:
        raise RefusedError(
            f"the number of examples of {EVALUATOR_KEY!r} must be a whole number from 1 to {MAX_EXAMPLES:g}, got "
            "another; a client without examples has no answer"
        )
    return float(risk), int(size)
