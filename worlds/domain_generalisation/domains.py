"""Domains of a simulated network: what the clients of each group hold, put together."""

from __future__ import annotations

import numpy as np

from protocol.examples import Examples
from worlds.domain_generalisation.methods import METHODS
from worlds.population import Population

DG_TRAINING = {f"dg:{method}": method for method in METHODS}
"""Values of the key ``training`` that train on domains, and the methods that they name."""


def domains_of(population: Population, *, num_clients: int) -> list[Examples]:
    """Return the training examples of clients 0 .. num_clients − 1 by group, in the order of the spec's groups.

    Raises ValueError if a group has none of these clients.
    """
    names = [population.spec.group(k) for k in range(num_clients)]
    domains = []
    for group in population.spec.groups:
        own = [population.training_examples(k) for k, name in enumerate(names) if name == group]
        if not own:
            raise ValueError(
                f"each group must have a client that trains, got none of {group.name!r} among {num_clients}; "
                "raise num-training-clients"
            )
        domains.append(Examples(x=np.concatenate([each.x for each in own]), y=np.concatenate([each.y for each in own])))
    return domains
