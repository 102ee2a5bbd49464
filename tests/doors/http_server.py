"""A real server with its door for HTTP, and a blocking client of it."""

from __future__ import annotations

import http.client
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import psutil

from tests.support.doors import serving_door
from tests.support.server import Server

HOST: Final = "127.0.0.1"
WAIT_S: Final = 60.0
HTTP: Final = {
    "SHARDD_HTTP_ENABLED": "true",
    "SHARDD_HTTP_ADDRESS": f"{HOST}:0",
    "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2",
}


class Answer(NamedTuple):
    """`json`: None when the body is none."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body) if self.body else None

    @property
    def error(self) -> tuple[int, int]:
        """The HTTP status and the id of the error in the body."""
        return self.status, self.json["id"]


class HttpServer(Server):
    """`http_address` is known when it has started."""

    def __init__(self, data: Path, env: Mapping[str, str] | None = None) -> None:
        super().__init__(data, {**HTTP, **(env or {})})
        self.http_address = (HOST, 0)

    def start(self, timeout_s: float = WAIT_S) -> None:
        super().start(timeout_s)
        host, _, port = tomllib.loads(self.runtime_config.read_text())["http"]["address"].rpartition(":")
        self.http_address = host, int(port)
        self.door()

    def door(self, other_than: int = 0) -> psutil.Process:
        """The process of the door when it serves; waits for it."""
        return serving_door(self, "http", other_than)

    def connect(self, source: str = HOST) -> socket.socket:
        return socket.create_connection(self.http_address, timeout=WAIT_S, source_address=(source, 0))

    def client(self, token: str = "", source: str = HOST) -> HttpClient:
        return HttpClient(self.http_address, token, source)

    def root(self) -> HttpClient:
        return self.logged_in("iggy", "iggy")

    def logged_in(self, username: str, password: str) -> HttpClient:
        client = self.client()
        answer = client.post("/users/login", {"username": username, "password": password})
        assert answer.status == 200, answer
        client.token = answer.json["access_token"]["token"]
        return client


class HttpClient:
    """One connection that is made again when it was closed."""

    def __init__(self, address: tuple[str, int], token: str = "", source: str = HOST) -> None:
        self.token = token
        self._connection = http.client.HTTPConnection(*address, timeout=WAIT_S, source_address=(source, 0))

    def close(self) -> None:
        self._connection.close()

    @property
    def port(self) -> int:
        """Of this end, while it is connected."""
        return int(self._connection.sock.getsockname()[1])

    def ask(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Answer:
        """`body`: bytes as they are, anything else as JSON."""
        sent = dict(headers or {})
        if self.token:
            sent.setdefault("Authorization", f"Bearer {self.token}")
        data = body if isinstance(body, bytes) or body is None else msgspec.json.encode(body)
        if data is not None:
            sent.setdefault("Content-Type", "application/json")
        try:
            self._connection.request(method, path, data, sent)
            answer = self._connection.getresponse()
            return Answer(answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read())
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise

    def get(self, path: str) -> Answer:
        return self.ask("GET", path)

    def post(self, path: str, body: object = None) -> Answer:
        return self.ask("POST", path, body)

    def put(self, path: str, body: object = None) -> Answer:
        return self.ask("PUT", path, body)

    def delete(self, path: str) -> Answer:
        return self.ask("DELETE", path)

    def done(self, method: str, path: str, body: object = None) -> Any:
        """What must succeed."""
        answer = self.ask(method, path, body)
        assert 200 <= answer.status < 300, (method, path, answer)
        return answer.json
