"""The networks that are evaluated, and their weights as plain arrays."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from simulations.checks import checked_count, checked_seed


def build_model(name: str, *, x_shape: tuple[int, ...], num_classes: int, seed: int) -> nn.Module:
    """Build a model with random weights decided by `seed`; torch's global state is left untouched.

    Parameters
    ----------
    name
        ``"cnn"`` (two convolutions and two linear layers, about 20,000 weights; images only), ``"mlp"``
        (one hidden layer; inputs of any shape), or ``"module:factory"``: a function of yours, importable
        where clients run, called as ``factory(x_shape=..., num_classes=...)``.
    x_shape
        Shape of one input; for "cnn" (channels, height, width).
    num_classes
        ≥ 2, the number of logits.
    seed
        ≥ 0.

    Returns
    -------
    nn.Module
        Maps (num_examples, *x_shape) to logits (num_examples, num_classes). The last layer of the
        models named here is an `nn.Linear`.

    Raises
    ------
    ValueError
        If the name is unknown, the factory is not usable, or an argument breaks its rule.
    """
    num_classes = checked_count("num_classes", num_classes, minimum=2, remedy="check the labels")
    seed = checked_seed(seed)
    x_shape = tuple(
        checked_count("each entry of x_shape", size, minimum=1, remedy="give the shape of one input")
        for size in x_shape
    )
    factory = _FACTORIES.get(name) or _imported_factory(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = factory(x_shape=x_shape, num_classes=num_classes)
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"a model factory must return a torch.nn.Module, got {type(model).__name__} from {name!r}; "
            "return the module itself"
        )
    return model


def model_arrays(model: nn.Module) -> dict[str, NDArray[np.generic]]:
    """Return copies of all parameters and buffers of `model`, by name, in the order of its state dict."""
    return {name: value.detach().cpu().numpy().copy() for name, value in model.state_dict().items()}


def load_arrays(model: nn.Module, arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Copy `arrays`, as from `model_arrays`, into `model`.

    Raises
    ------
    ValueError
        If the names or the shapes are not those of `model`; the message names the first that differs,
        and `model` is left as it was.
    """
    state = model.state_dict()
    for name in [*state, *arrays]:
        expected = tuple(state[name].shape) if name in state else "none"
        given = np.shape(arrays[name]) if name in arrays else "none"
        if expected != given:
            raise ValueError(
                f"the arrays must fit the model, got a model that does not fit: {name!r} has shape {given} "
                f"instead of {expected}; build the model with the name, input shape and number of classes "
                "that the arrays were made with"
            )
    # torch.tensor copies, so arrays that are read-only (received from the network) need no care.
    model.load_state_dict({name: torch.tensor(np.asarray(arrays[name])) for name in state})


def _cnn(*, x_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    if len(x_shape) != 3:
        raise ValueError(f"the model 'cnn' needs inputs of shape (channels, height, width), got {x_shape}; use 'mlp'")
    return nn.Sequential(
        nn.Conv2d(x_shape[0], 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),  # whatever the size of the image, 4 x 4 from here on
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.ReLU(),
        nn.Linear(32, num_classes),
    )


def _mlp(*, x_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(x_shape), 64), nn.ReLU(), nn.Linear(64, num_classes))


_FACTORIES: dict[str, Callable[..., nn.Module]] = {"cnn": _cnn, "mlp": _mlp}


def _imported_factory(name: str) -> Callable[..., nn.Module]:
    module, _, attribute = str(name).partition(":")
    if not (module and attribute):
        raise ValueError(
            f"model must be one of {', '.join(_FACTORIES)} or 'module:factory', got {name!r}; "
            "for a model of your own give the function that builds it, as in 'mypackage.nets:small'"
        )
    try:
        factory: Callable[..., nn.Module] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"the model factory must be importable, got {name!r} ({error}); "
            "put its module where the server and every client can import it"
        ) from error
    if not callable(factory):
        raise ValueError(f"the model factory must be a function, got {type(factory).__name__} at {name!r}; name one")
    return factory
