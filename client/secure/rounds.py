"""The rounds of a secure histogram: from each question to its answer; the client's part is kept in between.

An owner may keep a client to this: it then refuses every question that is answered in the open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from client.identity import client_id
from client.kept_model import weights_of
from client.privacy import LIMIT_KEY as PRIVACY_KEY
from client.privacy import is_private
from client.refusals import require_known_keys
from client.secure import part as histogram
from client.secure import trust
from client.secure.state import claim, keep, part_of
from protocol import wire
from protocol.codec import PROTOCOL_VERSION
from protocol.hashes import code_hash, model_hash
from protocol.questions import HelloQuery
from protocol.secure.questions import (
    ConsistencyAnswer,
    ConsistencyQuery,
    HistogramQuery,
    KeysAnswer,
    KeysQuery,
    MaskedAnswer,
    MaskedQuery,
    SharesAnswer,
    SharesQuery,
    UnmaskAnswer,
    UnmaskQuery,
)
from riskband.checks import RefusedError
from riskband.models.losses import get_loss

Numbers = Callable[[HistogramQuery, Mapping[str, np.ndarray]], Mapping[str, Any]]
"""From a question and the model's weights to the fields of the answer to a plain loss question."""

SECURE_ONLY_KEY = "secure-only"

_OPEN_TO_ALL = frozenset(
    f"query.{wire.action(question)}"
    for question in (HelloQuery, KeysQuery, SharesQuery, MaskedQuery, ConsistencyQuery, UnmaskQuery)
)


def is_secure_only(config: Mapping[str, Any]) -> bool:
    """Return whether a client takes part in secure histograms only, by its node config: ``secure-only``.

    Who sets ``secure-min-clients`` means that fewer are too few: without ``secure-only`` that counts as true.
    """
    known = (SECURE_ONLY_KEY, histogram.MIN_CLIENTS_KEY, histogram.COMPLETE_KEY, trust.CLIENTS_FILE_KEY)
    require_known_keys(config, "secure", known, otherwise="in the open")
    return histogram.flag_of(config, SECURE_ONLY_KEY, default=histogram.MIN_CLIENTS_KEY in config)


def refuse_in_the_open(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Let a message through to the ClientApp (a Flower mod), unless the client's owner keeps it to secure histograms.

    Raises ValueError if the message is neither a hello nor part of a secure histogram, and the client is
    `is_secure_only`, or as that.
    """
    if is_secure_only(context.node_config) and message.metadata.message_type not in _OPEN_TO_ALL:
        raise RefusedError(
            f"this client takes part in secure histograms only ({SECURE_ONLY_KEY} or {histogram.MIN_CLIENTS_KEY} of "
            "its own config); use the strategy secure_histogram"
        )
    return call_next(message, context)


def keys_answer(query: KeysQuery, message: Message, context: Context) -> KeysAnswer:
    """Return a client's fresh public keys for a histogram."""
    # A setting that is wrong is said before anybody counts on the client.
    if is_private(context.node_config):
        raise RefusedError(
            f"a client with a {PRIVACY_KEY} takes no part in a secure histogram: the sum that is seen has no noise"
        )
    histogram.needs_complete_graph(context.node_config)
    min_clients = histogram.min_clients_of(context.node_config)
    histogram.require_large_groups(query, min_clients=min_clients)
    trust.trusted_keys(context.node_config, least=min_clients)
    before = part_of(context, message.metadata.run_id, awaits=None)
    part = histogram.begun(message.metadata.run_id, number=1 if before is None else before.number + 1)
    keep(context, part)
    keys = trust.signed(part.secrets.public, context.node_config, run_id=part.run_id)
    return KeysAnswer(**_identity(context), keys=keys)


def shares_answer(query: SharesQuery, message: Message, context: Context) -> SharesAnswer:
    """Return the client's encrypted shares for its neighbours."""
    min_clients = histogram.min_clients_of(context.node_config)
    needs_complete = histogram.needs_complete_graph(context.node_config)
    trusted = trust.trusted_keys(context.node_config, least=min_clients)
    before = _part(message, context, histogram.SHARES)
    part, sent = histogram.shared(
        before, query, min_clients=min_clients, needs_complete=needs_complete, trusted=trusted
    )
    keep(context, part)
    return SharesAnswer(**_identity(context), sent=sent)


def masked_answer(query: MaskedQuery, message: Message, context: Context, numbers: Numbers) -> MaskedAnswer:
    """Return the client's histogram under masks.

    The part moves on before anything is computed: whatever happens then, these masks hide one vector at most.
    """
    asked, arrays = query.histogram, weights_of(message, context)
    identity, sent_hash = _identity(context), model_hash(arrays)
    question = asked.digest(version=PROTOCOL_VERSION, model_hash=sent_hash, code_hash=identity["code_hash"])
    before = _part(message, context, histogram.HISTOGRAM)
    min_clients = histogram.min_clients_of(context.node_config)
    part, unopened = histogram.holding(before, query.held, question=question, min_clients=min_clients)
    keep(context, part)
    found = numbers(histogram.HistogramAmong(**vars(asked), partners=part.partners), arrays)
    # Only now, when it has been counted: to refuse for free would let a server try numbers.
    histogram.check_own_size(asked, found["num_examples"])
    vector = histogram.own_vector(asked, found["risk"], found["num_examples"], binary=get_loss(asked.loss).binary)
    hidden = histogram.hidden(part, vector)
    return MaskedAnswer(**identity, loss=asked.loss, model_hash=sent_hash, vector=hidden, unopened=unopened)


def consistency_answer(query: ConsistencyQuery, message: Message, context: Context) -> ConsistencyAnswer:
    """Return what confirms to the client's neighbours who is in the sum."""
    before = _part(message, context, histogram.CONSISTENCY)
    part, macs = histogram.confirmed(before, query, min_clients=histogram.min_clients_of(context.node_config))
    keep(context, part)
    return ConsistencyAnswer(**_identity(context), numbers=tuple(macs), macs=tuple(macs.values()))


def unmask_answer(query: UnmaskQuery, message: Message, context: Context) -> UnmaskAnswer:
    """Return the client's shares of the seeds or keys of its neighbours, and delete every secret."""
    part, seeds, keys = histogram.revealed(_part(message, context, histogram.UNMASK), query)
    keep(context, part)
    return UnmaskAnswer(**_identity(context), seed_shares=tuple(seeds), key_shares=tuple(keys))


def _part(message: Message, context: Context, awaits: str) -> histogram.Part:
    part = part_of(context, message.metadata.run_id, awaits=awaits)
    assert part is not None
    claim(context.node_config, part)
    return part


def _identity(context: Context) -> dict[str, Any]:
    return {"client_id": client_id(context.node_config), "code_hash": code_hash()}
