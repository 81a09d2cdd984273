"""``python -m deploy.certify SCENARIO``: run a certification on a deployment and wait for its report.

Takes the scenario and the options of ``python -m simulations``; the clients are those that are connected. The
ServerApp writes below the folder of results, which this command only reads.

Exit status: 0 the report is there, and what is required of it passes; 1 the run failed, or a requirement does; 2 the
command line or the configuration is wrong, or another run has the folder or the ServerApp cannot write there; 3 a
requirement is not decided.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.flower import Connection, FlowerError, add_connection_arguments, connection_of
from server.problems import ConfigError
from server.run.lock import UNWRITABLE, FolderError, require_free
from simulations.options import APP_FOLDER, EXIT_FAILED, EXIT_USAGE, chosen_run_config, scenario_parser

if TYPE_CHECKING:
    from server.settings import RunConfig

POLL_INTERVAL = 10.0  # seconds between questions to the SuperLink, each a process of Flower's
PATIENCE = 300.0  # a SuperLink that restarts is back before


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default that of `sys.argv`, and return the exit status."""
    parser = scenario_parser("python -m deploy.certify", "Certify a model on the clients of a deployment.")
    add_connection_arguments(parser)
    parser.add_argument("--results", metavar="DIR", type=Path, required=True, help="where the ServerApp's results are")
    options = parser.parse_args(arguments)
    try:
        if not options.results.is_absolute():
            raise ConfigError([f"--results must be an absolute path, got {options.results}; it is the ServerApp's"])
        chosen = chosen_run_config(options)
        if options.out is None:
            chosen["output-dir"] = str(options.results / str(chosen["scenario"]))
        from server.config import load_config  # loads Flower and torch
        from server.run.folder import LEDGER_FILE
        from server.run.ledger import require_resumable

        config = load_config(chosen)
        require_free(config.output_folder)
        require_resumable(config.output_folder / LEDGER_FILE, config.to_run_config())
        return certify(connection_of(options), config, config.output_folder, as_json=options.json)
    except (ConfigError, FolderError, FlowerError) as error:
        print("\n".join(f"error: {problem}" for problem in getattr(error, "problems", [error])), file=sys.stderr)
        return EXIT_FAILED if isinstance(error, FlowerError) else EXIT_USAGE


def certify(connection: Connection, config: RunConfig, path: Path, *, as_json: bool = False) -> int:
    """Submit a run, wait for its end, print its report, and return the exit status.

    The ServerApp writes to the folder `path`, which is only read here. With `as_json` report.json is printed instead of
    a table. Raises FlowerError if the SuperLink does not take the run, or is silent for `PATIENCE` seconds; FolderError
    if the ServerApp cannot write to the folder.
    """
    # What is slow to load is not needed for help and most refusals.
    from server.report.table import show_outcome
    from server.run.folder import FAILURE_FILE, REPORT_FILE, ResultFolder
    from simulations.launcher import COMPLETED
    from simulations.simulate import show_progress

    run_id = connection.start_run(APP_FOLDER, config.to_run_config() | {"output-dir": str(path)})
    folder = ResultFolder(path, run_id=run_id)  # what other runs left there is not read
    watch = _Watch(
        connection, run_id, has_ended=lambda: bool(folder.read_json(REPORT_FILE) or folder.read_json(FAILURE_FILE))
    )
    show_progress(watch.is_running, folder, num_clients=config.network.num_clients)
    report = folder.read_json(REPORT_FILE)
    if UNWRITABLE in watch.details:  # only the ServerApp can tell, which finds out before it asks anybody
        raise FolderError(watch.details)
    if watch.status != COMPLETED or not report:
        reason = folder.read_json(FAILURE_FILE).get("reason") or watch.details
        print(f"the run ended as {watch.status}: {reason}\nanswers that came are kept: add --resume", file=sys.stderr)
        return EXIT_FAILED
    return show_outcome(report, closing=f"results: {folder.path}", as_json=as_json)


class _Watch:
    """Asks a SuperLink how a run is, now and then and once its results are there; bears with one that restarts."""

    def __init__(self, connection: Connection, run_id: str, *, has_ended: Callable[[], bool]) -> None:
        self._connection, self._run_id, self._has_ended = connection, run_id, has_ended
        self._heard = self._asked = time.monotonic()
        self.status, self.details = "", ""

    def is_running(self) -> bool:
        """Return whether the run has not ended yet, as far as is known."""
        if time.monotonic() - self._asked < POLL_INTERVAL and not self._has_ended():
            return True
        try:
            self.status, self.details = self._connection.run_status(self._run_id)
            self._heard = time.monotonic()
        except FlowerError:
            if time.monotonic() - self._heard > PATIENCE:
                raise
        self._asked = time.monotonic()
        return not self.status.startswith("finished")


if __name__ == "__main__":
    sys.exit(main())
