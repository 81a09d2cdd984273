"""A model on another device: only it is there, and every answer is the one of the CPU.

Where there is no GPU a made-up device stands for it (`Elsewhere`): tensors that are there must not meet others, as in
torch, while the arithmetic is the CPU's. So the answers must be the same to the last bit.
"""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn
from torch.overrides import TorchFunctionMode

from papers.domain_generalisation.training import train_on_domains
from protocol.examples import Examples
from riskband.adversaries import TransportProblem, adversarial_curves
from riskband.models.evaluation import chosen_device, device_of, example_losses, full_precision, largest_batch
from worlds.training import train_epochs

GPU = torch.device("cuda", 0)
HAS_GPU = torch.cuda.is_available()
ASKED = (
    ("zero_one", 1, "l2", "input", "sandwich"),
    ("zero_one", 1, "linf", "input", "square"),
    ("cross_entropy", 2, "l2", "input", "wda-knapsack"),
    ("zero_one", 1, "l2", "input", "apgd"),
    ("zero_one", 1, "l2", "input", "smoothing:0.25:100"),
    ("margin", 1, "l2", "layer:1", "sandwich:pgd"),
    ("zero_one", 2, "l2", "representation", "auto"),
    ("brier", 1, "linf", "representation", "ascent"),
)
RADII = (0.0, 0.05, 0.2, 1.0)


class OnGpu(torch.Tensor):
    """A tensor that says it is on the GPU."""

    def __deepcopy__(self, memo):
        return nn.Parameter(self.detach().clone(), requires_grad=self.requires_grad)


