"""A reply that is too large is not fetched: Flower's own grid over HTTP, from a SuperLink's Runtime API of one page."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Metadata, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse, PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import Run
from flwr.superlink.grid import HttpGrid

from strategies.asking.sizes import MAX_OBJECTS, ROOM, small_replies


def reply(content, question):
    """A node's reply to the message of this id."""
    about = {"run_id": 1, "src_node_id": 2, "dst_node_id": 1, "group_id": "1", "created_at": time.time(), "ttl": 60.0}
    metadata = Metadata(message_id="", reply_to_message_id=question, message_type="query.loss", **about)
    what = {"error": content} if isinstance(content, Error) else {"content": content}
    message = make_message(metadata=metadata, **what)
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


@contextmanager
def serving(replies):
    """A grid that finds these replies, and how many bytes of objects it was sent."""
    objects = {key: each.deflate() for message in replies for key, each in get_all_nested_objects(message).items()}
    pulled = PullAppMessagesResponse(
        messages_list=[message_to_proto(remove_content_from_message(message)) for message in replies],
        message_object_trees=[get_object_tree(message) for message in replies],
    )
    sent = []

    class Page(BaseHTTPRequestHandler):
        def do_POST(self):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)  # what is sent is about what is read
            asked = self.rfile.read(int(self.headers["content-length"]))
            answer = ConfirmMessageReceivedResponse()
            if self.path.endswith("pull-messages"):
                answer = pulled
            if self.path.endswith("pull-object"):
                content = objects[PullObjectRequest.FromString(asked).object_id]
                answer = PullObjectResponse(object_found=True, object_available=True, object_content=content)
            body = answer.SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            for start in range(0, len(body), 2**16):
                sent.append(self.wfile.write(body[start : start + 2**16]))

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        server.handle_error = lambda *_: None  # a grid that hangs up is what is looked for
        threading.Thread(target=server.serve_forever, daemon=True).start()
        grid = HttpGrid(f"127.0.0.1:{server.server_port}", insecure=True, root_certificates=None, token="t")
        grid.set_run(Run.create_empty(1))
        yield SimpleNamespace(grid=grid, sent=sent)
        grid.close()
        server.shutdown()


def answer(number_of_bytes):
    return RecordDict({"answer": ConfigRecord({"client-id": b"x" * number_of_bytes})})


HONEST = answer(300)
CROWD = RecordDict({f"{n}": ConfigRecord({"n": n}) for n in range(MAX_OBJECTS)})
TOO_MUCH = {
    "one large object": RecordDict({"arrays": ArrayRecord([np.zeros(5 * 2**20, np.uint8)])}),
    "many small ones": CROWD,
}


@pytest.mark.parametrize("kind", TOO_MUCH)
def test_a_reply_that_is_too_much_is_left_where_it_is(kind):
    with serving([reply(TOO_MUCH[kind], "a"), reply(HONEST, "b")]) as served:
        with small_replies(served.grid, max_bytes=4096):
            refused, honest = served.grid.pull_messages(["a", "b"])
        assert "too large" in refused.error.reason
        assert refused.metadata.reply_to_message_id == "a"
        assert honest.content == HONEST
        assert sum(served.sent) < 2**21
        assert [each.has_error() for each in served.grid.pull_messages(["a", "b"])] == [False, False]  # as Flower does


def test_a_crowd_that_holds_what_another_client_answers_takes_nothing_from_it():
    crowd = RecordDict({**CROWD, **HONEST})
    with serving([reply(crowd, "a"), reply(HONEST, "b")]) as served, small_replies(served.grid, max_bytes=4096):
        refused, honest = served.grid.pull_messages(["a", "b"])
    assert "too large" in refused.error.reason
    assert honest.content == HONEST


def test_what_is_allowed_is_fetched():
    failed = Error(2, "x" * 20_000)
    replies = [reply(answer(ROOM), "a"), reply(failed, "b")]
    with serving(replies) as served, small_replies(served.grid, max_bytes=4096):
        large, error = served.grid.pull_messages(["a", "b"])
    assert large.content == answer(ROOM)
    assert error.error.reason == failed.reason
