"""Attacks of Foolbox (Rauber et al. 2020), by name: "foolbox:L2DeepFoolAttack". An optional dependency."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from riskband.adversaries.attacks.base import InputAdversary, check_within_balls
from riskband.adversaries.attacks.witness import Witness
from riskband.adversaries.problem import TransportProblem
from riskband.checks import RefusedError, kind_of
from riskband.models.evaluation import device_of


class FoolboxAttack(InputAdversary):
    """An attack of `foolbox.attacks` with its default settings; what it returns is measured like anything else.

    Attacks that look for the nearest flip are run once; those within a ball at every distance of the problem. They draw
    from the global states of torch and NumPy: these are set from the problem's seed, and put back. Raises RefusedError
    if Foolbox is not installed, has no attack of this name that can be made without arguments, the problem lacks the
    box, or distances, that it needs, or it fails.
    """

    def __init__(self, model: nn.Module, problem: TransportProblem, *, name: str) -> None:
        super().__init__(model, problem)
        self._foolbox, bases = _imported_foolbox()
        self._attack = _attack(self._foolbox, bases, name)
        if problem.box is None:
            raise RefusedError("box must be given for attacks of Foolbox, got None; give the range of what moves")
        is_within_ball = isinstance(self._attack, bases.FixedEpsilonAttack)
        if is_within_ball:
            check_within_balls(problem, name)
        self._name = name
        self._radii = list(problem.distances) if is_within_ball else [None]

    def perturb(self, witness: Witness) -> None:
        """Run the attack; examples that are misclassified as they are come back as they are, or nearly."""
        device = device_of(self.model)
        wrapped = self._foolbox.PyTorchModel(self.model, bounds=self.problem.box, device=device)
        images = witness.x.reshape(-1, *witness.x_shape).to(device)
        with _seeded(self.rng):
            try:
                found, _, _ = self._attack(wrapped, images, witness.labels.to(device), epsilons=self._radii)
            except Exception as error:  # whatever it is, its text may hold data
                raise RefusedError(
                    f"the attack {self._name!r} of Foolbox failed with {kind_of(error)}; it may not suit the "
                    "model, or need more than its defaults: name another"
                ) from error
        for points in found:
            points = points.detach().cpu().flatten(start_dim=1)
            # An attack that gave up on an example may return NaN there.
            witness(torch.where(torch.isfinite(points), points, witness.x))


@contextmanager
def _seeded(rng: np.random.Generator) -> Iterator[None]:
    """Let code that draws from global states draw what the generator decides; leave these states as they were."""
    numpy_state = np.random.get_state()  # noqa: NPY002 - the state that Foolbox draws from
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**62)))
        np.random.seed(int(rng.integers(2**32)))  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002


def _imported_foolbox() -> tuple[Any, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Foolbox imports deprecated names of others
            import foolbox
            from foolbox.attacks import base
    except ImportError:
        raise RefusedError(
            'adversaries "foolbox:…" need Foolbox, which is not installed; run pip install "riskband[attacks]"'
        ) from None
    return foolbox, base


def _attack(foolbox: Any, bases: Any, name: str) -> Any:
    kind = getattr(foolbox.attacks, name, None)
    if not (isinstance(kind, type) and issubclass(kind, bases.Attack)):
        raise RefusedError(f"adversary must name a class in foolbox.attacks, got {name!r}; such as L2DeepFoolAttack")
    try:
        return kind()
    except TypeError:
        raise RefusedError(
            f"adversary must name an attack of Foolbox that needs no arguments, got {name!r}; such as L2DeepFoolAttack"
        ) from None
