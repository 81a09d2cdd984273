"""Our attacks on inputs against those of Foolbox and torchattacks, and against WDA: one model, one run.

    python -m benchmarks.attacks [--examples 200] [--cifar FILE --model NAME --checkpoint FILE]

Robust accuracy is the share of examples without a misclassified input within a distance, inside the box [0, 1]. Every
library's outputs are measured in the same way. The second table moves mass: accuracy at a budget of the mean distance.
"""

from __future__ import annotations

import argparse
import importlib
import time
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType

import numpy as np
import torch
from torch import Tensor, nn

from client.adversaries import InputProblem, adversarial_curves, wda_attack
from client.adversaries.attacks import Pgd
from client.adversaries.base import Batch
from client.adversaries.inputs import InputAdversary
from client.adversaries.minnorm import MinNorm
from client.adversaries.norms import lengths
from client.adversaries.wda import Wda, WdaKnapsack
from client.losses import get_loss
from simulations.datasets import BaseData, load_dataset
from simulations.models import build_model, load_arrays
from simulations.training import load_checkpoint, train_centrally

RADII = {"digits": {"l2": 0.5, "linf": 0.1}, "cifar": {"l2": 0.5, "linf": 8 / 255}}
KAPPAS = (1.0, 2.0, 3.0)
NUM_STEPS = 40
BOX = (0.0, 1.0)

Attack = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""(model, images, labels) -> distance at which each image is misclassified, `inf` if it is not."""


def optional(name: str) -> ModuleType | None:
    """Import a library, or say that it is missing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError as error:
        print(f"{name} is missing ({error}): its attacks are left out")
        return None


