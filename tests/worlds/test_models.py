"""Models: shapes, seeds, the round trip through arrays, and the user's own factory."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from protocol.models import build_model, load_arrays, model_arrays

DIGITS = {"x_shape": (1, 8, 8), "num_classes": 10}
PLUG = """
from torch import nn
def small(*, x_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(x_shape[0], num_classes))
def number(**shapes):
    return 3
constant = 7
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 10)
class Sized(nn.Module):
    def __init__(self, num_classes, width=3):
        super().__init__()
        self.fc = nn.Linear(width, num_classes)
class Wanting(nn.Module):
    def __init__(self, width):
        super().__init__()
class Failing(nn.Module):
    def __init__(self):
        raise KeyError("width")
class Telling(nn.Module):
    def __init__(self):
        raise ValueError("/data/patients/x")
def telling(*, x_shape, num_classes):
    raise FileNotFoundError("/data/patients/x")
def of_classes(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
def resnet(*, weights=None, progress=True, **kwargs):
    assert weights is None and list(kwargs) == ["num_classes"]
    return of_classes(**kwargs)
resnet.__module__ = "torchvision.models.resnet"
def careless():
    raise AssertionError("a name in a message must not call just any function")
"""


@pytest.fixture(name="plug")
def _plug(tmp_path, monkeypatch) -> str:
    (tmp_path / "plugged_nets.py").write_text(PLUG)
    monkeypatch.syspath_prepend(tmp_path)
    return "plugged_nets"


def logits(model: nn.Module, x_shape: tuple[int, ...]) -> torch.Tensor:
    x = torch.linspace(0, 1, 2 * math.prod(x_shape)).reshape(2, *x_shape)
    with torch.no_grad():
        return model(x)


@settings(max_examples=25, deadline=None)
@given(x_shape=st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple), num_classes=st.integers(2, 12))
def test_any_input_shape_gives_logits(x_shape, num_classes):
    for name in ["mlp", "cnn"][: 2 if len(x_shape) == 3 else 1]:
        model = build_model(name, x_shape=x_shape, num_classes=num_classes, seed=0)
        output = logits(model, x_shape)
        assert output.shape == (2, num_classes)
        assert torch.isfinite(output).all()
        assert isinstance(list(model.modules())[-1], nn.Linear)


@pytest.mark.parametrize("x_shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
def test_the_cnn_is_small(x_shape):
    model = build_model("cnn", x_shape=x_shape, num_classes=10, seed=0)
    assert 10_000 <= sum(value.numel() for value in model.parameters()) <= 30_000


@pytest.mark.parametrize("name", ["cnn", "mlp"])
def test_the_seed_decides_the_weights_and_torch_is_left_alone(name):
    before = torch.random.get_rng_state()
    first, again, other = (model_arrays(build_model(name, seed=seed, **DIGITS)) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    for key, value in first.items():
        np.testing.assert_array_equal(value, again[key])
        assert not np.array_equal(value, other[key])


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**62))
def test_arrays_carry_a_model_over(seed):
    one, other = build_model("cnn", seed=seed, **DIGITS), build_model("cnn", seed=seed + 1, **DIGITS)
    arrays = model_arrays(one)
    for value in arrays.values():
        value.flags.writeable = False  # as arrays received from the network may be
    load_arrays(other, arrays)
    assert torch.equal(logits(one, (1, 8, 8)), logits(other, (1, 8, 8)))


def test_arrays_are_copies_and_include_buffers():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    arrays = model_arrays(model)
    assert list(arrays) == list(model.state_dict())
    arrays["0.weight"][:] = 9
    arrays["1.running_mean"][:] = 9
    assert not (model[0].weight == 9).any()
    assert not (model[1].running_mean == 9).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a | {"0.weight": a["0.weight"][:, :, :2]}, r"'0.weight' has shape \(16, 1, 2, 3\) instead of"),
        (lambda a: {k: v for k, v in a.items() if k != "3.bias"}, r"'3.bias' has shape none instead of \(32,\)"),
        (lambda a: a | {"extra": np.zeros(2)}, r"'extra' has shape \(2,\) instead of none"),
        (lambda a: {}, "'0.weight' has shape none"),
    ],
)
def test_arrays_that_do_not_fit(change, message):
    model = build_model("cnn", seed=0, **DIGITS)
    before = model_arrays(model)
    other = change(model_arrays(build_model("cnn", seed=1, **DIGITS)))
    with pytest.raises(ValueError, match=f"a model that does not fit: {message}.*; build the model with"):
        load_arrays(model, other)
    for key, value in model_arrays(model).items():
        np.testing.assert_array_equal(value, before[key])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda value: np.where(value == value.max(), np.nan, value),
            "must be finite, got NaN or infinity in '0.weight'",
        ),
        (lambda value: value + np.inf, "must be finite"),
        (lambda value: value.astype(np.complex64), "type complex64 instead of torch.float32"),
        (lambda value: value.astype(np.int32), "type int32 instead of torch.float32"),
        (lambda value: value.astype("U4"), "type <U4 instead of"),
        (lambda value: value.astype(object), "type object instead of"),
    ],
)
def test_numbers_that_are_no_weights_are_refused(change, message):
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    before = model_arrays(model)
    with pytest.raises(ValueError, match=message):
        load_arrays(model, before | {"0.weight": change(before["0.weight"])})
    with pytest.raises(ValueError, match=r"type float64 instead of torch.int64"):
        load_arrays(model, before | {"1.num_batches_tracked": np.array(1.5)})
    for key, value in model_arrays(model).items():
        np.testing.assert_array_equal(value, before[key])


def test_a_factory_of_the_user(plug):
    arrays = [model_arrays(build_model(f"{plug}:small", x_shape=(5,), num_classes=4, seed=seed)) for seed in (1, 1, 2)]
    assert {name: value.shape for name, value in arrays[0].items()} == {"1.weight": (4, 5), "1.bias": (4,)}
    np.testing.assert_array_equal(arrays[0]["1.weight"], arrays[1]["1.weight"])
    assert not np.array_equal(arrays[0]["1.weight"], arrays[2]["1.weight"])


def test_a_class_is_called_with_what_it_knows(plug):
    first, again = (build_model(f"{plug}:Net", seed=3, **DIGITS) for _ in range(2))
    assert model_arrays(first)["fc.weight"].shape == (10, 64)
    np.testing.assert_array_equal(model_arrays(first)["fc.weight"], model_arrays(again)["fc.weight"])
    classes = build_model(f"{plug}:of_classes", x_shape=(1, 8, 8), num_classes=4, seed=0)  # it names no x_shape
    assert model_arrays(classes)["1.weight"].shape == (4, 64)
    torchvisions = build_model(f"{plug}:resnet", x_shape=(1, 8, 8), num_classes=4, seed=0)
    assert model_arrays(torchvisions)["1.weight"].shape == (4, 64)
    sized = build_model(f"{plug}:Sized", x_shape=(3,), num_classes=4, seed=0)
    assert model_arrays(sized)["fc.weight"].shape == (4, 3)


def test_wrong_factories(plug):
    for name, message in {
        f"{plug}:absent": "must be importable, got .*absent.*; put its module where",
        "no_such_module:small": r"must be importable, got 'no_such_module:small' \(ModuleNotFoundError\);",
        f"{plug}:constant": "must be a function, got int at",
        f"{plug}:number": "must return a torch.nn.Module, got int from .*; return",
        f"{plug}:careless": "must take x_shape and num_classes, got one at .* that does not; write",
        f"{plug}:Wanting": "must take x_shape and num_classes",
        f"{plug}:Failing": "must build a model of inputs of its own choice, got KeyError",
        "os:abort": "must take x_shape and num_classes",
        ".relative:net": "must be importable, got .*TypeError",
        "resnet": "model must be one of cnn, mlp, .* or 'module:factory', got 'resnet'; for a model",
        "": "model must be one of",
        "module:": "model must be one of",
    }.items():
        with pytest.raises(ValueError, match=message):
            build_model(name, seed=0, **DIGITS)


def test_what_a_module_of_anothers_says_stays_on_the_machine(plug, tmp_path):
    (tmp_path / "telling_on_import.py").write_text("raise FileNotFoundError('/data/patients/x')")
    for name, kind in {
        "telling_on_import:net": "FileNotFoundError",
        f"{plug}:telling": "FileNotFoundError",
        f"{plug}:Telling": "ValueError",
    }.items():
        with pytest.raises(ValueError, match=kind) as refused:
            build_model(name, seed=0, **DIGITS)
        assert "patients" not in str(refused.value), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_shape": (64,)}, r"'cnn' needs inputs of shape \(channels, height, width\), got \(64,\); use 'mlp'"),
        ({"x_shape": (1, 0, 8)}, "each entry of x_shape must be .* at least 1, got 0"),
        ({"num_classes": 1}, "num_classes must be .* at least 2, got 1; check"),
        ({"num_classes": 100_001}, "num_classes must be at most 100000, got 100001; check"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_wrong_arguments(change, message):
    with pytest.raises(ValueError, match=message):
        build_model("cnn", **(DIGITS | {"seed": 0} | change))
