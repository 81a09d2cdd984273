"""Clients whose numbers may be seen in a sum only: they refuse every question that is answered in the open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from client.secure.part import MIN_CLIENTS_KEY, flag_of
from protocol import wire
from protocol.secure import wire as histogram_wire
from riskband.adversaries.problem import RefusedError

SECURE_ONLY_KEY = "secure-only"

_OPEN_TO_ALL = frozenset({wire.HELLO_MESSAGE_TYPE, *map(histogram_wire.message_type, histogram_wire.ACTIONS)})


def is_secure_only(config: Mapping[str, Any]) -> bool:
    """Return whether a client takes part in secure histograms only, by its own config: ``secure-only``.

    Parameters
    ----------
    config : mapping
        The node config. Who sets ``secure-min-clients`` there means that fewer are too few: without ``secure-only``
        that counts as true.

    Raises
    ------
    ValueError
        If it is neither true nor false.
    """
    return flag_of(config, SECURE_ONLY_KEY, default=MIN_CLIENTS_KEY in config)


def refuse_in_the_open(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Let a message through to the ClientApp (a Flower mod), unless the client's owner keeps it to secure histograms.

    Raises
    ------
    ValueError
        If the message is neither a hello nor part of a secure histogram, and the client is `is_secure_only`.
    """
    if is_secure_only(context.node_config) and message.metadata.message_type not in _OPEN_TO_ALL:
        raise RefusedError(
            f"this client takes part in secure histograms only ({SECURE_ONLY_KEY} or {MIN_CLIENTS_KEY} of its own "
            "config); use the strategy secure_histogram"
        )
    return call_next(message, context)
