"""Who a client is, by its own node config or by the simulation: its name, its group, and its name on a refusal."""

from __future__ import annotations

from logging import ERROR

from flwr.app import Context, Error, Message, UserConfig
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode
from flwr.common.logger import log

from client.data import EVALUATOR_KEY, data_place
from client.refusals import WithheldError, details_withheld
from protocol import wire
from protocol.hashes import code_hash
from protocol.questions import check_name


def client_id(node_config: UserConfig) -> str:
    """Return this client's stable name: ``client-id`` of the node config, or one by partition.

    Raises ValueError if the node config has neither ``client-id`` nor ``partition-id``, or the name is not one to 100
    printable characters.
    """
    if "client-id" in node_config:
        return _checked_name("client-id", node_config["client-id"])
    return f"client-{partition_of(node_config):05d}"


def client_group(context: Context) -> str | None:
    """Return this client's group: ``group`` of the node config, or that of the simulation; None if there is none.

    A client with data of its own is in no group but its owner's.

    Raises ValueError if the name that the owner gave is not one to 100 printable characters. Its text stays here.
    """
    own = context.node_config.get("group")
    if own is not None:
        return _checked_name("group", own)
    is_evaluated = bool(context.run_config.get(EVALUATOR_KEY))
    if is_evaluated or data_place(context.node_config, context.run_config) is not None:
        return None
    partition = partition_of(context.node_config)
    with details_withheld("finding this client's group"):
        from client import simulated  # here: a client that has data of its own does not load it

        return simulated.group_name(context.run_config, partition=partition)


def _checked_name(key: str, value: object) -> str:
    check_name(f"the node config's {key!r}", str(value))
    return str(value)


def partition_of(node_config: UserConfig) -> int:
    """Return which part of a simulated population a client is; raises ValueError if its node config does not say."""
    if "partition-id" not in node_config:
        raise ValueError(
            "the node config must have the key 'partition-id', got none; "
            'start the SuperNode with --node-config "partition-id=0 num-partitions=...", or with a client-id and data'
        )
    return int(node_config["partition-id"])


def sign_refusals(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Reply to what the ClientApp refuses with the reason and the client's name (a Flower mod).

    It stays an error of Flower, of code 2, as that of any client that raises. The words of our own errors travel; of
    any other exception only its type does: what Flower sends of one that nobody catches is its whole text.
    """
    try:
        return call_next(message, context)
    except Exception as error:
        kind = type(error).__name__
        is_ours = isinstance(error, ValueError | WithheldError)
        text = f"{kind}: {error}" if is_ours else f"{kind}; the details are in this client's own log"
        # Of a plain refusal the words are all there is to know.
        log(ERROR, "No answer: %s", text, exc_info=None if isinstance(error, ValueError) else error)
    refusal = wire.Refusal(_name_if_any(context), code_hash(), text)
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, wire.encode_refusal(refusal)), reply_to=message)


def _name_if_any(context: Context) -> str | None:
    try:
        return client_id(context.node_config)
    except ValueError:  # which may be what is refused
        return None
