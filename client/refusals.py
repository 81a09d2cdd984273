"""Errors whose text may travel to the server, and the reply that carries it with the client's name."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from logging import ERROR
from typing import Any

from flwr.app import Context, Error, Message
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode
from flwr.common.logger import log

from client.identity import client_id
from protocol import wire
from protocol.hashes import code_hash
from riskband import checks
from riskband.checks import RefusedError

APP_HASH_KEY = "app-hash"
"""Of the node config: the only `protocol.hashes.code_hash` under which this client answers."""

_LOGGED: set[tuple[int, str]] = set()  # of this process: what was refused, by run


class WithheldError(RuntimeError):
    """An error whose details stay in the client's own log; its text names the step that failed and how."""


def require_known_keys(config: Mapping[str, Any], prefix: str, known: tuple[str, ...], *, otherwise: str) -> None:
    """Raise ValueError if a key of the node config begins with the prefix and is none of the known ones: a slip."""
    if any(key.lower().startswith(prefix) and key not in known for key in config):
        raise RefusedError(
            f"a key of the node config that begins with {prefix!r} must be {' or '.join(known)}, got another; correct "
            f"its spelling, or this client would answer {otherwise}"
        )


@contextmanager
def details_withheld(step: str) -> Iterator[None]:
    """Replace an exception by one whose text says only which step failed and how.

    Models and data are code of somebody else's, which may raise what ends a process, too, such as SystemExit.
    """
    try:
        yield
    except (RefusedError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise WithheldError(f"{step} failed with {kind_of(error)}; the details are in this client's own log") from error


@contextmanager
def file_errors_withheld(step: str) -> Iterator[None]:
    """Replace an error of a file on the client's disk by one whose text says only which step failed and how."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise WithheldError(f"{step} failed with {kind_of(error)}") from error


def refuse_as_other_code(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Let a message through to the ClientApp (a Flower mod), unless its code is not the one that the owner has pinned.

    The code that looks is the code that came. So this is against an app that has changed, not one that is malicious.
    """
    require_known_keys(context.node_config, "app", (APP_HASH_KEY,), otherwise="whatever code it runs")
    pinned = context.node_config.get(APP_HASH_KEY)
    if pinned not in (None, code_hash()):
        raise RefusedError(
            f"the code that answers must be the one of {APP_HASH_KEY} of the node config, got {code_hash()}; run the "
            "app that the client's owner has read, or ask the owner to read this one and pin it"
        )
    return call_next(message, context)


def say_refusals(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Reply to what the ClientApp refuses with the reason and the client's name (a Flower mod)."""
    try:
        return call_next(message, context)
    except Exception as error:
        return refused(message, context, error)


def refused(message: Message, context: Context, error: Exception) -> Message:
    """Return the reply to what is refused with an error.

    It stays an error of Flower, of code 2, as that of any client that raises. The words of our own errors travel; of
    any other exception only its kind does: what Flower sends of one that nobody catches is its whole text.
    """
    kind = kind_of(error)
    is_ours = isinstance(error, ValueError | WithheldError)
    text = f"{kind}: {error}" if is_ours else f"{kind}; the details are in this client's own log"
    if (context.run_id, text) not in _LOGGED:  # many clients of one process refuse alike
        _LOGGED.add((context.run_id, text))
        # Of a plain refusal the words are all there is to know.
        log(ERROR, "No answer: %s", text, exc_info=None if isinstance(error, ValueError) else error)
    refusal = wire.Refusal(_name_if_any(context), code_hash(), text)
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, wire.encode_refusal(refusal)), reply_to=message)


def kind_of(error: BaseException) -> str:
    """Return what an exception is called where it may travel: by the nearest class that is known, or ours."""
    return checks.kind_of(error, *vars(sqlite3).values(), RefusedError, WithheldError)


def _name_if_any(context: Context) -> str | None:
    try:
        return client_id(context.node_config)
    except ValueError:  # which may be what is refused
        return None
