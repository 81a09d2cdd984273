"""The folder of a run: what may be removed from it, who may write to it, and what a run that fails leaves there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from riskband.cli import main as command
from riskband.flower.testing import Delivery
from riskband.plots.bands import save_figure
from server.run.folder import FIGURE_SUFFIXES, LOG_FILES, ResultFolder
from server.run.ledger import read_ledger
from server.run.lock import LOCK_FILE, TOKEN_VARIABLE, FolderError, lock_for_launcher, lock_for_run, require_free
from simulations.__main__ import main
from simulations.options import EXIT_USAGE
from strategies.asking.failures import Failure, FailureReason
from strategies.asking.replies import QuorumError, RoundOutcome
from tests.server.running import run_app

FORK = multiprocessing.get_context("fork")
STEMS = ("band", "transport", "dispersion", "selection", "comparison")
FIGURES = sorted(f"{stem}.{suffix}" for stem in STEMS for suffix in FIGURE_SUFFIXES)
RESULTS = [
    "report.json",
    "failed.json",
    "progress.json",
    "ledger.jsonl",
    "events.jsonl",
    "certificates/mine.json",
    "report.html",
]
STRANGERS = [b'{"mine": 1}', b"\x89PNG mine", b"mine\n" * 9, b"[]"]


FINISHED = {"num_unseen": 0, "figure_format": "png,svg,pdf"}


@pytest.fixture
def folder(tmp_path: Path, finished: Path) -> Path:
    """A folder with the results of a run."""
    return Path(shutil.copytree(finished, tmp_path / "out"))


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", [*RESULTS, *LOG_FILES, *FIGURES])
def test_what_no_run_wrote_is_refused_by_its_name_and_nothing_is_removed(folder: Path, name: str) -> None:
    for stranger in STRANGERS:
        (folder / name).write_bytes(stranger)
        before = content(folder)
        for resume in (False, True):
            with pytest.raises(FolderError, match=rf"{name} is in the way: it is not as a run wrote it; move"):
                ResultFolder(folder).clear(resume=resume, figures=FIGURES)
        assert content(folder) == before
    (folder / name).unlink()
    (folder / name).mkdir()
    if name != "certificates/mine.json":  # a folder that runs leave alone
        with pytest.raises(FolderError, match="is in the way: it is no file"):
            ResultFolder(folder).clear(figures=FIGURES)


def test_what_a_run_wrote_is_removed_but_for_the_answers(folder: Path) -> None:
    ResultFolder(folder).show_progress("asking")
    ResultFolder(folder).show_failure(ValueError("broken"))
    ResultFolder(folder).keep_logs([folder / "run.log"])
    for name in FIGURES:
        with ResultFolder(folder).writing(name) as path:
            save_figure(Figure(), path)
    ResultFolder(folder).show_progress("asking")
    (folder / "progress.json").write_text("")  # a crash of the machine may leave a file empty
    (folder / ".riskband.part.svg").write_text("<svg")  # or one that was begun
    kept = {number: (folder / f"{number}.jsonl").read_bytes() for number in ("ledger", "events")}
    ResultFolder(folder).clear()
    assert content(folder) == {"ledger.jsonl": kept["ledger"], "events-1.jsonl": kept["events"]}


def test_a_run_that_failed_before_it_asked_leaves_a_folder_for_the_next(tmp_path: Path) -> None:
    """Which clears it twice: the launcher does, and then the ServerApp."""
    ResultFolder(tmp_path).clear()
    ResultFolder(tmp_path).log_event("run_started")
    ResultFolder(tmp_path).show_failure(ValueError("broken"))
    for _ in range(2):
        ResultFolder(tmp_path).clear()
        assert content(tmp_path).keys() == {"events-1.jsonl"}


def test_the_list_holds_the_hash_of_every_file_that_a_run_replaces(folder: Path) -> None:
    lines = (folder / ".riskband.files").read_text().splitlines()
    listed = {name: digest for digest, name in (line.split("  ") for line in lines)}
    files = content(folder)
    assert files.keys() - listed.keys() == {".riskband.files", "ledger.jsonl", "events.jsonl"}
    assert listed.keys() - files.keys() == {"progress.json"}  # removed at the end
    for name in listed.keys() & files.keys():
        assert hashlib.sha256(files[name]).hexdigest() == listed[name], name


@pytest.mark.parametrize("name", ["report.json", "report.html", "band.svg", "certificates/mean.json"])
def test_what_was_changed_since_is_left(folder: Path, name: str) -> None:
    """It still has every mark of a file of ours."""
    with (folder / name).open("ab") as file:
        file.write(b"\n")
    before = content(folder)
    with pytest.raises(FolderError, match=f"{name} is in the way: it is not as a run wrote it"):
        ResultFolder(folder).clear()
    assert content(folder) == before


def test_a_page_that_the_user_made_is_left(folder: Path, tmp_path: Path) -> None:
    """README's `riskband report certificate.json -o report.html`, in a folder of results and in one of the user's."""
    own = tmp_path / "own"
    own.mkdir()
    for place in (folder, own):
        page = place / "report.html"
        assert command(["report", str(folder / "certificates" / "mean.json"), "-o", str(page)]) == 0
        made = page.read_bytes()
        with pytest.raises(FolderError, match=r"report.html is in the way"):
            ResultFolder(place).clear()
        assert page.read_bytes() == made


def test_a_report_of_another_run_is_not_read(folder: Path) -> None:
    assert ResultFolder(folder).read_json("report.json")["schema"] == "riskband.report/1"
    assert ResultFolder(folder, run_id="1").read_json("report.json")["timing"]["run_id"] == "1"
    assert ResultFolder(folder, run_id="2").read_json("report.json") == {}
    for other in ("[]", "{", '{"timing": 3}', '{"timing": {"run_id": 1}}'):
        (folder / "report.json").write_text(other)
        assert ResultFolder(folder, run_id="1").read_json("report.json") == {}
    ResultFolder(folder, run_id="2").show_failure(ValueError("broken"))
    assert ResultFolder(folder, run_id="1").read_json("failed.json") == {}
    assert ResultFolder(folder, run_id="2").read_json("failed.json")["reason"] == "broken"


# The lock.


@contextlib.contextmanager
def process(work: Callable[..., None], *arguments: Any) -> Iterator[multiprocessing.process.BaseProcess]:
    """Run a function in a process of its own, from when it says that it is ready until the end of the block."""
    ready = FORK.Event()
    child = FORK.Process(target=work, args=(ready, *arguments))
    child.start()
    assert ready.wait(200)
    yield child
    child.kill()
    child.join()


def hold(ready: Any, path: Path, token: str | None = None) -> None:
    if token is not None:
        os.environ[TOKEN_VARIABLE] = token
    with lock_for_run(path, run_id="4711"):
        ready.set()
        time.sleep(60)


def launch(ready: Any, path: Path, tokens: Any) -> None:
    with lock_for_launcher(path) as environment:
        tokens.put(environment[TOKEN_VARIABLE])
        ready.set()
        time.sleep(60)


def test_a_second_run_is_refused_names_the_first_and_changes_nothing(
    folder: Path, defaults: Mapping[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with process(hold, folder) as first:
        before = content(folder)
        says = rf"used by one run at a time, and process {first.pid} on \S+, started 20\S+ \(run 4711\) is using it"
        with pytest.raises(FolderError, match=says):
            run_app(folder, defaults)  # `flwr run`
        assert main(["--clients", "5", "--out", str(folder)]) == EXIT_USAGE  # `python -m simulations`
        assert f"process {first.pid} on" in capsys.readouterr().err
        with pytest.raises(FolderError, match=says):  # `python -m deploy.certify`
            require_free(folder)
        assert content(folder) == before


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_the_lock_ends_with_its_process(folder: Path, defaults: Mapping[str, Any], signum: signal.Signals) -> None:
    with process(hold, folder) as first:
        os.kill(first.pid or 0, signum)
        first.join(10)
        require_free(folder)
        run_app(folder, defaults, num_unseen=0)
    assert not (folder / LOCK_FILE).exists()


def test_a_launcher_lets_its_own_run_in_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = FORK.Queue()
    with process(launch, tmp_path, tokens) as launcher:
        token = tokens.get(timeout=200)
        with process(hold, tmp_path, token):
            with pytest.raises(FolderError, match=rf"process {launcher.pid} on .*run 4711"):
                require_free(tmp_path)
            for other in ("", "another"):
                monkeypatch.setenv(TOKEN_VARIABLE, other)
                with pytest.raises(FolderError), lock_for_run(tmp_path, run_id="2"):
                    pass
            launcher.kill()  # its run may go on without it
            launcher.join()
            with pytest.raises(FolderError), lock_for_launcher(tmp_path):
                pass
        with lock_for_launcher(tmp_path):
            assert (tmp_path / LOCK_FILE).exists()


def test_a_run_whose_launcher_was_replaced_does_not_enter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lock_for_launcher(tmp_path) as old:
        pass
    monkeypatch.setenv(TOKEN_VARIABLE, old[TOKEN_VARIABLE])
    with lock_for_launcher(tmp_path), pytest.raises(FolderError), lock_for_run(tmp_path, run_id="1"):
        pass


def compete(ready: Any, path: Path, overlaps: Any, entered: Any) -> None:
    ready.set()
    num_entered = 0
    while num_entered < 6:
        with contextlib.suppress(FolderError), lock_for_run(path, run_id="1"):
            try:
                os.close(os.open(path / "inside", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                overlaps.release()
            num_entered += 1
            time.sleep(0.002)
            (path / "inside").unlink(missing_ok=True)
    entered.release()


def test_of_many_processes_one_at_a_time_has_the_folder(tmp_path: Path) -> None:
    overlaps, entered = FORK.Semaphore(0), FORK.Semaphore(0)
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(process(compete, tmp_path, overlaps, entered)) for _ in range(4)]
        for child in children:
            child.join(200)
    assert entered.get_value() == 4
    assert overlaps.get_value() == 0


# What a run that fails leaves.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """A function that gives a file system of so many bytes."""
    mounted = []

    def mount(num_bytes: int) -> Path:
        place = tmp_path / str(num_bytes)
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "none", str(place)]
        if subprocess.run(command, capture_output=True).returncode != 0:
            pytest.skip("only root may mount a file system")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", str(place)], check=True)


def assert_says_that_the_disk_is_full(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert not names & {"report.json", "progress.json", LOCK_FILE}
    assert not [name for name in names if name.startswith(".riskband.part")]
    failure = json.loads((folder / "failed.json").read_text())
    assert failure["run_id"] == "1"
    assert "there was no room left to write (" in failure["reason"]
    assert "run again with --resume, which keeps the answers in ledger.jsonl" in failure["reason"]


@pytest.mark.parametrize("num_pages", [5, 6, 8, 20])
def test_a_full_disk_is_said_in_words_on_that_disk(
    small_disk: Callable[[int], Path], defaults: Mapping[str, Any], num_pages: int
) -> None:
    folder = small_disk(num_pages * os.sysconf("SC_PAGE_SIZE"))
    with pytest.raises(OSError, match="No space left"):
        run_app(folder, defaults, num_unseen=0)
    assert_says_that_the_disk_is_full(folder)


def run_beside_a_main_thread_that_ends(ready: Any, folder: Path, defaults: Mapping[str, Any]) -> None:
    """As in Flower's simulation when Ray breaks down: the main thread gives up while the ServerApp waits."""

    def late(message: Any, answer: Any) -> list[Delivery]:
        return [Delivery(answer(message), after_pulls=3)]

    settings = {"num_unseen": 0, "behaviours": {3: late, 4: late}}
    threading.Thread(target=run_app, args=(folder, defaults), kwargs=settings).start()
    while not (folder / "ledger.jsonl").exists():
        time.sleep(0.01)
    ready.set()


