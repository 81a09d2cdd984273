"""Constants of whole networks: above every difference quotient, exact where they say so, and refused where unknown."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import prune

from protocol.models import build_model
from riskband.adversaries.bounds.lipschitz import (
    SequentialLayers,
    _constants,
    half_masked_constants,
    lipschitz_constants,
    margin_constants,
)
from riskband.checks import RefusedError
from tests.adversaries.nets import EXPONENTS, cnn, logits_of, mlp, quotients, random_pairs, seeded
from tests.adversaries.test_balls import Residual
from tests.transport import curves_of

NORMS = ["l1", "l2", "linf"]
DUALS = {"l1": np.inf, "l2": 2, "linf": 1}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("method", ["auto", "product", "exact"])
def test_linear_models_are_exact(norm, method):
    model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 4)))
    weight = model[1].weight.detach().double().numpy()
    truth = np.linalg.norm(weight[:, None] - weight[None], ord=DUALS[norm], axis=2)
    found = margin_constants(model, (2, 3), norm=norm, method=method).numpy()
    np.testing.assert_allclose(found, truth, rtol=2e-6)
    assert np.all(found >= truth)


@pytest.mark.parametrize("norm", NORMS)
def test_logits_alone_have_constants_too_exact_for_linear_models(norm):
    linear = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 4)))
    found = lipschitz_constants(SequentialLayers(linear, (2, 3)), norm=norm).logits.numpy()
    np.testing.assert_allclose(
        found, np.linalg.norm(linear[1].weight.detach().numpy(), ord=DUALS[norm], axis=1), rtol=2e-6
    )
    model = cnn()
    found = lipschitz_constants(SequentialLayers(model, (2, 8, 8)), norm=norm).logits.numpy()
    x, moved = random_pairs((2, 8, 8), seed=0)
    distance = np.linalg.norm((moved - x).reshape(len(x), -1), ord=EXPONENTS[norm], axis=1)
    assert np.all(np.abs(logits_of(model, moved) - logits_of(model, x)) <= found * distance[:, None])


@pytest.mark.parametrize("norm", NORMS)
@settings(max_examples=8)
@given(seed=st.integers(0, 10**6), depth=st.integers(1, 2), leak=st.sampled_from([0.0, 0.2, -1.5]))
def test_no_difference_quotient_exceeds_a_constant_and_exact_is_below_product(norm, seed, depth, leak):
    model = mlp(3, *[3] * depth, 3, seed=seed, activation=lambda: nn.LeakyReLU(leak) if leak else nn.ReLU())
    exact = margin_constants(model, (3,), norm=norm, method="exact").numpy()
    product = margin_constants(model, (3,), norm=norm, method="product").numpy()
    largest = quotients(model, *random_pairs((3,), seed=seed), norm=norm).max(axis=0)
    assert np.all(largest <= exact)
    assert np.all(exact <= product * (1 + 1e-9))
    np.testing.assert_array_equal(exact, exact.T)
    np.testing.assert_array_equal(margin_constants(model, (3,), norm=norm).numpy(), exact)  # small: auto is exact


@pytest.mark.parametrize("norm", NORMS)
def test_an_exact_constant_is_attained(norm):
    """By hand: 3 relu(x1) - 2 relu(x1 - x2 - 1) against 0 has gradients (0, 0), (3, 0), (1, 2) and (-2, 2)."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.0], [1.0, -1.0]]))
        model[0].bias.copy_(torch.tensor([0.0, -1.0]))
        model[2].weight.copy_(torch.tensor([[3.0, -2.0], [0.0, 0.0]]))
    truth = max(np.linalg.norm(gradient, ord=DUALS[norm]) for gradient in [(3.0, 0.0), (1.0, 2.0), (-2.0, 2.0)])
    found = margin_constants(model, (2,), norm=norm, method="exact")
    assert float(found[0, 1]) == pytest.approx(truth, rel=2e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_every_known_layer_is_bounded(norm):
    for seed in range(3):
        model = cnn(seed)
        constants = margin_constants(model, (2, 8, 8), norm=norm).numpy()
        for pairs_seed in range(3):
            largest = quotients(model, *random_pairs((2, 8, 8), seed=pairs_seed), norm=norm).max(axis=0)
            assert np.all(largest <= constants)
        assert np.all(constants[~np.eye(4, dtype=bool)] < np.inf)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.Sigmoid, lambda: nn.ELU(1.7), nn.GELU, nn.SiLU])
