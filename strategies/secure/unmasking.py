"""The server's arithmetic of a secure sum: from masked vectors and shares to the sum of the vectors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from protocol.secure.cryptography import WORD, PublicKeys, combined, own_mask, pair_mask, public_key, threshold_of

Shares = Mapping[int, Mapping[int, bytes]]
"""Shares by the client whose secret they are of, and by the member who gave them."""


class UnmaskingError(RuntimeError):
    """The sum cannot be found: too few shares came, or wrong ones."""


def unmasked_sum(
    vectors: Mapping[int, bytes],
    *,
    question: bytes,
    neighbourhoods: Mapping[int, Sequence[int]],
    held: Mapping[int, Collection[int]],
    public: Mapping[int, PublicKeys],
    seed_shares: Shares,
    key_shares: Shares,
) -> np.ndarray:
    """Add up masked vectors and take the masks off the sum.

    Parameters
    ----------
    vectors : mapping of int to bytes
        Masked vectors by the number of the client, one at least, all of one length.
    question : bytes
        Hash of what they answer: `protocol.secure.questions.HistogramQuery.digest`.
    neighbourhoods : mapping of int to sequence of int
        Members by client, in the order of their shares; see `strategies.secure.neighbourhoods`.
    held : mapping of int to collection of int
        For each client with a vector, the members that its masks are shared with, itself among them.
    public : mapping of int to PublicKeys
        Of all clients that sent shares.
    seed_shares, key_shares :
        Of the clients with a vector, and of those without one whose shares some of these hold.

    Returns
    -------
    ndarray of int, shape (num_values,)
        The sum modulo 2**32.

    Raises
    ------
    UnmaskingError
        If a secret has fewer shares than the threshold, or a key that came out is not the client's.
    """
    total = np.sum([np.frombuffer(vector, dtype=WORD) for vector in vectors.values()], axis=0, dtype=WORD)
    for number in vectors:
        seed = _secret(number, neighbourhoods[number], seed_shares.get(number, {}))
        total -= own_mask(seed, total.size, own=number, held=held[number], question=question)
    for number in key_shares:
        key = _secret(number, neighbourhoods[number], key_shares[number])
        if public_key(key) != public[number].masking:
            raise UnmaskingError(
                "shares of a client that dropped out must give its key, and they do not: a neighbour sent a wrong one"
            )
        for neighbour in (other for other in vectors if number in held[other]):
            route = (neighbour, number)
            total -= pair_mask(key, public[neighbour].masking, total.size, route=route, question=question)
    return np.asarray(total, dtype=np.int64)


def _secret(number: int, members: Sequence[int], shares: Mapping[int, bytes]) -> bytes:
    threshold = threshold_of(len(members))
    if len(shares) < threshold:
        raise UnmaskingError(
            f"{threshold} of {len(members)} members must give their share of a client's secret, got {len(shares)}; too "
            "many dropped out after the masked vectors had been sent: run again"
        )
    chosen = sorted(shares)[:threshold]
    return combined({members.index(member) + 1: shares[member] for member in chosen})
