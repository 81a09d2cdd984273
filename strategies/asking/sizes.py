"""How much of a reply is fetched: Flower's grid asks for every object of every reply, whatever their sizes.

flwr 1.41 says no size before the object itself. What it does have is the list of a reply's objects, and HTTP's length
of each before its body; so both are looked at as they come (hooks of httpx), and a reply that is too much is an error
of that client alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from flwr.proto.message_pb2 import PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

# An honest reply is a message, its content and one record. An error's text is part of the message; 256 KiB hold any.
MAX_OBJECTS = 8
ROOM = 2**18


@contextmanager
def small_replies(grid: Grid, *, max_bytes: int) -> Iterator[None]:
    """While this lasts, what a grid pulls of a reply is at most `MAX_OBJECTS` objects of `ROOM` + 2 `max_bytes` each.

    The grid then gives an error reply (Flower's code for a message that is unavailable) instead. A number may take more
    bytes on the way than in memory, but not twice as many. Grids without a network are left as they are.
    """
    client = getattr(getattr(grid, "_runtime_client", None), "_client", None)
    if not isinstance(client, httpx.Client):
        yield
        return
    limit, crowded = ROOM + 2 * max_bytes, set[str]()

    def look(response: httpx.Response) -> None:
        match response.url.path.rpartition("/")[2]:
            case "pull-messages" if response.is_success:
                trees = PullAppMessagesResponse.FromString(response.read()).message_object_trees
                ids = [[node.object_id for node in iterate_object_tree(tree)] for tree in trees]
                crowded.update(*(each for each in ids if len(each) > MAX_OBJECTS))
                # Ids are hashes of contents: a crowd may hold what it guesses that another client answers.
                crowded.difference_update(*(each for each in ids if len(each) <= MAX_OBJECTS))
            case "pull-object":
                asked = PullObjectRequest.FromString(response.request.content).object_id
                length = int(response.headers.get("content-length", 0))
                if length > limit or asked in crowded:
                    what = f"{length} bytes of at most {limit}, in a reply of at most {MAX_OBJECTS} objects"
                    raise ObjectPullError(asked, f"too large: {what}")

    hooks = client.event_hooks
    client.event_hooks = {**hooks, "response": [*hooks["response"], look]}
    try:
        yield
    finally:
        client.event_hooks = hooks
