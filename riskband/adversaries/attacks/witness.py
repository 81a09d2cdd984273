"""The model as an attack on inputs sees it: every input it is shown is kept in the box, measured, and counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from functools import cached_property

import torch
from torch import Tensor, nn

from riskband.adversaries.base import Batch
from riskband.adversaries.curves import Points
from riskband.adversaries.norms import DUALS, lengths, project
from riskband.adversaries.problem import TransportProblem
from riskband.adversaries.representation.growth import GROWTHS
from riskband.checks import RefusedError
from riskband.models.evaluation import computed
from riskband.models.losses import get_loss

Objective = Callable[[Tensor, Tensor], Tensor]
"""(logits (num_rows, num_classes), labels (num_rows,)) -> what to raise, (num_rows,)."""

# Classes that an attack aims at, the likeliest ones first; all of them up to ten classes.
_MAX_RIVALS = 9
_NUM_SHORTENINGS = 10
# Beyond the root of a margin, so that its sign is seen in single precision.
_OVERSHOOT = 1e-6
# A slope has vanished if following it as far as an input may go gives less than this share of what is missing: no more
# than single precision leaves of a margin.
_VANISHED = 1e-6


def wrong_margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the largest wrong logit less the label's: an objective that keeps its slope everywhere."""
    label = labels[:, None]
    return logits.scatter(1, label, -math.inf).amax(dim=1) - logits.gather(1, label).squeeze(1)


