"""QUIC: the classic protocol, a stream for each request. Its crowd lives in one loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Final

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from tests.doors.quic_server import QuicClient, connected
from tests.hostile.matrix import classic, lines
from tests.hostile.matrix.door import ATTACKER, ENTER_S
from tests.hostile.matrix.report import ROUND_S, Report
from tests.hostile.matrix.target import OTHER, Target
from tests.support import wire

KERNEL_BYTES_MAX: Final = 256 << 10
_AT_ONCE: Final = 50
_HELLOS_PER_S: Final = 200
_LOST: Final = (OSError, TimeoutError, AssertionError, ValueError, RuntimeError)


class QuicPeer:
    """One that behaves, with a loop of its own."""

    def __init__(self, target: Target) -> None:
        self._loop = asyncio.new_event_loop()
        self._held = contextlib.AsyncExitStack()
        try:
            self._client = self._loop.run_until_complete(self._entered(target))
        except BaseException:
            self._loop.close()
            raise

    async def _entered(self, target: Target) -> QuicClient:
        address = wire.host_and_port(target.addresses["quic"])
        client = await self._held.enter_async_context(connected(address, idle_timeout=60.0))
        await client.done(wire.LOGIN_WITH_TOKEN, wire.str8(target.tokens[OTHER]))
        return client

    def ask(self) -> None:
        self._loop.run_until_complete(self._client.done(wire.GET_STREAMS))

    def close(self) -> None:
        self._loop.run_until_complete(self._held.aclose())
        self._loop.close()


class _Member:
    """What one attacker does, again and again."""

    def __init__(self, client: QuicClient, role: str, report: Report) -> None:
        self._client = client
        self._report = report
        self._request, self._large, self._half, self._wrong = classic.frames_of(role)

    def _write(self, data: bytes, *, end: bool = True, stream: int | None = None) -> int:
        self._report.sent_bytes += len(data)
        return self._client.write(data, end=end, stream_id=stream)

    async def _asked(self, data: bytes) -> None:
        await self._client.answer(self._write(data))
        self._report.heard += 1

    async def silent(self) -> None:
        await asyncio.sleep(ROUND_S)

    async def half_sent(self) -> None:
        self._write(self._half, end=False)
        await self._client.wait_closed()

    async def dripping(self) -> None:
        stream = self._write(self._half, end=False)
        while self._client.closed_with is None:
            await asyncio.sleep(ROUND_S)
            self._write(b"a", end=False, stream=stream)

    async def unread(self) -> None:
        self._client.deaf()
        for _ in range(_AT_ONCE):
            self._write(self._large)
        for _ in range(20):
            await asyncio.sleep(ROUND_S)
            self._client._quic.send_ping(1)  # it is there still
            self._client.transmit()
        raise ConnectionError("deaf for long enough: a new one")

    async def pipelined(self) -> None:
        await asyncio.gather(*(self._asked(self._request) for _ in range(_AT_ONCE)))

    async def one_byte(self) -> None:
        stream = self._write(self._request[:1], end=False)
        for at in range(1, len(self._request)):
            self._write(self._request[at : at + 1], end=at + 1 == len(self._request), stream=stream)
            await asyncio.sleep(0)
        await self._client.answer(stream)
        self._report.heard += 1

    async def wrong_password(self) -> None:
        await self._asked(self._wrong)

    async def behaved(self) -> None:
        await self._asked(self._request)
        await asyncio.sleep(ROUND_S)


_ACTS: Final[dict[str, Callable[[_Member], Awaitable[None]]]] = {
    lines.SILENT: _Member.silent,
    lines.DRIPPING: _Member.dripping,
    lines.UNREAD: _Member.unread,
    lines.PIPELINED: _Member.pipelined,
    lines.HALF_SENT: _Member.half_sent,
    lines.ONE_BYTE: _Member.one_byte,
    lines.WRONG_PASSWORD: _Member.wrong_password,
    lines.BEHAVED: _Member.behaved,
}


async def _one(target: Target, line: lines.Line, report: Report, entered: asyncio.Event, stop: threading.Event) -> None:
    """Who is closed comes again. `stop` is looked at as well: a cancellation that meets an answer is lost in
    `asyncio.wait_for`."""
    address = wire.host_and_port(target.addresses["quic"])
    while not stop.is_set():
        with contextlib.suppress(*_LOST):
            async with connected(address, ATTACKER, idle_timeout=60.0) as client:
                if line.role != lines.STRANGER:
                    await client.done(wire.LOGIN_WITH_TOKEN, wire.str8(target.tokens[line.role]))
                report.entered += 1
                entered.set()
                member = _Member(client, line.role, report)
                while client.closed_with is None and not stop.is_set():
                    await _ACTS[line.attack](member)
        report.lost += 1
        entered.set()
        await asyncio.sleep(ROUND_S)


async def _hellos(target: Target, report: Report, ready: Callable[[], None]) -> None:
    """First packets, each of another connection."""
    address = wire.host_and_port(target.addresses["quic"])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind((ATTACKER, 0))
        peer.setblocking(False)
        while True:
            made = QuicConnection(configuration=QuicConfiguration(is_client=True, server_name="localhost"))
            made.connect(address, now=0.0)
            with contextlib.suppress(BlockingIOError):
                report.sent_bytes += peer.sendto(made.datagrams_to_send(now=0.0)[0][0], address)
            with contextlib.suppress(BlockingIOError):
                report.heard += bool(peer.recv(65_536))
            report.entered += 1
            if report.entered == _AT_ONCE:
                ready()
            await asyncio.sleep(1 / _HELLOS_PER_S)


async def crowd(
    target: Target, line: lines.Line, count: int, report: Report, ready: Callable[[], None], stop: threading.Event
) -> None:
    """Until it is cancelled, behind `stop`."""
    if line.attack == lines.HANDSHAKE:
        await _hellos(target, report, ready)
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            entered = asyncio.Event()
            group.create_task(_one(target, line, report, entered, stop))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(entered.wait(), ENTER_S)
        ready()
