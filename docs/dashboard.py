"""``python -m docs.dashboard [FILE.png]``: what the Grafana dashboard asks, drawn by us and not by Grafana.

A run of 40 clients, of which some are slow and some fail, and a fleet that a monitor watches meanwhile. Needs
Prometheus (``apt install prometheus``).
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
import tomllib
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

import riskband as rb
from riskband.cli import main as command
from riskband.flower.testing import Delivery
from tests.prometheus import asked, free_port, prometheus, served
from tests.server.running import run_app

ROOT = Path(__file__).parents[1]
NUM_CLIENTS = 40


def run(folder: Path, port: int) -> None:
    """Run with clients of which each takes its time, three fail, and six have query budgets."""
    rng = np.random.default_rng(3)

    def behaves(k: int, seconds: float) -> Any:
        def behave(message: Any, answer: Any) -> list[Delivery]:
            if message.metadata.message_type == "query.loss":
                time.sleep(seconds)
                if k in (5, 17, 30):
                    raise ValueError("this client is broken")
            return [Delivery(answer(message))]

        return behave

    behaviours = {k: behaves(k, float(rng.gamma(2.0, 0.35))) for k in range(NUM_CLIENTS)}
    budgets = {
        k: {"query-budget": left, "query-budget-file": str(folder / f"budget-{k}")}
        for k, left in enumerate((0, 1, 5, 20, 20, 90), start=6)
    }
    defaults = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    settings = {"num_clients": NUM_CLIENTS, "num_unseen": 0, "quorum": 0.8, "respect_query_budgets": "true"}
    run_app(folder / "run", defaults, behaviours=behaviours, node_configs=budgets, metrics_port=port, **settings)


def watch(folder: Path, is_over: threading.Event) -> None:
    """Look at a fleet that was as certified once, as `riskband monitor --follow` does."""
    rng, rows = np.random.default_rng(1), ["loss"]
    rb.bound(rb.ClientRisks([0.1, 0.2] * 50, 100), "mean", delta=0.05).save(folder / "before.json")
    while not is_over.wait(1.0):
        rows += [f"{rng.binomial(100, 0.15 if len(rows) < 60 else 0.22) / 100}" for _ in range(4)]
        (folder / "fleet.csv").write_text("\n".join(rows) + "\n")
        options = ["--num-examples", "100", "--prometheus", str(folder / "monitor.prom")]
        command(["monitor", str(folder / "before.json"), str(folder / "fleet.csv"), *options])


def draw(panels: list[dict[str, Any]], address: str, *, start: float, end: float, file: Path) -> None:
    """Draw the panels where the dashboard has them."""
    figure = plt.figure(figsize=(15, 10), layout="constrained")  # which leaves room for the labels
    grid = figure.add_gridspec(3, 24)
    for panel in panels:
        place = panel["gridPos"]
        axes = figure.add_subplot(grid[place["y"] // 8, place["x"] : place["x"] + place["w"]])
        axes.set_title(panel["title"], fontsize=10)
        found: dict[str, list[Any]] = {}  # a series of the run itself goes on as that of the file that it leaves
        for target in panel["targets"]:
            query = target["expr"].replace("$run", ".*")
            for series in asked(address, query, start=start, end=end, step=1):
                label = target["legendFormat"]
                for name, value in series["metric"].items():
                    label = label.replace(f"{{{{{name}}}}}", value)
                found[label] = sorted(
                    found.get(label, []) + [(float(at), float(value)) for at, value in series["values"]]
                )
        if panel["type"] == "timeseries":
            for label, values in found.items():
                seconds, numbers = np.array(values).T
                axes.step(seconds - start, numbers, where="post", label=label)
            axes.margins(y=0.3)  # above the lines is room for the legend
            axes.legend(fontsize=7, loc="upper left")
            axes.set(xlim=(0, end - start), ylim=(0, None), xlabel="seconds")
        elif panel["type"] == "bargauge":
            labels = sorted(found, key=lambda label: float(label.split()[0]))
            axes.barh(labels, [found[label][-1][1] for label in labels])
        else:
            axes.axis("off")
            for k, (label, values) in enumerate(found.items()):
                axes.text(0.5, 0.5 - 0.3 * k, f"{label}: {values[-1][1]:g}", ha="center", fontsize=16)
    figure.savefig(file, dpi=70)
    plt.close(figure)


def main(file: Path = ROOT / "docs" / "figures" / "dashboard.png") -> None:
    """Run, read, and draw."""
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "riskband.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as name, served(folder := Path(name)) as files:
        live, is_over = free_port(), threading.Event()
        targets = {"/metrics": live, "/run/metrics.prom": files, "/monitor.prom": files}
        with prometheus(folder, targets) as address:
            start = time.time()
            watcher = threading.Thread(target=watch, args=(folder, is_over))
            watcher.start()
            run(folder, live)
            time.sleep(3.0)
            is_over.set()
            watcher.join()
            draw(dashboard["panels"], address, start=start, end=time.time(), file=file)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