def log_odds(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the log-odds of being wrong: ordered as the cross-entropy, and its slope does not fade where that is 0."""
    label = labels[:, None]
    return logits.scatter(1, label, -math.inf).logsumexp(dim=1) - logits.gather(1, label).squeeze(1)


def logits_ratio(logits: Tensor, labels: Tensor) -> Tensor:
    """Return `wrong_margin` over the largest logit less the third: the DLR loss, the same if all logits are scaled.

    The difference of logits ratio (Croce and Hein 2020, equation 6). Its sign is that of the margin. Raises
    RefusedError if there are fewer than three classes.
    """
    return _over_spread(wrong_margin(logits, labels), logits, _spread_ranks(logits)[:1])


def margin_of(rivals: Tensor, level: float = 0.0) -> Objective:
    """Return the objective "logit of the rival less that of the label and the level", rivals being (num_rows,)."""

    def margin(logits: Tensor, labels: Tensor) -> Tensor:
        return (logits.gather(1, rivals[:, None]) - logits.gather(1, labels[:, None])).squeeze(1) - level

    return margin


def logits_ratio_of(rivals: Tensor) -> Objective:
    """Return the targeted DLR loss (equation 7): `margin_of` the rivals over a spread of the largest logits.

    The spread is the largest logit less the mean of the third and the fourth; less the third if there is no fourth.
    The objective raises RefusedError if there are fewer than three classes.
    """
    margin = margin_of(rivals)
    return lambda logits, labels: _over_spread(margin(logits, labels), logits, _spread_ranks(logits))


def _spread_ranks(logits: Tensor) -> list[int]:
    num_classes = logits.shape[1]
    if num_classes < 3:
        raise RefusedError(f"a DLR objective needs a model with at least 3 classes, got {num_classes}; use the margin")
    return [2, 3] if num_classes > 3 else [2]


def _over_spread(margins: Tensor, logits: Tensor, ranks: list[int]) -> Tensor:
    largest = logits.topk(ranks[-1] + 1, dim=1).values
    spread = largest[:, 0] - largest[:, ranks].mean(dim=1)
    return torch.where(spread > 0.0, margins / spread, 0.0)


OBJECTIVES: dict[str, Objective] = {"margin": wrong_margin, "cross_entropy": log_odds, "dlr": logits_ratio}
"""What attacks raise, by name."""
TARGETED_OBJECTIVES: dict[str, Callable[[Tensor], Objective]] = {
    "targeted_margin": margin_of,
    "targeted_dlr": logits_ratio_of,
}
"""What attacks that aim at one rival of each example raise, by name: (rivals (num_rows,)) -> the objective."""


class Witness:
    """A batch of examples, as vectors, and a model that remembers what it was shown.

    Calling it with inputs returns logits. Inputs are cut to the box first. Each one counts as a point that the
    adversary attains: its cost is its measured distance from its example to the power of the order. Raises RefusedError
    if an example lies outside the box. The model is differentiable in its inputs, in eval mode; loss, cost and box are
    the problem's.

    `x` are the examples, (num_examples, num_features), and `closest` of each the nearest misclassified input that was
    shown, itself if there was none. `distances`, float64 (num_examples,), lead from the example there, `inf` if there
    was none. `highest` is the largest `wrong_margin` of the example and of what was shown: how near a misclassification
    it came. `is_misled`, (num_examples,), is for attacks to say where following gradients led astray.
    """

    highest: Tensor
    is_misled: Tensor

    def __init__(self, model: nn.Module, batch: Batch, problem: TransportProblem) -> None:
        self.model, self.labels, self.logits = model, batch.labels, batch.logits
        self.costs, self.norm, self.box = problem.costs, problem.norm, problem.box
        self.x_shape = batch.x.shape[1:]
        self.x = batch.x.flatten(start_dim=1)
        if (box := self.box) is not None and bool(((self.x < box[0]) | (self.x > box[1])).any()):
            raise RefusedError(
                f"every entry of the examples must lie in the box [{box[0]:g}, {box[1]:g}], and some do not; "
                "give the range of the model's inputs, or no box"
            )
        self._loss = get_loss(problem.loss)
        self.losses, self.is_misled = batch.losses, torch.zeros(len(batch.labels), dtype=torch.bool)
        self._is_flipped = problem.loss == "zero_one"
        self._forget()

    def __call__(self, points: Tensor) -> Tensor:
        """Return logits, float64, of any number of inputs for each example, (..., num_examples, num_features).

        They are cut to the box. Raises RuntimeError if they have another shape or are not finite: the attack is wrong.
        """
        if points.shape[-2:] != self.x.shape or not bool(torch.isfinite(points).all()):
            raise RuntimeError("an attack must show finite inputs, a row of features for every example of its batch")
        shown = points if self.box is None else points.clamp(*self.box)
        logits = self._evaluated(shown).double()
        if logits.shape != (shown.shape[:-1].numel(), self.logits.shape[1]):
            raise RefusedError("the model must return one row of logits per input, for every number of inputs")
        logits = logits.reshape(*shown.shape[:-1], -1)
        self._note(shown.detach(), logits.detach())
        return logits

    def climb(self, points: Tensor, objective: Objective) -> tuple[Tensor, Tensor]:
        """Return an objective at inputs and its gradients, shapes (..., num_examples) and that of the inputs.

        Raises RefusedError if the model is not differentiable in its inputs.
        """
        points = points.detach().requires_grad_()
        with torch.enable_grad():
            values = self._each(objective, self(points))
            return values.detach(), self._gradient(values, points, keep=False)

    def rival_slopes(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return margins of the `rivals` over the label at one input for each example, and their gradients.

        Shapes (num_rivals, num_examples) and (num_rivals, num_examples, num_features).
        """
        points = points.detach().requires_grad_()
        with torch.enable_grad():
            logits = self(points)
            margins = logits.gather(1, self.rivals.T).T - logits.gather(1, self.labels[:, None]).T
            gradients = [self._gradient(margin, points, keep=True) for margin in margins]
        return margins.detach(), torch.stack(gradients)

    @cached_property
    def rivals(self) -> Tensor:
        """The wrong classes with the largest logits at the example, shape (num_rivals, num_examples)."""
        num_rivals = min(self.logits.shape[1] - 1, _MAX_RIVALS)
        return self.logits.scatter(1, self.labels[:, None], -math.inf).topk(num_rivals, dim=1).indices.T

    @cached_property
    def start(self) -> tuple[Tensor, Tensor]:
        """`rival_slopes` at the examples."""
        return self.rival_slopes(self.x)

    @cached_property
    def is_differentiable(self) -> bool:
        """Whether the model has gradients in its inputs at all, even if they are 0."""
        with torch.enable_grad():
            return self._evaluated(self.x[:1].detach().requires_grad_()).requires_grad

    @cached_property
    def is_blind(self) -> Tensor:
        """Where no attack can follow a gradient, shape (num_examples,).

        At the example, the slope of the margin is 0 or has vanished, and its loss has not saturated. Rounded inputs,
        saturated units and detached layers do this; it says nothing of how near a misclassified input is.
        """
        if not self.is_differentiable:
            margins, speeds = wrong_margin(self.logits, self.labels), torch.zeros_like(self.distances)
        else:
            margins, slopes = self.climb(self.x, wrong_margin)
            speeds = lengths(slopes, DUALS[self.norm])
        missing = self.level - margins
        return (missing > 0.0) & (speeds * self.reach <= _VANISHED * missing)

    @cached_property
    def reach(self) -> Tensor:
        """How far inputs may be from an example, shape (num_examples,): across the box; without one, 1 + its length."""
        if self.box is None:
            return 1.0 + lengths(self.x, self.norm)
        diagonal = lengths(torch.full_like(self.x[:1], self.box[1] - self.box[0]), self.norm)
        return diagonal.expand(len(self.x))

    @property
    def level(self) -> float:
        """The margin from which on the loss counts as 1, or nearly: 0 for the 0-1 loss."""
        return GROWTHS[self._loss.name].saturation if self._loss.name in GROWTHS else 0.0

    def linear_distances(self, level: float) -> Tensor:
        """Return where each rival's margin would reach a level if the model were linear, (num_rivals, num_examples)."""
        margins, gradients = self.start
        speeds = lengths(gradients, DUALS[self.norm])
        return torch.where(speeds > 0.0, (level - margins).clamp(min=0.0) / speeds, math.inf)

    @cached_property
    def units(self) -> Tensor:
        """The distance at which a linear model's loss would saturate, shape (num_examples,); 0 where it never does."""
        nearest = self.linear_distances(self.level).amin(dim=0)
        return torch.where(torch.isfinite(nearest), nearest, 0.0)

    def margins(self, logits: Tensor) -> Tensor:
        """Return `wrong_margin` of logits of inputs, shape (..., num_examples)."""
        return self._each(wrong_margin, logits)

    def low(self, points: Tensor) -> Tensor:
        """How far down the box lets each entry move, at most 0, broadcastable to the points' shape."""
        return torch.full((1,), -math.inf) if self.box is None else (self.box[0] - points).clamp(max=0.0)

    def high(self, points: Tensor) -> Tensor:
        """How far up the box lets each entry move, at least 0."""
        return torch.full((1,), math.inf) if self.box is None else (self.box[1] - points).clamp(min=0.0)

    def room(self, moves: Tensor) -> Tensor:
        """How far the box lets each example move towards the signs of the moves, at least 0."""
        return torch.where(moves > 0.0, self.high(self.x), -self.low(self.x))

    def inside(self, moves: Tensor) -> Tensor:
        """Return the moves cut to the box, same shape."""
        return moves.sign() * moves.abs().minimum(self.room(moves))

    def within(self, moves: Tensor, radii: Tensor) -> Tensor:
        """Return the moves cut to balls of these radii and to the box, same shape."""
        return project(moves, radii, self.norm, room=self.room(moves))

    def open_slopes(self, points: Tensor, gradients: Tensor) -> Tensor:
        """Return gradients without the entries along which the box lets no point move, same shape."""
        return torch.where(torch.where(gradients > 0.0, self.high(points), -self.low(points)) > 0.0, gradients, 0.0)

    def fresh(self) -> Witness:
        """Return a witness of the same examples that was shown nothing yet."""
        other = copy(self)
        other._forget()
        return other

    def is_open(self, radii: Tensor) -> Tensor:
        """Say whether balls of these radii are worth a look: for the 0-1 loss, if nothing misclassified is known there.

        Shape (num_examples,). Where a radius is 0 there is nothing to see.
        """
        return (radii > 0.0) & ((self.distances > radii) if self._is_flipped else True)

    def select(self, rows: Tensor) -> Witness:
        """Return a witness of the examples with these indices, each at most once, that was shown nothing yet."""
        other = copy(self)
        for name in ("rivals", "start", "units", "is_blind", "reach"):  # cached for all examples
            other.__dict__.pop(name, None)
        for name in ("x", "labels", "logits", "losses", "is_misled"):
            setattr(other, name, getattr(self, name)[rows])
        other._forget()
        return other

    def absorb(self, other: Witness, rows: Tensor | None = None) -> None:
        """Count what another witness was shown, too: of the same examples, or of those selected by `rows`."""
        rows = torch.arange(len(self.x)) if rows is None else rows
        self._keep_nearest(
            self.closest.index_copy(0, rows, other.closest),
            torch.full_like(self.distances, math.inf).index_copy(0, rows, other.distances),
        )
        self.highest = self.highest.index_copy(0, rows, self.highest[rows].maximum(other.highest))
        for costs, losses in zip(other._costs, other._losses, strict=True):
            shape = (len(costs), len(self.x))
            self._costs.append(costs.new_full(shape, math.inf).index_copy(1, rows, costs))
            self._losses.append(losses.new_zeros(shape).index_copy(1, rows, losses))

    def shorten(self) -> None:
        """Look for nearer misclassified inputs on the way from `closest` back to the example.

        Secants and halvings in turn: the first are exact where the margin is linear, the others safe where it is not.
        """
        way = self.closest - self.x
        if not bool(way.any()):
            return
        low, high = torch.zeros_like(self.distances), torch.ones_like(self.distances)
        below, above = wrong_margin(self.logits, self.labels), wrong_margin(self(self.closest), self.labels)
        for step in range(_NUM_SHORTENINGS):
            share = (below / (below - above)).clamp(0.0, 1.0) if step % 2 == 0 else torch.full_like(low, 0.5)
            share = torch.nan_to_num(share, nan=0.5)
            middle = (low + (high - low) * share + _OVERSHOOT * (high - low)).minimum(high)
            logits = self(self.x + middle[:, None].to(way.dtype) * way)
            margin, is_wrong = wrong_margin(logits, self.labels), logits.argmax(dim=1) != self.labels
            low, below = torch.where(is_wrong, low, middle), torch.where(is_wrong, below, margin)
            high, above = torch.where(is_wrong, middle, high), torch.where(is_wrong, margin, above)

    def points(self) -> Points:
        """Return everything that was shown as points; of the 0-1 loss, the cheapest misclassified one alone."""
        if self._is_flipped:
            costs = self.costs(self.distances)[:, None]
            return Points(costs, torch.ones_like(costs))
        if not self._costs:
            return Points(torch.full_like(self.distances, math.inf)[:, None], torch.zeros_like(self.distances)[:, None])
        return Points(torch.cat(self._costs).T.contiguous(), torch.cat(self._losses).T.contiguous())

    def _evaluated(self, points: Tensor) -> Tensor:
        # A copy: a model may work in place on its inputs.
        return computed(self.model, points.clone().reshape(-1, *self.x_shape))

    def _each(self, function: Objective, logits: Tensor) -> Tensor:
        """What a function says of logits (..., num_examples, num_classes) and the labels, (..., num_examples)."""
        labels = self.labels.expand(logits.shape[:-1])
        return function(logits.flatten(end_dim=-2), labels.flatten()).reshape(labels.shape)

    def _forget(self) -> None:
        is_wrong = self.logits.argmax(dim=1) != self.labels
        self.closest = self.x
        self.distances = torch.where(is_wrong, 0.0, math.inf).double()
        self.highest = wrong_margin(self.logits, self.labels)
        self._costs: list[Tensor] = []
        self._losses: list[Tensor] = []

    def _keep_nearest(self, found: Tensor, distances: Tensor) -> None:
        is_nearer = distances < self.distances
        self.closest = torch.where(is_nearer[:, None], found, self.closest)
        self.distances = torch.where(is_nearer, distances, self.distances)

    def _note(self, shown: Tensor, logits: Tensor) -> None:
        shown, logits = shown.reshape(-1, *self.x.shape), logits.reshape(-1, *self.logits.shape)
        distances = lengths(shown - self.x, self.norm)
        # A model may overflow far away; what it says there is no evidence. What it says of the example itself is known,
        # and may differ by rounding where the batch is another.
        counts = torch.isfinite(logits).all(dim=-1) & (distances > 0.0)
        distances = torch.where(counts, distances, math.inf)
        self.highest = torch.where(counts, self.margins(logits), -math.inf).amax(dim=0).maximum(self.highest)
        is_wrong = logits.argmax(dim=-1) != self.labels
        nearest, number = torch.where(is_wrong, distances, math.inf).min(dim=0)
        found = shown.gather(0, number[None, :, None].expand(1, *self.x.shape)).squeeze(0)
        self._keep_nearest(found, nearest)
        if not self._is_flipped:
            self._costs.append(self.costs(distances))
            self._losses.append(torch.where(counts, self._each(self._loss.per_example, logits), 0.0))

    def _gradient(self, values: Tensor, points: Tensor, *, keep: bool) -> Tensor:
        if not values.requires_grad:
            raise RefusedError("the model must be differentiable in its inputs for attacks that follow gradients")
        (gradient,) = torch.autograd.grad(values.sum(), points, retain_graph=keep, allow_unused=True)
        return torch.zeros_like(points) if gradient is None else torch.nan_to_num(gradient, posinf=0.0, neginf=0.0)
