"""A stream that a user has no right to looks like a stream that does not exist, to whatever is said over NATS."""

from __future__ import annotations

import contextlib
import socket
import tomllib
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pytest

from shardd.protocol.liftbridge import api
from shardd.protocol.liftbridge.envelope import encode_publish
from shardd.protocol.nats import HEADERS_MAX
from shardd.protocol.permissions import Permissions
from tests.doors.liftbridge_server import ROOT, WAIT_S, LiftbridgeServer

HIDDEN: Final = ("hidden", "paused", "readonly", "checked")
MISSING: Final = "missing"
NAME: Final = b"STREAM"
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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiftbridgeServer]:
    with LiftbridgeServer(tmp_path_factory.mktemp("nats-hidden") / "data", SETTINGS) as running:
        with running.client(ROOT) as root:
            for name in HIDDEN:
                checked: dict[str, Any] = {"optimisticConcurrencyControl": {"value": True}} if name == "checked" else {}
                root.create(name, 2, **checked)
            root.call("SetStreamReadonly", name="readonly", readonly=True)
            root.call("PauseStream", name="paused", resumeAll=False)
        running.create_user("rightless", Permissions())
        running.create_user("sender", Permissions(send_messages=True))
        yield running


class Nats:
    """A connection whose user has logged in and hears its inboxes."""

    def __init__(self, server: LiftbridgeServer, name: str) -> None:
        address = tomllib.loads(server.runtime_config.read_text())["liftbridge"]["nats_server"]["address"]
        host, _, port = address.rpartition(":")
        self._peer = socket.create_connection((host, int(port)), WAIT_S)
        shown = {"user": name, "pass": "secret", "headers": True, "verbose": True}
        self._peer.sendall(b"CONNECT %b\r\nSUB _INBOX.> 1\r\n" % msgspec.json.encode(shown))

    def answers(self, said: bytes) -> bytes:
        """All that comes of it until nothing has come for a while."""
        self._peer.settimeout(WAIT_S)
        self._peer.sendall(said + b"PING\r\n")
        heard = b""
        while b"PONG\r\n" not in heard and not heard.endswith(b"'\r\n"):
            heard += self._peer.recv(1 << 16)
        self._peer.settimeout(QUIET_S)
        with contextlib.suppress(TimeoutError):
            while more := self._peer.recv(1 << 16):
                heard += more
        return heard.partition(b"\r\n")[2]  # without INFO

    def close(self) -> None:
        self._peer.close()


def published(payload: bytes, headers: bytes = b"", reply: bytes = b"") -> bytes:
    where = NAME + b" " + (reply + b" " if reply else b"")
    if not headers:
        return b"PUB %b%d\r\n%b\r\n" % (where, len(payload), payload)
    return b"HPUB %b%d %d\r\n%b%b\r\n" % (where, len(headers), len(headers) + len(payload), headers, payload)


def envelope(value: bytes = b"x", **more: object) -> bytes:
    return encode_publish(api.message_class("Message")(value=value, ackInbox=INBOX, **more))


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


REFUSED_BEFORE_RIGHTS: Final = ("too large", "too many headers")
NAMES_IT: Final = pytest.mark.xfail(strict=True, reason="the refusal comes before rights, and its ack names the stream")


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(said, id=name, marks=[NAMES_IT] if name in REFUSED_BEFORE_RIGHTS else [])
        for name, said in QUESTIONS.items()
    ],
)
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
    for name in ("acked by the leader", *REFUSED_BEFORE_RIGHTS):
        nats = Nats(server, "sender")
        with contextlib.closing(nats):
            assert b"hidden" in nats.answers(QUESTIONS[name].replace(NAME, b"hidden")), name
