"""Strangers at the door for QUIC: what they make it keep has an end, and others are served beside them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from aioquic.quic.stream import QuicStreamSender

from tests.doors.quic_server import QuicClient, QuicServer, connected, request_frame
from tests.support import wire
from tests.support.serving import Serving
from tests.support.wide import wide

TIMEOUT_S: Final = 3
GROWTH_BYTES_MAX: Final = 150 << 20
OF_ADDRESS: Final = 100
SETTINGS: Final = {
    "SHARDD_SERVER_PARTIAL_FRAME_TIMEOUT": f"{TIMEOUT_S} s",
    "SHARDD_SERVER_SLOW_READER_TIMEOUT": f"{TIMEOUT_S} s",
    "SHARDD_QUIC_MAX_IDLE_TIMEOUT": "20 s",
    "SHARDD_SERVER_CONNECTIONS_PER_ADDRESS_MAX": str(OF_ADDRESS),
}
MESSAGES: Final = 7
DEAF: Final = 8


def fill(server: QuicServer) -> None:
    with wire.connect(server.address) as tcp:
        tcp.create_topic(tcp.create_stream("s"), "t", 1)
        for _ in range(MESSAGES):
            tcp.send(0, 0, wire.to_partition(0), [wire.message(b"x" * 1_000_000)])


SERVER: Final = Serving(QuicServer, SETTINGS, fill=fill)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 200))


async def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def serves(server: QuicServer, source: str = "127.0.0.2") -> None:
    """Others are served."""
    async with connected(server.quic_address, source) as client:
        assert await client.login() == 0
        assert (await client.ask(wire.GET_STREAMS))[0] == 0


def resident_bytes(server: QuicServer) -> int:
    return int(server.door().memory_info().rss)


def clients_over_quic(server: QuicServer) -> int:
    """As the server tells."""
    with wire.connect(server.address) as tcp:
        told, at, count = tcp.request(wire.GET_CLIENTS), 0, 0
    while at < len(told):
        count += told[at + 8] == 2
        at += 9 + 4 + int.from_bytes(told[at + 9 : at + 13], "little") + 4
    return count


def test_clients_that_never_read_are_left(server: QuicServer) -> None:
    """8 clients ask for 7 MB each, again and again, and take nothing; they go on sending."""

    async def scenario() -> None:
        before = resident_bytes(server)
        asked = wire.consumer() + wire.identifier(0) + wire.identifier(0) + wire.optional_partition(0)
        poll = request_frame(wire.POLL_MESSAGES, asked + struct.pack("<BQIB", wire.POLL_FIRST, 0, 100, 0))
        async with contextlib.AsyncExitStack() as held:
            clients = [await held.enter_async_context(connected(server.quic_address)) for _ in range(DEAF)]
            for client in clients:
                assert await client.login() == 0
            for client in clients:
                client.deaf()
                for _ in range(20):
                    client.write(poll)
            most = 0
            for _ in range(20):
                for client in clients:
                    client._quic.send_ping(1)
                    client.transmit()
                await asyncio.sleep(0.1)
                most = max(most, resident_bytes(server))
            assert most - before < GROWTH_BYTES_MAX
            await serves(server)
            deadline = time.monotonic() + 60
            while clients_over_quic(server):
                assert time.monotonic() < deadline
                for client in clients:
                    client._quic.send_ping(1)
                    client.transmit()
                await asyncio.sleep(0.1)
        await serves(server, "127.0.0.1")

    run(scenario())


def test_half_sent_requests_end_their_connection(server: QuicServer) -> None:
    """A byte now and then does not keep it."""

    async def scenario() -> None:
        for first in (b"", b"\x08", struct.pack("<II", 1 << 20, 101)):
            async with connected(server.quic_address) as client:
                assert await client.login() == 0
                stream = client.write(first + b"x", end=False)
                for _ in range(TIMEOUT_S * 20 + 100):
                    if client.closed_with is not None:
                        break
                    await asyncio.sleep(0.1)
                    with contextlib.suppress(AssertionError, ValueError, RuntimeError):
                        client.write(b"x" if len(first) > 1 else b"", end=False, stream_id=stream)
                assert client.closed_with is not None
        await serves(server)

    run(scenario())


def test_a_byte_far_ahead_makes_no_room(server: QuicServer) -> None:
    """A gap is memory: what was not granted cannot be claimed, however often somebody comes near the end."""

    async def scenario() -> None:
        before = resident_bytes(server)
        async with connected(server.quic_address) as client:
            stream_id = client.write(b"\xff\xff", end=False)
            sender: QuicStreamSender = client._quic._streams[stream_id].sender
            for _ in range(40):
                await asyncio.sleep(0.02)
                if client.closed_with is not None:
                    break
                end = client._quic._streams[stream_id].max_stream_data_remote
                if end <= sender._buffer_stop:
                    continue
                # one byte just before the end of what may be sent, and nothing in between
                sender._buffer += bytes(end - sender._buffer_stop)
                sender._buffer_stop = end
                sender._pending.add(end - 1, end)
                sender.buffer_is_empty = False
                client.transmit()
            assert client._quic._streams[stream_id].max_stream_data_remote <= 100_000
            assert client._quic._remote_max_data <= 200_000
        assert resident_bytes(server) - before < 20 << 20
        await serves(server)

    run(scenario())


def test_requests_that_are_given_up_half_way_earn_no_room(server: QuicServer) -> None:
    async def scenario() -> None:
        async with connected(server.quic_address) as client:
            assert await client.login() == 0
            stream_id = client.write(struct.pack("<II", 6 << 20, 101) + b"x" * 1000, end=False)
            await until(lambda: client._quic._streams[stream_id].max_stream_data_remote > 6 << 20)
            client._quic.reset_stream(stream_id, 1)
            client.transmit()
            await until(lambda: client.closed_with is not None)
        await serves(server)

    run(scenario())


def test_streams_are_counted(server: QuicServer) -> None:
    """Open ones; those that are over make room for others."""

    async def scenario() -> None:
        async with connected(server.quic_address) as client:
            assert await client.login() == 0
            for _ in range(250):
                assert (await client.ask(wire.PING))[0] == 0
            assert client._quic._remote_max_streams_uni == 0
            open_now = client._quic._remote_max_streams_bidi
            client._quic._remote_max_streams_bidi = 1 << 20  # it does as if it had not heard
            first = client._quic.get_next_available_stream_id() // 4
            for _ in range(open_now - first + 200):
                with contextlib.suppress(AssertionError):
                    client.write(b"\x04", end=False)
            await until(lambda: client.closed_with is not None)
            assert client.closed_with == 4  # STREAM_LIMIT_ERROR
        await serves(server)

    run(scenario())


def test_one_way_streams_are_not_taken(server: QuicServer) -> None:
    async def scenario() -> None:
        async with connected(server.quic_address) as client:
            client._quic._remote_max_streams_uni = 10
            number = client._quic.get_next_available_stream_id(is_unidirectional=True)
            client._quic.send_stream_data(number, request_frame(wire.PING), end_stream=True)
            client.transmit()
            await until(lambda: client.closed_with is not None)
        await serves(server)

    run(scenario())


def test_nonsense_and_first_packets_get_little(server: QuicServer) -> None:
    """Nobody gets more bytes than he sends before his address is known, and no connection is kept for him."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.settimeout(0.2)
        sent = received = 0
        first = initial_packet()
        for data in [first] * 50 + [os.urandom(1200) for _ in range(200)] + [b"", b"\x40", b"\xc0" * 1200, first[:300]]:
            stranger.sendto(data, server.quic_address)
            sent += len(data)
            with contextlib.suppress(TimeoutError):
                while len(data) >= 1200:
                    received += len(stranger.recv(65_536))
                    break
        assert 0 < received < sent
    run(serves(server))
    assert "Traceback" not in server.log()


