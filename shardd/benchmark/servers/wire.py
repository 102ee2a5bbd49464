"""Servers that speak the wire of Apache Iggy: streams by commands, connections that are logged in."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import psutil

from shardd.benchmark.options import BenchError, Options
from shardd.benchmark.servers.base import (
    TOPIC,
    Places,
    Server,
    processes_cpu_s,
    processes_memory_bytes,
    processes_written_bytes,
)
from shardd.benchmark.servers.connection import Connection, Control, Session, reach
from shardd.client import commands
from shardd.client.admin import SyncAdministration
from shardd.client.errors import ClientError
from shardd.client.values import Stats
from shardd.client.wire import NEVER

if TYPE_CHECKING:
    from shardd.benchmark.plan import Actor

TOKEN_ACTORS: Final = 4
"""With more, connections log in by a token of ten minutes: a password is made to cost time."""
_TOKEN_EXPIRY_US: Final = 600_000_000
_TOKEN_EXPIRY_REOPENING_US: Final = 86_400_000_000
"""Of runs that log in again and again, at a server that is gone after them."""
_DIALECT_09: Final = 3
_SUPERVISOR: Final = "shardd: supervisor"
_NO_COMPRESSION: Final = 1


def stream_name(number: int) -> str:
    return f"bench-stream-{number}"


@contextmanager
def control(options: Options) -> Iterator[Control]:
    """Logged in. ClientError, OSError."""
    found = Control(reach(options))
    try:
        log_in(found, options)
        yield found
    finally:
        found.close()


def log_in(connection: Control, options: Options) -> None:
    connection.call(commands.login(options.username, options.password))


def _whole_server(process_id: int) -> int:
    """A worker of shardd says its own: that of its supervisor. Else the process itself."""
    with suppress(psutil.Error):
        parent = psutil.Process(process_id).parent()
        if parent is not None and " ".join(parent.cmdline()).startswith(_SUPERVISOR):
            return parent.pid
    return process_id


class Wire(Server):
    """At an address; somebody else runs it."""

    name = "server"

    def __init__(self) -> None:
        self._process_id: int | None = None
        self._token = ""
        self._token_name = f"bench-{os.getpid()}-{time.time_ns() % 10**9}"

    def check(self, options: Options) -> None:
        """Whether it is there is seen when it is asked."""

    def start(self, options: Options) -> None:
        try:
            with control(options) as client:
                stats = client.stats()
        except (ClientError, OSError) as error:
            raise BenchError(f"{options.address}: {error}") from error
        self.version = stats.protocol_version
        self._process_id = _whole_server(stats.process_id) if options.is_local else None

    def prepare(self, options: Options) -> Places:
        with control(options) as client:
            if options.actors > TOKEN_ACTORS:
                expiry_us = _TOKEN_EXPIRY_REOPENING_US if options.reopens else _TOKEN_EXPIRY_US
                self._token = client.create_token(self._token_name, expiry_us=expiry_us)
            return prepare(client, options)

    def stats(self, options: Options) -> Stats | None:
        with control(options) as client:
            if self._token:
                client.delete_token(self._token_name)
                self._token = ""
            return client.stats()

    def snapshot(self, options: Options, types: tuple[int, ...]) -> bytes:
        with control(options) as client:
            return client.snapshot(types)

    def cpu_s(self) -> float | None:
        return None if self._process_id is None else processes_cpu_s(self._process_id)

    def memory_bytes(self) -> int | None:
        return None if self._process_id is None else processes_memory_bytes(self._process_id)

    def written_bytes(self) -> int | None:
        return None if self._process_id is None else processes_written_bytes(self._process_id)

    def stop(self) -> None:
        """It stays."""

    def dialect_of(self, options: Options) -> int:
        return _DIALECT_09 if options.dialect == "0.9" else self.dialect

    def open(self, options: Options, actor: Actor) -> Connection:
        made = reach(options)
        try:
            joins = commands.join_group(stream_name(actor.stream), TOPIC, f"cg-{actor.group}") if actor.group else None
            if options.dialect == "0.9":
                session = Session(made, options.username, options.password, self._token)
                if joins is not None:
                    session.join(joins.payload)
                return session
            found = Control(made)
            if self._token:
                found.call(commands.login_with_token(self._token))
            else:
                log_in(found, options)
            if joins is not None:
                found.call(joins)
        except BaseException:
            made.close()
            raise
        return made


def prepare(client: SyncAdministration, options: Options) -> Places:
    """Makes what is to be written; looks for what is to be read. ClientError, BenchError."""
    places = Places()
    existing = {stream.name: stream.id for stream in client.streams()}
    for number in range(1, options.streams + 1):
        name = stream_name(number)
        if name in existing and options.kind.sends and not options.reuse_streams:
            client.delete_stream(name)
            del existing[name]
        if name not in existing:
            if options.kind.needs_data:
                raise BenchError(f"there is no stream {name}: run a kind that sends first")
            _make(client, options, name)
        found = client.topic(name, TOPIC)
        stream = client.stream(name)
        if found is None or stream is None:
            raise BenchError(f"stream {name} has no topic {TOPIC}")
        places.streams[number], places.topics[number] = stream[0].id, found.id
    for number in range(1, options.groups + 1 if options.kind.groups is not None else 1):
        places.groups[number] = _make_group(client, stream_name(1 + (number - 1) % options.streams), f"cg-{number}")
    return places


def _make(client: SyncAdministration, options: Options, name: str) -> None:
    client.create_stream(name)
    client.create_topic(
        name,
        TOPIC,
        options.partitions,
        compression=_NO_COMPRESSION,
        expiry_us=NEVER if options.expiry_us is None else options.expiry_us,
        max_bytes=NEVER if options.max_topic_size_bytes is None else options.max_topic_size_bytes,
    )


def _make_group(client: SyncAdministration, stream: str, name: str) -> int:
    """A new one: what an earlier run has read is to be read again."""
    if client.group(stream, TOPIC, name) is not None:
        client.delete_group(stream, TOPIC, name)
    return client.create_group(stream, TOPIC, name).id
