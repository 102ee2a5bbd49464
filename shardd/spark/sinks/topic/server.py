"""The requests of the sink beside its sends: the partitions of the topic, new topics, and producers."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any, Final

from shardd.client import commands
from shardd.client.blocking import BlockingLink
from shardd.client.commands import Command
from shardd.client.errors import AlreadyExistsError, ServerError
from shardd.client.messages import Polled
from shardd.client.wire import NEVER
from shardd.protocol.codes import Code
from shardd.protocol.errors import Status
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.primitives import Reader
from shardd.protocol.producers import InitProducer, ProducerEpoch
from shardd.spark.positions import TopicName
from shardd.spark.retry import Retries, Servers
from shardd.spark.server import NOT_FOUND, Server, needed_right
from shardd.spark.sinks.topic.options import SinkOptions

_RETRIES: Final = Retries(8, 0.25)
_FORGOTTEN: Final = {Status.RESOURCE_NOT_FOUND, Status.STALE_CLIENT}


class RightMissingError(PermissionError):
    """The user may not do what the options ask for; the message names the right."""


class NoProducersError(RuntimeError):
    """The server is not shardd."""


_Key = tuple[int, Servers]
_kept: dict[_Key, BlockingLink] = {}  # a worker process goes on with the connection of its last task: a login costs


def _key(options: SinkOptions) -> _Key:
    return os.getpid(), options.servers


def keep(options: SinkOptions, connection: BlockingLink | None) -> None:
    """For the next task; nothing is on its way."""
    other = _kept.pop(_key(options), None)
    if other is not None:
        other.close()
    if connection is not None:
        _kept[_key(options)] = connection


def kept(options: SinkOptions) -> BlockingLink | None:
    """What was kept; nobody else has it then."""
    return _kept.pop(_key(options), None)


class SinkServer(Server):
    """One connection for questions. Close it, or hand it over."""

    def __init__(self, options: SinkOptions) -> None:
        super().__init__(options.servers, timeout_s=options.request_timeout_s, retries=_RETRIES)
        self._options = options
        self._connection = kept(options)
        if self._connection is not None:
            self._turn = options.servers.turn_of(self._connection)

    def hand_over(self) -> BlockingLink | None:
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
                f"there is no topic '{name}' to write to, or the user may not see it, which needs the right read_topic;"
                " the option 'createTopic' with a number of partitions makes it"
            )
        return count

    def partitions_of(self, name: TopicName) -> int | None:
        """None when there is no such topic."""
        try:
            found = self._ask(commands.topic(name.stream, name.topic))
        except ServerError as error:
            if error.status == Status.UNAUTHORIZED:
                raise RightMissingError(
                    f"the user may not see the partitions of '{name}': {needed_right('read_topic', name)}"
                ) from error
            if error.status not in NOT_FOUND:
                raise
            return None
        return None if found is None else found.partitions_count

    def make_topic(self, name: TopicName, partitions: int) -> None:
        """With its stream; what is there stays."""
        try:
            if not any(each.name == name.stream for each in self._ask(commands.streams())):
                self._make(commands.create_stream(name.stream))
            self._make(commands.create_topic(name.stream, name.topic, partitions, expiry_us=NEVER, max_bytes=NEVER))
        except ServerError as error:
            if error.status != Status.UNAUTHORIZED:
                raise
            raise RightMissingError(
                f"the user may not make the topic '{name}': it needs the right manage_topics in the stream, or"
                " manage_streams where there is no such stream"
            ) from error

    def poll(self, polls: Command[Polled]) -> list[bytes]:
        """The payloads."""
        return [each.payload for each in self._ask(polls).messages]

    def send(self, payload: bytes) -> None:
        """A payload of SEND_MESSAGES."""
        self._call(lambda c: c.request(Code.SEND_MESSAGES, payload))

    def init_producer(self, request: InitProducer) -> ProducerEpoch:
        """`LookupError` when there is no such producer of this user (any more) or its epoch has ended."""
        try:
            answer = self._call(lambda c: c.request(ExtensionCode.INIT_PRODUCER, request.encode()))
        except ServerError as error:
            if error.status in _FORGOTTEN:
                raise LookupError(f"producer {request.producer}: {error}") from error
            if error.status == Status.INVALID_COMMAND:
                raise NoProducersError(
                    "this server has no idempotent producers, so semantics 'idempotent' is not possible; with"
                    " 'stable-ids' a repeated row has the same id"
                ) from error
            raise
        return ProducerEpoch.read(Reader(answer))

    def flush(self, name: TopicName, partition: int) -> None:
        """All that the server has appended is on the device and may be read when this returns."""
        self._ask(commands.flush(name.stream, name.topic, partition))

    def _make(self, command: Command[Any]) -> None:
        with suppress(AlreadyExistsError):  # another task was faster
            self._ask(command)
