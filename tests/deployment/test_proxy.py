"""The proxy before the SuperLink: what its configuration lets through to a server that notes what reached it.

`test_faults.py` has it before a SuperLink. Truth from outside: the paths of Flower's own client, and HAProxy itself.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from flwr.supernode.fleet_http_client import FleetHttpClient

from deploy.healthy import is_healthy
from deploy.make_keys import make_deployment
from simulations.launcher import free_port
from tests.deployment import compose
from tests.waiting import wait_until

needs_haproxy = pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed")
CONFIG = compose.ROOT / "deploy" / "proxy.cfg"
PULL = "/v1/fleet/pull-messages"
REACHED: list[str] = []


class _Server(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"] or 0))
        REACHED.append(f"{self.requestline} {self.headers['upgrade']} {self.headers['x-forwarded-for']}")
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def superlink(keys: Path | None = None) -> Iterator[str]:
    """A server in the place of the SuperLink; yields its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Server) as server:
        if keys is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(keys / "server.crt", keys / "server.key")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=[0.02])
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@contextmanager
def proxy(log: Path, **environment: str) -> Iterator[int]:
    """The proxy on a port of the loopback interface; yields the port."""
    port = free_port()
    command = ["haproxy", "-db", "-f", str(CONFIG)]
    settings = {"PATH": os.environ["PATH"], "LISTEN": f"127.0.0.1:{port}", **environment}
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=settings, stdout=output, stderr=subprocess.STDOUT)

    def listens() -> bool:
        assert process.poll() is None, log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(listens, timeout=20.0, what=log.read_text)
        yield port
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("proxy") / "proxy.log"


@pytest.fixture(scope="module")
def port(log: Path) -> Iterator[int]:
    with superlink() as address, proxy(log, INSECURE="yes", SUPERLINK=address) as port:
        yield port


def ask(port: int, request_line: str, *headers: str, body: bytes = b"") -> int:
    """Send a request as it is written and return the status of the answer."""
    lines = [request_line, "host: proxy", *headers, "connection: close", "", ""]
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall("\r\n".join(lines).encode() + body)
        return int(connection.makefile("rb").readline().split()[1])


def paths_of_flower() -> list[str]:
    return re.findall(r'path="([^"]+)"', inspect.getsource(FleetHttpClient))


def test_the_paths_are_those_that_flowers_supernode_asks_for() -> None:
    calls = [name for name in vars(FleetHttpClient) if name[0].isupper()]
    assert len(paths_of_flower()) == len(calls) > 0
    assert sorted(re.findall(r"/v1/\S+", CONFIG.read_text())) == sorted(paths_of_flower())


@needs_haproxy
@pytest.mark.parametrize("is_secure", [True, False])
def test_haproxy_accepts_the_configuration(tmp_path: Path, is_secure: bool) -> None:
    make_deployment(tmp_path, num_nodes=1)
    settings = {"LISTEN": "127.0.0.1:8443", "SUPERLINK": "127.0.0.1:8000", "KEYS": str(tmp_path / "keys" / "proxy")}
    settings |= {"PATH": os.environ["PATH"]} | ({} if is_secure else {"INSECURE": "yes"})
    done = subprocess.run(["haproxy", "-c", "-f", str(CONFIG)], env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr


@needs_haproxy
def test_what_a_supernode_asks_for_passes_as_it_is(port: int, log: Path) -> None:
    for path in paths_of_flower():
        assert ask(port, f"POST {path} HTTP/1.1", "content-length: 3", body=b"abc") == 200
        assert REACHED[-1] == f"POST {path} HTTP/1.1 None 127.0.0.1"
        assert path not in log.read_text()
    assert is_healthy(f"http://127.0.0.1:{port}/health")


@needs_haproxy
@pytest.mark.parametrize(
    "request_line",
    [
        "POST /v1/control/list-runs HTTP/1.1",
        "POST /v1/runtime/acquire-task HTTP/1.1",
        "GET /docs HTTP/1.1",
        "POST //v1/control/list-runs HTTP/1.1",
        "POST /v1%2fcontrol/list-runs HTTP/1.1",  # Flower takes it for the path with a slash
        "POST /v1/%63ontrol/list-runs HTTP/1.1",
        "POST /v1/fleet/../control/list-runs HTTP/1.1",
        "POST /v1/fleet/%2e%2e/control/list-runs HTTP/1.1",
        f"POST {PULL}/../../control/list-runs HTTP/1.1",
        f"POST {PULL}%00/v1/control/list-runs HTTP/1.1",
        f"POST /v1/control/list-runs?{PULL} HTTP/1.1",
        "POST /V1/control/list-runs HTTP/1.1",
        "POST http://proxy/v1/control/list-runs HTTP/1.1",
        f"POST http://proxy{PULL} HTTP/1.1",
        f"POST {PULL}/ HTTP/1.1",
        f"POST {PULL}?x=1 HTTP/1.1",
        f"POST {PULL.upper()} HTTP/1.1",
        "POST /v1/fleet//pull-messages HTTP/1.1",
        f"GET {PULL} HTTP/1.1",
        f"PUT {PULL} HTTP/1.1",
        "POST /health HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "CONNECT superlink:8000 HTTP/1.1",
        "PRI * HTTP/2.0",
    ],
)
def test_everything_else_is_refused_and_the_log_says_so(port: int, log: Path, request_line: str) -> None:
    before = len(REACHED), len(log.read_text().splitlines())
    assert ask(port, request_line, "content-length: 0") in (400, 403)
    assert len(REACHED) == before[0]
    wait_until(lambda: len(log.read_text().splitlines()) > before[1], timeout=5.0, what=log.read_text)


@needs_haproxy
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (["content-length: 67108865"], 413),
        ([], 400),
        (["transfer-encoding: chunked"], 400),
        (["transfer-encoding: chunked", "content-length: 3"], 400),  # two servers might read two lengths
        (["content-length: 3", "content-length: 4"], 400),
        (["content-length: 0", f"x: {'a' * 16_000}"], 400),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_request_without_a_limit_is_refused(port: int, headers: list[str], status: int) -> None:
    before = len(REACHED)
    assert ask(port, f"POST {PULL} HTTP/1.1", *headers) == status
    assert len(REACHED) == before


@needs_haproxy
def test_a_change_of_protocol_is_not_asked_for(port: int) -> None:
    headers = ["content-length: 0", "upgrade: websocket", "x-forwarded-for: 192.0.2.1"]
    assert ask(port, f"POST {PULL} HTTP/1.1", *headers) == 200
    assert REACHED[-1] == f"POST {PULL} HTTP/1.1 None 127.0.0.1"


@needs_haproxy
def test_tls_is_checked_on_both_sides(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        make_deployment(tmp_path / name, num_nodes=1)
    keys, others = (tmp_path / name / "keys" for name in ("ours", "theirs"))
    for superlinks, is_ours in ((keys / "superlink", True), (others / "superlink", False), (keys / "proxy", False)):
        with (
            superlink(superlinks) as address,
            proxy(tmp_path / "log", KEYS=str(keys / "proxy"), SUPERLINK=address) as port,
        ):
            assert is_healthy(f"https://localhost:{port}/health", str(keys / "ca" / "ca.crt")) is is_ours
            assert not is_healthy(f"https://localhost:{port}/health", str(others / "ca" / "ca.crt"))
            assert not is_healthy(f"http://localhost:{port}/health")
