"""Training on domains: batches of every domain at once, a method's loss, and the game of DR-DG if there is a factor.

The game: representations are moved to where the loss is high, within a mean squared distance (Algorithm 2). The radius
is a factor F times the distance from the source to the nearest distribution that is wholly misclassified, which is
exact before a linear head: the mean squared distance to the nearest boundary, of each example by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from papers.domain_generalisation.methods import METHODS, Batches, fixed_features_of
from protocol.checks import checked_count, checked_number, checked_seed
from protocol.examples import Examples
from riskband.adversaries.attacks.base import frozen
from riskband.adversaries.problem import TransportProblem
from riskband.adversaries.registry import adversarial_curves
from riskband.models.evaluation import device_of
from worlds.shifts import check_pairs

WARM_UP_SHARE = 0.04
"""Share of the epochs before the game of DR-DG begins, rounded up: the paper's 20 of 501."""
_EPOCHS_PER_RADIUS = 10
_ADVERSARIAL_WEIGHT = 0.1


def train_on_domains(
    model: nn.Module,
    domains: Sequence[Examples],
    *,
    method: str,
    seed: int,
    num_epochs: int,
    learning_rate: float = 0.001,
    batch_size: int = 100,
    factor: float = 0.0,
    num_warm_up: int | None = None,
    adversarial_weight: float = _ADVERSARIAL_WEIGHT,
) -> None:
    """Train `model` in place on several domains: Adam (β₁ = 0.5) on a method's loss, and on worst points if asked.

    The model, on any device, is an `nn.Sequential` that ends with an `nn.Linear`, the head; before it is the encoder.
    There are examples of at least two domains; the method is a name in `METHODS`. Raises ValueError if an argument
    breaks its rule, or the loss is no longer finite.

    Parameters
    ----------
    seed
        ≥ 0; decides the order of the examples and what the model and the method draw.
    num_epochs, learning_rate, batch_size
        ≥ 1, in (0, 1] and ≥ 1; an epoch is as many batches, of each domain, as the smallest domain fills.
    factor
        F ≥ 0 of DR-DG: the radius as a share of the distance to the nearest distribution that is wholly misclassified,
        measured anew every 10 epochs; 0: the method alone.
    num_warm_up
        ≥ 0, epochs of the method alone that come first; None: a share `WARM_UP_SHARE` of the epochs.
    adversarial_weight
        ≥ 0, of the mean cross-entropy at the worst points. These are data: the term trains the head.
    """
    encoder, head = split_head(model)
    if method not in METHODS:
        raise ValueError(
            f"method must be one of {', '.join(METHODS)}, got {method!r}; see papers.domain_generalisation"
        )
    if len(domains) < 2:
        raise ValueError(
            f"there must be at least 2 domains, got {len(domains)}; differences between them are the point"
        )
    for each in domains:
        check_pairs(each.x, each.y)
    seed = checked_seed(seed)
    num_epochs = checked_count("num_epochs", num_epochs, minimum=1, remedy="give the number of passes")
    batch_size = checked_count("batch_size", batch_size, minimum=1, remedy="100 is a usual choice")
    rate = checked_number("learning_rate", learning_rate, above=0, maximum=1, remedy="0.001 is a usual choice")
    factor = checked_number("factor", factor, minimum=0, maximum=1e3, remedy="give 0 for the method alone")
    first = int(np.ceil(WARM_UP_SHARE * num_epochs)) if num_warm_up is None else num_warm_up
    first = checked_count("num_warm_up", first, minimum=0, remedy="give 0 for no warm-up")
    rule, rng = METHODS[method](), np.random.default_rng(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.5, 0.999))
    worst: WorstPoints | None = None
    x, y = (np.concatenate(parts) for parts in zip(*((each.x, each.y) for each in domains), strict=True))
    model.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for epoch in range(num_epochs):
            if factor > 0 and epoch >= first and (epoch - first) % _EPOCHS_PER_RADIUS == 0:
                radius = factor * adversarial_distance(model, x, y)
                worst = worst or WorstPoints(_all_features(encoder, x, y), radius=radius)
                worst.radius = radius
            for rows in _batches([len(each.y) for each in domains], batch_size, rng):
                batch = [_there(x[own], y[own], head) for own in rows]
                loss = rule.loss(batch, encoder, head)
                if worst is not None:
                    loss = loss + adversarial_weight * _worst_loss(worst, rows, batch, encoder, head)
                _step(optimizer, loss)


