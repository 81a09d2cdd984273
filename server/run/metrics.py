"""What a run has done so far, for Prometheus: counted from the events that its log holds, and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server, write_to_textfile

from server.problems import ConfigError
from server.run.folder import METRICS_FILE, ResultFolder

# A small model on a laptop, to an hour of attacks.
_SECONDS = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_LEFT = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
METRICS: Mapping[str, tuple[Any, str, tuple[str, ...]]] = {
    "messages_sent": (Counter, "Messages that Flower took", ("type",)),
    "bytes": (Counter, "Bytes of their contents, and of those of the replies", ("direction",)),
    "answers": (Gauge, "Valid answers in the ledger", ()),
    "answer_seconds": (partial(Histogram, buckets=_SECONDS), "From the question to a valid answer", ()),
    "failures": (Gauge, "Clients without a valid answer", ("reason",)),
    "budget_left": (partial(Histogram, buckets=_LEFT), "Values that clients have left before they are asked", ()),
    "runs_ended": (Counter, "Runs that ended", ("status",)),
}
"""Each with what it is and its labels beside `run`, the id of the run; all their names begin with riskband_."""


class RunMetrics:
    """The metrics of one run."""

    def __init__(self, run_id: str) -> None:
        self.registry, self._run_id = CollectorRegistry(), run_id
        self._all = {
            name: kind(f"riskband_{name}", words, ("run", *labels), registry=self.registry)
            for name, (kind, words, labels) in METRICS.items()
        }

    def _of(self, name: str, **labels: str) -> Any:
        return self._all[name].labels(run=self._run_id, **labels)

    def count(self, event: Mapping[str, Any]) -> None:
        """Take an event into account."""
        now = datetime.fromisoformat(event["time"])
        match event:
            case {"event": "round_asked", "type": kind}:
                self._asked = now
                self._of("messages_sent", type=kind).inc(event["num_messages"])
                self._of("bytes", direction="sent").inc(event["bytes_sent"])
            case {"event": "replies_received"}:
                self._of("bytes", direction="received").inc(event["bytes_received"])
            case {"event": "client_met", "budget_left": int(left)}:
                self._of("budget_left").observe(left)
            case {"num_answers_in_ledger": number}:
                self._of("answers").set(number)
            case {"event": "answer_accepted"}:
                self._of("answers").inc()
                self._of("answer_seconds").observe((now - self._asked).total_seconds())
            case {"event": "client_failed", "reason": reason}:
                self._of("failures", reason=reason).inc()
            case {"failures": failures}:  # all of them, once all replies were compared
                self._all["failures"].clear()
                for failure in failures:
                    self._of("failures", reason=failure["reason"]).inc()
            case {"event": "run_ended", "status": status}:
                self._of("runs_ended", status=status).inc()


@contextmanager
def exporting(folder: ResultFolder, *, port: int, address: str) -> Iterator[ResultFolder]:
    """Serve the metrics of what is logged in the folder that this yields, and leave them there; with port 0 do neither.

    Raises ConfigError, which the folder shows, if the port cannot be opened.
    """
    if not port:
        yield folder
        return
    metrics = RunMetrics(folder.run_id)
    try:
        server, _ = start_http_server(port, address, registry=metrics.registry)
    except OSError as error:
        taken = f"metrics-port {port} at {address} must be free, got {error}; choose another, "
        taken += "or a metrics-address of this machine, or port 0 for no metrics"
        folder.show_failure(refused := ConfigError([taken]))
        raise refused from None
    try:
        yield replace(folder, on_event=metrics.count)
    finally:
        server.shutdown()
        server.server_close()
        with suppress(OSError), folder.writing(METRICS_FILE) as path:  # the disk may be full
            write_to_textfile(str(path), metrics.registry)