def initial_packet() -> bytes:
    """The first datagram of a client."""
    from aioquic.quic.configuration import QuicConfiguration
    from aioquic.quic.connection import QuicConnection

    made = QuicConnection(configuration=QuicConfiguration(is_client=True, server_name="localhost"))
    made.connect(("127.0.0.1", 1), now=0.0)
    return made.datagrams_to_send(now=0.0)[0][0]


def test_no_ticket_is_given_so_nobody_comes_back_early(server: QuicServer) -> None:
    async def scenario() -> None:
        tickets: list[object] = []
        async with connected(server.quic_address) as client:
            client._quic._session_ticket_handler = tickets.append
            assert await client.login() == 0
            await asyncio.sleep(0.5)
            assert tickets == []

    run(scenario())


@pytest.mark.parametrize("crowd", [500, wide(1_500)])
def test_a_crowd_of_one_address_is_refused_and_others_are_served(server: QuicServer, crowd: int) -> None:
    """Many that want to connect: so many as an address may have, and no more; the others are told at once."""

    async def scenario() -> None:
        before = resident_bytes(server)
        held = contextlib.AsyncExitStack()
        refused = 0

        async def one() -> QuicClient | None:
            try:
                return await held.enter_async_context(connected(server.quic_address))
            except (ConnectionError, TimeoutError):
                return None

        async with held:
            for _ in range(crowd // 100):
                made = await asyncio.gather(*(one() for _ in range(100)))
                refused += sum(each is None for each in made)
            assert refused >= crowd - OF_ADDRESS
            await serves(server)
            assert resident_bytes(server) - before < GROWTH_BYTES_MAX
        deadline = time.monotonic() + 60
        while (left := await one()) is None:  # they are over when their last packets are
            assert time.monotonic() < deadline
        left.hang_up()

    run(scenario())


def test_a_login_that_never_comes_ends_the_connection(tmp_path: Path) -> None:
    async def scenario(server: QuicServer) -> None:
        async with connected(server.quic_address) as client:
            await until(lambda: client.closed_with is not None)

    with QuicServer(tmp_path / "data", {"SHARDD_SERVER_LOGIN_TIMEOUT": "1 s"}) as server:
        run(scenario(server))


def test_the_door_is_killed_and_comes_back_while_tcp_goes_on(server: QuicServer) -> None:
    async def scenario() -> None:
        door = server.door()
        with wire.connect(server.address) as tcp:
            async with connected(server.quic_address) as client:
                assert await client.login() == 0
                door.kill()
                for _ in range(50):
                    tcp.request(wire.PING)
                other = await asyncio.to_thread(server.door, door.pid)
                assert other.pid != door.pid
            await serves(server)
            tcp.request(wire.GET_STREAMS)
        assert not psutil.pid_exists(door.pid) or psutil.Process(door.pid).status() == psutil.STATUS_ZOMBIE

    run(scenario())
