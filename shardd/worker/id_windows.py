"""Of which messages a partition knows the ids (docs/adr/0070-deduplication.md)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shardd.config.schema import System
from shardd.engine import ExpiryClock, _native
from shardd.engine.partition_limits import IdWindow
from shardd.log.recent_ids import recent_ids
from shardd.log.recovered import Recovered
from shardd.metadata.state import Topic
from shardd.protocol.topic_setting_table import DEDUPLICATION, DEDUPLICATION_ENTRIES, DEDUPLICATION_EXPIRY


def window_of(topic: Topic, system: System) -> IdWindow:
    """Of each partition of the topic."""
    stored: Mapping[str, str] = topic.settings
    if DEDUPLICATION.of(stored, system) == "off":
        return IdWindow()
    return IdWindow(DEDUPLICATION_ENTRIES.of(stored, system), DEDUPLICATION_EXPIRY.of(stored, system))


def known_ids(directory: Path, found: Recovered, window: IdWindow, clock: ExpiryClock) -> bytes:
    """What the window has of the messages that are there, by the believed clock: what came while it was doubted counts
    from the end of that. In a helper thread. OSError."""
    if not window.entries_max or not found.segments:
        return b""
    not_before_us = _native.clock_first_younger(clock.now_us, clock.stamp_us, window.age_us, clock.doubts)
    return recent_ids(directory, found.segments, window.entries_max, not_before_us, clock.now_us, found.waiting)
