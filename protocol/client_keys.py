"""The long-lived keys of clients, of Ed25519 in OpenSSH's format: a file for a private one, a list of all public ones.

A line of the list is a public key and, after it, the client's name.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from protocol.questions import check_name
from riskband.checks import RefusedError


def private_key(text: bytes, *, called: str) -> Ed25519PrivateKey:
    """Return the key in a file; raises ValueError, under the name of the setting, if it is none without a password."""
    found: Ed25519PrivateKey = _loaded(load_ssh_private_key, text, None, called=called)
    return found


def public_keys(text: bytes, *, called: str) -> list[tuple[str, bytes]]:
    """Return the names, "" where there is none, and the keys of 32 bytes in a list; raises as `private_key`."""
    lines = [line.split(maxsplit=2) for line in text.splitlines() if line.strip()]
    keys = (_loaded(load_ssh_public_key, b" ".join(parts[:2]), called=called).public_bytes_raw() for parts in lines)
    return [
        (b" ".join(parts[2:]).decode(errors="replace").strip(), key) for parts, key in zip(lines, keys, strict=True)
    ]


def keys_by_name(path: str, *, called: str) -> dict[str, bytes]:
    """Return the public keys in a file, by client; raises ValueError if a name is wrong, or a name or key is twice."""
    try:
        listed = public_keys(Path(path).expanduser().read_bytes(), called=called)
    except OSError as error:
        raise ValueError(f"{called} must name a file that can be read, got {error}") from None
    for name, _ in listed:
        check_name(f"what follows a key in {called}, its client's name,", name)
    if not len(dict(listed)) == len({key for _, key in listed}) == len(listed):
        raise ValueError(
            f"{called} must have each client and each key once, and one is there twice; see deploy.make_keys"
        )
    return dict(listed)


def _loaded(load: Callable[..., Any], text: bytes, *more: Any, called: str) -> Any:
    try:
        found = load(text, *more)
    except (ValueError, UnsupportedAlgorithm):
        found = None
    if not isinstance(found, Ed25519PrivateKey | Ed25519PublicKey):
        raise RefusedError(
            f"{called} must hold Ed25519 keys in OpenSSH's format without a password; see deploy.make_keys"
        )
    return found
