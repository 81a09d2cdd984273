"""The ServerApp: configuration -> models -> one question to every client -> certificates -> report."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from client.identity import client_id
from protocol.codec import to_array_record
from protocol.hashes import code_hash, model_hash
from riskband.answers.ledgers import who_is_asked
from riskband.answers.responses import UNTIL_DECIDED
from riskband.models.evaluation import chosen_device
from server.checks.unseen import check_certificates
from server.config import load_config
from server.preparation import PREPARING, handed_over, hash_before_asking, prepared
from server.report.report import write_report
from server.report.table import print_report
from server.run.folder import EVENTS_FILE, LEDGER_FILE, ResultFolder, RunDisplay, read_events, settled
from server.run.ledger import Ledger, header_of, require_resumable
from server.run.lock import lock_for_run
from server.run.metrics import exporting
from server.run.traffic import MeteredGrid
from server.settings import RunConfig
from server.studies import study_of
from server.studies.study import Evaluation
from strategies.asking.query import QueryStrategy
from strategies.asking.replies import QuorumError
from strategies.until_decided import Reader, UntilDecided

app = ServerApp()

gc.freeze()  # what is loaded stays: no collection looks at it again, nor the last one, for half a second, at the end

_OPEN_IN_SIMULATION = 32
_LOOK = "answers_looked_at"


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one evaluation and write its report; a failure is written down, then raised again."""
    config = load_config(context.run_config)
    folder = ResultFolder(config.output_folder, run_id=str(context.run_id))
    with lock_for_run(folder.path, run_id=folder.run_id):
        require_resumable(folder.path / LEDGER_FILE, config.to_run_config(), model=hash_before_asking(config))
        folder.clear(resume=config.asking.resume, figures=study_of(config).figure_names(config))
        torch.set_num_threads(1)  # the sums of more threads would differ between machines
        with exporting(folder, port=config.results.metrics_port, address=config.results.metrics_address) as watched:
            try:
                evaluate(grid, config, watched)
            except Exception as error:
                if isinstance(error, QuorumError):
                    watched.log_event("quorum_missed", num_needed=config.num_needed, **settled(error.outcome))
                watched.show_failure(error)
                raise
            finally:
                watched.end_progress()  # also when the process is told to end


def evaluate(grid: Grid, config: RunConfig, folder: ResultFolder) -> None:
    """Prepare the model, ask the clients, check the certificates on unseen ones, write and print the report."""
    study = study_of(config)
    seconds: dict[str, float] = {}
    metered = MeteredGrid(grid, log=folder.log_event)
    folder.log_event("run_started", run_id=folder.run_id, code_hash=code_hash(), config=config.to_run_config())
    with _timed(seconds, "model"):
        tested = handed_over(config)
        if tested is None:
            folder.show_stage(PREPARING)
            tested = prepared(config, metered)
    hashes = {"model": model_hash(tested.arrays), "code": code_hash()}
    folder.log_event("model_prepared", model_hash=hashes["model"])
    folder.show_stage("asking the clients")
    header = header_of(config.to_run_config(), hashes)
    with (
        _timed(seconds, "answers"),
        Ledger(folder.path / LEDGER_FILE, header=header, resume=config.asking.resume) as ledger,
    ):
        num_earlier = len(ledger.earlier or ())
        begun = "run_resumed" if config.asking.resume else "ledger_begun"
        folder.log_event(begun, num_answers_in_ledger=num_earlier, ledger_hash=ledger.hash)
        display = RunDisplay(folder, ledger)
        settings = _settings(config, ledger, display) | _of_simulation(grid)
        if "client_keys" in header:
            settings["client_keys"] = {name: bytes.fromhex(key) for name, key in header["client_keys"].items()}
        strategy = _asker(study.strategy(config, tested, settings), config, settings, folder)
        result = strategy.start(metered, to_array_record(tested.arrays)).conclusion
        recorded = ledger.recorded
    folder.log_event("answers_settled", **settled(result.outcome))
    with _timed(seconds, "unseen"):
        unseen = None
        if config.network.num_unseen:
            folder.show_stage("computing the exact risks of the unseen clients")
            for model in tested.models:  # of unseen clients and targets
                model.to(chosen_device(config.model.device))
            unseen = study.unseen(config, tested, result)
        checks = check_certificates(result.certificates, unseen) if unseen is not None else {}
    with _timed(seconds, "targets"):
        targets = study.targets(config, tested, result, folder.show_stage)
    with _timed(seconds, "requirements"):
        gate = study.gate(config, result)
    report = write_report(
        folder,
        Evaluation(config, study, result, unseen, checks, targets, gate),
        hashes=hashes,
        metrics={**metered.metrics(), "num_answers_in_ledger": num_earlier},
        recorded=recorded,
        seconds=seconds,
    )
    print_report(report)


def _settings(config: RunConfig, ledger: Ledger, display: RunDisplay) -> dict[str, Any]:
    """Those of every strategy: how it asks, and what is assumed of who answers."""
    as_they_are = {"quorum", "node_timeout", "reply_timeout", "missing", "contamination", "answered_by", "design"}
    return {
        **config.asking.model_dump(include=as_they_are),
        "who_is_asked": who_is_asked(config.to_run_config()),
        "requirements": config.question.require,
        "num_clients": config.network.num_clients,
        "expected_client_ids": config.known_clients,
        "on_answer": display.accept,
        "on_hello": display.meet,
        "on_refusal": display.refuse,
        "on_progress": display.show_progress,
        "on_detail": display.show_detail,
        "earlier": ledger.earlier,
        "respect_budgets": config.asking.respect_query_budgets,
        "delta": config.question.delta,
        "seed": config.run.seed,
    }


def _asker(strategy: QueryStrategy, config: RunConfig, settings: dict[str, Any], folder: ResultFolder) -> QueryStrategy:
    """What asks the question of a strategy: itself, or what stops when what is required is decided."""
    if config.asking.ask != UNTIL_DECIDED:
        return strategy
    batches = config.asking.model_dump(include={"batch_size", "max_clients"})
    assert isinstance(strategy, Reader)  # of a study that can stop
    looks = (each for each in read_events(folder.path / EVENTS_FILE) if each["event"] == _LOOK)
    batches |= {"looked_at": {each["client_id"] for each in looks}, "on_look": partial(folder.log_event, _LOOK)}
    return UntilDecided(strategy.query, reader=strategy, **batches, **settings)


def _of_simulation(grid: Grid) -> dict[str, Any]:
    """Settings for Flower's simulation; none where every client has a node of its own.

    It looks for each of K nodes through all messages under way, some ten times a second: with K of them under way it
    does little else. These are enough for a few processors, and become more where they are not. Its nodes are listed in
    the order of their partitions, so that a client is known by name also if it ends its process.
    """
    # By name: to import the class takes two seconds, and loads a database.
    if type(grid).__name__ != "InMemoryGrid":
        return {}
    state: Any = vars(grid)["state"]
    names = {node.node_id: client_id({"partition-id": place}) for place, node in enumerate(state.get_node_info())}
    return {"max_open": _OPEN_IN_SIMULATION, "simulated": names}


@contextmanager
def _timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    """Note the wall-clock seconds that a part of a run takes."""
    started = time.monotonic()
    yield
    seconds[part] = round(time.monotonic() - started, 3)
