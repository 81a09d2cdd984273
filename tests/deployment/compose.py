"""docker-compose.yml as data: what Compose itself makes of it, as far as these tests need it.

`test_compose.py` compares this reading with the Compose command line's where there is one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
SECURE = (ROOT / "docker-compose.yml",)
INSECURE = (*SECURE, ROOT / "docker-compose.insecure.yml")
_VARIABLE = re.compile(r"\$(?:(\$)|\{([A-Z0-9_]+)(?::-([^}]*))?\})")


class _Override(dict[str, Any]):
    """A mapping with the tag !override: it replaces what it is merged into."""


class _Loader(yaml.SafeLoader):
    pass


_Loader.add_constructor("!override", lambda loader, node: _Override(loader.construct_mapping(node, deep=True)))


def load(files: Sequence[Path], variables: Mapping[str, str]) -> dict[str, Any]:
    """Read compose files, the later over the earlier, with variables replaced."""
    merged: dict[str, Any] = {}
    for path in files:
        merged = _merged(merged, yaml.load(path.read_text(encoding="utf-8"), _Loader))
    return _interpolated(merged, variables)


def argv(service: Mapping[str, Any]) -> list[str]:
    """What the container runs: entrypoint, then command."""
    return [*_words(service.get("entrypoint")), *_words(service.get("command"))]


def image_environment(dockerfile: Path = ROOT / "Dockerfile") -> dict[str, str]:
    """What ENV of the Dockerfile's last stage sets, without PATH."""
    last_stage = dockerfile.read_text(encoding="utf-8").rpartition("\nFROM ")[2].replace("\\\n", " ")
    pairs = [pair for line in last_stage.splitlines() if line.startswith("ENV ") for pair in shlex.split(line[4:])]
    variables = dict(pair.split("=", 1) for pair in pairs)
    del variables["PATH"]
    return variables


def networks_of(name: str, service: Mapping[str, Any]) -> dict[str, list[str]]:
    """The networks of a service, and the names that it has in each."""
    networks = service.get("networks") or {}
    if isinstance(networks, list):
        networks = dict.fromkeys(networks)
    return {network: [name, *((options or {}).get("aliases") or [])] for network, options in networks.items()}


def _words(command: str | list[str] | None) -> list[str]:
    return shlex.split(command) if isinstance(command, str) else list(command or [])


def _merged(base: Any, over: Any) -> Any:
    if isinstance(over, dict) and isinstance(base, dict) and not isinstance(over, _Override):
        return {**base, **{key: _merged(base.get(key), value) for key, value in over.items()}}
    return over


def _interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _VARIABLE.sub(lambda m: m[1] or variables.get(m[2]) or m[3] or "", value)
    if isinstance(value, dict):
        return {key: _interpolated(each, variables) for key, each in value.items()}
    return [_interpolated(each, variables) for each in value] if isinstance(value, list) else value
