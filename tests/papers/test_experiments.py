"""`python -m papers` in this process: what it writes and what it refuses."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

from papers import EXPERIMENTS, fetch
from papers import __main__ as command
from papers.experiment import Experiment, Request, load
from worlds.movielens import load_ratings


def test_every_experiment_has_its_name():
    found = {name: load(name) for name in EXPERIMENTS}
    assert all(isinstance(experiment, Experiment) for experiment in found.values())
    assert [experiment.name for experiment in found.values()] == list(EXPERIMENTS)


def test_a_long_experiment_says_what_it_does(tmp_path):
    """In a process of its own, as the log is set up once in each."""
    command = [sys.executable, "-m", "papers", "fig7", "--out", str(tmp_path), "--quick", "--clients", "4"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    assert re.search(r"^\d\d:\d\d:\d\d .*: training$", said, re.MULTILINE)
    assert re.search(r"^\d\d:\d\d:\d\d moving 4 clients", said, re.MULTILINE)


def test_an_unknown_experiment_is_refused(tmp_path, capsys):
    assert command.main(["nowhere", "--out", str(tmp_path)]) == 2
    assert "there is no experiment 'nowhere'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        {"seed": -1},
        {"clients": 1},
        {"clients": 2.5},
        {"settings": {"epochs": float("nan")}},
        {"settings": {"weight": -1}},
    ],
)
def test_a_request_keeps_its_rules(arguments):
    with pytest.raises(ValueError, match=r"must be"):
        Request(**arguments)


def test_a_setting_that_counts_is_a_whole_number():
    assert Request().count("epochs", full=501, quick=40) == 501
    assert Request(settings={"epochs": 7.0}).count("epochs", full=501, quick=40) == 7
    for wrong in (0, 2.5):
        with pytest.raises(
            ValueError, match=rf"epochs must be a whole number of at least 1, got {wrong}; leave it out"
        ):
            Request(settings={"epochs": wrong}).count("epochs", full=501, quick=40)


def test_a_setting_without_a_number_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(["dg-table", "--out", str(tmp_path), "--set", "epochs=many"])
    assert stopped.value.code == 2
    assert "must be NAME=NUMBER, got 'epochs=many'; write it as" in capsys.readouterr().err


def test_an_experiment_about_domains_has_no_clients(tmp_path, capsys):
    assert command.main(["dg-table", "--out", str(tmp_path), "--quick", "--clients", "7"]) == 2
    assert "clients must be left out, got 7" in capsys.readouterr().err


def test_all_that_is_wrong_is_said_at_once(tmp_path, capsys):
    wrong = ["--clients", "7", "--panels", "moon", "--set", "speed=3", "--data", str(tmp_path)]
    assert command.main(["dg-table", "--out", str(tmp_path), *wrong]) == 2
    shown = capsys.readouterr().err
    for problem in ("clients must be left out", "got speed", "got moon", "mnist.npz is missing"):
        assert problem in shown


def test_missing_data_are_named_with_the_command_that_gets_them(tmp_path):
    asked = Request(data=tmp_path)
    with pytest.raises(ValueError, match=r"mnist\.npz is missing; .*papers\.fetch mnist --data"):
        asked.dataset("mnist")
    assert Request(data=tmp_path, quick=True).dataset("mnist") == "digits"
    (tmp_path / "mnist.npz").touch()
    assert asked.dataset("mnist") == f"npz:{tmp_path / 'mnist.npz'}"


def test_the_number_of_clients_asked_for_comes_first():
    assert Request().num_clients(full=500, quick=40) == 500
    assert Request(quick=True).num_clients(full=500, quick=40) == 40
    assert Request(quick=True, clients=7).num_clients(full=500, quick=40) == 7


def test_panels_are_those_asked_for_and_only_their_data_are_needed(tmp_path):
    experiment = Experiment("toy", "", ("mnist", "cifar10"), dict, dict, ("cifar10-label", "mnist-label"))
    (tmp_path / "mnist.npz").touch()
    experiment.check(Request(data=tmp_path, panels=("mnist-label",)))
    experiment.check(Request(data=tmp_path, quick=True))
    assert Request(panels=("mnist-label",)).chosen(experiment.panels) == ("mnist-label",)
    assert Request().chosen(experiment.panels) == experiment.panels
    with pytest.raises(ValueError, match=r"cifar10\.npz"):
        experiment.check(Request(data=tmp_path))
    with pytest.raises(ValueError, match=r"panels must be among"):
        experiment.check(Request(data=tmp_path, panels=("moon",)))


def test_a_data_set_is_written_as_bytes_and_read_again(tmp_path):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(256, size=(12, 5, 4, 3), dtype=np.uint8), np.arange(12) % 3
    parts = {"x_train": images[:6], "y_train": labels[:6], "x_test": images[6:], "y_test": labels[6:]}
    np.savez(tmp_path / "source.npz", **parts)
    found = np.load(fetch.write(f"npz:{tmp_path / 'source.npz'}", tmp_path / "new" / "set.npz"))
    np.testing.assert_array_equal(np.moveaxis(found["x_train"], 1, -1), parts["x_train"])
    np.testing.assert_array_equal(np.moveaxis(found["x_test"], 1, -1), parts["x_test"])
    np.testing.assert_array_equal(found["y_test"], parts["y_test"])


def test_what_cannot_be_fetched_is_said_with_its_source(tmp_path, capsys):
    assert fetch.main(["movielens_1m", "--data", str(tmp_path)]) == 2
    assert "grouplens" in capsys.readouterr().err


def test_the_command_said_for_movielens_writes_the_file(tmp_path, monkeypatch):
    (tmp_path / "ratings.dat").write_text("1::10::5::100\n2::11::3::101\n")
    monkeypatch.chdir(tmp_path)
    exec(fetch.BY_HAND["movielens_1m"].split('"')[1])  # what the shell would give to python -c
    found = load_ratings(Request(data=tmp_path).file("movielens_1m"))
    assert found.item.tolist() == [10, 11]
    assert found.rating.tolist() == [5.0, 3.0]


def test_rows_are_printed_in_columns():
    assert command.table([{"a": 1, "name": "x"}, {"a": 0.123456, "name": "y"}]) == "a       name\n1       x\n0.1235  y"
    assert command.table([]) == ""
