"""Whom a client takes for clients: those whose keys are signed by the long-lived keys that its owner lists.

The server passes everybody's keys on. Without such a list a client must believe that it invents nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from client.signing import KEY_FILE_KEY, own_key, text_of
from protocol.client_keys import public_keys
from protocol.secure.cryptography import PublicKeys
from riskband.checks import RefusedError

CLIENTS_FILE_KEY = "secure-clients-file"
"""Of the node config: the absolute path of the public keys of all, a line each."""


def signed(keys: PublicKeys, config: Mapping[str, Any], *, run_id: str) -> PublicKeys:
    """Return keys signed for a run by the client's own long-lived key; as they are if it has none.

    Raises as `client.signing.own_key`.
    """
    own = own_key(config)
    return keys if own is None else keys.signed(own, run_id=run_id)


def trusted_keys(config: Mapping[str, Any], *, least: int) -> frozenset[bytes] | None:
    """Return the public keys that a client's owner lists; None without ``secure-clients-file``: whom the server names.

    Raises ValueError if a line is no key, there are fewer than `least`, or the client's own is not among them;
    RuntimeError if the file cannot be read, without the details.
    """
    if CLIENTS_FILE_KEY not in config:
        return None
    found = frozenset(key for _, key in public_keys(text_of(config, CLIENTS_FILE_KEY), called=CLIENTS_FILE_KEY))
    own = own_key(config)
    if own is None or own.public_key().public_bytes_raw() not in found:
        raise RefusedError(f"the key in {KEY_FILE_KEY} must be among those of {CLIENTS_FILE_KEY}; add its public half")
    if len(found) < least:
        raise RefusedError(f"{CLIENTS_FILE_KEY} must list at least {least} clients, got {len(found)}; list them all")
    return found
