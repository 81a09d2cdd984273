"""The commands of the containers where nothing is up: what they say and how they end; `test_faults.py` has the rest."""

from __future__ import annotations

import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import grpc
import pytest
from flwr.supercore.grpc_health import SimpleHealthServicer
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from deploy import certify, flower, register_nodes
from deploy.healthy import is_healthy
from deploy.make_keys import make_deployment
from server.run.lock import lock_for_run
from simulations.launcher import free_port, private_superlink


class _Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 500)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deployment")
    make_deployment(folder, num_nodes=1)
    return folder / "keys"


@pytest.fixture(scope="module")
def secure_port(keys: Path) -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "superlink" / "server.crt", keys / "superlink" / "server.key")
    with HTTPServer(("127.0.0.1", 0), _Server) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("path", "expected"), [("health", True), ("other", False)])
def test_a_server_is_healthy_if_it_says_so_under_our_authority(
    keys: Path, secure_port: int, path: str, expected: bool
) -> None:
    assert is_healthy(f"https://localhost:{secure_port}/{path}", str(keys / "superlink" / "ca.crt")) is expected


def test_a_server_of_another_authority_is_not_healthy(secure_port: int, tmp_path: Path) -> None:
    make_deployment(tmp_path, num_nodes=1)
    assert not is_healthy(f"https://localhost:{secure_port}/health", str(tmp_path / "keys" / "ca" / "ca.crt"))
    assert not is_healthy(f"https://localhost:{secure_port}/health")


def test_a_superexec_is_healthy_while_its_health_server_answers() -> None:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    add_HealthServicer_to_server(SimpleHealthServicer(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    assert not is_healthy(f"grpc://127.0.0.1:{free_port()}")
    server.start()
    assert is_healthy(f"grpc://{address}")
    server.stop(None).wait()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--results", "results"], "--results must be an absolute path, got results"),
        (["--results", "/results", "--clients", "1"], "num-clients"),
        (["nowhere", "--results", "/results"], "there is no scenario 'nowhere'"),
    ],
)
def test_a_wrong_configuration_exits_2_and_asks_nobody(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert certify.main([*arguments, "--superlink", f"127.0.0.1:{free_port()}", "--insecure"]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_of_a_run_that_has_not_ended_is_refused_before_anybody_is_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["--results", str(tmp_path), "--superlink", f"127.0.0.1:{free_port()}", "--insecure"]
    with lock_for_run(tmp_path / "quickstart", run_id="4711"):
        assert certify.main(["quickstart", *arguments]) == 2
    said = capsys.readouterr().err
    assert "must be used by one run at a time" in said
    assert "(run 4711)" in said


def test_a_run_that_cannot_be_resumed_is_refused_before_anybody_is_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["--results", str(tmp_path), "--superlink", f"127.0.0.1:{free_port()}", "--insecure", "--resume"]
    assert certify.main(["quickstart", *arguments]) == 2
    assert "must be the ledger of the interrupted run, but there is none" in capsys.readouterr().err


@pytest.mark.slow
def test_a_folder_that_the_serverapp_cannot_write_ends_the_run_before_anybody_is_waited_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with private_superlink(is_simulation=False) as superlink:
        arguments = ["quickstart", "--results", "/results", "--out", "/proc/nowhere"]
        assert certify.main([*arguments, "--superlink", f"127.0.0.1:{superlink.port}", "--insecure"]) == 2
        said = capsys.readouterr().err
        assert "output-dir must be a folder that can be written" in said
        assert "; choose another" in said
        assert superlink.run_status().status == "finished:failed"


def test_a_superlink_that_is_not_there_is_an_error_in_one_line(capsys: pytest.CaptureFixture[str], keys: Path) -> None:
    trust = ["--root-certificates", str(keys / "operator" / "ca.crt")]
    address = ["--superlink", f"127.0.0.1:{free_port()}"]
    assert register_nodes.main([str(keys / "operator" / "nodes"), *address, *trust]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: flwr supernode register")
    assert "unavailable" in said


def test_a_command_of_flower_that_fails_is_an_error_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--superlink", f"127.0.0.1:{free_port()}", "--insecure", "supernode", "list"]
    assert flower.main(arguments) == 1
    assert capsys.readouterr().err.startswith("error: flwr supernode list: ")


def test_a_name_that_begins_with_a_dash_is_no_option(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: Path
) -> None:
    (tmp_path / "-hospital.pub").write_bytes((keys / "operator" / "nodes" / "client-00000.pub").read_bytes())
    monkeypatch.chdir(tmp_path)
    address = ["--superlink", f"127.0.0.1:{free_port()}", "--insecure"]
    assert register_nodes.main([".", *address]) == 1
    assert "unavailable" in capsys.readouterr().err  # Flower understood, and asked the SuperLink
    command = ["supernode", "register", str(tmp_path / "-hospital.pub"), "--name=-hospital"]
    assert flower.main([*address, *command]) == 1
    assert "unavailable" in capsys.readouterr().err


def test_a_folder_without_public_keys_is_an_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert register_nodes.main([str(tmp_path), "--superlink", "127.0.0.1:1", "--insecure"]) == 1
    assert "must hold the public keys" in capsys.readouterr().err


def test_a_removed_client_is_not_registered(capsys: pytest.CaptureFixture[str], keys: Path, tmp_path: Path) -> None:
    (tmp_path / "client-00000.pub").write_bytes((keys / "operator" / "nodes" / "client-00000.pub").read_bytes())
    (tmp_path / "client-00000.removed").touch()
    assert register_nodes.main([str(tmp_path), "--superlink", "127.0.0.1:1", "--insecure"]) == 1
    assert "must hold the public keys" in capsys.readouterr().err  # nothing was left to ask the SuperLink about


def test_the_way_to_the_superlink_must_be_chosen(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        register_nodes.main([str(tmp_path), "--superlink", "127.0.0.1:1"])
    assert "--root-certificates --insecure" in capsys.readouterr().err


def test_what_a_deployment_installs_is_the_app_without_the_simulation(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "deploy" / "requirements.py"
    project = tmp_path / "pyproject.toml"
    project.write_text(
        '[project]\nname = "riskband"\ndependencies = ["numpy>=2"]\n[project.optional-dependencies]\n'
        'plots = ["matplotlib>=3.9"]\napp = ["riskband[plots]", "flwr[simulation]~=1.41.0", "flwr-datasets>=0.6"]\n'
    )
    done = subprocess.run([sys.executable, str(script), str(project)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["numpy>=2", "matplotlib>=3.9", "flwr~=1.41.0", "flwr-datasets>=0.6"]
