"""Mutated requests at the door for HTTP: in pipelines where each has an end, else on a connection of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from tests.doors.http_server import HttpServer
from tests.fuzz.door_lanes import Work
from tests.fuzz.door_watch import DoorWatch
from tests.fuzz.http_requests import HttpRequests, Request
from tests.fuzz.lanes import FindingError

LANES: Final = 6
PIPELINE: Final = 16
ANSWER_TIMEOUT_S: Final = 120.0
GROWTH_MAX_BYTES: Final = 256 << 20
# what docs/protocol/http.md lists, and what the library says of a head that is none
STATUSES: Final = frozenset({200, 201, 204, 400, 401, 403, 404, 405, 408, 413, 415, 421, 422, 431, 503})
_LINE_MAX: Final = 1 << 20


class LostError(Exception):
    """The connection ended before its answer."""


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bool]:
    """Status, and whether the connection ends behind it. LostError; FindingError for what is no answer."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        if isinstance(error, asyncio.IncompleteReadError) and error.partial:
            raise FindingError(f"half an answer: {error.partial[:200]!r}") from error
        raise LostError from error
    first, *lines = head[:-4].split("\r\n")
    version, _, rest = first.partition(" ")
    if version != "HTTP/1.1" or not rest[:3].isdigit():
        raise FindingError(f"no answer of HTTP: {first[:200]!r}")
    status = int(rest[:3])
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if status not in STATUSES and status != 100:
        raise FindingError(f"status {status}")
    if status == 100:
        return await read_answer(reader)
    if fields.get("transfer-encoding") == "chunked":
        while size := int(await reader.readuntil(b"\r\n"), 16):
            await reader.readexactly(size + 2)
        await reader.readuntil(b"\r\n")
    elif status != 204:
        await reader.readexactly(int(fields["content-length"]))
    return status, fields.get("connection", "").lower() == "close"


class HttpLane:
    """A connection for pipelines, made again when the server ends it; another for each request without a clear end."""

    def __init__(self, server: HttpServer, requests: HttpRequests, counts: Counter[str]) -> None:
        self._server, self._requests, self._counts = server, requests, counts
        self._token = ""
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def step(self) -> int:
        """Some requests and their answers; how many."""
        if not self._token:
            self._token = await asyncio.to_thread(lambda: self._server.root().token)
        drawn = [self._requests.next(self._token) for _ in range(PIPELINE)]
        for each in drawn:
            if not each.is_framed:
                await self._alone(each)
        await self._pipeline([each for each in drawn if each.is_framed])
        return len(drawn)

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self._server.http_address, limit=_LINE_MAX)

    async def _pipeline(self, requests: list[Request]) -> None:
        """Those behind an answer that ends the connection go over the next one."""
        while requests:
            if self._streams is None:
                self._streams = await self._connect()
            reader, writer = self._streams
            writer.write(b"".join(each.data for each in requests))
            done = 0
            for each in requests:
                try:
                    status, ends = await asyncio.wait_for(self._answer(reader, each), ANSWER_TIMEOUT_S)
                except LostError:
                    raise FindingError(f"no answer to {each.data!r}") from None
                except TimeoutError:
                    raise FindingError(f"no answer within {ANSWER_TIMEOUT_S:.0f} s to {each.data!r}") from None
                self._counts[str(status)] += 1
                done += 1
                if status == 401:
                    self._token = self._token if b"Authorization" not in each.data else ""
                if ends:
                    await self.close()
                    break
            requests = requests[done:]

    async def _answer(self, reader: asyncio.StreamReader, request: Request) -> tuple[int, bool]:
        try:
            return await read_answer(reader)
        except FindingError as finding:
            raise FindingError(f"{finding}, to {request.data!r}") from None

    async def _alone(self, request: Request) -> None:
        """Whatever comes is made of answers; the server ends the connection behind them, or when it is left."""
        reader, writer = await self._connect()
        try:
            with contextlib.suppress(ConnectionError):
                writer.write(request.data)
                writer.write_eof()
            while True:
                try:
                    status, ends = await asyncio.wait_for(self._answer(reader, request), ANSWER_TIMEOUT_S)
                except LostError:
                    self._counts["ended"] += 1
                    return
                except TimeoutError:
                    raise FindingError(f"neither answer nor end to {request.data!r}") from None
                except (asyncio.IncompleteReadError, ConnectionError):
                    self._counts["cut"] += 1
                    return
                self._counts[str(status)] += 1
                if ends:
                    return
        finally:
            writer.close()


async def fuzz_http(data: Path, inputs: int, seed: int, progress: Callable[[int], None]) -> Counter[str]:
    """How often each status was answered. FindingError."""
    counts = Counter[str]()
    with HttpServer(data) as server:
        root = server.root()
        for name in ("s", "s2"):
            root.done("POST", "/streams", {"name": name})
        root.done("POST", "/streams/s/topics", {"name": "t", "partitions_count": 2})
        description = msgspec.json.decode(root.get("/openapi.json").body)
        work = Work(inputs, DoorWatch(server, server.door(), GROWTH_MAX_BYTES), progress)

        async def run(number: int) -> None:
            lane = HttpLane(server, HttpRequests(seed * LANES + number, description), counts)
            try:
                while not work.is_over:
                    work.sent(await lane.step())
            finally:
                await lane.close()

        await work.run(LANES, run)
    counts["inputs"] = work.done
    return counts
