"""``python -m benchmarks.soak --minutes 60 --clients 20``: what a deployment loses under one fault after another.

The services of docker-compose.yml, with as many clients as asked for, as processes (`tests.deployment.stage`). Runs
follow each other, each with a question that no client has met before, and each is resumed until every honest client's
answer is in. Meanwhile faults of every kind begin and end at random times, and the last client is hostile. What ends is
started again, as ``restart: unless-stopped`` does. Full disks need root.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # many processes on few processors, in which the last digits agree

import numpy as np
from flwr.app import Message

import riskband as rb
from client.budget import QueryBudget
from riskband.flower.testing import Delivery
from server.run.folder import EVENTS_FILE, LEDGER_FILE, read_events
from server.run.ledger import read_ledger
from tests.deployment import compose
from tests.deployment.stage import CLOCK, Stage, can_make_namespaces
from tests.end_to_end.test_flwr_run import report_of_the_engine

# Seconds between faults, on average: several in each run. More for each client after the tenth: a run takes longer.
FAULT_EVERY, FAULT_EVERY_MORE = 15.0, 1.5
RESTART_AFTER = (
    5.0  # seconds: a node that was killed is refused for about a minute, and each start takes seconds of CPU
)
DECKS = 3  # The SuperLink is left alone in two of three, so that its memory is seen over minutes.
MAX_FAULTY_ATTEMPTS = 3  # of one run, so that it ends; then the faults pause
MAX_ATTEMPTS = 15
WARM = 180.0  # seconds after a start of the SuperLink in which its memory may grow: by its first run, too
LEAST_WARM = 300.0  # seconds of that in all, for a slope
LIMIT = 100_000
SETTINGS = ("num-unseen=0", "training-epochs=1", "thresholds=10", "examples-per-client=40", "quorum=0.5")
WAITING = ("node-timeout=20", "reply-timeout=120.0")
HOSTILE = """
import sys
from contextlib import suppress
sys.path.append({root!r})
import numpy as np
from flwr.clientapp import ClientApp
from tests.strategies.mutations import HARMFUL, pick
honest = ClientApp.__call__
def a_stolen_name(rng, content, name):
    content["answer"]["client-id"] = "client-00000"
def signed(reply, message, context):
    from client.signing import own_key
    from protocol import wire
    statement = wire.statement_of(reply, message)
    if statement is None:
        return reply
    return wire.with_signature(reply, own_key(context.node_config).sign(statement.to_sign), reply_to=message)
def hostile(app, message, context):
    reply, kind = honest(app, message, context), message.metadata.message_type.removeprefix("query.")
    if not reply.has_error():
        for optional in ("kept", "signature"):  # without the first an answer is as good
            reply.content.pop(optional, None)
        rng = np.random.default_rng([context.run_config["seed"], len(kind)])
        pick(rng, (a_stolen_name, *HARMFUL[kind]))(rng, reply.content, "")
        with suppress(ValueError):  # it signs its lie, unless that is nothing that can be signed
            return signed(reply, message, context)
    return reply
ClientApp.__call__ = hostile
"""
"""What Python runs as every process of the hostile client's side starts."""


@dataclass(frozen=True)
class Fault:
    """What may happen to services; "{}" in their names stands for the number of a client."""

    what: str
    services: tuple[str, ...]
    begin: Callable[[Stage, str], None]
    end: Callable[[Stage, str], None] = lambda stage, name: None
    is_down: bool = False  # the services stay down until it ends


