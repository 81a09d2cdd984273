"""The papers' experiments, each by one command: ``python -m simulations.experiments NAME --out DIR``."""

from __future__ import annotations

EXPERIMENTS: dict[str, str] = {
    "group-table": "simulations.experiments.group_table:GROUP_TABLE",
    "lorenz": "simulations.experiments.lorenz:LORENZ",
    "distances": "simulations.experiments.distances:EXPERIMENT",
    "dg-table": "simulations.experiments.dg_table:EXPERIMENT",
    "dg-figures": "simulations.experiments.dg_figures:EXPERIMENT",
    "dg-certificate": "simulations.experiments.dg_certificate:EXPERIMENT",
}
"""For each name, where its `Experiment` is: "module:attribute", imported on use."""
