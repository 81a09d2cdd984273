"""CIFAR-10 with a trained network: clean accuracy, and the sandwich in input space, seconds of one core per client.

    python -m papers.benchmarks.cifar10 [--data-folder FOLDER] [--clients 3] [--full] [--workers 2] [--out cifar10.json]

Clients hold 200 images each under an affine shift of strength 0.03 and label shares from Dirichlet(0.4). For each,
attacks say from below and a Lipschitz bound says from above how large the 0-1 risk gets within a mean l2 distance; the
last rows say so of the mean over all unseen clients, as a server would. Every client is written to --out as soon as it
is done, and a run that finds the file goes on from there: the file is the same whatever the number of workers. The
folder holds cifar10.npz (x_train, y_train, x_test, y_test) and cifar10_cnn.npz (weights of the PyPI package
cifar-10-model, 7.4.0); docs/simulations.md says how both are made. No Flower is needed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import riskband as rb
from riskband.adversaries import LipschitzAdversary, SandwichAdversary, margin_constants
from riskband.adversaries.attacks.base import InputAdversary, client_curves
from riskband.adversaries.attacks.fab import MinNorm
from riskband.adversaries.attacks.wda import WdaKnapsack
from riskband.adversaries.problem import TransportProblem
from riskband.models.evaluation import DEVICES, chosen_device
from strategies.wasserstein import radii_grid
from worlds.cifar10 import X_SHAPE, accuracy, load_network
from worlds.datasets import load_dataset
from worlds.population import Population, PopulationSpec
from worlds.shifts import AffineShift, DirichletLabelShift

IMAGES, WEIGHTS = "cifar10.npz", "cifar10_cnn.npz"
ATTACKS: dict[str, type[InputAdversary]] = {"min-norm": MinNorm, "wda-knapsack": WdaKnapsack}
BUDGETS = (0.0, 1e-10, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3)
NUM_CLIENTS, NUM_EXAMPLES = 200, 200
DELTA = 0.05
PROBLEM = TransportProblem("zero_one", 1, "l2", "input")
RADII = np.union1d(BUDGETS, radii_grid(BUDGETS, num_radii=100))
MULTIPLIERS = rb.default_multipliers(BUDGETS)

Answer = dict[str, Any]
"""What one client says: its number, and its curves on RADII and MULTIPLIERS from both sides."""


@dataclass(frozen=True)
class Task:
    """What every client of a run is asked."""

    folder: str
    num_examples: int
    attack: str
    device: str = "cpu"

    def client(self, number: int) -> tuple[Answer, float]:
        """Return a client's answer, and the seconds of one core that it took."""
        shifts = (AffineShift(0.03), DirichletLabelShift(0.4))
        spec = PopulationSpec(dataset=self.images, seed=0, examples_per_client=self.num_examples, shifts=shifts)
        held, model = Population(spec).client(number), load_network(self.weights).to(chosen_device(self.device))
        start = time.process_time()
        adversary = SandwichAdversary(ATTACKS[self.attack](model, PROBLEM), LipschitzAdversary(model, PROBLEM))
        curves = client_curves(adversary, model, held.x, held.y, loss="zero_one", batch_size=100)
        answer: Answer = {"client": number, "unit": curves.adversarial_unit}
        for name, sides in (("values", curves.values(RADII)), ("conjugates", curves.conjugates(MULTIPLIERS))):
            answer |= {f"{name}_{side}": found.tolist() for side, found in zip(("lower", "upper"), sides, strict=True)}
        return answer, time.process_time() - start

    @property
    def images(self) -> str:
        """Name of the dataset."""
        return f"npz:{Path(self.folder) / IMAGES}"

    @property
    def weights(self) -> Path:
        """The file of the network."""
        return Path(self.folder) / WEIGHTS


def answers_of(task: Task, numbers: list[int], num_workers: int) -> Iterator[tuple[Answer, float]]:
    """Yield answers as they come. Workers are forked: they share the images and the constants, found before."""
    if num_workers == 1:
        yield from map(task.client, numbers)
        return
    with multiprocessing.get_context("fork").Pool(num_workers) as pool:
        yield from pool.imap_unordered(task.client, numbers)


def network_sandwich(answers: list[Answer], num_examples: int) -> dict[str, list[float]]:
    """Return what holds of the mean risk of any network within each of BUDGETS, with probability 1 - DELTA."""
    found = {}
    for side in ("lower", "upper"):  # also the name of the guarantee
        numbers = rb.AdversarialAnswers(
            RADII,
            [answer[f"values_{side}"] for answer in answers],
            num_examples,
            cost="order 1, l2 distance, in input space",
            guarantee=side,
            binary=True,
            multipliers=MULTIPLIERS,
            conjugates=[answer[f"conjugates_{side}"] for answer in answers],
        )
        found[side] = np.asarray(rb.wasserstein_mean(numbers, delta=DELTA, cost_budget=BUDGETS).value)
    return {"certificate": found["upper"].tolist(), "estimate": np.minimum(*found.values()).tolist()}


