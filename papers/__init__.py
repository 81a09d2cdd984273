"""The papers' experiments, each by one command: ``python -m papers NAME --out DIR``."""

from __future__ import annotations

EXPERIMENTS: dict[str, str] = {
    "fig4": "papers.federated.unseen_clients:FIGURE_4",
    "fig6": "papers.federated.target_networks:FIGURE_6",
    "fig7": "papers.federated.moved_networks:FIGURE_7",
    "fig9": "papers.federated.target_networks:FIGURE_9",
    "fig10": "papers.federated.moved_networks:FIGURE_10",
    "refuted": "papers.federated.refuted:REFUTED",
    "group-table": "papers.dispersion.group_table:GROUP_TABLE",
    "lorenz": "papers.dispersion.lorenz:LORENZ",
    "distances": "papers.domain_generalisation.distances:EXPERIMENT",
    "dg-table": "papers.domain_generalisation.table:EXPERIMENT",
    "dg-figures": "papers.domain_generalisation.figures:EXPERIMENT",
    "dg-certificate": "papers.domain_generalisation.certified_line:EXPERIMENT",
    "attacks-table": "papers.robustness.attacks_table:ATTACKS_TABLE",
}
"""For each name, where its `Experiment` is: "module:attribute", imported on use."""
