"""Certificates in input space: what a Lipschitz bound excludes, alone or above what an attack reached (math §6.4).

If each margin z_j - z_y grows by at most L[j, y] per unit of distance, a model is to these bounds what a linear layer
with ||w_j - w_y|| = L[j, y] is to those in `growth`. The bounds are about all inputs: a box only makes them looser.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn

from riskband.adversaries.attacks.wda import WdaKnapsack
from riskband.adversaries.base import Adversary, Batch, Evidence
from riskband.adversaries.bounds.balls import Balls, has_local_rules
from riskband.adversaries.bounds.crown import is_cheap, local_distances, local_network
from riskband.adversaries.bounds.lipschitz import (
    METHODS,
    Constants,
    SequentialLayers,
    check_choice_of_method,
    lipschitz_constants,
)
from riskband.adversaries.curves import AdversarialCurves, Points
from riskband.adversaries.names import check_bounded_loss, is_bounded_loss
from riskband.adversaries.problem import TransportProblem
from riskband.adversaries.representation.growth import GROWTHS, bounding_points
from riskband.checks import RefusedError
from riskband.models.evaluation import on_cpu
from riskband.models.losses import get_loss

# The bound is about the model as it is written, and computed in float64. A model that is evaluated in float32 may err
# at each logit by this share of the largest one, and by a few times what it errs at the example itself; if that is more
# than the last share, its own losses say too little of the model, and nothing is proved of the example.
_ROUNDING_OF_LOGITS, _ROUNDING_SEEN, _LARGEST_ROUNDING = 1e-6, 4.0, 1e-3
# Lifts any margin of float32 logits to where every loss is 1; infinity would become NaN on the way.
_ANY_MARGIN = 1e100


class Geometry(NamedTuple):
    """What is proved of the margins of a batch: within a distance t none exceeds margins + speeds * t.

    Both have shape (num_examples, num_classes), and are `-inf` and 0 at the label. For rounding in the model's own
    precision the margins contain `slack`, (num_examples, 1), and the speeds `drift`, of their shape: logits that grow
    are rounded to fewer digits. `losses`, (num_examples,), are upper bounds of those of the examples as they are.
    """

    margins: Tensor
    speeds: Tensor
    slack: Tensor
    drift: Tensor
    losses: Tensor


class Reading(NamedTuple):
    """A model as it was read for inputs of one shape: itself, its layers and constants, and a copy in float64."""

    state: dict[str, Tensor]
    x_shape: torch.Size
    layers: SequentialLayers
    constants: Constants
    exact: nn.Module

    def is_of(self, model: nn.Module, x_shape: torch.Size) -> bool:
        """Whether it is of this model, with the weights that it has now."""
        state = model.state_dict()
        same = self.x_shape == x_shape and state.keys() == self.state.keys()
        return same and all(torch.equal(value, self.state[name]) for name, value in state.items())


class LipschitzAdversary(Adversary):
    """Proves from above what no perturbation can exceed; attains only what was there without one.

    The model, see `lipschitz.SequentialLayers`, is only read, anew when its weights changed. Of the problem its loss
    ("zero_one", or one of `growth.GROWTHS`), order and norm count. The rest is for attacks: what no input can do, none
    in the box can. Raises RefusedError if an argument is unknown, or nothing is proved for the loss; at the first
    batch, if nothing is proved for the model.

    Parameters
    ----------
    method : str
        "product" or "exact": with constants from `lipschitz.margin_constants` only. "local": with its constants,
        and for the 0-1 loss what `crown` proves around each example. "auto": so where the model is small
        enough for that.
    """

    def __init__(self, model: nn.Module, problem: TransportProblem, *, method: str = "auto") -> None:
        check_bounded_loss(problem.loss)
        check_choice_of_method(method, (*METHODS, "local"))
        self.model, self.method = model, method
        self.loss, self.order, self.norm, self.costs = problem.loss, problem.order, problem.norm, problem.costs
        self.free_distance = problem.free_distance
        self._latest: Reading | None = None

    def restart(self) -> None:
        """Forget the model as it was read."""
        self._latest = None

    def read(self, x_shape: torch.Size) -> Reading:
        """Return the model as it is now, for inputs of this shape; raises RefusedError if nothing is proved of it."""
        if self._latest is None or not self._latest.is_of(self.model, x_shape):
            state = {name: value.clone() for name, value in self.model.state_dict().items()}
            model = on_cpu(self.model)
            layers = SequentialLayers(model, x_shape)
            exact = copy.deepcopy(model).double().eval()
            self._latest = Reading(state, x_shape, layers, self._constants(layers), exact)
        return self._latest

    def examine(self, batch: Batch) -> Evidence:
        """Return bounding points; the cost of a misclassification is only known where the example is misclassified."""
        reading = self.read(batch.x.shape[1:])
        layers, found = reading.layers, self.geometry(batch, reading)
        balls, unmoved = None, found.losses
        if self._is_around(layers):
            x, margins = batch.x.double(), found.margins
            balls = Balls(layers, x, batch.labels, norm=self.norm, margins=margins, rounding=_ROUNDING_OF_LOGITS)
        if self.loss == "zero_one":
            distances = self._flip_distances(batch, layers, found, balls)
            costs = self.costs(distances)[:, None]
            bounding = Points(costs, torch.ones_like(costs))
            if self.free_distance > 0.0:
                unmoved = torch.where(costs[:, 0] == 0.0, 1.0, unmoved)  # a free move may be enough
        elif balls is not None:
            bounding = balls.bounding_points(GROWTHS[self.loss], found.losses, order=self.order)
        else:
            growth = GROWTHS[self.loss]
            bounding = bounding_points(growth, found.margins, found.speeds, found.losses, order=self.order)
        is_wrong = batch.logits.argmax(dim=1) != batch.labels
        return Evidence(
            attained=Points(torch.zeros_like(batch.losses)[:, None], batch.losses[:, None]),
            bounding=bounding,
            flip_costs=torch.where(is_wrong, 0.0, torch.inf).double(),
            unmoved=unmoved,
        )

    def geometry(self, batch: Batch, reading: Reading) -> Geometry:
        """Return what is proved of the margins, from the logits and the constants of the model's layers."""
        constants = reading.constants
        with torch.no_grad():
            logits = reading.exact(batch.x.to(torch.float64, copy=True))
        if reading.layers.is_traced:
            reading.layers.check_same(batch.x.double(), logits)
        size = logits.abs().amax(dim=1, keepdim=True)
        error = (logits - batch.logits).abs().amax(dim=1, keepdim=True)
        # A margin is a difference of two logits. At a distance t each logit is at most size + t * its constant.
        slack = 2.0 * _ROUNDING_OF_LOGITS * size + _ROUNDING_SEEN * error
        slack = torch.where(error <= _LARGEST_ROUNDING * size, slack, _ANY_MARGIN)
        drift = _ROUNDING_OF_LOGITS * (constants.logits + constants.logits[batch.labels][:, None])
        labels = batch.labels[:, None]
        margins = (logits - logits.gather(1, labels) + slack).scatter(1, labels, -torch.inf)
        return Geometry(
            margins=margins,
            speeds=(constants.margins[batch.labels] + drift).scatter(1, labels, 0.0),
            slack=slack,
            drift=drift,
            losses=self._unmoved(batch, logits, margins, slack.squeeze(1)),
        )

    def _unmoved(self, batch: Batch, logits: Tensor, margins: Tensor, slack: Tensor) -> Tensor:
        """Return losses that neither the model in exact arithmetic nor the one that was evaluated exceeds."""
        if self.loss == "zero_one":
            return (margins.amax(dim=1) >= 0.0).double().maximum(batch.losses)
        exact = get_loss(self.loss).per_example(logits, batch.labels)
        return (exact + GROWTHS[self.loss].slope * slack).clamp(max=1.0).maximum(batch.losses)

    def _flip_distances(self, batch: Batch, layers: SequentialLayers, found: Geometry, balls: Balls | None) -> Tensor:
        """Return distances below which nothing is misclassified, from balls, or from constants and local bounds."""
        if balls is not None:
            return balls.safe_distances()
        reach = class_distances(found.margins, found.speeds)
        is_wanted = self.method == "local" or (self.method == "auto" and is_cheap(layers))
        if layers.is_affine or not is_wanted:
            return reach.amin(dim=1)
        network = local_network(layers)
        return local_distances(
            network, batch.x.flatten(1), batch.labels, norm=self.norm, slack=found.slack, drift=found.drift, reach=reach
        )

    def _is_around(self, layers: SequentialLayers) -> bool:
        """Return whether bounds are those of balls around the examples alone: constants cost more and say less."""
        return self.method in ("auto", "local") and has_local_rules(layers)

    def _constants(self, layers: SequentialLayers) -> Constants:
        """Return constants of the margins and logits on the whole space; infinite ones where none are needed."""
        if self._is_around(layers):
            unknown = torch.full((len(layers.head), len(layers.head)), torch.inf, dtype=torch.float64)
            return Constants(unknown, unknown[0])
        method = "auto" if self.method == "local" else self.method
        return lipschitz_constants(layers, norm=self.norm, method=method)


