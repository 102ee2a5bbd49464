"""A server with very many of everything: made as records of the metadata log, in seconds, then started."""

from __future__ import annotations

import socket
import struct
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shardd.metadata import commands
from shardd.metadata.apply import apply
from shardd.metadata.commands import Ref
from shardd.metadata.load import load_state
from shardd.metadata.log_file import FILE_NAME
from shardd.metadata.records import encode_record
from shardd.metadata.state import State
from shardd.protocol.codes import Code
from shardd.runtime.loop_watch import LIMIT_VARIABLE
from shardd.security.tokens import digest
from tests.doors.door_server import DoorServer
from tests.hostile import crowd
from tests.support import wire

WIDE, MANY, TOPICS, NARROW = 0, 1, 2, 3  # streams; the others have one topic of one partition
ROOT: Final = 0
SECRET: Final = "token number 0 of root"
SOURCES: Final = 50  # addresses of the idle connections
PIPELINED: Final = 500
NO_LIMIT: Final = 2**64 - 1
FRAME: Final = 1000  # partitions of one record
SUBSCRIBED: Final = 255  # streams of a member


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is of everything. Streams: one of a single wide topic with a group, one with `many` topics of
    1,000 partitions, one of `topics` topics, one with many groups and offsets, and `streams` more."""

    wide: int = 20_000
    many: int = 75
    topics: int = 4_000
    streams: int = 1_000
    groups: int = 10_000
    members: int = 100
    users: int = 10_000
    tokens: int = 10_000
    offsets: int = 100_000
    connections: int = 10_000
    crowd: int = 4_000  # of them that ask at the same time
    entries: int = 32_000  # of the permissions of one user
    large: int = 20  # messages of 1 MB in one request, the most that a frame takes
    small: int = 100_000  # empty ones
    liftbridge_groups: int = 4_000
    liftbridge_members: int = 31  # of the group with the most streams
    settle_s: float = 0.3  # for what a request leaves behind: followers, trash, timers


SHORT: Final = Size(2_000, 1, 50, 20, 50, 5, 50, 50, 200, 50, 20, 1_000, 20, 100_000, 20, 5, 0.02)


class History:
    """Records behind those of a state."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.records: list[bytes] = []

    def add(self, command: commands.Command) -> None:
        index, timestamp_us = self.state.index + 1, 1_700_000_000_000_000 + len(self.records)
        data, record = encode_record(self.state.digest, index, timestamp_us, index, ROOT, command)
        self.state = apply(self.state, record)
        self.records.append(data)

    def stream(self, number: int) -> Ref:
        return Ref(number, self.state.streams[number].incarnation)

    def topic(self, stream: int, number: int) -> Ref:
        return Ref(number, self.state.streams[stream].topics[number].incarnation)

    def add_topic(self, stream: int, name: str, partitions: int) -> None:
        self.add(commands.CreateTopic(self.stream(stream), name, min(partitions, FRAME), 1, NO_LIMIT, NO_LIMIT, 1))
        number = len(self.state.streams[stream].topics) - 1
        for first in range(FRAME, partitions, FRAME):
            count = min(FRAME, partitions - first)
            self.add(commands.CreatePartitions(self.stream(stream), self.topic(stream, number), count))


def history(state: State, size: Size) -> list[bytes]:
    """Behind a state with nothing but root."""
    made = History(state)
    for name in ("wide", "many", "topics", "narrow"):
        made.add(commands.CreateStream(name))
    made.add_topic(WIDE, "wide", size.wide)
    made.add(commands.CreateConsumerGroup(made.stream(WIDE), made.topic(WIDE, 0), "g"))
    for number in range(size.many):
        made.add_topic(MANY, f"t{number}", 1000)
    for number in range(size.topics):
        made.add_topic(TOPICS, f"t{number}", 1)
    made.add_topic(NARROW, "narrow", 4)
    for number in range(size.groups):
        made.add(commands.CreateConsumerGroup(made.stream(NARROW), made.topic(NARROW, 0), f"g{number}"))
    for number in range(size.streams):
        made.add(commands.CreateStream(f"s{number}"))
        made.add_topic(NARROW + 1 + number, "t", 1)
    root = Ref(ROOT, made.state.users[ROOT].incarnation)
    password_hash = made.state.users[ROOT].password_hash
    add_liftbridge(made, size)
    for number in range(size.users):
        made.add(commands.CreateUser(f"u{number}", password_hash, True, None))
    for number in range(size.tokens):
        made.add(commands.CreateToken(root, f"t{number}", digest(f"token number {number} of root"), 0, 10_000))
    return made.records


