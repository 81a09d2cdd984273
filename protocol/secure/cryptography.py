"""Secure aggregation: a server adds up vectors of clients and sees nothing but the sum (Bonawitz et al. 2017).

Every client hides its vector under a mask of its own and one mask for each neighbour, which the neighbour subtracts.
The secrets behind the masks are shared among the neighbours (Shamir), so that those who are left can say what the
server needs to take the remaining masks away: the own mask of a client whose vector arrived, the neighbours' masks of
one whose vector did not, never both. Before they say it, they confirm to each other who is which. With neighbourhoods
instead of all pairs this is SecAgg+ (Bell et al. 2020).

Masks depend on the question: those of clients that were asked different ones do not cancel. Keys agree by X25519 and
HKDF-SHA256, long-lived ones of Ed25519 vouch for them, shares travel under AES-256-GCM, masks are the stream of
AES-256-CTR, all of `cryptography`; shares are pycryptodome's. All is arithmetic on bytes: no Flower, no files, no
clock. The randomness is the operating system's and cannot be seeded; it cancels in the sum.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from riskband.checks import RefusedError

KEY_BYTES = 32
"""Of a private or public key."""
SEED_BYTES = 16
"""Of the seed of a client's own mask; also what Shamir's field holds."""
SHARE_BYTES = SEED_BYTES + KEY_BYTES
"""Of what a neighbour holds of one client: a share of the seed, and one of the masking key in two halves."""

WORD = np.dtype("<u4")
"""Vectors are added modulo 2**32."""

_PREFIX = b"riskband secure aggregation 2: "
_NONCE_BYTES, _TAG_BYTES = 12, 16
SEALED_BYTES = _NONCE_BYTES + SHARE_BYTES + _TAG_BYTES
"""Of an encrypted share."""
MAC_BYTES = 32
"""Of what confirms a list to a neighbour."""


@dataclass(frozen=True)
class PublicKeys:
    """What a client tells the others: for the shares sent to it, and for the masks shared with it."""

    encryption: bytes
    masking: bytes
    # Who vouches for them: a long-lived key of Ed25519, and its signature. Empty where nobody does.
    signer: bytes = field(default=b"", compare=False)
    signature: bytes = field(default=b"", compare=False)

    def signed(self, key: Ed25519PrivateKey, *, run_id: str) -> PublicKeys:
        """Return the keys with the signature of a long-lived key, for this run only."""
        return replace(self, signer=key.public_key().public_bytes_raw(), signature=key.sign(self._statement(run_id)))

    def is_signed(self, *, run_id: str) -> bool:
        """Return whether the signature is that of the signer, for this run."""
        try:
            Ed25519PublicKey.from_public_bytes(self.signer).verify(self.signature, self._statement(run_id))
        except (InvalidSignature, ValueError):  # the latter for a signer that is no key
            return False
        return True

    def _statement(self, run_id: str) -> bytes:
        return _PREFIX + b"keys" + digest(run_id, self.encryption.hex(), self.masking.hex())


@dataclass(frozen=True, repr=False)
class Secrets:
    """What a client makes for one aggregation; no text shows them."""

    encryption: bytes  # this and the next: private keys
    masking: bytes
    seed: bytes  # of its own mask

    @classmethod
    def fresh(cls) -> Secrets:
        """Return new secrets from the operating system's randomness."""
        encryption, masking = (X25519PrivateKey.generate().private_bytes_raw() for _ in range(2))
        return cls(encryption, masking, os.urandom(SEED_BYTES))

    @property
    def public(self) -> PublicKeys:
        """The keys that belong to the private ones."""
        return PublicKeys(public_key(self.encryption), public_key(self.masking))


def threshold_of(num_members: int) -> int:
    """Return how many of so many members must give a share for a secret to be found: more than two thirds.

    So many must also have confirmed the same lists. An honest member confirms one, so for two lists a server needs the
    help of a third of the members.
    """
    return 2 * num_members // 3 + 1


def digest(*parts: Any) -> bytes:
    """Return the SHA-256 of plain data: numbers, texts, None, lists and dicts of these."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, allow_nan=False).encode()).digest()


def digest_of_members(members: Mapping[int, PublicKeys]) -> bytes:
    """Return the hash of a list of members: numbers and keys, in increasing order of number."""
    return digest([[number, keys.encryption.hex(), keys.masking.hex()] for number, keys in sorted(members.items())])


def is_public_key(key: bytes) -> bool:
    """Return whether a secret can be agreed on with the owner of this public key."""
    try:
        _exchanged(X25519PrivateKey.generate().private_bytes_raw(), key)
    except RefusedError:
        return False
    return True


def public_key(private: bytes) -> bytes:
    """Return the public key of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def shares_of(secrets: Secrets, members: Sequence[int], *, threshold: int) -> dict[int, bytes]:
    """Share a client's seed and masking key among members, its neighbours and itself; `SHARE_BYTES` for each.

    The place in the order of members is the place of the share. `threshold` shares, 2 at least, give the secrets; fewer
    say nothing.
    """
    halves = (secrets.seed, secrets.masking[:SEED_BYTES], secrets.masking[SEED_BYTES:])
    columns = [[share for _, share in Shamir.split(threshold, len(members), half, ssss=False)] for half in halves]
    return {member: b"".join(parts) for member, *parts in zip(members, *columns, strict=True)}