def split_head(model: nn.Module) -> tuple[nn.Sequential, nn.Linear]:
    """Return the encoder and the head of a chain that ends with an `nn.Linear`; both share the model's layers.

    Raises ValueError if the model is no such chain.
    """
    if not (type(model) is nn.Sequential and len(model) > 1 and isinstance(model[-1], nn.Linear)):
        raise ValueError(
            f"the model must be an nn.Sequential that ends with an nn.Linear, got {type(model).__name__}; "
            "the last layer is the head, what comes before it the encoder"
        )
    return nn.Sequential(*list(model)[:-1]), model[-1]


def _batches(sizes: Sequence[int], batch_size: int, rng: np.random.Generator) -> list[list[NDArray[np.intp]]]:
    """One epoch: for each batch the rows of each domain, in the domains' examples one after the other."""
    starts = np.cumsum([0, *sizes[:-1]])
    size = min(batch_size, *sizes)
    orders = [start + rng.permutation(length) for start, length in zip(starts, sizes, strict=True)]
    return [[order[k * size : (k + 1) * size] for order in orders] for k in range(min(sizes) // size)]


def _there(x: NDArray[np.float32], y: NDArray[np.int64], model: nn.Module) -> tuple[Tensor, Tensor]:
    """Images and labels, where the model is."""
    device = device_of(model)
    return torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)


def _worst_loss(
    worst: WorstPoints, rows: list[NDArray[np.intp]], batch: Batches, encoder: nn.Module, head: nn.Linear
) -> Tensor:
    y = torch.cat([labels for _, labels in batch])
    points = worst.climb(np.concatenate(rows), torch.cat(fixed_features_of(batch, encoder)), y, head)
    return cross_entropy(head(points), y)


def _all_features(encoder: nn.Module, x: NDArray[np.float32], y: NDArray[np.int64], *, batch_size: int = 500) -> Tensor:
    starts = range(0, len(y), batch_size)
    pairs = [_there(x[k : k + batch_size], y[k : k + batch_size], encoder) for k in starts]
    return torch.cat([fixed_features_of([pair], encoder)[0] for pair in pairs])


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    if not torch.isfinite(loss):
        raise ValueError(f"the training loss must stay finite, got {loss.item()}; lower learning_rate")
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def adversarial_distance(model: nn.Module, x: NDArray[np.float32], y: NDArray[np.int64]) -> float:
    """Return ρ_adv ≥ 0, the 2-Wasserstein distance to the nearest distribution that the model gets wholly wrong.

    In the space before the last linear layer, labels held fixed. Each example moves to its nearest misclassified point,
    and no plan is cheaper; examples that are wrong already stay.
    """
    curves = adversarial_curves(model, x, y, TransportProblem(loss="zero_one", order=2))
    return float(np.sqrt(curves.adversarial_unit))


class WorstPoints:
    """One moved representation for each training example, which ascends a little at each batch.

    They start at the features, (num_examples, num_features); their mean squared distance from the representations is
    steered to ρ², with the radius ρ ≥ 0.
    """

    num_steps, step_size = 20, 0.01
    price_step, price_range = 0.1, (1e-3, 1e3)

    def __init__(self, features: Tensor, *, radius: float) -> None:
        self.points = features.detach().clone()
        self.radius, self.price = radius, 1.0

    def climb(self, index: NDArray[np.intp], features: Tensor, y: Tensor, head: nn.Linear) -> Tensor:
        """Move the points of a batch and return them, (num_examples, num_features), as data without gradients.

        They climb loss − price · squared distance from `features`; after each step the price follows the distance. The
        head is not changed.
        """
        target = features.detach()
        points = self.points[index].requires_grad_()
        optimizer = torch.optim.Adam([points], lr=self.step_size, betas=(0.5, 0.999))
        with frozen(head):
            for _ in range(self.num_steps):
                optimizer.zero_grad()
                squares = (points - target).square().sum(dim=1)
                gain = cross_entropy(head(points), y, reduction="none") - self.price * squares
                (-gain.sum()).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                moved = (points.detach() - target).square().sum(dim=1).mean().item()
                self.price = float(np.clip(self.price - self.price_step * (self.radius**2 - moved), *self.price_range))
        self.points[index] = points.detach()
        return points.detach()
