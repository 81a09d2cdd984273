"""Runs the services of docker-compose.yml as processes: their own commands, networks, files and health checks.

Where root allows it every service is in a network namespace of its own, with an address in each of its networks and the
names of its neighbours in its hosts file, so that what Compose would keep apart is apart. Elsewhere all are on the
loopback interface, on ports of their own. Paths of the container become paths below one folder.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from simulations.launcher import free_port, processes_of
from tests.deployment import compose
from tests.waiting import wait_until

PATIENCE = 120.0
_ADDRESS = re.compile(r"\b(superlink|proxy|supernode|localhost|127\.0\.0\.1|0\.0\.0\.0):(8000|8443|909[45])\b")

# Flower asks one function for the time; Python runs this file as every process of that SuperNode starts.
CLOCK = """
import datetime, types
import flwr.supercore.date as date
class Clock:
    @staticmethod
    def now(tz=None):
        return datetime.datetime.now(tz) + datetime.timedelta(seconds={seconds})
date.datetime = types.SimpleNamespace(datetime=Clock, timezone=datetime.timezone, UTC=datetime.UTC)
"""


def can_make_namespaces() -> bool:
    """Whether this process may give network namespaces, bridges and addresses."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"rb{os.getpid()}-probe"
    try:
        subprocess.run(["ip", "netns", "add", name], check=True, capture_output=True)
        command = ["ip", "-n", name, "link", "add", "probe", "type", "bridge"]
        return subprocess.run(command, capture_output=True).returncode == 0
    except subprocess.CalledProcessError:
        return False
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


