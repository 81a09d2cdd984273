"""A Ray cluster that is there already: whether it can be reached, and whether clients fit on it.

Flower would only find out when the model is trained, and then wait for clients that never come.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from dataclasses import dataclass

from server.problems import ConfigError
from simulations.engine import Engine

_CONNECT_TIMEOUT = 5.0  # s: a machine of the same network answers in far less
_PROBE_TIMEOUT = 120.0  # s: Ray takes up to a minute to find that a node is dead
_REMEDY = (
    "run on a machine of the cluster (`ray start --address=HEAD:PORT` makes it one), with the same versions of Python "
    "and Ray; docs/scale.md"
)
# A process of its own: Ray's connection would otherwise be open in this one, with its threads and signal handlers.
# For some seconds after a node has died Ray counts it as alive, and a client put there would never answer: wait until
# each node that is alive can be reached. Ray writes news of nodes to standard output too; ours is the line in braces.
_PROBE = """
import json, socket, sys, time, ray
ray.init(address=sys.argv[1], log_to_driver=False, configure_logging=False)
def is_reached(node):
    try:
        socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), timeout=5).close()
    except OSError:
        return False
    return True
while not all(map(is_reached, nodes := [node for node in ray.nodes() if node["Alive"]])):
    time.sleep(0.5)
nodes = [node["Resources"] for node in nodes]
print(json.dumps({"address": ray.get_runtime_context().gcs_address, "nodes": nodes}))
"""


@dataclass(frozen=True)
class RayCluster:
    """A cluster that has answered."""

    address: str  # HOST:PORT, never "auto"
    nodes: tuple[dict[str, float], ...]  # what each live node has: "CPU", "GPU" and more

    def num_clients_at_once(self, engine: Engine) -> int:
        """Return how many clients fit at the same time, as Flower counts: on each node as many as it has room for."""
        return sum(_room(node, engine) for node in self.nodes)


def require_room(cluster: RayCluster, engine: Engine) -> None:
    """Raise ConfigError if no node has what one client needs."""
    if not cluster.num_clients_at_once(engine):
        largest = " and ".join(
            f"{max(node.get(kind, 0) for node in cluster.nodes):g} {kind}" for kind in ("CPU", "GPU")
        )
        needed = f"{engine.client_cpus} CPU and {engine.client_gpus:g} GPU"
        raise ConfigError(
            [f"a client must fit on one node of {cluster.address}, got {needed} for nodes of at most {largest}; "
             "lower --client-cpus or --client-gpus"]
        )  # fmt: skip


def reached_cluster(address: str) -> RayCluster:
    """Return the cluster at an address, ``"auto"`` or ``"HOST:PORT"``.

    Raises ConfigError if there is none, or it does not take this machine.
    """
    if address != "auto":
        _require_listener(address)
    try:
        command = [sys.executable, "-c", _PROBE, address]
        probe = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT)
        found = json.loads(next(line for line in probe.stdout.splitlines() if line.startswith("{")))
    except subprocess.TimeoutExpired:
        raise _unreachable(address, f"no answer in {_PROBE_TIMEOUT:.0f} s") from None
    except (StopIteration, ValueError):
        raise _unreachable(address, (probe.stderr.strip().splitlines() or ["no reason"])[-1]) from None
    return RayCluster(address=found["address"], nodes=tuple(found["nodes"]))


def _require_listener(address: str) -> None:
    """Raise ConfigError if nobody listens there: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT).close()
    except OSError as error:
        raise _unreachable(address, str(error)) from None


def _unreachable(address: str, why: str) -> ConfigError:
    return ConfigError([f"the Ray cluster must be reachable from here, got {address!r} ({why}); {_REMEDY}"])


def _room(node: dict[str, float], engine: Engine) -> int:
    room = int(node.get("CPU", 0) / engine.client_cpus)
    return min(room, int(node.get("GPU", 0) / engine.client_gpus)) if engine.client_gpus else room
