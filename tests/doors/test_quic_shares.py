"""What one user has of the rooms of the door for QUIC: clients that drip end in time, others are served meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from shardd.doors.quic.flow import BoundedQuic
from shardd.metadata.state import Permissions
from shardd.protocol.account_requests import CreateUserRequest
from shardd.protocol.codes import Code
from tests.doors.quic_server import QuicClient, QuicServer, connected, request_frame
from tests.doors.test_quic_attacks import run, until
from tests.support import wire

READER: Final = Permissions(read_streams=True, read_topics=True, poll_messages=True)
GREEDY_ADDRESSES: Final = ("127.0.1.1", "127.0.1.2", "127.0.1.3")
OTHER: Final = "127.0.0.2"
MESSAGES: Final = 7
MESSAGE_BYTES: Final = 1_000_000
SMALL_BYTES: Final = 200_000
FULL: Final = 9  # answers of 7 MB that fill the room: another one may have 8 MiB
STEP_S: Final = 0.1
FIRST_BYTES: Final = 2_000  # that the server may send of an answer


def filled(server: QuicServer) -> None:
    """Partition 0 has 7 large messages, partition 1 a smaller one; there are two readers."""
    with wire.connect(server.address) as tcp:
        tcp.create_topic(tcp.create_stream("s"), "t", 2)
        for _ in range(MESSAGES):
            tcp.send(0, 0, wire.to_partition(0), [wire.message(b"x" * MESSAGE_BYTES)])
        tcp.send(0, 0, wire.to_partition(1), [wire.message(b"x" * SMALL_BYTES)])
        for name in ("greedy", "modest"):
            tcp.request(Code.CREATE_USER, CreateUserRequest(name, "secret", 1, READER).encode())


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[QuicServer]:
    with QuicServer(tmp_path / "data", {"SHARDD_SERVER_SLOW_READER_TIMEOUT": "3 s"}) as running:
        filled(running)
        yield running


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[QuicServer]:
    """Nobody is slow by its settings."""
    settings = {"SHARDD_SERVER_SLOW_READER_TIMEOUT": "30 m", "SHARDD_QUIC_MAX_IDLE_TIMEOUT": "30 m"}
    with QuicServer(tmp_path / "data", settings) as running:
        filled(running)
        yield running


def poll(partition: int) -> bytes:
    asked = wire.consumer() + wire.identifier(0) + wire.identifier(0) + wire.optional_partition(partition)
    return request_frame(wire.POLL_MESSAGES, asked + struct.pack("<BQIB", wire.POLL_FIRST, 0, 100, 0))


def narrow(client: QuicClient) -> None:
    """What the server may send in a stream grows by `grant` only."""
    quic: Any = client._quic
    quic._write_stream_limits = partial(BoundedQuic._write_stream_limits, quic)


def grant(client: QuicClient, stream_id: int, count: int) -> None:
    stream = client._quic._streams.get(stream_id)
    if stream is not None and client.closed_with is None:
        stream.max_stream_data_local += count
        client.transmit()


def came(client: QuicClient, stream_id: int) -> int:
    """Bytes of an answer."""
    return len(client._answers[stream_id])


async def drip(client: QuicClient, stream_id: int, count: int) -> None:
    """So many bytes at a time, until the answer is there or the connection has ended."""
    while client.closed_with is None and not client._done[stream_id].done():
        grant(client, stream_id, count)
        await asyncio.sleep(STEP_S)


def test_client_that_drips_its_answer_loses_its_connection_before_it_is_whole(impatient: QuicServer) -> None:
    """3 KB a second is not silence; somebody slow who takes 100 KB a second has all of it."""

    async def scenario() -> None:
        address = impatient.quic_address
        async with (
            connected(address, max_stream_data=FIRST_BYTES) as dripping,
            connected(address, OTHER, max_stream_data=FIRST_BYTES) as slow,
        ):
            streams = []
            for client in (dripping, slow):
                assert await client.login() == 0
                narrow(client)
                streams.append(client.write(poll(1)))
            await asyncio.gather(drip(dripping, streams[0], 300), drip(slow, streams[1], 10_000))
            assert dripping.closed_with is not None and came(dripping, streams[0]) < SMALL_BYTES // 2
            assert slow.closed_with is None and len((await slow.answer(streams[1]))[1]) > SMALL_BYTES

    run(scenario())


def test_answers_that_one_user_drips_hold_up_no_answer_of_another(patient: QuicServer) -> None:
    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as held:
            other = await held.enter_async_context(connected(patient.quic_address, OTHER))
            assert await other.login("modest", "secret") == 0
            assert len(await other.poll(0, 0, 0, 0, 100)) > MESSAGES * MESSAGE_BYTES, "the control"
            asked: list[tuple[QuicClient, int]] = []
            for source in GREEDY_ADDRESSES:
                for _ in range(4):
                    connecting = connected(patient.quic_address, source, max_stream_data=FIRST_BYTES)
                    client = await held.enter_async_context(connecting)
                    assert await client.login("greedy", "secret") == 0
                    narrow(client)
                    asked += [(client, client.write(poll(0))) for _ in range(2)]
            await until(lambda: sum(came(*each) > 0 for each in asked) >= FULL)
            dripping = [asyncio.create_task(drip(*each, 10)) for each in asked]
            for _ in range(5):
                assert (await other.ask(wire.PING))[0] == 0
                assert (await other.ask(wire.GET_STREAMS))[0] == 0
                assert len(await other.poll(0, 0, 0, 0, 100)) > MESSAGES * MESSAGE_BYTES
            assert any(client.closed_with is not None for client, _ in asked)
            for each in dripping:
                each.cancel()

    run(scenario())
