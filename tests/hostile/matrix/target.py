"""The server of the matrix: one with every door, users of every role, and what an attacker has to know of it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from shardd.protocol.account_requests import CreateUserRequest
from shardd.protocol.codes import Code
from shardd.protocol.permissions import Permissions
from tests.doors.http_server import HttpClient
from tests.doors.liftbridge_server import LiftbridgeClient
from tests.hostile.matrix.https import SecureClient
from tests.hostile.matrix.lines import READER, RIGHTLESS, STRANGER
from tests.support import wire
from tests.support.doors import serving_door
from tests.support.server import Server

OTHER: Final = "other"  # the user whose progress is looked at
PASSWORD: Final = "secret"
STREAM, SMALL, BIG = "net", "small", "big"
NAMESPACE: Final = "liftbridge-default"
_BIG_MESSAGES: Final = 3
_BIG_BYTES: Final = 900_000
_ANY_PORT: Final = "127.0.0.1:0"
_ALWAYS: Final = {
    "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2",
    "SHARDD_TCP_TLS_MODE": "both",
    "SHARDD_TCP_TLS_SELF_SIGNED": "true",
}


def _on(name: str) -> dict[str, str]:
    return {f"SHARDD_{name}_ENABLED": "true", f"SHARDD_{name}_ADDRESS": _ANY_PORT}


_TLS: Final = {"SHARDD_WEBSOCKET_TLS_MODE": "both", "SHARDD_WEBSOCKET_TLS_SELF_SIGNED": "true"}
_SETTINGS: Final = {
    "websocket": _on("WEBSOCKET") | _TLS,
    "wss": _on("WEBSOCKET") | _TLS,
    "http": _on("HTTP"),
    "https": _on("HTTP") | {"SHARDD_HTTP_TLS_ENABLED": "true", "SHARDD_HTTP_TLS_SELF_SIGNED": "true"},
    "metrics": _on("METRICS"),
    "quic": _on("QUIC"),
    "grpc": _on("LIFTBRIDGE"),
    "nats": _on("LIFTBRIDGE") | _on("LIFTBRIDGE_NATS_SERVER"),
}
_PROCESSES: Final = {
    "http": "http", "https": "http", "metrics": "metrics", "quic": "quic", "grpc": "liftbridge", "nats": "liftbridge",
}  # fmt: skip
_PARTS: Final = {
    "tcp": ("tcp",), "tls": ("tcp",), "iggy09": ("tcp",), "websocket": ("websocket",), "wss": ("websocket",),
    "http": ("http",), "https": ("http",), "metrics": ("metrics",), "quic": ("quic",), "grpc": ("liftbridge",),
    "nats": ("liftbridge", "nats_server"),
}  # fmt: skip


_RIGHTS: Final = {
    RIGHTLESS: None,
    READER: Permissions(read_streams=True, read_topics=True, poll_messages=True),
    OTHER: Permissions(manage_streams=True, send_messages=True, poll_messages=True),
}


class Target(msgspec.Struct, frozen=True):
    """`addresses`: by door; that of `unix` is a path. `tokens`, `bearers` (of HTTP): by role."""

    addresses: dict[str, str]
    tokens: dict[str, str]
    bearers: dict[str, str]


class MatrixServer(Server):
    """With these doors and those of the engine: tcp, tls, iggy09, unix. HTTPS and HTTP are one or the other. `target`
    is known when it has started."""

    def __init__(self, data: Path, doors: Iterable[str]) -> None:
        self.socket_path = str(data.with_name("u.sock"))
        settings = _ALWAYS | {"SHARDD_UNIX_PATH": self.socket_path}
        self.doors = frozenset(doors)
        assert not {"http", "https"} <= self.doors
        for name in self.doors:
            settings |= _SETTINGS.get(name, {})
        super().__init__(data, settings)
        self.target = Target({}, {}, {})

    def start(self, timeout_s: float = 60.0) -> None:
        super().start(timeout_s)
        self.served()
        self.target = self._prepared()

    def served(self) -> dict[str, int]:
        """Process ids of workers and doors by what they are; waits for all of them."""
        found = {f"worker {shard}": pid for shard, pid in enumerate(self.worker_pids())}
        names = {_PROCESSES[door] for door in self.doors if door in _PROCESSES}
        return found | {f"door {name}": serving_door(self, name, timeout_s=120.0).pid for name in sorted(names)}

    def pid_of(self, door: str) -> int:
        """Of the process that serves it; of the engine's doors the first worker."""
        return self.served()[f"door {_PROCESSES[door]}" if door in _PROCESSES else "worker 0"]

    def _has(self, path: tuple[str, ...]) -> bool:
        return path == ("tcp",) or any(_PARTS.get(door) == path for door in self.doors)

    def _prepared(self) -> Target:
        addresses = self._addresses()
        tokens = {STRANGER: ""}
        with wire.connect(self.address) as root:
            for name, rights in _RIGHTS.items():
                root.request(Code.CREATE_USER, CreateUserRequest(name, PASSWORD, 1, rights).encode())
                with wire.Wire(self.address) as user:
                    user.login(name, PASSWORD)
                    tokens[name] = user.create_token("matrix")
            stream = root.create_stream(STREAM)
            root.create_topic(stream, SMALL, 2)
            root.create_topic(stream, BIG, 1)
            places = [STREAM]
            if "grpc" in addresses:
                shown = [("authorization", f"Bearer {tokens[OTHER]}")]
                with LiftbridgeClient(addresses["grpc"], shown) as client:
                    client.create(BIG)
                places.append(NAMESPACE)
            for place in places:
                for _ in range(_BIG_MESSAGES):
                    root.send(place, BIG, wire.to_partition(0), [wire.message(bytes(_BIG_BYTES))])
        door = "https" if "https" in self.doors else "http"
        bearers = {name: _bearer(door, addresses[door], name) for name in _RIGHTS if door in addresses}
        return Target(addresses, tokens, {STRANGER: "", **bearers})

    def _addresses(self) -> dict[str, str]:
        told = tomllib.loads(self.runtime_config.read_text())
        addresses = {"unix": self.socket_path}
        for door, path in _PARTS.items():
            if self._has(path):
                part = told
                for name in path:
                    part = part[name]
                addresses[door] = part["address"]
        return addresses


def _bearer(door: str, address: str, name: str) -> str:
    host_and_port = wire.host_and_port(address)
    client = SecureClient(host_and_port) if door == "https" else HttpClient(host_and_port)
    answer = client.post("/users/login", {"username": name, "password": PASSWORD})
    client.close()
    assert answer.status == 200, answer
    return str(answer.json["access_token"]["token"])
