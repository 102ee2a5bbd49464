"""What goes on beside a load that is measured: others who ask for much and read little, or who join and leave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from shardd.benchmark.options import BenchError, Options
from shardd.benchmark.servers.base import TOPIC, Server
from shardd.benchmark.servers.connection import Connection, Control
from shardd.benchmark.servers.wire import stream_name
from shardd.client import commands, wire
from shardd.client.errors import ClientError

SLOW_CONSUMERS: Final = 8
SLOW_READ_BYTES: Final = 32 << 10
"""At a time, ten times a second: about what a server has to bear (docs/limits.md)."""
SLOW_POLL_MESSAGES: Final = 10_000
BEGIN_TIMEOUT_S: Final = 10.0
REBALANCE_INTERVAL_S: Final = 0.1


class Disturbance:
    """`done`: how often it did what it is for."""

    def __init__(self) -> None:
        self.done = 0
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


_KINDS: Final = {"slow-consumer": _slow_consumer, "rebalance": _rebalance}


@contextmanager
def disturbed(options: Options, server: Server) -> Iterator[Disturbance]:
    """While a load runs. BenchError when this server has no such thing, or when it went wrong."""
    from shardd.benchmark.plan import Actor

    found = Disturbance()
    if not options.disturbance:
        yield found
        return
    if server.dialect != 0 or server.name == "floor":
        raise BenchError(f"{options.disturbance} is not for {server.name}")
    failures: list[str] = []

    def run() -> None:
        try:
            _KINDS[options.disturbance](found, lambda: server.open(options, Actor("consumer", 1, 1)), options)
        except (ClientError, OSError) as error:
            failures.append(str(error))

    thread = threading.Thread(target=run, name="disturbance", daemon=True)
    thread.start()
    found.begun.wait(BEGIN_TIMEOUT_S)
    try:
        yield found
    finally:
        found.ended.set()
        thread.join(30)
    if failures:
        raise BenchError(f"{options.disturbance}: {failures[0]}")
