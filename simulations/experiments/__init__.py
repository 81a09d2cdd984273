"""The papers' experiments, each by one command: ``python -m simulations.experiments NAME --out DIR``."""

from __future__ import annotations

EXPERIMENTS: dict[str, str] = {
    "distances": "simulations.experiments.distances:EXPERIMENT",
}
"""For each name, where its `Experiment` is: "module:attribute", imported on use."""
