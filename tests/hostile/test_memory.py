"""Clients that send half and read nothing cost the server a bounded amount of memory."""

from __future__ import annotations

import struct
import time
from typing import Final

import pytest

from tests.hostile import crowd
from tests.support import wire
from tests.support.server import Server
from tests.support.serving import Serving

MIB = 2**20
COST_MAX_BYTES = 128 * MIB
HALF_SENT = 300
HALF_BYTES = 10 * MIB // 4  # on the way; the announced frame has 10 MiB
SLOW_READERS = 40
UNAUTHENTICATED = 200
UNAUTHENTICATED_MAX_BYTES = 64 * 1024


def fill(server: Server) -> None:
    crowd.allow_descriptors(4096)
    with wire.connect(server.address) as connection:
        connection.create_topic(connection.create_stream("s"), "t", 2)
        for partition in (0, 1):
            connection.send(0, 0, wire.to_partition(partition), [wire.message(bytes(1000))] * 10)
            connection.poll(0, 0, partition)
    still_serves(server)  # the first login costs memory that is not the crowd's


# Each test has a server of its own: memory that one test has touched would hide the cost of the next one.
SERVER: Final = Serving(fill=fill)


def still_serves(server: Server) -> None:
    """New connections on any shard log in, send and poll."""
    with crowd.crowd(server.address, 6, login=True) as connections:
        for connection in connections:
            for partition in (0, 1):
                connection.send(0, 0, wire.to_partition(partition), [wire.message(b"still")])
                (last,) = connection.poll(0, 0, partition, strategy=wire.POLL_LAST, count=1).messages
                assert last.payload == b"still"


def report(what: str, cost_bytes: int) -> None:
    print(f"{what}: {cost_bytes / MIB:+.1f} MiB")


@pytest.mark.io_engine
def test_half_sent_frames_cost_bounded_memory(own_server: Server) -> None:
    body = wire.batch(0, 0, wire.to_partition(0), [wire.message(bytes(10 * MIB))])
    frame = wire.frame(wire.SEND_MESSAGES, body)
    with crowd.crowd(own_server.address, HALF_SENT, login=True) as connections:
        before = crowd.resident_bytes(own_server)
        sent = sum(crowd.push(connections, frame[:HALF_BYTES]))
        cost = crowd.resident_bytes(own_server) - before
        report(f"{HALF_SENT} half-sent frames of 10 MiB, {sent // MIB} MiB on the way", cost)
        still_serves(own_server)
        cost = max(cost, crowd.resident_bytes(own_server) - before)
    assert cost <= COST_MAX_BYTES
    still_serves(own_server)


def test_slow_readers_of_big_polls_cost_bounded_memory(own_server: Server) -> None:
    with wire.connect(own_server.address) as connection:
        connection.create_topic(0, "big", 1)
        for number in range(34):
            connection.send(0, "big", wire.to_partition(0), [wire.message(bytes([number]) * 1_000_000)])
    request = wire.consumer() + wire.identifier(0) + wire.identifier("big") + wire.optional_partition(0)
    request += struct.pack("<BQIB", wire.POLL_OFFSET, 0, 34, 0)
    with crowd.crowd(own_server.address, SLOW_READERS, login=True, receive_buffer_bytes=1 << 16) as connections:
        before = crowd.resident_bytes(own_server)
        for connection in connections:
            connection.send_bytes(wire.frame(wire.POLL_MESSAGES, request))
        costs = []
        for _ in range(20):
            time.sleep(0.1)
            costs.append(crowd.resident_bytes(own_server) - before)
        report(f"{SLOW_READERS} slow readers of 34 MB", max(costs))
        still_serves(own_server)
        status, answer = connections[-1].reply()
        assert status == 0
        payloads = [item.payload for item in wire.parse_polled(answer).messages]
        assert payloads == [bytes([number]) * 1_000_000 for number in range(34)]
        costs.append(crowd.resident_bytes(own_server) - before)
    assert max(costs) <= COST_MAX_BYTES


def test_frames_before_login_are_drained_and_cost_little(own_server: Server) -> None:
    """At most 64 KiB of each such connection is kept; the whole frame is taken in and answered."""
    frame = wire.frame(wire.SEND_MESSAGES, wire.batch(0, 0, wire.to_partition(0), [wire.message(bytes(2 * MIB))]))
    with crowd.crowd(own_server.address, UNAUTHENTICATED, login=False) as connections:
        before = crowd.resident_bytes(own_server)
        sent = crowd.push(connections, frame[:-1])
        cost = crowd.resident_bytes(own_server) - before
        report(f"{UNAUTHENTICATED} frames of 2 MiB before login", cost)
        assert sent == [len(frame) - 1] * UNAUTHENTICATED
        for connection in connections:
            connection.send_bytes(frame[-1:])
            assert connection.reply() == (40, b"")
            connection.ping()
    assert cost <= UNAUTHENTICATED * UNAUTHENTICATED_MAX_BYTES + 16 * MIB
    still_serves(own_server)
