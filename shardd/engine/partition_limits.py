"""What a partition keeps no longer, and what its topic takes no more."""

from __future__ import annotations

from typing import NamedTuple


class PartitionLimits(NamedTuple):
    """`partition_limits` of native/src/log/partition.h; 0: no such limit."""

    expiry_us: int = 0
    held_us: int = 0
    messages_max: int = 0
    bytes_max: int = 0
    segment_bytes: int = 0
    segment_age_us: int = 0
    size_held_us: int = 0


class SendingPartition(NamedTuple):
    """`place`: in its topic."""

    namespace: int
    incarnation: int
    place: int


class SendLimits(NamedTuple):
    """`send_limits` of native/src/core/send_limits.h; 0: no such limit."""

    message_bytes_max: int = 0
    messages_max: int = 0
    bytes_max: int = 0
    partition_bytes_max: int = 0


class IdWindow(NamedTuple):
    """Which ids of messages are compared (native/src/log/id_window.h); 0: none."""

    entries_max: int = 0
    age_us: int = 0
