"""A stream that a user has no right to looks like a stream that does not exist, to whatever is said over NATS."""

from __future__ import annotations

import contextlib
import socket
import tomllib
from typing import Any, Final

import msgspec
import pytest
from immutables import Map

from shardd.protocol.liftbridge import api_messages
from shardd.protocol.liftbridge.envelope import encode_publish
from shardd.protocol.nats import HEADERS_MAX
from shardd.protocol.permissions import Permissions, StreamPermissions, TopicPermissions
from tests.doors.liftbridge_server import ROOT, WAIT_S, LiftbridgeServer
from tests.support import wire
from tests.support.serving import Serving

HIDDEN: Final = ("hidden", "paused", "readonly", "checked")
MISSING: Final = "missing"
NAME: Final = b"STREAM"
SHARED: Final = "shared.subject"  # of two streams: the owner may send to one of them
NAMESPACE: Final = "liftbridge-default"
QUIET_S: Final = 0.5
INBOX: Final = "_INBOX.mine"
HEADERS: Final = b"NATS/1.0\r\n" + b"a: b\r\n" * (HEADERS_MAX + 1) + b"\r\n"
MESSAGE_BYTES_MAX: Final = 1 << 20
SETTINGS: Final = {
    "SHARDD_LIFTBRIDGE_NATS_SERVER_ENABLED": "true",
    "SHARDD_LIFTBRIDGE_NATS_SERVER_ADDRESS": "127.0.0.1:0",
    "SHARDD_LIFTBRIDGE_NATS_SERVER_MAX_PAYLOAD": "4 MiB",
    "SHARDD_LIFTBRIDGE_MAX_MESSAGE_SIZE": "1 MiB",
}


def fill(server: LiftbridgeServer) -> None:
    with server.client(ROOT) as root:
        for name in HIDDEN:
            checked: dict[str, Any] = {"optimisticConcurrencyControl": {"value": True}} if name == "checked" else {}
            root.create(name, 2, **checked)
        root.call("SetStreamReadonly", name="readonly", readonly=True)
        root.call("PauseStream", name="paused", resumeAll=False)
        root.create("own", subject=SHARED)
        root.create("beside", subject=SHARED)
    server.create_user("rightless", Permissions())
    server.create_user("sender", Permissions(send_messages=True))
    server.create_user("owner", may_send_to(server, "own"))


SERVER: Final = Serving(LiftbridgeServer, SETTINGS, fill=fill)


def may_send_to(server: LiftbridgeServer, stream: str) -> Permissions:
    def number(code: int, *names: str) -> int:
        return int.from_bytes(tcp.request(code, b"".join(map(wire.identifier, names)))[:4], "little")

    with wire.connect(server.address) as tcp:
        topics = Map({number(wire.GET_TOPIC, NAMESPACE, stream): TopicPermissions(send_messages=True)})
        return Permissions(streams=Map({number(wire.GET_STREAM, NAMESPACE): StreamPermissions(topics=topics)}))


class Nats:
    """A connection whose user has logged in and hears its inboxes."""

    def __init__(self, server: LiftbridgeServer, name: str) -> None:
        address = tomllib.loads(server.runtime_config.read_text())["liftbridge"]["nats_server"]["address"]
        host, _, port = address.rpartition(":")
        self._peer = socket.create_connection((host, int(port)), WAIT_S)
        shown = {"user": name, "pass": "secret", "headers": True, "verbose": True}
        self._peer.sendall(b"CONNECT %b\r\nSUB _INBOX.> 1\r\n" % msgspec.json.encode(shown))

    def answers(self, said: bytes = b"", *, until: bytes = b"PONG\r\n") -> bytes:
        """All that comes, without INFO: until that has come, or an error, and nothing more for a while."""
        self._peer.settimeout(WAIT_S)
        self._peer.sendall(said + b"PING\r\n")
        heard = b""
        while until not in heard and not heard.endswith(b"'\r\n") and (more := self._peer.recv(1 << 16)):
            heard += more
        self._peer.settimeout(QUIET_S)
        with contextlib.suppress(TimeoutError):
            while more := self._peer.recv(1 << 16):
                heard += more
        return b"".join(each for each in heard.splitlines(keepends=True) if not each.startswith(b"INFO"))

    def close(self) -> None:
        self._peer.close()


def published(payload: bytes, headers: bytes = b"", reply: bytes = b"") -> bytes:
    where = NAME + b" " + (reply + b" " if reply else b"")
    if not headers:
        return b"PUB %b%d\r\n%b\r\n" % (where, len(payload), payload)
    return b"HPUB %b%d %d\r\n%b%b\r\n" % (where, len(headers), len(headers) + len(payload), headers, payload)


def envelope(value: bytes = b"x", **more: Any) -> bytes:
    return encode_publish(api_messages.Message(value=value, ackInbox=INBOX, **more))


QUESTIONS: Final = {
    "plain": published(b"x"),
    "with a reply": published(b"x", reply=INBOX.encode()),
    "acked by the leader": published(envelope()),
    "acked by all": published(envelope(ackPolicy=1)),
    "with an expected offset": published(envelope(offset=7)),
    "too large": published(envelope(bytes(MESSAGE_BYTES_MAX + 1))),
    "too many headers": published(envelope(), HEADERS),
    "heard": b"SUB STREAM 2\r\n",
}


REFUSED_BY_THE_DOOR: Final = ("too large", "too many headers")


@pytest.mark.parametrize("question", [pytest.param(said, id=name) for name, said in QUESTIONS.items()])
def test_hidden_stream_is_told_of_over_nats_answer_is_that_of_a_missing_one(
    server: LiftbridgeServer, question: bytes
) -> None:
    heard = {}
    for stream in (*HIDDEN, MISSING):
        nats = Nats(server, "rightless")
        with contextlib.closing(nats):
            heard[stream] = nats.answers(question.replace(NAME, stream.encode()))
    assert heard == dict.fromkeys(heard, heard[MISSING])


def test_sender_with_the_right_hears_of_the_stream(server: LiftbridgeServer) -> None:
    """The control: what a rightless user must not hear is said to this one."""
    for name in ("acked by the leader", *REFUSED_BY_THE_DOOR):
        nats = Nats(server, "sender")
        with contextlib.closing(nats):
            assert b"hidden" in nats.answers(QUESTIONS[name].replace(NAME, b"hidden"), until=b"hidden"), name


def test_refused_publish_over_grpc_sends_no_ack_that_names_a_hidden_stream(server: LiftbridgeServer) -> None:
    heard = {}
    for stream in (*HIDDEN, MISSING):
        nats = Nats(server, "rightless")
        with contextlib.closing(nats), server.logged_in("rightless") as client:
            nats.answers()
            assert client.status("Publish", stream=stream, value=b"x", ackInbox=INBOX)[0] == "PERMISSION_DENIED"
            heard[stream] = nats.answers()
    assert heard == dict.fromkeys(heard, heard[MISSING])


@pytest.mark.parametrize(("user", "names_both"), [("owner", False), ("sender", True)])
def test_acks_of_streams_on_one_subject_come_from_those_that_the_publisher_may_send_to(
    server: LiftbridgeServer, user: str, names_both: bool
) -> None:
    nats = Nats(server, user)
    with contextlib.closing(nats), server.logged_in(user) as client:
        nats.answers()
        client.publish("own", b"x", ackInbox=INBOX)
        heard = nats.answers(until=b"beside" if names_both else b"own")
        assert b"own" in heard and (b"beside" in heard) is names_both
