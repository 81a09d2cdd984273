"""The papers' experiments, each by one command: ``python -m simulations.experiments NAME --out DIR``."""

from __future__ import annotations

EXPERIMENTS: dict[str, str] = {
    "fig4": "simulations.experiments.unseen_clients:FIGURE_4",
    "fig6": "simulations.experiments.target_networks:FIGURE_6",
    "fig7": "simulations.experiments.moved_networks:FIGURE_7",
    "fig9": "simulations.experiments.target_networks:FIGURE_9",
    "fig10": "simulations.experiments.moved_networks:FIGURE_10",
    "group-table": "simulations.experiments.group_table:GROUP_TABLE",
    "lorenz": "simulations.experiments.lorenz:LORENZ",
    "distances": "simulations.experiments.dg_distances:EXPERIMENT",
    "dg-table": "simulations.experiments.dg_table:EXPERIMENT",
    "dg-figures": "simulations.experiments.dg_figures:EXPERIMENT",
    "dg-certificate": "simulations.experiments.dg_certificate:EXPERIMENT",
}
"""For each name, where its `Experiment` is: "module:attribute", imported on use."""
