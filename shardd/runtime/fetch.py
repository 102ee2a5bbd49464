"""GET of a small document, for a thread that may wait: all of it is bounded in bytes and in time. No redirect is
followed, no cookie kept, no proxy asked, and nothing is sent but the question."""

from __future__ import annotations

import io
import socket
import ssl
import time
from typing import Final
from urllib.parse import SplitResult, urlsplit

_HEAD_BYTES_MAX: Final = 16 << 10
_READ_BYTES: Final = 16 << 10
_PORTS: Final = {"http": 80, "https": 443}


class FetchError(Exception):
    """Why there is no document; the text is for the log."""


def fetch(url: str, bytes_max: int, timeout_s: float) -> bytes:
    """The body of an answer with status 200. FetchError. Only names are looked up for as long as that takes."""
    from http.client import HTTPException

    parts = urlsplit(url)
    deadline_s = time.monotonic() + timeout_s
    try:
        with _connect(parts, deadline_s) as stream:
            stream.sendall(_request(parts))
            answer = _read(stream, _HEAD_BYTES_MAX + bytes_max, deadline_s)
        body = _body(answer)
    except TimeoutError as error:
        raise FetchError(f"no whole answer within {timeout_s:g} s") from error
    except (OSError, HTTPException, ValueError) as error:
        raise FetchError(f"{type(error).__name__}: {error}"[:200]) from error
    if len(body) > bytes_max:
        raise FetchError(f"more than {bytes_max} bytes")
    return body


def _connect(parts: SplitResult, deadline_s: float) -> socket.socket:
    """To the first address that answers."""
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    failure: OSError = ConnectionError("the name has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        stream = socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)
        try:
            stream.settimeout(_left(deadline_s))
            stream.connect(address)
            return stream if parts.scheme == "http" else _secured(stream, host)
        except OSError as error:
            stream.close()
            failure = error
    raise failure


def _secured(stream: socket.socket, host: str) -> socket.socket:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context.wrap_socket(stream, server_hostname=host)


def _request(parts: SplitResult) -> bytes:
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = parts.netloc
    return (
        f"GET {target} HTTP/1.1\r\nHost: {host}\r\nAccept: application/json\r\nAccept-Encoding: identity\r\n"
        "Connection: close\r\n\r\n"
    ).encode("ascii")


def _read(stream: socket.socket, bytes_max: int, deadline_s: float) -> bytes:
    data = bytearray()
    while True:
        stream.settimeout(_left(deadline_s))
        part = stream.recv(_READ_BYTES)
        if not part:
            return bytes(data)
        data += part
        if len(data) > bytes_max:
            raise FetchError(f"more than {bytes_max} bytes")


def _left(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


class _Received:
    """What has come, as http.client reads it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def _body(answer: bytes) -> bytes:
    from http.client import OK, HTTPResponse

    response = HTTPResponse(_Received(answer))  # type: ignore[arg-type]
    response.begin()
    if response.status != OK:
        raise FetchError(f"status {response.status}")
    if response.getheader("content-encoding", "identity") != "identity":
        raise FetchError("an encoded body")
    return response.read()
