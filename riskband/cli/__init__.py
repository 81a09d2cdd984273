"""The `riskband` command: certificates from a table of per-client losses, and a check of certificates.

A sub-command is a module of this package, with `add_arguments` and `run`, and a line of `COMMANDS`. It is imported when
it is called, so that the list of all of them needs nothing of the library.

Exit status: 0 when all is well, 1 when a certificate does not follow from its answers or a requirement fails, 2 for
wrong input (all errors at once), 3 when a requirement is not decided, 4 for an alarm.
"""

from __future__ import annotations

import argparse
import io
import sys
import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import import_module

import riskband as rb
from riskband.checks import float_of
from riskband.wording import printable

COMMANDS = {
    "plan": "how many clients, with how many examples each, a requirement needs to pass",
    "certify": "certificates from a CSV file with one row per client",
    "compare": "whether a new model is worse than an old one, from two such files",
    "shift": "how far a target network is at least, and its mean from few of its clients",
    "monitor": "whether a network is still what a certificate is about, as answers come",
    "report": "a page for the person who signs, from certificates",
    "verify": "compute certificates again from the answers they store",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # not every encoding has a χ
    words = sys.argv[1:] if arguments is None else arguments
    options = _parser(words).parse_args(words)
    problems: Sequence[str] = ()
    options.live = sys.stdout  # for what is said before the end
    said, status = io.StringIO(), 2  # all is printed at the end: who stops reading changes no outcome
    try:
        with redirect_stdout(said), warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = _warn
            status = int(options.run(options))
    except BrokenPipeError:  # of what goes to the standard error meanwhile
        sys.stderr = None
    except OSError as error:
        problems = (f"cannot use {error.filename}: {error.strerror}",)
    except ImportError as error:  # a package of an extra; the message says which
        problems = (str(error),)
    except ValueError as error:
        problems = getattr(error, "problems", (str(error),))
    try:
        print("\n".join(map(printable, said.getvalue().split("\n"))), end="", flush=True)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        sys.stdout = None
    for problem in problems:
        print(f"riskband: {printable(problem)}", file=sys.stderr)
    return status


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    print(f"riskband: warning: {printable(str(message))}", file=sys.stderr)


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Parser of these words: of all the sub-commands, only those that are named know their arguments."""
    parser = argparse.ArgumentParser(
        prog="riskband", description="Certificates for the risk of a model on clients that nobody has measured."
    )
    parser.add_argument("--version", action="version", version=f"riskband {rb.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, purpose in COMMANDS.items():
        command = commands.add_parser(name, help=purpose)
        if name in words:
            module = import_module(f"riskband.cli.{name}")
            command.register("type", float, float_of)
            command.register("type", int, lambda text: int(text.replace("_", "?")))  # Python takes 1_0 for 10
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser
