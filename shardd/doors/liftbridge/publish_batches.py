"""What is stored together, and what becomes of it. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from shardd.client.codec import records_of
from shardd.doors.door import DoorClient
from shardd.doors.liftbridge.router import partition_subject
from shardd.protocol.errors import Status
from shardd.protocol.liftbridge.records import LiftbridgeMessage, RecordTooLargeError, encode_records
from shardd.protocol.liftbridge.requests import BATCH_MESSAGES_MAX, NO_EXPECTED_OFFSET, StreamInfo

BATCH_BYTES_MAX: Final = 1 << 20  # of a batch with more than one message


class AckError(IntEnum):
    """`proto.Ack.Error`."""

    OK = 0
    UNKNOWN = 1
    INCORRECT_OFFSET = 2
    TOO_LARGE = 3
    ENCRYPTION = 4


class Outcome(NamedTuple):
    """What became of a message. `status` OK: it is stored at `offset`, with the time of the log. 12001: the worker was
    lost or gave no answer, and nobody knows; every other status: it is not stored. `reason`: a sentence, or "".
    `right_is_known`: a worker has said that the client may send to the stream; no ack names it otherwise."""

    status: Status
    offset: int = 0
    timestamp_ns: int = 0
    error: AckError = AckError.OK
    reason: str = ""
    right_is_known: bool = True


Done = Callable[[Outcome], None]


class Pending(NamedTuple):
    """A message that nobody has heard of yet. `refusal`: why the door does not store it, or ""."""

    message: LiftbridgeMessage
    size: int
    expected_offset: int
    fsync: bool
    done: Done | None
    refusal: str = ""


def is_plain(pending: Pending, subject: str, bytes_max: int) -> bool:
    """Whether its value is all there is of it."""
    message = pending.message
    return (
        0 < len(message.value) <= bytes_max
        and not message.key
        and not message.headers
        and not message.reply_subject
        and message.subject in ("", subject)
        and not pending.refusal
    )


def encode_some(batch: list[Pending], subject: str, bytes_max: int) -> tuple[list[bytes], str]:
    """The records in front of the first message that cannot be stored, and why it cannot; "": all can."""
    if all(is_plain(each, subject, bytes_max) for each in batch):
        return records_of([each.message.value for each in batch]), ""
    records: list[bytes] = []
    try:
        for record in encode_records(_messages_of(batch), subject, bytes_max):
            records.append(record)
    except RecordTooLargeError as error:
        return records, str(error)
    return records, ""


def _messages_of(batch: list[Pending]) -> Iterator[LiftbridgeMessage]:
    """Up to a message that the door refuses: RecordTooLargeError."""
    for pending in batch:
        if pending.refusal:
            raise RecordTooLargeError(pending.refusal)
        yield pending.message


def next_batch(waiting: deque[Pending]) -> list[Pending]:
    """What is stored together: a message that expects an offset goes alone."""
    first = waiting.popleft()
    batch, size = [first], first.size
    if first.expected_offset != NO_EXPECTED_OFFSET:
        return batch
    while waiting and len(batch) < BATCH_MESSAGES_MAX:
        following = waiting[0]
        size += following.size
        if size > BATCH_BYTES_MAX or following.expected_offset != NO_EXPECTED_OFFSET:
            break
        batch.append(waiting.popleft())
    return batch


Key = tuple[DoorClient, int, int, int, int]


class Queue:
    """Messages of one client to one partition, as the stream is now. The queue is there until all have left it."""

    __slots__ = ("client", "key", "partition", "stream", "subject", "waiting")

    def __init__(self, client: DoorClient, stream: StreamInfo, partition: int, key: Key) -> None:
        self.client = client
        self.key = key
        self.stream = stream
        self.partition = partition
        self.subject = partition_subject(stream.subject, partition)
        self.waiting: deque[Pending] = deque()


class Batch:
    """`messages`: those that are stored together, or refused with one outcome. `base`: that of the first one. `told`:
    how many have heard of it."""

    __slots__ = ("base", "client", "messages", "told")

    def __init__(self, client: DoorClient, messages: list[Pending], base: Outcome) -> None:
        self.client = client
        self.messages = messages
        self.base = base
        self.told = 0