def test_smooth_activations_have_product_bounds(activation):
    model = mlp(3, 6, 3, activation=activation)
    for norm in NORMS:
        largest = quotients(model, *random_pairs((3,), seed=0), norm=norm).max(axis=0)
        assert np.all(largest <= margin_constants(model, (3,), norm=norm).numpy())


def test_softplus_is_refused_for_its_jump():
    """Torch takes it for linear from threshold / beta on, and it drops there: no constant holds. Truth: two points."""
    softplus = nn.Softplus(beta=0.21)
    place = torch.tensor([softplus.threshold / softplus.beta], dtype=torch.float64)
    assert float(softplus(place) - softplus(place * (1.0 + 1e-12))) > 9e-9
    for model in (nn.Sequential(softplus, nn.Linear(3, 2)), nn.Sequential(Residual(softplus), nn.Linear(3, 2))):
        with pytest.raises(RefusedError, match=r"every layer must be one of .* got Softplus at .* use an attack"):
            SequentialLayers(model, (3,))


def test_a_process_finds_the_constants_of_a_network_once():
    model = mlp(3, 5, 3)
    first = margin_constants(model, (3,), norm="l2")
    misses = _constants.cache_info().misses
    margin_constants(model, (3,), norm="l2").zero_()  # its own copy: nobody can spoil what is remembered
    assert torch.equal(margin_constants(copy.deepcopy(model), (3,), norm="l2"), first)
    assert _constants.cache_info().misses == misses
    with torch.no_grad():
        model[0].weight.mul_(2.0)
    assert not torch.equal(margin_constants(model, (3,), norm="l2"), first)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (nn.LeakyReLU(0.1), nn.LeakyReLU(3.0)),
        (nn.ELU(1.0), nn.ELU(3.0)),
        (nn.ReLU(), nn.Sigmoid()),
        (nn.Flatten(), nn.BatchNorm1d(4, eps=0.5)),
    ],
    ids=str,
)
def test_settings_of_layers_are_not_mixed_up(one, other):
    """Same linear layers, others between them: nothing remembered of the one is said of the other."""
    before, after = seeded(lambda: nn.Linear(3, 4)), seeded(lambda: nn.Linear(4, 2))
    constants = [margin_constants(nn.Sequential(before, layer, after), (3,), norm="l2") for layer in (one, other)]
    assert not torch.equal(*constants)


def test_settings_that_torch_does_not_print_are_not_mixed_up():
    head = seeded(lambda: nn.Linear(4, 2))
    constants = [
        margin_constants(nn.Sequential(pool, nn.Flatten(), head), (1, 4, 4), norm="l2")
        for pool in (nn.AvgPool2d(2), nn.AvgPool2d(2, divisor_override=1))
    ]
    assert not torch.equal(*constants)


def test_the_paths_are_never_worse_than_the_products_of_operator_norms():
    model = mlp(5, 7, 6, 4)
    first, second, head = (model[i].weight.detach().double().numpy() for i in (0, 2, 4))
    for norm in ("l1", "linf"):
        exponent = EXPONENTS[norm]
        layers = np.linalg.norm(first, ord=exponent) * np.linalg.norm(second, ord=exponent)
        pulls = np.linalg.norm(head[:, None] - head[None], ord=DUALS[norm], axis=2)
        assert np.all(margin_constants(model, (5,), norm=norm).numpy() <= pulls * layers * (1 + 2e-6))


