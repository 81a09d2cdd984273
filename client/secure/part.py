"""A client's part in a secure histogram: five steps, and what a client refuses a server in each.

Plain functions from one state, the part that awaits the step, to the next; `client.secure.state` keeps it. A client
takes part in this order, or not at all: a second vector under the same masks would show the difference of the two. If
the sum of all was wrong, it takes part once more in the same run, in a group, with new secrets.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from protocol.secure.cryptography import (
    SEED_BYTES,
    WORD,
    PublicKeys,
    Secrets,
    digest,
    digest_of_members,
    list_mac,
    masked,
    opened,
    sealed,
    shares_of,
    threshold_of,
)
from protocol.secure.questions import ConsistencyQuery, HeldShares, HistogramQuery, KeysQuery, SharesQuery, UnmaskQuery
from riskband.checks import RefusedError

MIN_CLIENTS_KEY = "secure-min-clients"
DEFAULT_MIN_CLIENTS = 10
SMALLEST_MIN_CLIENTS = 3
"""With two, each of them would know the other's bin from the sum."""

COMPLETE_KEY = "secure-complete-graph"
"""Whether the owner insists on having all participants as neighbours."""

MAX_HISTOGRAMS = 2
"""In one run: of all, and of a group."""

SHARES, HISTOGRAM, CONSISTENCY, UNMASK, OVER = "shares", "histogram", "consistency", "unmask", "over"
"""What a client waits for."""


@dataclass(frozen=True, kw_only=True)
class HistogramAmong(HistogramQuery):
    """The question for a histogram as the client's budget and record know it."""

    # Hash of whom the client's masks are shared with, as it sees it. Among others it is another question: the
    # difference of two sums shows who is in one only.
    partners: str


@dataclass(frozen=True, repr=False)
class Part:
    """A client's part in one run, between two steps; no text shows it."""

    run_id: str  # Flower's number of the run, unsigned of 64 bits
    awaits: str  # the only question that may come next
    secrets: Secrets  # the client's own; empty once it is over
    number: int = 1  # which histogram of the run this is
    # The client's number, and how many shares give a secret.
    own: int = 0
    threshold: int = 0
    members: dict[int, PublicKeys] = field(default_factory=dict)  # the client's neighbours and itself, by number
    is_complete: bool = False  # whether the members are said to be all participants
    # Shares of the members whose shares opened, the client's own among them.
    held: dict[int, bytes] = field(default_factory=dict)
    question: bytes = b""  # hash of what the client's vector answers
    # Who is in the sum, as the client has confirmed it.
    lists: ConsistencyQuery = field(default_factory=lambda: ConsistencyQuery((), ()))

    @property
    def group(self) -> bytes:
        """What shares and confirmations are bound to: where all are neighbours, the one list that all must have."""
        return digest_of_members(self.members) if self.is_complete else digest("neighbourhoods")

    @property
    def partners(self) -> str:
        """Hash of the members that the client's masks are shared with."""
        return digest_of_members({number: self.members[number] for number in self.held}).hex()


def min_clients_of(config: Mapping[str, Any]) -> int:
    """Return of how many clients at least a server may learn the sum, by the node config: ``secure-min-clients``.

    Raises ValueError if it is no whole number of at least `SMALLEST_MIN_CLIENTS`.
    """
    least = config.get(MIN_CLIENTS_KEY, DEFAULT_MIN_CLIENTS)
    if type(least) is not int or least < SMALLEST_MIN_CLIENTS:
        raise RefusedError(f"{MIN_CLIENTS_KEY} must be a whole number of at least {SMALLEST_MIN_CLIENTS}; set another")
    return least


def needs_complete_graph(config: Mapping[str, Any]) -> bool:
    """Return whether a client takes part only with all participants as neighbours: ``secure-complete-graph``."""
    return flag_of(config, COMPLETE_KEY, default=False)


def flag_of(config: Mapping[str, Any], key: str, *, default: bool) -> bool:
    """Return what a node config says under a key; raises ValueError if it is neither true nor false."""
    value = config.get(key, default)
    if type(value) is not bool:
        raise RefusedError(f"{key} must be true or false, got {type(value).__name__}")
    return value


def begun(run_id: int, *, number: int = 1) -> Part:
    """Return a new part with fresh secrets, in the histogram of this number in the run."""
    return Part(str(run_id), SHARES, Secrets.fresh(), number)


