"""The blocking link: on a real server, and on a peer that cuts, stays silent, or ends the connection unasked."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardd.client import commands, values, wire
from shardd.client.blocking import BlockingLink
from shardd.client.errors import (
    AuthenticationError,
    ConnectionLostError,
    Fate,
    NotFoundError,
    ProtocolError,
    UnavailableError,
)
from shardd.client.settings import Settings
from shardd.client.transport import way_to
from tests.support.server import Server

Script = Callable[[socket.socket], None]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("blocking") / "data") as made:
        yield made


@contextlib.contextmanager
def peer(directory: Path, script: Script) -> Iterator[Settings]:
    """Serves one connection."""

    def serve() -> None:
        accepted, _ = listener.accept()
        with accepted:
            accepted.settimeout(10)
            script(accepted)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "peer"))
        listener.listen()
        listener.settimeout(10)
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Settings(unix_path=str(directory / "peer"))
        thread.join(10)
        assert not thread.is_alive()


def answer(status: int, payload: bytes = b"") -> bytes:
    return struct.pack("<II", status, len(payload)) + payload


def until_closed(connection: socket.socket) -> None:
    with contextlib.suppress(ConnectionError):
        while connection.recv(4096):
            pass


def test_commands_are_answered_and_answers_keep_the_order_of_requests(server: Server) -> None:
    with BlockingLink(way_to(server.address, "iggy", "iggy")) as link:
        assert link.call(commands.topic("none", "t")) is None
        assert link.call(commands.create_stream("s")).name == "s"
        assert isinstance(link.call(commands.create_topic("s", "t", 2)), values.Topic)
        with pytest.raises(NotFoundError) as refused:
            link.call(commands.delete_stream("none"))
        assert refused.value.code == 203
        asked: list[commands.Command[Any]] = [commands.ping(), commands.streams(), commands.topics("s")]
        for each in asked:
            link.send(each.code, each.payload)
        answers = [each.read(bytes(link.receive())) for each in asked]
        assert answers[0] is None and [each.name for each in answers[1] + answers[2]] == ["s", "t"]
        frame = wire.frame(1, b"")
        link.send_frame(1, frame)
        assert bytes(link.receive()) == b""


def test_a_refused_login_is_told_and_settings_without_a_user_log_nobody_in(server: Server) -> None:
    with pytest.raises(AuthenticationError):
        BlockingLink(way_to(server.address, "iggy", "wrong"))
    with BlockingLink(way_to(server.address)) as link:
        link.call(commands.ping())
        with pytest.raises(AuthenticationError):
            link.call(commands.streams())


def test_nothing_that_listens_is_told_as_refused(tmp_path: Path) -> None:
    with pytest.raises(ConnectionLostError, match="cannot connect to unix:") as lost:
        BlockingLink(Settings(unix_path=str(tmp_path / "none")))
    assert lost.value.refused and lost.value.fate is Fate.NOT_SENT


def test_an_answer_fills_the_buffer_of_the_caller_which_grows(tmp_path: Path) -> None:
    def script(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(answer(0, b"abc") + answer(0, b"0123456789"))
        until_closed(connection)

    buffer = bytearray(4)
    with peer(tmp_path, script) as settings, BlockingLink(settings, timeout_s=10) as link:
        link.send(1)
        link.send(2)
        with link.receive(buffer) as first:
            assert bytes(first) == b"abc" and first.obj is buffer
        assert bytes(link.receive(buffer)) == b"0123456789" and len(buffer) >= 10


@pytest.mark.parametrize("sent", [b"", answer(0, b"abcdef")[:5], answer(0, b"abcdef")[:11]])
def test_an_answer_that_is_cut_is_a_lost_connection(tmp_path: Path, sent: bytes) -> None:
    def script(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(sent)

    with peer(tmp_path, script) as settings, BlockingLink(settings, timeout_s=10) as link:
        with pytest.raises(ConnectionLostError, match="closed the connection") as lost:
            link.request(1)
        assert lost.value.fate is Fate.UNKNOWN
        with pytest.raises(ConnectionLostError):
            link.request(1)


def test_an_unasked_status_is_told_to_the_next_request(tmp_path: Path) -> None:
    closed = threading.Event()

    def script(connection: socket.socket) -> None:
        connection.sendall(answer(30))
        closed.wait(10)
        until_closed(connection)

    with peer(tmp_path, script) as settings, BlockingLink(settings, timeout_s=10) as link:
        with pytest.raises(UnavailableError) as told:
            link.request(1)
        closed.set()
        assert told.value.status == 30 and told.value.fate is Fate.NOT_SENT


def test_requests_behind_disconnected_are_not_carried_out(tmp_path: Path) -> None:
    def script(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(answer(8))

    with peer(tmp_path, script) as settings, BlockingLink(settings, timeout_s=10) as link:
        link.send(1)
        link.send_frame(1, wire.frame(1, b""))
        with pytest.raises(UnavailableError):
            link.receive()
        with pytest.raises(ConnectionLostError) as lost:
            link.receive()
        assert lost.value.fate is Fate.NOT_SENT


def test_a_late_answer_is_never_that_of_the_next_request(tmp_path: Path) -> None:
    late = threading.Event()

    def script(connection: socket.socket) -> None:
        connection.recv(4096)
        late.wait(10)
        with contextlib.suppress(ConnectionError):
            connection.sendall(answer(0, b"late"))

    with peer(tmp_path, script) as settings, BlockingLink(settings, timeout_s=10) as link:
        link.wait_at_most(0.05)
        with pytest.raises(ConnectionLostError, match="timed out") as lost:
            link.request(1)
        assert isinstance(lost.value.__cause__, TimeoutError)
        late.set()
        with pytest.raises(ConnectionLostError):
            link.request(2)


def test_an_answer_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    def script(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(answer(0, b"x"))
        until_closed(connection)

    with (
        peer(tmp_path, script) as settings,
        BlockingLink(settings, timeout_s=10) as link,
        pytest.raises(ProtocolError),
    ):
        link.call(commands.streams())


def test_an_answer_takes_memory_as_it_arrives_and_not_as_it_claims(tmp_path: Path) -> None:
    """From a peer that is no server: it claims 4 GiB, sends 3 MiB and closes."""

    def script(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(struct.pack("<II", 0, 2**32 - 1) + bytes(3 << 20))

    with peer(tmp_path, script) as settings, BlockingLink(settings, timeout_s=10) as link:
        tracemalloc.start()
        try:
            with pytest.raises(ConnectionLostError):
                link.request(1)
            assert tracemalloc.get_traced_memory()[1] < 32 << 20
        finally:
            tracemalloc.stop()