@pytest.mark.parametrize("leak", [0.0, 0.3, 1.0, -1.5])
def test_half_of_each_mask_is_known(leak):
    """Never above the product of spectral norms, and exact where the slopes are 1 on both sides."""
    model = mlp(5, 7, 6, 4, activation=lambda: nn.LeakyReLU(leak))
    first, second, head = (model[i].weight.detach().double().numpy() for i in (0, 2, 4))
    rows, rate = head[:, None] - head[None], max(1.0, abs(leak)) ** 2
    spectral = np.linalg.norm(first, ord=2) * np.linalg.norm(second, ord=2) * rate
    for norm in NORMS:
        found = half_masked_constants(SequentialLayers(model, (5,)), norm=norm).numpy()
        products = np.linalg.norm(rows, axis=2) * spectral * (np.sqrt(5) if norm == "linf" else 1.0)
        assert np.all(found <= products * (1 + 1e-9))
        if leak == 1.0:
            np.testing.assert_allclose(found, np.linalg.norm(rows @ second @ first, ord=DUALS[norm], axis=2), rtol=1e-9)
        elif leak >= 0.0:
            assert np.all(found[~np.eye(4, dtype=bool)] < 0.9 * products[~np.eye(4, dtype=bool)])
        largest = quotients(model, *random_pairs((5,), seed=0), norm=norm).max(axis=0)
        # Some pairs are 1e-6 apart: the difference of their logits is rounded at about 1e-9 of it.
        assert np.all(largest <= found * (1 + 1e-6))


def test_a_layer_that_comes_twice_counts_twice():
    """torch lists shared modules once: a reader that forgets the second would certify a network that is not there."""
    shared, relu = seeded(lambda: nn.Linear(3, 3, bias=False)), nn.ReLU()
    with torch.no_grad():
        shared.weight.copy_(2.0 * torch.eye(3))
    model = nn.Sequential(shared, relu, shared, relu, shared)
    for method in ("exact", "product"):
        constants = margin_constants(model, (3,), norm="l1", method=method).numpy()
        np.testing.assert_allclose(constants[0, 1], 8.0, rtol=2e-6)


