"""Certificates in input space: what a Lipschitz bound excludes, alone or above what an attack reached (math §6).

If each margin z_j - z_y grows by at most L[j, y] per unit of distance, a network is to these bounds what a linear head
with ||w_j - w_y|| = L[j, y] is to those in `radial`. The bounds are about all inputs: a box only makes them looser.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import cached_property

import torch
from torch import Tensor, nn

from client.adversaries.base import Adversary, Batch, Evidence
from client.adversaries.curves import AdversarialCurves, Points
from client.adversaries.inputs import InputAdversary, InputProblem
from client.adversaries.lipschitz_bounds import check_method, check_norm, margin_constants
from client.adversaries.radial import GROWTHS, bounding_points
from client.questions import RefusedError

# The bound is about the network as it is written, and computed in float64. A model that is evaluated in float32 may err
# at each logit by this share of the largest one, and by a few times what it errs at the example itself; beyond the last
# share, its own losses say too little of the network.
_ROUNDING_OF_LOGITS, _ROUNDING_SEEN, _LARGEST_ROUNDING = 2e-6, 4.0, 1e-3


class LipschitzAdversary(Adversary):
    """Proves from above what no perturbation can exceed; attains only what was there without one.

    Parameters
    ----------
    model : Module
        A chain of layers; see `lipschitz_bounds.SequentialLayers`. It is only read.
    problem : InputProblem
        What is asked: its loss ("zero_one", or one of `radial.GROWTHS`), order and norm. The rest is for attacks: what
        no input can do, none in the box can.
    method : str
        See `lipschitz_bounds.margin_constants`.

    Raises
    ------
    RefusedError
        If an argument is unknown, or nothing is proved for the loss; at the first batch, if nothing is proved for the
        model.
    """

    def __init__(self, model: nn.Module, problem: InputProblem, *, method: str = "auto") -> None:
        check_bounded_loss(problem.loss)
        if problem.order not in (1, 2):
            raise RefusedError(f"order must be 1 or 2, got {problem.order!r}; the cost of a distance t is t**order")
        check_norm(problem.norm)
        check_method(method)
        self.model, self.method = model, method
        self.loss, self.order, self.norm = problem.loss, problem.order, problem.norm
        self._constants: dict[tuple[int, ...], Tensor] = {}

    def examine(self, batch: Batch) -> Evidence:
        """Return bounding points; the cost of a flip is only known where there is nothing to flip."""
        margins, speeds = self.geometry(batch)
        if self.loss == "zero_one":
            costs = certified_distances(margins, speeds)[:, None].pow(self.order)
            bounding = Points(costs, torch.ones_like(costs))
        else:
            bounding = bounding_points(GROWTHS[self.loss], margins, speeds, batch.losses, order=self.order)
        is_wrong = batch.logits.argmax(dim=1) != batch.labels
        return Evidence(
            attained=Points(torch.zeros_like(batch.losses)[:, None], batch.losses[:, None]),
            bounding=bounding,
            flip_costs=torch.where(is_wrong, 0.0, torch.inf).double(),
        )

    def geometry(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return bounds of the margins and of their growth per distance, shapes (num_examples, num_classes).

        At the label the margin is `-inf` and the speed 0.
        """
        speeds = self._speeds(batch)[batch.labels]  # refuses what is not understood, before anything is computed
        with torch.no_grad():
            logits = self._in_float64(batch.x.double())
        size = logits.abs().amax(dim=1, keepdim=True)
        error = (logits - batch.logits).abs().amax(dim=1, keepdim=True)
        if bool((error > _LARGEST_ROUNDING * size).any()):
            raise RefusedError(
                "the model must compute its logits to three digits at least, and its float32 sums cancel; normalise "
                "the inputs before they reach it"
            )
        slack = 2.0 * _ROUNDING_OF_LOGITS * size + _ROUNDING_SEEN * error  # a margin is a difference of two logits
        margins = logits - logits.gather(1, batch.labels[:, None]) + slack
        return margins.scatter(1, batch.labels[:, None], -torch.inf), speeds

    @cached_property
    def _in_float64(self) -> nn.Module:
        return copy.deepcopy(self.model).double().eval()

    def _speeds(self, batch: Batch) -> Tensor:
        x_shape = tuple(batch.x.shape[1:])
        if x_shape not in self._constants:
            self._constants[x_shape] = margin_constants(self.model, x_shape, norm=self.norm, method=self.method)
        return self._constants[x_shape]


class SandwichAdversary(Adversary):
    """An attack below and a certificate above, in one pass over the examples.

    Parameters
    ----------
    attack : Adversary
        Its attained points and flip costs are reported.
    certificate : Adversary
        Its bounds are reported; about the same loss, order, norm and space as the attack.
    """

    def __init__(self, attack: Adversary, certificate: Adversary) -> None:
        self.attack = attack
        self.certificate = certificate

    def curves(self, batches: Iterable[Batch]) -> AdversarialCurves:
        """Return the curves of a client, as `Adversary.curves`; the attack starts anew, so a seed gives one answer."""
        if isinstance(self.attack, InputAdversary):
            self.attack.restart()
        return super().curves(batches)

    def examine(self, batch: Batch) -> Evidence:
        """Return the evidence of both."""
        below, above = self.attack.examine(batch), self.certificate.examine(batch)
        if above.bounding is None:
            raise RefusedError(
                f"the certificate of a sandwich must prove a bound, got {type(self.certificate).__name__}, which "
                "proves none; swap it with the attack, or use LipschitzAdversary"
            )
        return Evidence(
            attained=below.attained,
            bounding=above.bounding,
            flip_costs=below.flip_costs,
            suprema=above.suprema,
            asked_suprema=above.asked_suprema,
        )


def check_bounded_loss(loss: str) -> None:
    """Check that a bound is known for this loss; raises RefusedError."""
    if loss != "zero_one" and loss not in GROWTHS:
        raise RefusedError(
            f"Lipschitz bounds are known for the losses zero_one, {', '.join(GROWTHS)}, got {loss!r}; use an attack, "
            "which needs none"
        )


def certified_distances(margins: Tensor, speeds: Tensor) -> Tensor:
    """Return distances below which no example is misclassified: min over j of (-margin_j)_+ / speed_j.

    Parameters
    ----------
    margins, speeds : Tensor, shape (num_examples, num_classes)
        Logits over the label's, `-inf` at the label; proved Lipschitz constants of the margins.

    Returns
    -------
    Tensor, shape (num_examples,)
        0 for a misclassified example or a tie, `inf` where no class can catch up.
    """
    distances = torch.where(speeds > 0.0, (-margins).clamp(min=0.0) / speeds, torch.inf)
    # A class that never moves against the label and yet is not below it has won already.
    return torch.where(margins >= 0.0, 0.0, distances).amin(dim=1)
