"""Servers that take connections and are silent, among others: when a plan stops waiting for them. No Spark."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardd.client.marks import Mark
from shardd.spark.positions import Offsets, Position, TopicName
from shardd.spark.retry import Retries, Servers, ServerUnreachableError, SilentServerError
from shardd.spark.rollbacks import Rollbacks
from shardd.spark.server import Server
from tests.support import wire
from tests.support.ports import free_port
from tests.support.server import ONE_SHARD
from tests.support.server import Server as Running

LIMIT_S = 4.0


@pytest.fixture
def silent() -> Iterator[str]:
    """Connections are made in its backlog, and nobody reads."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def asked(*addresses: str, timeout_s: float = 30.0) -> Server:
    return Server(Servers(addresses, "iggy", "iggy"), timeout_s=timeout_s, retries=Retries(5, 0.1))


@pytest.mark.parametrize("timeout_s", [30.0, LIMIT_S])
def test_a_silent_server_leaves_the_next_one_its_time(tmp_path: Path, silent: str, timeout_s: float) -> None:
    with Running(tmp_path / "data", ONE_SHARD) as running, wire.connect(running.address) as root:
        root.create_stream("s")
        server = asked(silent, running.address, timeout_s=timeout_s)
        with server.within(LIMIT_S):
            assert server.matching(".*") == ()
        server.close()


def test_servers_that_are_all_silent_are_told_within_the_limit(silent: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = f"127.0.0.1:{listener.getsockname()[1]}"
        server = asked(silent, other)
        with server.within(1.0), pytest.raises(SilentServerError, match=f"{other} .* within 0.5 s"):
            server.matching(".*")


def test_a_server_that_refuses_for_longer_than_the_limit_and_then_closes_is_not_silent() -> None:
    """Its first answer takes longer than what is left of such a limit."""
    port, limit_s = free_port(), 0.8
    done = threading.Event()

    def later() -> None:
        time.sleep(2 * limit_s)
        with socket.create_server(("127.0.0.1", port)) as listener:
            listener.settimeout(0.1)
            while not done.is_set():
                with contextlib.suppress(TimeoutError), listener.accept()[0] as taken:
                    time.sleep(0.3)
                    taken.shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=later)
    thread.start()
    try:
        server = Server(Servers((f"127.0.0.1:{port}",), "iggy", "iggy"), timeout_s=30.0, retries=Retries(6, 0.1))
        with server.within(limit_s), pytest.raises(ServerUnreachableError) as raised:
            server.matching(".*")
        assert not isinstance(raised.value, SilentServerError)
    finally:
        done.set()
        thread.join()


def test_the_server_of_the_open_connection_is_the_one_that_is_named(tmp_path: Path) -> None:
    port = free_port()
    address = f"127.0.0.1:{port}"
    refusing = f"127.0.0.1:{free_port()}"
    env = {**ONE_SHARD, "SHARDD_TCP_ADDRESS": address}
    with Running(tmp_path / "data", env) as running, wire.connect(running.address) as root:
        root.create_stream("s")
        server = asked(refusing, address)
        assert server.matching(".*") == ()
        assert server._connection is not None and server._turn == 1
        server._connection.wait_at_most(0.001)
        with server.within(LIMIT_S):
            assert server.matching(".*") == ()
        server.close()


def test_a_batch_keeps_the_marks_of_before_when_the_server_goes_meanwhile() -> None:
    name = TopicName("s", "t")
    begin = Offsets({name: {0: Position(7, 10, (Mark(9, 1),))}})
    gone = Server(Servers((f"127.0.0.1:{free_port()}",), "iggy", "iggy"), timeout_s=30.0, retries=Retries(0, 0.1))
    end = Rollbacks(gone).marked(Offsets({name: {0: Position(7, 20)}}), begin)
    assert end.places[name][0] == Position(7, 20, (Mark(9, 1),))
    assert end.places[name][0].marks == (Mark(9, 1),)
    with pytest.raises(ServerUnreachableError):
        Rollbacks(gone).marked(begin, None)
