"""Whom a client takes for clients: those whose keys are signed by the long-lived keys that its owner lists.

The server passes everybody's keys on. Without such a list a client must believe that it invents nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from client.refusals import file_errors_withheld
from protocol.secure.cryptography import PublicKeys
from riskband.checks import RefusedError

KEYS = KEY_FILE_KEY, CLIENTS_FILE_KEY = "secure-key-file", "secure-clients-file"
"""Of the node config: absolute paths of the client's own private key, and of the public keys of all, a line each."""


def signed(keys: PublicKeys, config: Mapping[str, Any], *, run_id: str) -> PublicKeys:
    """Return keys signed for a run by the client's own long-lived key; as they are if it has none.

    Raises ValueError if its file holds no key; RuntimeError if it cannot be read, without the details.
    """
    own = _own_key(config)
    return keys if own is None else keys.signed(own, run_id=run_id)


def trusted_keys(config: Mapping[str, Any], *, least: int) -> frozenset[bytes] | None:
    """Return the public keys that a client's owner lists; None without ``secure-clients-file``: whom the server names.

    Raises ValueError if a line is no key, there are fewer than `least`, or the client's own is not among them;
    RuntimeError if the file cannot be read, without the details.
    """
    if CLIENTS_FILE_KEY not in config:
        return None
    lines = [line for line in _read(config, CLIENTS_FILE_KEY).splitlines() if line.strip()]
    found = frozenset(_loaded(load_ssh_public_key, line, CLIENTS_FILE_KEY).public_bytes_raw() for line in lines)
    own = _own_key(config)
    if own is None or own.public_key().public_bytes_raw() not in found:
        raise RefusedError(f"the key in {KEY_FILE_KEY} must be among those of {CLIENTS_FILE_KEY}; add its public half")
    if len(found) < least:
        raise RefusedError(f"{CLIENTS_FILE_KEY} must list at least {least} clients, got {len(found)}; list them all")
    return found


def _own_key(config: Mapping[str, Any]) -> Ed25519PrivateKey | None:
    if KEY_FILE_KEY not in config:
        return None
    own: Ed25519PrivateKey = _loaded(load_ssh_private_key, _read(config, KEY_FILE_KEY), KEY_FILE_KEY, None)
    return own


def _read(config: Mapping[str, Any], key: str) -> bytes:
    with file_errors_withheld(f"reading {key}"):
        return Path(str(config[key])).read_bytes()


def _loaded(load: Callable[..., Any], text: bytes, key: str, *more: Any) -> Any:
    try:
        found = load(text, *more)
    except (ValueError, UnsupportedAlgorithm):
        found = None
    if not isinstance(found, Ed25519PrivateKey | Ed25519PublicKey):
        raise RefusedError(f"{key} must hold Ed25519 keys in OpenSSH's format without a password; see deploy.make_keys")
    return found
