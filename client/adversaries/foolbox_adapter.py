"""Attacks of Foolbox (Rauber et al. 2020), by name: "foolbox:L2DeepFoolAttack". An optional dependency."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from client.adversaries.inputs import InputAdversary, InputProblem
from client.adversaries.witness import Witness

FOOLBOX_PREFIX = "foolbox:"
"""What the name of an attack of Foolbox begins with."""


class FoolboxAttack(InputAdversary):
    """An attack of `foolbox.attacks` with its default settings; what it returns is measured like anything else.

    Attacks that look for the nearest flip are run once; those within a ball at every distance of the problem. The
    seed governs what they draw from torch; the few that draw from NumPy's global state do not repeat.

    Parameters
    ----------
    model, problem :
        See `InputAdversary`. Foolbox needs a box, and distances for attacks within a ball.
    name : str
        Of a class in `foolbox.attacks` that can be made without arguments.

    Raises
    ------
    ValueError
        If Foolbox is not installed, has no such attack, or the problem lacks what the attack needs.
    """

    def __init__(self, model: nn.Module, problem: InputProblem, *, name: str) -> None:
        super().__init__(model, problem)
        self._foolbox, bases = _imported_foolbox()
        self._attack = _attack(self._foolbox, bases, name)
        if problem.box is None:
            raise ValueError("box must be given for attacks of Foolbox, got None; give the range of the model's inputs")
        is_within_ball = isinstance(self._attack, bases.FixedEpsilonAttack)
        if is_within_ball and not problem.distances:
            raise ValueError(f"distances must be given for {name!r}, got none; it attacks within a ball")
        self._radii = list(problem.distances) if is_within_ball else [None]

    def perturb(self, witness: Witness) -> None:
        """Run the attack; examples that are misclassified as they are come back as they are, or nearly."""
        wrapped = self._foolbox.PyTorchModel(self.model, bounds=self.problem.box, device="cpu")
        images = witness.x.reshape(-1, *witness.x_shape)
        # Foolbox draws from torch's global state, which is put back.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(self.rng.integers(2**62)))
            found, _, _ = self._attack(wrapped, images, witness.labels, epsilons=self._radii)
        for points in found:
            points = points.detach().flatten(start_dim=1)
            # An attack that gave up on an example may return NaN there.
            witness(torch.where(torch.isfinite(points), points, witness.x))


def _imported_foolbox() -> tuple[Any, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Foolbox imports deprecated names of others
            import foolbox
            from foolbox.attacks import base
    except ImportError:
        raise ValueError(
            'adversaries "foolbox:…" need Foolbox, which is not installed; run pip install "riskband[attacks]"'
        ) from None
    return foolbox, base


def _attack(foolbox: Any, bases: Any, name: str) -> Any:
    kind = getattr(foolbox.attacks, name, None)
    if not (isinstance(kind, type) and issubclass(kind, bases.Attack)):
        raise ValueError(f"adversary must name a class in foolbox.attacks, got {name!r}; such as L2DeepFoolAttack")
    try:
        return kind()
    except TypeError:
        raise ValueError(
            f"adversary must name an attack of Foolbox that needs no arguments, got {name!r}; such as L2DeepFoolAttack"
        ) from None
