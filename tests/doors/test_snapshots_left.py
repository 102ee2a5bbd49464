"""Snapshots that clients of TCP and of QUIC ask for and leave (over HTTP: test_http_shares.py): another user's are made
as if those were a few."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import time
from collections.abc import Awaitable
from typing import Final

from shardd.protocol.account_requests import CreateUserRequest, GetSnapshot, SnapshotCompression, SnapshotType
from shardd.protocol.codes import Code
from shardd.protocol.permissions import Permissions
from tests.doors.quic_server import WAIT_S, QuicClient, QuicServer, connected, request_frame
from tests.support import wire
from tests.support.serving import Serving

READER: Final = Permissions(read_servers=True)
ADDRESSES: Final = tuple(f"127.0.1.{number}" for number in range(1, 6))
OTHER: Final = "127.0.0.2"
LEFT: Final = 500
CONTROLS: Final = 4
OF_CONNECTION: Final = 10  # of QUIC, each on a stream of its own
PART: Final = 6  # others wait for less than this part of what all that were asked for take
ASKED: Final = GetSnapshot(SnapshotCompression.LZMA, (SnapshotType.ALL,)).encode()


def fill(server: QuicServer) -> None:
    with wire.connect(server.address) as root:
        for name in ("greedy", "modest"):
            root.request(Code.CREATE_USER, CreateUserRequest(name, "secret", 1, READER).encode())


SERVER: Final = Serving(QuicServer, fill=fill)


def asked_over_tcp(server: QuicServer, token: str, source: str) -> socket.socket:
    """A connection whose client has asked, and reads no answer."""
    peer = socket.create_connection(wire.host_and_port(server.address), WAIT_S, source_address=(source, 0))
    peer.sendall(request_frame(wire.LOGIN_WITH_TOKEN, wire.str8(token)))
    assert wire.exactly(peer, 8)[:4] == bytes(4)
    peer.sendall(request_frame(Code.GET_SNAPSHOT, ASKED))
    return peer


def test_snapshots_left_over_tcp_keep_no_other_user_waiting(server: QuicServer) -> None:
    with wire.Wire(server.address) as greedy:
        greedy.login("greedy", "secret")
        token = greedy.create_token("left")
    with wire.Wire(server.address) as modest, contextlib.ExitStack() as held:
        modest.login("modest", "secret")
        began_s = time.monotonic()
        for _ in range(CONTROLS):
            modest.request(Code.GET_SNAPSHOT, ASKED)
        control_s = (time.monotonic() - began_s) / CONTROLS
        asked = [
            held.enter_context(asked_over_tcp(server, token, ADDRESSES[at % len(ADDRESSES)])) for at in range(LEFT)
        ]
        select.select(asked, (), (), WAIT_S)  # one has its answer: the others have been heard
        held.close()
        began_s = time.monotonic()
        modest.request(wire.GET_STATS)
        modest.request(Code.GET_SNAPSHOT, ASKED)
        assert time.monotonic() - began_s < control_s * LEFT / PART


async def asked_over_quic(server: QuicServer, source: str, held: contextlib.AsyncExitStack) -> list[Awaitable[object]]:
    """The answers of one connection, which nobody awaits."""
    client: QuicClient = await held.enter_async_context(connected(server.quic_address, source))
    assert await client.login("greedy", "secret") == 0
    streams = [client.write(request_frame(Code.GET_SNAPSHOT, ASKED)) for _ in range(OF_CONNECTION)]
    return [client._done[each] for each in streams]


async def left_over_quic(server: QuicServer) -> None:
    async with connected(server.quic_address, OTHER) as modest:
        assert await modest.login("modest", "secret") == 0
        began_s = time.monotonic()
        for _ in range(CONTROLS):
            await modest.done(Code.GET_SNAPSHOT, ASKED)
        control_s = (time.monotonic() - began_s) / CONTROLS
        async with contextlib.AsyncExitStack() as held:
            answers = list[Awaitable[object]]()
            for at in range(LEFT // OF_CONNECTION):
                answers += await asked_over_quic(server, ADDRESSES[at % len(ADDRESSES)], held)
            await asyncio.wait(map(asyncio.ensure_future, answers), timeout=WAIT_S, return_when="FIRST_COMPLETED")
        began_s = time.monotonic()
        await modest.done(wire.GET_STATS)
        await modest.done(Code.GET_SNAPSHOT, ASKED)
        assert time.monotonic() - began_s < control_s * LEFT / PART


def test_snapshots_left_over_quic_keep_no_other_user_waiting(server: QuicServer) -> None:
    asyncio.run(asyncio.wait_for(left_over_quic(server), 5 * WAIT_S))
