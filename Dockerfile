# The image of every service in docker-compose.yml but the proxy: Python, Flower and what the app needs, as an ordinary user.
# The app's sources are there for `certify`, `setup` and `register` (/app); servers and clients run the Flower App Bundle
# that `certify` submits. No key is ever in it.

# Pinned by its tag; docs/deployment.md says how to pin the digest.
ARG BASE=python:3.11.13-slim-bookworm
FROM $BASE AS build
# The CPU build of torch is a tenth of the other.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /build
COPY deploy/requirements.txt ./
# With these hashes pip installs those files and no others. It compiles them, as nobody can write there later; given a date,
# by their content and not by the times of files, which the copy below changes.
RUN python -m venv /opt/venv \
    && SOURCE_DATE_EPOCH=0 /opt/venv/bin/pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" \
        --require-hashes --requirement requirements.txt

# The image of the service `proxy`: HAProxy as Debian maintains it, its configuration and its health check.
FROM $BASE AS proxy
RUN apt-get update && apt-get install -y --no-install-recommends haproxy && rm -rf /var/lib/apt/lists/*
COPY deploy/proxy.cfg deploy/healthy.py /app/deploy/
USER 1000

FROM $BASE
RUN useradd --uid 1000 --create-home app
COPY --from=build /opt/venv /opt/venv
COPY . /app
# Python's own image has its standard library without compiled files.
RUN python -m compileall -q -j 0 --invalidation-mode unchecked-hash /app \
        "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
# The root file system is read-only; what Flower and matplotlib write goes to /tmp. Dependencies are in the image:
# nobody installs any while running. What must outlive the container, as a client's query budget, goes to /state.
ENV PATH=/opt/venv/bin:$PATH \
    HOME=/tmp \
    FLWR_HOME=/tmp/flwr \
    XDG_STATE_HOME=/state \
    MPLCONFIGDIR=/tmp/matplotlib \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 \
    FLWR_DISABLE_UPDATE_CHECK=1 \
    FLWR_TELEMETRY_ENABLED=0
USER app
WORKDIR /home/app