def test_our_own_models_and_logits_without_a_linear_layer():
    for name, shape in (("cnn", (1, 8, 8)), ("mlp", (1, 8, 8))):
        model = build_model(name, x_shape=shape, num_classes=10, seed=0)
        assert margin_constants(model, shape, norm="l2").shape == (10, 10)
    pooled = seeded(lambda: nn.Sequential(nn.Conv2d(1, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    largest = quotients(pooled, *random_pairs((1, 4, 4), seed=0), norm="linf").max(axis=0)
    assert np.all(largest <= margin_constants(pooled, (1, 4, 4), norm="linf").numpy())


class Twice(nn.Linear):
    """Does more than its type shows."""

    def forward(self, x):
        return 2.0 * super().forward(x)


def hooked():
    model = nn.Sequential(nn.Linear(3, 2))
    model[0].register_forward_hook(lambda module, inputs, output: 2.0 * output)
    return model


def hooked_outside():
    model = nn.Sequential(nn.Linear(3, 2))
    model.register_forward_hook(lambda module, inputs, output: 2.0 * output)
    return model


def broken():
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight[0, 0] = torch.nan
    return model


def tenfold(module, *given):
    """A hook that does not show in any weight."""
    return 10.0 * given[-1] if isinstance(given[-1], torch.Tensor) else None


@pytest.mark.parametrize(
    "register",
    [
        nn.modules.module.register_module_forward_hook,
        nn.modules.module.register_module_forward_pre_hook,
        nn.modules.module.register_module_full_backward_hook,
        nn.modules.module.register_module_full_backward_pre_hook,
    ],
)
def test_hooks_of_all_modules_are_refused(register):
    """They change every layer, or the gradients that constants are made of, and no layer knows of them."""
    model = mlp(3, 4, 2)
    before = margin_constants(model, (3,), norm="l2")
    hook = register(tenfold)
    try:
        with pytest.raises(RefusedError, match="register_module_forward_hook"):
            margin_constants(model, (3,), norm="l2")
        with pytest.raises(RefusedError, match="hooks"):
            curves_of(model, np.zeros((1, 3)), [0], loss="margin", order=1, space="input", adversary="lipschitz")
    finally:
        hook.remove()
    assert torch.equal(margin_constants(model, (3,), norm="l2"), before)


def with_plain(name="weight", value=None):
    """A tensor that torch does not count among parameters and buffers: the state dict has none of it."""
    model = nn.Sequential(nn.Linear(3, 2, bias=False))
    del model[0].weight
    setattr(model[0], name, torch.zeros(2, 3) if value is None else value)
    return model


def test_weights_that_are_plain_tensors_are_not_forgotten():
    """Remembered by its state dict alone, a layer of weights 1000 had the constants of one of weights 0."""
    for size in (0.0, 1000.0):
        with pytest.raises(RefusedError, match=r"'weight' at '0'; assign weights as torch\.nn\.Parameter"):
            margin_constants(with_plain(value=torch.full((2, 3), size)), (3,), norm="l2")


def test_buffers_that_are_not_saved_count():
    model = seeded(lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)))
    variance = model[0].running_var.clone()
    del model[0].running_var
    model[0].register_buffer("running_var", variance, persistent=False)
    before = margin_constants(model, (3,), norm="l2")
    model[0].running_var.fill_(1e-6)  # in place: the same tensor
    after = margin_constants(model, (3,), norm="l2")
    largest = quotients(model, *random_pairs((3,), seed=0), norm="l2").max(axis=0)
    assert np.all(largest <= after.numpy())
    assert torch.all(after[0, 1] > 100.0 * before[0, 1])


def test_what_is_read_of_a_model_stays_when_the_model_changes():
    """A network that was read before its weights changed must not be remembered under those that came after."""
    model = mlp(3, 4, 2).double()
    layers, before = SequentialLayers(model, (3,)), margin_constants(model, (3,), norm="l2")
    with torch.no_grad():
        model[0].weight.mul_(7.0)
        model[2].weight.mul_(1000.0)
    assert torch.equal(lipschitz_constants(layers, norm="l2").margins, before)
    after = margin_constants(model, (3,), norm="l2").numpy()
    assert np.all(quotients(model, *random_pairs((3,), seed=0), norm="l2").max(axis=0) <= after)


def own(name, value, layer=None):
    """A layer with an attribute that torch asks for before it asks the class."""
    model = nn.Sequential(nn.Linear(3, 3) if layer is None else layer)
    setattr(model[0], name, value)
    return model


def test_a_forward_that_was_changed_for_a_whole_class_is_refused(monkeypatch):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    monkeypatch.setattr(nn.ReLU, "forward", lambda self, x: 10.0 * x)
    with pytest.raises(RefusedError, match="'1' with hooks or a forward of its own"):
        margin_constants(model, (3,), norm="l2")


def none_in_between():
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    model._modules["1"] = None
    return model


def negative_variance():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    model[0].running_var.fill_(-1.0)
    return model


def pruned():
    model = nn.Sequential(nn.Linear(3, 2))
    prune.l1_unstructured(model[0], "weight", amount=1)
    return model


@pytest.mark.parametrize(
    ("model", "shape", "settings", "message"),
    [
        (own("forward", lambda x: 10.0 * x), (3,), {}, "a forward of its own"),
        (own("_call_impl", lambda x: 10.0 * x), (3,), {}, "a forward of its own"),
        (own("_compiled_call_impl", lambda x: 10.0 * x), (3,), {}, "a forward of its own"),
        (own("_conv_forward", lambda x, w, b: 10.0 * x, nn.Conv2d(1, 1, 1)), (1, 2, 2), {}, "a forward of its own"),
        (own("negative_slope", torch.tensor(0.123451), nn.LeakyReLU()), (3,), {}, "another 'negative_slope' at '0'"),
        (own("negative_slope", float("nan"), nn.LeakyReLU()), (3,), {}, "another 'negative_slope' at '0'"),
        (own("__deepcopy__", lambda memo: nn.Linear(3, 3)), (3,), {}, "another '__deepcopy__' at '0'"),
        (own("alpha", np.array(0.1234567891), nn.ELU()), (3,), {}, "another 'alpha' at '0'"),
        (nn.Sequential(nn.utils.spectral_norm(nn.Linear(3, 2))), (3,), {}, "'0' with hooks"),
        (pruned(), (3,), {}, "'0' with hooks"),
        (nn.Sequential(nn.LazyLinear(2)), (3,), {}, "with hooks|got LazyLinear"),
        (none_in_between(), (3,), {}, "a layer at every place, got None at '1'"),
        (negative_variance(), (3,), {}, "running variances must be above -eps"),
        (nn.Sequential(nn.Linear(3, 2, device="meta")), (3,), {}, "on the CPU, got another 'weight' at '0'"),
        (nn.Sequential(nn.Linear(3, 2).half()), (3,), {}, "float32 or float64, got float16 at '0'"),
        (nn.Sequential(nn.Linear(3, 2).bfloat16()), (3,), {}, "got bfloat16 at '0'; convert: model.float"),
        (nn.Sequential(nn.Linear(3, 2, dtype=torch.complex64)), (3,), {}, "got complex64 at '0'"),
        (nn.Sequential(nn.Linear(3, 4), nn.GLU(1), nn.Linear(2, 2)), (3,), {}, "got GLU at '1'"),
        (nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.Hardshrink())), (3,), {}, r"got Hardshrink at '0\.1'"),
        (nn.Sequential(nn.Linear(3, 4), nn.Softmax()), (3,), {}, "must be told its axis, got dim=None"),
        (nn.Sequential(nn.Linear(3, 4), nn.Softmax(0)), (3,), {}, "within one example, got dim=0"),
        (nn.Sequential(nn.Linear(3, 4), nn.LogSoftmax(-2)), (3,), {}, "within one example, got dim=-2"),
        (nn.Sequential(nn.MaxPool1d(2, dilation=2)), (1, 6), {}, "must have dilation 1"),
        (nn.Sequential(nn.AdaptiveMaxPool2d(1, return_indices=True)), (1, 6, 6), {}, "return values only"),
        (nn.Sequential(nn.Conv3d(2, 2, 1), nn.Flatten()), (2, 2, 2), {}, "Conv3d must get volumes"),
        (nn.Sequential(nn.MaxPool1d(1), nn.Linear(6, 2)), (6,), {}, "MaxPool1d must get sequences"),
        (nn.Sequential(Twice(3, 2)), (3,), {}, "got Twice at '0'"),
        (hooked(), (3,), {}, "'0' with hooks"),
        (hooked_outside(), (3,), {}, "'Sequential' with hooks"),
        (broken(), (3,), {}, "finite, got NaN or infinity at 'Linear'"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), (3,), {}, "got ParametrizedLinear"),
        (nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 2)), (3,), {}, "running statistics"),
        (nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"), (1, 4, 4), {}, "padding_mode='reflect'"),
        (nn.MaxPool2d(2, dilation=2), (1, 4, 4), {}, "dilation 1"),
        (nn.Linear(3, 2), (4,), {}, "x_shape must fit the model"),
        (nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(3, 2)), (3,), {}, "x_shape must fit the model"),
        (nn.Conv2d(1, 2, 3), (1, 5, 5), {}, r"features of shape \(2, 3, 3\)"),
        (nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)), (8, 8), {}, r"MaxPool2d must .* \(8, 8\)"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), (5, 5), {}, r"Conv2d must get images .* \(5, 5\)"),
        (nn.AdaptiveAvgPool2d(1), (2, 2, 5, 5), {}, "AdaptiveAvgPool2d must get images"),
        (nn.Sequential(nn.Flatten(0, 1), nn.Linear(4, 2)), (3, 4), {}, "first axis to the examples, got Flatten"),
        (nn.Linear(3, 2), 3, {}, "x_shape must be the sizes"),
        (nn.Linear(3, 2), (0,), {}, "x_shape must be the sizes"),
        (nn.Linear(3, 2), ("3",), {}, "x_shape must be the sizes"),
        ("linear", (3,), {}, "must be a torch.nn.Module, got str"),
        (nn.Linear(3, 2), (3,), {"norm": "l3"}, "norm must be one of l1, l2, linf"),
        (nn.Linear(3, 2), (3,), {"method": "power"}, "method must be one of auto, product, exact"),
        (mlp(3, 17, 2), (3,), {"method": "exact"}, "at most 16 hidden units, got 17"),
        (mlp(3, 4, 2, activation=nn.Tanh), (3,), {"method": "exact"}, "affine layers and"),
    ],
)
def test_what_is_not_understood_is_refused(model, shape, settings, message):
    with pytest.raises(RefusedError, match=message):
        margin_constants(model, shape, **{"norm": "l2", **settings})


