"""``python asking.py HOST:PORT CA [NODE_KEY]``: ask all that a SuperLink serves, as somebody who has these files.

Prints as JSON, for each route of Flower's own application, the status of the answer and whether Flower gave it.
"""

from __future__ import annotations

import http.client
import json
import ssl
import sys
from base64 import b64encode
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto import control_pb2
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.superlink.main import create_app
from google.protobuf.message import Message

CONTROL = "/v1/control/"
ALIAS = "/v1%2fcontrol/list-runs"  # Flower takes it for the path with a slash
PROJECT = b"""[project]
name = "unwanted"
version = "1.0.0"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "nobody"
[tool.flwr.app.components]
serverapp = "unwanted:app"
clientapp = "unwanted:app"
"""


def routes() -> set[tuple[str, str]]:
    """Every method and path of Flower's application, those that its list of requests leaves out too."""
    app = create_app()
    found = {(method.upper(), path) for path, methods in app.openapi()["paths"].items() for method in methods}
    return {*found, *PROTOBUF_REQUEST_TYPES, ("GET", "/docs"), ("GET", "/openapi.json"), ("POST", ALIAS)}


class Visitor:
    """Somebody who trusts an authority, and may have a node's key to sign with."""

    def __init__(self, address: str, authority: str, key: str | None = None) -> None:
        self._address = address
        self._context = ssl.create_default_context(cafile=authority)
        self._key = key
        self.answers: dict[str, tuple[int, bool]] = {}

    def ask(self, method: str, path: str, message: Message | None = None) -> bytes:
        connection = http.client.HTTPSConnection(self._address, timeout=20, context=self._context)
        body = b"" if message is None else message.SerializeToString()
        connection.request(method, path, body, {"content-type": PROTOBUF_MEDIA_TYPE, **self._signature()})
        answer = connection.getresponse()
        self.answers[f"{method} {path}"] = (answer.status, answer.getheader("server") == "uvicorn")
        content = answer.read() if answer.status == 200 else b""
        connection.close()
        return content

    def _signature(self) -> dict[str, str]:
        if self._key is None:
            return {}
        key = serialization.load_ssh_private_key(Path(self._key).read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        time = now().isoformat()
        return {
            FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public_key_to_bytes(key.public_key())).decode(),
            TIMESTAMP_HEADER: time,
            FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(key, time.encode())).decode(),
        }


def main(address: str, authority: str, *key: str) -> None:
    visitor = Visitor(address, authority, *key)
    request = control_pb2.RegisterNodeRequest(public_key=public_key_to_bytes(generate_key_pairs()[1]))
    node = control_pb2.RegisterNodeResponse.FromString(visitor.ask("POST", f"{CONTROL}register-node", request))
    visitor.ask("POST", f"{CONTROL}unregister-node", control_pb2.UnregisterNodeRequest(node_id=node.node_id))
    app, _ = build_fab_from_files({"pyproject.toml": PROJECT, "unwanted.py": b"app = None\n"})
    start = control_pb2.StartRunRequest()
    start.fab.content = app
    run = control_pb2.StartRunResponse.FromString(visitor.ask("POST", f"{CONTROL}start-run", start))
    visitor.ask("POST", f"{CONTROL}stop-run", control_pb2.StopRunRequest(run_id=run.run_id))
    visitor.ask("POST", f"{CONTROL}stream-logs", control_pb2.StreamLogsRequest(run_id=run.run_id))
    visitor.ask("POST", f"{CONTROL}pull-artifacts", control_pb2.PullArtifactsRequest(run_id=run.run_id))
    for method, path in sorted(routes()):
        if f"{method} {path}" not in visitor.answers:
            request_type = PROTOBUF_REQUEST_TYPES.get((method, path))
            visitor.ask(method, path, None if request_type is None else request_type())
    print(json.dumps(visitor.answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