def test_a_simulation_that_ends_below_its_server_app_leaves_the_reason(
    tmp_path: Path, defaults: Mapping[str, Any]
) -> None:
    with process(run_beside_a_main_thread_that_ends, tmp_path, defaults) as child:
        child.join(200)
    failure = json.loads((tmp_path / "failed.json").read_text())
    assert "Ray, which runs them, did not start or broke down" in failure["reason"]
    assert not {"progress.json", "report.json", LOCK_FILE} & {path.name for path in tmp_path.iterdir()}


def test_a_client_that_does_not_connect_may_have_a_wrong_clock(tmp_path: Path, defaults: Mapping[str, Any]) -> None:
    with pytest.raises(QuorumError):
        run_app(tmp_path, defaults, num_nodes=11, quorum=1.0, node_timeout=0.1)
    reason = json.loads((tmp_path / "failed.json").read_text())["reason"]
    assert reason.startswith("12 of 12 clients must answer validly")
    assert reason.count("clock is more than 5 s ahead of the SuperLink's or 5 min behind it") == 1
    assert "ServerApp" not in reason


@pytest.mark.guard
@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (Failure(None, FailureReason.NOT_SENT, "the SuperLink did not accept the message"), "a ServerApp whose clock"),
        (Failure(None, FailureReason.FLOWER_ERROR, "Flower's error 3: Message Unavailable"), "a ServerApp whose clock"),
        (Failure("a", FailureReason.NODE_UNAVAILABLE, "Flower's error 5: Node Unavailable"), "a SuperNode whose clock"),
        (
            Failure(None, FailureReason.FLOWER_ERROR, "Flower's error 0: <class 'ray.exceptions … gone"),
            "Ray, which runs",
        ),
        (Failure("a", FailureReason.FLOWER_ERROR, "Flower's error 1: Unknown"), ""),
        (Failure("a", FailureReason.CLIENT_RAISED, "Flower's error 2: broken"), ""),
    ],
)
def test_clocks_and_ray_are_named_where_they_may_be_the_reason(tmp_path: Path, failure: Failure, words: str) -> None:
    outcome: RoundOutcome[Any] = RoundOutcome(answers=(), failures=(failure,) * 3, num_asked=3)
    ResultFolder(tmp_path).show_failure(QuorumError("too few", outcome))
    reason = json.loads((tmp_path / "failed.json").read_text())["reason"]
    assert (words in reason) if words else reason == "too few"


def run_with_small_files(ready: Any, folder: Path, defaults: Mapping[str, Any], largest: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    ready.set()
    run_app(folder, defaults, num_unseen=0)


def test_a_run_that_could_not_write_an_answer_is_resumed(
    tmp_path: Path, finished: Path, defaults: Mapping[str, Any]
) -> None:
    size = (finished / "ledger.jsonl").stat().st_size
    with process(run_with_small_files, tmp_path, defaults, size - 1000) as child:
        child.join(60)
        assert child.exitcode == 1
    assert_says_that_the_disk_is_full(tmp_path)
    kept = read_ledger(tmp_path / "ledger.jsonl")[1]
    assert 0 < len(kept) < 12
    report = run_app(tmp_path, defaults, num_unseen=0, resume=True)
    assert report["metrics"]["num_answers_in_ledger"] == len(kept)
    assert not (tmp_path / "failed.json").exists()


def test_what_another_user_made_is_neither_renamed_nor_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(folder)
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    for resume in (False, True):
        with pytest.raises(FolderError, match="is in the way: it belongs to another user; move it away, or choose"):
            ResultFolder(folder).clear(resume=resume)
    assert content(folder) == before
