"""What [DG] lacks: a certified line that domains stay below, from clients that are draws of (angle, corruption).

A client of the source network sees a pool of test images at one of the source angles, as they are or under one
corruption of severity 1, all equally likely, and answers from examples drawn from them. Elsewhere all clients see the
same pool in one other version (a domain of [DG]), or each its own turned by some more degrees. As all clients are
mixtures over one finite pool, everything else is exact: risks; the transport cost from the source network, the mean
over clients' versions of the squared W_2 in representation space; and the worst risk of any network at that cost. The
certificate sees the answers alone, and costs a priori.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import nn

import riskband as rb
from papers.domain_generalisation.domains import PROBLEM, SOURCE_ANGLES, TARGET_ANGLES, Seen, seen_by
from papers.domain_generalisation.rotated_digits import ROWS, SETTINGS, Row, rows_of, trained
from papers.domain_generalisation.training import split_head
from papers.experiment import Experiment, Request, Result
from protocol.examples import Examples
from riskband.adversaries.answers import adversarial_answers
from riskband.adversaries.curves import AdversarialCurves
from riskband.adversaries.registry import adversarial_curves
from riskband.plots.bands import BOUNDS, blank_figure, draw_legend_below
from worlds.corruptions import MNIST_C, Corruption
from worlds.datasets import load_dataset
from worlds.targets import transport_cost
from worlds.versions import ImageVersion, Original, Rotation, chained

DELTA = 0.05
_NUM_EXAMPLES = 100
_NUM_BUDGETS = 12
_NUM_RADII = 60
_TURNS = (2.0, 5.0, 10.0, 15.0, 30.0)


def run(request: Request) -> Result:
    """Certify each model and compare every domain with the line."""
    pool = _pool(request)
    kinds = tuple(MNIST_C)[:3] if request.quick else tuple(MNIST_C)
    severities = (2, 5) if request.quick else (2, 3, 4, 5)
    mild: list[ImageVersion] = [Original(), *(Corruption(kind, 1) for kind in kinds)]
    sources = [chained((Rotation(angle), each)) for angle in SOURCE_ANGLES for each in mild]
    targets: dict[str, ImageVersion] = {f"{angle:g}°": Rotation(angle) for angle in TARGET_ANGLES}
    for kind in kinds:
        for severity in severities:
            corruption = Corruption(kind, severity)
            targets[corruption.name] = chained((Rotation(SOURCE_ANGLES[0]), corruption))
    num_clients = request.num_clients(full=300, quick=100)
    models = {}
    for row in rows_of(request, quick=("wm", "wm+1.5")):
        model = trained(request, row)
        before = [_seen(model, pool, version) for version in sources]
        after: dict[str, Seen | list[Seen]] = {name: _seen(model, pool, own) for name, own in targets.items()}
        for turn in _TURNS:
            turned = [chained((Rotation(angle + turn), each)) for angle in SOURCE_ANGLES for each in mild]
            after[f"each by {turn:g}° more"] = [_seen(model, pool, version) for version in turned]
        rng = np.random.default_rng(np.random.SeedSequence(request.seed, spawn_key=(1,)))
        models[row.name] = certified(model, row, before, after, num_clients=num_clients, rng=rng)
    return {
        "delta": DELTA,
        "num_clients": num_clients,
        "num_examples": _NUM_EXAMPLES,
        "models": models,
        "table": [_summary(found) for found in models.values()],
    }


def certified(
    model: nn.Module,
    row: Row,
    before: Sequence[Seen],
    after: Mapping[str, Seen | list[Seen]],
    *,
    num_clients: int,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Return the certified line of one model, the exact worst case, and every domain's exact cost and risk."""
    head = nn.Sequential(split_head(model)[1])  # alone a model of representations
    weights = np.full(len(before[0].y), 1 / len(before[0].y))
    # One domain for all clients, or one for each version.
    ends = {name: there if isinstance(there, list) else [there] * len(before) for name, there in after.items()}
    costs = {
        name: float(
            np.mean(
                [
                    transport_cost(each.z, end.z, each.y, weights, order=2, norm="l2")
                    for each, end in zip(before, there, strict=True)
                ]
            )
        )
        for name, there in ends.items()
    }
    exact = _pooled_curves(head, [(each.z, each.y) for each in before])
    # Up to distance 1, where the worst case is 1, and then everything; none of it comes from the answers.
    near = exact.adversarial_unit * np.linspace(0, 1, _NUM_BUDGETS) ** 2
    budgets = np.append(near, max(*costs.values(), 2 * near[-1]))
    multipliers = rb.default_multipliers(budgets)
    radii = np.concatenate([[0.0], np.geomspace(budgets[1] / 50, 4 * budgets[-1], _NUM_RADII - 1)])
    versions = rng.integers(len(before), size=num_clients)
    drawn = [(before[v], rng.integers(len(weights), size=_NUM_EXAMPLES)) for v in versions]
    held = [(seen.z[index], seen.y[index]) for seen, index in drawn]
    answers = adversarial_answers(head, held, radii=radii, multipliers=multipliers)
    line = rb.wasserstein_mean(answers, delta=DELTA, cost_budget=budgets)
    bound = np.asarray(line.value)
    pooled = _pooled_curves(head, held)
    domains = {}
    for name, cost in costs.items():
        at = int(np.searchsorted(budgets, cost * (1 - 1e-12)))  # the smallest budget that is no smaller
        domains[name] = {
            "cost": cost,
            "risk": float(np.mean([end.is_wrong.mean() for end in ends[name]])),
            "certified": float(bound[at]),
        }
    return {
        "label": row.label,
        "unit": exact.adversarial_unit,
        "validity": line.validity,
        "budgets": budgets.tolist(),
        "certified": bound.tolist(),
        "exact_worst": exact.values(budgets)[1].tolist(),
        "estimate_of_the_paper": pooled.values(budgets)[1].tolist(),
        "domains": domains,
    }