def add_liftbridge(made: History, size: Size) -> None:
    """The stream of many topics is Liftbridge's namespace; one group has members of very many of its streams, and many
    groups have one member of the first stream."""
    made.add(commands.PrepareLiftbridge(made.stream(TOPICS), "server"))
    places = [(made.stream(TOPICS), made.topic(TOPICS, number)) for number in range(min(size.topics, SUBSCRIBED))]

    def user(number: int) -> Ref:  # the record is made, whoever it is: only its share counts
        return Ref(number + 1, 1)

    for number in range(size.liftbridge_members):
        made.add(commands.JoinLiftbridgeGroup(user(number), "wide", f"m{number}", tuple(places)))
    for number in range(size.liftbridge_groups):
        made.add(commands.JoinLiftbridgeGroup(user(0), f"g{number}", "m", (places[0],)))


def prepared_server(base: Path, size: Size, limit_ms: int) -> DoorServer:
    """Not started. Steps of its loops over the limit end a worker; 0: none does."""
    settings = {
        "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2",
        "SHARDD_SERVER_CONNECTIONS_MAX": "20000",
        "SHARDD_PERSONAL_ACCESS_TOKEN_MAX_TOKENS_PER_USER": "10000",
        "SHARDD_SYSTEM_MEMORY_POOL_SIZE": "1 GiB",
        "SHARDD_METRICS_ENABLED": "true",
        "SHARDD_METRICS_ADDRESS": "127.0.0.1:0",
        "SHARDD_METRICS_TOPICS_MAX": "10000",
        "SHARDD_METRICS_GROUPS_MAX": "10000",
        "SHARDD_LIFTBRIDGE_NAMESPACE": "topics",
        "SHARDD_LIFTBRIDGE_EXPOSE_NATIVE": "readwrite",
        LIMIT_VARIABLE: str(limit_ms),
    }
    server = DoorServer(base / "data", settings, ("liftbridge",))
    server.start()
    server.stop()
    log = server.data_dir / FILE_NAME
    with log.open("ab") as file:
        file.writelines(history(load_state(log), size))
    return server


def metrics_address(server: DoorServer) -> tuple[str, int]:
    """Where a server that has started tells its figures."""
    return wire.host_and_port(tomllib.loads(server.runtime_config.read_text())["metrics"]["address"])


def store_offsets(connection: wire.Wire, count: int) -> None:
    """Of that many consumers, in one partition."""
    place = wire.identifier(NARROW) + wire.identifier(0) + wire.optional_partition(0)
    connection.send(NARROW, 0, wire.to_partition(0), [wire.message(b"one")])
    for first in range(0, count, PIPELINED):
        some = range(first, min(first + PIPELINED, count))
        connection.send_bytes(
            b"".join(
                wire.frame(wire.STORE_OFFSET, wire.consumer(number + 1) + place + struct.pack("<Q", 0))
                for number in some
            )
        )
        assert {connection.reply()[0] for _ in some} == {0}


@contextmanager
def connections(address: str, count: int, logged_in: int) -> Iterator[list[wire.Wire]]:
    """From several addresses; the first ones are logged in as root."""
    crowd.allow_descriptors(count + 500)
    made: list[wire.Wire] = []
    try:
        for number in range(count):
            made.append(wire.Wire(address, source=f"127.0.0.{2 + number % SOURCES}"))
        for each in made[:logged_in]:
            each.send_bytes(wire.frame(Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, wire.str8(SECRET)))
        assert {each.reply()[0] for each in made[:logged_in]} <= {0}
        yield made
    finally:
        for each in made:
            each.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # no TIME_WAIT
            each.close()
