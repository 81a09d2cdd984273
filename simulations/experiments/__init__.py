"""The papers' experiments, each by one command: ``python -m simulations.experiments NAME --out DIR``."""

from __future__ import annotations

EXPERIMENTS: dict[str, str] = {
    "fig4": "simulations.experiments.federated.unseen_clients:FIGURE_4",
    "fig6": "simulations.experiments.federated.target_networks:FIGURE_6",
    "fig7": "simulations.experiments.federated.moved_networks:FIGURE_7",
    "fig9": "simulations.experiments.federated.target_networks:FIGURE_9",
    "fig10": "simulations.experiments.federated.moved_networks:FIGURE_10",
    "refuted": "simulations.experiments.federated.refuted:REFUTED",
    "group-table": "simulations.experiments.dispersion.group_table:GROUP_TABLE",
    "lorenz": "simulations.experiments.dispersion.lorenz:LORENZ",
    "distances": "simulations.experiments.domain_generalisation.distances:EXPERIMENT",
    "dg-table": "simulations.experiments.domain_generalisation.table:EXPERIMENT",
    "dg-figures": "simulations.experiments.domain_generalisation.figures:EXPERIMENT",
    "dg-certificate": "simulations.experiments.domain_generalisation.certified_line:EXPERIMENT",
    "attacks-table": "simulations.experiments.robustness.attacks_table:ATTACKS_TABLE",
}
"""For each name, where its `Experiment` is: "module:attribute", imported on use."""
