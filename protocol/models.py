"""The models that are evaluated, and their weights as plain arrays."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from protocol.checks import checked_count, checked_seed
from riskband.checks import kind_of
from riskband.models.group_sort import GroupSort

MAX_NUM_CLASSES = 100_000
"""A client builds the model that a message names: without a limit, a number in it could take all memory."""


ROBUSTBENCH = "robustbench/"
"""What the name of a model of RobustBench begins with; its identifier there follows."""


def is_model_name(name: str) -> bool:
    """Return whether a name is that of a model here, or may be one of a model elsewhere; nothing is imported."""
    return name in BUILT_IN_MODELS or name.removeprefix(ROBUSTBENCH) not in ("", name) or all(name.partition(":"))


def build_model(name: str, *, x_shape: tuple[int, ...], num_classes: int, seed: int) -> nn.Module:
    """Build a model with random weights decided by `seed`; torch's global state is left untouched.

    Parameters
    ----------
    name
        ``"cnn"`` (two convolutions and two linear layers, about 20,000 weights; images only), ``"mlp"``
        (one hidden layer; inputs of any shape), ``"lipschitz-cnn"`` and ``"lipschitz-mlp"`` (Lipschitz by design:
        orthogonal layers and `GroupSort`), ``"preact-resnet-18"``, ``"wrn-28-10"``, ``"vit-small"`` or
        ``"robustbench/IDENTIFIER"`` (`protocol.architectures`; images only), or ``"module:factory"``: something of
        yours, importable where clients run: a function, called as ``factory(x_shape=..., num_classes=...)``, or a
        class of modules, called with those of the two that its constructor knows, such as none. A function that does
        not name ``x_shape`` is called as ``factory(num_classes=...)`` if it names that, and as
        ``factory(weights=None, num_classes=...)`` if it is one of torchvision's.
    x_shape
        Shape of one input; for "cnn" (channels, height, width).
    num_classes
        From 2 to `MAX_NUM_CLASSES`, the number of logits.
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
    if num_classes > MAX_NUM_CLASSES:
        raise ValueError(f"num_classes must be at most {MAX_NUM_CLASSES}, got {num_classes}; check the labels")
    seed = checked_seed(seed)
    x_shape = tuple(
        checked_count("each entry of x_shape", size, minimum=1, remedy="give the shape of one input")
        for size in x_shape
    )
    factory = _own_factory(name) or _imported_factory(name)
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also note the seed, with a stack trace, for every kind of accelerator: 3 ms each time.
        torch.default_generator.manual_seed(seed)
        model = _built(factory, name, {"x_shape": x_shape, "num_classes": num_classes})
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"a model factory must return a torch.nn.Module, got {type(model).__name__} from {name!r}; "
            "return the module itself"
        )
    return model


def is_lipschitz(name: str) -> bool:
    """Return whether a model of this name is Lipschitz by design: training is to keep its layers orthogonal."""
    return name.startswith("lipschitz-")


def model_arrays(model: nn.Module) -> dict[str, NDArray[np.generic]]:
    """Return copies of all parameters and buffers of `model`, by name, in the order of its state dict."""
    return {name: value.detach().cpu().numpy().copy() for name, value in _state(model).items()}


