"""Bodies of requests: bounded in bytes, in time, and in what all of them hold at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import msgspec
from starlette.requests import ClientDisconnect, Request

from shardd.doors.http.errors import JSON, RejectedError

ALL_BODIES_BYTES_MAX: Final = 64 << 20
DROPPED_BYTES_MAX: Final = 16 << 20  # of a body that is too large
ADDRESS_SHARE: Final = 2  # one address has at most 1/2 of that


class Bodies:
    """Reads them. `body_bytes_max`: of one; `timeout_s`: for it to come."""

    def __init__(self, body_bytes_max: int, timeout_s: float) -> None:
        self._body_bytes_max = body_bytes_max
        self._timeout_s = timeout_s
        self._all = 0
        self._of: Counter[str] = Counter()

    async def read(self, request: Request, host: str, body_bytes_max: int | None = None) -> bytes:
        """RejectedError 400, 408, 413, 503. What is taken is given back with `release`. `body_bytes_max`: of this one,
        where it may have less than others."""
        bytes_max = self._body_bytes_max if body_bytes_max is None else min(body_bytes_max, self._body_bytes_max)
        declared = request.headers.get("content-length", "")
        if not declared and "transfer-encoding" not in request.headers:
            return b""  # there is none
        if declared.isdecimal() and int(declared) > bytes_max:
            await self._drop(request, 0)
            raise _too_large()
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._timeout_s):
                async for chunk in request.stream():
                    self._take(host, len(chunk))
                    chunks.append(chunk)
                    size += len(chunk)
                    if size > bytes_max:
                        break
        except TimeoutError:
            self.release(host, size)
            raise RejectedError(408, "The body did not come in time", close=True) from None
        except ClientDisconnect:
            self.release(host, size)
            raise RejectedError(400, "The body ends early", close=True) from None
        except BaseException:
            self.release(host, size)
            raise
        if size > bytes_max:
            self.release(host, size)
            chunks.clear()
            await self._drop(request, size)
            raise _too_large()
        return b"".join(chunks)

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

    def release(self, host: str, size: int) -> None:
        self._all -= size
        self._of[host] -= size
        if not self._of[host]:
            del self._of[host]

    def _take(self, host: str, size: int) -> None:
        if self._all + size > ALL_BODIES_BYTES_MAX or self._of[host] + size > ALL_BODIES_BYTES_MAX // ADDRESS_SHARE:
            raise RejectedError(503, "Too many bodies at a time", close=True)
        self._all += size
        self._of[host] += size


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
