"""A real server with its door for QUIC, and a client of it that shares no code with the door but aioquic."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
import tomllib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psutil
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, QuicEvent, StreamDataReceived, StreamReset

from tests.support import wire
from tests.support.doors import serving_door
from tests.support.server import Server

HOST: Final = "127.0.0.1"
WAIT_S: Final = 60.0
QUIC: Final = {
    "SHARDD_QUIC_ENABLED": "true",
    "SHARDD_QUIC_ADDRESS": f"{HOST}:0",
    "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2",
}


class QuicServer(Server):
    """`quic_address` is known when it has started."""

    def __init__(self, data: Path, env: Mapping[str, str] | None = None) -> None:
        super().__init__(data, {**QUIC, **(env or {})})
        self.quic_address = (HOST, 0)

    def start(self, timeout_s: float = WAIT_S) -> None:
        super().start(timeout_s)
        host, _, port = tomllib.loads(self.runtime_config.read_text())["quic"]["address"].rpartition(":")
        self.quic_address = host, int(port)
        self.door()

    def door(self, other_than: int = 0) -> psutil.Process:
        """The process of the door when it serves; waits for it."""
        return serving_door(self, "quic", other_than)


def request_frame(code: int, payload: bytes = b"") -> bytes:
    return struct.pack("<II", 4 + len(payload), code) + payload


class _Losing:
    """A path that loses what its client says that it loses."""

    def __init__(self, transport: asyncio.DatagramTransport, client: QuicClient) -> None:
        self._transport, self._client = transport, client

    def sendto(self, data: bytes, addr: Any = None) -> None:
        if self._client._to_lose:
            self._client._to_lose -= 1
        else:
            self._transport.sendto(data, addr)


class QuicClient(QuicConnectionProtocol):
    """Each request has a stream of its own. `closed_with`: the error of a connection that has ended."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._answers: dict[int, bytearray] = {}
        self._done: dict[int, asyncio.Future[bytes]] = {}
        self._is_deaf = False
        self._to_lose = 0
        self.closed_with: int | None = None

    def deaf(self) -> None:
        """From now on nothing arrives: neither answers nor acknowledgements. It still sends."""
        self._is_deaf = True

    def hang_up(self) -> None:
        """Says that it goes, and goes."""
        self.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.close()

    def datagram_received(self, data: bytes | str, addr: Any) -> None:
        if not self._is_deaf:
            super().datagram_received(data, addr)

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, StreamDataReceived) and event.stream_id in self._done:
            self._answers[event.stream_id] += event.data
            if event.end_stream and not self._done[event.stream_id].done():
                self._done[event.stream_id].set_result(bytes(self._answers[event.stream_id]))
        elif isinstance(event, StreamReset | ConnectionTerminated):
            if isinstance(event, ConnectionTerminated):
                self.closed_with = event.error_code
            numbers = [event.stream_id] if isinstance(event, StreamReset) else [*self._done]
            for number in numbers:
                if number in self._done and not self._done[number].done():
                    self._done[number].set_exception(ConnectionError())
                    self._done[number].exception()

    def write(self, data: bytes, *, end: bool = True, stream_id: int | None = None) -> int:
        """Bytes of a request, as they are; the stream."""
        if stream_id is None:
            stream_id = self._new_stream()
        self._quic.send_stream_data(stream_id, data, end_stream=end)
        self.transmit()
        return stream_id

    def write_all(self, requests: Sequence[bytes]) -> list[int]:
        """Requests that go out together; their streams."""
        streams = []
        for data in requests:
            streams.append(self._new_stream())
            self._quic.send_stream_data(streams[-1], data, end_stream=True)
        self.transmit()
        return streams

    def _new_stream(self) -> int:
        stream_id = self._quic.get_next_available_stream_id()
        self._done[stream_id] = asyncio.get_running_loop().create_future()
        self._answers[stream_id] = bytearray()
        return stream_id

    def lose(self, datagrams: int) -> None:
        """So many of those that it sends next never arrive."""
        self._to_lose = datagrams

    def reset(self, stream_id: int) -> None:
        """Gives a request up."""
        self._quic.reset_stream(stream_id, 0)
        self.transmit()

    def stop(self, stream_id: int) -> None:
        """Wants no answer."""
        self._quic.stop_stream(stream_id, 0)
        self.transmit()

    def transmit(self) -> None:
        transport = self._transport
        if self._to_lose and transport is not None:
            self._transport = _Losing(transport, self)  # type: ignore[assignment]
            try:
                super().transmit()
            finally:
                self._transport = transport
        else:
            super().transmit()

    async def answer(self, stream_id: int, timeout_s: float = WAIT_S) -> tuple[int, bytes]:
        """(status, payload). ConnectionError, TimeoutError."""
        data = await asyncio.wait_for(self._done[stream_id], timeout_s)
        status, length = struct.unpack_from("<II", data)
        assert len(data) == 8 + length and (status == 0 or length == 0), data[:64]
        return status, data[8:]

    async def ask(self, code: int, payload: bytes = b"", timeout_s: float = WAIT_S) -> tuple[int, bytes]:
        return await self.answer(self.write(request_frame(code, payload)), timeout_s)

    async def done(self, code: int, payload: bytes = b"") -> bytes:
        """What must succeed."""
        status, answer = await self.ask(code, payload)
        assert status == 0, (code, status)
        return answer

    async def login(self, username: str = "iggy", password: str = "iggy") -> int:
        payload = wire.str8(username) + wire.str8(password) + wire.str32("") + wire.str32("")
        return (await self.ask(wire.LOGIN_USER, payload))[0]

    async def send(self, stream: int, topic: int, partition: int, payloads: list[bytes]) -> int:
        return (await self.ask(wire.SEND_MESSAGES, batch(stream, topic, partition, payloads)))[0]

    async def poll(self, stream: int, topic: int, partition: int, offset: int, count: int) -> bytes:
        """The answer as it is."""
        asked = wire.consumer() + wire.identifier(stream) + wire.identifier(topic) + wire.optional_partition(partition)
        return await self.done(wire.POLL_MESSAGES, asked + struct.pack("<BQIB", wire.POLL_OFFSET, offset, count, 0))


def batch(stream: int, topic: int, partition: int, payloads: list[bytes]) -> bytes:
    """The payload of SEND_MESSAGES."""
    records = [wire.message(payload) for payload in payloads]
    ends, end = [], 0
    for record in records:
        end += len(record)
        ends.append(struct.pack("<IIQ", 0, end, 0))
    head = wire.identifier(stream) + wire.identifier(topic) + wire.to_partition(partition)
    head += struct.pack("<I", len(records))
    return struct.pack("<I", len(head)) + head + b"".join(ends) + b"".join(records)


@contextlib.asynccontextmanager
async def connected(address: tuple[str, int], source: str = HOST, **settings: Any) -> AsyncIterator[QuicClient]:
    """A client; `settings`: of its QuicConfiguration."""
    chosen = {"verify_mode": ssl.CERT_NONE, "server_name": "localhost", **settings}
    configuration = QuicConfiguration(is_client=True, **chosen)
    loop = asyncio.get_running_loop()
    _, client = await loop.create_datagram_endpoint(
        lambda: QuicClient(QuicConnection(configuration=configuration)), local_addr=(source, 0)
    )
    try:
        client.connect(address)
        await asyncio.wait_for(client.wait_connected(), WAIT_S)
        yield client
    finally:
        client.hang_up()
