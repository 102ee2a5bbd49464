"""Extension commands: ours, codes 0x5344_0000 to 0x5344_00FF, in the frames of the classic protocol and never sent by
its clients. Sans-IO, both directions; byte tables in docs/extensions.md.

A server that is not ours answers each of them with 3; a client asks LIST_EXTENSIONS first and uses what is listed.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

import msgspec

from shardd.protocol import primitives as wire
from shardd.protocol.primitives import Reader

_ENTRY: Final = struct.Struct("<IH")
_METRICS_HEAD: Final = struct.Struct("<QQI")
_SHARD_HEAD: Final = struct.Struct("<IIQ")
_U16: Final = struct.Struct("<H")


class ExtensionCode(IntEnum):
    """Request code of a frame."""

    LIST_EXTENSIONS = 0x5344_0000
    GET_METRICS = 0x5344_0001
    ANNOUNCE_HEARTBEAT = 0x5344_0002  # shardd.protocol.heartbeats
    GET_PARTITION_BOUNDS = 0x5344_0010  # shardd.protocol.bounds
    LEASE_FILES = 0x5344_0012  # shardd.protocol.leases
    UNUSED_OFFSETS = 0x5344_0013  # shardd.protocol.unused_offsets
    SEND_ONCE_DIGEST = 0x5344_0015  # shardd.protocol.producers
    POLL_AND_WAIT = 0x5344_0018  # shardd.protocol.requests.WaitingPoll
    POLL_POSITION = 0x5344_0019  # shardd.protocol.positions
    STORE_POSITION = 0x5344_001A
    SET_TOPIC_SETTINGS = 0x5344_0020  # shardd.protocol.topic_settings
    GET_TOPIC_SETTINGS = 0x5344_0021
    CHANGE_TOPIC = 0x5344_0023  # shardd.protocol.topic_change
    INIT_PRODUCER = 0x5344_0030  # shardd.protocol.producers
    SEND_ONCE = 0x5344_0031


class DoorCode(IntEnum):
    """Commands that only the server's own doors have (docs/protocol/doors.md#codes), for what no classic command says:
    codes 0x5344_0080 to 0x5344_00BF."""

    CREATE_ACCESS_TOKEN = 0x5344_0080
    REFRESH_ACCESS_TOKEN = 0x5344_0081
    REVOKE_ACCESS_TOKEN = 0x5344_0082
    WAIT_FOR_MESSAGES = 0x5344_0083
    POLL_RANGE = 0x5344_0084


class FigureKind(IntEnum):
    """A counter grows from 0 while its worker lives; a gauge is what there is now."""

    COUNTER = 1
    GAUGE = 2


class ExtensionRequest(msgspec.Struct, frozen=True):
    """LIST_EXTENSIONS and GET_METRICS: no payload, surplus bytes are ignored."""

    @classmethod
    def read(cls, reader: Reader) -> ExtensionRequest:
        return cls()

    def encode(self) -> bytes:
        return b""


class Extension(msgspec.Struct, frozen=True):
    """One command that the server has; its version changes when its bytes do."""

    code: int
    version: int
    name: str


class ExtensionList(msgspec.Struct, frozen=True):
    """Reply of LIST_EXTENSIONS."""

    server_version: str
    extensions: tuple[Extension, ...]

    @classmethod
    def read(cls, reader: Reader) -> ExtensionList:
        version, found = reader.text8(), []
        for _ in range(reader.u32()):
            code, number = _ENTRY.unpack(reader.take(_ENTRY.size))
            found.append(Extension(code, number, reader.text8()))
        return cls(version, tuple(found))

    def encode(self) -> bytes:
        entries = (_ENTRY.pack(each.code, each.version) + wire.text8(each.name) for each in self.extensions)
        return wire.text8(self.server_version) + wire.u32(len(self.extensions)) + b"".join(entries)


class ShardMetrics(msgspec.Struct, frozen=True):
    """One worker at one moment: `clock_us` is its monotonic clock, `values` belong to the names of the reply."""

    shard: int
    generation: int
    clock_us: int
    values: tuple[int, ...]
    latency: tuple[int, ...]


class Metrics(msgspec.Struct, frozen=True):
    """Reply of GET_METRICS. `shards_count`: of the server; a shard that is down is missing in `shards`."""

    time_us: int
    started_at_us: int
    shards_count: int
    names: tuple[tuple[FigureKind, str], ...]
    latency_buckets: int
    shards: tuple[ShardMetrics, ...]

    @classmethod
    def read(cls, reader: Reader) -> Metrics:
        time_us, started_at_us, shards_count = _METRICS_HEAD.unpack(reader.take(_METRICS_HEAD.size))
        (count,) = _U16.unpack(reader.take(_U16.size))
        names = tuple((FigureKind(reader.u8()), reader.text8()) for _ in range(count))
        buckets = reader.u8()
        values, latency = struct.Struct(f"<{count}Q"), struct.Struct(f"<{buckets}Q")
        shards = []
        for _ in range(reader.u32()):
            shard, generation, clock_us = _SHARD_HEAD.unpack(reader.take(_SHARD_HEAD.size))
            shards.append(
                ShardMetrics(
                    shard,
                    generation,
                    clock_us,
                    values.unpack(reader.take(values.size)),
                    latency.unpack(reader.take(latency.size)),
                )
            )
        return cls(time_us, started_at_us, shards_count, names, buckets, tuple(shards))

    def encode(self) -> bytes:
        parts = [_METRICS_HEAD.pack(self.time_us, self.started_at_us, self.shards_count), _U16.pack(len(self.names))]
        parts += [wire.u8(kind) + wire.text8(name) for kind, name in self.names]
        parts += [wire.u8(self.latency_buckets), wire.u32(len(self.shards))]
        values, latency = struct.Struct(f"<{len(self.names)}Q"), struct.Struct(f"<{self.latency_buckets}Q")
        for each in self.shards:
            parts.append(_SHARD_HEAD.pack(each.shard, each.generation, each.clock_us))
            parts += [values.pack(*each.values), latency.pack(*each.latency)]
        return b"".join(parts)


def percentile_us(buckets: list[int], share: float) -> float:
    """The time below which `share` (0 to 1) of the requests of a histogram lie, straight inside its log2 bucket: off by
    less than a factor of 2. 0.0 without requests; the last bucket has no end and counts as one like the others."""
    total = sum(buckets)
    if total == 0:
        return 0.0
    wanted, below = share * total, 0
    for number, count in enumerate(buckets):
        if count and below + count >= wanted:
            low, high = (0, 1) if number == 0 else (1 << (number - 1), 1 << number)
            return low + (high - low) * (wanted - below) / count
        below += count
    raise ValueError(f"{share} is no share")
