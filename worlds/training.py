"""Training the evaluated model, centrally or on one client.

The same arguments give the same weights on one machine with one number of torch threads, which the
caller sets: `torch.set_num_threads` is never called here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim.adam import adam

from protocol.checks import checked_count, checked_number, checked_seed
from protocol.models import build_model, is_lipschitz
from riskband.models.evaluation import chosen_device, computed
from worlds.datasets import BaseData
from worlds.orthogonal import OrthogonalDescent
from worlds.shifts import AffineShift, check_pairs

Change = Callable[[nn.Module, NDArray[np.float32], NDArray[np.int64], np.random.Generator], NDArray[np.float32]]
"""(model, images, labels, rng) -> the images that a step of the training sees instead."""

# Of the loss with a margin, in units of the margin; and the share of the steps in which the rate of one cycle rises.
_TEMPERATURE = 0.4
_WARMING = 0.15


def train_centrally(data: BaseData, *, model: str, seed: int, device: str = "cpu", **training: Any) -> nn.Module:
    """Build a model and train it on the training split of `data`; the pool is not looked at.

    `model` is a name for `protocol.models.build_model`; `seed` decides the first weights and the order of the examples.
    The layers of a model that is Lipschitz by design are kept orthogonal. It is trained on a device of
    `riskband.models.evaluation.DEVICES` and returned on the CPU. The rest is that of `train_epochs`, which raises
    the same errors.
    """
    net = build_model(model, x_shape=data.x_train.shape[1:], num_classes=data.num_classes, seed=seed)
    net = net.to(chosen_device(device))
    train_epochs(net, data.x_train, data.y_train, seed=seed, is_orthogonal=is_lipschitz(model), **training)
    return net.cpu()


def train_epochs(
    model: nn.Module,
    x: NDArray[np.float32],
    y: NDArray[np.int64],
    *,
    seed: int,
    num_epochs: int,
    learning_rate: float,
    batch_size: int = 32,
    momentum: float | None = None,
    is_orthogonal: bool = False,
    margin: float = 0.0,
    is_one_cycle: bool = False,
    augment_sigma: float = 0.0,
    noise_sigma: float = 0.0,
    change: Change | None = None,
    after_epoch: Callable[[int, nn.Module], None] | None = None,
) -> float:
    """Train `model` in place on the cross-entropy, by an optimiser whose state is fresh at each call.

    The model maps images (num_examples, *x_shape) to logits. Returned is the mean cross-entropy over the last epoch, in
    nats, ≥ 0; ValueError is raised if it is not finite.

    Parameters
    ----------
    seed
        ≥ 0; decides the order of the examples, the augmentation, and what the model itself draws.
    num_epochs, batch_size
        ≥ 1.
    learning_rate
        In (0, 1], with Adam about the change of a weight in one step.
    momentum
        In [0, 1], of stochastic gradient descent; None for Adam.
    is_orthogonal
        Whether `worlds.orthogonal.OrthogonalDescent` keeps the layers orthogonal, instead of both.
    margin
        ≥ 0. Above 0, the label's logit is lowered by it, and all logits are divided by 0.4 of it (Prach and Lampert
        2022): the cross-entropy then asks for margins of about this size, and gains little from larger ones.
    is_one_cycle
        Whether the learning rate rises from 0 during the first 15 % of the steps and then falls to 0, both linearly.
    augment_sigma
        ≥ 0; each batch is seen under a fresh `AffineShift` of this strength, 0 for none.
    noise_sigma
        ≥ 0; the standard deviation of fresh Gaussian noise on every number of every batch, 0 for none: for a model that
        will be smoothed with such noise (Cohen et al. 2019).
    change
        What each batch is made of its images last of all, such as an attack on the model as it is (adversarial
        training); None: nothing.
    after_epoch
        Called with the number of epochs done (from 1) and the model, which it must leave as it is.
    """
    seed = checked_seed(seed)
    num_epochs = checked_count("num_epochs", num_epochs, minimum=1, remedy="give the number of passes")
    batch_size = checked_count("batch_size", batch_size, minimum=1, remedy="32 is a usual choice")
    remedy = "0.003 is a usual choice"
    learning_rate = checked_number("learning_rate", learning_rate, above=0, maximum=1, remedy=remedy)
    check_pairs(x, y)
    margin = checked_number("margin", margin, minimum=0, remedy="0.5 suits images of CIFAR-10; 0 is none")
    noise_sigma = checked_number("noise_sigma", noise_sigma, minimum=0, remedy="give that of the smoothing; 0 is none")
    shift = AffineShift(augment_sigma)
    rng = np.random.default_rng(seed)
    optimizer = _optimizer(model, learning_rate=learning_rate, momentum=momentum, is_orthogonal=is_orthogonal)
    shares = _one_cycle(num_epochs * math.ceil(len(y) / batch_size)) if is_one_cycle else itertools.repeat(1.0)
    model.train()
    mean_loss = 0.0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # for models that draw, as dropout does
        for epoch in range(1, num_epochs + 1):
            order = rng.permutation(len(y))
            batches = [order[start : start + batch_size] for start in range(0, len(y), batch_size)]
            total = 0.0
            for batch in batches:
                inputs, labels = shift.apply(x[batch], y[batch], rng)
                if noise_sigma > 0:
                    inputs = inputs + noise_sigma * rng.standard_normal(inputs.shape, dtype=np.float32)
                if change is not None:
                    inputs = change(model, inputs, labels, rng)
                _set_rate(optimizer, learning_rate * next(shares))
                total += len(batch) * _step(model, optimizer, inputs, labels, margin=margin)
            mean_loss = total / len(y)
            if after_epoch is not None:
                after_epoch(epoch, model)
    return mean_loss


class _Adam:
    """Adam, as `torch.optim.Adam` with its defaults, by the same function of torch.

    Making a `torch.optim.Optimizer` imports torch's compiler, which takes longer than a small training.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], *, learning_rate: float) -> None:
        self._parameters = [each for each in parameters if each.requires_grad]
        self.learning_rate = learning_rate
        self._state = [(torch.tensor(0.0), torch.zeros_like(each), torch.zeros_like(each)) for each in self._parameters]

    def zero_grad(self) -> None:
        for each in self._parameters:
            each.grad = None

    @torch.no_grad()
    def step(self) -> None:
        for each, (num_steps, mean, square) in zip(self._parameters, self._state, strict=True):
            if each.grad is not None:
                adam(
                    [each], [each.grad], [mean], [square], [], [num_steps],
                    foreach=False, amsgrad=False, beta1=0.9, beta2=0.999, lr=self.learning_rate, weight_decay=0.0,
                    eps=1e-8, maximize=False,
                )  # fmt: skip


