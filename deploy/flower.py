"""Flower's command line for programs: a connection of our own, JSON back, errors as exceptions.

``python -m deploy.flower --superlink HOST:PORT --root-certificates FILE COMMAND …`` runs a command of ``flwr``, such as
``supernode list``, and prints what it says, as JSON; beside each node's id what our ledgers and reports call the node.
Exit status 1: it failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulations.options import as_toml
from strategies.asking.failures import node_hash

_CONNECTION = "deployment"
_TIMEOUT = 120.0


class FlowerError(RuntimeError):
    """Flower's command line did not do what it was asked to; the message is what it said."""


@dataclass(frozen=True)
class Connection:
    """How to reach a SuperLink."""

    address: str  # HOST:PORT
    root_certificates: Path | None  # the file of the certificate authority that signed its certificate; None: no TLS

    def ask(self, *command: str) -> dict[str, Any]:
        """Run ``flwr`` with a command and return the JSON that it prints.

        Raises FlowerError if it fails or does not answer in time.
        """
        with tempfile.TemporaryDirectory(prefix="riskband-") as home:  # the user's ~/.flwr is neither read nor written
            (Path(home) / "config.toml").write_text(self._config(), encoding="utf-8")
            settings = {"FLWR_HOME": home, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
            flwr = str(Path(sysconfig.get_path("scripts")) / "flwr")
            arguments = [flwr, *command, _CONNECTION, "--format", "json"]
            try:
                done = subprocess.run(
                    arguments, env=os.environ | settings, capture_output=True, text=True, timeout=_TIMEOUT
                )
            except subprocess.TimeoutExpired:
                raise FlowerError(f"flwr {command[0]} did not answer in {_TIMEOUT:.0f} s") from None
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            answer = {}
        if not isinstance(answer, dict) or not answer.get("success"):
            said = answer.get("error-message") or f"{done.stdout}{done.stderr}".strip()
            raise FlowerError(f"flwr {' '.join(command[:2])}: {said}")
        return answer

    def _config(self) -> str:
        """Flower's configuration file for this connection."""
        ca = self.root_certificates
        trust = "insecure = true" if ca is None else f"root-certificates = {json.dumps(str(ca))}"
        lines = ["[superlink]", f'default = "{_CONNECTION}"', f"[superlink.{_CONNECTION}]"]
        return "\n".join([*lines, f"address = {json.dumps(self.address)}", trust, ""])

    def start_run(self, app: Path, run_config: Mapping[str, str | int | float]) -> str:
        """Submit a Flower App with a run configuration and return the id of the run."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "run-config.toml"
            file.write_text(as_toml(run_config), encoding="utf-8")
            return str(self.ask("run", str(app), "-c", str(file))["run-id"])

    def run_status(self, run_id: str) -> tuple[str, str]:
        """Return what the SuperLink says of a run: its status, and the reason in words when it failed."""
        run = self.ask("list", "--run-id", run_id)["runs"][0]
        return run["status"], run["status-details"]


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options from which `connection_of` makes a connection."""
    parser.add_argument("--superlink", metavar="HOST:PORT", required=True)
    trust = parser.add_mutually_exclusive_group(required=True)
    trust.add_argument("--root-certificates", metavar="FILE", type=Path, help="certificate of the authority to trust")
    trust.add_argument("--insecure", action="store_true", help="without TLS")


def connection_of(options: argparse.Namespace) -> Connection:
    """Return the connection that the options of `add_connection_arguments` describe."""
    return Connection(options.superlink, None if options.insecure else options.root_certificates.absolute())


def _with_hash(node: Mapping[str, Any]) -> dict[str, Any]:
    """What Flower says of a node, and what our ledgers, logs and reports call it."""
    return {**node, "node": node_hash(int(node["node-id"]))}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m deploy.flower", description="Run a command of flwr.")
    add_connection_arguments(parser)
    parser.add_argument("command", help="such as `supernode`")
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="its arguments and options, such as `list`")
    options = parser.parse_args(arguments)
    try:
        said = connection_of(options).ask(options.command, *options.rest)
        nodes = said.get("nodes", ())
        print(json.dumps(said | {"nodes": [_with_hash(node) for node in nodes]} if nodes else said, indent=2))
    except FlowerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
