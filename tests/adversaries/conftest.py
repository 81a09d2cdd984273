"""What holds for every test here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    """Each test has the weights that torch draws first, whatever ran before it in the process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
