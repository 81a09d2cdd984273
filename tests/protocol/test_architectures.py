"""Image models by name: what RobustBench's own classes compute from the same weights, and files in its layouts.

`tests/reference/robustbench.json` was written with the classes of robustbench 1.1.1: names and shapes of their weights
(`shapes`, or those of another model, `like`), and their logits for the weights and the image that are made here.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from protocol import architectures
from protocol.models import BUILT_IN_MODELS, ROBUSTBENCH, build_model, is_model_name, load_weights, model_arrays

CIFAR10 = {"x_shape": (3, 32, 32), "num_classes": 10}
REFERENCE = json.loads((Path(__file__).parents[1] / "reference" / "robustbench.json").read_text(encoding="utf-8"))
IMAGE = (torch.arange(3 * 32 * 32) % 251 / 250).reshape(1, 3, 32, 32)
FAST = "Wong2020Fast"


@cache
def weights_of(name: str) -> dict[str, torch.Tensor]:
    """The weights that the reference was computed with, named as in RobustBench's file."""
    entry = REFERENCE[name]
    if "like" in entry:
        return weights_of(entry["like"])
    found = {}
    for number, (key, sizes) in enumerate(entry["shapes"].items()):
        shape = tuple(map(int, sizes.split("x"))) if sizes else ()
        if key.endswith("num_batches_tracked"):
            found[key] = torch.tensor(0)
            continue
        drawn = np.random.RandomState(number).standard_normal(shape)  # the one that never changes
        if key.endswith("running_var"):
            drawn = 1.0 + 0.2 * np.abs(drawn)
        elif len(shape) == 1:
            drawn = 0.1 * drawn + float(key.endswith("weight"))
        else:
            drawn /= math.sqrt(math.prod(shape[1:]))
        found[key] = torch.from_numpy(np.asarray(drawn, dtype=np.float32))
    return found


def built(name: str) -> nn.Module:
    return build_model(f"{ROBUSTBENCH}{name}", seed=0, **CIFAR10).eval()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == FAST else pytest.mark.slow) for name in REFERENCE]
)
def test_logits_are_those_of_robustbench(name, tmp_path):
    torch.save(weights_of(name), tmp_path / "model.pt")
    model = built(name)
    load_weights(model, tmp_path / "model.pt")
    with torch.no_grad():
        found = model(IMAGE)[0]
    np.testing.assert_allclose(found.numpy(), REFERENCE[name]["logits"], rtol=0, atol=2e-5)


def test_another_models_normalisation_gives_other_logits(tmp_path):
    """Negative control: the same weights without the mean and deviation of Wong2020Fast miss its reference."""
    model = built("Andriushchenko2020Understanding")
    model.load_state_dict(weights_of(FAST))
    with torch.no_grad():
        found = model(IMAGE)[0]
    assert np.abs(found.numpy() - REFERENCE[FAST]["logits"]).max() > 0.1


SMALL = {
    "x_shape": (3, 8, 8), "num_classes": 4, "stem_width": 4, "widths": (4, 8), "num_blocks": 1,
    "layout": architectures.PREACT,
}  # fmt: skip
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def small(seed: int, **more: object) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return architectures.ResidualNet(**{**SMALL, **more}).eval()


def as_it_is(state):
    return state


def in_data_parallel(state):
    return {f"module.{name}": value for name, value in state.items()}


def in_a_wrapper(state):
    return {"epoch": 7, "state_dict": in_data_parallel(state), "optimizer": {"lr": 0.1}}


def of_kireev(state):
    return {"last": state, "best": {name: torch.zeros_like(value) for name, value in state.items()}}


def behind_a_normalisation(state):
    inner = {f"model.{name}": value for name, value in state.items()}
    return in_data_parallel({"normalize.mean": shaped(MEAN), "normalize.std": shaped(STD), **inner})


def with_mu(state):
    return {"mu": shaped(MEAN), "sigma": shaped(STD), **state}


