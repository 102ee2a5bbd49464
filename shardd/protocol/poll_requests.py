"""POLL_MESSAGES, and POLL_AND_WAIT, an extension command (0x5344_0018): the same, and when it finds nothing it waits
for messages (docs/extensions.md#poll-and-wait). STORE_CONSUMER_OFFSET, which answers them. Sans-IO."""

from __future__ import annotations

from typing import Final

import msgspec

from shardd.protocol import primitives as wire
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Consumer, Identifier, PollingKind, Reader

POLL_WAIT_MAX_MS: Final = 300_000  # native/src/core/request.h


class PollMessages(msgspec.Struct, frozen=True):
    consumer: Consumer
    stream: Identifier
    topic: Identifier
    partition: int | None
    strategy: PollingKind
    value: int
    count: int
    auto_commit: bool

    @classmethod
    def read(cls, reader: Reader) -> PollMessages:
        consumer, stream, topic = reader.consumer(), reader.identifier(), reader.identifier()
        partition = reader.optional_partition()
        strategy, value = reader.polling_strategy()
        return cls(consumer, stream, topic, partition, strategy, value, reader.u32(), reader.flag())

    def encode(self) -> bytes:
        return b"".join(
            (
                wire.consumer(self.consumer),
                wire.identifier(self.stream),
                wire.identifier(self.topic),
                wire.optional_partition(self.partition),
                wire.u8(self.strategy),
                wire.u64(self.value),
                wire.u32(self.count),
                wire.u8(self.auto_commit),
            )
        )


class WaitingPoll(PollMessages, frozen=True):
    """POLL_AND_WAIT, an extension command: the engine executes it, and waits when it finds nothing."""

    wait_ms: int

    @classmethod
    def read(cls, reader: Reader) -> WaitingPoll:
        poll = PollMessages.read(reader)
        wait_ms = reader.u32()
        if wait_ms > POLL_WAIT_MAX_MS:
            raise ShardError(Status.INVALID_FORMAT, f"{wait_ms} ms are more than a poll may wait")
        return cls(wait_ms=wait_ms, **msgspec.structs.asdict(poll))

    def encode(self) -> bytes:
        return PollMessages.encode(self) + wire.u32(self.wait_ms)


class WaitForMessages(msgspec.Struct, frozen=True):
    """Only doors have it: for a message at `offset` or behind it."""

    stream: Identifier
    topic: Identifier
    partition: int
    offset: int
    timeout_ms: int

    @classmethod
    def read(cls, reader: Reader) -> WaitForMessages:
        return cls(reader.identifier(), reader.identifier(), reader.u32(), reader.u64(), reader.u32())

    def encode(self) -> bytes:
        address = wire.identifier(self.stream) + wire.identifier(self.topic)
        return address + wire.u32(self.partition) + wire.u64(self.offset) + wire.u32(self.timeout_ms)


class StoreOffset(msgspec.Struct, frozen=True):
    consumer: Consumer
    stream: Identifier
    topic: Identifier
    partition: int | None
    offset: int

    @classmethod
    def read(cls, reader: Reader) -> StoreOffset:
        consumer, stream, topic = reader.consumer(), reader.identifier(), reader.identifier()
        return cls(consumer, stream, topic, reader.optional_partition(), reader.u64())

    def encode(self) -> bytes:
        address = wire.consumer(self.consumer) + wire.identifier(self.stream) + wire.identifier(self.topic)
        return address + wire.optional_partition(self.partition) + wire.u64(self.offset)
