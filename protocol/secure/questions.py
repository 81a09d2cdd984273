"""The questions and answers of a secure histogram, as plain data; `protocol.wire` puts them on the network.

Five rounds, each a question and its answer: `KeysQuery`, `SharesQuery`, `MaskedQuery`, `ConsistencyQuery`,
`UnmaskQuery`. To each other, participants are numbers. Nothing that was decoded is believed: the rules that a client
holds a server to are in `client.secure.part`, and the server's in `strategies.secure.secure_sum`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from itertools import pairwise

from protocol.questions import LossQuery, SignedAnswer, check_columns
from protocol.secure.cryptography import PublicKeys, digest

MAX_BINS = 10_000


@dataclass(frozen=True, kw_only=True)
class HistogramQuery(LossQuery):
    """The question "in which bin is this model's mean loss on your examples?", to be answered under masks.

    Raises ValueError if edges do not increase from 0 to 1 or are too many, not exactly one of the other two is given,
    it is out of range, or noise is asked for: nothing but the sum is seen of a masked number.
    """

    edges: tuple[float, ...]  # of the bins, increasing from 0 to 1; see `riskband.HistogramRisks`
    # What every client has; a client with another number refuses. None: numbers are private, and each client bins its
    # limits too.
    num_examples: int | None = None
    eta: float | None = None  # error level of the limits, in (0, 0.5]; None where there is a `num_examples`

    def __post_init__(self) -> None:
        super().__post_init__()
        ends = self.edges[:1] + self.edges[-1:]
        is_grid = 2 <= len(self.edges) <= MAX_BINS + 1 and ends == (0.0, 1.0)
        if not is_grid or not all(a < b for a, b in pairwise(self.edges)):
            raise ValueError(f"edges must increase from 0 to 1, at most {MAX_BINS} bins, got {len(self.edges)} edges")
        if (self.num_examples is None) == (self.eta is None):
            raise ValueError("a histogram must have either num_examples or eta: known numbers of examples, or limits")
        if self.num_examples is not None and self.num_examples < 1:
            raise ValueError(f"num_examples must be at least 1, got {self.num_examples}")
        if self.eta is not None and not (math.isfinite(self.eta) and 0.0 < self.eta <= 0.5):
            raise ValueError(f"eta must be in (0, 0.5], got {self.eta}; it is the error level of one client's limit")
        if self.privacy:
            raise ValueError(f"privacy must be '' for a histogram, got {self.privacy!r}; ask for losses with noise")

    @property
    def num_rows(self) -> int:
        """Number of histograms: of measured risks, or of upper limits, lower limits and measured risks."""
        return 1 if self.eta is None else 3

    @property
    def num_values(self) -> int:
        """Length of the vector that answers."""
        return self.num_rows * (len(self.edges) - 1)

    def digest(self, *, version: int, model_hash: str, code_hash: str) -> bytes:
        """Return what identifies this question, the same for every client; masks depend on it."""
        return digest(version, asdict(self), model_hash, code_hash)


@dataclass(frozen=True)
class KeysQuery:
    """The question "which are your public keys for this histogram?"."""

    # If the sum of all is wrong, clients are asked again in groups of at least so many; 0: they are not.
    group_size: int = 0


@dataclass(frozen=True, kw_only=True)
class KeysAnswer(SignedAnswer):
    """A client's fresh public keys."""

    keys: PublicKeys  # for this histogram


@dataclass(frozen=True)
class SharesQuery:
    """The question "share your secrets among these"."""

    own: int  # the number of the client that is asked
    threshold: int  # how many shares are to give a secret
    members: dict[int, PublicKeys]  # the client's neighbours and itself, by number, in increasing order
    # Whether these are all participants, so that all are told the same list. If not, each has a list of its own.
    is_complete: bool


@dataclass(frozen=True)
class HeldShares:
    """Encrypted shares by number: of those a client sends to, or of those they come from."""

    numbers: tuple[int, ...]
    shares: tuple[bytes, ...]

    def __post_init__(self) -> None:
        check_columns("numbers", self.numbers, self.shares, numbers=self.numbers)


@dataclass(frozen=True, kw_only=True)
class SharesAnswer(SignedAnswer):
    """A client's shares for its neighbours, each encrypted for one of them."""

    sent: HeldShares


@dataclass(frozen=True)
class MaskedQuery:
    """The question for a histogram under masks, with the shares that neighbours sent to the client."""

    histogram: HistogramQuery
    held: HeldShares


@dataclass(frozen=True, kw_only=True)
class MaskedAnswer(SignedAnswer):
    """A client's histogram under masks; loss and model as in `protocol.questions.LossAnswer`."""

    loss: str
    model_hash: str
    vector: bytes  # `num_values` words of `protocol.secure.cryptography.WORD`
    unopened: tuple[int, ...] = ()  # neighbours whose shares did not open, so that the client shares no mask with them


@dataclass(frozen=True)
class ConsistencyQuery:
    """The question "confirm to your neighbours who is in the sum"."""

    # Of all participants that sent shares, in increasing order: those whose vectors are in the sum, and the others.
    survivors: tuple[int, ...]
    dropped: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ConsistencyAnswer(SignedAnswer):
    """What confirms the lists to neighbours, one for each of their numbers: `protocol.secure.cryptography.list_mac`."""

    numbers: tuple[int, ...]
    macs: tuple[bytes, ...]

    def __post_init__(self) -> None:
        check_columns("numbers", self.numbers, self.macs, numbers=self.numbers)


@dataclass(frozen=True)
class UnmaskQuery:
    """The question "give your shares", with the neighbours' confirmations of the lists, by their numbers."""

    macs: dict[int, bytes]


@dataclass(frozen=True, kw_only=True)
class UnmaskAnswer(SignedAnswer):
    """Shares of the seeds of survivors, and of the masking keys of the dropped; in increasing order of number."""

    seed_shares: tuple[bytes, ...]
    key_shares: tuple[bytes, ...]
