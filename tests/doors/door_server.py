"""A real server with doors for tests, and blocking clients of them."""

from __future__ import annotations

import itertools
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec
import psutil

from shardd.client.closing import Closing
from shardd.protocol.door_frames import (
    ANSWER_BYTES_MAX,
    Command,
    Frames,
    Kind,
    LoggedIn,
    Login,
    OpenClient,
    Request,
    decode_answer,
    encode_frame,
    encode_request,
)
from tests.support.doors import serving_door
from tests.support.ports import free_port
from tests.support.server import Server

HERE: Final = Path(__file__).parent
HOST: Final = "127.0.0.1"
TWO_SHARDS: Final = {"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2"}
WAIT_S: Final = 60.0
LOST: Final = 11_001


class StatusError(Exception):
    """What a door's client was refused with."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"status {status}: {reason}")
        self.status = status


class DoorServer(Server):
    """`doors`: by name the program of each. `ports`: where they listen."""

    def __init__(
        self, data: Path, env: Mapping[str, str] | None = None, doors: Sequence[str] = ("json",), shards: int = 2
    ) -> None:
        self.ports = {door: free_port() for door in doors}
        specifications = [
            {
                "name": door,
                "command": [str(HERE / f"{door}_door.py"), HOST, str(port)],
                "addresses": {"asgi.address": f"{HOST}:{port}"} if door == "asgi" else {},
            }
            for door, port in self.ports.items()
        ]
        text = msgspec.json.encode(specifications).decode()
        launcher = [sys.executable, str(HERE / "serve_with_doors.py"), text]
        super().__init__(data, {**TWO_SHARDS, **(env or {})}, launcher=launcher)

    def start(self, timeout_s: float = WAIT_S) -> None:
        super().start(timeout_s)
        for door in self.ports:
            self.door(door)

    def door(self, name: str = "json", other_than: int = 0) -> psutil.Process:
        """The process of a door that serves; waits for it."""
        return serving_door(self, name, other_than)

    def client(self, source: str = HOST) -> JsonWire:
        return JsonWire(self.ports["json"], source)

    def root(self) -> JsonWire:
        client = self.client()
        client.ask("login", username="iggy", password="iggy")
        return client

    def relay(self, shard: int, *proof: str) -> FrameWire:
        return FrameWire(self.ports["relay"], shard, *proof)


class JsonWire(Closing):
    """One connection to the JSON door; a context manager."""

    def __init__(self, port: int, source: str = HOST) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=WAIT_S, source_address=(source, 0))
        self._lines = self._socket.makefile("rb")
        self._ids = itertools.count(1)
        self.shard = -1

    @property
    def address(self) -> str:
        host, port = self._socket.getsockname()
        return f"{host}:{port}"

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def send(self, do: str, request: object = None, **more: object) -> int:
        """Without waiting for the answer; its number."""
        number = next(self._ids)
        said = {"id": number, "do": do, **more} | ({} if request is None else {"request": request})
        self._socket.sendall(msgspec.json.encode(said) + b"\n")
        return number

    def receive(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            raise ConnectionError("the door has closed the connection")
        answer: dict[str, Any] = msgspec.json.decode(line)
        self.shard = answer.get("shard", self.shard)
        return answer

    def ask(self, do: str, request: object = None, **more: object) -> Any:
        number = self.send(do, request, **more)
        answer = self.receive()
        assert answer["id"] == number
        if "status" in answer:
            raise StatusError(answer["status"], answer.get("reason", ""))
        return answer["value"]


class FrameWire:
    """Raw frames through the door that passes everything on; a context manager."""

    def __init__(self, port: int, shard: int, *proof: str) -> None:
        self.socket = socket.create_connection((HOST, port), timeout=WAIT_S)
        self.socket.sendall(" ".join([str(shard), *proof]).encode() + b"\n")
        self._frames = Frames(ANSWER_BYTES_MAX)
        self._ids = itertools.count(2)
        self.answers: dict[int, tuple[int, int, bytes]] = {}
        self.answered: list[int] = []  # in the order of their arrival

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def proven(self) -> Self:
        assert self.answer(1)[0] == 0
        return self

    def send(self, kind: Kind, request: Request) -> int:
        number = next(self._ids)
        self.socket.sendall(encode_request(number, kind, request))
        return number

    def send_raw(self, kind: int, payload: bytes) -> None:
        self.socket.sendall(encode_frame(next(self._ids), kind, payload))  # type: ignore[arg-type]

    def answer(self, number: int) -> tuple[int, int, bytes]:
        """(status, flags, value). ConnectionError when the worker closes it instead."""
        while number not in self.answers:
            data = self.socket.recv(65_536)
            if not data:
                raise ConnectionError("closed")
            self._frames.feed(data)
            while (frame := self._frames.take()) is not None:
                if frame.kind == Kind.ANSWER:
                    self.answered.append(frame.request_id)
                    status, flags, value = decode_answer(frame.payload)
                    self.answers[frame.request_id] = status, flags, bytes(value)
        return self.answers.pop(number)

    def ask(self, kind: Kind, request: Request) -> tuple[int, int, bytes]:
        return self.answer(self.send(kind, request))

    def open(self, address: str = "192.0.2.1:7") -> int:
        status, _, value = self.ask(Kind.OPEN_CLIENT, OpenClient(address))
        assert status == 0
        return int(msgspec.msgpack.decode(value))

    def login(self, client: int, username: str = "iggy", password: str = "iggy") -> int:
        status, _, value = self.ask(Kind.LOGIN, Login(client, username, password))
        assert status == 0, status
        return msgspec.msgpack.decode(value, type=LoggedIn).handle

    def command(self, handle: int, name: str, request: object = None) -> int:
        """The status."""
        fields = msgspec.Raw(msgspec.msgpack.encode({} if request is None else request))
        return self.ask(Kind.COMMAND, Command(handle, name, fields))[0]

    def is_closed(self) -> bool:
        """Waits until the worker has closed it."""
        try:
            while True:
                if not self.socket.recv(65_536):
                    return True
        except ConnectionError:
            return True
        except TimeoutError:
            return False
