"""What is put before the clients: made by the ServerApp, or by the launcher that starts it, while Flower starts."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import torch
from flwr.serverapp import Grid

from protocol.hashes import model_hash
from server.run.ledger import part_of_a_run
from server.settings import RunConfig, brings_own_data
from server.studies import study_of
from server.studies.study import UnderTest

PREPARED_VARIABLE = "RISKBAND_PREPARED"
"""Of the environment: the file in which the launcher hands over what it has prepared for this one run."""

PREPARING = "preparing the model"
"""The name of this stage of a run."""


def prepared(config: RunConfig, grid: Grid | None) -> UnderTest:
    """Return what a run puts before its clients; they are needed now only when ``training = "fedavg"``."""
    if not brings_own_data(config.network.dataset):
        config.population().client(0)  # a shift that does not fit the images is known before a model is trained
    return study_of(config).prepare(config, grid)


def hand_over(config: RunConfig, path: Path, *, show: Callable[[str], None]) -> None:
    """Write to a file what a run puts before its clients, unless they are needed for it; `show` takes the stage's name.

    What fails here fails in the ServerApp again, which reports it; what cannot be pickled is prepared there once more.
    """
    if config.model.training != "fedavg":
        show(PREPARING)
        torch.set_num_threads(1)  # as in the ServerApp
        with contextlib.suppress(Exception):
            path.write_bytes(pickle.dumps((part_of_a_run(config.to_run_config()), prepared(config, None))))


def hash_before_asking(config: RunConfig) -> str | None:
    """Return the hash of the model of a run that is resumed, if it comes from a file; None where it is known later.

    What fails here fails in the run again, which reports it.
    """
    if config.asking.resume and config.model.training == "checkpoint":
        with contextlib.suppress(Exception):
            return model_hash(prepared(config, None).arrays)
    return None


def handed_over(config: RunConfig) -> UnderTest | None:
    """Return what was handed over to this process for this run, by a file that its user alone can write; or None."""
    found: UnderTest | None = None
    with contextlib.suppress(Exception):
        for_which_run, found = pickle.loads(Path(os.environ[PREPARED_VARIABLE]).read_bytes())
        found = found if for_which_run == part_of_a_run(config.to_run_config()) else None
    return found
