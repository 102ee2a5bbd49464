"""Redis Streams of a redis-server that is on the PATH. A stream of the plan is a Redis stream, whatever partitions it
has here; groups are groups of Redis, read with NOACK as auto-commit does."""

from __future__ import annotations

import shutil
import socket
from typing import TYPE_CHECKING, Final

from shardd.benchmark.options import BenchError, Options
from shardd.benchmark.servers.base import Places, Started, free_port, plain_environment, same_places
from shardd.benchmark.servers.wire import stream_name

if TYPE_CHECKING:
    from shardd.benchmark.plan import Actor

_LEVELS: Final[dict[str, tuple[list[str], str]]] = {
    "memory": (["--appendonly", "no"], "no append-only file: acknowledged from memory"),
    "written": (
        ["--appendonly", "yes", "--appendfsync", "everysec"],
        "appendfsync everysec: written to the file before the answer, synced every second",
    ),
    "durable": (["--appendonly", "yes", "--appendfsync", "always"], "appendfsync always: synced before the answer"),
}


class Redis(Started):
    name = "redis"
    dialect = 1

    def check(self, options: Options) -> None:
        if shutil.which("redis-server") is None:
            raise BenchError("there is no redis-server here: apt-get install redis-server")

    def start(self, options: Options) -> None:
        directory = self.make_directory(options)
        words, self.durability = _LEVELS[options.durability]
        self.port = free_port()
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(directory)]
        # no snapshots and no rewrites beside the load: both are Redis' own choice of a moment
        command += ["--save", "", "--auto-aof-rewrite-percentage", "0", "--daemonize", "no", *words]
        self.run(command, options, plain_environment())
        self.wait_for("its log ends with")
        with self.connect() as connection:
            for line in ask(connection, "INFO", "server").splitlines():
                if line.startswith("redis_version:"):
                    self.version = "Redis " + line.partition(":")[2]

    def prepare(self, options: Options) -> Places:
        with self.connect() as connection:
            for number in range(1, options.streams + 1):
                if options.kind.sends and not options.reuse_streams:
                    ask(connection, "DEL", stream_name(number))
            places = same_places(options)
            for number in places.groups:
                stream = stream_name(1 + (number - 1) % options.streams)
                ask(connection, "XGROUP", "CREATE", stream, f"cg-{number}", "0", "MKSTREAM")
        return places

    def open(self, options: Options, actor: Actor) -> socket.socket:
        return self.connect()


def ask(connection: socket.socket, *words: str) -> str:
    """One request whose answer is a line, a number or one text. BenchError."""
    parts = [f"*{len(words)}\r\n", *(f"${len(word.encode())}\r\n{word}\r\n" for word in words)]
    connection.sendall("".join(parts).encode())
    with connection.makefile("rb") as answers:
        line = answers.readline().decode(errors="replace").rstrip("\r\n")
        if line.startswith("$") and line != "$-1":
            return answers.read(int(line[1:]) + 2).decode(errors="replace")
    if not line or line.startswith("-"):
        raise BenchError(f"Redis refused {words[0]}: {line[1:] or 'it closed the connection'}")
    return line[1:]
