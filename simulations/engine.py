"""What runs the simulated clients: this process, a Ray that the launcher starts, or a Ray cluster; quick to import.

The report does not depend on it, its section "timing" apart.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from server.problems import ConfigError

IN_PROCESS, RAY = "in-process", "ray"
MOST_CLIENTS_IN_PROCESS = 1_000
"""With more clients than this, Ray is the default: it uses every processor, and this process one."""

_RAY_OPTIONS = ("ray_address", "client_cpus", "client_gpus")
_ADDRESS_REMEDY = 'give "auto" for the cluster that this machine is a node of, or HOST:PORT of the head node'


@dataclass(frozen=True)
class Engine:
    """What runs the simulated clients."""

    name: str = ""  # `IN_PROCESS`, `RAY`, or "" for the default, which depends on the number of clients
    # Of an existing Ray cluster, ``"auto"`` or ``"HOST:PORT"``; "" for a Ray that is started and ended with the run.
    ray_address: str = ""
    client_cpus: int = 1  # processors that Ray reserves for one client, ≥ 1
    client_gpus: float = 0.0  # GPUs that Ray reserves for one client, ≥ 0; 0.25 puts four clients on one.

    def is_in_process(self, num_clients: int) -> bool:
        """Return whether so many clients run in this process."""
        return self.name == IN_PROCESS or (not self.name and num_clients <= MOST_CLIENTS_IN_PROCESS)


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `chosen_engine` reads."""
    parser.add_argument(
        "--engine",
        metavar=f"{IN_PROCESS}|{RAY}",
        help=f"what runs the clients (default: this process up to {MOST_CLIENTS_IN_PROCESS:,} clients, else Ray)",
    )
    parser.add_argument(
        "--ray-address", metavar="auto|HOST:PORT", help="use this Ray cluster instead of a new Ray (RAY_ADDRESS)"
    )
    parser.add_argument("--client-cpus", metavar="N", help="processors that Ray reserves for a client (1)")
    parser.add_argument("--client-gpus", metavar="X", help="GPUs that Ray reserves for a client, such as 0.25 (0)")


def chosen_engine(options: argparse.Namespace, environment: Mapping[str, str]) -> Engine:
    """Return what the options of `add_engine_options` choose.

    An option of Ray's chooses Ray. The variable RAY_ADDRESS does not: it only says which cluster Ray is.

    Raises ConfigError with all mistakes: values that break their rules, and options of Ray's for clients in this
    process.
    """
    given = [name for name in _RAY_OPTIONS if getattr(options, name) is not None]
    source, address = _named_address(options, environment)
    cpus, gpus = options.client_cpus or "1", options.client_gpus or "0"
    problems = [*_problems_of_engine(options.engine, given), *_problems_of_values(source, address, cpus, gpus)]
    if problems:
        raise ConfigError(problems)
    return Engine(RAY if given else options.engine or "", address or "", int(cpus), float(gpus))


def _named_address(options: argparse.Namespace, environment: Mapping[str, str]) -> tuple[str, str | None]:
    """Return who names the address of a cluster, and that address; None if nobody does."""
    if options.ray_address is not None:
        return "--ray-address", options.ray_address
    return "RAY_ADDRESS", environment.get("RAY_ADDRESS") or None if options.engine != IN_PROCESS else None


def _problems_of_engine(engine: str | None, given: Sequence[str]) -> Iterator[str]:
    if engine not in (None, IN_PROCESS, RAY):
        yield f"--engine must be {IN_PROCESS} or {RAY}, got {engine!r}; leave it out if unsure"
    for name in given if engine == IN_PROCESS else ():
        option = f"--{name.replace('_', '-')}"
        yield f"{option} must come with --engine {RAY}, got --engine {IN_PROCESS}; leave one of them out"


def _problems_of_values(source: str, address: str | None, cpus: str, gpus: str) -> Iterator[str]:
    if address is not None and not _is_address(address):
        yield f'{source} must be "auto" or HOST:PORT, got {address!r}; {_ADDRESS_REMEDY}'
    if not (_is_whole(cpus) and int(cpus) >= 1):
        yield f"--client-cpus must be a whole number of at least 1, got {cpus!r}; Flower reserves whole processors"
    if not 0 <= _number(gpus) < math.inf:
        yield f"--client-gpus must be a number of at least 0, got {gpus!r}; 0.25 puts 4 clients on a GPU"


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return text == "auto" or bool(host and "/" not in host and _is_whole(port) and 0 < int(port) < 65_536)


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
