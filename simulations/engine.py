"""What runs the simulated clients: this process, a Ray that the launcher starts, or a Ray cluster; quick to import.

The report does not depend on it, its section "timing" apart.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass

from server.problems import ConfigError

IN_PROCESS, RAY = "in-process", "ray"
MOST_CLIENTS_IN_PROCESS = 1_000
"""With more clients than this, Ray is the default: it uses every processor, and this process one."""

_RAY_OPTIONS = ("ray_address", "client_cpus", "client_gpus")
_ADDRESS_REMEDY = 'give "auto" for the cluster that this machine is a node of, or HOST:PORT of the head node'


@dataclass(frozen=True)
class Engine:
    """What runs the simulated clients.

    Attributes
    ----------
    name : str
        `IN_PROCESS`, `RAY`, or "" for the default, which depends on the number of clients.
    ray_address : str
        Of an existing Ray cluster, ``"auto"`` or ``"HOST:PORT"``; "" for a Ray that is started and ended with the run.
    client_cpus : int
        Processors that Ray reserves for one client, ≥ 1.
    client_gpus : float
        GPUs that Ray reserves for one client, ≥ 0; 0.25 puts four clients on one.
    """

    name: str = ""
    ray_address: str = ""
    client_cpus: int = 1
    client_gpus: float = 0.0

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

    Raises
    ------
    ConfigError
        If a value breaks its rule, or an option of Ray's is given for clients in this process.
    """
    if options.engine not in (None, IN_PROCESS, RAY):
        raise ConfigError([f"--engine must be {IN_PROCESS} or {RAY}, got {options.engine!r}; leave it out if unsure"])
    given = [name for name in _RAY_OPTIONS if getattr(options, name) is not None]
    if options.engine == IN_PROCESS and given:
        option = f"--{given[0].replace('_', '-')}"
        raise ConfigError([f"{option} must come with --engine {RAY}, got --engine {IN_PROCESS}; leave one of them out"])
    return Engine(
        name=RAY if given else options.engine or "",
        ray_address=_ray_address(options, environment),
        client_cpus=_client_cpus(options.client_cpus or "1"),
        client_gpus=_client_gpus(options.client_gpus or "0"),
    )


def _ray_address(options: argparse.Namespace, environment: Mapping[str, str]) -> str:
    if options.ray_address is not None:
        return _checked_address(options.ray_address, "--ray-address")
    in_use = options.engine != IN_PROCESS and environment.get("RAY_ADDRESS")
    return _checked_address(in_use, "RAY_ADDRESS") if in_use else ""


def _checked_address(value: str, source: str) -> str:
    host, _, port = value.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and 0 < int(port) < 65_536
    if value != "auto" and not (host and "/" not in host and is_port):
        raise ConfigError([f'{source} must be "auto" or HOST:PORT, got {value!r}; {_ADDRESS_REMEDY}'])
    return value


def _client_cpus(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) >= 1):
        remedy = "Flower reserves whole processors"
        raise ConfigError([f"--client-cpus must be a whole number of at least 1, got {text!r}; {remedy}"])
    return int(text)


def _client_gpus(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ConfigError([f"--client-gpus must be a number of at least 0, got {text!r}; 0.25 puts 4 clients on a GPU"])
    return value
