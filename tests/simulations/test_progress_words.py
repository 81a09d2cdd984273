"""What the commands show of a run that is on its way."""

import json

import pytest

from server.run.folder import ResultFolder
from simulations.simulate import progress_words, show_progress
from strategies.asking.exchange import Progress
from strategies.asking.failures import Failure, FailureReason

FAILURES = (Failure(None, FailureReason.NO_REPLY, ""),) * 2


@pytest.mark.parametrize(
    ("progress", "detail", "words"),
    [
        (None, "", "asking the clients"),
        (Progress(asked=9, answered=0, round="1"), "", "asking the clients, round 1"),
        (
            Progress(asked=90, answered=40, failures=FAILURES, round="3", eta_seconds=124.2),
            "worst mean 0.2 to 0.3",
            "asking the clients, round 3, worst mean 0.2 to 0.3, 2 failed, about 0:02:05 left",
        ),
        (Progress(asked=9, answered=9, round="1", eta_seconds=0.0), "", "asking the clients, round 1"),
    ],
)
def test_a_progress_file_in_words(tmp_path, progress, detail, words):
    ResultFolder(tmp_path).show_progress("asking the clients", detail=detail, progress=progress)
    assert progress_words(json.loads((tmp_path / "progress.json").read_text())) == words


def test_the_progress_file_says_the_counts(tmp_path):
    progress = Progress(asked=9, answered=5, failures=FAILURES, round="2", eta_seconds=0.3)
    ResultFolder(tmp_path, run_id="7").show_progress("asking", progress=progress)
    assert json.loads((tmp_path / "progress.json").read_text()) == {
        "schema": "riskband.progress/1",
        "run_id": "7",
        "stage": "asking",
        "detail": "",
        "round": "2",
        "asked": 9,
        "answered": 5,
        "failed": 2,
        "eta_seconds": 1,
    }


def test_stages_are_shown_once_each_also_without_a_terminal(tmp_path, capsys):
    folder = ResultFolder(tmp_path)
    left = iter(["preparing the model", "asking the clients", "asking the clients"])

    def is_running():
        stage = next(left, None)
        if stage is not None:
            folder.show_progress(stage, progress=Progress(asked=4, answered=1))
        return stage is not None

    show_progress(is_running, folder, num_clients=4)
    assert capsys.readouterr().err.split("\n")[:2] == ["preparing the model", "asking the clients"]
