"""Domain generalisation: penalties by POT and by hand, what a step of a discriminator does, the game of DR-DG."""

from __future__ import annotations

import numpy as np
import ot
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from papers.domain_generalisation.methods import METHODS, ConditionalDiscrimination, DomainDiscrimination
from papers.domain_generalisation.network import rotated_digits_cnn
from papers.domain_generalisation.training import (
    WorstPoints,
    adversarial_distance,
    split_head,
    train_on_domains,
)
from protocol.examples import Examples
from protocol.models import build_model, model_arrays
from worlds.datasets import load_dataset
from worlds.versions import Rotation

SIZES = (6, 4, 5)


def domains(num_examples: int = 40, angles: tuple[float, ...] = (0, 30)) -> list[Examples]:
    """Digits of the training split at angles, other images for each."""
    data = load_dataset("digits")
    parts = [slice(k * num_examples, (k + 1) * num_examples) for k in range(len(angles))]
    index = np.arange(num_examples)
    turned = [Rotation(angle).apply(data.x_train[own], index=index) for angle, own in zip(angles, parts, strict=True)]
    return [Examples(x=x, y=data.y_train[own]) for x, own in zip(turned, parts, strict=True)]


def batch(sizes: tuple[int, ...] = SIZES) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn((size, 3), generator=generator), torch.randint(0, 2, (size,), generator=generator))
        for size in sizes
    ]


def parts(seed: int = 0) -> tuple[nn.Sequential, nn.Linear]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 2)


def digits_model() -> nn.Module:
    return build_model("mlp", x_shape=(1, 8, 8), num_classes=10, seed=0)


def risks(batches, encoder, head) -> list[float]:
    return [cross_entropy(head(encoder(x)), y).item() for x, y in batches]


def same(one: nn.Module, other: nn.Module) -> bool:
    first, second = model_arrays(one), model_arrays(other)
    return all(first[name].tobytes() == second[name].tobytes() for name in first)


def test_wasserstein_matching_pays_the_optimal_cost_between_each_two_domains():
    # Truth: POT's ot.emd2 on costs written out one by one.
    encoder, head = parts()
    batches = batch()
    with torch.no_grad():
        points = [encoder(x).numpy().astype(float) for x, _ in batches]
        loss = METHODS["wm"]().loss(batches, encoder, head).item()
    penalty = 0.0
    for i, j in [(0, 1), (0, 2), (1, 2)]:
        costs = np.array(
            [
                [
                    ((a - b) ** 2).sum() + 2.0 * (ya != yb)
                    for b, yb in zip(points[j], batches[j][1].numpy(), strict=True)
                ]
                for a, ya in zip(points[i], batches[i][1].numpy(), strict=True)
            ]
        )
        penalty += ot.emd2(ot.unif(len(costs)), ot.unif(costs.shape[1]), costs)
    assert loss == pytest.approx(np.mean(risks(batches, encoder, head)) + 0.1 * penalty, rel=1e-5)


def test_plans_are_those_of_the_evaluated_encoder_which_keeps_its_mode():
    encoder, head = parts()
    noisy = nn.Sequential(encoder, nn.Dropout(0.5)).train()
    METHODS["wm"]().loss(batch(), noisy, head).backward()
    assert noisy.training
    assert all(weight.grad is not None for weight in encoder.parameters())


def test_the_variance_of_the_risks_by_hand():
    encoder, head = parts()
    own = risks(batch(), encoder, head)
    mean = sum(own) / 3
    variance = sum((risk - mean) ** 2 for risk in own) / 3
    assert METHODS["vrex"]().loss(batch(), encoder, head).item() == pytest.approx(mean + variance, rel=1e-5)
    assert METHODS["erm"]().loss(batch(), encoder, head).item() == pytest.approx(mean, rel=1e-5)


@pytest.mark.parametrize("kind", [DomainDiscrimination, ConditionalDiscrimination])
@pytest.mark.parametrize("num_domains", [2, 3])
def test_a_discriminator_learns_with_each_step_and_the_model_is_to_mislead_it(kind, num_domains):
    encoder, head = parts()
    batches = batch((40, 40, 40)[:num_domains])
    batches = [(x + 2.0 * k, y) for k, (x, y) in enumerate(batches)]
    rule = kind()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        rule.loss(batches, encoder, head).backward()
        assert all(weight.grad is not None and torch.any(weight.grad != 0) for weight in encoder.parameters())
        assert len(rule.discriminators) == (1 if num_domains == 2 else num_domains)
        rule.discriminators.eval()  # without dropout the loss of a step can be compared with that of the next
        seen = [rule.view(encoder(x), head).detach() for x, _ in batches]
        steps = [rule.step(seen) for _ in range(30)]
    assert steps[1] < steps[0]
    assert steps[-1] < 0.8 * steps[0]
    # Who knows the domains is wrong about the answers turned round.
    assert rule.discrimination(seen, is_turned=True).item() > rule.discrimination(seen, is_turned=False).item()


def test_cdan_looks_at_products_of_probabilities_and_features():
    encoder, head = parts()
    z = encoder(batch()[0][0])
    view = ConditionalDiscrimination().view(z, head)
    by_hand = torch.stack([torch.outer(p, row).flatten() for p, row in zip(head(z).softmax(dim=1), z, strict=True)])
    torch.testing.assert_close(view, by_hand)


