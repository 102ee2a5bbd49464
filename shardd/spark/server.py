"""What the driver asks the server: which topics there are, and where their partitions begin and end. With retries.

A stock Iggy server has no GET_PARTITION_BOUNDS: then GET_TOPIC and polls of the first and last message tell the same,
less exactly (no durable end, no segments, and the incarnation is the partition's creation time, which a purge does
not change).
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeVar

from shardd.client import commands
from shardd.client.blocking import BlockingLink
from shardd.client.commands import Command
from shardd.client.errors import ClientError, ServerError, of_status
from shardd.client.marks import Mark
from shardd.client.messages import Polled
from shardd.protocol.bounds import GetPartitionBounds, PartitionBounds, TopicBounds, TopicSelection
from shardd.protocol.errors import Status
from shardd.protocol.primitives import Consumer, ConsumerKind, PollingKind
from shardd.spark.commands import call_each, partition_bounds
from shardd.spark.positions import TopicName
from shardd.spark.retry import Retries, Servers, SilentServerError, is_transient, unreachable

_log = logging.getLogger(__name__)
NOT_FOUND: Final = {Status.STREAM_ID_NOT_FOUND, Status.TOPIC_ID_NOT_FOUND, Status.PARTITION_NOT_FOUND}
_READER: Final = 1  # a consumer: polls by offset without commit leave no trace of it

_POLLS_AT_ONCE: Final = 16  # of one message each, however large

T = TypeVar("T")
Place = tuple[TopicName, int]


class TopicMissingError(LookupError):
    """A topic or stream that does not exist, or that the user may not read."""

    @property
    def gone(self) -> bool:
        """It does not exist (any more)."""
        return isinstance(self.__cause__, ServerError) and self.__cause__.status in NOT_FOUND


def poll_command(topic: TopicName, partition: int, strategy: PollingKind, value: int, count: int) -> Command[Polled]:
    """A poll that commits nothing."""
    return commands.poll(_READER, topic.stream, topic.topic, partition, strategy=strategy, value=value, count=count)


class Server:
    """Answers for the driver, over one connection that is made again when it breaks. Pickles without it."""

    def __init__(
        self,
        servers: Servers,
        *,
        timeout_s: float,
        retries: Retries,
    ) -> None:
        self._servers = servers
        self._timeout_s = timeout_s
        self._retries = retries
        self._connection: BlockingLink | None = None
        self._turn = 0  # of the open connection
        self._limit_s = math.inf
        self.connections = 0  # that were made: behind a new one the server may have other files
        self._stock = False  # no extension commands
        self._syncs = True  # GET_PARTITION_BOUNDS takes the question for one

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_connection": None}

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _call(self, ask: Callable[[BlockingLink], T]) -> T:
        """`ask` on a connection; again after a transient fault, on the next server, with doubling pauses. A connection
        of an earlier question that has ended is no attempt."""
        silent: set[str] = set()
        first = 0 if self._connection is None else self._turn
        was_kept, attempt = self._connection is not None, 0
        while attempt <= self._retries.count:
            if attempt:
                self._retries.pause(attempt)
            turn = first + attempt
            try:
                if self._connection is None:
                    self._connection = self._servers.open(turn, self._patience_s())
                    self._turn = turn
                    self.connections += 1
                self._connection.wait_at_most(self._patience_s())
                return ask(self._connection)
            except ClientError as error:
                if not is_transient(error):
                    raise
                self.close()
                timed_out = isinstance(error.__cause__, TimeoutError)
                if was_kept and not timed_out:
                    was_kept = False
                    continue  # it may have ended long ago; the next one is fresh
                was_kept = False
                if self._limit_s < math.inf and timed_out:
                    silent.add(self._servers.address(turn))
                    if silent.issuperset(self._servers.addresses):
                        raise SilentServerError(self._servers.address(turn), self._patience_s()) from error
                else:
                    silent.clear()
                fault = error
                attempt += 1
                _log.warning("attempt %d of %d: %s", attempt, self._retries.count + 1, error)
        raise unreachable(self._servers, self._retries.count + 1, fault)

    def _ask(self, command: Command[T]) -> T:
        return self._call(lambda c: c.call(command))

    @contextmanager
    def within(self, limit_s: float) -> Iterator[None]:
        """All servers together are not waited for any longer than this for one answer: `SilentServerError`. A server
        that refuses connections, or answers, is not silent: it is tried as often as ever."""
        self._limit_s = limit_s
        try:
            yield
        finally:
            self._limit_s = math.inf

    def _patience_s(self) -> float:
        """For one answer of one server."""
        return min(self._timeout_s, self._limit_s / len(self._servers))

    def ping(self) -> None:
        """Any answer, the smallest there is: on the same connection it is of the same life of the server.
        `ServerUnreachableError`."""
        self._ask(commands.ping())

    # ---- topics ----

    def matching(self, pattern: str) -> tuple[TopicName, ...]:
        """Topics whose "stream/topic" matches as a whole, by name."""
        names = []
        try:
            for stream in self._ask(commands.streams()):
                names += [TopicName(stream.name, topic) for topic in self._topics_of(stream.name)]
        except ServerError as error:
            needed = "; the user needs the right read_streams" if error.status == Status.UNAUTHORIZED else ""
            raise TopicMissingError(f"topics cannot be listed for the pattern '{pattern}': {error}{needed}") from error
        return tuple(sorted(name for name in names if re.fullmatch(pattern, str(name))))

    def _topics_of(self, stream: str) -> list[str]:
        try:
            return [topic.name for topic in self._ask(commands.topics(stream))]
        except ServerError as error:
            if error.status not in NOT_FOUND:
                raise
            return []  # deleted after it was listed

    # ---- bounds ----

    def bounds(
        self, topics: Mapping[TopicName, tuple[int, ...]], *, segments: bool = False
    ) -> dict[TopicName, TopicBounds]:
        """Bounds of the partitions asked for, () for all of a topic. `TopicMissingError`, `ServerUnreachableError`."""
        found = {}
        for name, partitions in topics.items():
            found[name] = self._topic_bounds(name, partitions, segments)
        return found

    def ask_sync(self, topics: Mapping[TopicName, tuple[int, ...]]) -> None:
        """What these partitions have is to come to the device soon. A server before version 3 of the command does
        nothing. `ServerUnreachableError`."""
        for name, partitions in topics.items():
            request = GetPartitionBounds((TopicSelection(name.stream, name.topic, partitions),), sync=True)
            try:
                if not self._stock and self._syncs:
                    self._call(partial(partition_bounds, request=request))
            except ServerError as error:  # what is gone or not allowed the next look at the bounds tells
                self._syncs = error.status != Status.INVALID_FORMAT

    def _topic_bounds(self, name: TopicName, partitions: tuple[int, ...], segments: bool) -> TopicBounds:
        request = GetPartitionBounds((TopicSelection(name.stream, name.topic, partitions),), segments)
        try:
            if not self._stock:
                try:
                    return self._call(lambda c: partition_bounds(c, request))
                except ServerError as error:
                    if error.status != Status.INVALID_COMMAND:
                        raise
                    self._stock = True
                    _log.info("this server knows no extension commands; planning with GET_TOPIC and polls")
            return self._stock_bounds(name, partitions)
        except ServerError as error:
            raise TopicMissingError(_missing(name, partitions, error)) from error

    def _stock_bounds(self, name: TopicName, wanted: tuple[int, ...]) -> TopicBounds:
        topic = self._ask(commands.topic(name.stream, name.topic))
        if topic is None:
            raise of_status(Status.TOPIC_ID_NOT_FOUND)
        partitions = []
        for row in topic.partitions:
            if wanted and row.id not in wanted:
                continue
            first = self._offset_of(name, row.id, PollingKind.FIRST, 0)
            # the current offset of an empty partition is 0, too; after retention only it tells where the end is
            end = row.current_offset + 1 if row.current_offset or first is not None else 0
            first = end if first is None else first
            partitions.append(
                PartitionBounds(row.id, 0, row.created_at_us, first, end, end, row.size_bytes, row.messages_count)
            )
        if wanted and len(partitions) != len(wanted):
            raise of_status(Status.PARTITION_NOT_FOUND)
        return TopicBounds(0, topic.id, name.stream, name.topic, tuple(partitions))

    def _offset_of(self, name: TopicName, partition: int, strategy: PollingKind, value: int) -> int | None:
        """Offset of the first message that a poll brings."""
        messages = self._ask(poll_command(name, partition, strategy, value, 1)).messages
        return messages[0].offset if messages else None

    def stored_at_us(self, name: TopicName, partition: int, offset: int) -> int | None:
        """Append time of the first message from `offset` on that may be read; None when there is none."""
        messages = self._ask(poll_command(name, partition, PollingKind.OFFSET, offset, 1)).messages
        return messages[0].timestamp_us if messages else None

    def marks_at(self, offsets: Mapping[Place, int]) -> dict[Place, Mark]:
        """The first record from an offset on, of each place where there is one and it may be read.
        `ServerUnreachableError`."""
        found: dict[Place, Mark] = {}
        asked = list(offsets.items())
        for first in range(0, len(asked), _POLLS_AT_ONCE):
            found |= self._call(partial(_marks_of, asked=asked[first : first + _POLLS_AT_ONCE]))
        return found

    def offset_at(self, name: TopicName, partition: int, timestamp_us: int) -> int | None:
        """First offset whose append time is not before `timestamp_us`; None when there is none."""
        return self._offset_of(name, partition, PollingKind.TIMESTAMP, timestamp_us)

    def lease(self, name: TopicName, partition: int, offset: int, seconds: int) -> None:
        """Files from `offset` on stay so long. `ServerError`: INVALID_COMMAND (3) of another server,
        FEATURE_UNAVAILABLE (5) without room."""
        self._ask(commands.lease_files(name.stream, name.topic, partition, offset, seconds))

    def store_progress(self, consumer: str, name: TopicName, partition: int, last_offset: int) -> None:
        """Stores how far a reader came under the name of a consumer, for whoever watches the lag."""
        self._ask(commands.store_offset(consumer, name.stream, name.topic, partition, last_offset))

    def stored_offset(self, consumer: Consumer, name: TopicName, partition: int) -> int | None:
        """How far a consumer or group came, by what it has stored; None: nothing."""
        place = (consumer.identifier, name.stream, name.topic, partition)
        found = self._ask(commands.stored_offset(*place, group=consumer.kind is ConsumerKind.GROUP))
        return None if found is None else found.stored


def _marks_of(connection: BlockingLink, asked: list[tuple[Place, int]]) -> dict[Place, Mark]:
    """By polls of one message each. A refusal says that there is no such record; what is transient is raised."""
    polls = [poll_command(name, n, PollingKind.OFFSET, offset, 1) for (name, n), offset in asked]
    answers = call_each(connection, polls)
    found: dict[Place, Mark] = {}
    for (place, _), answer in zip(asked, answers, strict=True):
        if isinstance(answer, ServerError):
            if is_transient(answer):
                raise answer
        elif answer.messages:
            found[place] = Mark(answer.messages[0].offset, answer.messages[0].checksum)
    return found


def needed_right(right: str, name: TopicName) -> str:
    """What to do when a user may not do something with a topic."""
    return f"it needs the right {right} (`shardd user update USER --grant '{name}:{right}'`)"


def _missing(name: TopicName, partitions: tuple[int, ...], error: ServerError) -> str:
    match error.status:
        case Status.STREAM_ID_NOT_FOUND:
            return (
                f"there is no stream '{name.stream}' (asked for '{name}'); the pattern '.*' reads all topics there are"
            )
        case Status.TOPIC_ID_NOT_FOUND:
            return f"there is no topic '{name}'"
        case Status.PARTITION_NOT_FOUND:
            return f"topic '{name}' has not all of the partitions {list(partitions)}"
        case Status.UNAUTHORIZED:
            return f"the user may not poll '{name}': {needed_right('poll_messages', name)}"
        case Status.UNAUTHENTICATED | Status.INVALID_CREDENTIALS | Status.INVALID_PASSWORD | Status.INVALID_USERNAME:
            return f"the server refuses the credentials: {error}"
        case _:
            return f"'{name}' cannot be read: {error}"
