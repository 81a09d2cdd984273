"""Our attacks on inputs against those of Foolbox and torchattacks, and against WDA: one model, one run.

    python -m papers.benchmarks.attacks [--examples 200] [--norms l2 linf l1] [--without wda CW] [--only AutoAttack a3]
        [--mnist FILE | --cifar FILE --model NAME --checkpoint FILE]

Robust accuracy is the share of examples without a misclassified input within a distance, inside the box [0, 1]. Every
library's outputs are measured in the same way. The second table moves mass: accuracy at a budget of the mean distance.
The last lines of each norm say for every attack of a library how long the fastest of ours takes that is at least as
strong. Seconds are of one core (CPU time of one thread).

A library that is missing is left out. Foolbox: pip install "riskband[attacks]". torchattacks is no extra, for it asks
for another version of requests than flwr does: pip install --no-deps torchattacks.
"""

from __future__ import annotations

import argparse
import importlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from papers.robustness.a3 import A3, A3PlusPlus
from papers.robustness.networks import fgsm_from_random_start
from protocol.models import build_model, load_weights
from riskband.adversaries import adversarial_curves, wda_attack
from riskband.adversaries.base import Batch
from riskband.adversaries.norms import lengths
from riskband.adversaries.problem import TransportProblem
from riskband.adversaries.registry import builder
from riskband.models.evaluation import DEVICES, chosen_device, computed
from riskband.models.losses import get_loss
from worlds.datasets import BaseData, load_dataset
from worlds.training import train_centrally, train_epochs

RADII = {
    "digits": {"l2": 0.5, "linf": 0.1, "l1": 2.0},
    "mnist": {"l2": 1.5, "linf": 0.2, "l1": 10.0},
    "cifar": {"l2": 0.5, "linf": 8 / 255, "l1": 12.0},
}
KAPPAS = (1.0, 2.0, 3.0)
NUM_STEPS = 40
BOX = (0.0, 1.0)
OURS = "ours: "

Attack = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""(model, images, labels) -> distance at which each image is misclassified, `inf` if it is not."""


class Outcome(NamedTuple):
    """What an attack leaves standing within the distance, and the seconds of CPU that it takes."""

    robust_accuracy: float
    seconds: float


def optional(name: str) -> ModuleType | None:
    """Import a library, or say that it is missing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError as error:
        print(f"{name} is missing ({error}): its attacks are left out")
        return None


