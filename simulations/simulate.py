"""One run of the Flower App, in this process or on Ray: from the run configuration to the printed report."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from server.config import load_config
from server.preparation import PREPARED_VARIABLE, hand_over, hash_before_asking
from server.problems import ConfigError
from server.report.table import show_outcome
from server.run.folder import FAILURE_FILE, LEDGER_FILE, PROGRESS_FILE, REPORT_FILE, ResultFolder, progress_content
from server.run.ledger import part_of_a_run, require_resumable
from server.run.lock import FolderError, lock_for_launcher
from server.settings import RunConfig
from server.studies import study_of
from server.training import model_of_checkpoint
from simulations import launcher, options
from simulations.engine import Engine
from simulations.ray_cluster import reached_cluster, require_room
from strategies.asking.replies import QuorumError

_POLL_INTERVAL = 0.2

_ERR = Console(stderr=True)


def simulate(chosen: Mapping[str, Any], engine: Engine, *, as_json: bool = False) -> int:
    """Run what was chosen (`simulations.options.chosen_run_config`) and return the exit status.

    With `as_json`, standard output is report.json and nothing else.

    Raises ConfigError if the configuration is wrong, or the Ray cluster cannot run it; nothing was started or changed
    then.
    """
    config = load_config(chosen)
    _check_checkpoints(config)
    run = run_in_process if engine.is_in_process(config.network.num_clients) else partial(run_on_ray, _reached(engine))
    with contextlib.ExitStack() as held:
        try:
            folder = ResultFolder(Path(config.results.output_dir or default_folder(config)).expanduser())
            environment = held.enter_context(lock_for_launcher(folder.path))
            require_resumable(folder.path / LEDGER_FILE, config.to_run_config(), model=hash_before_asking(config))
            folder.clear(resume=config.asking.resume, figures=study_of(config).figure_names(config))
        except FolderError as error:
            _say(f"error: {error}")
            return options.EXIT_USAGE
        try:
            with launcher.signals_as_exceptions():
                started = time.monotonic()
                report = run(config, folder, environment=environment)
                closing = f"{time.monotonic() - started:.0f} s; results: {folder.path}"
                return show_outcome(report, closing=closing, as_json=as_json) if report else options.EXIT_FAILED
        except launcher.Interrupted as interruption:
            hint = "; --resume keeps the answers that came" if (folder.path / LEDGER_FILE).exists() else ""
            _say(f"{interruption}; everything that was started has ended{hint}")
            return 128 + interruption.signum
        except (launcher.LaunchError, OSError) as error:
            folder.show_failure(error)
            _say(str(error))
            return options.EXIT_FAILED


def default_folder(config: RunConfig) -> Path:
    """Return where results go if the user names no folder: another one for every other configuration.

    A scenario of ours as it stands has the folder of its name, as with ``flwr run``. Any other configuration has one
    whose name ends with its hash, so that the same command finds it again.
    """
    named = Path.home() / "riskband-results" / config.run.scenario
    if config.run.scenario in options.scenario_names():
        ours = load_config(options.default_run_config() | options.scenario_config(config.run.scenario))
        if part_of_a_run(config.to_run_config()) == part_of_a_run(ours.to_run_config()):
            return named
    digest = hashlib.sha256(json.dumps(part_of_a_run(config.to_run_config()), sort_keys=True).encode()).hexdigest()
    return named.with_name(f"{config.run.scenario}-seed{config.run.seed}-{digest[:8]}")


def run_in_process(config: RunConfig, folder: ResultFolder, *, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run the Flower App with all its clients in this process, and return its report; empty if the run failed.

    The folder has been cleared; the environment holds what lets the run into it, since it is locked.
    """
    from client.app import app as client_app
    from riskband.flower.testing import InProcessGrid
    from server.app import app as server_app

    num_clients = config.network.num_clients
    os.environ.update(environment)
    logging.getLogger("flwr").setLevel(logging.WARNING)  # what the stages say already
    run_config = config.to_run_config() | {"output-dir": str(folder.path)}
    limit = config.asking.reply_timeout
    grid = InProcessGrid(client_app, num_clients=num_clients, run_config=run_config, reply_timeout=limit)
    try:
        # The ServerApp prints the report too, which is for Flower's log.
        with _progress_beside(folder, num_clients=num_clients), contextlib.redirect_stdout(io.StringIO()):
            grid.run_server_app(server_app)
    except Exception as error:
        # That too few answered is no mistake of the program: where it was noticed helps nobody.
        where = "" if isinstance(error, QuorumError) else f"{traceback.format_exc()}---\n"
        reason = folder.read_json(FAILURE_FILE).get("reason", "see above")
        _say(f"{where}the run failed: {reason}\nresults: {folder.path}")
    return folder.read_json(REPORT_FILE)