def without_counts(state):
    return {"model": {name: value for name, value in state.items() if not name.endswith("num_batches_tracked")}}


def shaped(values):
    return torch.tensor(values).view(1, 3, 1, 1)


@pytest.mark.parametrize(
    "layout",
    [as_it_is, in_data_parallel, in_a_wrapper, of_kireev, behind_a_normalisation, with_mu, without_counts],
)
def test_files_of_robustbench_load_without_conversion(layout, tmp_path):
    one, other = (small(seed, normalisation=(MEAN, STD)) for seed in (0, 1))
    torch.save(layout(one.state_dict()), tmp_path / "model.pt")
    load_weights(other, tmp_path / "model.pt")
    x = torch.rand(5, 3, 8, 8)
    assert torch.equal(one(x), other(x))
    plain = small(0)
    plain.load_state_dict(one.state_dict())
    assert torch.allclose(plain((x - shaped(MEAN)) / shaped(STD)), one(x), atol=1e-5)


@pytest.mark.parametrize(
    ("state", "model", "message"),
    [
        (small(0).state_dict(), {"num_blocks": 2}, r"'layer1.1.bn1.weight' has shape none instead of \(4,\)"),
        (
            small(0).state_dict(),
            {"widths": (4, 6)},
            r"'layer2.0.conv1.weight' has shape \(8, 4, 3, 3\) instead of \(6,",
        ),
        (small(0, layout=architectures.WIDE).state_dict(), {}, r"'layer1.0.bn1.weight' has shape none instead of"),
        (with_mu(small(0).state_dict()), {}, r"got 'mu' \[0.5, 0.40*.*\] instead of \[0.0\]; name"),
        (
            with_mu(small(0).state_dict()),
            {"normalisation": (STD, STD)},
            r"must normalise inputs as the model does, got 'mu' \[0.5, 0.40*.*\] instead of \[0.2",
        ),
    ],
)
def test_a_file_of_another_model_is_refused_with_what_differs(state, model, message, tmp_path):
    torch.save(state, tmp_path / "model.pt")
    built_one = small(1, **model)
    before = model_arrays(built_one)
    with pytest.raises(ValueError, match=message):
        load_weights(built_one, tmp_path / "model.pt")
    for name, value in model_arrays(built_one).items():
        np.testing.assert_array_equal(value, before[name])


def test_every_name_is_built_and_no_other():
    for name in BUILT_IN_MODELS:
        assert is_model_name(name)
    for name in ("preact-resnet-18", "vit-small"):  # a WRN-28-10 takes a second
        model = build_model(name, seed=0, x_shape=(1, 8, 8), num_classes=3)
        assert model(torch.rand(2, 1, 8, 8)).shape == (2, 3)
    assert sum(value.numel() for value in model.parameters()) > 20_000_000
    assert not is_model_name("resnet")
    assert not is_model_name(ROBUSTBENCH)
    with pytest.raises(ValueError, match=r"must be one of cnn, .*'robustbench/IDENTIFIER' or 'module:factory', got"):
        build_model("resnet", seed=0, **CIFAR10)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("robustbench/Nobody2020", (3, 32, 32), "no model 'Nobody2020' of RobustBench here; .*Wong2020Fast"),
        ("robustbench/Standard", (3, 28, 28), r"for CIFAR-10, inputs of shape \(3, 32, 32\) and 10 classes, got"),
        ("wrn-28-10", (64,), r"'wrn-28-10' needs inputs of shape \(channels, height, width\), got \(64,\)"),
        ("vit-small", (3, 30, 30), r"multiples of 4, the size of a patch, got \(3, 30, 30\); pad"),
    ],
)
def test_wrong_names_and_shapes_are_refused(name, shape, message):
    with pytest.raises(ValueError, match=message):
        build_model(name, seed=0, x_shape=shape, num_classes=10)
