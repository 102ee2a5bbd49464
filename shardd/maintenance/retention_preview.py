"""What retention would remove of topics in which nobody has switched it on: from manifests, nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from shardd.log import layout
from shardd.log.manifest import Sealed, read_manifest
from shardd.log.segment_reader import segment_starts
from shardd.maintenance.retention_limits import RetentionLimits
from shardd.metadata.state import State, Stream, Topic
from shardd.protocol.topic_setting_table import RETENTION
from shardd.runtime.throttle import Throttle


class WouldGo(msgspec.Struct, frozen=True):
    """Whole sealed segments of one topic: at least that much."""

    name: str
    segments: int
    messages: int
    size_bytes: int

    def __str__(self) -> str:
        return f"{self.name} ({self.messages} messages, {self.size_bytes} bytes)"


def preview(data: Path, state: State, limits: RetentionLimits, now_us: int, throttle: Throttle) -> list[WouldGo]:
    """Every topic that has limits and keeps everything, also when nothing would go. Blocks."""
    return [
        _of_topic(data, stream, topic, limits, now_us, throttle)
        for stream in state.streams.values()
        for topic in stream.topics.values()
        if RETENTION.key not in topic.settings and limits.has_any(topic)
    ]


def preview_held(data: Path, state: State, limits: RetentionLimits, now_us: int, throttle: Throttle) -> list[WouldGo]:
    """Topics from before in which stored offsets overrule sizes and counts, also when nothing is above them: what would
    go at most with `size_held_max` 0 s. Blocks."""
    return [
        _of_topic(data, stream, topic, limits, now_us, throttle)
        for stream in state.streams.values()
        for topic in stream.topics.values()
        if limits.is_on(topic) and limits.keeps_for_offsets(topic)
    ]


def _of_topic(
    data: Path, stream: Stream, topic: Topic, limits: RetentionLimits, now_us: int, throttle: Throttle
) -> WouldGo:
    gone: list[Sealed] = []
    kept: list[Sealed] = []
    drops, expiry_us = not limits.refuses(topic), limits.expiry_us(topic)
    messages_max = limits.messages_max(topic) if drops else 0
    bytes_max = limits.partition_bytes(topic) if drops else 0
    total = 0
    for partition in topic.partitions:
        throttle.spend(1)
        directory = layout.partition_directory(data, stream.id, topic.id, partition.id)
        segments = list(_sealed(directory, partition.incarnation, now_us))
        size_bytes = sum(each.log_bytes for each in segments)
        total += size_bytes
        messages = sum(each.count for each in segments)
        for each in segments:
            expired = expiry_us and each.last_timestamp + expiry_us <= now_us
            many = messages_max and messages - each.count >= messages_max
            if expired or many or (bytes_max and size_bytes > bytes_max):
                gone.append(each)
                messages -= each.count
                size_bytes -= each.log_bytes
            else:
                kept.append(each)
    too_much = limits.size_bytes(topic) * 9 // 10
    total -= sum(each.log_bytes for each in gone)
    if too_much and drops:
        for each in sorted(kept, key=lambda each: each.first_timestamp):
            if total < too_much:
                break
            gone.append(each)
            total -= each.log_bytes
    messages, size_bytes = sum(each.count for each in gone), sum(each.log_bytes for each in gone)
    return WouldGo(f"{stream.name}/{topic.name}", len(gone), messages, size_bytes)


def newest_time_us(directory: Path, incarnation: int) -> int:
    """That manifests tell: no later message of the partition has an earlier one. 0: they tell none."""
    newest_us = 0
    try:
        for start in segment_starts(directory):
            manifest = read_manifest(directory, start)
            if manifest is not None and manifest.incarnation == incarnation:
                last_us = 0 if manifest.sealed is None else manifest.sealed.last_timestamp
                newest_us = max(newest_us, manifest.born_at, last_us)
    except (OSError, ValueError):  # a server is at work, or it cannot be read
        return newest_us
    return newest_us


def _sealed(directory: Path, incarnation: int, now_us: int) -> Iterator[Sealed]:
    """The oldest first, with the times that count. A partition that cannot be read says nothing."""
    try:
        for start in segment_starts(directory):
            manifest = read_manifest(directory, start)
            if manifest is not None and manifest.sealed is not None and manifest.incarnation == incarnation:
                sealed = manifest.sealed
                first, last = (
                    manifest.counted(each, now_us) for each in (sealed.first_timestamp, sealed.last_timestamp)
                )
                yield replace(sealed, first_timestamp=first, last_timestamp=last)
    except (OSError, ValueError):
        return