def test_the_unit_of_the_radius_is_the_exact_distance_to_misclassification():
    # Truth: for each example the margin over the length of w_j - w_label, the smallest over j; 0 if it is wrong.
    model, (own, _) = digits_model(), domains()
    train_on_domains(model, domains(), method="vrex", seed=0, num_epochs=5, learning_rate=0.01, batch_size=20)
    _, head = split_head(model)
    with torch.no_grad():
        logits = model(torch.tensor(own.x)).double().numpy()
    weight, squares = head.weight.detach().double().numpy(), []
    for row, label in zip(logits, own.y, strict=True):
        others = [j for j in range(10) if j != label]
        far = [(row[label] - row[j]) / np.linalg.norm(weight[j] - weight[label]) for j in others]
        squares.append(max(min(far), 0.0) ** 2)
    assert adversarial_distance(model, own.x, own.y) == pytest.approx(np.sqrt(np.mean(squares)), rel=1e-5)


def test_worst_points_raise_the_loss_within_the_distance():
    encoder, head = parts()
    x, y = batch((60,))[0]
    z = encoder(x).detach()
    y = head(z).argmax(dim=1)
    worst = WorstPoints(z, radius=0.3)
    for _ in range(60):
        moved = worst.climb(np.arange(60), z, y, head)
    assert cross_entropy(head(moved), y) > cross_entropy(head(z), y) + 0.05
    assert (moved - z).square().sum(dim=1).mean().sqrt().item() == pytest.approx(0.3, abs=0.03)
    assert all(weight.requires_grad and weight.grad is None for weight in head.parameters())
    assert not moved.requires_grad


def test_without_a_radius_worst_points_are_the_examples_and_without_a_factor_dr_dg_is_the_method():
    encoder, head = parts()
    x, y = batch((30,))[0]
    z = encoder(x).detach()
    near = WorstPoints(z, radius=0.0)
    near.price = 1000.0  # where it ends up, as long as anything has moved
    for _ in range(30):
        moved = near.climb(np.arange(30), z, y, head)
    assert cross_entropy(head(moved), y).item() == pytest.approx(cross_entropy(head(z), y).item(), abs=0.02)
    settings = {"method": "wm", "seed": 0, "num_epochs": 4, "batch_size": 20, "num_warm_up": 1}
    plain, small, unweighted = digits_model(), digits_model(), digits_model()
    train_on_domains(plain, domains(), **settings)
    train_on_domains(small, domains(), **settings, factor=0.0)
    train_on_domains(unweighted, domains(), **settings, factor=1.0, adversarial_weight=0.0)
    assert same(plain, small)
    assert same(plain, unweighted)


@pytest.mark.parametrize("method", METHODS)
def test_seeds_repeat_bit_for_bit_and_torch_is_left_alone(method):
    settings = {"method": method, "num_epochs": 3, "batch_size": 20, "factor": 1.0, "num_warm_up": 1}
    before = torch.random.get_rng_state()
    first, again, other = digits_model(), digits_model(), digits_model()
    for model, seed in ((first, 1), (again, 1), (other, 2)):
        train_on_domains(model, domains(), **settings, seed=seed)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert same(first, again)
    assert not same(first, other)


def test_three_domains_of_several_sizes_are_learnt():
    own = [
        Examples(x=each.x[: 60 - 10 * k], y=each.y[: 60 - 10 * k]) for k, each in enumerate(domains(60, (0, 20, 40)))
    ]
    model = digits_model()
    train_on_domains(model, own, method="wm", seed=0, num_epochs=40, learning_rate=0.005, batch_size=20)
    with torch.no_grad():
        right = [(model(torch.tensor(each.x)).argmax(dim=1).numpy() == each.y).mean() for each in own]
    assert min(right) >= 0.9


def test_the_published_network_has_128_features_and_a_linear_head():
    model = build_model(
        f"{rotated_digits_cnn.__module__}:{rotated_digits_cnn.__name__}", x_shape=(1, 28, 28), num_classes=10, seed=0
    )
    encoder, head = split_head(model)
    assert encoder(torch.zeros(2, 1, 28, 28)).shape == (2, 128)
    assert (head.in_features, head.out_features) == (128, 10)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "unknown"}, "method must be one of vrex, wm"),
        ({"factor": -1.0}, "factor must be"),
        ({"num_epochs": 0}, "num_epochs must be"),
        ({"num_warm_up": -1}, "num_warm_up must be"),
    ],
)
def test_wrong_arguments_are_said(change, words):
    with pytest.raises(ValueError, match=words):
        train_on_domains(digits_model(), domains(), **{"method": "wm", "seed": 0, "num_epochs": 1} | change)


def test_one_domain_or_a_model_without_a_linear_end_is_refused():
    with pytest.raises(ValueError, match="at least 2 domains"):
        train_on_domains(digits_model(), domains()[:1], method="wm", seed=0, num_epochs=1)
    with pytest.raises(ValueError, match=r"ends with an nn.Linear"):
        train_on_domains(nn.Sequential(nn.Flatten(), nn.ReLU()), domains(), method="wm", seed=0, num_epochs=1)