def shared(
    part: Part,
    query: SharesQuery,
    *,
    min_clients: int,
    needs_complete: bool = False,
    trusted: frozenset[bytes] | None = None,
) -> tuple[Part, HeldShares]:
    """Share the client's secrets among its neighbours; return the part afterwards, and the shares by recipient.

    The limits are those of `min_clients_of`, `needs_complete_graph` and `client.secure.trust.trusted_keys`.

    Raises ValueError if there are too few members, the client is not among them under its own keys, a key is there
    twice, numbers do not increase, the threshold is not that of `threshold_of`, all participants are needed and these
    are not all, or not each has its keys signed by a trusted one of its own.
    """
    if needs_complete and not query.is_complete:
        raise RefusedError(
            f"all participants must be neighbours of this client ({COMPLETE_KEY} of its own config); ask with more "
            "neighbours, or without it"
        )
    members = query.members
    require_enough(members, least=min_clients)
    if any(after <= before for before, after in pairwise(members)):
        raise RefusedError("numbers of members must increase")
    if members.get(query.own) != part.secrets.public:
        raise RefusedError("the client must be among the members, under the keys that it sent")
    keys = [key for both in members.values() for key in (both.encryption, both.masking)]
    if len(set(keys)) < len(keys):
        raise RefusedError("all keys of members must differ; one is there twice")
    if trusted is not None:
        _require_trusted(members, trusted, run_id=part.run_id)
    if query.threshold != threshold_of(len(members)):
        raise RefusedError(
            f"the threshold of {len(members)} members must be {threshold_of(len(members))}, got {query.threshold}"
        )
    shares = shares_of(part.secrets, list(members), threshold=query.threshold)
    told: dict[str, Any] = {"own": query.own, "threshold": query.threshold, "is_complete": query.is_complete}
    after = replace(part, awaits=HISTOGRAM, members=dict(members), held={query.own: shares[query.own]}, **told)
    sent = {
        number: sealed(shares[number], part.secrets, members[number], route=(query.own, number), group=after.group)
        for number in members
        if number != query.own
    }
    return after, HeldShares(tuple(sent), tuple(sent.values()))


def holding(part: Part, received: HeldShares, *, question: bytes, min_clients: int) -> tuple[Part, tuple[int, ...]]:
    """Take the shares that neighbours sent. The part that comes back has to be kept before any vector is masked.

    Returns the part afterwards, and the senders whose shares do not open with their keys: no mask is shared with them.
    The question is the hash of what the vector is to answer: `HistogramQuery.digest`. Raises ValueError if a sender is
    no member, or the shares of too few open.
    """
    if not set(received.numbers) <= part.members.keys() - {part.own}:
        raise RefusedError("shares must come from members, and one does not")
    held, unopened = dict(part.held), []
    for number, share in zip(received.numbers, received.shares, strict=True):
        try:
            held[number] = opened(share, part.secrets, part.members[number], route=(number, part.own), group=part.group)
        except RefusedError:
            unopened.append(number)
    require_enough(held, least=max(min_clients, part.threshold))
    return replace(part, awaits=CONSISTENCY, held=held, question=question), tuple(unopened)


def hidden(part: Part, vector: np.ndarray) -> bytes:
    """Return a vector of counts under the client's masks, as bytes; the part must be that which `holding` returned."""
    neighbours = {number: part.members[number] for number in part.held if number != part.own}
    return masked(
        vector.astype(WORD), part.secrets, own=part.own, neighbours=neighbours, question=part.question
    ).tobytes()


def confirmed(part: Part, lists: ConsistencyQuery, *, min_clients: int) -> tuple[Part, dict[int, bytes]]:
    """Confirm to the neighbours in the sum who is in it; a client confirms once, and unmasks by what it confirmed.

    Returns the part afterwards, and what confirms the lists to each neighbour.

    Raises ValueError if a number is there twice, a member whose shares the client holds is missing, another member is a
    survivor, the client itself is none, or too few of those whose shares it holds are.
    """
    survivors, held = set(lists.survivors), part.held.keys()
    everybody = [*lists.survivors, *lists.dropped]
    if len(set(everybody)) < len(everybody):
        raise RefusedError("each participant must be listed once, as a survivor or as dropped")
    if not held <= set(everybody):
        raise RefusedError("all members whose shares the client holds must be listed, as survivors or as dropped")
    if survivors & part.members.keys() - held:
        raise RefusedError("only members whose shares the client holds must be survivors: it has no mask with others")
    if part.own not in survivors:
        raise RefusedError("a client that is asked to unmask must be among the survivors: its vector was sent")
    require_enough(survivors & held, least=max(min_clients, part.threshold))
    after = replace(part, awaits=UNMASK, lists=lists)
    return after, {number: _mac(after, own=True, other=number) for number in sorted(survivors & held - {part.own})}


