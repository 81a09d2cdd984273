"""What holds for every test here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread_and_seed() -> Iterator[None]:
    """As in clients, one thread: with small tensors, threads only wait for each other. And each test has the weights
    that torch draws first, whatever ran before it in the process.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    torch.set_num_threads(before)
