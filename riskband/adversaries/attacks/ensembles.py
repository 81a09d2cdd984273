"""Ensembles: attacks one after the other within a ball, each on the examples that still stand.

An example stands while no misclassified input within the ball is known. AutoAttack (Croce and Hein 2020) is a list of
attacks. What it says is the share of examples that stand within the distances asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from torch import nn

from riskband.adversaries.attacks.apgd import Apgd
from riskband.adversaries.attacks.base import InputAdversary, check_within_balls
from riskband.adversaries.attacks.fab import MinNorm
from riskband.adversaries.attacks.square import Square
from riskband.adversaries.attacks.witness import Witness
from riskband.adversaries.problem import TransportProblem

Part = Callable[[nn.Module, TransportProblem], InputAdversary]

AUTOATTACK: tuple[Part, ...] = (
    partial(Apgd, objective="cross_entropy", num_steps=100),
    partial(Apgd, objective="targeted_dlr", num_steps=300),
    partial(MinNorm, num_targets=9, num_steps=100),
    partial(Square, num_steps=5000, num_refinements=0),
)
"""The parts of AutoAttack's standard version, with its numbers of steps: 900 in all of the targeted Auto-PGD."""


class InOrder(InputAdversary):
    """Attacks one after the other, at every distance of the problem each on the examples that still stand there.

    So it is never weaker within these distances than an attack in the list, run alone. It refuses a problem without
    distances.
    """

    def __init__(self, model: nn.Module, problem: TransportProblem, *, name: str, parts: Sequence[Part]) -> None:
        self._name = name
        within = [replace(problem, distances=(distance,)) for distance in problem.distances]
        self._parts_by_ball = [[part(model, ball) for part in parts] for ball in within]
        self.parts = [part for parts in self._parts_by_ball for part in parts]
        super().__init__(model, problem)

    def perturb(self, witness: Witness) -> None:
        """Run the parts."""
        check_within_balls(self.problem, self._name)
        for radii, parts in zip(self.ladder(witness), self._parts_by_ball, strict=True):
            for part in parts:
                rows = witness.is_open(radii).nonzero().squeeze(1)
                if len(rows) > 0:
                    standing = witness.select(rows)
                    part.perturb(standing)
                    witness.absorb(standing, rows)