def combined(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret that as many shares as the threshold says give, by their place, counted from 1.

    Of a seed they have `SEED_BYTES` each, of a key `KEY_BYTES`. Wrong ones give a wrong secret.
    """
    length = len(next(iter(shares.values())))
    starts = range(0, length, SEED_BYTES)
    parts = ([(place, share[start : start + SEED_BYTES]) for place, share in shares.items()] for start in starts)
    return b"".join(Shamir.combine(part, ssss=False) for part in parts)


def sealed(share: bytes, secrets: Secrets, recipient: PublicKeys, *, route: tuple[int, int], group: bytes) -> bytes:
    """Encrypt a share for a neighbour; only a message from this sender to this recipient of the same group opens.

    The secrets are the sender's, the route is the numbers of both, and the group a hash of what both must have been
    told alike, such as `digest_of_members`. Raises ValueError if the public key is none.
    """
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + _cipher(secrets, recipient).encrypt(nonce, share, _written(route) + group)


def opened(message: bytes, secrets: Secrets, sender: PublicKeys, *, route: tuple[int, int], group: bytes) -> bytes:
    """Decrypt what `sealed` made; parameters as there, seen from the recipient.

    Raises ValueError if it is not from this sender to this recipient of the same group, or was changed on its way.
    """
    nonce, rest = message[:_NONCE_BYTES], message[_NONCE_BYTES:]
    try:
        share = _cipher(secrets, sender).decrypt(nonce, rest, _written(route) + group)
    except (InvalidTag, ValueError):
        share = b""
    if len(share) != SHARE_BYTES:
        raise RefusedError("a share must open with the keys of its sender, and one does not: it was changed on its way")
    return share


def list_mac(secrets: Secrets, other: PublicKeys, *, route: tuple[int, int], about: bytes) -> bytes:
    """Return a MAC that confirms to one neighbour that the sender was told this, a `digest`; `MAC_BYTES`.

    The secrets are those of the sender, or of the recipient, who checks it; the route is the numbers of both. Raises
    ValueError if the public key is none.
    """
    key = _agreed(secrets.encryption, other.encryption, b"list")
    return hmac.digest(key, _written(route) + about, "sha256")


def masked(
    vector: np.ndarray, secrets: Secrets, *, own: int, neighbours: Mapping[int, PublicKeys], question: bytes
) -> np.ndarray:
    """Hide a vector of `WORD`, shape (num_values,), modulo 2**32; without the secrets it looks like random numbers.

    Secrets are used for one vector only: the difference of two under the same masks is plain. The neighbours are those
    whose shares the client `own` holds, by number, without itself; the question is the hash of what the vector answers.
    """
    hidden = vector + own_mask(secrets.seed, vector.size, own=own, held={own, *neighbours}, question=question)
    for number, keys in neighbours.items():
        route = (own, number)
        hidden = hidden + pair_mask(secrets.masking, keys.masking, vector.size, route=route, question=question)
    return np.asarray(hidden, dtype=WORD)


def own_mask(seed: bytes, num_values: int, *, own: int, held: Collection[int], question: bytes) -> np.ndarray:
    """Return the mask that only a client knows, shape (num_values,), from its seed and number; see `masked`.

    `held` are the numbers of those whose shares it holds, itself among them.
    """
    return _stream(_derived(seed, b"own mask" + question + digest(own, sorted(held))), num_values)


def pair_mask(private: bytes, other: bytes, num_values: int, *, route: tuple[int, int], question: bytes) -> np.ndarray:
    """Return what the first of two clients on a route adds for the second, shape (num_values,).

    The second adds the opposite. The keys for masking are the private one of either, and the public one of the other.
    Masks of clients that were asked different questions do not cancel.
    """
    mask = _stream(_agreed(private, other, b"pair mask" + question), num_values)
    return mask if route[0] < route[1] else np.negative(mask)


def _cipher(secrets: Secrets, other: PublicKeys) -> AESGCM:
    return AESGCM(_agreed(secrets.encryption, other.encryption, b"share"))


def _agreed(private: bytes, other: bytes, purpose: bytes) -> bytes:
    """Key that two clients share, bound to both public keys and to what it is for."""
    return _derived(_exchanged(private, other), purpose + b"".join(sorted((public_key(private), other))))


def _exchanged(private: bytes, other: bytes) -> bytes:
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:  # of another length, or of an order that makes every secret the same
        raise RefusedError("a public key must be a point of X25519 that gives a secret, and one does not") from error


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=None, info=_PREFIX + purpose).derive(secret)


def _stream(key: bytes, num_values: int) -> np.ndarray:
    # Every key serves for one stream, so the counter may start at 0.
    encryptor = Cipher(AES(key), CTR(bytes(16))).encryptor()
    return np.frombuffer(encryptor.update(bytes(WORD.itemsize * num_values)), dtype=WORD)


def _written(route: tuple[int, int]) -> bytes:
    return b"%d to %d" % route
