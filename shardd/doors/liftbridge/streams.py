"""What the parts of the door for Liftbridge know of streams: the gRPC service and whatever reads subjects (NATS) both
append through it, so that readonly, pauses and expected offsets hold for both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final, Protocol

import msgspec

from shardd.protocol.liftbridge.records import NewMessage as NewMessage

ANY_OFFSET: Final = -1
"""`expected_offset` of who takes every offset."""


class AckPolicy(IntEnum):
    """`proto.AckPolicy`."""

    LEADER = 0
    ALL = 1
    NONE = 2


class AppendError(IntEnum):
    """Why nothing was appended. The first five are `proto.Ack.Error`, which a publisher may hear."""

    UNKNOWN = 1
    INCORRECT_OFFSET = 2
    TOO_LARGE = 3
    ENCRYPTION = 4
    NOT_FOUND = 100  # the stream or the partition has gone
    READONLY = 101
    PAUSED = 102
    DENIED = 103
    UNAVAILABLE = 104  # no worker answers: it may have been stored


class AppendRefusedError(Exception):
    """Nothing of a call of `append` was stored, but for UNAVAILABLE, where nobody knows."""

    def __init__(self, error: AppendError, text: str) -> None:
        super().__init__(text)
        self.error = error


class Stream(msgspec.Struct, frozen=True):
    """A stream as it is now. `topic_id`, and `stream_id` of the native stream that it lies in: for commands to workers.
    `group`: of queues of NATS, "" for none. `paused`, `readonly`: numbers of partitions."""

    name: str
    subject: str
    group: str
    stream_id: int
    topic_id: int
    partitions: int
    paused: frozenset[int] = frozenset()
    readonly: frozenset[int] = frozenset()
    concurrency_control: bool = False

    def partition_subject(self, partition: int) -> str:
        """Partition 0 listens on the subject itself (Lb 2.1)."""
        return f"{self.subject}.{partition}" if partition else self.subject


class Appended(msgspec.Struct, frozen=True, gc=False):
    """Messages have the offsets from `first_offset` on. `timestamp_us`: when they were received."""

    first_offset: int
    timestamp_us: int


class Streams(Protocol):
    """All streams that this door serves. Loop thread only."""

    def all(self) -> Sequence[Stream]:
        """As of now, by name."""
        ...

    def get(self, name: str) -> Stream | None: ...

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """`changed` is called after streams, their partitions or states have changed. Returns what ends it."""
        ...

    async def append(
        self,
        stream: Stream,
        partition: int,
        messages: Sequence[NewMessage],
        policy: AckPolicy,
        expected_offset: int = ANY_OFFSET,
    ) -> Appended:
        """All of them or none. ALL: returns when they are on disk; LEADER, NONE: when they are written. An expected
        offset counts with `Stream.concurrency_control` only. AppendRefusedError."""
        ...
