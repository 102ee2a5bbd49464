"""What the sink asks the server beside its sends: partitions of the topic, and its journal.

The journal is a topic for each application (a query, or the `appId` of batch writes) in a stream of its own. The
newest record says which batch is stored as a whole and which run writes. Its order is that of the log: a run that
comes later takes over, the one before is told. docs/adr/0072-a-sink-remembers-at-the-server.md
"""

from __future__ import annotations

import hashlib
import os
from typing import Final

import msgspec

from shardd.client import Connection, Credentials
from shardd.client.messages import batch_head, encode_batch, encode_record
from shardd.protocol import requests
from shardd.protocol.codes import Code
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import PollingKind
from shardd.spark.positions import TopicName
from shardd.spark.retry import Retries
from shardd.spark.server import NOT_FOUND, Server, poll_request
from shardd.spark.sinks.topic_options import SinkOptions

NEWEST: Final = 16  # records that are looked at for the state
HISTORY: Final = 1000  # and for what was before
_RETRIES: Final = Retries(8, 0.25)
_THERE: Final = {Status.STREAM_NAME_ALREADY_EXISTS, Status.TOPIC_NAME_ALREADY_EXISTS}
_NAME_MAX: Final = 200
_NO_COMPRESSION: Final = 1
_NEVER: Final = (1 << 64) - 1


class JournalError(PermissionError):
    """The user may not read or write the journal."""


class TakenOverError(RuntimeError):
    """Another run of the same query writes now."""


class Record(msgspec.Struct, frozen=True):
    """`done`: the last batch that is stored as a whole, -1 for none, with its `rows`; `run`: who wrote this record."""

    run: str
    done: int
    rows: int
    version: int = 1


class State(msgspec.Struct, frozen=True):
    """What the newest records say; `run` is "" in the beginning."""

    run: str
    done: int
    rows: int


_Key = tuple[int, tuple[str, ...], Credentials]
_kept: dict[_Key, Connection] = {}  # a worker process goes on with the connection of its last task: a login costs


def _key(options: SinkOptions) -> _Key:
    return os.getpid(), options.servers, options.credentials


def keep(options: SinkOptions, connection: Connection | None) -> None:
    """For the next task; nothing is on its way."""
    other = _kept.pop(_key(options), None)
    if other is not None:
        other.close()
    if connection is not None:
        _kept[_key(options)] = connection


class SinkServer(Server):
    """One connection for questions. Close it, or hand it over."""

    def __init__(self, options: SinkOptions) -> None:
        super().__init__(options.servers, options.credentials, timeout_s=options.request_timeout_s, retries=_RETRIES)
        self._options = options
        self._connection = _kept.pop(_key(options), None)

    def hand_over(self) -> Connection | None:
        """Its connection, with nothing on its way."""
        connection, self._connection = self._connection, None
        return connection

    def partitions(self) -> int:
        """Of the topic, which is made when the options say so. `LookupError`."""
        name, wanted = self._options.topic, self._options.create_partitions
        count = self.partitions_of(name)
        if count is None and wanted is not None:
            self.make_topic(name, wanted)
            count = self.partitions_of(name)
        if not count:
            raise LookupError(
                f"there is no topic '{name}' to write to, or the user may not see it; the option 'createTopic' with a"
                " number of partitions makes it"
            )
        return count

    def partitions_of(self, name: TopicName) -> int | None:
        """None when there is no such topic."""
        try:
            found = self._call(lambda c: c.topic(name.stream, name.topic))
        except ShardError as error:
            if error.status not in NOT_FOUND:
                raise
            return None
        return None if found is None else found[0].partitions_count

    def make_topic(self, name: TopicName, partitions: int) -> None:
        """With its stream; what is there stays."""
        stream = requests.CreateStreamRequest(name.stream)
        topic = requests.CreateTopicRequest(
            stream=name.stream,
            partitions_count=partitions,
            compression=_NO_COMPRESSION,
            message_expiry_us=_NEVER,
            max_topic_size_bytes=_NEVER,
            replication_factor=1,
            name=name.topic,
        )
        if not any(each.name == name.stream for each in self._call(lambda c: c.streams())):
            self._make(Code.CREATE_STREAM, stream.encode())
        self._make(Code.CREATE_TOPIC, topic.encode())

    def poll(self, request: requests.PollMessages) -> list[bytes]:
        """The payloads."""
        return [each.payload for each in self._call(lambda c: c.poll(request)).messages]

    def send(self, payload: bytes) -> None:
        """A payload of SEND_MESSAGES."""
        self._call(lambda c: c.request(Code.SEND_MESSAGES, payload))

    def _make(self, code: Code, payload: bytes) -> None:
        try:
            self._call(lambda c: c.request(code, payload))
        except ShardError as error:
            if error.status not in _THERE:  # another task was faster
                raise


class Journal:
    """Of one application."""

    def __init__(self, server: SinkServer, stream: str, application: str) -> None:
        self._server = server
        self._name = TopicName(stream, topic_of(application))
        self._application = application

    def begin(self, run: str) -> State:
        """What is stored, once `run` is the one that writes. `TakenOverError`."""
        newest = self._newest(NEWEST)
        state = state_of(newest)
        if state.run != run:
            if any(each.run == run for each in self._newest(HISTORY)):
                raise self._taken_over()
            self._append(Record(run, state.done, state.rows))
        return state

    def finish(self, run: str, batch: int, rows: int) -> None:
        """The batch is stored as a whole. `TakenOverError`."""
        state = state_of(self._newest(NEWEST))
        if state.run != run:
            raise self._taken_over()
        self._append(Record(run, batch, rows))

    def rows_of(self, batch: int) -> int | None:
        """How many rows a batch had when it was stored; None when the journal does not tell any more."""
        return next((each.rows for each in self._newest(HISTORY) if each.done == batch), None)

    def _taken_over(self) -> TakenOverError:
        return TakenOverError(
            f"another run of '{self._application}' writes now, this one was taken over: a query must run once; stop"
            " one of the two"
        )

    def _newest(self, count: int) -> list[Record]:
        request = poll_request(self._name, 0, PollingKind.LAST, 0, count)
        try:
            found = self._server.poll(request)
        except ShardError as error:
            if error.status not in NOT_FOUND:
                raise self._refused(error) from error
            return []
        return [msgspec.json.decode(each, type=Record) for each in found]

    def _append(self, record: Record) -> None:
        head = batch_head(self._name.stream, self._name.topic, 0)
        payload = encode_batch(head, [encode_record(msgspec.json.encode(record))])
        try:
            self._server.send(payload)
            return
        except ShardError as error:
            if error.status not in NOT_FOUND:
                raise self._refused(error) from error
        try:
            self._server.make_topic(self._name, 1)
            self._server.send(payload)
        except ShardError as error:
            raise self._refused(error) from error

    def _refused(self, error: ShardError) -> Exception:
        if error.status is not Status.UNAUTHORIZED:
            return error
        return JournalError(
            f"the user may not read, make or write the journal '{self._name}' of the sink: give the right, or another"
            " stream with the option 'journal', or journal=none, which forgets what is stored"
        )


def state_of(records: list[Record]) -> State:
    """`done` never falls: a run that began while another one ended may have written an older one."""
    if not records:
        return State("", -1, 0)
    best = max(records, key=lambda each: each.done)
    return State(records[-1].run, best.done, best.rows)


def topic_of(application: str) -> str:
    """Names of topics have at most 255 bytes."""
    plain = len(application.encode()) <= _NAME_MAX and application.isprintable()
    return application if plain else f"sha256-{hashlib.sha256(application.encode()).hexdigest()}"
