"""What goes on beside a load that is measured: others who ask for much and read little, who join and leave, or who kill
workers of the server."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import psutil

from shardd.benchmark.options import BenchError, Options
from shardd.benchmark.servers.base import START_TIMEOUT_S, TOPIC, Server
from shardd.benchmark.servers.connection import Connection, Control
from shardd.benchmark.servers.own import OwnShardd
from shardd.benchmark.servers.wire import stream_name
from shardd.client import commands, wire
from shardd.client.errors import ClientError

SLOW_CONSUMERS: Final = 8
SLOW_READ_BYTES: Final = 32 << 10
"""At a time, ten times a second: about what a server has to bear (docs/limits.md)."""
SLOW_POLL_MESSAGES: Final = 10_000
BEGIN_TIMEOUT_S: Final = 10.0
REBALANCE_INTERVAL_S: Final = 0.1
KILL: Final = "kill"
KILL_INTERVAL_S: Final = 1.0
KILL_SHARD_INTERVAL_S: Final = 4.0
"""Of one shard: a worker that dies within 3 s again and again is started later and later (server/child_process.py)."""
KILL_LOOK_INTERVAL_S: Final = 0.05
"""Until all shards are there again."""


class Disturbance:
    """`done`: how often it did what it is for. `load_begun`: set by the load that is measured."""

    def __init__(self) -> None:
        self.done = 0
        self.load_begun = threading.Event()
        self.begun = threading.Event()
        self.ended = threading.Event()


def _slow_consumer(found: Disturbance, open_one: Callable[[], Connection], options: Options) -> None:
    """A poll is asked for again when the one before was read to its end, if it ever is."""
    connections = [open_one() for _ in range(SLOW_CONSUMERS)]
    left = [0] * SLOW_CONSUMERS
    try:
        while not found.ended.is_set():
            for at, connection in enumerate(connections):
                if left[at] == 0:
                    left[at] = _ask_for_much(connection, 1 + at % options.streams)
                    found.done += 1
                    found.begun.set()
                else:
                    left[at] -= len(connection.recv(min(left[at], SLOW_READ_BYTES)))
            found.ended.wait(0.1)
    except (ClientError, OSError):
        found.ended.wait()  # the server has had enough of somebody: that is its right
    finally:
        for connection in connections:
            connection.close()


def _ask_for_much(connection: Connection, stream: int) -> int:
    """Bytes of its answer."""
    name = stream_name(stream)
    command = commands.poll(1, name, TOPIC, 0, strategy=commands.OFFSET, count=SLOW_POLL_MESSAGES)
    connection.sendall(wire.FRAME_HEAD.pack(len(command.payload) + 4, command.code) + command.payload)
    head = b""
    while len(head) < wire.FRAME_HEAD.size:
        piece = connection.recv(wire.FRAME_HEAD.size - len(head))
        if not piece:
            raise OSError("closed")
        head += piece
    return int(wire.FRAME_HEAD.unpack(head)[1])


def _rebalance(found: Disturbance, open_one: Callable[[], Connection], options: Options) -> None:
    connection = open_one()
    member = Control(connection)
    try:
        while not found.ended.is_set():
            member.call(commands.join_group(stream_name(1), TOPIC, "cg-1"))
            found.begun.set()
            found.ended.wait(REBALANCE_INTERVAL_S)
            member.call(commands.leave_group(stream_name(1), TOPIC, "cg-1"))
            found.done += 1
            found.ended.wait(REBALANCE_INTERVAL_S)
    finally:
        connection.close()


class _Shards:
    """Whether all shards of a server are there, asked over one connection as long as it holds."""

    def __init__(self, server: OwnShardd, open_one: Callable[[], Connection]) -> None:
        self._server, self._open_one = server, open_one
        self._control: Control | None = None
        self._killed: psutil.Process | None = None

    def count(self) -> int:
        return len(self._server.workers())

    def kill(self, number: int) -> bool:
        """False: it is not there."""
        workers = self._server.workers()
        shard = sorted(workers)[number % len(workers)] if workers else -1
        with contextlib.suppress(KeyError, psutil.NoSuchProcess):
            workers[shard].kill()
            self._killed = workers[shard]
            return True
        return False

    def all_answer(self) -> bool:
        if self._killed in self._server.workers().values():
            return False
        try:
            self._control = self._control or Control(self._open_one())
            found = self._control.metrics()
        except (BenchError, ClientError, OSError):
            self.close()
            return False
        return len(found.shards) == found.shards_count

    def close(self) -> None:
        if self._control is not None:
            self._control.close()
        self._control = None


def _kill(found: Disturbance, shards: _Shards, options: Options) -> None:
    """One worker after the other, when all are there. At the end all are."""
    found.begun.set()
    while not found.load_begun.wait(KILL_LOOK_INTERVAL_S):
        if found.ended.is_set():
            return
    interval_s = max(KILL_INTERVAL_S, KILL_SHARD_INTERVAL_S / max(1, shards.count()))
    wait_s = options.warmup_us / 1e6 + KILL_INTERVAL_S
    while not found.ended.wait(wait_s):
        killed = shards.all_answer() and shards.kill(found.done)
        found.done += killed
        wait_s = interval_s if killed else KILL_LOOK_INTERVAL_S
    deadline = time.monotonic() + START_TIMEOUT_S
    while not shards.all_answer():
        if time.monotonic() > deadline:
            raise OSError("a worker that was killed did not come back")
        time.sleep(KILL_LOOK_INTERVAL_S)
    shards.close()


_KINDS: Final = {"slow-consumer": _slow_consumer, "rebalance": _rebalance}


def check_disturbance(options: Options, server: Server) -> None:
    """BenchError when there is no such thing for this server."""
    if options.disturbance == KILL:
        if not isinstance(server, OwnShardd):
            raise BenchError("kill is for --own-server alone: nobody else's server is killed")
        if options.durability == "memory":
            raise BenchError("kill is for --durability written or durable: what only memory has dies with its worker")
    elif options.disturbance and (server.dialect != 0 or server.name == "floor"):
        raise BenchError(f"{options.disturbance} is not for {server.name}")


@contextmanager
def disturbed(options: Options, server: Server) -> Iterator[Disturbance]:
    """While a load runs. BenchError when this server has no such thing, or when it went wrong."""
    from shardd.benchmark.plan import Actor

    found = Disturbance()
    if not options.disturbance:
        yield found
        return
    failures: list[str] = []
    classic = replace(options, dialect="0.8")

    def open_one() -> Connection:
        return server.open(classic, Actor("consumer", 1, 1))

    def run() -> None:
        try:
            if isinstance(server, OwnShardd) and options.disturbance == KILL:
                _kill(found, _Shards(server, open_one), options)
            else:
                _KINDS[options.disturbance](found, open_one, options)
        except (ClientError, OSError) as error:
            failures.append(str(error))

    thread = threading.Thread(target=run, name="disturbance", daemon=True)
    thread.start()
    found.begun.wait(BEGIN_TIMEOUT_S)
    try:
        yield found
    finally:
        found.ended.set()
        thread.join(START_TIMEOUT_S + 5)
    if failures:
        raise BenchError(f"{options.disturbance}: {failures[0]}")
    if options.disturbance == KILL and found.done == 0:
        raise BenchError("the load ended before a worker was killed: let there be more batches (-b)")
