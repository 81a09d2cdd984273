"""Adaptive Auto Attack (A3, Liu et al. 2022): one attack with many restarts, and A3++, with the ascent of WDA.

Restarts learn from each other where to start and which examples to leave alone. What they say is the share of examples
that stand, of which no misclassified input within the distances asked is known. An example that a restart left alone
stands like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from riskband.adversaries.attacks.base import InputAdversary
from riskband.adversaries.attacks.pgd import falling, stepped
from riskband.adversaries.attacks.witness import Objective, Witness, margin_of, wrong_margin


@dataclass(frozen=True)
class Restart:
    """One restart of A3, possibly repeated, each time from another start.

    A share of the standing examples goes on, those nearest to a misclassification; the others are discarded.
    `num_steps` are those of the ascent, `num_starts` those before it, which look for a start (ADI).
    """

    share: float
    num_steps: int
    num_starts: int = 7
    num_repeats: int = 1


# The published schedule (authors' code): three restarts, then ten of one of two kinds.
_FIRST = (Restart(1.0, 8, 0), Restart(1.0, 8), Restart(1.0, 8))
_THOROUGH = (
    *(Restart(share, steps) for share, steps in ((0.7, 25), (0.6, 30), (0.5, 30), (0.4, 35), (0.3, 40), (0.2, 45))),
    *(Restart(0.1, 50), Restart(0.1, 50, 7, 4), Restart(0.065, 55, 7, 4), Restart(0.03, 60, 7, 50)),
)
_QUICK = (
    *(Restart(1.0, 5, 10, 10), Restart(1.0, 5, 15), Restart(1.0, 10, 15), Restart(1.0, 10, 10)),
    *(Restart(1.0, steps, 10) for steps in (15, 18, 20)),
    *(Restart(0.8, 25, 10, 5), Restart(0.5, 35, 10, 5), Restart(0.5, 45, 10, 20)),
)
# The quick ones follow if the steps before the ascent alone misclassify this share of those that stood.
_PROMISING = 0.05
# At least so many examples go on; where a smaller share than this stands all do, with so many more repeats.
_FEWEST, _FEW, _MORE_REPEATS = 100, 0.1, 10
# The last restarts, of the thorough and of the quick kind: the label's weight has another range, rivals are fewer.
_FINAL = {False: 10, True: 11}
_NUM_FINAL_RIVALS = 4
# Weight of the rival that a start aims at, and ranges of that of the label: as the sums say, and in the last restarts.
_RIVAL_WEIGHT = 0.8
_UPHILL, _DOWNHILL, _FINAL_LABEL = (-0.1, 0.5), (-0.5, 0.1), (-0.8, 0.1)
# Steps fall like a cosine from the radius to these shares of it: of a short ascent, and of one longer than that.
_LAST_STEPS, _SHORT = (0.1, 0.001), 10


class A3(InputAdversary):
    """Adaptive Auto Attack (Liu et al. 2022): restarts with adaptive starts (ADI) and discarding (OSD).

    A start is a random point of the ball, moved by a few steps that raise a weighted sum of the logits. The weights are
    random at first; later ones have the signs with which the first ones misclassified examples. Examples whose margin
    stays far from a misclassification are discarded, more of them with every restart.

    What is learned about starts is learned from the examples of a batch: in batches of another size, others are tried.
    Nothing is taken over from a smaller ball but the misclassified points.
    """

    num_restarts = 13

    def perturb(self, witness: Witness) -> None:
        """Run the restarts in every ball of the ladder."""
        seeds = self.rng.integers(2**63, size=len(witness.x))  # one for each example, whatever the batch
        for rows, part, radii in self.balls(witness):
            rngs = [np.random.default_rng(seed) for seed in seeds[rows.numpy()]]
            self._attack(part, radii, rngs)

    def targets(self, witness: Witness, points: Tensor, radii: Tensor) -> Tensor | None:
        """Return which rival is pursued from the points where an ascent begins, (num_examples,); None: any."""
        return None

    def _attack(self, witness: Witness, radii: Tensor, rngs: Sequence[np.random.Generator]) -> None:
        learned, schedule = _Learned(), _FIRST + _THOROUGH
        for number in range(self.num_restarts):
            if number == len(_FIRST) and learned.num_by_starts >= _PROMISING * learned.num_tried:
                learned.is_quick, schedule = True, _FIRST + _QUICK
            restart = schedule[min(number, len(schedule) - 1)]
            is_few = len(_standing(witness)) < _FEW * len(witness.x)
            for _ in range(restart.num_repeats + (_MORE_REPEATS if is_few else 0)):
                rows = _nearest(witness, 1.0 if is_few else restart.share)
                if len(rows) == 0:
                    return
                part, drawn = witness.select(rows), _drawn(witness, rngs, rows)
                self._restart(part, radii[rows], drawn, restart, learned, number)
                witness.absorb(part, rows)

    def _restart(
        self, witness: Witness, radii: Tensor, drawn: Tensor, restart: Restart, learned: _Learned, number: int
    ) -> None:
        """Start and climb; a witness of the standing examples, and numbers drawn uniformly for each, see `_drawn`."""
        num_features = witness.x.shape[1]
        moves = radii[:, None].to(witness.x.dtype) * (2.0 * drawn[:, :num_features] - 1.0)
        moves = witness.within(moves, radii)
        weights = learned.weights(witness, drawn[:, num_features:], number)
        moves = self._climb(witness, moves, radii, _weighted(weights), [1.0] * restart.num_starts)
        num_by_starts = len(witness.x) - len(_standing(witness))
        rows = _standing(witness)
        if len(rows) > 0:
            part = witness.select(rows)
            targets = self.targets(part, part.x + moves[rows], radii[rows])
            sizes = _sizes(restart.num_steps + restart.num_starts)
            self._climb(part, moves[rows], radii[rows], _margin(targets), sizes)
            witness.absorb(part, rows)
        learned.note(witness, weights, num_by_starts, number)

    def _climb(
        self,
        witness: Witness,
        moves: Tensor,
        radii: Tensor,
        objectives: Callable[[Tensor], Objective],
        sizes: Sequence[float],
    ) -> Tensor:
        """Return the moves after steps of these sizes, in units of the radii; examples stop where they do not stand."""
        rows, part, moves = torch.arange(len(moves)), witness.fresh(), moves.clone()
        for step, size in enumerate(sizes):
            _, slopes = part.climb(part.x + moves[rows], objectives(rows))
            lengths, done = size * radii[rows].to(moves.dtype), step / len(sizes)
            moves[rows] = stepped(part, moves[rows], slopes, lengths, radii[rows], done=done)
            left = _standing(part)
            if len(left) < len(rows):
                witness.absorb(part, rows)
                rows, part = rows[left], part.select(left)
            if len(rows) == 0:
                return moves
        part(part.x + moves[rows])
        witness.absorb(part, rows)
        return moves


class A3PlusPlus(A3):
    """A3 whose ascent is that of WDA: one step towards each rival, then the one with the largest logit is pursued."""

    def targets(self, witness: Witness, points: Tensor, radii: Tensor) -> Tensor:
        """Return the rival that leads after one step towards each, which crosses the ball."""
        _, slopes = witness.rival_slopes(points)
        tried = (points - witness.x).expand(slopes.shape)
        logits = witness(witness.x + stepped(witness, tried, slopes, 2.0 * radii, radii, done=0.0))
        leader = logits.gather(-1, witness.rivals[..., None]).squeeze(-1).argmax(dim=0, keepdim=True)
        return witness.rivals.gather(0, leader).squeeze(0)


@dataclass
class _Learned:
    """What restarts in one ball learned of where to start."""

    # Examples that stood before the first restart with weights; how many the starts alone misclassified since.
    num_tried: int = 0
    num_by_starts: int = 0
    # Sums over the examples which that restart misclassified of the weights of the label and of the class reached.
    label: float = 0.0
    rival: float = 0.0
    is_quick: bool = False  # whether the quick schedule is followed
    num_starts: int = 0  # directed ones so far: they aim at one rival after the other

    def weights(self, witness: Witness, drawn: Tensor, number: int) -> Tensor:
        """Return weights of the logits, (num_examples, num_classes), from numbers drawn uniformly from [0, 1)."""
        weights = 2.0 * drawn.double() - 1.0
        if number < 2:
            return weights
        is_final = number >= _FINAL[self.is_quick]
        num_rivals = len(witness.rivals) if self.is_quick or not is_final else _NUM_FINAL_RIVALS
        aimed = witness.rivals[self.num_starts % min(num_rivals, len(witness.rivals))]
        self.num_starts += 1
        unit = weights.shape[1] / 10.0
        low, high = self._label_range(is_final=is_final)
        label = drawn.gather(1, witness.labels[:, None]).double()
        weights = weights.scatter(1, witness.labels[:, None], unit * (low + (high - low) * label))
        sign = 1.0 if self.is_quick or is_final or self.rival >= 0.0 else -1.0
        return weights.scatter(1, aimed[:, None], sign * unit * _RIVAL_WEIGHT)

    def _label_range(self, *, is_final: bool) -> tuple[float, float]:
        if is_final:
            return (0.0, 0.0) if self.is_quick else _FINAL_LABEL
        return _UPHILL if self.is_quick or self.label > 0.0 else _DOWNHILL

    def note(self, witness: Witness, weights: Tensor, num_by_starts: int, number: int) -> None:
        """Count a restart."""
        self.num_by_starts += num_by_starts
        if number == 1:
            self.num_tried += len(witness.x)
            flipped = torch.isfinite(witness.distances).nonzero().squeeze(1)
            if len(flipped) > 0:
                part = witness.select(flipped)
                reached = part(witness.closest[flipped]).argmax(dim=1)
                self.label += float(weights[flipped, part.labels].sum())
                self.rival += float(weights[flipped, reached].sum())


def _standing(witness: Witness) -> Tensor:
    """Examples of which no misclassified point is known, as indices."""
    return torch.isinf(witness.distances).nonzero().squeeze(1)


def _nearest(witness: Witness, share: float) -> Tensor:
    """The standing examples that are not discarded: a share of them, those with the largest margins."""
    standing = _standing(witness)
    num_kept = min(max(_FEWEST, int(share * len(standing))), len(standing))
    return standing[witness.highest[standing].topk(num_kept).indices.sort().values]


def _drawn(witness: Witness, rngs: Sequence[np.random.Generator], rows: Tensor) -> Tensor:
    """For each of the rows numbers of its own: one for each feature of the random point, one for each class."""
    size = witness.x.shape[1] + witness.logits.shape[1]
    drawn = np.stack([rngs[row].random(size, dtype=np.float32) for row in rows.tolist()])
    return torch.from_numpy(drawn).to(witness.x.dtype)


def _weighted(weights: Tensor) -> Callable[[Tensor], Objective]:
    return lambda rows: lambda logits, labels: (weights[rows] * logits).sum(dim=1)


def _margin(targets: Tensor | None) -> Callable[[Tensor], Objective]:
    return lambda rows: wrong_margin if targets is None else margin_of(targets[rows])


def _sizes(num_steps: int) -> list[float]:
    last = _LAST_STEPS[0 if num_steps <= _SHORT else 1]
    return [falling(1.0, last, done=step / (num_steps + 1)) for step in range(num_steps)]
