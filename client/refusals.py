"""Errors whose text may travel to the server, as Flower sends the text of a client's exception."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from riskband.checks import RefusedError


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
        raise WithheldError(
            f"{step} failed with {type(error).__name__}; the details are in this client's own log"
        ) from error


@contextmanager
def files_at_hand(step: str) -> Iterator[None]:
    """Replace an error of a file on the client's disk by one whose text says only which step failed and how."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise WithheldError(f"{step} failed with {type(error).__name__}") from error