def run_on_ray(
    engine: Engine, config: RunConfig, folder: ResultFolder, *, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Run the Flower App on a private SuperLink, wait, and return its report, as `run_in_process`.

    The address of the engine's Ray is not "auto". Raises LaunchError if Flower does not start.
    """
    try:
        with tempfile.TemporaryDirectory() as own:
            path = Path(own, "prepared")
            with launcher.private_superlink(
                environment={**environment, PREPARED_VARIABLE: str(path)},
                ray_address=engine.ray_address,
                starts_ray=not engine.ray_address,
                # The ServerApp is a thread of the process that starts Ray, and would keep it waiting.
                meanwhile=partial(hand_over, config, path, show=_say),
            ) as superlink:
                return _ended_run(superlink, engine, config, folder)
    finally:
        folder.end_progress()  # a run that was killed had no chance to


def _ended_run(
    superlink: launcher.PrivateSuperLink, engine: Engine, config: RunConfig, folder: ResultFolder
) -> dict[str, Any]:
    """Run the Flower App on a SuperLink, and return its report, empty if the run failed."""
    run = superlink.start_run(
        options.APP_FOLDER,
        num_supernodes=config.network.num_clients,
        run_config=config.to_run_config() | {"output-dir": str(folder.path)},
        client_cpus=engine.client_cpus,
        client_gpus=engine.client_gpus,
    )

    def is_running() -> bool:
        return run.poll() is None and not superlink.has_lost_ray()

    show_progress(is_running, folder, num_clients=config.network.num_clients)
    status = superlink.run_status()
    folder = replace(folder, run_id=status.run_id)
    report = folder.read_json(REPORT_FILE) if status.status == launcher.COMPLETED else {}
    if not report:
        _explain_failure(superlink, status, folder)
    return report


def _reached(engine: Engine) -> Engine:
    """Return the engine with the address of its cluster in numbers, once that has answered and has room."""
    if not engine.ray_address:
        return engine
    cluster = reached_cluster(engine.ray_address)
    require_room(cluster, engine)
    return replace(engine, ray_address=cluster.address)


def _check_checkpoints(config: RunConfig) -> None:
    """Load the weights that come from files: that they do not fit is found before Flower starts."""
    problems = []
    for key, path in study_of(config).checkpoints(config).items():
        try:
            model_of_checkpoint(config, path)
        except ValueError as error:
            problems.append(f"{key} {path!r} cannot be evaluated: {error}")
    if problems:
        raise ConfigError(problems)


def show_progress(is_running: Callable[[], bool], folder: ResultFolder, *, num_clients: int) -> None:
    """Show what the ServerApp writes to its progress file, until the run ends."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("answered")
    with Progress(*columns, TimeElapsedColumn(), console=_ERR, transient=True, redirect_stdout=False) as display:
        bar = display.add_task("")
        shown = ""
        progress = progress_content("starting Flower")
        while is_running():
            progress |= folder.read_json(PROGRESS_FILE)
            if progress["stage"] != shown:  # one line for each stage, also where there is no terminal
                shown = progress["stage"]
                display.console.print(shown)
            total = progress["asked"] or num_clients
            display.update(bar, description=progress_words(progress), completed=progress["answered"], total=total)
            time.sleep(_POLL_INTERVAL)


@contextlib.contextmanager
def _progress_beside(folder: ResultFolder, *, num_clients: int) -> Iterator[None]:
    """Show the progress of a run in this process: in a thread, as signals end what the main thread does."""
    ended = threading.Event()
    shower = threading.Thread(
        target=show_progress, args=(lambda: not ended.is_set(), folder), kwargs={"num_clients": num_clients}
    )
    shower.start()
    try:
        yield
    finally:
        ended.set()
        shower.join()


def progress_words(progress: Mapping[str, Any]) -> str:
    """Return the content of a progress file in words; how many have answered is beside them, in the bar."""
    round, failed, seconds = progress["round"], progress["failed"], progress["eta_seconds"]
    parts = [
        progress["stage"],
        f"round {round}" if round else "",
        progress["detail"],
        f"{failed} failed" if failed else "",
        f"about {timedelta(seconds=seconds)} left" if seconds else "",
    ]
    return ", ".join(filter(None, parts))


def _explain_failure(superlink: launcher.PrivateSuperLink, status: launcher.RunStatus, folder: ResultFolder) -> None:
    """Keep the logs, show their ends, and say the reason last, where it is read."""
    _say(f"{superlink.log_tail()}---")
    if not folder.read_json(FAILURE_FILE):  # the ServerApp was ended before it could say why
        why = superlink.simulation_problem() or status.details or "the run has no report"
        folder.show_failure(launcher.LaunchError(why))
    reason = folder.read_json(FAILURE_FILE).get("reason", status.details)
    try:
        folder.keep_logs(superlink.logs)
        where = f"logs: {folder.path}"
    except OSError as error:
        where = f"the logs could not be kept in {folder.path}: {error}"
    _say(f"the run ended as {status.status}: {reason}\n{where}")


def _say(text: str) -> None:
    """Print to standard error, as it is: texts from logs and users may look like rich's markup."""
    _ERR.print(text, markup=False, highlight=False, soft_wrap=True)
