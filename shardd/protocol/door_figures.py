"""Figures as a worker tells them to a door (docs/protocol/doors.md#figures): what may be asked for, and the answers.
Beside these a worker tells its own counters and gauges (`ShardFigures`). Sans-IO."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Generic, TypeVar

import msgspec

Kept = TypeVar("Kept")


class What(StrEnum):
    """What is asked for."""

    SHARD = "shard"  # counters and gauges of that worker, without a name of a user's things
    COUNTS = "counts"
    TOPICS = "topics"
    GROUPS = "groups"


ALLOWED: Final[dict[str, frozenset[What]]] = {"metrics": frozenset(What), "http": frozenset({What.COUNTS})}
"""By the name of a door: it asks in nobody's name, and gets nothing but this without a login."""


class Counts(msgspec.Struct, array_like=True, frozen=True):
    """Of the whole server, but for `clients`: those of the worker that answers."""

    streams: int
    topics: int
    partitions: int
    segments: int
    messages: int
    users: int
    clients: int


class TopicFigures(msgspec.Struct, array_like=True, frozen=True):
    """Over all partitions. `appended`: messages since the topic was made or purged; `not_durable`: those that the
    device may not have yet; `read_only`: partitions that take no sends."""

    stream: str
    topic: str
    partitions: int
    segments: int
    messages: int
    size_bytes: int
    appended: int
    not_durable: int
    read_only: int


class GroupFigures(msgspec.Struct, array_like=True, frozen=True):
    """Over the partitions of the worker that answers. `lag_us`: the age of the oldest message that the group has not
    passed; `without_offset`: partitions of which it has stored nothing."""

    stream: str
    topic: str
    group: str
    partitions: int
    without_offset: int
    lag_messages: int
    lag_us: int


class TellHandshakes(msgspec.Struct, frozen=True):
    """Handshakes of TLS or QUIC of a process of a door, since it told others. `process`: its number; `waiting`: steps
    that wait for their turn now."""

    process: int = 0
    waiting: int = 0
    begun: int = 0
    handshakes: int = 0
    resumed: int = 0
    failed: int = 0
    refused: int = 0


class Listed(msgspec.Struct, Generic[Kept], array_like=True, frozen=True):
    """`left_out`: so many are there beside them, above the setting."""

    listed: list[Kept]
    left_out: int
