"""Questions to a client and its answers, as plain data. `protocol.wire` puts them on the network.

A question and its answer form a pair: `LossQuery` and `LossAnswer`, `AdversarialQuery` and `AdversarialAnswer`,
`CandidatesQuery` and `CandidatesAnswer`, `ComparisonQuery` and `ComparisonAnswer`, `HelloQuery` and `HelloAnswer`. What
an answer claims is not yet checked; only what is annotated is, when a record is read: `Name` and `NumLeft`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sized
from dataclasses import dataclass
from typing import Annotated

from protocol.mechanisms import MayBePrivate
from riskband.adversaries.problem import CurveNumbers, TransportProblem, checked_grid
from riskband.models.losses import get_loss

MAX_NAME_LENGTH = 100


def is_name(text: str) -> bool:
    """Return whether a text may name a client, a group or a candidate: 1 to 100 printable characters."""
    return 1 <= len(text) <= MAX_NAME_LENGTH and text.isprintable()


def check_name(key: str, text: str) -> None:
    """Raise ValueError unless a text `is_name`."""
    if not is_name(text):
        problem = f"{key} must be 1 to {MAX_NAME_LENGTH} printable characters, got {len(text)} characters"
        raise ValueError(f"{problem}; choose another")


def _check_left(key: str, number: int) -> None:
    if number < 0:
        raise ValueError(f"{key} must be at least 0, got {number}")


def _check_weight(key: str, weight: float) -> None:
    if not 0.0 < weight < math.inf:
        raise ValueError(f"{key} must be above 0 and finite, got {weight}")


Name = Annotated[str, check_name]
"""Of a client or a group."""
NumLeft = Annotated[int, _check_left]
"""Values of its query budget that a client will still answer."""


def check_columns(what: str, *columns: Sized, numbers: Collection[int] | None = None) -> None:
    """Raise ValueError unless columns are of one length, and numbers differ."""
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        raise ValueError(f"{what} must have one entry each, got {', '.join(map(str, lengths))} entries")
    if numbers is not None and len(set(numbers)) < len(numbers):
        raise ValueError(f"numbers of {what} must differ, and one is there twice")


@dataclass(frozen=True)
class LossQuery(MayBePrivate):
    """The question "what is this model's mean loss on your examples?"."""

    loss: str  # a name in `riskband.models.losses.LOSSES`
    model: str  # the architecture, a name that `protocol.models.build_model` knows
    x_shape: tuple[int, ...]  # shape of one example, such as ``(1, 8, 8)``
    num_classes: int  # number of classes the model tells apart
    # Noise that the client is to add, and what the answer spends: "laplace:EPSILON" or "gaussian:RHO" for all its
    # numbers together; "" for none. See docs/privacy.md.
    privacy: str = ""


@dataclass(frozen=True)
class LossAnswer:
    """One client's answer to a `LossQuery`; what it claims, not yet checked."""

    client_id: Name  # the client's stable name (Flower's node ids change with every run)
    risk: float  # mean loss on the client's examples; an honest one lies in [0, 1], unless it has noise
    num_examples: int  # how many examples the mean was taken over
    loss: str  # the loss that was computed
    # What computed it: `code_hash` and `model_hash` as seen by the client.
    code_hash: str
    model_hash: str
    group: Name | None = None  # the group that the client's owner put it into; None: in none
    # How the client was drawn, as its owner says; see `riskband.answers.design`.
    stratum: Name | None = None
    cluster: Name | None = None
    sampling_weight: Annotated[float, _check_weight] | None = None


@dataclass(frozen=True, kw_only=True)
class ModelAnswer:
    """What every further answer about a model says, beside numbers of the client's examples; see `LossAnswer`."""

    client_id: Name
    loss: str
    code_hash: str
    model_hash: str
    budget_left: NumLeft | None = None  # values that the client will still answer; None: no limit
    group: Name | None = None


@dataclass(frozen=True)
class AdversarialQuery(MayBePrivate):
    """The question "how large does the mean loss get when your examples move, at these budgets?"; see `LossQuery`.

    Raises ValueError if radii or multipliers are not finite, out of range or do not increase, or with privacy radii are
    not 0 alone or the model is smoothed.
    """

    model: str
    x_shape: tuple[int, ...]
    num_classes: int
    problem: TransportProblem  # which loss, where examples move, at what cost, and who moves them
    # Cost budgets, in units of the cost (for order 2: of the distance squared), increasing strictly from >= 0; any
    # number.
    radii: tuple[float, ...] = ()
    multipliers: tuple[float, ...] = ()  # prices of a unit of cost, increasing strictly from >= 0; any number
    privacy: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        # Any sequence is welcome; a query must be hashable, and two equal ones the same bytes.
        object.__setattr__(self, "radii", checked_grid("radii", self.radii))
        object.__setattr__(self, "multipliers", checked_grid("multipliers", self.multipliers))
        if self.privacy and self.problem.smoothing is not None:
            raise ValueError("with privacy there is no smoothing: equal examples of two clients would share its noise")
        if self.privacy and self.problem.free_distance > 0.0:
            raise ValueError("with privacy free_distance must be 0: the noisy answer at radius 0 is the plain risk")
        if self.privacy and self.radii != (0.0,):
            raise ValueError("with privacy radii must be 0 alone; the noise is added to the conjugates, at multipliers")

    @property
    def loss(self) -> str:
        """The loss of the problem."""
        return self.problem.loss

    @property
    def num_values(self) -> int:
        """See `LossQuery`; here the risk at the radius 0 and the conjugates, which is all that may have noise."""
        return 1 + len(self.multipliers)


