"""A Flower SuperLink of our own: started in an empty folder, used for its runs, gone afterwards.

`flwr run` from a fresh home would start a SuperLink that stays for ever, lends its working directory
and environment to every later run, and reports success when a ServerApp raised. Hence this module:
every process lives below one temporary folder, listens on the loopback interface only, and is ended
whatever happens.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from server.run.folder import RAY_REMEDY
from simulations.options import as_toml

START_TIMEOUT = 60.0
STOP_TIMEOUT = 10.0
COMPLETED = "finished:completed"

# Ports that the system gives to no outgoing connection (Linux: from 32768; others: from 49152), so that none is taken
# between its choice and the start of a server some seconds later.
_PORTS = range(20_000, 32_000)
_CONNECTION = "private"
_CRASH = re.compile(r"An exception occured!! (.*)")  # Flower's words, its spelling
_RAY = "Ray, which runs the simulated clients,"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Ray puts Unix sockets below its folder, and their paths may have 107 characters at most.
_MAX_RAY_FOLDER = 40
_DEAD = ("Z", "X")  # states in /proc of a process that has ended


class LaunchError(RuntimeError):
    """Flower itself did not start or did not answer; the message ends with its log."""


class Interrupted(KeyboardInterrupt):
    """A signal asked this process to end.

    Not an `Exception`, so that no handler between the signal and the cleaning up swallows it; and of those that raise
    it, a client that runs somebody else's model lets this one alone through.
    """

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(f"interrupted by {signal.Signals(signum).name}")


@dataclass(frozen=True)
class RunStatus:
    """What the SuperLink says of a run."""

    status: str  # `COMPLETED`, or another state such as ``"finished:failed"``
    details: str  # the reason in words when it failed
    run_id: str  # Flower's id of the run


@dataclass(frozen=True)
class PrivateSuperLink:
    """A running SuperLink; made by `private_superlink`."""

    home: Path  # the temporary folder that holds everything of Flower and Ray
    environment: Mapping[str, str]  # the environment for every command that talks to it
    port: int  # of the loopback interface: where `flwr` and SuperNodes reach it
    ray_port: int | None = None  # where the Ray is reached that is started beside it; None if none is
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)  # the processes started so far, oldest first
    rays: list[subprocess.Popen[bytes]] = field(default_factory=list)  # of them the Ray beside it, if there is one

    @property
    def logs(self) -> tuple[Path, ...]:
        """The SuperLink's own log, the log of the run, that of Ray, where it is ours, and those of the SuperNodes."""
        names = "superlink.log", "run.log", "ray.log"
        return *(self.home / name for name in names), *sorted(self.home.glob("supernode-*.log"))

    def start_run(
        self,
        app_folder: Path,
        *,
        num_supernodes: int | None,
        run_config: Mapping[str, str | int | float],
        client_cpus: int = 1,
        client_gpus: float = 0.0,
    ) -> subprocess.Popen[bytes]:
        """Start ``flwr run``; the returned process ends when the run has ended.

        Its exit status says nothing about the run: ask `run_status`. The run config has values for keys of
        ``[tool.flwr.app.config]``. `num_supernodes` is that of simulated clients, for each of which Ray reserves so
        many processors and GPUs; None where SuperNodes are processes of their own.
        """
        config_file = self.home / "run-config.toml"
        config_file.write_text(as_toml(run_config), encoding="utf-8")
        arguments = [str(app_folder), _CONNECTION, "--stream", "-c", str(config_file)]
        if num_supernodes is not None:
            size = f"num-supernodes={num_supernodes} client-resources-num-cpus={client_cpus}"
            gpus = f" client-resources-num-gpus={client_gpus}" if client_gpus else ""
            arguments += ["--federation-config", size + gpus]
        return self._popen("flwr", "run", *arguments, log=self.logs[1])

    def start_supernode(self, *, partition_id: int, num_partitions: int, own: str = "") -> subprocess.Popen[bytes]:
        """Start ``flower-supernode`` as a process of its own, for one client; it registers within seconds.

        `own` is more of the node config, as its owner writes it: ``data="/absolute/path"`` and the like.
        """
        node_config = f"partition-id={partition_id} num-partitions={num_partitions} {own}"
        arguments = ["--insecure", "--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1"]
        arguments += ["--port", str(free_port()), "--node-config", node_config]
        return self._popen("flower-supernode", *arguments, log=self.home / f"supernode-{partition_id}.log")

    def run_status(self) -> RunStatus:
        """Return the status of the latest run of this SuperLink; raises LaunchError if Flower does not say."""
        try:
            listing = subprocess.run(
                [self._script("flwr"), "list", _CONNECTION, "--format", "json"],
                env=dict(self.environment),
                cwd=self.home,
                capture_output=True,
                text=True,
                timeout=START_TIMEOUT,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise LaunchError(f"Flower did not say how the run ended\n{self.log_tail()}") from None
        try:
            run = json.loads(listing.stdout)["runs"][0]
            return RunStatus(status=run["status"], details=run["status-details"], run_id=str(run["run-id"]))
        except (ValueError, LookupError):
            problem = self.simulation_problem() or "Flower did not start the run"
            raise LaunchError(f"{problem}\n{self.log_tail()}{listing.stderr}") from None

    def log_tail(self, *, num_lines: int = 30) -> str:
        """Return the last lines of every log, each under the name of its file."""
        parts = []
        for path in self.logs:
            if path.exists():
                lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-num_lines:]
                parts.append("\n".join([f"--- {path.name}", *lines, ""]))
        return "".join(parts)

    def has_lost_ray(self) -> bool:
        """Return whether the Ray beside the SuperLink is no longer there: Flower would try for ever to reach it."""
        return any(ray.poll() is not None for ray in self.rays)

    def simulation_problem(self) -> str:
        """Return why the simulation of the clients broke down, in words; "" if it did not, as far as its log says."""
        log = self.logs[1].read_text(encoding="utf-8", errors="replace") if self.logs[1].exists() else ""
        found = _CRASH.search(log)
        if found is None and not self.has_lost_ray():
            return ""
        cause = "it ended before the run did" if found is None else found[1].strip().rstrip(".")
        if "timed out during startup" in cause:
            cause = f"it did not start in time ({cause})"
        return f"{_RAY} failed: {cause}; {RAY_REMEDY}"

    def start(self, *, is_simulation: bool, meanwhile: Callable[[], object] | None = None) -> None:
        """Start ``flower-superlink`` on its port, do something meanwhile, and wait until it answers.

        In a simulation it runs the clients itself, on Ray; otherwise it waits for SuperNodes. With a port for Ray, that
        is started too. Raises LaunchError if one of them fails to start, or does not in time.
        """
        flwr_home = Path(self.environment["FLWR_HOME"])
        flwr_home.mkdir()
        connection = f'[superlink]\ndefault = "{_CONNECTION}"\n[superlink.{_CONNECTION}]\n'
        (flwr_home / "config.toml").write_text(f'{connection}address = "127.0.0.1:{self.port}"\ninsecure = true\n')
        arguments = ["--insecure", "--isolation", "subprocess", "--host", "127.0.0.1", "--port", str(self.port)]
        arguments += ["--database", str(flwr_home / "state.db"), *(["--simulation"] if is_simulation else [])]
        process = self._popen("flower-superlink", *arguments, log=self.logs[0])
        if self.ray_port is not None:
            self.rays.append(self._start_ray(self.ray_port))
        if meanwhile is not None:
            meanwhile()
        deadline = time.monotonic() + START_TIMEOUT
        while not (_is_healthy(self.port) and process.poll() is None):  # another process may have taken the port
            if process.poll() is not None or time.monotonic() > deadline:
                raise LaunchError(f"flower-superlink did not start on 127.0.0.1:{self.port}\n{self.log_tail()}")
            time.sleep(0.1)
        # Its other parts are there before Flower looks for them; if they fail, all of it ends.
        while self.ray_port is not None and not _is_listening(self.ray_port):
            if self.has_lost_ray() or time.monotonic() > deadline:
                raise LaunchError(f"{_RAY} did not start; {RAY_REMEDY}\n{self.log_tail()}")
            time.sleep(0.1)

    def _start_ray(self, port: int) -> subprocess.Popen[bytes]:
        """Start a Ray of one node on the loopback interface, on ports of its own; with the process all of it ends."""
        arguments = ["--head", "--block", "--node-ip-address", "127.0.0.1", "--port", str(port)]
        arguments += ["--ray-client-server-port", str(free_port()), "--min-worker-port", "0", "--max-worker-port", "0"]
        arguments += ["--include-dashboard", "false", "--disable-usage-stats"]
        return self._popen("ray", "start", *arguments, log=self.logs[2], without=("RAY_ADDRESS",))

    def stop(self) -> None:
        """End every process of this SuperLink: ask its own children to end, then kill what is left."""
        sessions = set(processes_of(self.home).values())  # while those that can be recognised are alive
        for child in self.children:
            if child in self.rays:
                child.kill()  # it has nothing to save, and would take its time
            else:
                child.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT
        for child in self.children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
            child.kill()
            child.wait()
        # A process about to be killed may just have started another: look until none is found.
        deadline = time.monotonic() + STOP_TIMEOUT
        while (left := processes_of(self.home, sessions=sessions)) and time.monotonic() < deadline:
            sessions |= set(left.values())
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def _popen(self, script: str, *arguments: str, log: Path, without: Collection[str] = ()) -> subprocess.Popen[bytes]:
        with log.open("wb") as output:
            process = subprocess.Popen(
                [self._script(script), *arguments],
                env={name: value for name, value in self.environment.items() if name not in without},
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches us alone; we end the others in order
            )
        self.children.append(process)
        return process

    def _script(self, name: str) -> str:
        path = shutil.which(name, path=self.environment["PATH"])
        if path is None:
            raise LaunchError(f'{name} was not found; install the simulation extra: pip install "flwr[simulation]"')
        return path