def _summary(found: dict[str, Any]) -> dict[str, Any]:
    rows = found["domains"]
    return {
        "model": found["label"],
        "domains": len(rows),
        "above_the_line": sum(each["risk"] > each["certified"] for each in rows.values()),
        "line_below_the_exact_worst_case": sum(
            bound < worst - 1e-12 for bound, worst in zip(found["certified"], found["exact_worst"], strict=True)
        ),
        "certified_at_0": found["certified"][0],
        "exact_at_0": found["exact_worst"][0],
        "certified_2°_more": rows["each by 2° more"]["certified"],
        "risk_2°_more": rows["each by 2° more"]["risk"],
    }


def _pool(request: Request) -> Examples:
    """Upright test images, as many of each class."""
    data = load_dataset(request.dataset("mnist"), seed=request.seed)
    rng = np.random.default_rng(np.random.SeedSequence(request.seed, spawn_key=(0,)))
    size = 14 if request.quick else 50
    y = data.y_pool
    rows = np.concatenate([rng.permutation(np.flatnonzero(y == label))[:size] for label in np.unique(y)])
    return Examples(x=data.x_pool[rows], y=y[rows])


def _seen(model: nn.Module, pool: Examples, version: ImageVersion) -> Seen:
    return seen_by(model, Examples(x=version.apply(pool.x, index=np.arange(len(pool.y))), y=pool.y))


def _pooled_curves(head: nn.Module, held: Sequence[tuple[NDArray[np.float64], NDArray[np.int64]]]) -> AdversarialCurves:
    """The exact worst 0-1 loss, at every cost, of all examples that are held."""
    z, y = map(np.concatenate, zip(*held, strict=True))
    return adversarial_curves(head, z, y, PROBLEM)


def figure(result: Result) -> Figure:
    """Draw a panel for each model: the certified line, what it is a bound of, and every domain."""
    models = result["models"]
    page = blank_figure(4.4 * len(models) + 0.8, 5.0)
    for k, (axes, found) in enumerate(zip(np.ravel(page.subplots(1, len(models))), models.values(), strict=True)):
        far = np.sqrt(np.array(found["budgets"]) / found["unit"])
        confidence = f"{1 - result['delta']:.0%}"
        lines = (
            ("certified", f"certified at {confidence} from {result['num_clients']} clients (sharp)", BOUNDS, "-"),
            ("exact_worst", "worst risk of any network so far away (exact)", "black", "-"),
            ("estimate_of_the_paper", "worst case of the clients' examples, as [DG] (estimate)", "#d1701f", "--"),
        )
        for key, label, colour, style in lines:
            # A bound at one cost holds at every smaller one, not between two.
            steps = "steps-pre" if key == "certified" else "default"
            axes.plot(far, found[key], style, color=colour, lw=1.8, drawstyle=steps, label=label if k == 0 else None)
        for marker, label in (
            ("o", "all clients one domain: a corruption (exact)"),
            ("^", "all clients one domain: 30° to 75° (exact)"),
            ("s", "each client turned by 2° to 30° more (exact)"),
        ):
            own = [each for name, each in found["domains"].items() if _marker(name) == marker]
            points = (np.sqrt([each["cost"] / found["unit"] for each in own]), [each["risk"] for each in own])
            axes.plot(*points, marker, color="#444444", ms=4.5, label=label if k == 0 else None)
        axes.set(xlabel=r"mean transport cost$^{1/2}$ / $\rho_{adv}$", ylim=(0, 1.02), title=found["label"])
        axes.set_xlim(left=0)
        axes.grid(alpha=0.25, lw=0.6)
        if k == 0:
            axes.set_ylabel("share of errors")
    draw_legend_below(page)
    return page


def _marker(name: str) -> str:
    return "s" if name.startswith("each") else "^" if name.endswith("°") else "o"


EXPERIMENT = Experiment(
    name="dg-certificate",
    paper="beyond [DG]: a certified line above every domain, over clients that are draws of (angle, corruption)",
    sets=("mnist",),
    run=run,
    figure=figure,
    panels=tuple(ROWS),
    settings=SETTINGS,
)
