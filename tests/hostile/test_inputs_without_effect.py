"""Inputs that yield nothing, at every stream that is translated and every parser of a library: records without bytes,
frames without effect, lines without a request. Whoever sends them without end leaves a stranger at the same door alone,
and no process is replaced."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.doors.liftbridge_wire import frame as http2_frame
from tests.doors.liftbridge_wire import opened
from tests.doors.quic_server import connected as over_quic
from tests.hostile.matrix.door import ATTACKER, connected
from tests.hostile.matrix.doors import client_of
from tests.hostile.matrix.grpc import OPENING
from tests.hostile.matrix.https import trusting_anything
from tests.hostile.matrix.target import OTHER, MatrixServer, Target
from tests.hostile.quic_inputs import QUIC_INPUTS, Datagrams
from tests.support import websocket, wire
from tests.support.tls_records import APPLICATION_DATA, Records, shake_hands
from tests.support.websocket import BINARY, CONTINUATION, PING, PONG
from tests.support.wide import crossed, wide_but

COUNT: Final = 60_000  # of what has to be sealed
VOLUME_BYTES: Final = 4 << 20  # of the rest
ROUNDS_MIN: Final = 10
TAKEN_AT_ONCE: Final = 1 << 16
FLOOD_S: Final = 1.5  # where the server takes longer than this, it has been shown enough
QUIC_AT_ONCE: Final = 50  # datagrams: the kernel keeps some 90 of them
QUIC_PAUSE_S: Final = 0.02
_DATA, _PRIORITY, _SETTINGS, _PING_FRAME, _WINDOW_UPDATE = 0, 2, 4, 6, 8
_CHUNKED: Final = b"POST /users/login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
QUIC_SHORT: Final = (
    "quic: updates of keys",
    "quic: challenges of paths",
    "quic: empty frames of a stream",
    "quic: pings",
)
_PUBLISH: Final = "/proto.API/PublishAsync"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MatrixServer]:
    doors = ["wss", "http", "metrics", "quic", "grpc", "nats"]
    with MatrixServer(tmp_path_factory.mktemp("n") / "data", doors) as server:
        yield server


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MatrixServer]:
    with MatrixServer(tmp_path_factory.mktemp("o") / "data", ["https"]) as server:
        yield server


class Flood(threading.Thread):
    """All of it is made before. It ends when the server has ended the connection: then it has looked at everything,
    or has given it up."""

    def __init__(self, peer: socket.socket, data: bytes) -> None:
        super().__init__(daemon=True)
        self._peer, self._data = peer, memoryview(data)
        self.taken = 0  # bytes
        peer.settimeout(60.0)

    def run(self) -> None:
        answers = threading.Thread(target=self._take_answers, daemon=True)
        answers.start()
        with self._peer:
            with contextlib.suppress(OSError):
                while self.taken < len(self._data):
                    self.taken += self._peer.send(self._data[self.taken : self.taken + TAKEN_AT_ONCE])
                self._peer.shutdown(socket.SHUT_WR)
            answers.join()

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)

    def _take_answers(self) -> None:
        with contextlib.suppress(OSError):
            while self._peer.recv(1 << 16):
                pass


def beside(server: MatrixServer, door: str, flood: Flood | QuicFlood) -> None:
    served = server.served()
    stranger = client_of(door, server.target)
    flood.start()
    rounds, until_s = 0, time.monotonic() + FLOOD_S
    while (flood.is_alive() and time.monotonic() < until_s) or rounds < ROUNDS_MIN:
        stranger.ask()  # always the same connection: it does not outlive a process
        rounds += 1
    flood.end()
    flood.join()
    stranger.close()
    assert flood.taken > 0, "the server took nothing of it"
    assert server.served() == served
    assert "gives no sign of life" not in server.log()


# ---- TLS ----


def updates_of_keys(records: Records) -> bytes:
    return b"".join(records.update_of_keys() for _ in range(COUNT))


def empty_records(records: Records) -> bytes:
    return b"".join(records.seal(APPLICATION_DATA, b"") for _ in range(COUNT))


def sealed_pings(records: Records) -> bytes:
    return b"".join(records.seal(APPLICATION_DATA, websocket.frame(PING)) for _ in range(COUNT))


RECORDS: Final = {"updates of keys": updates_of_keys, "empty records": empty_records}
HALVES: Final = {
    "tls": wire.frame(wire.LOGIN_USER, bytes(60))[:20],
    "wss": websocket.request(),
    "https": _CHUNKED,
}


def over_tls(target: Target, door: str, made: Callable[[Records], bytes], key_log: Path) -> Flood:
    peer = connected(target.addresses[door], timeout_s=60.0)
    records = shake_hands(peer, trusting_anything(), key_log)
    return Flood(peer, records.seal(APPLICATION_DATA, HALVES[door]) + made(records))


@pytest.mark.parametrize(("door", "made"), crossed(["tls", "wss"], RECORDS.values()))
def test_records_without_bytes_leave_others_alone(
    plain: MatrixServer, tmp_path: Path, door: str, made: Callable[[Records], bytes]
) -> None:
    beside(plain, door, over_tls(plain.target, door, made, tmp_path / "keys"))


def test_pings_in_records_of_their_own_leave_others_alone(plain: MatrixServer, tmp_path: Path) -> None:
    beside(plain, "wss", over_tls(plain.target, "wss", sealed_pings, tmp_path / "keys"))


@pytest.mark.parametrize("made", RECORDS.values(), ids=RECORDS.keys())
def test_records_without_bytes_leave_others_of_https_alone(
    secure: MatrixServer, tmp_path: Path, made: Callable[[Records], bytes]
) -> None:
    beside(secure, "https", over_tls(secure.target, "https", made, tmp_path / "keys"))


# ---- streams in clear ----


def many(each: bytes) -> bytes:
    return each * (VOLUME_BYTES // len(each))


def fragments(*, first: bytes = b"") -> bytes:
    """One message that never ends."""
    begun = websocket.frame(BINARY, first, final=False)
    return websocket.request() + begun + many(websocket.frame(CONTINUATION, final=False))


def call_without_end(each: bytes) -> bytes:
    """A call whose request never comes, and frames beside it."""
    return OPENING + opened(_PUBLISH, 1) + many(each)


INPUTS: Final[dict[str, tuple[str, Callable[[Target], bytes]]]] = {
    "websocket: empty fragments": ("websocket", lambda _: fragments()),
    "websocket: empty fragments behind a half frame": ("websocket", lambda _: fragments(first=HALVES["tls"])),
    "websocket: pings": ("websocket", lambda _: websocket.request() + many(websocket.frame(PING))),
    "websocket: pongs": ("websocket", lambda _: websocket.request() + many(websocket.frame(PONG))),
    "websocket: empty messages": ("websocket", lambda _: websocket.request() + many(websocket.frame(BINARY))),
    "http/1: lines without a request": ("http", lambda _: many(b"\r\n")),
    "http/1: extensions of chunks": ("http", lambda _: _CHUNKED + many(b"1;a=b;c=d\r\n{\r\n")),
    "http/1: fields behind a body": ("http", lambda _: _CHUNKED + b"0\r\n" + many(b"X: y\r\n")),
    "metrics: lines without a request": ("metrics", lambda _: many(b"\r\n")),
    "metrics: extensions of chunks": (
        "metrics",
        lambda _: _CHUNKED.replace(b"/users/login", b"/metrics") + many(b"1;a=b;c=d\r\n{\r\n"),
    ),
    "http/2: settings": ("grpc", lambda _: call_without_end(http2_frame(_SETTINGS, 0, 0, b""))),
    "http/2: pings": ("grpc", lambda _: call_without_end(http2_frame(_PING_FRAME, 0, 0, bytes(8)))),
    "http/2: acknowledged pings": ("grpc", lambda _: call_without_end(http2_frame(_PING_FRAME, 1, 0, bytes(8)))),
    "http/2: priorities": ("grpc", lambda _: call_without_end(http2_frame(_PRIORITY, 0, 1, bytes(5)))),
    "http/2: windows": ("grpc", lambda _: call_without_end(http2_frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)))),
    "http/2: data without bytes": ("grpc", lambda _: call_without_end(http2_frame(_DATA, 0, 1, b""))),
    "http/2: unknown frames": ("grpc", lambda _: call_without_end(http2_frame(0xEE, 0, 1, b""))),
    "grpc: messages without bytes": (
        "grpc",
        lambda target: (
            OPENING
            + opened(_PUBLISH, 1, [("authorization", f"Bearer {target.tokens[OTHER]}")])
            + http2_frame(_DATA, 0, 1, bytes(5)) * (COUNT // 10)
        ),
    ),
    "nats: empty lines": ("nats", lambda _: many(b"\r\n")),
    "nats: pongs": ("nats", lambda _: many(b"PONG\r\n")),
    "nats: pongs of a user": (
        "nats",
        lambda target: b'CONNECT {"auth_token":"%b"}\r\n' % target.tokens[OTHER].encode() + many(b"PONG\r\n"),
    ),
    "nats: ends of subscriptions that are not there": ("nats", lambda _: many(b"UNSUB 1\r\n")),
}


@pytest.mark.parametrize("name", INPUTS)
def test_input_without_effect_leaves_others_alone(plain: MatrixServer, name: str) -> None:
    door, made = INPUTS[name]
    address = plain.target.addresses["wss" if door == "websocket" else door]
    beside(plain, "wss" if door == "websocket" else door, Flood(connected(address), made(plain.target)))


# ---- QUIC ----


class QuicFlood(threading.Thread):
    """Datagrams of one connection that is logged in. It ends when the server has ended that, or has all of them."""

    def __init__(self, target: Target, made: Datagrams) -> None:
        super().__init__(daemon=True)
        self._target, self._made = target, made
        self._ending = False
        self.taken = 0  # datagrams

    def end(self) -> None:
        self._ending = True

    def run(self) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            asyncio.run(self._flood())

    async def _flood(self) -> None:
        address = wire.host_and_port(self._target.addresses["quic"])
        async with over_quic(address, ATTACKER) as client:
            await client.done(wire.LOGIN_WITH_TOKEN, wire.str8(self._target.tokens[OTHER]))
            assert client._transport is not None
            for each in self._made(client):
                if self._ending or client.closed_with is not None:
                    return
                client._transport.sendto(each, address)
                self.taken += 1
                await asyncio.sleep(QUIC_PAUSE_S if self.taken % QUIC_AT_ONCE == 0 else 0)


@pytest.mark.parametrize("name", wide_but(QUIC_SHORT, QUIC_INPUTS))
def test_datagrams_without_effect_leave_others_alone(plain: MatrixServer, name: str) -> None:
    beside(plain, "quic", QuicFlood(plain.target, QUIC_INPUTS[name]))


# ---- the lists have all that reads what clients send ----


ROOT: Final = Path(__file__).parents[2]
READERS: Final = {
    "native/src/net/stream_tls.c": ("tls", "wss"),
    "native/src/net/stream_websocket.c": ("websocket: ",),
    "shardd/doors/asgi.py": ("http/1: ", "metrics: ", "https"),
    "shardd/doors/liftbridge/nats/connection.py": ("nats: ",),
    "shardd/doors/liftbridge/serving.py": ("http/2: ", "grpc: "),
    "shardd/doors/offers.py": ("http/1: ", "metrics: ", "https"),
    "shardd/doors/openings.py": ("https",),
    "shardd/doors/quic/connection.py": ("quic: ",),
    "shardd/doors/quic/flow.py": ("quic: ",),
    "shardd/doors/quic/listener.py": ("quic: ",),
}
"""Streams that translate and parsers of libraries, with the inputs that are theirs."""
NOT_OF_CLIENTS: Final = {
    "native/src/net/stream_socket.c": "it translates nothing",
    "shardd/client/link.py": "a client; answers of its server",
    "shardd/doors/introductions.py": "one header of a trusted proxy: doors/test_http_introductions.py",
    "shardd/doors/links.py": "answers of workers",
    "shardd/dispatch/door/connection.py": "frames of doors: doors/test_captured_door.py",
}
_READS: Final = re.compile(
    r"^    (?:async )?def (?:data_received|buffer_updated|datagram_received)\(|grpc\.aio\.server\("
    r"|\((?:QuicConnection|QuicConnectionProtocol|_Tls|HttpToolsProtocol)\)",
    re.MULTILINE,
)
_STREAMS: Final = re.compile(r"\bstream_calls calls = \{")


def readers(root: Path) -> set[str]:
    """Files that read bytes of somebody outside by a stream of the engine, a protocol of asyncio or a library."""
    paths = [(path, _STREAMS) for path in (root / "native/src").rglob("*.c")]
    paths += [(path, _READS) for path in (root / "shardd").rglob("*.py")]
    return {str(path.relative_to(root)) for path, what in paths if what.search(path.read_text())}


def test_each_reader_of_clients_has_inputs_without_effect() -> None:
    found = readers(ROOT)
    assert found == READERS.keys() | NOT_OF_CLIENTS.keys()
    names = [*INPUTS, *QUIC_INPUTS, *HALVES]
    for reader, beginnings in READERS.items():
        for each in beginnings:
            assert any(name.startswith(each) for name in names), (reader, each)


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("native/src/net/stream_new.c", "static const stream_calls calls = {.receive_provided = f};\n"),
        (
            "shardd/doors/new.py",
            "class New(asyncio.Protocol):\n    def data_received(self, data: bytes) -> None: ...\n",
        ),
        ("shardd/doors/new.py", "class New(QuicConnectionProtocol): ...\n"),
        ("shardd/doors/new.py", "server = grpc.aio.server(options=[])\n"),
    ],
)
def test_a_new_reader_is_found(tmp_path: Path, place: str, source: str) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert readers(tmp_path) == {place}
