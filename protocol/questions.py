"""Questions to a client and its answers, as plain data. `protocol.wire` puts them on the network.

A question and its answer form a pair: `LossQuery` and `LossAnswer`, `AdversarialQuery` and `AdversarialAnswer`,
`CandidatesQuery` and `CandidatesAnswer`, `HelloQuery` and `HelloAnswer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.noise import MayBePrivate
from riskband.adversaries.problem import TransportProblem, checked_grid


@dataclass(frozen=True)
class LossQuery(MayBePrivate):
    """The question "what is this model's mean loss on your examples?".

    Attributes
    ----------
    loss : str
        A name in `riskband.adversaries.losses.LOSSES`.
    model : str
        The architecture, a name that `protocol.models.build_model` knows.
    x_shape : tuple of int
        Shape of one example, such as ``(1, 8, 8)``.
    num_classes : int
        Number of classes the model tells apart.
    privacy : str
        Noise that the client is to add, and what the answer spends: "laplace:EPSILON" or "gaussian:RHO" for all its
        numbers together; "" for none. See docs/privacy.md.
    """

    loss: str
    model: str
    x_shape: tuple[int, ...]
    num_classes: int
    privacy: str = ""


@dataclass(frozen=True)
class LossAnswer:
    """One client's answer to a `LossQuery`; what it claims, not yet checked.

    Attributes
    ----------
    client_id : str
        The client's stable name (Flower's node ids change with every run).
    risk : float
        Mean loss on the client's examples; an honest one lies in [0, 1], unless it has noise.
    num_examples : int
        How many examples the mean was taken over.
    loss : str
        The loss that was computed.
    code_hash, model_hash : str
        What computed it: `code_hash` and `model_hash` as seen by the client.
    group : str or None
        The group that the client's owner put it into; None: in none.
    """

    client_id: str
    risk: float
    num_examples: int
    loss: str
    code_hash: str
    model_hash: str
    group: str | None = None


@dataclass(frozen=True)
class AdversarialQuery(MayBePrivate):
    """The question "how large does the mean loss get when your examples move, at these budgets?".

    Attributes
    ----------
    model, x_shape, num_classes, privacy :
        See `LossQuery`.
    problem : TransportProblem
        Which loss, where examples move, at what cost, and who moves them.
    radii : tuple of float
        Cost budgets, in units of the cost (for order 2: of the distance squared), increasing strictly from >= 0; any
        number.
    multipliers : tuple of float
        Prices of a unit of cost, increasing strictly from >= 0; any number.

    Raises
    ------
    ValueError
        If radii or multipliers are not finite, out of range or do not increase, or with privacy radii are not 0 alone.
    """

    model: str
    x_shape: tuple[int, ...]
    num_classes: int
    problem: TransportProblem
    radii: tuple[float, ...] = ()
    multipliers: tuple[float, ...] = ()
    privacy: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        # Any sequence is welcome; a query must be hashable, and two equal ones the same bytes.
        object.__setattr__(self, "radii", checked_grid("radii", self.radii))
        object.__setattr__(self, "multipliers", checked_grid("multipliers", self.multipliers))
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


@dataclass(frozen=True)
class AdversarialAnswer:
    """One client's answer to an `AdversarialQuery`; what it claims, not yet checked.

    Attributes
    ----------
    client_id, num_examples, loss, code_hash, model_hash, group :
        See `LossAnswer`.
    clean_risk : float
        Mean loss without any movement, what a `LossQuery` is answered with.
    values_lower, values_upper : tuple of float, one per radius
        Bounds of the client's adversarial risk; equal if the guarantee is "exact".
    conjugates_lower, conjugates_upper : tuple of float, one per multiplier
        Bounds of the mean over examples of the supremum of loss - multiplier * cost.
    adversarial_unit : float
        Mean cost of the cheapest misclassified point, in units of the cost; 0 if no movement misclassifies anything.
    guarantee : str
        What the upper bounds are: "exact", "upper" (proven) or "lower" (only the lower bounds mean something).
    budget_left : int or None
        Values that the client will still answer; None: no limit.
    num_without_gradient : int or None
        Examples at which the model showed the attack no gradient to follow: lower bounds say little of them. None: no
        attack, one that needs no gradients, or an answer with noise.
    """

    client_id: str
    num_examples: int
    loss: str
    clean_risk: float
    values_lower: tuple[float, ...]
    values_upper: tuple[float, ...]
    conjugates_lower: tuple[float, ...]
    conjugates_upper: tuple[float, ...]
    adversarial_unit: float
    guarantee: str
    code_hash: str
    model_hash: str
    budget_left: int | None = None
    group: str | None = None
    num_without_gradient: int | None = None


@dataclass(frozen=True)
class Candidate:
    """One of the models that are compared: a set of weights, and the loss that it is judged by.

    Attributes
    ----------
    name : str
        What the server calls it.
    weights : int
        Which of the sets of weights in the message, from 0.
    loss : str
        As for `LossQuery`. A decision threshold is a loss too: "abstain:0.8".
    """

    name: str
    weights: int
    loss: str


@dataclass(frozen=True)
class CandidatesQuery(MayBePrivate):
    """The question "what is the mean loss of each of these candidates on your examples?".

    Attributes
    ----------
    model, x_shape, num_classes, privacy :
        See `LossQuery`; the candidates share one architecture.
    candidates : tuple of Candidate
        In the order in which the answer gives their risks. Together they use the sets of weights 0, 1, …, all of them.

    Raises
    ------
    ValueError
        If there is no candidate, two share a name, a loss has a comma, or a set of weights is left out.
    """

    model: str
    x_shape: tuple[int, ...]
    num_classes: int
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


def candidates_of(names: Sequence[str], weights: Sequence[int], losses: Sequence[str]) -> tuple[Candidate, ...]:
    """Return candidates from their columns; raises ValueError if these differ in length."""
    if not len(names) == len(weights) == len(losses):
        raise ValueError(
            f"every candidate must have a name, weights and a loss, got {len(names)}, {len(weights)} and {len(losses)}"
        )
    return tuple(map(Candidate, names, weights, losses))


@dataclass(frozen=True)
class CandidatesAnswer:
    """One client's answer to a `CandidatesQuery`; what it claims, not yet checked.

    Attributes
    ----------
    client_id, num_examples, code_hash, group :
        See `LossAnswer`.
    risks : tuple of float, one per candidate
        Mean losses on the client's examples; honest ones lie in [0, 1], unless they have noise.
    loss : str
        The losses that were computed, as `CandidatesQuery.loss`.
    model_hash : str
        Of all the sets of weights together, as they travelled.
    budget_left : int or None
        Values that the client will still answer; None: no limit.
    """

    client_id: str
    risks: tuple[float, ...]
    num_examples: int
    loss: str
    code_hash: str
    model_hash: str
    budget_left: int | None = None
    group: str | None = None


@dataclass(frozen=True)
class HelloQuery:
    """The question "who are you, and what will you still answer?". It touches no examples and no model.

    `question` is what is to be asked, from `client.answer_record.asked_hash`, or "": has the client paid for it before?
    """

    question: str = ""


@dataclass(frozen=True)
class HelloAnswer:
    """One client's answer to a `HelloQuery`, which spends nothing of its query budget.

    Attributes
    ----------
    client_id, code_hash :
        See `LossAnswer`.
    budget_left : int or None
        Values that the client will still answer; None: no limit.
    on_record : bool
        Whether its own record says so: an answer to the question is then free, unless its examples have changed since.
    """

    client_id: str
    code_hash: str
    budget_left: int | None = None
    on_record: bool = False


Query = LossQuery | AdversarialQuery | CandidatesQuery
Answer = LossAnswer | AdversarialAnswer | CandidatesAnswer
