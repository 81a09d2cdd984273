"""A client's own long-lived key, with which it signs every answer and every refusal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from client.refusals import WithheldError, file_errors_withheld, refused, require_known_keys
from protocol import wire
from protocol.client_keys import private_key
from riskband.checks import RefusedError

KEY_FILE_KEY = "signing-key-file"
"""Of the node config: the absolute path of the client's own private key."""

_QUESTION = "query."


def sign_replies(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Sign what the ClientApp replies to a question (a Flower mod) if the client has a key; training is not signed."""
    try:
        key = own_key(context.node_config)  # one that cannot be used is said before anything is spent
    except (RefusedError, WithheldError) as error:
        return refused(message, context, error)
    reply = call_next(message, context)
    if key is None or not message.metadata.message_type.startswith(_QUESTION):
        return reply
    statement = wire.statement_of(reply, message)
    assert statement is not None  # a reply to a question is one or the other
    return wire.with_signature(reply, key.sign(statement.to_sign), reply_to=message)


def own_key(config: Mapping[str, Any]) -> Ed25519PrivateKey | None:
    """Return the client's own long-lived key; None if it has none.

    Raises ValueError if its file holds no key; RuntimeError if it cannot be read, without the details.
    """
    require_known_keys(config, "signing", (KEY_FILE_KEY,), otherwise="without a signature")
    return private_key(text_of(config, KEY_FILE_KEY), called=KEY_FILE_KEY) if KEY_FILE_KEY in config else None


def text_of(config: Mapping[str, Any], key: str) -> bytes:
    """Return what is in the file that a node config names; raises RuntimeError, without the details, if it cannot."""
    with file_errors_withheld(f"reading {key}"):
        return Path(str(config[key])).read_bytes()
