"""What runs the clients: the options that choose it, what they refuse, and whether clients fit on a cluster."""

from __future__ import annotations

import argparse
import socket

import pytest

from server.problems import ConfigError
from simulations.__main__ import main
from simulations.engine import Engine, add_engine_options, chosen_engine
from simulations.options import EXIT_USAGE, scenario_names
from simulations.ray_cluster import RayCluster, require_room


def chosen(*arguments, **environment):
    parser = argparse.ArgumentParser()
    add_engine_options(parser)
    return chosen_engine(parser.parse_args(arguments), environment)


def test_a_thousand_clients_run_in_this_process_and_more_on_ray_unless_an_engine_is_named():
    assert [chosen().is_in_process(each) for each in (2, 1000, 1001)] == [True, True, False]
    assert chosen("--engine", "in-process").is_in_process(10**6)
    assert not chosen("--engine", "ray").is_in_process(2)


def test_an_option_of_rays_chooses_ray_and_the_variable_only_says_which():
    assert chosen("--ray-address", "auto") == Engine("ray", "auto")
    assert chosen("--client-gpus", "0.25", "--client-cpus", "2") == Engine("ray", "", 2, 0.25)
    assert chosen(RAY_ADDRESS="head:6379") == Engine("", "head:6379")
    assert chosen("--engine", "in-process", RAY_ADDRESS="nonsense") == Engine("in-process")
    assert chosen("--ray-address", "here:1", RAY_ADDRESS="there:2").ray_address == "here:1"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--engine", "spark"], ["--engine must be in-process or ray", "'spark'", "leave it out"]),
        (["--engine", "in-process", "--client-gpus", "1"], ["--client-gpus must come with --engine ray", "leave one"]),
        (["--ray-address", "head"], ["--ray-address must be", "'head'", "HOST:PORT of the head node"]),
        (["--ray-address", "ray://head:10001"], ["--ray-address must be", "HOST:PORT of the head node"]),
        (["--ray-address", "head:99999"], ["--ray-address must be", "'head:99999'"]),
        (["--client-cpus", "0.5"], ["--client-cpus must be a whole number of at least 1", "'0.5'", "whole"]),
        (["--client-gpus", "nan"], ["--client-gpus must be a number of at least 0", "'nan'", "0.25"]),
        (["--client-gpus", "-1"], ["--client-gpus must be a number of at least 0", "'-1'"]),
    ],
)
def test_a_wrong_engine_is_refused_by_rule_value_and_remedy(arguments, words, capsys):
    assert main(arguments) == EXIT_USAGE
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert [word for word in words if word not in error] == []


def test_all_mistakes_are_named_at_once(capsys):
    assert main(["--engine", "spark", "--ray-address", "", "--client-cpus", "0", "--client-gpus", "x"]) == EXIT_USAGE
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["--engine", "--ray-address", "--client-cpus", "--client-gpus"]
    assert main(["--engine", "spark", "--set", "delta=2", "lamda=3"]) == EXIT_USAGE
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["--engine", "delta", "lamda"]
    assert main(["nowhere", "--client-cpus", "0"]) == EXIT_USAGE
    lines = capsys.readouterr().err.splitlines()
    assert "--client-cpus" in lines[0]
    assert "nowhere" in lines[1]


def test_a_cluster_that_does_not_listen_is_refused_and_nothing_is_written(tmp_path, capsys, monkeypatch):
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["--ray-address", address, "--out", str(tmp_path / "out")]) == EXIT_USAGE
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert main(["--engine", "ray", "--out", str(tmp_path / "out")]) == EXIT_USAGE
    first, second = capsys.readouterr().err.splitlines()
    assert first == second
    assert first.startswith(f"error: the Ray cluster must be reachable from here, got '{address}' (")
    assert "ray start --address" in first
    assert list(tmp_path.iterdir()) == []


def test_a_client_fits_on_one_node_or_nowhere():
    cluster = RayCluster("head:1", ({"CPU": 2.0}, {"CPU": 4.0, "GPU": 1.0}, {"memory": 1.0}))
    needs = {(1, 0.0): 6, (3, 0.0): 1, (1, 0.25): 4, (2, 0.25): 2, (1, 1.0): 1}
    assert {each: cluster.num_clients_at_once(Engine("ray", "", *each)) for each in needs} == needs
    for engine in (Engine("ray", "", 5), Engine("ray", "", 1, 2.0)):
        with pytest.raises(ConfigError) as refused:
            require_room(cluster, engine)
        (problem,) = refused.value.problems
        assert "must fit on one node of head:1" in problem
        assert "at most 4 CPU and 1 GPU; lower --client-cpus" in problem


def test_every_scenario_has_a_line_that_says_what_it_is(capsys):
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == scenario_names()
    for line in lines:
        _, size, words = line.split(maxsplit=2)
        assert int(size) > 1
        assert words[0].isupper()
        assert words[-1] in ".?", words  # a whole sentence
        assert len(line) <= 150