def ours(kind: type[InputAdversary], norm: str, distances: tuple[float, ...], **settings: int) -> Attack:
    problem = InputProblem("zero_one", 1, norm, box=BOX, distances=distances)

    def attack(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        logits = model(x).double().detach()
        batch = Batch(x=x, labels=y, logits=logits, losses=get_loss("zero_one").per_example(logits, y))
        return kind(model, problem, **settings).examine(batch).flip_costs

    return attack


def measured(norm: str, perturb: Attack) -> Attack:
    """Turn an attack that returns images into one that returns distances."""

    def attack(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        found = torch.nan_to_num(perturb(model, x, y)).detach().clamp(*BOX)
        is_wrong = model(found).argmax(dim=1) != y
        is_wrong_already = model(x).argmax(dim=1) != y
        distances = torch.where(is_wrong, lengths((found - x).flatten(1), norm), torch.inf)
        return torch.where(is_wrong_already, 0.0, distances)

    return attack


def attacks(norm: str, radius: float) -> Iterator[tuple[str, Attack]]:
    """Yield attacks by name; those within a ball know its radius, the others look for the nearest flip."""
    yield "ours: pgd", ours(Pgd, norm, (radius,), num_steps=NUM_STEPS)
    yield "ours: min-norm", ours(MinNorm, norm, ())
    yield "ours: wda, kappa 1", ours(Wda, norm, (radius,))
    yield "ours: wda-knapsack", ours(WdaKnapsack, norm, (radius,))
    foolbox, torchattacks = optional("foolbox"), optional("torchattacks")
    if foolbox is not None:
        kinds = foolbox.attacks
        within = {"l2": kinds.L2PGD, "linf": kinds.LinfPGD}[norm](steps=NUM_STEPS)
        nearest = {"l2": kinds.L2DeepFoolAttack, "linf": kinds.LinfDeepFoolAttack}[norm]()
        yield "foolbox: PGD", measured(norm, from_foolbox(foolbox, within, radius))
        yield "foolbox: DeepFool", measured(norm, from_foolbox(foolbox, nearest, None))
        if norm == "l2":
            cw = kinds.L2CarliniWagnerAttack(binary_search_steps=5, steps=100)
            yield "foolbox: CW (5 x 100 steps)", measured(norm, from_foolbox(foolbox, cw, None))
    if torchattacks is not None:
        kind = {"l2": "L2", "linf": "Linf"}[norm]
        pgd = {"l2": torchattacks.PGDL2, "linf": torchattacks.PGD}[norm]
        options = {"eps": radius, "steps": NUM_STEPS}
        yield "torchattacks: PGD", measured(norm, from_torchattacks(pgd, alpha=2.5 * radius / NUM_STEPS, **options))
        if norm == "l2":
            yield "torchattacks: DeepFool", measured(norm, from_torchattacks(torchattacks.DeepFool))
            yield "torchattacks: CW (100 steps)", measured(norm, from_torchattacks(torchattacks.CW, steps=100))
        yield "torchattacks: FAB", measured(norm, from_torchattacks(torchattacks.FAB, norm=kind, eps=radius, steps=20))
        yield "torchattacks: APGD-CE", measured(norm, from_torchattacks(torchattacks.APGD, norm=kind, **options))
        targeted = {"norm": kind, "eps": radius, "steps": NUM_STEPS // 2}
        yield "torchattacks: APGD-T (20 steps)", measured(norm, from_torchattacks(torchattacks.APGDT, **targeted))


def from_torchattacks(kind: Callable[..., Callable[..., Tensor]], **options: object) -> Attack:
    return lambda model, x, y: kind(model, **options)(x, y)


def from_foolbox(foolbox: ModuleType, attack: Callable[..., tuple], radius: float | None) -> Attack:
    def perturb(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        wrapped = foolbox.PyTorchModel(model, bounds=BOX, device="cpu")
        found: Tensor = attack(wrapped, x, y, epsilons=radius)[1]
        return found

    return perturb


def digits_network() -> tuple[nn.Module, BaseData]:
    data = load_dataset("digits")
    return train_centrally(data, model="cnn", seed=0, num_epochs=10, learning_rate=0.003), data


def given_network(file: str, name: str, checkpoint: str) -> tuple[nn.Module, BaseData]:
    data = load_dataset(f"npz:{file}")
    model = build_model(name, x_shape=data.x_pool.shape[1:], num_classes=data.num_classes, seed=0)
    load_arrays(model, load_checkpoint(checkpoint))
    return model, data


def compare_flips(model: nn.Module, x: np.ndarray, y: np.ndarray, *, norm: str, radius: float) -> None:
    images, labels = torch.from_numpy(x.copy()), torch.from_numpy(y.copy())
    print(f"\n{norm}, distance {radius:.4g}")
    print(f"{'attack':<32}{'robust accuracy':>16}{'flips':>7}{'mean distance':>15}{'seconds':>9}")
    for name, attack in attacks(norm, radius):
        torch.manual_seed(0)
        start = time.perf_counter()
        distances = attack(model, images, labels)
        seconds = time.perf_counter() - start
        robust = float((distances > radius * (1.0 + 1e-5)).double().mean())
        found = distances[torch.isfinite(distances)]
        print(f"{name:<32}{robust:>16.4f}{len(found):>7d}{float(found.mean()):>15.4f}{seconds:>9.2f}")


def compare_budgets(model: nn.Module, x: np.ndarray, y: np.ndarray, *, norm: str, radius: float) -> None:
    print(f"\n{norm}, mean distance {radius / 2:.4g} (W_1)\n{'attack':<32}{'accuracy':>16}{'seconds':>31}")
    for kappa in KAPPAS:
        start = time.perf_counter()
        found = wda_attack(model, x, y, norm=norm, radius=radius / 2, kappa=kappa, box=BOX)
        print(f"{f'WDA as published, kappa {kappa:g}':<32}{found.accuracy:>16.4f}{time.perf_counter() - start:>31.2f}")
    for adversary in ("min-norm", "wda-knapsack"):
        start = time.perf_counter()
        curves = adversarial_curves(
            model, x, y, loss="zero_one", order=1, norm=norm, space="input", adversary=adversary, box=BOX
        )
        accuracy = 1.0 - curves.values([radius / 2])[0][0]
        print(f"{f'{adversary}, mass optimal':<32}{accuracy:>16.4f}{time.perf_counter() - start:>31.2f}")


def main() -> None:
    """Print both tables for l2 and linf."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--cifar", help="an npz file of CIFAR-10, as the dataset 'npz:FILE' of a run")
    parser.add_argument("--model", default="cifar10_cnn", help="architecture of the network for --cifar")
    parser.add_argument("--checkpoint", help="its weights")
    arguments = parser.parse_args()
    if (arguments.cifar is None) != (arguments.checkpoint is None):
        parser.error("--cifar and --checkpoint go together")
    torch.set_num_threads(1)
    if arguments.cifar is None:
        model, data = digits_network()
    else:
        model, data = given_network(arguments.cifar, arguments.model, arguments.checkpoint)
    model.eval()
    x, y = data.x_pool[: arguments.examples], data.y_pool[: arguments.examples]
    with torch.no_grad():
        clean = float((model(torch.from_numpy(x.copy())).argmax(dim=1).numpy() == y).mean())
    print(f"{len(x)} images, clean accuracy {clean:.4f}; mean distances are over the flips found")
    for norm, radius in RADII["digits" if arguments.cifar is None else "cifar"].items():
        compare_flips(model, x, y, norm=norm, radius=radius)
        compare_budgets(model, x, y, norm=norm, radius=radius)


if __name__ == "__main__":
    main()
