"""What a client signs: that in one run, to one message with one question, it said this.

Clients, servers and auditors compute the signed bytes here, and nowhere else. Nothing but `is_signed` needs the package
cryptography.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from riskband.checks import check_installed

_PREFIX = b"riskband answer 1: "


@dataclass(frozen=True)
class Statement:
    """That a client said something; plain data, the same after a way through JSON."""

    run: str  # Flower's number of the run
    message: str  # what tells the message from all others, and cannot be guessed: its group id
    question: Mapping[str, Any]  # with its type, as it travelled
    said: Mapping[str, Any]  # the answer, or the refusal, as it travelled

    @property
    def to_sign(self) -> bytes:
        """The bytes under the signature."""
        parts = [self.run, self.message, self.question, self.said]
        return _PREFIX + sha256(json.dumps(parts, sort_keys=True).encode()).digest()


@dataclass(frozen=True)
class Signed:
    """What a client has said under its key."""

    statement: Statement
    signature: bytes
    key: bytes  # the public one, of 32 bytes

    def to_dict(self) -> dict[str, Any]:
        """Return what stands in a ledger beside what was said: `Signed.from_dict` makes it whole again."""
        about = {"run": self.statement.run, "message": self.statement.message, "question": self.statement.question}
        return {**about, "key": self.key.hex(), "signature": self.signature.hex()}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], said: Mapping[str, Any]) -> Signed:
        """Return what `to_dict` stored of what was said; raises KeyError, TypeError or ValueError if it is none."""
        statement = Statement(stored["run"], stored["message"], stored["question"], said)
        return cls(statement, bytes.fromhex(stored["signature"]), bytes.fromhex(stored["key"]))


def is_signed(signed: Signed) -> bool:
    """Return whether a signature is that of its key, of Ed25519, under its statement."""
    check_installed("cryptography", extra="app")
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(signed.key).verify(signed.signature, signed.statement.to_sign)
    except (InvalidSignature, ValueError):  # the latter for a key that is none
        return False
    return True
