"""Who a client is, by its own node config or by the simulation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.questions import check_name


def client_id(node_config: Mapping[str, Any]) -> str:
    """Return this client's stable name: ``client-id`` of the node config, or one by partition.

    Raises ValueError if the node config has neither ``client-id`` nor ``partition-id``, or the name is not one to 100
    printable characters.
    """
    if "client-id" in node_config:
        return checked_name("client-id", node_config["client-id"])
    return default_name(partition_of(node_config))


def default_name(partition: int) -> str:
    """Return what a client is called that has no other name than its place in the population."""
    return f"client-{partition:05d}"


def partition_of(node_config: Mapping[str, Any]) -> int:
    """Return which part of a simulated population a client is; raises ValueError if its node config does not say."""
    if "partition-id" not in node_config:
        raise ValueError(
            "the node config must have the key 'partition-id', got none; "
            'start the SuperNode with --node-config "partition-id=0 num-partitions=...", or with a client-id and data'
        )
    return int(node_config["partition-id"])


def checked_name(key: str, value: object) -> str:
    """Return a name that the node config has under a key; raises ValueError if it may not be one."""
    check_name(f"the node config's {key!r}", str(value))
    return str(value)
