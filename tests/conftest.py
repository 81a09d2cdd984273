"""Settings of the whole suite.

The examples that hypothesis tries are derived from each test, so that the same commit always passes or always fails.
The default suite tries few; `.ci/run` tries more of them (HYPOTHESIS_PROFILE=thorough).
To look for new ones: HYPOTHESIS_PROFILE=explore pytest tests/laws tests/strategies
"""

from __future__ import annotations

import gc
import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

# `pytest -n auto` starts one process per core, and the models here are so small that a second thread only gets in the
# way. Numerical libraries read this when they are imported, so it stands before every other import.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No test asks a data hub; without this, finding out that none can be reached takes half a minute.
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
from hypothesis import settings

from tests.sampling import combinations, repetitions

settings.register_profile("default", derandomize=True, deadline=None, database=None, max_examples=40)
settings.register_profile("thorough", derandomize=True, deadline=None, database=None, max_examples=60)
settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# These start servers and wait for them: first, so that nothing waits for them at the end, and those of a folder one at
# a time, because many SuperLinks with their SuperNodes may take longer to find each other than a run is patient.
SERVERS = ("tests/end_to_end/", "tests/deployment/")

# After these the files that take longest, from 60 CPU seconds in the slow suite, so that none is left to the end alone.
# Their tests share nothing that is dear, and each goes to whatever process is free.
LONGEST = (
    "tests/test_image.py",
    "tests/validity/test_exact_scan.py",
    "tests/validity/test_always_valid.py",
    "tests/adversaries/test_bounds_fuzz.py",
    "tests/laws/test_plan.py",
    "tests/validity/test_direct_dispersion.py",
    "tests/adversaries/test_ascent.py",
)

# Slow as a whole, so that the default suite does not even import them.
SLOW = (
    "tests/papers/",
    "tests/client/test_own_modules.py",
    *(
        f"tests/deployment/test_{name}.py"
        for name in ("eight", "faults", "forging", "own_data", "procedures", "secure")
    ),
    *(
        f"tests/end_to_end/test_{name}.py"
        for name in ("clocks", "comparison", "example_project", "own_data", "ray_cluster", "resume")
    ),
    "tests/flower/test_oldest.py",
    "tests/test_image.py",
    "tests/validity/test_groups.py",
)

SLOW_TIMEOUT = 900  # seconds, for a slow test; it is to end what hangs

# What is skipped for good reason where all is installed that `.ci/run` installs; there, every other skip is a failure.
ALLOWED_SKIPS = ("no GPU here", "is not on this machine")  # the second: sets that must be fetched by hand


@pytest.fixture(autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test spends the query budgets of another, or of whoever runs them."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / uuid4().hex))


@pytest.fixture
def idle_clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Deadlines of an exchange pass while it waits for somebody, and only then: a busy machine cannot miss one."""
    from strategies.asking import exchange

    def sleep(seconds: float) -> None:
        clock.now += seconds

    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now, sleep=sleep)
    monkeypatch.setattr(exchange, "time", clock)
    return clock


@pytest.fixture
def coarse_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of a few networks, for tests that do not ask how good they are."""
    from riskband.worst_cases import planning

    monkeypatch.setattr(planning, "_FIRST_CERTIFIED", 4)
    for effort in ("_ROUGH", "_PRECISE"):
        monkeypatch.setattr(planning, effort, getattr(planning, effort)._replace(most_certified=4, num_drawn=100))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--complete", action="store_true", help="fail for a skip that is not one of ALLOWED_SKIPS")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # one process hears of all tests, whoever runs them
        config.pluginmanager.register(Skips(config), "skips")


class Skips:
    """Tells what was skipped, and fails a `--complete` session for what it does not know."""

    def __init__(self, config: pytest.Config) -> None:
        self.is_complete, self.reasons = config.option.complete, defaultdict[str, list[str]](list)

    def pytest_runtest_logreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            self.reasons[report.longrepr[2].removeprefix("Skipped: ")].append(report.nodeid)

    pytest_collectreport = pytest_runtest_logreport  # a file that is skipped as a whole

    @property
    def unknown(self) -> dict[str, list[str]]:
        return {why: names for why, names in self.reasons.items() if not any(each in why for each in ALLOWED_SKIPS)}

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.is_complete and self.unknown and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for why, names in self.reasons.items():
            terminalreporter.write_line(f"skipped {len(names)}: {why} ({names[0]}{', …' * (len(names) > 1)})")
        if self.is_complete and self.unknown:
            terminalreporter.write_line(
                "these skips are not in ALLOWED_SKIPS of tests/conftest.py: with --complete a failure"
            )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects no garbage while modules are imported, nor looks for it among them later: a third of this time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What is slow as a whole is of no concern without the slow suite."""
    is_slow = collection_path.relative_to(config.rootpath).as_posix().startswith(SLOW)
    return True if is_slow and config.option.markexpr == "not slow" else None


@pytest.hookimpl(tryfirst=True)  # before `-m "not slow"` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_place)
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker("slow")
    for item in list(repetitions(items)):
        item.add_marker("slow")
    for item in list(combinations(items)):
        item.add_marker("nightly")
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT))


def _place(item: pytest.Item) -> int:
    """0 for what starts servers, then the longest files, then all others."""
    if item.nodeid.startswith(SERVERS):
        return 0
    file = item.nodeid.partition("::")[0]
    return 1 + (LONGEST.index(file) if file in LONGEST else len(LONGEST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """`-n auto` is one process more than there are cores: those with servers mostly wait for them."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One process gets all tests of a file, which share what is made once per module, or of a folder of servers."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            of_servers = (folder for folder in SERVERS if nodeid.startswith(folder))
            return next(of_servers, nodeid if file in LONGEST else file)

    config.option.loadscopereorder = False  # the order of the collection, not the files with the most tests first
    return ByFile(config, log)


@pytest.fixture(scope="session")
def tables() -> None:
    """The tables of natural federations, fetched unless they are there."""
    from worlds import federations

    try:
        federations.fetch()
    except ValueError as error:
        pytest.skip(str(error))
