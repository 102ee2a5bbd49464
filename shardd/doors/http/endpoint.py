"""What an endpoint is, and one request to it. Routes and their description are made from the same table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from shardd.doors.asgi import PEER, Peer
from shardd.doors.http.bodies import Bodies, decode_json, media_type
from shardd.doors.http.clients import Clients
from shardd.doors.http.errors import JSON, NotAuthenticatedError, RejectedError
from shardd.doors.http.polls import Polls
from shardd.doors.links import WorkerLostError
from shardd.doors.metrics.public import PublicFigures
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Identifier
from shardd.runtime.networks import network_of

BATCH: Final = "application/vnd.shardd.batch"  # records as they are stored
_NAME_BYTES_MAX: Final = 255
_ID_MAX: Final = (1 << 32) - 1
_QUERY_FIELDS_MAX: Final = 32
PASSWORD_BODY_BYTES_MAX: Final = 16 << 10  # of a request that waits for the turn of a password


class Call:
    """One request. `body` and `query` as their types say; `raw`: the body of a binary request. `host`: what its address
    is counted as. `owner`: whose share it counts in: the user's when the user is known, else the host's."""

    def __init__(
        self, request: Request, clients: Clients, polls: Polls, figures: PublicFigures, token: str, address: str
    ) -> None:
        self.request = request
        self.clients = clients
        self.polls = polls
        self.figures = figures
        self.address = address
        self.host = network_of(address)
        self.owner: Hashable = self.host
        self.body: Any = None
        self.query: Any = None
        self.raw = b""
        self._token = token

    @property
    def peer(self) -> Peer:
        found: Peer = self.request.scope[PEER]
        return found

    def text(self, name: str) -> str:
        """A part of the path."""
        return path_text(self.request.path_params[name])

    def identifier(self, name: str) -> Identifier:
        """A part of the path: digits are an id, anything else a name. ShardError 6."""
        return identifier_of(self.text(name))

    def number(self, name: str) -> int:
        """A part of the path that must be an id. RejectedError 400."""
        text = self.text(name)
        if not (text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) <= _ID_MAX):
            raise RejectedError(400, f"Invalid URL: {text!r} is no id")
        return int(text)

    @property
    def topic(self) -> dict[str, Identifier]:
        return {"stream": self.identifier("stream"), "topic": self.identifier("topic")}

    async def command(self, name: str, request: object = None) -> Any:
        """What a service returns, as maps and lists. A login that has ended is made again, if its token still holds;
        a question whose worker dies is asked again."""
        try:
            return await self._ask(name, request)
        except NotAuthenticatedError:
            return await self._ask(name, request)
        except WorkerLostError:
            if not name.startswith("get_"):
                raise
            return await self._ask(name, request)

    async def _ask(self, name: str, request: object) -> Any:
        """NotAuthenticatedError also when its login has ended."""
        client = await self.clients.take(self._token, self.address)
        try:
            return await client.command(name, request)
        except OverflowError:  # no integer of the protocol
            raise ShardError(Status.INVALID_FORMAT) from None
        except ShardError as error:
            if error.status is not Status.UNAUTHENTICATED:
                raise
            await self.clients.drop(client)
            raise NotAuthenticatedError from None


Handler = Callable[[Call], Awaitable[object]]


class Endpoint(msgspec.Struct, frozen=True):
    """`path`: with {names}; `body`, `query`, `reply`: their types. A handler returns a value of `reply`, nothing, or a
    whole response. `binary`: it takes `BATCH` as well; `media`: what it answers when that is no JSON.
    `waits`: for a turn, as that of a password; its body is small, and has no part in the room for bodies until then."""

    method: str
    path: str
    handler: Handler
    summary: str
    body: Any = None
    query: Any = None
    reply: Any = None
    status: int = 200
    binary: bool = False
    media: str = JSON
    waits: bool = False

    async def answer(self, call: Call, bodies: Bodies) -> Response:
        """What is not as its type says: RejectedError."""
        call.query = None if self.query is None else decode_query(call.request, self.query)
        bytes_max = PASSWORD_BODY_BYTES_MAX if self.waits else None
        held, raw = await bodies.read(call.request, call.owner, call.host, call.peer, bytes_max)
        try:
            if self.binary and media_type(call.request) == BATCH:
                call.raw = raw
            elif self.body is not None:
                call.body = decode_json(call.request, raw, msgspec.json.Decoder(self.body).decode)
            if self.waits:
                held.leave()
            value = await self.handler(call)
        finally:
            held.leave()
        if isinstance(value, Response):
            return value
        if value is None:
            return Response(status_code=self.status)
        return Response(msgspec.json.encode(value), self.status, media_type=JSON)


def path_text(part: str) -> str:
    """RejectedError 400 for what is no UTF-8."""
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise RejectedError(400, "Invalid URL: no UTF-8") from None


def identifier_of(text: str) -> Identifier:
    if not 1 <= len(text.encode()) <= _NAME_BYTES_MAX:
        raise ShardError(Status.INVALID_IDENTIFIER)
    digits = text.removeprefix("+")
    if digits.isascii() and digits.isdecimal() and int(digits) <= _ID_MAX:
        return int(digits)
    return text


def decode_query(request: Request, kind: Any) -> Any:
    """RejectedError 400. Of a name that is there twice the last one counts; unknown ones are ignored."""
    text = request.scope["query_string"].decode("latin-1")
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_QUERY_FIELDS_MAX)
        return msgspec.convert(dict(pairs), kind, strict=False)
    except (msgspec.ValidationError, UnicodeDecodeError, ValueError) as error:
        raise RejectedError(400, f"Failed to deserialize query string: {error}") from None