def run(task: Task, *, num_clients: int, num_workers: int, out: Path | None) -> None:
    settings = {"num_examples": task.num_examples, "attack": task.attack, "radii": RADII.tolist()}
    settings |= {"multipliers": MULTIPLIERS.tolist(), "budgets": list(BUDGETS), "delta": DELTA}
    record: dict[str, Any] = {"settings": settings, "clients": []}
    if out is not None and out.exists():
        record = json.loads(out.read_text(encoding="utf-8"))
        if record["settings"] != settings:
            sys.exit(f"{out} is of a run with other settings; choose another --out, or remove it")
    model, data = load_network(task.weights), load_dataset(task.images)
    if "accuracy" not in record:
        record["accuracy"] = accuracy(model, data.x_pool, data.y_pool)
    print(f"clean accuracy on {len(data.y_pool)} test images: {100 * record['accuracy']:.2f} %", flush=True)
    start = time.process_time()
    record["constant"] = float(margin_constants(model, X_SHAPE, norm="l2").max())
    seconds = time.process_time() - start
    print(f"Lipschitz constant of the margins (l2): {record['constant']:.3g}, {seconds:.0f} s")
    print(f"{task.attack} below, Lipschitz above; 0-1 risk [estimate, certificate] within a mean l2 distance")
    print(f"{'client':<8}{'seconds':>8}" + "".join(f"{budget:>15g}" for budget in BUDGETS), flush=True)
    known = {answer["client"] for answer in record["clients"]}
    times = []
    for answer, seconds in answers_of(task, [k for k in range(num_clients) if k not in known], num_workers):
        times.append(seconds)
        record["clients"] = sorted([*record["clients"], answer], key=lambda each: each["client"])
        print(row(str(answer["client"]), seconds, *at_budgets([answer])), flush=True)
        write(out, record)
    answers = record["clients"][:num_clients]
    print(row("mean", float(np.mean(times)) if times else 0.0, *at_budgets(answers)))
    if num_clients > 1:
        record["network"] = network_sandwich(answers, task.num_examples)
        ends = record["network"]["estimate"], record["network"]["certificate"]
        print(row("unseen", 0.0, *map(np.asarray, ends)))
        print(f"unseen: mean risk of any network within that distance of this one, delta = {DELTA}")
    write(out, record)


def at_budgets(answers: list[Answer]) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean over clients of both ends at BUDGETS."""
    at = np.searchsorted(RADII, BUDGETS)
    lower, upper = (
        np.mean([answer[f"values_{side}"] for answer in answers], axis=0)[at] for side in ("lower", "upper")
    )
    return lower, upper


def write(out: Path | None, record: Mapping[str, Any]) -> None:
    """Replace the file in one step, so that a run that is killed leaves a whole one."""
    if out is not None:
        part = out.with_name(out.name + ".part")
        part.write_text(json.dumps(record, sort_keys=True), encoding="utf-8")
        part.replace(out)


def row(name: str, seconds: float, lower: np.ndarray, upper: np.ndarray) -> str:
    intervals = (f"[{below:.3f}, {above:.3f}]" for below, above in zip(lower, upper, strict=True))
    return f"{name:<8}{seconds:>8.1f}" + "".join(f"{interval:>15}" for interval in intervals)


def main() -> None:
    """Print the accuracy and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-folder", type=Path, default=Path.home() / ".cache" / "riskband-data")
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--examples", type=int, default=NUM_EXAMPLES, help="images of each client")
    parser.add_argument("--attack", choices=ATTACKS, default="min-norm")
    parser.add_argument("--workers", type=int, default=1, help="processes; 1 on a GPU")
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="where the models compute (default: cpu)")
    parser.add_argument("--out", type=Path, help="a JSON file to write, or to go on with")
    parser.add_argument("--full", action="store_true", help=f"{NUM_CLIENTS} clients with {NUM_EXAMPLES} images: hours")
    arguments = parser.parse_args()
    folder = arguments.data_folder.expanduser().absolute()
    absent = [name for name in (IMAGES, WEIGHTS) if not (folder / name).is_file()]
    if absent:
        print(f"skipped: {folder} must hold {' and '.join(absent)}; see 'A trained model' in docs/simulations.md")
        return
    torch.set_num_threads(1)
    num_clients, num_examples = (
        (NUM_CLIENTS, NUM_EXAMPLES) if arguments.full else (arguments.clients, arguments.examples)
    )
    task = Task(str(folder), num_examples, arguments.attack, arguments.device)
    run(task, num_clients=num_clients, num_workers=arguments.workers, out=arguments.out)


if __name__ == "__main__":
    main()
