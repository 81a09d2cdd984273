"""The image of the Dockerfile, built and run as docker-compose.yml runs it: read-only, by an ordinary user.

The base is a stand-in from the system's packages, Debian's Python without compiled files, as Python's own image comes.
pip finds its files in a folder, downloaded before with the hashes of `deploy/requirements.txt`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deployment import compose

PROGRAMS = ("podman", "runc", "mmdebstrap")
BASE = """
FROM scratch
ADD base.tar /
RUN ln -s python3 /usr/bin/python && find /usr/lib/python3* -name '*.pyc' -delete
"""
FROM_SOURCE = re.compile(r"code object from (/.*\.py)$", re.MULTILINE)  # of `python -v`; stale files count


def done(command: list[str | Path], **options: Any) -> str:
    result = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    assert result.returncode == 0, result.stdout[-3000:]
    return result.stdout


def fetched(command: list[str | Path]) -> None:
    """Run what fetches packages; where there are none the test is skipped, but not for a hash that is wrong."""
    result = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert "DO NOT MATCH THE HASHES" not in result.stdout, result.stdout[-3000:]
    if result.returncode:
        pytest.skip(f"packages cannot be fetched: {result.stdout[-500:]}")


@pytest.fixture
def podman(tmp_path: Path) -> Iterator[list[str]]:
    """The command, with a store of its own; the machine may have neither systemd nor the second version of cgroups."""
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    if missing or os.getuid() or not sys.platform.startswith("linux"):
        pytest.skip(
            f"an image is built by root with {', '.join(PROGRAMS)} of the system's packages; missing: {missing}"
        )
    with tempfile.TemporaryDirectory(prefix="podman-") as runs:  # podman wants a short path
        folders = ["--root", str(tmp_path / "store"), "--runroot", runs]
        command = ["podman", *folders, "--cgroup-manager", "cgroupfs", "--runtime", "runc"]
        yield command
        done([*command, "rmi", "--all", "--force"])
    shutil.rmtree(tmp_path)


def run(podman: list[str], spec: dict[str, Any], words: list[str], *options: str) -> str:
    """Run a command as a service of the compose file is run, without a network."""
    options += ("--user", spec["user"], *(f"--cap-drop={name}" for name in spec["cap_drop"]))
    options += tuple(f"--cap-add={name}" for name in spec.get("cap_add", []))
    options += tuple(f"--security-opt={each.removesuffix(':true')}" for each in spec["security_opt"])
    options += (f"--read-only={spec['read_only']}", *(f"--tmpfs={path}" for path in spec["tmpfs"]))
    limits = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")  # podman's own are more than a machine may allow
    return done([*podman, "run", "--rm", "--network=none", *limits, *options, "riskband", *words])


@pytest.mark.slow
def test_the_image_is_built_and_its_commands_run_read_only_as_an_ordinary_user(
    podman: list[str], tmp_path: Path
) -> None:
    lock = compose.ROOT / "deploy" / "requirements.txt"
    download = [
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--require-hashes",
        "--only-binary=:all:",
        "--python-version=3.11",
    ]
    fetched([sys.executable, "-m", *download, "-r", lock, "-d", tmp_path / "wheels"])
    fetched(["mmdebstrap", "--quiet", "--variant=apt", "--include=python3-venv", "bookworm", tmp_path / "base.tar"])
    (tmp_path / "pip.conf").write_text("[install]\nno-index = true\nfind-links = /wheels\n")
    (tmp_path / "Base").write_text(BASE)
    build = [*podman, "build", "--quiet", "--isolation=chroot", "--layers=false"]
    done([*build, "--tag=base", f"--file={tmp_path / 'Base'}", tmp_path])
    mounts = [f"--volume={tmp_path / 'wheels'}:/wheels:ro", f"--volume={tmp_path / 'pip.conf'}:/etc/pip.conf:ro"]
    done([*build, "--tag=riskband", "--build-arg=BASE=localhost/base", *mounts, compose.ROOT])

    services = compose.load(compose.SECURE, {})["services"]
    deployment, user = tmp_path / "deployment", services["superlink"]
    deployment.mkdir()
    setup = ["--workdir=/app", f"--volume={deployment}:/deployment"]
    run(podman, services["setup"], compose.argv(services["setup"]), *setup)
    assert (deployment / "keys" / "superlink" / "server.key").stat().st_uid == 1000
    assert run(podman, user, ["id", "--user"]) == "1000\n"
    assert "Read-only" in run(podman, user, ["sh", "-c", "! touch /app/new"])
    assert "1.41" in run(podman, user, ["flower-superlink", "--version"])
    for name in ("superlink", "supernode", "superexec"):
        assert "usage: " in run(podman, user, [f"flower-{name}", "--help"])
    assert "usage: " in run(podman, user, ["python", "/app/deploy/supernode.py", "--help"])
    for module in ("deploy.certify", "deploy.register_nodes", "riskband", "simulations"):
        assert "usage: " in run(podman, user, ["python", "-m", module, "--help"], "--workdir=/app").lower()
    loading = run(podman, user, ["python", "-v", "-c", "import server.app, client.app, flwr.cli.app"], "--workdir=/app")
    assert "code object from '/opt/venv/" in loading
    assert not FROM_SOURCE.findall(loading)
