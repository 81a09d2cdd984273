"""``python -m simulations [scenario]``: run a scenario with Flower from start to finish.

It checks the configuration, runs the Flower App on as many simulated clients as the scenario has, shows the progress,
prints the report and leaves nothing behind but the results. The clients run in this process, or on Ray below a private
SuperLink (`simulations.engine` says which).

Exit status: 0 the report is there, and what is required of it passes; 1 the run failed, or a requirement does; 2 the
command line or the configuration is wrong, or the folder is another run's or somebody's own; 3 a requirement is not
decided; 130, 143 ended by Ctrl-C, SIGTERM.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from riskband.wording.pipes import read_by_a_pipe
from server.problems import ConfigError
from simulations.engine import add_engine_options, chosen_engine
from simulations.options import EXIT_USAGE, chosen_run_config, scenario_list, scenario_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default that of `sys.argv`, and return the exit status."""
    parser = scenario_parser(
        "python -m simulations",
        "Simulate a federated network with Flower and certify a model on clients nobody has asked.",
    )
    parser.add_argument("--list", action="store_true", help="show the scenarios, a line each, and end")
    add_engine_options(parser)
    options = parser.parse_args(arguments)
    if options.list:
        print(scenario_list())
        return 0
    problems: list[str] = []
    engine = None
    try:
        engine = chosen_engine(options, os.environ)
    except ConfigError as error:
        problems += error.problems
    try:
        chosen = chosen_run_config(options)
        from server.config import load_config
        from simulations.simulate import simulate  # loads Flower and torch

        if engine is not None:
            return simulate(chosen, engine, as_json=options.json)
        load_config(chosen)  # so that all mistakes are named at once
    except ConfigError as error:
        problems += error.problems
    print("\n".join(f"error: {problem}" for problem in problems), file=sys.stderr)
    return EXIT_USAGE


def leave(status: int) -> NoReturn:
    """End this process with an exit status, also if a client is still at work in it."""
    grids = sys.modules.get("riskband.flower.testing")  # slow to load, and not there if no client ran here
    if grids is not None and grids.is_client_at_work():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    leave(read_by_a_pipe(main))