@contextlib.contextmanager
def private_superlink(
    *,
    is_simulation: bool = True,
    environment: Mapping[str, str] | None = None,
    ray_address: str = "",
    starts_ray: bool = False,
    meanwhile: Callable[[], object] | None = None,
) -> Iterator[PrivateSuperLink]:
    """Run a SuperLink for the duration of a ``with`` block, with more variables in the environment of all it starts.

    `ray_address` is HOST:PORT of a Ray cluster that runs the clients. By default Flower starts a Ray, on the loopback
    interface, when a run begins; with `starts_ray` one is started beside the SuperLink, which saves seconds. And
    `meanwhile` is called while both start. On leaving the block, by whatever way, every process below it (the run, Ray
    and its workers included) has ended and its folder is gone. Raises LaunchError if Flower or Ray does not start.
    """
    port, ray_port = free_port(), free_port() if starts_ray else None
    home = Path(tempfile.mkdtemp(prefix="riskband-")).resolve()
    variables = _environment(home, ray_address) | dict(environment or {})
    if ray_port is not None:
        variables["RAY_ADDRESS"] = f"127.0.0.1:{ray_port}"
    superlink = PrivateSuperLink(home=home, environment=variables, port=port, ray_port=ray_port)
    try:
        superlink.start(is_simulation=is_simulation, meanwhile=meanwhile)
        yield superlink
    finally:
        with _handlers(signal.SIG_IGN):  # a second Ctrl-C during the cleaning up would leave processes behind
            superlink.stop()
            shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def signals_as_exceptions() -> Iterator[None]:
    """Raise `Interrupted` on Ctrl-C, SIGTERM and SIGHUP for the duration of a ``with`` block."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise Interrupted(signum)

    with _handlers(interrupt):
        yield


def processes_of(home: Path, *, sessions: Collection[int] = ()) -> dict[int, int]:
    """Return the session of every live process, by process id, that was started for the SuperLink in `home`.

    They are known by FLWR_HOME in the environment they were started with, so also those count that made a session of
    their own or lost their parent. Some of Ray's write their title over their environment; these are known only by
    their session, one of those that belong to the SuperLink. Empty where there is no /proc (not on Linux).
    """
    marker = f"FLWR_HOME={home / 'flwr'}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        # Processes of others cannot be read, and any may end while we look.
        with contextlib.suppress(OSError):
            state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            is_marked = marker in (folder / "environ").read_bytes().split(b"\0")
            if state not in _DEAD and (is_marked or int(session) in sessions):
                found[int(folder.name)] = int(session)
    return found


def _environment(home: Path, ray_address: str) -> dict[str, str]:
    environment = {**os.environ, **_ray_environment(home, ray_address)}
    if not ray_address:
        environment.pop("RAY_ADDRESS", None)  # would join a cluster that nobody chose
    environment |= {
        "FLWR_HOME": str(home / "flwr"),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
        # The SuperLink starts flower-superexec by name: it must be the one of this Python.
        "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]),
    }
    for name in ("NO_PROXY", "no_proxy"):
        environment[name] = ",".join(filter(None, ["127.0.0.1,localhost", os.environ.get(name)]))
    return environment


def _ray_environment(home: Path, ray_address: str) -> dict[str, str]:
    """Variables for Ray: a cluster has its own folder and interfaces, which a Ray that we start is told."""
    if ray_address:
        return {"RAY_ADDRESS": ray_address}
    own = {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # keeps Ray on the loopback interface, on Linux too
        "RAY_worker_niceness": "0",  # by default 15: where others are busy too, clients would wait for all of them
    }
    return {**own, "RAY_TMPDIR": str(home)} if len(str(home)) <= _MAX_RAY_FOLDER else own


def free_port() -> int:
    """Return a free port of the loopback interface; raises LaunchError if none of some hundred is free."""
    for port in random.SystemRandom().sample(_PORTS, 200):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise LaunchError(f"no free port among 200 of {_PORTS.start} to {_PORTS.stop - 1}; end what listens there")


def _is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


@contextlib.contextmanager
def _handlers(handler: object) -> Iterator[None]:
    previous = {signum: signal.signal(signum, handler) for signum in _SIGNALS}  # type: ignore[arg-type]
    try:
        yield
    finally:
        for signum, old in previous.items():
            signal.signal(signum, old)
