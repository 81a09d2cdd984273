"""The edge of a secure histogram: from a message to the content of its reply; the client's part is kept in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict

from client.identity import client_id
from client.privacy import LIMIT_KEY as PRIVACY_KEY
from client.privacy import is_private
from client.secure import part as histogram
from client.secure.claims import claim
from client.secure.state import keep, part_of
from protocol import wire
from protocol.secure import wire as secure_wire
from protocol.secure.questions import (
    ConsistencyAnswer,
    HistogramQuery,
    KeysAnswer,
    MaskedAnswer,
    SharesAnswer,
    UnmaskAnswer,
)
from riskband.adversaries.losses import get_loss
from riskband.adversaries.problem import RefusedError

Numbers = Callable[[HistogramQuery, Mapping[str, np.ndarray]], Mapping[str, Any]]
"""From a question and the model's weights to the fields of the answer to a plain loss question."""


def keys_reply(message: Message, context: Context) -> RecordDict:
    """Return a client's fresh public keys for this run."""
    secure_wire.decode_keys_query(message.content)
    # A setting that is wrong is said before anybody counts on the client.
    if is_private(context.node_config):
        raise RefusedError(
            f"a client with a {PRIVACY_KEY} takes no part in a secure histogram: the sum that is seen has no noise"
        )
    _least(context), histogram.needs_complete_graph(context.node_config)
    part_of(context, message.metadata.run_id, awaits=None)
    part = histogram.begun(message.metadata.run_id)
    keep(context, part)
    return secure_wire.encode_keys_answer(KeysAnswer(**_identity(context), keys=part.secrets.public))


def shares_reply(message: Message, context: Context) -> RecordDict:
    """Return the client's encrypted shares for its neighbours."""
    query = secure_wire.decode_shares_query(message.content)
    needs_complete = histogram.needs_complete_graph(context.node_config)
    before = _part(message, context, histogram.SHARES)
    part, sent = histogram.shared(before, query, **_least(context), needs_complete=needs_complete)
    keep(context, part)
    return secure_wire.encode_shares_answer(SharesAnswer(**_identity(context), sent=sent))


def histogram_reply(message: Message, context: Context, numbers: Numbers) -> RecordDict:
    """Return the client's histogram under masks.

    The part moves on before anything is computed: whatever happens then, these masks hide one vector at most.
    """
    query, received, arrays = secure_wire.decode_histogram_query(message.content)
    identity, model_hash = _identity(context), wire.model_hash(arrays)
    question = query.digest(version=wire.PROTOCOL_VERSION, model_hash=model_hash, code_hash=identity["code_hash"])
    before = _part(message, context, histogram.HISTOGRAM)
    part, unopened = histogram.holding(before, received, question=question, **_least(context))
    keep(context, part)
    found = numbers(replace(query, company=part.company), arrays)
    # Only now, when it has been counted: to refuse for free would let a server try numbers.
    histogram.check_own_size(query, found["num_examples"])
    vector = histogram.own_vector(query, found["risk"], found["num_examples"], binary=get_loss(query.loss).binary)
    answer = MaskedAnswer(
        **identity, loss=query.loss, model_hash=model_hash, vector=histogram.hidden(part, vector), unopened=unopened
    )
    return secure_wire.encode_masked_answer(answer)


def consistency_reply(message: Message, context: Context) -> RecordDict:
    """Return what confirms to the client's neighbours who is in the sum."""
    lists = secure_wire.decode_consistency_query(message.content)
    part, macs = histogram.confirmed(_part(message, context, histogram.CONSISTENCY), lists, **_least(context))
    keep(context, part)
    answer = ConsistencyAnswer(**_identity(context), numbers=tuple(macs), macs=tuple(macs.values()))
    return secure_wire.encode_consistency_answer(answer)


def unmask_reply(message: Message, context: Context) -> RecordDict:
    """Return the client's shares of the seeds or keys of its neighbours, and forget every secret."""
    query = secure_wire.decode_unmask_query(message.content)
    part, seeds, keys = histogram.revealed(_part(message, context, histogram.UNMASK), query)
    keep(context, part)
    answer = UnmaskAnswer(**_identity(context), seed_shares=tuple(seeds), key_shares=tuple(keys))
    return secure_wire.encode_unmask_answer(answer)


def _part(message: Message, context: Context, awaits: str) -> histogram.Part:
    part = part_of(context, message.metadata.run_id, awaits=awaits)
    assert part is not None
    claim(context.node_config, part)
    return part


def _least(context: Context) -> dict[str, int]:
    return {"min_clients": histogram.min_clients_of(context.node_config)}


def _identity(context: Context) -> dict[str, Any]:
    return {"client_id": client_id(context.node_config), "code_hash": wire.code_hash()}