def ours(name: str, norm: str, distances: tuple[float, ...], **settings: int) -> Attack:
    problem = TransportProblem("zero_one", 1, norm, "input", box=BOX, distances=distances)

    def attack(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        logits = model(x).double().detach()
        batch = Batch(x=x, labels=y, logits=logits, losses=get_loss("zero_one").per_example(logits, y))
        build = {"a3": A3, "a3++": A3PlusPlus}.get(name) or builder(name)
        return build(model, problem, **settings).examine(batch).flip_costs

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
    for num_steps in (9, 18):
        yield f"{OURS}apgd, {num_steps} steps", ours("apgd", norm, (radius,), num_steps=num_steps)
    for name in ("apgd", "apgd-ce", "apgd-dlr", "pgd", "wda", "square", "autoattack", "a3", "a3++", "wda-knapsack"):
        yield f"{OURS}{name}", ours(name, norm, (radius,))
    yield f"{OURS}min-norm", ours("min-norm", norm, ())
    yield f"{OURS}wda-knapsack, not told", ours("wda-knapsack", norm, ())
    foolbox, torchattacks = optional("foolbox"), optional("torchattacks")
    if foolbox is not None:
        for name, attack, distance in foolbox_attacks(foolbox.attacks, norm, radius):
            yield f"foolbox: {name}", measured(norm, partial(from_foolbox, foolbox.PyTorchModel, attack, distance))
    if torchattacks is not None and norm != "l1":
        for name, kind, options in torchattacks_attacks(torchattacks, norm, radius):
            yield f"torchattacks: {name}", measured(norm, partial(from_torchattacks, kind, options))


FoolboxAttack = Callable[..., tuple[Tensor, ...]]


def foolbox_attacks(kinds: ModuleType, norm: str, radius: float) -> Iterator[tuple[str, FoolboxAttack, float | None]]:
    """Yield name, attack, and the radius it is told: None for the nearest flip."""
    within = {"l1": kinds.SparseL1DescentAttack, "l2": kinds.L2PGD, "linf": kinds.LinfPGD}[norm]
    yield "PGD", within(steps=NUM_STEPS), radius
    nearest = {"l1": kinds.L1FMNAttack, "l2": kinds.L2FMNAttack, "linf": kinds.LInfFMNAttack}[norm]
    yield "FMN (100 steps)", nearest(steps=100), None
    if norm == "l1":
        yield "EAD (5 x 100 steps)", kinds.EADAttack(binary_search_steps=5, steps=100), None
    else:
        yield "DeepFool", {"l2": kinds.L2DeepFoolAttack, "linf": kinds.LinfDeepFoolAttack}[norm](), None
    if norm == "l2":
        yield "DDN (100 steps)", kinds.DDNAttack(steps=100), None
        yield "CW (5 x 100 steps)", kinds.L2CarliniWagnerAttack(binary_search_steps=5, steps=100), None


TorchAttack = Callable[..., Callable[..., Tensor]]


def torchattacks_attacks(kinds: ModuleType, norm: str, radius: float) -> Iterator[tuple[str, TorchAttack, dict]]:
    """Yield name, class, and what it is made with; for l2 and linf."""
    kind = {"l2": "L2", "linf": "Linf"}[norm]
    options = {"eps": radius, "steps": NUM_STEPS}
    pgd = {"l2": kinds.PGDL2, "linf": kinds.PGD}[norm]
    yield "PGD", pgd, {"alpha": 2.5 * radius / NUM_STEPS, **options}
    if norm == "l2":
        yield "DeepFool", kinds.DeepFool, {}
        yield "CW (100 steps)", kinds.CW, {"steps": 100}
    yield "FAB", kinds.FAB, {"norm": kind, "eps": radius, "steps": NUM_STEPS // 2}
    yield "Square (1000 queries)", kinds.Square, {"norm": kind, "eps": radius, "n_queries": 1000}
    yield "AutoAttack", kinds.AutoAttack, {"norm": kind, "eps": radius, "seed": 0}
    yield "APGD-CE", kinds.APGD, {"norm": kind, **options}
    yield "APGD-CE, 4 restarts", kinds.APGD, {"norm": kind, "n_restarts": 4, **options}
    for num_steps in (NUM_STEPS // 4, NUM_STEPS // 2):
        yield f"APGD-T ({num_steps} steps)", kinds.APGDT, {"norm": kind, "eps": radius, "steps": num_steps}


def from_torchattacks(kind: TorchAttack, options: dict, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return kind(model, **options)(x, y)


def from_foolbox(
    kind: type, attack: FoolboxAttack, radius: float | None, model: nn.Module, x: Tensor, y: Tensor
) -> Tensor:
    return attack(kind(model, bounds=BOX, device="cpu"), x, y, epsilons=radius)[1]


class OnDevice(nn.Module):
    """A model that computes on a device and is shown tensors on the CPU, as attacks of libraries do."""

    def __init__(self, model: nn.Module, device: str) -> None:
        super().__init__()
        self.here = nn.Parameter(torch.zeros(()))  # libraries ask where the first parameter is
        self.models = [model.to(chosen_device(device))]  # in a list: no parameters of this one

    def forward(self, x: Tensor) -> Tensor:
        """Return the model's logits, on the CPU."""
        return computed(self.models[0], x)


def digits_network() -> tuple[nn.Module, BaseData]:
    data = load_dataset("digits")
    return train_centrally(data, model="cnn", seed=0, num_epochs=10, learning_rate=0.003), data


def robust_network(file: str) -> tuple[nn.Module, BaseData]:
    """Train the convolutional network on MNIST, each batch one step from random points (Wong et al. 2020)."""
    data, radius = load_dataset(f"npz:{file}"), RADII["mnist"]["linf"]
    model = build_model("cnn", x_shape=data.x_train.shape[1:], num_classes=data.num_classes, seed=0)
    moved = partial(fgsm_from_random_start, radius=radius)
    images = (data.x_train, data.y_train)
    train_epochs(model, *images, seed=0, num_epochs=5, learning_rate=0.001, batch_size=128, change=moved)
    return model, data


def given_network(file: str, name: str, checkpoint: str) -> tuple[nn.Module, BaseData]:
    data = load_dataset(f"npz:{file}")
    model = build_model(name, x_shape=data.x_pool.shape[1:], num_classes=data.num_classes, seed=0)
    load_weights(model, checkpoint)
    return model, data


def compare_flips(
    model: nn.Module,
    x: np.ndarray,
    y: np.ndarray,
    *,
    norm: str,
    radius: float,
    only: Sequence[str],
    left_out: Sequence[str],
) -> None:
    images, labels = torch.from_numpy(x.copy()), torch.from_numpy(y.copy())
    print(f"\n{norm}, distance {radius:.4g}")
    print(f"{'attack':<32}{'robust accuracy':>16}{'flips':>7}{'mean distance':>15}{'seconds':>9}")
    outcomes = {}
    for name, attack in attacks(norm, radius):
        if any(part in name for part in left_out) or not any(part in name for part in only):
            continue
        torch.manual_seed(0)
        start = time.process_time()
        distances = attack(model, images, labels)
        seconds = time.process_time() - start
        robust = float((distances > radius * (1.0 + 1e-5)).double().mean())
        found = distances[torch.isfinite(distances)]
        print(f"{name:<32}{robust:>16.4f}{len(found):>7d}{float(found.mean()):>15.4f}{seconds:>9.2f}", flush=True)
        outcomes[name] = Outcome(robust, seconds)
    print("\n".join(comparison(outcomes)))


def comparison(outcomes: dict[str, Outcome]) -> Sequence[str]:
    """For every attack of a library a line: the fastest of ours that is at least as strong."""
    lines = []
    for name, theirs in outcomes.items():
        if name.startswith(OURS):
            continue
        as_strong = [
            (found.seconds, mine, found.robust_accuracy)
            for mine, found in outcomes.items()
            if mine.startswith(OURS) and found.robust_accuracy <= theirs.robust_accuracy
        ]
        words = "none of ours is as strong"
        if as_strong:
            seconds, mine, accuracy = min(as_strong)
            words = f"{mine} ({accuracy:.4f}) takes {seconds:.2f} s, x {seconds / theirs.seconds:.2f}"
        lines.append(f"{name} ({theirs.robust_accuracy:.4f} in {theirs.seconds:.2f} s): {words}")
    return lines


def compare_budgets(model: nn.Module, x: np.ndarray, y: np.ndarray, *, norm: str, radius: float) -> None:
    print(f"\n{norm}, mean distance {radius / 2:.4g} (W_1)\n{'attack':<32}{'accuracy':>16}{'seconds':>31}")
    for kappa in KAPPAS:
        start = time.process_time()
        found = wda_attack(model, x, y, norm=norm, radius=radius / 2, kappa=kappa, box=BOX)
        print(f"{f'WDA as published, kappa {kappa:g}':<32}{found.accuracy:>16.4f}{time.process_time() - start:>31.2f}")
    for adversary in ("min-norm", "wda-knapsack"):
        start = time.process_time()
        problem = TransportProblem("zero_one", 1, norm, "input", adversary, box=BOX)
        curves = adversarial_curves(model, x, y, problem)
        accuracy = 1.0 - curves.values([radius / 2])[0][0]
        print(f"{f'{adversary}, mass optimal':<32}{accuracy:>16.4f}{time.process_time() - start:>31.2f}")


def main() -> None:
    """Print both tables for every norm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--norms", nargs="+", default=list(RADII["digits"]), choices=RADII["digits"])
    parser.add_argument("--without", nargs="+", default=[], help="leave out attacks with these words in their names")
    parser.add_argument("--only", nargs="+", default=[""], help="only attacks with one of these in their names")
    parser.add_argument("--mnist", help="an npz file of MNIST: a model is trained on it to be robust")
    parser.add_argument("--cifar", help="an npz file of CIFAR-10, as the dataset 'npz:FILE' of a run")
    parser.add_argument("--model", default="worlds.cifar10:network", help="architecture of the network for --cifar")
    parser.add_argument("--checkpoint", help="its weights")
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="where the models compute (default: cpu)")
    arguments = parser.parse_args()
    if (arguments.cifar is None) != (arguments.checkpoint is None):
        parser.error("--cifar and --checkpoint go together")
    torch.set_num_threads(1)
    dataset = "mnist" if arguments.mnist else "cifar" if arguments.cifar else "digits"
    if dataset == "mnist":
        model, data = robust_network(arguments.mnist)
    elif dataset == "digits":
        model, data = digits_network()
    else:
        model, data = given_network(arguments.cifar, arguments.model, arguments.checkpoint)
    model = OnDevice(model.eval(), arguments.device)
    x, y = data.x_pool[: arguments.examples], data.y_pool[: arguments.examples]
    with torch.no_grad():
        clean = float((model(torch.from_numpy(x.copy())).argmax(dim=1).numpy() == y).mean())
    print(f"{len(x)} images, clean accuracy {clean:.4f}; mean distances are over the flips found")
    radii = RADII[dataset]
    for norm, radius in ((norm, radii[norm]) for norm in arguments.norms):
        compare_flips(model, x, y, norm=norm, radius=radius, only=arguments.only, left_out=arguments.without)
        if arguments.only == [""] and "wda" not in arguments.without:
            compare_budgets(model, x, y, norm=norm, radius=radius)


if __name__ == "__main__":
    main()
