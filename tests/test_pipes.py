"""A command whose reader has seen enough."""

import os
import sys

import pytest

from papers.__main__ import main as papers
from riskband.wording.pipes import read_by_a_pipe
from simulations.__main__ import main as simulations


@pytest.mark.parametrize(
    "main",
    [lambda: print("x") or 3, lambda: simulations(["--list"]), lambda: papers(["--list"])],
    ids=["print", "simulations", "papers"],
)
def test_a_reader_that_has_gone_is_no_error(monkeypatch, main):
    reading, writing = os.pipe()
    os.close(reading)
    with monkeypatch.context() as patched:
        file = os.fdopen(writing, "w")
        patched.setattr(sys, "stdout", file)
        assert read_by_a_pipe(main) == 0
        assert sys.stdout is None
    with pytest.raises(BrokenPipeError):
        file.close()


def test_an_exit_status_is_kept(capsys):
    assert read_by_a_pipe(lambda: print("x") or 3) == 3
    assert capsys.readouterr().out == "x\n"