class Elsewhere(TorchFunctionMode):
    """While active, `.to("cuda")` and `.cpu()` move tensors to `OnGpu` and back, and no operation takes both kinds."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func is torch.Tensor.to and any(isinstance(arg, torch.device) for arg in args):
                return args[0].as_subclass(OnGpu if torch.device("cuda").type in map(_kind, args) else torch.Tensor)
            if func is torch.Tensor.cpu:
                return args[0].as_subclass(torch.Tensor)
            if func == torch.Tensor.device.__get__:
                return GPU if isinstance(args[0], OnGpu) else func(*args)
            if func is torch._has_compatible_shallow_copy_type:  # of two devices never
                return False
            there = {isinstance(each, OnGpu) for each in _tensors((args, kwargs)) if each.dim() > 0}
            assert len(there) < 2, f"{getattr(func, '__name__', func)} takes tensors of two devices"
            found = func(*args, **kwargs)
            return _moved(found) if there == {True} else found


def _kind(value):
    return getattr(value, "type", None) if isinstance(value, torch.device) else None


def _tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def _moved(found):
    if isinstance(found, torch.Tensor) and not isinstance(found, OnGpu):
        return found.as_subclass(OnGpu)
    return type(found)(map(_moved, found)) if type(found) in (list, tuple) else found


def examined(seed: int = 0) -> tuple[nn.Module, np.ndarray, np.ndarray]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    rng = np.random.default_rng(seed)
    return model, rng.normal(size=(12, 6)).astype(np.float32), rng.integers(3, size=12)


def on_gpu(model: nn.Module) -> nn.Module:
    """The model, whose parameters say that they are on the GPU."""
    for module in model.modules():
        for name, value in list(module._parameters.items()):
            module._parameters[name] = nn.Parameter(value.detach().as_subclass(OnGpu))
    return model


def answers(model: nn.Module, x: np.ndarray, y: np.ndarray, asked: tuple) -> tuple[np.ndarray, ...]:
    curves = adversarial_curves(model, x, y, TransportProblem(*asked, seed=1))
    return (*curves.values(RADII), *curves.conjugates((0.1, 1.0, 10.0)))


@pytest.mark.parametrize(
    "asked",
    [pytest.param(asked, marks=pytest.mark.slow if asked in ASKED[:3] else ()) for asked in ASKED],
    ids=lambda asked: "-".join(map(str, asked)),
)
def test_only_the_model_is_on_its_device_and_answers_are_those_of_the_cpu(asked):
    model, x, y = examined()
    here = answers(model, x, y, asked)
    moved = on_gpu(model)
    with Elsewhere():
        assert device_of(moved) == GPU
        there = answers(moved, x, y, asked)
    assert_array_equal(np.concatenate(here), np.concatenate(there))


def test_the_made_up_device_notices_a_tensor_that_stayed():
    """Negative control: a model that is shown its inputs where they are."""
    model, x, _ = examined()
    moved = on_gpu(model)
    with Elsewhere(), pytest.raises(AssertionError, match="two devices"):
        moved(torch.from_numpy(x))


@pytest.mark.skipif(not HAS_GPU, reason="no GPU here: attacks and proofs of a model on one are not compared")
@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: "-".join(map(str, asked)))
def test_answers_on_a_gpu_are_near_those_of_the_cpu(asked):
    model, x, y = examined()
    here = answers(model, x, y, asked)
    there = answers(model.to(chosen_device("cuda")), x, y, asked)
    assert_allclose(np.concatenate(there), np.concatenate(here), atol=1e-3)


@pytest.mark.skipif(not HAS_GPU, reason="no GPU here: training and plain losses on one are not compared")
def test_training_and_losses_on_a_gpu_are_near_those_of_the_cpu():
    losses = []
    for device in ("cpu", "cuda"):
        model, x, y = examined()
        train_epochs(model.to(chosen_device(device)), x, y, seed=0, num_epochs=2, learning_rate=0.01)
        losses.append(example_losses(model, x, y, loss="cross_entropy"))
    assert_allclose(losses[0], losses[1], atol=1e-4)


@pytest.mark.parametrize("method", ["wm", "cdan"])
def test_training_on_domains_takes_place_where_the_model_is(method):
    weights = []
    for is_there in (False, True):
        model, x, y = examined()
        domains = [Examples(x[:6], y[:6]), Examples(x[6:], y[6:])]
        settings = {"method": method, "seed": 0, "num_epochs": 2, "factor": 0.5, "batch_size": 3}
        with Elsewhere() if is_there else nullcontext():
            train_on_domains(on_gpu(model) if is_there else model, domains, **settings)
        weights.append(np.concatenate([value.detach().numpy().ravel() for value in model.parameters()]))
    assert_array_equal(*weights)


def test_a_gpu_multiplies_in_full_precision_and_what_was_chosen_is_restored():
    matmul, convolutions, seen = torch.backends.cuda.matmul, torch.backends.cudnn, []
    model, x, y = examined()
    model[1].register_forward_hook(lambda *_: seen.append((matmul.allow_tf32, convolutions.allow_tf32)))
    on_gpu(model)
    with Elsewhere(), full_precision():  # restores what there was before this test
        matmul.allow_tf32 = convolutions.allow_tf32 = True
        example_losses(model, x, y, loss="zero_one")
        assert matmul.allow_tf32
        assert convolutions.allow_tf32
    assert set(seen) == {(False, False)}


def test_devices_have_names():
    assert chosen_device("cpu") == torch.device("cpu")
    assert chosen_device("auto").type == ("cuda" if HAS_GPU else "cpu")
    with pytest.raises(ValueError, match="device must be one of auto, cpu, cuda, got 'gpu'"):
        chosen_device("gpu")


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU here: it is not refused")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="torch sees no GPU here; use auto or cpu"):
        chosen_device("cuda")


def test_a_large_model_is_shown_few_examples_at_once():
    small, x, _ = examined()
    assert largest_batch(small, torch.from_numpy(x[:1])) > 10**6
    wide = nn.Sequential(nn.Linear(6, 400_000), nn.ReLU(), nn.Linear(400_000, 3))
    # 800,003 numbers for each of ten copies of an example
    assert largest_batch(wide, torch.from_numpy(x[:1])) == int(1e9 / 8_000_030)
    assert not wide[0]._forward_hooks
