"""Small networks for the tests of Lipschitz bounds, and what they do, by numpy."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import torch
from torch import nn

from riskband.adversaries import Batch
from riskband.models.losses import get_loss

EXPONENTS = {"l1": 1, "l2": 2, "linf": np.inf}


def seeded(build, seed=0):
    """A module from a function, with weights decided by the seed; torch's global state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def mlp(*sizes, seed=0, bias=True, activation=nn.ReLU):
    def build():
        layers = []
        for before, after in itertools.pairwise(sizes):
            layers += [nn.Linear(before, after, bias=bias), activation()]
        return nn.Sequential(*layers[:-1])

    return seeded(build, seed)


def cnn(seed=0):
    """Every kind of layer; inputs (2, 8, 8), 4 classes."""

    def build():
        model = nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1),
            nn.BatchNorm2d(4),
            nn.LeakyReLU(0.1),
            nn.Sequential(nn.MaxPool2d(2, stride=1), nn.Conv2d(4, 4, 2, groups=2), nn.ReLU()),
            nn.AvgPool2d(2, stride=1),
            nn.Flatten(),
            nn.Dropout(),
            nn.Linear(4, 4),
        )
        model[1].running_var.uniform_(0.3, 2.0)
        model[1].running_mean.normal_()
        return model

    return seeded(build, seed)


def batch_of(model, x, y=None, *, loss="zero_one"):
    """Examples, arrays in single precision, with the labels that the model gives them if none are given."""
    x = x if isinstance(x, torch.Tensor) else torch.as_tensor(x, dtype=torch.float32)
    with torch.no_grad():
        logits = model.eval()(x).double()
    labels = logits.argmax(dim=1) if y is None else torch.as_tensor(y)
    return Batch(x=x, labels=labels, logits=logits, losses=get_loss(loss).per_example(logits, labels))


def logits_of(model, x):
    """Double-precision logits of points (num_points, *x_shape)."""
    double = copy.deepcopy(model).double().eval()
    with torch.no_grad():
        return double(torch.as_tensor(np.asarray(x), dtype=torch.float64)).numpy()


def padded_cnn(seed=0):
    """Overlapping, padded and cut windows; inputs (2, 6, 6), 3 classes; small enough for local bounds."""
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1, ceil_mode=True),
            nn.Conv2d(3, 4, 2, stride=2),
            nn.Tanh(),
            nn.MaxPool2d(2, stride=1),
            nn.Flatten(),
            nn.Linear(4, 5),
            nn.LeakyReLU(0.2),
            nn.Linear(5, 3),
        ),
        seed,
    )


def quotients(model, x, moved, *, norm):
    """Difference quotients of all margins z_j - z_k between pairs of points, (num_points, num_classes, num_classes)."""
    change = logits_of(model, moved) - logits_of(model, x)
    distance = np.linalg.norm((moved - x).reshape(len(x), -1), ord=EXPONENTS[norm], axis=1)
    return (change[:, :, None] - change[:, None]) / distance[:, None, None]


def random_pairs(x_shape, *, seed, num_points=300):
    """Points and moves of very different lengths, some along one coordinate."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_points, *x_shape)) * 3.0
    step = rng.normal(size=x.shape) * 10.0 ** rng.uniform(-4, 1, size=(num_points, *[1] * len(x_shape)))
    sparse = step.reshape(num_points, -1)[::3]
    sparse *= np.eye(sparse.shape[1])[rng.integers(sparse.shape[1], size=len(sparse))]
    return x, x + step
