"""Bodies of requests: bounded in bytes, in time, and in what all of them hold at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Final

import msgspec
from starlette.requests import ClientDisconnect, Request

from shardd.config.digits import number_of
from shardd.doors.asgi import Peer
from shardd.doors.http.errors import JSON, RejectedError
from shardd.runtime.crowds import FullError, Member, Room

ALL_BODIES_BYTES_MAX: Final = 64 << 20
DROPPED_BYTES_MAX: Final = 16 << 20  # of a body that is too large
ADDRESS_SHARE: Final = 2  # one address of a user, or of strangers, has at most 1/2 of that


class HeldBody:
    """Room that a body has: it grows as the body comes. `peer`: its connection ends when the room goes to an owner that
    has less; a body that is whole keeps its room."""

    def __init__(self, room: Room, owner: Hashable, host: str, peer: Peer) -> None:
        self._room = room
        self._enter = partial(room.enter, owner, host, peer.abort)
        self._member: Member | None = None

    def add(self, size: int) -> None:
        """RejectedError 503."""
        try:
            if self._member is None:
                self._member = self._enter(size)
            else:
                self._room.grow(self._member, size)
        except FullError:
            raise RejectedError(503, "Too many bodies at a time", close=True) from None

    def is_whole(self) -> None:
        if self._member is not None:
            self._room.works(self._member)

    def leave(self) -> None:
        if self._member is not None:
            self._room.leave(self._member)


class Bodies:
    """Reads them. `body_bytes_max`: of one; `timeout_s`: for it to come."""

    def __init__(self, body_bytes_max: int, timeout_s: float) -> None:
        self._body_bytes_max = body_bytes_max
        self._timeout_s = timeout_s
        self._room = Room(ALL_BODIES_BYTES_MAX, ALL_BODIES_BYTES_MAX // ADDRESS_SHARE)

    async def read(
        self, request: Request, owner: Hashable, host: str, peer: Peer, body_bytes_max: int | None = None
    ) -> tuple[HeldBody, bytes]:
        """RejectedError 400, 408, 413, 503. What has room has it until it leaves. `body_bytes_max`: of this one, where
        it may have less than others."""
        bytes_max = self._body_bytes_max if body_bytes_max is None else min(body_bytes_max, self._body_bytes_max)
        held = HeldBody(self._room, owner, host, peer)
        declared = request.headers.get("content-length", "")
        if not declared and "transfer-encoding" not in request.headers:
            return held, b""  # there is none
        if (number_of(declared) or 0) > bytes_max:
            await self._drop(request, 0)
            raise _too_large()
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._timeout_s):
                async for chunk in request.stream():
                    if chunk:
                        held.add(len(chunk))
                    chunks.append(chunk)
                    size += len(chunk)
                    if size > bytes_max:
                        break
        except TimeoutError:
            held.leave()
            raise RejectedError(408, "The body did not come in time", close=True) from None
        except ClientDisconnect:
            held.leave()
            raise RejectedError(400, "The body ends early", close=True) from None
        except BaseException:
            held.leave()
            raise
        if size > bytes_max:
            held.leave()
            chunks.clear()
            await self._drop(request, size)
            raise _too_large()
        held.is_whole()
        return held, b"".join(chunks)

    async def _drop(self, request: Request, size: int) -> None:
        """Takes in what is left, up to a bound: a client that writes all of it before it reads would get a reset
        instead of the answer. One that asks whether it may send (`Expect`) reads first."""
        if "expect" in request.headers:
            return
        if getattr(request, "_stream_consumed", False):
            return  # its last piece was the one too much
        with contextlib.suppress(TimeoutError, ClientDisconnect):
            async with asyncio.timeout(self._timeout_s):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > DROPPED_BYTES_MAX:
                        return


def _too_large() -> RejectedError:
    return RejectedError(413, "Payload too large")


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def decode_json(request: Request, body: bytes, decode: Callable[[bytes], Any]) -> Any:
    """RejectedError 400, 415, 422."""
    if media_type(request) != JSON:
        raise RejectedError(415, "Expected request with `Content-Type: application/json`")
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        raise RejectedError(422, f"Failed to deserialize the JSON body into the target type: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RejectedError(400, f"Failed to parse the request body as JSON: {error}") from None
    except RecursionError:
        raise RejectedError(400, "Failed to parse the request body as JSON: nested too deeply") from None
