"""Every shared resource has an owner and a share: beside a crowd of one address nobody else's progress stops.

Only progress is judged here; what it costs others is in the table of `make test-net-engine`.
"""

from __future__ import annotations

import multiprocessing
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.conftest import MakeServer
from tests.hostile import bad, crowds, net
from tests.support import wire
from tests.support.server import Server

PRODUCERS = 6
STALL_MAX_S = 30.0
BESIDE_S = 1.0
ROUNDS_MIN = 3
LARGE_BYTES = 100_000
INVALID_COMMAND, UNAUTHENTICATED, UNAUTHORIZED = 3, 40, 41
CREATE_USER, UPDATE_PERMISSIONS, GET_BOUNDS = 33, 36, 0x5344_0010


@contextmanager
def beside(name: str, target: bad.Target) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    # not by `bad.run`: with the lowest priority, which is for measuring, a crowd takes a minute to come up
    process = context.Process(target=crowds.CROWDS[name], args=(target, ready, stop), daemon=True)
    process.start()
    try:
        assert ready.wait(120.0), "the crowd does not come up"
        yield
        assert process.is_alive(), "the crowd has failed"
    finally:
        stop.set()
        process.join(10.0)
        process.kill()


class Producer(threading.Thread):
    """Sends large batches, polls and pings until it is told to stop; a stall ends it with its failure."""

    def __init__(self, address: str, partition: int) -> None:
        super().__init__(daemon=True)
        self._connection = wire.connect(address, timeout_s=STALL_MAX_S)
        self._partition = partition
        self.stopping = threading.Event()
        self.rounds = 0
        self.failure: Exception | None = None

    def run(self) -> None:
        batch = [wire.message(bytes(LARGE_BYTES))]
        try:
            while not self.stopping.is_set() or self.rounds < ROUNDS_MIN:
                self._connection.send("net", "small", wire.to_partition(self._partition), batch)
                self._connection.poll("net", "small", self._partition, strategy=wire.POLL_LAST, count=1)
                self._connection.ping()
                self.rounds += 1
                time.sleep(0.01)
        except (OSError, wire.StatusError) as failure:
            self.failure = failure
        finally:
            self._connection.close()


def nobody_stops_beside(name: str, server: Server) -> None:
    workers = server.worker_pids()
    target = net.prepare(server)
    producers = [Producer(server.address, number % 2) for number in range(PRODUCERS)]
    with beside(name, target):
        for producer in producers:
            producer.start()
        time.sleep(BESIDE_S)
        with wire.Wire(server.address, timeout_s=STALL_MAX_S) as newcomer:
            newcomer.request(crowds.LOGIN_WITH_TOKEN, wire.str8(target.token))
            newcomer.ping()
        for producer in producers:
            producer.stopping.set()
        for producer in producers:
            producer.join(ROUNDS_MIN * 3 * STALL_MAX_S)
    assert [producer.failure for producer in producers] == [None] * PRODUCERS
    assert min(producer.rounds for producer in producers) >= ROUNDS_MIN
    assert server.worker_pids() == workers


@pytest.mark.io_engine
def test_requests_that_wait_with_unread_bytes_leave_receive_buffers_to_others(make_server: MakeServer) -> None:
    nobody_stops_beside("pipelined, login", make_server())


@pytest.mark.io_engine
def test_half_sent_frames_leave_room_for_large_batches_of_others(make_server: MakeServer) -> None:
    nobody_stops_beside("drip", make_server())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(crowds.CROWDS.keys() - {"pipelined, login", "drip"}))
def test_no_crowd_stops_others(make_server: MakeServer, name: str) -> None:
    nobody_stops_beside(name, make_server())


def login_payload(size: int) -> bytes:
    texts = wire.str8("iggy") + wire.str8("iggy") + wire.str32("0.8.0")
    return texts + wire.str32("x" * (size - len(texts) - 4))


def test_each_command_has_a_limit_of_its_own(make_server: MakeServer) -> None:
    """A larger frame is taken in, answered with 3, and the connection goes on; of the largest honest one nothing is
    refused."""
    server = make_server()
    with wire.Wire(server.address) as connection:
        assert connection.status(wire.LOGIN_USER, login_payload(4097)) == INVALID_COMMAND
        assert connection.status(wire.LOGIN_USER, login_payload(10 << 20)) == INVALID_COMMAND
        assert connection.status(wire.GET_STREAMS, bytes(4096)) == UNAUTHENTICATED
        assert connection.status(wire.LOGIN_USER, login_payload(4096)) == 0
        connection.create_topic(connection.create_stream("s" * 255), "t" * 255, 1)
        address = wire.identifier("s" * 255) + wire.identifier("t" * 255)
        consumer = wire.consumer("c" * 255)
        strategy = struct.pack("<BQIB", wire.POLL_FIRST, 0, 1, 1)
        assert connection.status(wire.POLL_MESSAGES, consumer + address + wire.optional_partition(0) + strategy) == 0
        assert connection.status(wire.GET_STREAMS, bytes(4097)) == INVALID_COMMAND
        entries = b"\1".join(struct.pack("<I", each) + bytes(7) for each in range(32_768))
        block = bytes(10) + b"\1" + entries + b"\0"
        named = wire.identifier("u" * 50)
        user = wire.str8("u" * 50) + wire.str8("p" * 100) + b"\1\1" + struct.pack("<I", len(block)) + block
        assert connection.status(CREATE_USER, user) == 0
        assert connection.status(UPDATE_PERMISSIONS, named + b"\1" + struct.pack("<I", len(block)) + block) == 0
        assert connection.status(UPDATE_PERMISSIONS, named + bytes(524_288)) == INVALID_COMMAND
        assert connection.status(GET_BOUNDS, bytes((1 << 20) + 1)) == INVALID_COMMAND
        connection.ping()
        assert connection.status(CREATE_USER, wire.str8("outsider") + wire.str8("outsider") + b"\1\0") == 0
        assert connection.status(wire.LOGIN_USER, wire.str8("outsider") + wire.str8("outsider") + bytes(8)) == 0
        # who may not change users does not make the server read half a megabyte
        assert connection.status(UPDATE_PERMISSIONS, named + b"\1" + bytes(400_000)) == UNAUTHORIZED
