"""A door for tests: JSON lines over TCP, one object a line in, one out. It shows what the seam of the doors carries.

    json_door.py HOST PORT DESCRIPTOR       (only the supervisor starts it)

    {"id": 1, "do": "login", "username": "iggy", "password": "iggy"}      -> {"id": 1, "value": 0, "shard": 1}
    {"id": 2, "do": "create_stream", "request": {"name": "orders"}}       -> {"id": 2, "value": {...}}
    {"id": 3, "do": "get_stats"}                                          -> {"id": 3, "status": 41, "reason": "..."}

`do`: login, token, logout, send (payloads to a partition), or the name of a command. Bytes are base64. A client has one
connection at one worker; requests may be pipelined, answers come as they are ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from shardd.client.codec import decode_polled
from shardd.client.messages import POLLED_HEAD
from shardd.doors.door import Door, DoorClient
from shardd.doors.links import WorkerLostError
from shardd.doors.process import run_door
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.send_request import NewMessage, Partitioning, PartitioningKind, SendMessages

LINE_BYTES_MAX: Final = 1 << 20
PIPELINED_MAX: Final = 64  # of one client


class Line(msgspec.Struct):
    """One request."""

    do: str
    id: int = 0
    username: str = ""
    password: str = ""
    token: str = ""
    request: dict[str, Any] = {}


class Sending(msgspec.Struct):
    """What "send" asks for."""

    stream: int | str
    topic: int | str
    partition: int
    payloads: list[bytes]


class JsonClient:
    """One TCP connection and, from its first request on, one client of the door."""

    def __init__(self, door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._door = door
        self._reader = reader
        self._writer = writer
        host, port, *_ = writer.get_extra_info("peername")
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._client: DoorClient | None = None
        self._opening = asyncio.Lock()
        self._places = asyncio.Semaphore(PIPELINED_MAX)
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        try:
            while line := await self._reader.readline():
                await self._places.acquire()
                task = asyncio.create_task(self._answer(line))
                self._tasks.add(task)
                task.add_done_callback(self._done)
                if not self._tasks - {task}:
                    await asyncio.sleep(0)
        except (OSError, ValueError):  # it is gone, or a line is too long
            pass
        finally:
            for task in self._tasks:
                task.cancel()
            if self._client is not None:
                await self._door.close_client(self._client)
            self._writer.close()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._places.release()

    async def _answer(self, line: bytes) -> None:
        number = 0
        answer: dict[str, Any] = {}
        close = False
        try:
            said = msgspec.json.decode(line, type=Line)
            number = said.id
            client = await self._opened()
            answer = {"value": await self._do(client, said), "shard": client.shard}
        except msgspec.MsgspecError as error:
            answer = {"status": int(Status.INVALID_COMMAND), "reason": str(error)}
        except ShardError as error:
            answer = {"status": int(error.status), "reason": str(error)}
            close = error.close or error.status is Status.DISCONNECTED
        except WorkerLostError as error:  # nobody knows whether it was done; the next request finds another worker
            answer = {"status": int(Status.SHARD_COMMUNICATION_ERROR), "reason": str(error)}
        self._writer.write(msgspec.json.encode({"id": number, **answer}) + b"\n")
        try:
            await self._writer.drain()
        except OSError:
            return
        if close:
            self._writer.close()

    async def _opened(self) -> DoorClient:
        async with self._opening:
            if self._client is None or not self._client.is_open:
                self._client = await self._door.open_client(self._address)
            return self._client

    async def _do(self, client: DoorClient, said: Line) -> object:
        if said.do == "login":
            return await client.login(said.username, said.password)
        if said.do == "token":
            return await client.login_with_token(said.token)
        if said.do == "logout":
            await client.logout()
            return None
        if said.do == "send":
            return await client.command("send_messages", sending(said))
        value = await client.command(said.do, said.request)
        if said.do == "poll_messages":
            polled = decode_polled(POLLED_HEAD.pack(0, 0, value["count"]) + value["records"])
            return [{"user_headers": each.headers, **each._asdict()} for each in polled.messages]
        return value


def sending(said: Line) -> SendMessages:
    """{"stream": ..., "topic": ..., "partition": ..., "payloads": [base64, ...]}"""
    asked = msgspec.convert(said.request, Sending)
    to = Partitioning(PartitioningKind.PARTITION, asked.partition)
    return SendMessages.of(asked.stream, asked.topic, to, [NewMessage(payload) for payload in asked.payloads])


async def serve(door: Door) -> None:
    await serve_lines(door, partial(JsonClient, door))


async def serve_lines(door: Door, make: Callable[[asyncio.StreamReader, asyncio.StreamWriter], JsonClient]) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # the door stops
            await make(reader, writer).serve()

    host, port = sys.argv[1:3]
    await asyncio.gather(*(link.connected.wait() for link in door.links))
    server = await asyncio.start_server(client, host, int(port), limit=LINE_BYTES_MAX, reuse_address=True)
    async with server:
        door.ready()
        await server.serve_forever()


if __name__ == "__main__":
    run_door(serve)
