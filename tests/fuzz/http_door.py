"""Mutated requests at the doors that speak HTTP: in pipelines where each has an end, else on a connection of its own,
some of these beside each other."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Protocol

import msgspec

from tests.doors.http_server import HttpClient, HttpServer
from tests.fuzz.contents import remove_all
from tests.fuzz.door_lanes import FuzzedDoor, Work
from tests.fuzz.http_requests import HttpRequests, Request
from tests.fuzz.lanes import FindingError
from tests.hostile.matrix.https import SecureClient, trusting_anything
from tests.support import wire

LANES: Final = 6
PIPELINE: Final = 16
ALONE: Final = 3  # connections of a lane beside its pipeline: with those of other lanes fewer than an address may have
ANSWER_TIMEOUT_S: Final = 120.0
LEFT_AFTER_S: Final = 0.2  # over TLS a client cannot end its side alone: it goes when nothing comes for so long
# what docs/protocol/http.md lists, and what the library says of a head that is none
STATUSES: Final = frozenset({200, 201, 204, 400, 401, 403, 404, 405, 408, 413, 415, 421, 422, 431, 503})
_LINE_MAX: Final = 1 << 20
_TLS: Final = {"SHARDD_HTTP_TLS_ENABLED": "true", "SHARDD_HTTP_TLS_SELF_SIGNED": "true"}


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


class Requests(Protocol):
    """Draws one request after the other."""

    def next(self, token: str) -> Request: ...


class Target(NamedTuple):
    """`context`: of TLS, None for plain connections; `login`: makes a token, blocking."""

    address: tuple[str, int]
    context: ssl.SSLContext | None
    login: Callable[[], str]

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.address, ssl=self.context, limit=_LINE_MAX)


class HttpLane:
    """A connection for pipelines, made again when the server ends it; another for each request without a clear end."""

    def __init__(self, target: Target, requests: Requests, counts: Counter[str]) -> None:
        self._target, self._requests, self._counts = target, requests, counts
        self._token = ""
        self._alone_places = asyncio.Semaphore(ALONE)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self, work: Work) -> None:
        try:
            while not work.is_over:
                work.sent(await self.step())
        finally:
            await self.close()

    async def step(self) -> int:
        """Some requests and their answers; how many."""
        if not self._token:
            self._token = await asyncio.to_thread(self._target.login)
        drawn = [self._requests.next(self._token) for _ in range(PIPELINE)]
        async with asyncio.TaskGroup() as beside:
            for each in drawn:
                if not each.is_framed:
                    beside.create_task(self._judge_alone(each))
            await self._pipeline([each for each in drawn if each.is_framed])
        return len(drawn)

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _pipeline(self, requests: list[Request]) -> None:
        """Those behind an answer that ends the connection go over the next one."""
        while requests:
            if self._streams is None:
                self._streams = await self._target.connect()
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

    async def _judge_alone(self, request: Request) -> None:
        async with self._alone_places:
            await self._alone(request)

    async def _alone(self, request: Request) -> None:
        """Whatever comes is made of answers; the server ends the connection behind them, or when it is left."""
        reader, writer = await self._target.connect()
        can_end = writer.can_write_eof()
        try:
            with contextlib.suppress(OSError):  # the door has ended it already
                writer.write(request.data)
                if can_end:
                    writer.write_eof()
            while True:
                try:
                    waits_s = ANSWER_TIMEOUT_S if can_end else LEFT_AFTER_S
                    status, ends = await asyncio.wait_for(self._answer(reader, request), waits_s)
                except LostError:
                    self._counts["ended"] += 1
                    return
                except TimeoutError:
                    if not can_end:
                        self._counts["left"] += 1
                        return
                    raise FindingError(f"neither answer nor end to {request.data!r}") from None
                except (asyncio.IncompleteReadError, ConnectionError):
                    self._counts["cut"] += 1
                    return
                self._counts[str(status)] += 1
                if ends:
                    return
        finally:
            writer.close()


async def answered(target: Target, request: bytes) -> int:
    """The status of one request on a connection of its own."""
    reader, writer = await target.connect()
    try:
        writer.write(request)
        status, _ = await read_answer(reader)
        return status
    finally:
        writer.close()


class HttpDoor(FuzzedDoor):
    """The HTTP API, plain or over TLS."""

    process_name: ClassVar[str] = "http"
    lanes: ClassVar[int] = LANES

    def __init__(self, data: Path, *, over_tls: bool = False) -> None:
        self._http = HttpServer(data, _TLS if over_tls else None)
        super().__init__(self._http)
        self._context = trusting_anything() if over_tls else None
        self._token = ""
        self._description: dict[str, Any] | None = None

    @property
    def _target(self) -> Target:
        return Target(self._http.http_address, self._context, self._login)

    def _client(self) -> HttpClient:
        address = self._http.http_address
        return HttpClient(address) if self._context is None else SecureClient(address)

    def _login(self) -> str:
        with contextlib.closing(self._client()) as client:
            found = client.done("POST", "/users/login", {"username": "iggy", "password": "iggy"})
            return str(found["access_token"]["token"])

    def prepare(self) -> None:
        with wire.connect(self._http.address) as control:
            remove_all(control)
        with contextlib.closing(self._client()) as root:
            root.token = self._token = self._login()
            for name in ("s", "s2"):
                root.done("POST", "/streams", {"name": name})
            root.done("POST", "/streams/s/topics", {"name": "t", "partitions_count": 2})
            self._description = msgspec.json.decode(root.get("/openapi.json").body)

    async def lane(self, number: int, seed: str, work: Work) -> None:
        assert self._description is not None
        await HttpLane(self._target, HttpRequests(seed, self._description), work.counts).run(work)

    async def ask(self) -> None:
        head = f"GET /streams HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self._token}\r\n\r\n"
        status = await answered(self._target, head.encode())
        assert status == 200, status