def revealed(part: Part, query: UnmaskQuery) -> tuple[Part, list[bytes], list[bytes]]:
    """Give the shares of the seeds of those whose vectors arrived, and of the masking keys of those whose did not.

    Returns the part afterwards, without any secret; and the shares, in increasing order of number.

    Raises ValueError if fewer members than the threshold, the client itself among them, have confirmed the lists that
    it confirmed.
    """
    survivors = sorted(part.held.keys() & set(part.lists.survivors))
    dropped = sorted(part.held.keys() & set(part.lists.dropped))
    others = query.macs.keys() & set(survivors) - {part.own}
    num_same = 1 + sum(
        hmac.compare_digest(query.macs[number], _mac(part, own=False, other=number)) for number in others
    )
    if num_same < part.threshold:
        raise RefusedError(
            f"at least {part.threshold} members must have confirmed the same lists as this client, got {num_same}; "
            "the server told different clients different lists, or questions"
        )
    seeds = [part.held[number][:SEED_BYTES] for number in survivors]
    keys = [part.held[number][SEED_BYTES:] for number in dropped]
    return Part(part.run_id, OVER, Secrets(b"", b"", b""), part.number), seeds, keys


def _mac(part: Part, *, own: bool, other: int) -> bytes:
    """What confirms the part's lists: the client's own to another member, or the other's to the client."""
    route = (part.own, other) if own else (other, part.own)
    about = digest(part.group.hex(), part.question.hex(), part.lists.survivors, part.lists.dropped)
    return list_mac(part.secrets, part.members[other], route=route, about=about)


def require_large_groups(query: KeysQuery, *, min_clients: int) -> None:
    """Raise ValueError if clients may be asked again in groups that are too small for this one.

    It is too late to refuse then: the sum of all less those of the other groups is that of its own.
    """
    if 0 < query.group_size < min_clients:
        raise RefusedError(
            f"groups that are asked again must have at least {min_clients} clients, got {query.group_size} "
            f"({MIN_CLIENTS_KEY} of the client's own config); set secure-group-size to that, or to 0 for no groups"
        )


def require_enough(members: Collection[int], *, least: int) -> None:
    """Raise ValueError if so few clients take part that this one does not."""
    if len(members) < least:
        raise RefusedError(
            f"at least {least} clients must take part, got {len(members)}; a sum of fewer says too much about each "
            f"({MIN_CLIENTS_KEY} of the client's own config, or the threshold)"
        )


def _require_trusted(members: Mapping[int, PublicKeys], trusted: frozenset[bytes], *, run_id: str) -> None:
    """Raise ValueError unless the keys of each member are signed, for this run, by a trusted key of its own."""
    doubtful = [n for n, keys in members.items() if keys.signer not in trusted or not keys.is_signed(run_id=run_id)]
    if doubtful:
        raise RefusedError(
            "all participants must have keys signed by those that this client's owner lists, and "
            f"{len(doubtful)} have not, the first being number {doubtful[0]} in the order of names: list or remove it"
        )
    if len({keys.signer for keys in members.values()}) < len(members):
        raise RefusedError("a listed key must sign for one participant, and one does for two")


def check_own_size(query: HistogramQuery, num_examples: int) -> None:
    """Raise ValueError unless a client's number of examples is the one that is asked for, if any is."""
    if query.num_examples not in (None, num_examples):
        raise RefusedError(
            f"this histogram is of clients with {query.num_examples} examples, and this one has another number; ask "
            "with private numbers of examples"
        )


def own_vector(query: HistogramQuery, risk: float, num_examples: int, *, binary: bool) -> np.ndarray:
    """Return one client's own histograms, one after the other, shape (query.num_values,)."""
    # Imported here: it loads riskband, seconds that a process for one plain loss should not pay.
    from riskband.answers.histogram import risk_histogram

    return risk_histogram([risk], num_examples, edges=query.edges, binary=binary, eta=query.eta).ravel()
