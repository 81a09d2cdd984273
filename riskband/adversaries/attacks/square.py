"""Square Attack (Andriushchenko et al. 2020): random search in balls, for models whose gradients say nothing.

Every step rewrites an example's move inside a window at a random place, and the change is kept if the objective rises.
Windows shrink as the search goes on. The model is only evaluated. The paper has no version for l1; here it is the l2
one with sums of sizes instead of squares, as in Croce and Hein (2021).

Inputs of shape (num_channels, height, width), or (height, width), have square windows. Of any other input it is not
known which features are neighbours: they are put in a random order with random signs, drawn for each example and ball,
and a window is a run of that order. It is then a random set of features, which move in random directions together; the
rest of the algorithm is the published one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import Tensor

from riskband.adversaries.attacks.base import INSIDE, InputAdversary, check_within_balls
from riskband.adversaries.attacks.pgd import fitting_objective
from riskband.adversaries.attacks.witness import OBJECTIVES, Witness
from riskband.adversaries.norms import EXPONENTS

# The published schedule (authors' code): after these shares of the steps, in 1/10000, the share of the features that a
# window covers halves. The first share is that of AutoAttack (Croce and Hein 2020).
_HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
_FIRST_SHARE = 0.8
# As published for l2: windows are never narrower, and the first move has five side by side.
_NARROWEST, _NUM_TILES = 3, 5
# Balls, in units of `Witness.reach`, where the problem names no distances. For the 0-1 loss the search goes on nearer
# from a flip anywhere; for other losses every distance matters.
_FACTORS_OF_FLIPS = (1.0, 4.0)
_FACTORS_OF_SLOPES = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
# The first refinement looks within this share of the distance of the nearest flip. Where one finds nothing, the next
# looks within the root of its share.
_FIRST_NEARER = 0.5
# Before division, so that nothing divides by 0.
_TINY = 1e-12


class Square(InputAdversary):
    """Random search in balls around the examples; for the 0-1 loss then in smaller balls, from what it found.

    The model need not be differentiable. Without refinements it is the published attack, in the balls asked alone.
    """

    follows_gradients = False
    num_steps = 100  # in each ball
    num_refinements = 12  # smaller balls

    def perturb(self, witness: Witness) -> None:
        """Search in every ball of the ladder; for the 0-1 loss then nearer than what was found."""
        if self.num_refinements == 0:
            check_within_balls(self.problem, "square:QUERIES")
        # One seed for each example: what is drawn for it depends neither on the batch nor on when others are done.
        seeds, number = self.rng.integers(2**63, size=len(witness.x)), 0
        for number, radii in enumerate(self.ladder(witness)):
            self._search(witness, radii, seeds, number)
        if self.problem.loss == "zero_one" and self.num_refinements > 0:
            self._refine(witness, seeds, number + 1)

    def ladder(self, witness: Witness) -> Iterator[Tensor]:
        """Yield the problem's distances and multiples of the witness's reach: slopes are not asked for."""
        if self.problem.distances:
            yield from super().ladder(witness)
        if self.num_refinements == 0:
            return
        if self.problem.loss == "zero_one":
            yield from (factor * INSIDE * witness.reach for factor in _FACTORS_OF_FLIPS)
        elif not self.problem.distances:
            yield from (factor * INSIDE * witness.reach for factor in _FACTORS_OF_SLOPES)

    def _refine(self, witness: Witness, seeds: np.ndarray, first: int) -> None:
        shares = torch.full_like(witness.distances, _FIRST_NEARER)
        for number in range(first, first + self.num_refinements):
            witness.shorten()
            radii = torch.where(torch.isfinite(witness.distances), shares * witness.distances, 0.0)
            starts = shares[:, None].to(witness.x.dtype) * (witness.closest - witness.x)
            self._search(witness, radii, seeds, number, starts)
            shares = torch.where(witness.is_open(radii), shares.sqrt(), shares)

    def _search(
        self, witness: Witness, radii: Tensor, seeds: np.ndarray, number: int, starts: Tensor | None = None
    ) -> None:
        """Search in balls, from the moves `starts` or else from the published ones; `number` tells the balls apart."""
        rows = witness.is_open(radii).nonzero().squeeze(1)
        if len(rows) == 0:
            return
        part, radii = witness.select(rows), radii[rows].to(witness.x.dtype)
        windows = Windows.drawn(part, seeds[rows.numpy()], number, num_steps=self.num_steps)
        moves = part.inside(windows.first(radii) if starts is None else starts[rows])
        objective = OBJECTIVES[fitting_objective(self.problem.loss)]
        values = objective(part(part.x + moves), part.labels)
        for step in range(self.num_steps):
            is_open = part.is_open(torch.full_like(part.distances, torch.finfo(torch.float64).max))
            left = is_open.nonzero().squeeze(1)
            if len(left) < len(rows):  # for the 0-1 loss a ball in which there was a flip is done
                witness.absorb(part, rows)
                rows, part, windows = rows[left], part.select(left), windows.select(left)
                radii, moves, values = radii[left], moves[left], values[left]
            if len(rows) == 0:
                return
            changed = windows.changed(part, moves, radii, step=step)
            found = objective(part(part.x + changed), part.labels)
            is_better = found > values
            moves = torch.where(is_better[:, None], changed, moves)
            values = torch.where(is_better, found, values)
        witness.absorb(part, rows)


@dataclass(frozen=True)
class Windows:
    """Parts of examples' moves that are changed together, and what was drawn to choose them.

    `shape` is (channels, height, width) of an example, or (1, num_features, 1) if it is no image: then `order` has its
    features in a random order, and `signs` a random sign for each, (num_examples, num_features). Draws are uniform on
    [0, 1): `first_draws` (num_examples, num_features) for the first move; `step_draws` (num_examples, num_steps, 5 +
    num_channels) for the places of two windows, whether the first is turned, and a sign for each channel.
    """

    norm: str
    shape: tuple[int, int, int]
    order: Tensor | None
    signs: Tensor | None
    first_draws: Tensor
    step_draws: Tensor

    @classmethod
    def drawn(cls, witness: Witness, seeds: np.ndarray, number: int, *, num_steps: int) -> Windows:
        """Return what each example's own seed and the number of the ball decide."""
        num_features, x_shape = witness.x.shape[1], tuple(witness.x_shape)
        is_image = len(x_shape) in (2, 3)
        num_channels, height, width = (1, *x_shape)[-3:] if is_image else (1, num_features, 1)
        num_draws = num_steps * (5 + num_channels)
        size = num_features + num_draws + (0 if is_image else 2 * num_features)
        drawn = torch.from_numpy(
            np.stack([np.random.default_rng((seed, number)).random(size, dtype=np.float32) for seed in seeds])
        )
        rest = drawn[:, num_features + num_draws :]
        return cls(
            norm=witness.norm,
            shape=(num_channels, height, width),
            order=None if is_image else rest[:, :num_features].argsort(dim=1),
            signs=None if is_image else _signs(rest[:, num_features:]),
            first_draws=drawn[:, :num_features],
            step_draws=drawn[:, num_features : num_features + num_draws].reshape(len(seeds), num_steps, -1),
        )

    def select(self, rows: Tensor) -> Windows:
        """Return those of the examples with these indices."""
        return replace(
            self,
            order=None if self.order is None else self.order[rows],
            signs=None if self.signs is None else self.signs[rows],
            first_draws=self.first_draws[rows],
            step_draws=self.step_draws[rows],
        )

    def first(self, radii: Tensor) -> Tensor:
        """Return the first moves, (num_examples, num_features): vertical stripes for linf, else a tiling by bumps."""
        num_channels, height, width = self.shape
        if self.norm == "linf":
            stripes = num_channels * width if self.order is None else height
            signs = _signs(self.first_draws[:, :stripes]).reshape(len(radii), num_channels, -1, width)
            return radii[:, None] * signs.expand(-1, -1, height, -1).flatten(1)
        moves = self.first_draws.new_zeros(len(radii), num_channels, height * width)
        side = max(1, self._widest // _NUM_TILES)
        lefts = _corners(width, side) if self.order is None else (0,)
        corners = [(top, left) for top in _corners(height, side) for left in lefts]
        for number, (top, left) in enumerate(corners):
            draws = self.first_draws[:, number * num_channels : (number + 1) * num_channels]
            place = self._features(torch.full(radii.shape, top), torch.full(radii.shape, left), side)
            # Two bits of one draw: its sign, and of the first channel whether the bump is turned.
            bumps = self._bumps(place, side, is_turned=(2.0 * draws[:, 0]) % 1.0 < 0.5, signs=_signs(draws))
            moves = moves.scatter(2, place[:, None].expand_as(bumps), bumps)
        return self._stretched(moves, radii).flatten(1)

    def changed(self, witness: Witness, moves: Tensor, radii: Tensor, *, step: int) -> Tensor:
        """Return the moves that a step tries, in ball and box; shapes as in `first`."""
        draws, side = self.step_draws[:, step], self.side(done=step / self.step_draws.shape[1])
        place, signs = self._places(draws[:, 0:2], side), _signs(draws[:, 5:])
        if self.norm != "linf":
            emptied = self._places(draws[:, 2:4], side)
            bumps = self._bumps(place, side, is_turned=draws[:, 4] < 0.5, signs=signs)
            moves = moves.reshape(len(moves), self.shape[0], -1)
            return witness.inside(self._moved_mass(moves, radii, place, emptied, bumps).flatten(1))
        values = (radii[:, None] * signs)[..., None] * self._signs_at(place)
        ahead = witness.inside(self._filled(moves, place, values))
        # A step that changes nothing is none: it takes the other sign.
        is_same = ((ahead - moves).abs() <= 1e-7).all(dim=1)
        other = witness.inside(self._filled(moves, place, -values))
        return torch.where(is_same[:, None], other, ahead)

    def side(self, *, done: float) -> int:
        """Return how wide windows are when this share of the steps is done, in [0, 1): a number of features."""
        share = _FIRST_SHARE * 0.5 ** bisect_left(_HALVINGS, int(done * 10_000))
        num_places = self.shape[1] * self.shape[2]
        side = round(share * num_places if self.order is not None else (share * num_places) ** 0.5)
        if self.norm != "linf":
            side = max(side, _NARROWEST) // 2 * 2 + 1
        return min(max(side, 1), self._widest)

    @property
    def _widest(self) -> int:
        return self.shape[1] if self.order is not None else min(self.shape[1:])

    def _places(self, draws: Tensor, side: int) -> Tensor:
        _, height, width = self.shape
        num_tops = height if self.order is not None else height - side + 1  # an order goes round
        num_lefts = 1 if self.order is not None else width - side + 1
        top, left = (
            (draws[:, i] * number).long().clamp(max=number - 1) for i, number in enumerate((num_tops, num_lefts))
        )
        return self._features(top, left, side)

    def _features(self, top: Tensor, left: Tensor, side: int) -> Tensor:
        """The features in windows with these corners, as indices within a channel, (num_examples, window_size)."""
        _, height, width = self.shape
        steps = torch.arange(side)
        if self.order is not None:
            return self.order.gather(1, (top[:, None] + steps) % height)
        rows, columns = top[:, None] + steps, left[:, None] + steps
        return (rows[:, :, None] * width + columns[:, None, :]).flatten(1)

    def _signs_at(self, place: Tensor) -> Tensor:
        return torch.ones(len(place), 1, 1) if self.signs is None else self.signs.gather(1, place)[:, None]

    def _filled(self, moves: Tensor, place: Tensor, values: Tensor) -> Tensor:
        place = place[:, None].expand(-1, self.shape[0], -1)
        channels = moves.reshape(len(moves), self.shape[0], -1)
        return channels.scatter(2, place, values.expand_as(place)).flatten(1)

    def _bumps(self, place: Tensor, side: int, *, is_turned: Tensor, signs: Tensor) -> Tensor:
        """A hill beside a valley in each window, of length 1, (num_examples, num_channels, window_size)."""
        bump = hill_and_valley(side, side if self.order is None else 1)
        bump = bump / torch.linalg.vector_norm(bump, ord=EXPONENTS[self.norm])
        turned = bump if self.order is not None else bump.T
        bumps = torch.where(is_turned[:, None, None], turned.flatten(), bump.flatten())
        return bumps * signs[..., None] * self._signs_at(place)

    def _moved_mass(self, moves: Tensor, radii: Tensor, place: Tensor, emptied: Tensor, bumps: Tensor) -> Tensor:
        """Moves with one window emptied, and with what it held and what the ball leaves open added to the other."""
        place, emptied = (each[:, None].expand(-1, self.shape[0], -1) for each in (place, emptied))
        power = EXPONENTS[self.norm]
        masses = moves.abs() ** power
        in_windows = torch.zeros_like(moves).scatter(2, place, 1.0).scatter(2, emptied, 1.0)
        unused = (radii**power - masses.sum(dim=(1, 2))).clamp(min=0.0)[:, None, None] / self.shape[0]
        budget = (unused + (masses * in_windows).sum(dim=2, keepdim=True)) ** (1.0 / power)
        old = moves.gather(2, place)
        new = bumps + old / self._lengths(old)
        new = new / self._lengths(new) * budget
        return self._stretched(moves.scatter(2, emptied, 0.0).scatter(2, place, new), radii)

    def _lengths(self, values: Tensor) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(values, ord=EXPONENTS[self.norm], dim=2, keepdim=True)
        return length.clamp(min=_TINY)

    def _stretched(self, moves: Tensor, radii: Tensor) -> Tensor:
        return moves * (radii[:, None, None] / self._lengths(moves.flatten(1)[:, None]))


@cache
def hill_and_valley(height: int, width: int) -> Tensor:
    """Return the published change of a window for l2: a pyramid in its upper half, one upside down in the lower.

    At Chebyshev distance k from the middle of its half it is a sum of 1/j² from j = k + 1 on.
    """
    upper = height // 2
    return torch.cat([_pyramid(upper, width), -_pyramid(height - upper, width)])


def _pyramid(height: int, width: int) -> Tensor:
    rows, columns = (torch.arange(height) - height // 2).abs(), (torch.arange(width) - width // 2).abs()
    rings = torch.maximum(rows[:, None], columns[None, :])
    steps = 1.0 / torch.arange(1, max(height // 2, width // 2) + 2).float() ** 2
    return steps.flip(0).cumsum(0).flip(0)[rings]


def _corners(length: int, side: int) -> range:
    return range((length - length // side * side) // 2, length - side + 1, side)


def _signs(draws: Tensor) -> Tensor:
    return torch.where(draws < 0.5, -1.0, 1.0)