Optimiser = _Adam | OrthogonalDescent | torch.optim.Optimizer


def _optimizer(model: nn.Module, *, learning_rate: float, momentum: float | None, is_orthogonal: bool) -> Optimiser:
    if is_orthogonal:
        return OrthogonalDescent(model, learning_rate=learning_rate)
    if momentum is None:
        return _Adam(model.parameters(), learning_rate=learning_rate)
    momentum = checked_number("momentum", momentum, minimum=0, maximum=1, remedy="0.9 is a usual choice")
    return torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=momentum)


def _set_rate(optimizer: Optimiser, learning_rate: float) -> None:
    if isinstance(optimizer, torch.optim.Optimizer):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
    else:
        optimizer.learning_rate = learning_rate


def _one_cycle(num_steps: int) -> Iterator[float]:
    """Yield, for each step, by what the learning rate is multiplied."""
    for done in (number / num_steps for number in range(num_steps)):
        yield min(done / _WARMING, (1.0 - done) / (1.0 - _WARMING))


def _step(
    model: nn.Module, optimizer: Optimiser, x: NDArray[np.float32], y: NDArray[np.int64], *, margin: float
) -> float:
    """Take one step on one batch and return its mean loss before the step."""
    optimizer.zero_grad()
    logits, labels = computed(model, torch.from_numpy(x)), torch.from_numpy(y)
    if margin > 0.0:
        logits = (logits - margin * nn.functional.one_hot(labels, logits.shape[1])) / (_TEMPERATURE * margin)
    loss = nn.functional.cross_entropy(logits, labels)
    value = loss.item()
    if not np.isfinite(value):
        raise ValueError(f"the training loss must stay finite, got {value}; lower learning_rate, or check the images")
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return value
