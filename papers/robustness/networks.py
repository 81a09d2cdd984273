"""The models of the attacks table, trained here or read from a file, and the images that each is examined on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from papers.experiment import Request
from papers.networks import kept
from protocol.models import build_model, load_weights
from riskband.models.evaluation import chosen_device, computed
from worlds import lipschitz
from worlds.cifar10 import load_network
from worlds.datasets import BaseData, load_dataset
from worlds.training import train_epochs

_STEP = 1.25  # of FGSM, in radii (Wong et al. 2020)


@dataclass(frozen=True)
class Training:
    """How a model of the table is trained, on the digits or a file in the folder of data sets.

    Each batch is moved by one step of FGSM from a random start within an ℓ∞ distance (Wong et al. 2020), or gets
    Gaussian noise of a standard deviation, for smoothing; 0: neither.
    """

    model: str
    dataset: str = "digits"
    num_epochs: int = 10
    fgsm_radius: float = 0.0
    noise: float = 0.0

    def __call__(self, request: Request) -> tuple[nn.Module, BaseData]:
        """Return the trained model, kept in the request's cache, and its data."""
        data = table_data(self.dataset, request)
        model = build_model(self.model, x_shape=data.x_pool.shape[1:], num_classes=data.num_classes, seed=request.seed)

        def train() -> None:
            train_epochs(
                model.to(chosen_device(request.device)),
                data.x_train,
                data.y_train,
                seed=request.seed,
                num_epochs=self.num_epochs,
                learning_rate=0.003 if self.dataset == "digits" else 0.001,
                batch_size=32 if self.dataset == "digits" else 128,
                noise_sigma=self.noise,
                change=partial(fgsm_from_random_start, radius=self.fgsm_radius) if self.fgsm_radius else None,
            )

        return kept(model, train, cache=request.cache, arguments=(self, request.seed), name=self.dataset), data


def lipschitz_by_design(request: Request, *, dataset: str) -> tuple[nn.Module, BaseData]:
    """Return a "lipschitz-cnn" trained by its recipe in `worlds.lipschitz`, kept in the cache, and its data."""
    data, recipe = table_data(dataset, request), lipschitz.RECIPES[dataset]
    num_epochs = request.count("epochs", full=recipe.num_epochs, quick=recipe.num_epochs)
    recipe = replace(recipe, num_epochs=num_epochs)
    x_shape, num_classes = data.x_pool.shape[1:], data.num_classes
    model = build_model("lipschitz-cnn", x_shape=x_shape, num_classes=num_classes, seed=request.seed)

    def train() -> None:
        model.load_state_dict(lipschitz.trained(data, recipe, seed=request.seed).state_dict())

    return kept(model, train, cache=request.cache, arguments=(*_settings(recipe), request.seed), name=dataset), data


def _settings(recipe: lipschitz.Recipe) -> tuple[object, ...]:
    """All of a recipe, without an address in its `repr`."""
    return tuple(getattr(value, "__name__", value) for value in vars(recipe).values())


def fgsm_from_random_start(
    model: nn.Module, x: NDArray[np.float32], y: NDArray[np.int64], rng: np.random.Generator, *, radius: float
) -> NDArray[np.float32]:
    """Return images one signed gradient step from a random start, all within an ℓ∞ distance and in [0, 1]."""
    start = torch.from_numpy(rng.uniform(-radius, radius, x.shape).astype(np.float32)).requires_grad_()
    images = torch.from_numpy(x)
    loss = nn.functional.cross_entropy(computed(model, images + start), torch.from_numpy(y))
    (slope,) = torch.autograd.grad(loss, start)
    move = (start.detach() + _STEP * radius * slope.sign()).clamp(-radius, radius)
    return (images + move).clamp(0.0, 1.0).numpy()


def published_cifar10(request: Request) -> tuple[nn.Module, BaseData]:
    """Return the trained CIFAR-10 model of `worlds.cifar10`, from the folder of data sets."""
    return load_network(request.file("cifar10_cnn")), table_data("cifar10", request)


def of_checkpoint(request: Request) -> tuple[nn.Module, BaseData]:
    """Return the request's own model, with the weights of its file."""
    data = table_data(request.dataset_of_model, request)
    model = build_model(request.model, x_shape=data.x_pool.shape[1:], num_classes=data.num_classes, seed=request.seed)
    assert request.checkpoint is not None  # the row exists with it only
    load_weights(model, request.checkpoint)
    return model.eval(), data


def table_data(name: str, request: Request) -> BaseData:
    """Return the digits, or a data set of the folder."""
    return load_dataset(name if name == "digits" else f"npz:{request.file(name)}")


Network = Callable[[Request], tuple[nn.Module, BaseData]]
