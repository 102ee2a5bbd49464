"""INIT_PRODUCER (0x5344_0030), SEND_ONCE (0x5344_0031) and SEND_ONCE_DIGEST (0x5344_0015), extension commands: batches
that are stored once, however often they are sent. Sans-IO, both directions. Layout and answers:
docs/extensions.md#producers. The engine executes the two sends.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

import msgspec

from shardd.protocol import primitives as wire
from shardd.protocol.primitives import Reader
from shardd.protocol.send_request import SendMessages

_INIT: Final = struct.Struct("<QIB")
_INITIATED: Final = struct.Struct("<QIQ")
_PRODUCED: Final = struct.Struct("<B3xIQ")


class InitProducer(msgspec.Struct, frozen=True):
    """`producer` 0: a new one. Otherwise its next epoch begins; with `renew` it stays in `epoch` and is not idle."""

    producer: int = 0
    epoch: int = 0
    renew: bool = False

    @classmethod
    def read(cls, reader: Reader) -> InitProducer:
        producer, epoch, renew = _INIT.unpack(reader.take(_INIT.size))
        return cls(producer, epoch, renew != 0)

    def encode(self) -> bytes:
        return _INIT.pack(self.producer, self.epoch, self.renew)


class ProducerEpoch(msgspec.Struct, frozen=True):
    """Reply of INIT_PRODUCER. `expiry_us`: how long it may be idle."""

    producer: int
    epoch: int
    expiry_us: int

    @classmethod
    def read(cls, reader: Reader) -> ProducerEpoch:
        return cls(*_INITIATED.unpack(reader.take(_INITIATED.size)))

    def encode(self) -> bytes:
        return _INITIATED.pack(self.producer, self.epoch, self.expiry_us)


class SendOnce(msgspec.Struct, frozen=True):
    """SEND_ONCE: batch `sequence` of a producer, which names its partition. SEND_ONCE_DIGEST: `SendOnceDigest`."""

    producer: int
    sequence: int
    epoch: int
    batch: SendMessages

    @classmethod
    def read(cls, reader: Reader) -> SendOnce:
        return cls(reader.u64(), reader.u64(), reader.u32(), SendMessages.read(reader))

    def encode(self) -> bytes:
        return send_once_head(self.producer, self.epoch, self.sequence) + self.batch.encode()


class SendOnceDigest(msgspec.Struct, frozen=True):
    """`digest` of the content; 0: the content is not compared."""

    producer: int
    sequence: int
    epoch: int
    digest: int
    batch: SendMessages

    @classmethod
    def read(cls, reader: Reader) -> SendOnceDigest:
        return cls(reader.u64(), reader.u64(), reader.u32(), reader.u64(), SendMessages.read(reader))

    def encode(self) -> bytes:
        head = send_once_digest_head(self.producer, self.epoch, self.sequence, self.digest)
        return head + self.batch.encode()


class ProducedKind(IntEnum):
    """What became of a batch: `produced_kind` of native/src/log/producers.h."""

    STORED = 1
    DUPLICATE = 2
    GAP = 3
    STALE_EPOCH = 4
    UNKNOWN_PRODUCER = 5
    REFUSED_AT_MEMORY = 6
    DIFFERENT_CONTENT = 7  # only SEND_ONCE_DIGEST is answered so


class Produced(msgspec.Struct, frozen=True):
    """Reply of both sends. `count` and `first`: messages and the offset of the first one; of a gap `first` is the
    number that has to come, of a stale epoch `count` is the one that has begun."""

    kind: ProducedKind
    count: int
    first: int

    @classmethod
    def read(cls, reader: Reader) -> Produced:
        kind, count, first = _PRODUCED.unpack(reader.take(_PRODUCED.size))
        return cls(ProducedKind(kind), count, first)


def send_once_head(producer: int, epoch: int, sequence: int) -> bytes:
    """Stands before the payload of a SEND_MESSAGES."""
    return wire.u64(producer) + wire.u64(sequence) + wire.u32(epoch)


def send_once_digest_head(producer: int, epoch: int, sequence: int, digest: int) -> bytes:
    """The same for SEND_ONCE_DIGEST. `digest` 0: the content is not compared."""
    return send_once_head(producer, epoch, sequence) + wire.u64(digest)