@dataclass(frozen=True, kw_only=True)
class AdversarialAnswer(CurveNumbers, ModelAnswer):
    """One client's answer to an `AdversarialQuery`, as `LossAnswer`; what it claims, not yet checked."""


@dataclass(frozen=True)
class Candidate:
    """One of the models that are compared: a set of weights, and the loss that it is judged by."""

    name: str  # what the server calls it
    weights: int  # which of the sets of weights in the message, from 0
    loss: str  # As for `LossQuery`. A decision threshold is a loss too: "abstain:0.8".


@dataclass(frozen=True)
class CandidatesQuery(MayBePrivate):
    """The question "what is the mean loss of each of these candidates on your examples?"; see `LossQuery`.

    The candidates share one architecture.

    Raises ValueError if there is no candidate, two share a name, a loss has a comma, or a set of weights is left out.
    """

    model: str
    x_shape: tuple[int, ...]
    num_classes: int
    # In the order in which the answer gives their risks. Together they use the sets of weights 0, 1, …, all of them.
    candidates: tuple[Candidate, ...]
    privacy: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "candidates", tuple(self.candidates))
        names = [candidate.name for candidate in self.candidates]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"candidates must be one or more, with names that differ, got {len(names)}; rename them")
        used = {candidate.weights for candidate in self.candidates}
        if used != set(range(len(used))):
            raise ValueError(f"candidates must use sets of weights numbered 0, 1, …, got {sorted(used)}; renumber them")
        if any("," in candidate.loss for candidate in self.candidates):
            raise ValueError("the name of a candidate's loss must not hold a comma: they travel as one list")

    @property
    def loss(self) -> str:
        """The losses of the candidates in their order, separated by commas."""
        return ",".join(candidate.loss for candidate in self.candidates)

    @property
    def num_values(self) -> int:
        """See `LossQuery`."""
        return len(self.candidates)

    @property
    def num_weights(self) -> int:
        """Number of different sets of weights."""
        return len({candidate.weights for candidate in self.candidates})


@dataclass(frozen=True, kw_only=True)
class CandidatesAnswer(ModelAnswer):
    """One client's answer to a `CandidatesQuery`, as `LossAnswer`; what it claims, not yet checked.

    `loss` is that of the query, and `model_hash` that of all the sets of weights together, as they travelled.
    """

    # One per candidate: mean losses on the client's examples; honest ones lie in [0, 1], unless they have noise.
    risks: tuple[float, ...]
    num_examples: int


@dataclass(frozen=True)
class ComparisonQuery(MayBePrivate):
    """The question "on how many of your examples is a new model worse than an old one?"; see `LossQuery`.

    The two share one architecture. The weights in the message are those of the new model, as set 0, and unless
    `is_old_local` those of the old one, as set 1.

    Raises ValueError with privacy: how noise moves a change of the loss is not proved.
    """

    loss: str
    model: str
    x_shape: tuple[int, ...]
    num_classes: int
    is_old_local: bool = False  # whether the old model is the client's own, which never leaves it
    privacy: str = ""

    def __post_init__(self) -> None:
        if self.privacy:
            raise ValueError(f"a question about two models must have no noise, got {self.privacy!r:.40}; leave it out")

    @property
    def num_values(self) -> int:
        """See `LossQuery`; here the loss of both models, and if each is 0 or 1 how many examples got worse."""
        return 3 if get_loss(self.loss).binary else 2

    @property
    def num_weights(self) -> int:
        """Number of sets of weights in the message."""
        return 1 if self.is_old_local else 2


@dataclass(frozen=True, kw_only=True)
class ComparisonAnswer(ModelAnswer):
    """One client's answer to a `ComparisonQuery`, as `LossAnswer`; what it claims, not yet checked.

    `model_hash` is that of all the weights in the message together.
    """

    old_risk: float  # mean losses on the client's examples; honest ones lie in [0, 1]
    new_risk: float
    # How many examples only the new model gets wrong, which with the risks says how many only the old one does. None:
    # the loss is not 0 or 1.
    num_worse: int | None
    num_examples: int


@dataclass(frozen=True)
class HelloQuery:
    """The question "who are you, and what will you still answer?". It touches no examples and no model.

    `question` is what is to be asked, from `client.answer_record.asked_hash`, or "": has the client paid for it before?
    """

    question: str = ""


@dataclass(frozen=True)
class SignedAnswer:
    """An answer that says who gives it; see `LossAnswer`."""

    client_id: Name
    code_hash: str


@dataclass(frozen=True)
class HelloAnswer(SignedAnswer):
    """One client's answer to a `HelloQuery`, which spends nothing of its query budget."""

    budget_left: NumLeft | None = None  # values that the client will still answer; None: no limit
    # Whether its own record says so: an answer to the question is then free, unless its examples have changed since.
    on_record: bool = False


Query = LossQuery | AdversarialQuery | CandidatesQuery | ComparisonQuery
Answer = LossAnswer | AdversarialAnswer | CandidatesAnswer | ComparisonAnswer
