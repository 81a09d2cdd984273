"""``python -m simulations [scenario]``: run a scenario with Flower from start to finish.

It checks the configuration, starts a private SuperLink (`simulations.launcher`), runs the Flower App on as many
simulated clients as the scenario has, shows the progress, finds out how the run really ended, prints the report and
leaves nothing behind but the results.

Exit status: 0 the report is there, and what is required of it passes; 1 the run failed, or a requirement does; 2 the
command line or the configuration is wrong, or the folder is another run's or somebody's own; 3 a requirement is not
decided; 130, 143 ended by Ctrl-C, SIGTERM.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from server.problems import ConfigError
from simulations.options import EXIT_USAGE, chosen_run_config, scenario_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
        The command line without the program's name; default: `sys.argv`.
    """
    options = scenario_parser(
        "python -m simulations",
        "Simulate a federated network with Flower and certify a model on clients nobody has asked.",
    ).parse_args(arguments)
    try:
        chosen = chosen_run_config(options)
        from simulations.simulate import simulate  # loads Flower and torch

        return simulate(chosen, as_json=options.json)
    except ConfigError as error:
        print("\n".join(f"error: {problem}" for problem in error.problems), file=sys.stderr)
        return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