class Approximate(nn.Module):
    """A linear layer of what the approximate GELU, as a function, makes of its inputs."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 2)

    def forward(self, x):
        return self.out(nn.functional.gelu(x, approximate="tanh"))


def test_settings_that_no_rule_knows_are_refused_by_name():
    """One test and not one for each: none of them may be left out of a sample. Without its guard each has a rule."""
    paddings = [
        (nn.Sequential(kind(1, 1, 3, padding=1, padding_mode=mode), nn.Flatten()), (1, *[4] * axes), f"mode='{mode}'")
        for axes, kind in enumerate((nn.Conv1d, nn.Conv2d, nn.Conv3d), start=1)
        for mode in ("reflect", "replicate", "circular")
    ]
    others = [
        (nn.Sequential(nn.Linear(3, 4), nn.GELU("tanh"), nn.Linear(4, 2)), (3,), "GELU must be exact"),
        (Approximate(), (3,), "GELU must be exact"),
        (nn.Sequential(nn.InstanceNorm1d(2), nn.Flatten()), (4, 3), r"must fit the model.*ValueError"),  # torch warns
        (nn.Sequential(nn.AvgPool2d(2, divisor_override=-1), nn.Flatten()), (1, 4, 4), "divide by a number > 0"),
    ]
    for model, shape, message in (*paddings, *others):
        with pytest.raises(RefusedError, match=message):
            SequentialLayers(model, shape)


def test_a_padding_that_repeats_features_would_be_claimed_with_too_small_a_constant():
    """Why it is refused: with the edges repeated, the same weights move the logits nearly twice as far."""
    claimed = nn.Sequential(nn.Conv1d(1, 1, 3, padding=1, bias=False), nn.Flatten())
    true = nn.Sequential(nn.Conv1d(1, 1, 3, padding=1, bias=False, padding_mode="circular"), nn.Flatten())
    for model in (claimed, true):
        nn.init.ones_(model[0].weight)
    move = torch.ones(1, 1, 3)
    with torch.no_grad():
        moved = float((true(move)[0] - true(0.0 * move)[0])[0])  # 3 for a move of 1 in linf
    claims = lipschitz_constants(SequentialLayers(claimed, (1, 3)), norm="linf").logits
    assert moved > 1.4 * float(claims[0])
    with pytest.raises(RefusedError, match="padding_mode"):
        SequentialLayers(true, (1, 3))


def pooled_across(*, as_image, seed=0):
    """Batch norms of very different scales for three rows, and between them a pool over these rows."""
    rng = np.random.default_rng(seed)
    pool = nn.AvgPool2d((3, 1), stride=1, padding=(1, 0))
    middle = [nn.Unflatten(1, (1, 3)), pool, nn.Flatten(1, 2)] if as_image else [pool]
    before, after = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    with torch.no_grad():
        for layer in (before, after):
            layer.weight.copy_(torch.tensor(10.0 ** rng.uniform(-3, 2, 3)))
    tail = seeded(lambda: [nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 2)], seed)
    return nn.Sequential(before, *middle, after, nn.ReLU(), nn.Flatten(), *tail).eval()


def test_a_pool_across_what_a_batch_norm_takes_for_channels_is_refused_and_bounded_as_an_image():
    """On (N, 3, 4) torch pools along the axis of size 3: weights for its entries do not pass through."""
    x, moved = random_pairs((3, 4), seed=0)
    np.testing.assert_array_equal(*(logits_of(pooled_across(as_image=is_image), x) for is_image in (False, True)))
    with pytest.raises(RefusedError, match=r"AvgPool2d must get images .* \(3, 4\) at '1'"):
        margin_constants(pooled_across(as_image=False), (3, 4), norm="l2")
    for seed in range(20):
        model = pooled_across(as_image=True, seed=seed)
        largest = quotients(model, x, moved, norm="l2").max(axis=0)
        assert np.all(largest <= margin_constants(model, (3, 4), norm="l2").numpy())


def test_the_model_is_left_as_it_was():
    model = cnn().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    margin_constants(model, (2, 8, 8), norm="l2")
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
