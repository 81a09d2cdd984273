"""Models with other logits for the same example: attacked, they are named; nothing is proved of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from riskband.adversaries import adversarial_answers, wda_attack
from riskband.checks import RefusedError
from riskband.models.evaluation import is_steady
from tests.adversaries.nets import cnn, mlp, padded_cnn, seeded
from tests.transport import curves_of


class Changed(nn.Module):
    """A linear model of what a function makes of its inputs."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.change, self.out = change, nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.out(self.change(x))
        return logits


def once_seeded(x: torch.Tensor) -> torch.Tensor:
    """The same noise in every pass, another in every row."""
    return x + torch.randn(x.shape, generator=torch.Generator().manual_seed(0))


def alternating() -> Any:
    calls: list[int] = []
    return lambda x: x * (1.0 + len(calls) % 2 + 0 * (calls.append(1) or 0))


UNSTEADY = {
    "noise": lambda: lambda x: x + 0.1 * torch.randn_like(x),
    "dropout": lambda: lambda x: nn.functional.dropout(x, 0.5),
    "noise of one seed": lambda: once_seeded,
    "less the mean": lambda: lambda x: x - x.mean(0),
    "batch norm": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 3)), nn.BatchNorm1d(1, track_running_stats=False), nn.Flatten()
    ),
    "over the number": lambda: lambda x: x / len(x),
    "state": alternating,
}


def net(kind: str) -> Changed:
    made: Changed = seeded(lambda: Changed(UNSTEADY[kind]()))
    return made


def examples(number: int = 6) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(number, 3)).astype(np.float32), rng.integers(2, size=number)


@pytest.mark.parametrize("number", [1, 6])
@pytest.mark.parametrize("kind", UNSTEADY)
def test_what_would_be_proved_is_refused_and_what_is_attacked_is_named(kind: str, number: int) -> None:
    x, y = examples(number)
    attacked = curves_of(net(kind), x, y, loss="zero_one", order=1, space="input", adversary="pgd", distances=(0.1,))
    assert attacked.is_unsteady
    assert attacked.at([0.0], [1.0]).is_unsteady
    settings = {"loss": "zero_one", "order": 1}
    with pytest.raises(RefusedError, match=r"the same logits .* use an attack"):
        curves_of(net(kind), x, y, space="input", adversary="smoothing:0.25:100", **settings)
    with pytest.raises(RefusedError, match="the same logits"):
        curves_of(net(kind), x, y, **settings)  # exact, before the last layer


def test_smoothing_proved_less_than_the_truth_of_a_model_that_looks_at_the_batch() -> None:
    """Noise around an example is one batch, whose mean `x - x.mean(0)` takes away; alone every example is wrong."""
    model = net("less the mean")
    with torch.no_grad():
        model.out.weight.zero_()
        model.out.bias.copy_(torch.tensor([0.0, 1e-3]))
        model.out.weight[1, 0] = 1.0
    x, y = np.ones((4, 3), dtype=np.float32), np.zeros(4, dtype=int)
    alone = torch.cat([model(row[None]) for row in torch.from_numpy(x)]).argmax(dim=1)
    assert np.all(alone.numpy() != y)  # whatever the noise: the true risk is 1
    with pytest.raises(RefusedError, match="the same logits"):
        curves_of(model, x, y, loss="zero_one", order=1, space="input", adversary="smoothing:0.25:100")


def test_a_model_that_fails_for_a_single_example_is_not_steady() -> None:
    model = seeded(lambda: Changed(nn.BatchNorm1d(3, track_running_stats=False)))
    with pytest.raises(RefusedError, match=r"the same logits .* or fails"):
        curves_of(model, *examples(), loss="zero_one", order=1, space="input", adversary="smoothing:0.25:100")


def test_answers_and_wda_say_so() -> None:
    x, y = examples()
    asked: dict[str, Any] = {"radii": [0.0, 0.1], "loss": "zero_one", "order": 1, "space": "input", "adversary": "pgd"}
    named = adversarial_answers(net("noise"), [(x, y), (x[:3], y[:3])], **asked)
    assert "for 2 of 2 clients the model is random or its logits depend on the batch" in named.cost
    assert "random" not in adversarial_answers(mlp(3, 4, 2), [(x, y), (x, y)], **asked).cost
    assert wda_attack(net("noise"), x, y, norm="l2", radius=0.1).is_unsteady
    assert not wda_attack(mlp(3, 4, 2), x, y, norm="l2", radius=0.1).is_unsteady


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("is_double", [False, True])
def test_rounding_is_no_other_logit(scale: float, is_double: bool) -> None:
    """Sums are made in another order in a batch of another size, and logits may cancel."""
    rng = np.random.default_rng(1)
    for model, shape in ((mlp(30, 64, 64, 64, 5), (30,)), (cnn(), (2, 8, 8)), (padded_cnn(), (2, 6, 6))):
        last = [layer for layer in model.modules() if isinstance(layer, nn.Linear)][-1]
        with torch.no_grad():
            last.weight.mul_(scale)
            last.bias.sub_(model.eval()(torch.zeros(1, *shape))[0])
        x = rng.normal(size=(9, *shape))
        assert is_steady(model.double() if is_double else model.float(), x)


def test_few_examples_are_shown_and_modes_are_restored() -> None:
    shown = []
    model = Changed(lambda x: shown.append(len(x)) or x)
    assert is_steady(model, examples(500)[0])
    assert sorted(shown) == [1, 1, 9, 9]
    assert model.training


def test_auto_attacks_it() -> None:
    x, y = examples()
    curves = curves_of(net("noise"), x, y, loss="zero_one", order=1, space="input", adversary="auto")
    assert (curves.guarantee, curves.is_unsteady) == ("lower", True)