class Stage:
    """The services of a compose project as processes, below one folder; use it as a context manager.

    Parameters
    ----------
    folder : Path
        An empty folder. ``./`` of the compose file is this folder.
    files : tuple of Path
        The compose files.
    has_namespaces : bool
        Whether each service gets a network namespace.
    variables : mapping of str to str
        What the compose files' variables stand for.
    """

    def __init__(
        self, folder: Path, files: tuple[Path, ...], *, has_namespaces: bool, variables: Mapping[str, str]
    ) -> None:
        if shutil.which("haproxy") is None:
            pytest.skip("the proxy is not installed; apt-get install --no-install-recommends haproxy")
        self.folder = folder
        self.project = compose.load(files, variables)
        self.services: dict[str, dict[str, Any]] = self.project["services"]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._sessions: dict[str, set[int]] = {name: set() for name in self.services}
        self._network = _Namespaces(self.services) if has_namespaces else None
        self._ports: dict[tuple[str, str], int] = {}

    def __enter__(self) -> Stage:
        if self._network is not None:
            self._network.make()
        return self

    def __exit__(self, *error: object) -> None:
        for name in reversed(list(self.processes)):
            self.kill(name)
        if self._network is not None:
            self._network.remove()

    def up(self, *profiles: str) -> None:
        """Start all services without a profile or of these, each when what it depends on is ready, until all are."""
        todo = {
            name: spec
            for name, spec in self.services.items()
            if not spec.get("profiles") or set(spec["profiles"]) & set(profiles)
        }
        while todo:
            ready = [name for name, spec in todo.items() if not set(spec.get("depends_on", {})) & set(todo)]
            for name in ready:
                self.start(name)
            for name in ready:
                self.wait_for(name)
                del todo[name]

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a service; with arguments instead of its command, as `docker compose run` does."""
        service = self.services[name]
        command = compose.argv({**service, "command": list(arguments)} if arguments else service)
        process = self.spawn(name, command)
        self.processes[name] = process
        return process

    def spawn(self, name: str, command: list[str], *, log: Path | None = None) -> subprocess.Popen[bytes]:
        """Start a command as a process in the place of a service; its output goes to the service's log, or another."""
        service = self.services[name]
        home = self.folder / "tmp" / name
        home.mkdir(parents=True, exist_ok=True)
        for source in self._volumes(name).values():
            Path(source).mkdir(parents=True, exist_ok=True)
        environment = compose.image_environment() | service.get("environment", {})
        environment = {key: self._local(name, value, of=key) for key, value in environment.items()}
        # A container would inherit nothing; but what chooses the kernels of linear algebra decides last digits.
        kept = {key: value for key, value in os.environ.items() if key.startswith(("OPENBLAS_", "OMP_", "MKL_"))}
        kept["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
        if service.get("working_dir") == "/app":
            environment["PYTHONPATH"] = str(compose.ROOT)  # the working directory itself would see the tests
        argv = [self._local(name, word) for word in command]
        argv[0] = sys.executable if argv[0] == "python" else argv[0]
        if self._network is not None:
            argv = [*self._network.prefix(name), *argv]
        with (log or self.log(name)).open("ab") as output:
            process = subprocess.Popen(
                argv,
                env=kept | environment,
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._sessions[name].add(process.pid)
        return process

    def wait_for(self, name: str) -> None:
        """Wait until a service is healthy, or for one that ends until it has succeeded."""
        process, spec = self.processes[name], self.services[name]
        if "healthcheck" not in spec:
            assert process.wait(PATIENCE) == 0, f"{name} failed\n{self.tail(name)}"
            return
        wait_until(lambda: process.poll() is not None or self.is_healthy(name), every=0.5, what=lambda: self.tail(name))
        assert process.poll() is None, f"{name} ended\n{self.tail(name)}"

    def is_healthy(self, name: str) -> bool:
        """What the health check of a service says."""
        check = self.spawn(name, self.services[name]["healthcheck"]["test"][1:], log=self.folder / "health.log")
        return check.wait(PATIENCE) == 0

    def pids(self, name: str) -> list[int]:
        """All live processes of a service, its command's children included."""
        found = processes_of(self.folder / "tmp" / name, sessions=self._sessions[name])
        self._sessions[name] |= set(found.values())
        return list(found)

    def signal(self, name: str, signum: signal.Signals) -> None:
        """Send a signal to every process of a service."""
        for pid in self.pids(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)

    def stop(self, name: str) -> None:
        """End a service as `docker compose stop` does: TERM to its command, then KILL to what is left."""
        process = self.processes[name]
        self.pids(name)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10.0)
        self.kill(name)

    def kill(self, name: str) -> None:
        """Kill every process of a service at once, as the loss of its machine would."""
        deadline = time.monotonic() + 10.0
        while self.pids(name) and time.monotonic() < deadline:
            self.signal(name, signal.SIGKILL)
            time.sleep(0.05)
        if name in self.processes:
            self.processes[name].wait()

    def addresses(self, name: str) -> list[str]:
        """The addresses of a service, one in each of its networks; none on the loopback interface."""
        return [] if self._network is None else self._network.addresses(name)

    def log(self, name: str) -> Path:
        """What a service has printed."""
        return self.folder / f"{name}.log"

    def tail(self, name: str, *, num_lines: int = 40) -> str:
        """The last lines of a service's log."""
        return "\n".join(self.log(name).read_text(errors="replace").splitlines()[-num_lines:])

    def _networks_of(self, name: str) -> list[str]:
        return list(compose.networks_of(name, self.services[name]))

    def _volumes(self, name: str) -> dict[str, str]:
        volumes = [str(volume).split(":") for volume in self.services[name].get("volumes", [])]
        return {target: str(self.folder / source) for source, target, *_ in volumes}

    def _local(self, name: str, text: str, *, of: str = "") -> str:
        """Replace paths of the container by ours, also in a variable, and without namespaces addresses too."""
        # A SuperNode's config names files of its ClientApps' side, in the network that only these two are in.
        own = {network for network in self._networks_of(name) if network.startswith("node-")}
        near = [other for other in self.services if other != name and own & set(self._networks_of(other))]
        sides = near if of == "NODE_CONFIG" else [name]
        volumes = {target: source for each in sides for target, source in self._volumes(each).items()}
        paths = volumes | {"/tmp": str(self.folder / "tmp" / name), "/app": str(compose.ROOT)}
        pattern = "|".join(map(re.escape, paths))
        text = re.sub(rf'(?<![\w./-])({pattern})(?=/|$|")', lambda m: paths[m[1]], text)
        if self._network is not None:
            return text
        text = _ADDRESS.sub(lambda m: f"127.0.0.1:{self._port(name, m[2])}", text)
        text = re.sub(r"--port (\d+)", lambda m: f"--port {self._port(name, m[1])}", text)
        if text in ("8000", "9094"):
            return str(self._port(name, text))
        return text.replace("0.0.0.0", "127.0.0.1")

    def _port(self, name: str, port: str) -> int:
        """The port that stands for one of a container: one for all, for a node's network or for the service."""
        own = [network for network in self._networks_of(name) if network.startswith("node-")]
        scope = {"8000": "", "8443": "", "9094": "".join(own), "9095": name}[port]
        return self._ports.setdefault((port, scope), free_port())


class _Namespaces:
    """A network namespace for each service, and one with a bridge for each network."""

    def __init__(self, services: Mapping[str, dict[str, Any]]) -> None:
        self._prefix = f"rb{os.getpid()}"
        self._networks = {name: compose.networks_of(name, spec) for name, spec in services.items()}
        self._bridges = sorted({network for networks in self._networks.values() for network in networks})
        self._hosts = {name: number for number, name in enumerate(self._networks, start=2)}

    def addresses(self, name: str) -> list[str]:
        return [self._address(name, network) for network in self._networks[name]]

    def _address(self, name: str, network: str) -> str:
        return f"10.77.{self._bridges.index(network)}.{self._hosts[name]}"

    def prefix(self, name: str) -> list[str]:
        return ["ip", "netns", "exec", self._name(name)]

    def make(self) -> None:
        switch = self._name("switch")
        _ip("netns", "add", switch)
        for number in range(len(self._bridges)):
            _ip("-n", switch, "link", "add", f"br{number}", "type", "bridge")
            _ip("-n", switch, "link", "set", f"br{number}", "up")
        known: dict[str, list[str]] = {network: [] for network in self._bridges}  # lines of a hosts file
        for name, networks in self._networks.items():
            namespace = self._name(name)
            _ip("netns", "add", namespace)
            _ip("-n", namespace, "link", "set", "lo", "up")
            for network, names in networks.items():
                number, address = self._bridges.index(network), self._address(name, network)
                port, link = f"v{self._hosts[name]}-{number}", f"eth{number}"
                _ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", link, "netns", namespace)
                _ip("-n", switch, "link", "set", port, "master", f"br{number}", "up")
                _ip("-n", namespace, "addr", "add", f"{address}/24", "dev", link)
                _ip("-n", namespace, "link", "set", link, "up")
                known[network] += [f"{address} {each}" for each in names]
        for name, networks in self._networks.items():
            folder = Path("/etc/netns") / self._name(name)
            folder.mkdir(parents=True, exist_ok=True)
            lines = ["127.0.0.1 localhost", *(line for network in networks for line in known[network]), ""]
            (folder / "hosts").write_text("\n".join(lines))

    def remove(self) -> None:
        for name in [*self._networks, "switch"]:
            namespace = self._name(name)
            shutil.rmtree(Path("/etc/netns") / namespace, ignore_errors=True)
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)

    def _name(self, name: str) -> str:
        return f"{self._prefix}-{name}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
