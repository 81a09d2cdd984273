"""The options that choose a run, and the run configuration they choose; quick to import, for help and refusals."""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from server.problems import ConfigError

APP_FOLDER = Path(__file__).resolve().parents[1]
SCENARIO_FOLDER = APP_FOLDER / "simulations" / "scenarios"

EXIT_FAILED, EXIT_USAGE = 1, 2


def scenario_parser(prog: str, description: str) -> argparse.ArgumentParser:
    """Return a parser of the options that choose a run: a scenario, and what replaces its keys."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=f"Scenarios: {', '.join(scenario_names())}. Keys: [tool.flwr.app.config] in pyproject.toml.",
    )
    parser.add_argument("scenario", nargs="?", default="quickstart", help="a name, or a path to a .toml file")
    parser.add_argument("--clients", metavar="N", help="number of clients (num-clients)")
    parser.add_argument("--out", metavar="DIR", help="folder for the results (output-dir)")
    parser.add_argument("--seed", metavar="S", help="seed of everything random (seed)")
    parser.add_argument("--resume", action="store_true", help="continue the interrupted run in that folder (resume)")
    required = "PASS, FAIL or NOT DECIDED, and exit status 0, 1 or 3: 'quantile:0.9<=0.3' (require)"
    parser.add_argument("--require", metavar="NUMBER<=LIMIT", action="append", nargs="+", default=[], help=required)
    parser.add_argument("--json", action="store_true", help="print report.json, and nothing else to standard output")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", nargs="+", default=[], help="replace other keys")
    return parser


def scenario_names() -> list[str]:
    """Return the names of our scenarios, sorted."""
    return sorted(path.stem for path in SCENARIO_FOLDER.glob("*.toml"))


def scenario_list() -> str:
    """Return our scenarios, a line each: name, number of clients, and what it is, the first line of its file."""
    lines = []
    for name in scenario_names():
        first = (SCENARIO_FOLDER / f"{name}.toml").read_text(encoding="utf-8").partition("\n")[0]
        lines.append(f"{name:18} {scenario_config(name)['num-clients']:>5}  {first.removeprefix('# ')}")
    return "\n".join(lines)


def chosen_run_config(options: argparse.Namespace) -> dict[str, Any]:
    """Return the app's defaults, then the scenario, then the options of `scenario_parser`; nothing is checked yet."""
    config = default_run_config() | scenario_config(options.scenario)
    pairs = [pair.partition("=") for group in options.set for pair in group]
    if wrong := ["".join(pair) for pair in pairs if not (pair[0] and pair[1])]:
        raise ConfigError([f"--set needs KEY=VALUE, got {text!r}" for text in wrong])
    config |= {key: value for key, _, value in pairs}
    if options.require:
        config["require"] = ",".join(chain.from_iterable(options.require))
    given = {"num-clients": options.clients, "seed": options.seed, "resume": options.resume or None}
    config |= {key: value for key, value in given.items() if value is not None}
    if options.out is not None:
        if not options.out.strip():
            raise ConfigError(["--out must name a folder, got an empty text; leave it out for the default"])
        config["output-dir"] = str(Path(options.out).expanduser().absolute())
    return config


def default_run_config() -> dict[str, Any]:
    """Return `[tool.flwr.app.config]`."""
    project = tomllib.loads((APP_FOLDER / "pyproject.toml").read_text(encoding="utf-8"))
    config: dict[str, Any] = project["tool"]["flwr"]["app"]["config"]
    return config


def as_toml(run_config: Mapping[str, str | int | float]) -> str:
    """Return a run config as the text of a TOML file, which needs none of the quoting of ``-c "key='value'"``."""
    # JSON scalars are TOML scalars.
    return "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in run_config.items())


def scenario_config(name: str) -> dict[str, Any]:
    """Return the keys of a scenario, by its name or the path of its TOML file."""
    path = Path(name) if name.endswith(".toml") else SCENARIO_FOLDER / f"{name}.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = ", ".join(scenario_names())
        raise ConfigError([f"there is no scenario {name!r}; use one of {known}, or a path to a .toml file"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path} must be a TOML file in UTF-8, got {error}"]) from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError([f"{path} is not valid TOML: {error}"]) from None
