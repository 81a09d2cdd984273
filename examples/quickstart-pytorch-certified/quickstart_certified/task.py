"""The model, the clients' data, training and testing: no Flower and no riskband."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

NUM_TRAINING_IMAGES = 1200  # of 1,797; testing draws from the others, which no client trains on
NUM_TRAIN, NUM_TEST = 60, 50
digits = cache(load_digits)


class Net(nn.Sequential):
    """Two layers for images of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def load_data(partition_id: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test examples of one client, which writes some digits more often than others."""
    rng = np.random.default_rng([2026, partition_id])
    images, labels = digits(return_X_y=True)
    often = rng.dirichlet(np.ones(10))[labels]
    is_training = np.random.default_rng(2026).permutation(labels.size) < NUM_TRAINING_IMAGES

    def drawn(is_in: np.ndarray, size: int) -> tuple[Tensor, Tensor]:
        chosen = rng.choice(labels.size, size=size, p=often * is_in / np.sum(often * is_in))
        return torch.tensor(images[chosen] / 16.0, dtype=torch.float32), torch.tensor(labels[chosen])

    return drawn(is_training, NUM_TRAIN), drawn(~is_training, NUM_TEST)


def train(net: nn.Module, examples: tuple[Tensor, Tensor], *, epochs: int, learning_rate: float) -> float:
    """Train in place; returns the last loss."""
    inputs, labels = examples
    optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate, momentum=0.9)
    for _ in range(epochs):
        for batch in torch.randperm(len(labels)).split(16):
            optimizer.zero_grad()
            loss = cross_entropy(net(inputs[batch]), labels[batch])
            loss.backward()
            optimizer.step()
    return loss.item()


@torch.no_grad()
def test(net: nn.Module, examples: tuple[Tensor, Tensor]) -> float:
    """The share of examples that the model gets right."""
    inputs, labels = examples
    return float((net(inputs).argmax(1) == labels).float().mean())