@dataclass(frozen=True)
class Outcome:
    """What a soak has found; from the answers that were lost to the budgets, all should be 0."""

    minutes: float
    num_clients: int
    faults: Mapping[str, int]
    failures: Mapping[str, int]  # of clients, by the reasons that the runs gave
    num_runs: int
    num_resumed: int
    num_answers: int
    num_lost: int  # answers that were in a ledger and later were not
    num_double: int  # answers of a client that has one already
    num_hostile: int  # answers of the hostile client that were taken
    num_wrong: int  # certificates that do not verify, or are not those of the simulation
    num_by_hand: int  # SuperNodes that had to be started again although all faults had ended
    budget_differences: int  # between what clients count as answered and what is in the ledgers
    megabytes: tuple[float, float]  # of the SuperLink's processes, first and last
    # Megabytes an hour, within the lives of the SuperLink, without the first minutes of each; its standard error, as
    # the lives differ; and their number. None: it was too short.
    slope: tuple[float, float, int] | None

    def table(self) -> str:
        """Return the outcome as a table in Markdown."""
        rows = {
            "minutes, clients": f"{self.minutes:.0f}, {self.num_clients}",
            **{f"fault: {what}": f"{number}{self._seen(number)}" for what, number in self.faults.items()},
            **{f"failure said: {reason}": str(number) for reason, number in sorted(self.failures.items())},
            "runs (resumed)": f"{self.num_runs} ({self.num_resumed} times)",
            "answers": str(self.num_answers),
            "answers lost": f"{self.num_lost} of {self.num_answers}{self._seen(self.num_answers)}",
            "answers counted twice": f"{self.num_double} of {self.num_answers}{self._seen(self.num_answers)}",
            "answers of the hostile client taken": str(self.num_hostile),
            "certificates that are not those of the simulation": str(self.num_wrong),
            "SuperNodes started again by hand": str(self.num_by_hand),
            "differences between budgets and ledgers": str(self.budget_differences),
            "SuperLink's memory, first → last": "{:.0f} → {:.0f} MB".format(*self.megabytes),
            "its slope": "too short to say"
            if self.slope is None
            else "{:+.1f} ± {:.1f} MB an hour (standard error over {} lives)".format(*self.slope),
        }
        return "\n".join(["| what | |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows.items())])

    def _seen(self, number: int) -> str:
        """How little so many occasions prove where nothing went wrong."""
        if self.num_lost + self.num_double + self.num_hostile + self.num_wrong + self.num_by_hand or not number:
            return ""
        return f"; a defect in up to {100 * largest_unseen(number):.2g} % of them may have stayed unseen"


def largest_unseen(number: int) -> float:
    """Return how often at most something happens that did not happen in so many independent trials, with 95 %."""
    return 1.0 - 0.05 ** (1.0 / number)


def hold(stage: Stage, name: str) -> None:
    stage.signal(name, signal.SIGSTOP)


def let_go(stage: Stage, name: str) -> None:
    stage.signal(name, signal.SIGCONT)


def set_clock(stage: Stage, name: str, seconds: float = 600.0) -> None:
    part = clock_folder(stage, name) / "part"
    part.write_text(str(seconds))
    part.replace(part.with_name("seconds"))  # whole at every time: it is read all the while


def clock_folder(stage: Stage, name: str) -> Path:
    folder = stage.folder / "tmp" / name / "clock"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def disk(stage: Stage, name: str) -> Path:
    return stage.folder / "deployment" / ("results" if name == "serverapp" else f"state/{name}")


def fill(stage: Stage, name: str) -> None:
    with suppress(OSError), (disk(stage, name) / ".filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def make_room(stage: Stage, name: str) -> None:
    (disk(stage, name) / ".filler").unlink(missing_ok=True)


FAULTS = (
    Fault("SuperNode killed", ("supernode-{}",), Stage.kill, is_down=True),
    Fault("ClientApp killed", ("clientapp-{}",), Stage.kill, is_down=True),
    Fault("SuperNode and ClientApp stopped", ("clientapp-{}", "supernode-{}"), Stage.stop, is_down=True),
    Fault("SuperLink killed", ("superlink",), Stage.kill, is_down=True),
    Fault("SuperLink stopped", ("superlink",), Stage.stop, is_down=True),
    Fault("proxy killed", ("proxy",), Stage.kill, is_down=True),
    Fault("ServerApp killed", ("serverapp",), Stage.kill, is_down=True),
    Fault("SuperLink and ServerApp killed", ("serverapp", "superlink"), Stage.kill, is_down=True),
    Fault("straggler", ("clientapp-{}",), hold, let_go),
    Fault("SuperNode's clock ten minutes fast", ("supernode-{}",), set_clock, lambda *at: set_clock(*at, 0.0)),
    Fault("disk of a client full", ("clientapp-{}",), fill, make_room),
    Fault("disk of the results full", ("serverapp",), fill, make_room),
)


@dataclass
class Soak:
    """A deployment under faults, and what was seen of it."""

    stage: Stage
    num_clients: int
    seed: int
    faults: tuple[Fault, ...]
    counts: Counter[str] = field(default_factory=Counter)
    under: list[tuple[float, Fault, tuple[str, ...]]] = field(default_factory=list)  # faults, with when they end
    restarts: dict[str, float] = field(default_factory=dict)
    memory: list[tuple[int, float, float]] = field(default_factory=list)  # the SuperLink's process, time, megabytes
    names: list[str] = field(default_factory=list)  # of the runs
    num_resumed: int = 0
    num_lost: int = 0
    num_wrong: int = 0
    num_by_hand: int = 0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.deck: list[Fault] = []
        self.num_decks = 0
        self.start = self.next_fault = time.monotonic()
        self.is_calm = False

    def tick(self) -> None:
        """End and begin faults, start again what has ended, and look at the memory."""
        now = time.monotonic()
        for due in [each for each in self.under if self.is_calm or each[0] <= now]:
            self.under.remove(due)
            for name in due[2]:
                due[1].end(self.stage, name)
        if not self.is_calm and now >= self.next_fault:
            self.next_fault = now + self.rng.exponential(FAULT_EVERY + FAULT_EVERY_MORE * max(0, self.num_clients - 10))
            self.begin(now)
        down = {name for _, fault, names in self.under if fault.is_down for name in names}
        for name, process in self.stage.processes.items():
            restarts = self.stage.services[name].get("restart") == "unless-stopped"
            if restarts and name not in down and process.poll() is not None and now >= self.restarts.get(name, 0.0):
                self.restarts[name] = now + RESTART_AFTER
                self.stage.start(name)
        self.weigh(now)
        time.sleep(0.5)

    def begin(self, now: float) -> None:
        """Begin the next fault of a shuffled deck, unless its services are under one already."""
        if not self.deck:
            kinds = [each for each in self.faults if self.num_decks % DECKS == 0 or "superlink" not in each.services]
            self.deck = [kinds[index] for index in self.rng.permutation(len(kinds))]
            self.num_decks += 1
        fault, number = self.deck.pop(), self.rng.integers(1, self.num_clients + 1)
        names = tuple(name.format(number) for name in fault.services)
        seconds = self.rng.uniform(1.0, 30.0)
        if not {name for _, _, busy in self.under for name in busy} & set(names):
            self.under.append((now + seconds, fault, names))
            self.counts[fault.what] += 1
            for name in names:
                fault.begin(self.stage, name)

    def minutes(self) -> float:
        """Minutes since the start."""
        return (time.monotonic() - self.start) / 60.0

    def is_up(self, name: str) -> bool:
        """Whether a service is well and not meant to be down."""
        down = {each for _, fault, names in self.under if fault.is_down for each in names}
        return name not in down and self.stage.processes[name].poll() is None and self.stage.is_healthy(name)

    def weigh(self, now: float) -> None:
        """Note how much memory the SuperLink has."""
        pages = 0
        for pid in self.stage.pids("superlink"):
            with suppress(OSError):
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        if pages:
            self.memory.append((self.stage.processes["superlink"].pid, now, pages * os.sysconf("SC_PAGE_SIZE") / 1e6))

    def warm_memory(self) -> list[np.ndarray]:
        """Times and megabytes of each life of the SuperLink, without its beginning."""
        lives = [
            np.array([entry[1:] for entry in self.memory if entry[0] == pid])
            for pid in dict.fromkeys(entry[0] for entry in self.memory)
        ]
        return [life[life[:, 0] >= life[0, 0] + WARM] for life in lives if life[-1, 0] > life[0, 0] + WARM]

    def slope(self) -> tuple[float, float, int] | None:
        """Megabytes an hour, the same in all lives of the SuperLink; None if they were too short or too few to say."""
        lives = self.warm_memory()
        if len(lives) < 3 or sum(life[-1, 0] - life[0, 0] for life in lives) < LEAST_WARM:
            return None
        around = [life - life.mean(axis=0) for life in lives]
        times, sizes = np.concatenate(around).T
        slope = times @ sizes / (times @ times)
        # What is seen within one life is far from independent; the lives are.
        scores = np.array([life[:, 0] @ (life[:, 1] - slope * life[:, 0]) for life in around])
        error = np.sqrt(len(lives) / (len(lives) - 1) * (scores @ scores)) / (times @ times)
        return 3600.0 * float(slope), 3600.0 * float(error), len(lives)

    def results(self, name: str) -> Path:
        """Where a run writes."""
        return self.stage.folder / "deployment" / "results" / name


def lines_of(ledger: Path) -> list[str]:
    """The whole lines of a ledger, that of its header included."""
    return ledger.read_text().split("\n")[:-1] if ledger.exists() else []


def clients_in(ledger: Path) -> list[str]:
    """Whose answers a ledger holds, each as often as it is there."""
    return [answer.client_id for answer in read_ledger(ledger)[1]] if lines_of(ledger) else []


def finish(soak: Soak, name: str, *, deadline: float) -> None:
    """Start a run and resume it until every honest client has answered."""
    soak.names.append(name)
    ledger, seen = soak.results(name) / LEDGER_FILE, list[str]()
    for attempt in range(MAX_ATTEMPTS):
        soak.num_resumed += attempt > 0
        soak.is_calm = attempt >= MAX_FAULTY_ATTEMPTS or time.monotonic() > deadline
        while not all(map(soak.is_up, ("superlink", "serverapp"))):
            soak.tick()  # as `docker compose run` waits for what certify depends on
        options = ["--seed", str(soak.seed * 1000 + int(name)), "--out", f"/results/{name}"]
        options += ["--resume"] if lines_of(ledger) else []
        process = soak.stage.start("certify", "quickstart", *options, "--set", *SETTINGS, *WAITING)
        while process.poll() is None:
            soak.tick()
            lines = lines_of(ledger)
            soak.num_lost += len(set(seen) - set(lines))
            seen = lines
        answered = set(clients_in(ledger)) - {f"client-{soak.num_clients - 1:05d}"}  # the hostile one's are a defect
        reason = "" if process.returncode == 0 else soak.stage.tail("certify", num_lines=2)
        at = f"minute {soak.minutes():.1f}, {soak.counts.total()} faults"
        outcome = f"exit {process.returncode}, {len(answered)} answers {reason}"
        print(f"{at}: run {name}, attempt {attempt + 1}: {outcome}", flush=True)
        if process.returncode == 0 and len(answered) >= soak.num_clients - 1:
            return
        if attempt > MAX_FAULTY_ATTEMPTS + 1:  # without faults it is still missing: what an operator would do
            for number in range(1, soak.num_clients):
                if f"client-{number - 1:05d}" not in answered:
                    soak.stage.kill(f"supernode-{number}")
                    soak.num_by_hand += 1
        rest = time.monotonic() + RESTART_AFTER
        while time.monotonic() < rest:
            soak.tick()
    raise RuntimeError(f"run {name} was not complete after {MAX_ATTEMPTS} attempts\n{soak.stage.tail('certify')}")


def num_wrong_certificates(soak: Soak, name: str) -> int:
    """Return how many certificates of a run do not verify or differ from those of the same run without a deployment."""

    def hostile(message: Message, answer: Callable[[Message], Message]) -> Iterator[Delivery]:
        raise ValueError

    folder, found = soak.results(name), 0
    with tempfile.TemporaryDirectory() as other, redirect_stdout(StringIO()):
        report = report_of_the_engine(
            folder, Path(other) / "run", num_clients=soak.num_clients, behaviours={soak.num_clients - 1: hostile}
        )
        for entry in report["certificates"].values():
            is_same = (folder / entry["file"]).read_bytes() == (Path(other) / "run" / entry["file"]).read_bytes()
            found += not (is_same and rb.verify(rb.Certificate.load(folder / entry["file"])).ok)
    return found


def soaked(folder: Path, *, minutes: float, num_clients: int, seed: int = 1) -> Outcome:
    """Run a deployment in an empty folder for so many minutes and return what was found."""
    with ExitStack() as stack:
        stage = stack.enter_context(deployment(folder, num_clients=num_clients))
        has_disks = stack.enter_context(small_disks(stage))
        stage.up()
        kinds = tuple(fault for fault in FAULTS if has_disks or fault.begin is not fill)
        soak = Soak(stage, num_clients, seed, kinds)
        deadline = time.monotonic() + 60.0 * minutes
        try:
            while time.monotonic() < deadline:
                finish(soak, str(len(soak.names)), deadline=deadline)
                soak.num_wrong += num_wrong_certificates(soak, soak.names[-1])
                print(f"of {len(soak.names)} runs: {soak.num_lost} lost, {soak.num_wrong} wrong, {soak.slope()} MB/h")
        except BaseException:
            print("the last run was cut: an answer under way is a difference between a budget and a ledger")
            raise
        finally:
            soak.is_calm = True
            soak.tick()  # ends the faults: nothing can be read of a client whose disk is full
            found = judged(soak)
            print(found.table(), flush=True)
        return found


def judged(soak: Soak) -> Outcome:
    """Compare the ledgers of all runs with each other and with what the clients have counted."""
    answers = [clients_in(soak.results(name) / LEDGER_FILE) for name in soak.names]
    given = Counter(client for run in answers for client in set(run))
    hostile, differences = f"client-{soak.num_clients - 1:05d}", 0
    for number in range(1, soak.num_clients):
        client = f"client-{number - 1:05d}"
        book = soak.stage.folder / "deployment" / "state" / f"clientapp-{number}" / "query-budget.sqlite"
        differences += abs(QueryBudget(client, LIMIT, book.absolute()).spent().get("loss", 0) - given[client])
    logs = [soak.results(name) / EVENTS_FILE for name in soak.names]
    events = [event for log in logs if log.exists() for event in read_events(log)]
    weights = [size for life in soak.warm_memory() for _, size in life] or [entry[2] for entry in soak.memory]
    return Outcome(
        minutes=soak.minutes(),
        num_clients=soak.num_clients,
        faults={fault.what: soak.counts[fault.what] for fault in soak.faults},
        failures=Counter(event["reason"] for event in events if event["event"] == "client_failed"),
        num_runs=len(soak.names),
        num_resumed=soak.num_resumed,
        num_answers=given.total(),
        num_lost=soak.num_lost,
        num_double=sum(len(run) - len(set(run)) for run in answers),
        num_hostile=given[hostile],
        num_wrong=soak.num_wrong,
        num_by_hand=soak.num_by_hand,
        budget_differences=differences,
        megabytes=(weights[0], weights[-1]),
        slope=soak.slope(),
    )


def services_for(num_clients: int, variables: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the services of the compose file, with so many clients instead of eight."""
    services = compose.load(compose.SECURE, variables)["services"]
    found = {name: spec for name, spec in services.items() if not name.endswith(tuple("12345678"))}
    for number in range(1, num_clients + 1):
        for kind in ("supernode", "clientapp"):
            text = json.dumps(services[f"{kind}-1"]).replace("node-1", f"node-{number}")
            text = text.replace("clientapp-1", f"clientapp-{number}").replace(
                "partition-id=0", f"partition-id={number - 1}"
            )
            found[f"{kind}-{number}"] = json.loads(text.replace("client-00000", f"client-{number - 1:05d}"))
    return found


@contextmanager
def deployment(folder: Path, *, num_clients: int) -> Iterator[Stage]:
    """The services of the compose file with so many clients, the last of them hostile, and clocks that can be set."""
    variables = {"RISKBAND_UID": "0", "RISKBAND_GID": "0", "NUM_CLIENTS": str(num_clients)}
    variables["NODE_1_CONFIG"] = f'query-budget={LIMIT} query-budget-file="/state/query-budget.sqlite"'
    services = services_for(num_clients, variables)
    for number in range(1, num_clients + 1):
        services[f"supernode-{number}"]["environment"]["PYTHONPATH"] = "/tmp/clock"
    services[f"clientapp-{num_clients}"].setdefault("environment", {})["PYTHONPATH"] = "/tmp/hostile"
    file = folder / "compose.json"
    file.write_text(json.dumps({"services": services}).replace("$", "$$"))
    with Stage(folder, (file,), has_namespaces=can_make_namespaces(), variables={}) as stage:
        for number in range(1, num_clients + 1):
            name = f"supernode-{number}"
            set_clock(stage, name, 0.0)
            seconds = f"float(open({str(clock_folder(stage, name) / 'seconds')!r}).read())"
            (clock_folder(stage, name) / "sitecustomize.py").write_text(CLOCK.format(seconds=seconds))
        own = folder / "tmp" / f"clientapp-{num_clients}" / "hostile"
        own.mkdir(parents=True)
        (own / "sitecustomize.py").write_text(HOSTILE.format(root=str(compose.ROOT)))
        yield stage


@contextmanager
def small_disks(stage: Stage) -> Iterator[bool]:
    """Disks of their own, small enough to be filled, for the results and each client; says whether that was allowed."""
    places = {disk(stage, name): name for name in stage.services if name.startswith(("serverapp", "clientapp"))}
    mounted: list[Path] = []
    try:
        for place, name in places.items():
            place.mkdir(parents=True, exist_ok=True)
            size = "size=128m" if name == "serverapp" else "size=4m"
            if subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", place], capture_output=True).returncode:
                break
            mounted.append(place)
        yield len(mounted) == len(places)
    finally:
        for name in stage.services:
            stage.kill(name)  # what is mounted is used by them
        for place in mounted:
            subprocess.run(["umount", "--lazy", place], capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was seen so far is printed, and all is ended
    with tempfile.TemporaryDirectory() as folder:
        soaked(Path(folder), minutes=options.minutes, num_clients=options.clients, seed=options.seed)


if __name__ == "__main__":
    main()
