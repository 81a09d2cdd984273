"""A Prometheus from the system's packages, on the loopback interface, for as long as a block lasts."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.waiting import wait_until


class _Silent(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        """Say nothing."""


def free_port() -> int:
    """Return a port of the loopback interface that nobody has."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def served(folder: Path) -> Iterator[int]:
    """Serve the files of a folder, as node_exporter serves those of its textfile collector; yields the port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Silent, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server.server_port
        server.shutdown()


@contextmanager
def prometheus(folder: Path, targets: Mapping[str, int]) -> Iterator[str]:
    """Read each second what is at the paths of these ports, and keep it in the folder; yields the address."""
    jobs = [
        {"job_name": path, "metrics_path": path, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        for path, port in targets.items()
    ]
    settings = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
    (folder / "prometheus.json").write_text(json.dumps(settings))  # YAML too
    address = f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={folder}/prometheus.json", f"--storage.tsdb.path={folder}/data"]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)
    try:
        wait_until(lambda: "ready to receive" in (folder / "prometheus.log").read_text(), timeout=60)
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(20)


def asked(address: str, expression: str, **window: float) -> list[dict[str, Any]]:
    """Return the series that Prometheus has for an expression: now, or from `start` to `end` in steps of `step`."""
    kind = "query_range" if window else "query"
    fields = urllib.parse.urlencode({"query": expression, **window})
    with urllib.request.urlopen(f"{address}/api/v1/{kind}?{fields}", timeout=20) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found
