"""What a strategy reports while it asks: answers to the ledger, progress to the progress file, both to the log."""

from __future__ import annotations

import threading

import riskband as rb
from protocol.questions import Answer, Query
from server.run.events import failure_fields
from server.run.folder import RAY_REMEDY, ResultFolder
from server.run.ledger import Ledger
from strategies.asking.exchange import Progress

_STAGE = "asking the clients"


class RunDisplay:
    """What a strategy calls while it asks.

    Parameters
    ----------
    folder : ResultFolder
        Where progress and events are shown.
    ledger : Ledger
        Where every valid answer is written as it arrives.
    """

    def __init__(self, folder: ResultFolder, ledger: Ledger) -> None:
        self._folder = folder
        self._ledger = ledger
        self._detail = ""
        self._progress = Progress(asked=0, answered=0)
        self._node_of: dict[str, int] = {}

    def note_node(self, client_id: str, node_id: int) -> None:
        """Keep in mind which node the next answer of a client is from."""
        self._node_of[client_id] = node_id

    def accept(self, query: Query, answer: Answer) -> None:
        """Keep a valid answer; it is on the disk when this returns."""
        node_id = self._node_of.get(answer.client_id)
        self._ledger.append(query, answer, node_id=node_id)
        self._folder.log_event(
            "answer_accepted",
            round=self._progress.round,
            client_id=answer.client_id,
            node_id=None if node_id is None else str(node_id),
        )

    def show_progress(self, progress: Progress) -> None:
        """Show how far the round is, and log the failures that are new.

        Raises
        ------
        RuntimeError
            If this process is ending: in a simulation the ServerApp is a thread, which Flower leaves behind when Ray
            breaks down, and nobody would answer it any more.
        """
        if not threading.main_thread().is_alive():
            raise RuntimeError(
                "Flower's simulation ended while the clients were asked: Ray, which runs them, did not start or broke "
                f"down, and Flower's log says how; {RAY_REMEDY}"
            )
        known = self._progress.failed if progress.round == self._progress.round else 0
        for failure in progress.failures[known:]:
            self._folder.log_event("client_failed", round=progress.round, **failure_fields(failure))
        self._progress = progress
        self._folder.show_progress(_STAGE, detail=self._detail, progress=progress)

    def show_bracket(self, cost_budget: float, bracket: rb.Bracket) -> None:
        """Show how far a bisection is."""
        self._detail = f"worst mean risk at cost {cost_budget:g}: {bracket.lower:.4f} to {bracket.upper:.4f}"
        self._folder.show_progress(_STAGE, detail=self._detail, progress=self._progress)