class SandwichAdversary(Adversary):
    """An attack below and a certificate above, in one pass over the examples.

    Of the attack its attained points and costs of misclassification are reported, of the certificate its bounds; both
    are about the same loss, order, norm and space.
    """

    def __init__(self, attack: Adversary, certificate: Adversary) -> None:
        self.attack = attack
        self.certificate = certificate

    def restart(self) -> None:
        """Both begin anew."""
        self.attack.restart()
        self.certificate.restart()

    def examine(self, batch: Batch) -> Evidence:
        """Return the evidence of both."""
        below, above = self.attack.examine(batch), self.certificate.examine(batch)
        if above.bounding is None:
            raise RefusedError(
                f"the certificate of a sandwich must prove a bound, got {type(self.certificate).__name__}, which "
                "proves none; swap it with the attack, or use LipschitzAdversary"
            )
        return replace(
            above, attained=below.attained, flip_costs=below.flip_costs, without_gradient=below.without_gradient
        )


class AutomaticAdversary(Adversary):
    """The sandwich of `WdaKnapsack` and `LipschitzAdversary` where a bound is known, else `WdaKnapsack` alone.

    Loss, model and shape of the inputs decide, never the examples: all clients of a run choose the same.
    """

    def __init__(self, model: nn.Module, problem: TransportProblem) -> None:
        self.model, self.problem = model, problem

    def curves(self, batches: Iterable[Batch]) -> AdversarialCurves:
        """Return the curves of a client; see `Adversary.curves`."""
        remaining = iter(batches)
        first = next(remaining, None)
        if first is None:
            return super().curves(())  # refuses it in the words of all adversaries
        return self.chosen(tuple(first.x.shape[1:])).curves(chain([first], remaining))

    def examine(self, batch: Batch) -> Evidence:
        """Return the evidence of the chosen adversary."""
        return self.chosen(tuple(batch.x.shape[1:])).examine(batch)

    def chosen(self, x_shape: Sequence[int]) -> Adversary:
        """Return the adversary for inputs of this shape."""
        attack = WdaKnapsack(self.model, self.problem)
        if not (is_bounded_loss(self.problem.loss) and is_understood(self.model, x_shape)):
            return attack
        return SandwichAdversary(attack, LipschitzAdversary(self.model, self.problem))


def is_understood(model: nn.Module, x_shape: Sequence[int]) -> bool:
    """Return whether Lipschitz bounds are known for all layers of the model, given the shape of one input."""
    try:
        SequentialLayers(on_cpu(model), x_shape)
    except RefusedError:
        return False
    return True


def class_distances(margins: Tensor, speeds: Tensor) -> Tensor:
    """Return distances below which no class catches up with the label, (-margin)_+ / speed.

    All have shape (num_examples, num_classes). Margins are logits over the label's, `-inf` at the label; speeds their
    proved Lipschitz constants. The distance is 0 for a class that is not below the label, `inf` for one that cannot
    catch up, and at the label.
    """
    distances = torch.where(speeds > 0.0, (-margins).clamp(min=0.0) / speeds, torch.inf)
    # A class that never moves against the label and yet is not below it has won already.
    return torch.where(margins >= 0.0, 0.0, distances)
