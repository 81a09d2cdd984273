"""``python healthy.py URL [CA]``: exit with 0 if a server of Flower answers. For health checks of containers.

https://HOST:PORT/PATH is checked with the certificate authority in the file CA; grpc://HOST:PORT asks Flower's gRPC
health server, the only sign of life of a SuperExec.
"""

from __future__ import annotations

import ssl
import sys
import urllib.request

TIMEOUT = 5.0


def is_healthy(url: str, ca: str | None = None) -> bool:
    """Return whether a server says that it is well; any error on the way there says that it is not."""
    try:
        if url.startswith("grpc://"):
            return _grpc_is_serving(url.removeprefix("grpc://"))
        context = ssl.create_default_context(cafile=ca) if url.startswith("https:") else None
        with urllib.request.urlopen(url, timeout=TIMEOUT, context=context) as response:
            return bool(response.status == 200)
    except Exception as error:
        print(error, file=sys.stderr)  # `docker inspect` shows it
        return False


def _grpc_is_serving(address: str) -> bool:
    import grpc
    from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
    from grpc_health.v1.health_pb2_grpc import HealthStub

    with grpc.insecure_channel(address) as channel:
        response = HealthStub(channel).Check(HealthCheckRequest(), timeout=TIMEOUT)
    return bool(response.status == HealthCheckResponse.SERVING)


if __name__ == "__main__":
    sys.exit(0 if is_healthy(*sys.argv[1:3]) else 1)
