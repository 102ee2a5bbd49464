"""HTTP and HTTPS, and the door for metrics, which speaks HTTP without a login."""

from __future__ import annotations

import socket
from typing import Final

import msgspec

from tests.doors.http_server import HttpClient
from tests.hostile.matrix import door
from tests.hostile.matrix.https import SecureClient
from tests.hostile.matrix.lines import READER, STRANGER
from tests.hostile.matrix.target import BIG, OTHER, STREAM, Target
from tests.support import wire

_TINY_CHUNKS: Final = 4_000
_JSON: Final = "Content-Type: application/json\r\n"


class _Client:
    def __init__(self, made: HttpClient, path: str) -> None:
        self._peer, self._path = made, path

    def ask(self) -> None:
        answer = self._peer.get(self._path)
        assert answer.status == 200, answer

    def close(self) -> None:
        self._peer.close()


def _asked(method: str, path: str, bearer: str, fields: str = "", body: bytes = b"") -> bytes:
    shown = f"Authorization: Bearer {bearer}\r\n" if bearer else ""
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{shown}{fields}{length}\r\n".encode() + body


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)


class Http:
    """`name`: http, https or metrics."""

    kernel_bytes_max = 256 << 10

    def __init__(self, name: str) -> None:
        self._name = name

    def enter(self, target: Target, role: str, *, deaf: bool) -> door.Entered:
        made = door.connected(target.addresses[self._name], deaf=deaf)
        if self._name == "https":
            made = door.secured(made)
        return door.Entered(made, _of_metrics() if self._name == "metrics" else _of_http(target, role))

    def knock(self, target: Target) -> tuple[socket.socket, bytes]:
        return door.connected(target.addresses[self._name]), door.hello() if self._name == "https" else b"GET / HT"

    def client(self, target: Target) -> door.Client:
        address = wire.host_and_port(target.addresses[self._name])
        if self._name == "metrics":
            return _Client(HttpClient(address), "/metrics")
        kind = SecureClient if self._name == "https" else HttpClient
        return _Client(kind(address, target.bearers[OTHER]), "/streams")


def _of_metrics() -> door.Means:
    request = _asked("GET", "/metrics", "")
    half = request[:-4] + b"\r\nX: "
    return door.Means(
        lambda _: request, lambda _: request * 16, lambda _: half, lambda _: request, lambda _: b"",
    )  # fmt: skip


def _of_http(target: Target, role: str) -> door.Means:
    bearer = target.bearers[role]
    request = _asked("GET", "/ping" if role == STRANGER else "/streams", bearer)
    page = _asked("GET", "/openapi.json", "") * 16
    polled = f"/streams/{STREAM}/topics/{BIG}/messages?consumer_id=1&partition_id=0&kind=offset&value=0&count=3"
    large = _asked("GET", polled, bearer) * 2 if role == READER else page
    to = "/users/login" if role == STRANGER else "/streams"
    half = _asked("POST", to, bearer, _JSON + "Content-Length: 1000000\r\n") + b"{" * 1_000
    chunked = _asked("POST", to, bearer, _JSON + "Transfer-Encoding: chunked\r\n")
    small = chunked + b"1\r\n{\r\n" * _TINY_CHUNKS + b"0\r\n\r\n"
    if role == STRANGER:
        wrong = _asked("POST", "/users/login", "", _JSON, _json({"username": OTHER, "password": "wrong"}))
    else:
        change = {"current_password": "wrong", "new_password": "another"}
        wrong = _asked("PUT", f"/users/{role}/password", bearer, _JSON, _json(change))
    return door.Means(lambda _: request, lambda _: large, lambda _: half, lambda _: small, lambda _: wrong, 1 << 16)
