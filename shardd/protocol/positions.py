"""POLL_POSITION (0x5344_0019) and STORE_POSITION (0x5344_001A), extension commands: polls and stored offsets that tell
the history of a partition to which an offset belongs (docs/extensions.md#poll-position). Sans-IO.

A history is an incarnation of the partition: a purge begins another one, and so does a partition with the same id that
was made again. `epoch` and `epoch_from` are for servers that follow each other: the epoch of a history, and the offset
from which it holds. One server has epoch 0 from offset 0 on.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from shardd.protocol import primitives as wire
from shardd.protocol.poll_requests import StoreOffset, WaitingPoll
from shardd.protocol.primitives import Reader

_POSITION_HEAD: Final = struct.Struct("<IQIQQQII")  # native/src/wire/positions.c
_SPARSE: Final = 1


class PollPosition(WaitingPoll, frozen=True):
    """POLL_POSITION, an extension command: `bytes_max` of the answer's records, but one; 0: no bound."""

    bytes_max: int

    @classmethod
    def read(cls, reader: Reader) -> PollPosition:
        poll = msgspec.structs.asdict(WaitingPoll.read(reader))
        return cls(bytes_max=reader.u32(), **poll)

    def encode(self) -> bytes:
        return WaitingPoll.encode(self) + wire.u32(self.bytes_max)


class PositionHead(msgspec.Struct, frozen=True):
    """Before the records of the answer of POLL_POSITION; all zeros for a member without the partition."""

    partition: int = 0
    current_offset: int = 0
    count: int = 0
    incarnation: int = 0
    first_offset: int = 0
    epoch_from: int = 0
    epoch: int = 0
    is_sparse: bool = False

    @classmethod
    def read(cls, reader: Reader) -> PositionHead:
        head = _POSITION_HEAD.unpack(reader.take(_POSITION_HEAD.size))
        partition, current, count, incarnation, first, epoch_from, epoch, flags = head
        return cls(partition, current, count, incarnation, first, epoch_from, epoch, bool(flags & _SPARSE))

    def encode(self) -> bytes:
        return _POSITION_HEAD.pack(
            self.partition,
            self.current_offset,
            self.count,
            self.incarnation,
            self.first_offset,
            self.epoch_from,
            self.epoch,
            _SPARSE if self.is_sparse else 0,
        )


class StorePosition(StoreOffset, frozen=True):
    """STORE_POSITION: refused with 4102 when the partition has another history."""

    incarnation: int
    epoch: int

    @classmethod
    def read(cls, reader: Reader) -> StorePosition:
        incarnation, epoch = reader.u64(), reader.u32()
        return cls(**msgspec.structs.asdict(StoreOffset.read(reader)), incarnation=incarnation, epoch=epoch)

    def encode(self) -> bytes:
        return wire.u64(self.incarnation) + wire.u32(self.epoch) + StoreOffset.encode(self)
