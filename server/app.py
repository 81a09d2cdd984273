"""The ServerApp: configuration -> models -> one question to every client -> certificates -> report."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from protocol.codec import to_array_record
from protocol.hashes import code_hash, model_hash
from server.candidates import UnderTest, prepare, unseen_candidates
from server.checks.targets import TargetNetwork, target_networks
from server.checks.unseen import Unseen, check_certificates, unseen_clients
from server.config import RunConfig, load_config
from server.report.report import Conclusion, write_report
from server.report.table import print_report
from server.run.events import settled
from server.run.folder import LEDGER_FILE, ResultFolder
from server.run.ledger import Ledger
from server.run.lock import lock_for_run
from server.run.traffic import MeteredGrid
from server.strategy import build_strategy
from strategies.asking.replies import QuorumError
from strategies.selection import SelectionResult

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one evaluation and write its report; a failure is written down, then raised again."""
    config = load_config(context.run_config)
    folder = ResultFolder(config.output_folder, run_id=str(context.run_id))
    with lock_for_run(folder.path, run_id=folder.run_id):
        folder.clear(resume=config.resume)
        torch.set_num_threads(1)  # the sums of more threads would differ between machines
        try:
            evaluate(grid, config, folder)
        except Exception as error:
            if isinstance(error, QuorumError):
                folder.log_event("quorum_missed", num_needed=config.num_needed, **settled(error.outcome))
            folder.show_failure(error)
            raise
        finally:
            folder.end_progress()  # also when the process is told to end


def evaluate(grid: Grid, config: RunConfig, folder: ResultFolder) -> None:
    """Prepare the model, ask the clients, check the certificates on unseen ones, write and print the report.

    Parameters
    ----------
    grid : Grid
        Flower's connection to the clients.
    config : RunConfig
        What to evaluate.
    folder : ResultFolder
        An empty place for the results.
    """
    clock = _Clock()
    metered = MeteredGrid(grid, on_push=partial(folder.log_event, "round_asked"))
    folder.log_event("run_started", run_id=folder.run_id, code_hash=code_hash(), config=config.to_run_config())
    folder.show_stage("preparing the model")
    with clock.part("model"):
        tested = prepare(config, metered)
    hashes = {"model": model_hash(tested.arrays), "code": code_hash()}
    folder.log_event("model_prepared", model_hash=hashes["model"])
    folder.show_stage("asking the clients")
    header = {"hashes": hashes, "config": config.to_run_config()}
    with clock.part("answers"), Ledger(folder.path / LEDGER_FILE, header=header, resume=config.resume) as ledger:
        num_earlier = len(ledger.earlier or ())
        if config.resume:
            folder.log_event("run_resumed", num_answers_in_ledger=num_earlier)
        strategy = build_strategy(config, folder=folder, ledger=ledger, candidates=tested.candidates)
        result = strategy.start(metered, to_array_record(tested.arrays)).conclusion
        recorded = ledger.recorded
    folder.log_event("answers_settled", **settled(result.outcome))
    folder.show_stage("computing the exact risks of the unseen clients")
    with clock.part("unseen"):
        unseen = _unseen(config, tested, result) if config.num_unseen else None
        checks = check_certificates(result.certificates, unseen) if unseen is not None else {}
    targets: tuple[TargetNetwork, ...] = ()
    if config.strategy == "wasserstein" and config.target_sigmas:
        folder.show_stage("moving unseen clients further and measuring how far that is")
        with clock.part("targets"):
            targets = target_networks(config, tested.models[0])
    report = write_report(
        folder,
        config=config,
        result=result,
        hashes=hashes,
        unseen=unseen,
        checks=checks,
        targets=targets,
        metrics={**metered.metrics(), "num_answers_in_ledger": num_earlier},
        recorded=recorded,
        seconds=clock.seconds,
    )
    print_report(report)


def _unseen(config: RunConfig, tested: UnderTest, result: Conclusion) -> Unseen:
    if isinstance(result, SelectionResult):
        return unseen_candidates(config, tested, shown=result.shown)
    return unseen_clients(config, tested.models[0])


class _Clock:
    """Wall-clock seconds of the parts of a run."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - started, 3)
