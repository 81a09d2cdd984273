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
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE as MAX_PIECE
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from deploy.healthy import is_healthy
from deploy.make_keys import make_deployment
from simulations.launcher import free_port
from tests.deployment import compose
from tests.waiting import wait_until

needs_haproxy = pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed")
CONFIG = compose.ROOT / "deploy" / "proxy.cfg"
PULL = "/v1/fleet/pull-messages"
REACHED: list[str] = []
BEGUN: list[str] = []  # requests whose headers have come
PUSH, MESSAGES = "/v1/fleet/push-object", "/v1/fleet/push-messages"
SIGNED = ("flwr-public-key: a", "flwr-timestamp: b", "flwr-signature: c")


class _Server(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        BEGUN.append(self.path)
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
        wait_until(listens, timeout=60.0, what=log.read_text)
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
    allowed = "".join(line for line in CONFIG.read_text().splitlines(keepends=True) if "acl is_fleet" in line)
    assert sorted(re.findall(r"/v1/\S+", allowed)) == sorted(paths_of_flower())


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
    wait_until(lambda: len(log.read_text().splitlines()) > before[1], timeout=60.0, what=log.read_text)


@needs_haproxy
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (["content-length: 65537"], 413),
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
@pytest.mark.parametrize(
    ("path", "limit"),
    [(path, {PUSH: 8 * 2**20, MESSAGES: 2**18}.get(path, 2**16)) for path in (PUSH, MESSAGES, PULL)],
)
def test_a_body_has_a_limit_that_is_its_calls(port: int, path: str, limit: int) -> None:
    before = len(BEGUN)
    assert ask(port, f"POST {path} HTTP/1.1", f"content-length: {limit + 1}") == 413
    assert len(BEGUN) == before
    assert ask(port, f"POST {path} HTTP/1.1", f"content-length: {limit}", body=bytes(limit)) == 200


def test_what_honest_nodes_send_is_within_the_limits() -> None:
    """A piece of a model as Flower cuts it, and the list of all pieces of a network with 500 tensors."""
    assert PushObjectRequest(object_id="a" * 64, object_content=bytes(MAX_PIECE)).ByteSize() < 6 * 2**20
    tensors = {f"layer{k}.weight": Array(np.full(2, k, np.float32)) for k in range(500)}
    tree = get_object_tree(RecordDict({"weights": ArrayRecord(tensors)}))
    assert 2**16 < PushMessagesRequest(message_object_trees=[tree]).ByteSize() < 2**17


@needs_haproxy
def test_a_body_that_does_not_end_is_cut_however_often_a_byte_comes(tmp_path: Path) -> None:
    """Without a deadline for the whole each byte would put off the end: 60 s more."""
    with (
        superlink() as address,
        proxy(tmp_path / "log", INSECURE="yes", SUPERLINK=address, BODY_TIMEOUT="300ms") as port,
    ):
        for path in (PUSH, PULL):
            with socket.create_connection(("127.0.0.1", port), 10) as connection:
                connection.sendall(f"POST {path} HTTP/1.1\r\nhost: p\r\ncontent-length: 60000\r\n\r\n".encode())
                connection.settimeout(0.02)
                for _ in range(1000):
                    with suppress(TimeoutError):
                        answer = connection.recv(100)
                        break
                    connection.sendall(b"a")
                assert answer.startswith(b"HTTP/1.1 504")


@needs_haproxy
def test_few_large_bodies_are_with_the_superlink_at_a_time_and_small_ones_pass_by(tmp_path: Path) -> None:
    with (
        superlink() as address,
        proxy(tmp_path / "log", INSECURE="yes", SUPERLINK=address) as port,
        ExitStack() as held,
    ):
        BEGUN.clear()
        connections = [held.enter_context(socket.create_connection(("127.0.0.1", port), 10)) for _ in range(20)]
        for connection in connections:
            connection.sendall(f"POST {PUSH} HTTP/1.1\r\nhost: p\r\ncontent-length: 3\r\n\r\nab".encode())
        wait_until(lambda: BEGUN.count(PUSH) == 16, timeout=60.0, what=(tmp_path / "log").read_text)
        assert ask(port, f"POST {PULL} HTTP/1.1", "content-length: 3", body=b"abc") == 200
        assert BEGUN.count(PUSH) == 16
        for connection in connections:
            connection.sendall(b"c")
        assert [connection.recv(12) for connection in connections] == [b"HTTP/1.0 200"] * 20


@needs_haproxy
def test_one_address_holds_so_many_connections_and_no_more(tmp_path: Path) -> None:
    kept: list[socket.socket] = []

    def is_let_in() -> bool:
        """Whether one more connection is; then it is kept."""
        connection = socket.socket()
        with suppress(ConnectionError):
            connection.connect(("127.0.0.1", port))
            connection.sendall(f"POST {PULL} HTTP/1.1\r\nhost: p\r\ncontent-length: 0\r\n\r\n".encode())
            if connection.recv(12) == b"HTTP/1.0 200":
                kept.append(connection)
                return True
        connection.close()
        return False

    settings = {"INSECURE": "yes", "PER_ADDRESS": "5"}
    with superlink() as address, proxy(tmp_path / "log", SUPERLINK=address, **settings) as port:
        for _ in range(5):  # as soon as that which has looked whether the proxy listens is gone
            wait_until(is_let_in, timeout=60.0)
        assert not is_let_in()
        kept.pop().close()
        wait_until(is_let_in, timeout=60.0)
        assert not is_let_in()
        for connection in kept:
            connection.close()


@needs_haproxy
def test_a_request_without_a_signature_does_not_reach_the_superlink(tmp_path: Path) -> None:
    """And one that Flower's own client has signed does, with the largest piece of a model."""
    make_deployment(tmp_path, num_nodes=1)
    keys = tmp_path / "keys"
    settings = {"KEYS": str(keys / "proxy")}
    context = ssl.create_default_context(cafile=str(keys / "ca" / "ca.crt"))

    def status(*headers: str) -> int:
        with (
            socket.create_connection(("127.0.0.1", port), 10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            lines = [f"POST {PUSH} HTTP/1.1", "host: p", "content-length: 3", *headers, "", "abc"]
            connection.sendall("\r\n".join(lines).encode())
            return int(connection.makefile("rb").readline().split()[1])

    with superlink(keys / "superlink") as address, proxy(tmp_path / "log", SUPERLINK=address, **settings) as port:
        BEGUN.clear()
        for left_out in range(3):
            assert status(*SIGNED[:left_out], *SIGNED[left_out + 1 :]) == 401
            assert status(*SIGNED[:left_out], SIGNED[left_out].partition(":")[0] + ":", *SIGNED[left_out + 1 :]) == 401
        assert BEGUN == []
        assert status(*SIGNED) == 200
        key = ec.generate_private_key(ec.SECP384R1())
        node = FleetHttpClient.from_server_address(
            f"localhost:{port}",
            insecure=False,
            root_certificates=(keys / "ca" / "ca.crt").read_bytes(),
            interceptors=[NodeAuthHttpInterceptor(key, key.public_key())],
        )
        node.PushObject(PushObjectRequest(object_id="a" * 64, object_content=bytes(MAX_PIECE)))
        assert BEGUN == [PUSH] * 2


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