def load_arrays(model: nn.Module, arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Copy `arrays`, as from `model_arrays`, into `model`.

    Raises ValueError if the names, the shapes or the kinds of number are not those of `model`, or a weight is not
    finite; the message names the first that differs, and `model` is left as it was.
    """
    state = _state(model)
    expected = {name: tuple(value.shape) for name, value in state.items()}
    given = {name: np.shape(array) for name, array in arrays.items()}
    differing = [name for name in expected | given if expected.get(name) != given.get(name)]
    if differing:
        first, others = differing[0], len(differing) - 1
        raise ValueError(
            f"the arrays must fit the model, got a model that does not fit: {first!r} has shape "
            f"{given.get(first, 'none')} instead of {expected.get(first, 'none')}"
            f"{f' ({others} more differ)' if others else ''}; build the model with the name, input shape and number of "
            "classes that the arrays were made with"
        )
    for name, value in state.items():
        array = np.asarray(arrays[name])
        if array.dtype.kind not in _kinds(value):
            raise ValueError(
                f"the arrays must fit the model, got {name!r} of type {array.dtype} instead of {value.dtype}; "
                "send the arrays of model_arrays"
            )
        if array.dtype.kind in "fc" and not np.all(np.isfinite(array)):
            raise ValueError(f"the arrays must be finite, got NaN or infinity in {name!r}; check the training")
    # torch.tensor copies, so arrays that are read-only (received from the network) need no care.
    tensors = {name: torch.tensor(np.asarray(arrays[name])) for name in state}
    with _own_words("take weights that fit its state dict"):
        model.load_state_dict(tensors)


def save_checkpoint(model: nn.Module, path: str | Path) -> None:
    """Write the weights of `model` to the file `path` with torch.save, as a state dict."""
    torch.save(model.state_dict(), path)


def load_checkpoint(path: str | Path) -> dict[str, NDArray[np.generic]]:
    """Read weights written by `save_checkpoint`, or any state dict, as arrays by name; no code in the file is run.

    The state dict may be the entry "state_dict", "last", "model_state_dict", "model" or "net" of the file (the first
    there is). `load_weights` checks that it fits a model. Raises ValueError if the file is no readable state dict.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch reads several formats, and raises many things where one is broken
        raise ValueError(
            f"the checkpoint must be a readable state dict, got {str(path)!r} ({type(error).__name__}); "
            "save it with torch.save(model.state_dict(), path)"
        ) from error
    if isinstance(state, dict):
        state = next((state[name] for name in _WRAPPERS if isinstance(state.get(name), dict)), state)
    if not (isinstance(state, dict) and all(isinstance(value, torch.Tensor) for value in state.values())):
        raise ValueError(
            f"the checkpoint must be a state dict of tensors, got {type(state).__name__} in {str(path)!r}; "
            "save model.state_dict(), not the model"
        )
    try:
        return {str(name): value.detach().numpy() for name, value in state.items()}
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"the checkpoint must hold dense tensors of types that NumPy has, got others in {str(path)!r}; "
            "convert them, for example with tensor.float()"
        ) from error


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Copy the weights in a file, as for `load_checkpoint`, into `model`; files of RobustBench need no conversion.

    Where the names do not fit as they are, the prefixes "module." (of `nn.DataParallel`) and "model." that all have
    are taken off. Counts of batches may be missing, for nothing is computed with them. A mean and a deviation of the
    inputs ("mu", "sigma"; "mean", "std"; "normalize.mean", "normalize.std") must be those that the model has inside.

    Raises ValueError as `load_checkpoint` and `load_arrays`, or if the file normalises the inputs in another way than
    the model.
    """
    arrays, state = load_checkpoint(path), _state(model)
    if set(arrays) != set(state):
        arrays = _without_prefixes(_without_normalisation(model, arrays))
        counts = {name: value.numpy() for name, value in state.items() if name.endswith("num_batches_tracked")}
        arrays = {**counts, **arrays}
    load_arrays(model, arrays)


def _without_prefixes(arrays: dict[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
    for prefix in ("module.", "model."):
        if all(name.startswith(prefix) for name in arrays):
            arrays = {name.removeprefix(prefix): value for name, value in arrays.items()}
    return arrays


def _without_normalisation(
    model: nn.Module, arrays: Mapping[str, NDArray[np.generic]]
) -> dict[str, NDArray[np.generic]]:
    """Leave out how a file normalises inputs, if the model does so too; raises ValueError if in another way."""
    arrays = dict(arrays)
    for name in list(arrays):
        kind = _NORMALISATIONS.get(name.removeprefix("module.").removeprefix("normalize."))
        inside = getattr(model, kind, None) if kind is not None else None
        if not isinstance(inside, torch.Tensor) or kind in _state(model):
            continue
        given, own = arrays.pop(name).ravel(), inside.numpy().ravel()
        if not np.allclose(given, own if len(own) == len(given) else np.resize(own, len(given)), atol=1e-6):
            raise ValueError(
                f"the checkpoint must normalise inputs as the model does, got {name!r} {given.tolist()} instead of "
                f"{own.tolist()}; name the model that the file is of"
            )
    return arrays


def _of_images(
    factory: Callable[..., nn.Module], name: str, *, x_shape: tuple[int, ...], num_classes: int
) -> nn.Module:
    if len(x_shape) != 3:
        raise ValueError(
            f"the model {name!r} needs inputs of shape (channels, height, width), got {x_shape}; use 'mlp'"
        )
    return factory(x_shape=x_shape, num_classes=num_classes)


def _cnn(*, x_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    is_small = all(math.ceil(size / 2) == 4 for size in x_shape[1:])  # then the pool does nothing, and slowly
    return nn.Sequential(
        nn.Conv2d(x_shape[0], 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Identity() if is_small else nn.AdaptiveAvgPool2d(4),  # whatever the size of the image, 4 x 4 from here on
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.ReLU(),
        nn.Linear(32, num_classes),
    )


def _mlp(*, x_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(x_shape), 64), nn.ReLU(), nn.Linear(64, num_classes))


def _lipschitz_cnn(*, x_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Halve the image while that leaves at least 4 x 4, each time for twice the channels; 3 x 3 while it is larger."""
    if len(x_shape) != 3 or min(x_shape[1:]) < 8 or any(size % 2 for size in x_shape[1:]):
        raise ValueError(
            "the model 'lipschitz-cnn' needs inputs of shape (channels, height, width), both even and at least 8, got "
            f"{x_shape}; use 'lipschitz-mlp', or pad the images"
        )
    channels, height, width = x_shape
    layers: list[nn.Module] = []
    after = 32
    while height % 2 == width % 2 == 0 and min(height, width) >= 8:
        kernel = 1 if layers else 3
        layers += [nn.PixelUnshuffle(2), nn.Conv2d(4 * channels, after, kernel, padding=kernel // 2), GroupSort()]
        channels, height, width, after = after, height // 2, width // 2, 2 * after
        for _ in range(2 if max(height, width) > 4 else 0):
            layers += [nn.Conv2d(channels, channels, kernel_size=3, padding=1), GroupSort()]
    layers += [nn.Flatten(), nn.Linear(channels * height * width, 256), GroupSort(), nn.Linear(256, num_classes)]
    return _made_orthogonal(nn.Sequential(*layers))


def _lipschitz_mlp(*, x_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    hidden = [nn.Linear(math.prod(x_shape), 64), GroupSort(), nn.Linear(64, 64), GroupSort()]
    return _made_orthogonal(nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, num_classes)))


@torch.no_grad()
def _made_orthogonal(model: nn.Sequential) -> nn.Sequential:
    """Give linear layers and convolutions random orthogonal weights, and biases of 0.

    Of a 3 x 3 convolution: channels are rotated, shifted by at most a pixel, each its own way, and rotated again.
    """
    for layer in model:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            assert layer.bias is not None
            layer.bias.zero_()
            kernel = layer.weight.reshape(*layer.weight.shape[:2], -1)  # a view
            rank = min(kernel.shape[:2])
            into, out = torch.empty(rank, kernel.shape[1]), torch.empty(len(kernel), rank)
            nn.init.orthogonal_(into)
            nn.init.orthogonal_(out)
            for place in range(kernel.shape[2]):
                shifted = slice(place, None, kernel.shape[2])
                kernel[:, :, place] = out[:, shifted] @ into[shifted]
    return model


def _state(model: nn.Module) -> dict[str, torch.Tensor]:
    with _own_words("have a state dict"):
        state = dict(model.state_dict())
        is_tensors = all(isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in state.items())
    if not is_tensors:
        raise ValueError("a model must have a state dict of tensors by name, got another thing; see torch's own")
    return state


@contextmanager
def _own_words(rule: str) -> Iterator[None]:
    """Replace what a model of somebody else's raises: its text may name a client's files, and would reach the server.

    It may raise what ends a process, too, such as SystemExit. Only who sits at the keyboard may do that.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ValueError(f"a model must {rule}, got {kind_of(error)}; call it by hand to see why") from error


def _kinds(value: torch.Tensor) -> str:
    """Return the kinds of numpy dtype, as letters, that a tensor takes without losing what the numbers mean."""
    if value.is_floating_point():
        return "f"
    return "c" if value.is_complex() else "b" if value.dtype is torch.bool else "iu"


_WRAPPERS = ("state_dict", "last", "model_state_dict", "model", "net")
_NORMALISATIONS = {"mu": "mean", "mean": "mean", "sigma": "std", "std": "std"}
_SMALL: dict[str, Callable[..., nn.Module]] = {
    "cnn": partial(_of_images, _cnn, "cnn"),
    "mlp": _mlp,
    "lipschitz-cnn": _lipschitz_cnn,
    "lipschitz-mlp": _lipschitz_mlp,
}
# By the name of their factory in `protocol.architectures`, which few runs load.
_ARCHITECTURES = {
    "preact-resnet-18": "preact_resnet_18",
    "wrn-28-10": "wrn_28_10",
    "vit-small": "VisionTransformer",
}
BUILT_IN_MODELS = (*_SMALL, *_ARCHITECTURES)
"""Names of models, besides `ROBUSTBENCH` with an identifier and "module:factory"."""


def _own_factory(name: str) -> Callable[..., nn.Module] | None:
    """Return the factory of a model that is named here; None for the name of any other."""
    if name in _SMALL:
        return _SMALL[name]
    if name not in _ARCHITECTURES and not str(name).startswith(ROBUSTBENCH):
        return None
    from protocol import architectures

    if name in _ARCHITECTURES:
        factory: Callable[..., nn.Module] = getattr(architectures, _ARCHITECTURES[name])
        return partial(_of_images, factory, name)
    return architectures.of_robustbench(name.removeprefix(ROBUSTBENCH))


def _imported_factory(name: str) -> Callable[..., nn.Module]:
    module, _, attribute = str(name).partition(":")
    if not (module and attribute):
        raise ValueError(
            f"model must be one of {', '.join(BUILT_IN_MODELS)}, '{ROBUSTBENCH}IDENTIFIER' or 'module:factory', got "
            f"{name!r}; for a model of your own give the function that builds it, as in 'mypackage.nets:small'"
        )
    try:
        factory: Callable[..., nn.Module] = getattr(importlib.import_module(module), attribute)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a module does, even to end the process; its text would reach the server
        raise ValueError(
            f"the model factory must be importable, got {name!r} ({kind_of(error)}); "
            "put its module where the server and every client can import it"
        ) from error
    if not callable(factory):
        raise ValueError(f"the model factory must be a function, got {type(factory).__name__} at {name!r}; name one")
    return factory


def _built(factory: Callable[..., nn.Module], name: str, arguments: dict[str, object]) -> nn.Module:
    """Call a factory with the arguments that it takes.

    The name may come in a message, so a function is called only if it is made for this: it takes both, or names the
    number of classes. A class of modules, which only builds itself, may know fewer.
    """
    is_module = isinstance(factory, type) and issubclass(factory, nn.Module)
    try:
        signature = inspect.signature(factory)
        has_more = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
        if not is_module and _is_torchvisions(factory, signature):
            arguments = {"weights": None, "num_classes": arguments["num_classes"]}
        elif not has_more and (is_module or "num_classes" in signature.parameters):
            arguments = {key: value for key, value in arguments.items() if key in signature.parameters}
        signature.bind(**arguments)
    except Exception:
        raise ValueError(
            f"a model factory must take x_shape and num_classes, got one at {name!r} that does not; write "
            "def factory(*, x_shape, num_classes), or name a class of modules whose other arguments have defaults"
        ) from None
    try:
        return factory(**arguments)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # see `_own_words`
        if isinstance(error, ValueError) and (name in BUILT_IN_MODELS or name.startswith(ROBUSTBENCH)):
            raise
        raise ValueError(
            f"the model factory must build a model of inputs {arguments.get('x_shape', 'of its own choice')}, got "
            f"{kind_of(error)} from {name!r}; call it by hand to see why"
        ) from error


def _is_torchvisions(factory: Callable[..., object], signature: inspect.Signature) -> bool:
    """Whether a function builds a model as those of torchvision do: ``(*, weights=None, **kwargs)``."""
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    home = str(getattr(factory, "__module__", ""))
    return (
        home.startswith("torchvision.") and "weights" in signature.parameters and inspect.Parameter.VAR_KEYWORD in kinds
    )
