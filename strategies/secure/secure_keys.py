"""What the server checks of the public keys in the first round, so that no client's keys end the run for the others."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from protocol.secure.cryptography import is_public_key
from protocol.secure.questions import KeysAnswer
from strategies.asking.failures import Failure, FailureReason
from strategies.asking.replies import RoundOutcome


def broken_key_rule(answer: KeysAnswer) -> tuple[FailureReason, str] | None:
    """Return what is wrong with a client's keys: one that no secret can be agreed on with, or one for both purposes."""
    keys = answer.keys.encryption, answer.keys.masking
    if not all(map(is_public_key, keys)):
        return FailureReason.MALFORMED, "a public key must be a point of X25519 that gives a secret, and one is not"
    if keys[0] == keys[1]:
        return FailureReason.MALFORMED, "the two public keys must differ"
    return None


def without_shared_keys(outcome: RoundOutcome[Any]) -> RoundOutcome[Any]:
    """Return the outcome of the first round with clients that sent the same key among the failures.

    Which of them made the key is unknown, so none is believed.
    """
    counts = Counter(key for answer in outcome.answers for key in (answer.keys.encryption, answer.keys.masking))
    sharing = [
        answer for answer in outcome.answers if max(counts[answer.keys.encryption], counts[answer.keys.masking]) > 1
    ]
    detail, node_ids = "two clients sent this public key", outcome.node_ids
    failures = [
        Failure(a.client_id, FailureReason.CLAIMED_TWICE, detail, node_id=node_ids.get(a.client_id)) for a in sharing
    ]
    return replace(
        outcome,
        answers=tuple(answer for answer in outcome.answers if answer not in sharing),
        failures=(*outcome.failures, *failures),
    )
