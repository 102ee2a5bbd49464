"""Every topic setting there is, in one table: its key, what it takes, its default, who may change it, what becomes of
segments that are there. A new setting is a row here and the place where it takes effect (`Setting.of`): wire, records,
snapshots and command line go by this table.

A value has two texts. People and the wire write it as in the configuration ("7 days", "1 GiB", "durable"). Metadata
records and snapshots keep one canonical form: a name as it is, a number in decimal digits (bytes, microseconds). What
is stored outlives the program: keys stay, lists of names and ranges only grow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from shardd.config import codecs
from shardd.config.schema import (
    ACK_LEVELS,
    DEDUPLICATION_ENTRIES_MAX,
    DEDUPLICATION_EXPIRY_MAX_MS,
    SEGMENT_BYTES_MAX,
    System,
)
from shardd.config.units import format_duration_us, format_size, parse_duration_us, parse_size_bytes
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import Compression

V = TypeVar("V")
SEGMENT_SIZE_LEAST: Final = 1 << 20  # who may change a topic cannot make a file of every few messages
SEGMENT_AGE_LEAST_US: Final = 60_000_000
SEGMENT_AGE_MOST_US: Final = 3650 * 86_400_000_000
HELD_AS_EXPIRY: Final = -1
_EXPIRY: Final = "expiry"
_DIGITS: Final = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)


class SettingType(Protocol[V]):
    """What a setting takes. Parsers raise ValueError."""

    @property
    def takes(self) -> str:
        """For "<key> takes ..."."""
        ...

    def parse(self, text: str) -> V:
        """From what people write."""
        ...

    def show(self, value: V) -> str:
        """What `parse` takes back."""
        ...

    def load(self, stored: str) -> V:
        """From the canonical form, and nothing else."""
        ...

    def store(self, value: V) -> str:
        """The canonical form."""
        ...


class Name(msgspec.Struct, frozen=True):
    """One of a list."""

    names: tuple[str, ...]

    @property
    def takes(self) -> str:
        return ", ".join(self.names)

    def parse(self, text: str) -> str:
        return self.load(text)

    def show(self, value: str) -> str:
        return value

    def load(self, stored: str) -> str:
        if stored not in self.names:
            raise ValueError(stored)
        return stored

    def store(self, value: str) -> str:
        return value


class Count(msgspec.Struct, frozen=True):
    """A whole number between two others, both allowed; `or_zero`: or 0."""

    least: int
    most: int
    or_zero: bool = False

    @property
    def takes(self) -> str:
        range_ = f"a {self._kind()} from {self.show(self.least)} to {self.show(self.most)}"
        return f"{range_}, or 0" if self.or_zero else range_

    def parse(self, text: str) -> int:
        return self._within(self._parse(text.strip()))

    def show(self, value: int) -> str:
        return str(value)

    def load(self, stored: str) -> int:
        if not _DIGITS.fullmatch(stored):
            raise ValueError(stored)
        return self._within(int(stored))

    def store(self, value: int) -> str:
        return str(value)

    def _kind(self) -> str:
        return "number"

    def _parse(self, text: str) -> int:
        if not _DIGITS.fullmatch(text):
            raise ValueError(text)
        return int(text)

    def _within(self, value: int) -> int:
        if not self.least <= value <= self.most and not (self.or_zero and value == 0):
            raise ValueError(value)
        return value


class Size(Count, frozen=True):
    """Bytes, written like 4096 or 512 MiB."""

    def show(self, value: int) -> str:
        return format_size(value)

    def _kind(self) -> str:
        return "size"

    def _parse(self, text: str) -> int:
        return parse_size_bytes(text)


class Duration(Count, frozen=True):
    """Microseconds, written like 30 s or 2h 30m."""

    def show(self, value: int) -> str:
        return format_duration_us(value)

    def _kind(self) -> str:
        return "duration"

    def _parse(self, text: str) -> int:
        return parse_duration_us(text)


class HeldFor(Duration, frozen=True):
    """A duration, or HELD_AS_EXPIRY for a time that other settings say."""

    @property
    def takes(self) -> str:
        return f"{_EXPIRY}, or {super().takes}"

    def parse(self, text: str) -> int:
        return HELD_AS_EXPIRY if text.strip() == _EXPIRY else super().parse(text)

    def show(self, value: int) -> str:
        return _EXPIRY if value == HELD_AS_EXPIRY else super().show(value)

    def load(self, stored: str) -> int:
        return HELD_AS_EXPIRY if stored == _EXPIRY else super().load(stored)

    def store(self, value: int) -> str:
        return _EXPIRY if value == HELD_AS_EXPIRY else super().store(value)


class CodecName(msgspec.Struct, frozen=True):
    """An algorithm, with or without a level (shardd/config/codecs.py)."""

    @property
    def takes(self) -> str:
        return codecs.TAKES

    def parse(self, text: str) -> str:
        return codecs.parse_codec(text)

    def show(self, value: str) -> str:
        return value

    def load(self, stored: str) -> str:
        return codecs.parse_codec(stored)

    def store(self, value: str) -> str:
        return value


class ChangedBy(Enum):
    """Who may change a setting; who may see the topic sees them all."""

    TOPIC_MANAGER = "who may change the topic"
    STREAM_MANAGER = "who may change the stream"


class OldSegments(Enum):
    """What a change means for segments that are there."""

    UNCHANGED = "stay as they are"
    FOLLOW = "follow, too"


class Setting(msgspec.Struct, Generic[V], frozen=True):
    """One row. `default`: what holds for a topic without a value of its own, by the server's configuration."""

    key: str
    type: SettingType[V]
    default: Callable[[System], V]
    changed_by: ChangedBy
    old_segments: OldSegments

    def of(self, stored: Mapping[str, str], system: System) -> V:
        """The value in effect for a topic with these settings of its own (`Topic.settings`)."""
        text = stored.get(self.key)
        return self.default(system) if text is None else self.type.load(text)

    def shown(self, stored: Mapping[str, str], system: System) -> str:
        """The same, for people."""
        return self.type.show(self.of(stored, system))


# when a message counts as acknowledged (docs/guarantees.md)
ACK: Final = Setting(
    "ack", Name(ACK_LEVELS), lambda system: system.partition.ack, ChangedBy.TOPIC_MANAGER, OldSegments.UNCHANGED
)
# how sealed segments are compressed; `codec_of` has what holds for a topic
COMPRESSION: Final = Setting(
    "compression",
    CodecName(),
    lambda system: system.compression.default_algorithm,
    ChangedBy.TOPIC_MANAGER,
    OldSegments.FOLLOW,
)
# whether expiry, size and the limits below remove messages; new topics have it on (docs/adr/0041-retention.md)
RETENTION: Final = Setting(
    "retention", Name(("off", "on")), lambda _: "off", ChangedBy.TOPIC_MANAGER, OldSegments.FOLLOW
)
# messages that are kept of a partition, the oldest go first; 0: all of them
PARTITION_MESSAGES_MAX: Final = Setting(
    "partition_messages_max", Count(0, 1 << 62), lambda _: 0, ChangedBy.TOPIC_MANAGER, OldSegments.FOLLOW
)
# bytes that are kept of a partition: whole segments go, the oldest first, the active one stays; 0: all of them
PARTITION_SIZE_MAX: Final = Setting(
    "partition_size_max", Size(0, 1 << 50), lambda _: 0, ChangedBy.TOPIC_MANAGER, OldSegments.FOLLOW
)
# up to which age stored offsets hold back what the size of the topic and the two settings above want to go; 0 s: the
# limits win over every stored offset, as in all topics that are made from now on (docs/adr/0128-sizes-win.md)
SIZE_HELD_MAX: Final = Setting(
    "size_held_max",
    HeldFor(0, SEGMENT_AGE_MOST_US),
    lambda _: HELD_AS_EXPIRY,
    ChangedBy.TOPIC_MANAGER,
    OldSegments.FOLLOW,
)
# at which size segments are sealed
SEGMENT_SIZE: Final = Setting(
    "segment_size",
    Size(SEGMENT_SIZE_LEAST, SEGMENT_BYTES_MAX),
    lambda system: system.segment_size_bytes,
    ChangedBy.TOPIC_MANAGER,
    OldSegments.UNCHANGED,
)
# at which age of its first message a segment is sealed that is not full; 0: at none
SEGMENT_AGE_MAX: Final = Setting(
    "segment_age_max",
    Duration(SEGMENT_AGE_LEAST_US, SEGMENT_AGE_MOST_US, or_zero=True),
    lambda _: 0,
    ChangedBy.TOPIC_MANAGER,
    OldSegments.UNCHANGED,
)
# what becomes of a send to a topic that has its size, or to a partition that has its messages or its size
DISCARD: Final = Setting(
    "discard", Name(("oldest", "refuse")), lambda _: "oldest", ChangedBy.TOPIC_MANAGER, OldSegments.FOLLOW
)
# whether segments are archived before they are deleted (docs/adr/0047-archive-before-deletion.md)
ARCHIVE: Final = Setting(
    "archive", Name(("none", "required", "best_effort")), lambda _: "none", ChangedBy.TOPIC_MANAGER, OldSegments.FOLLOW
)
# payload and user headers of one message; 0: what the protocol takes
MESSAGE_SIZE_MAX: Final = Setting(
    "message_size_max", Size(0, 64 << 20), lambda _: 0, ChangedBy.TOPIC_MANAGER, OldSegments.UNCHANGED
)
# whether a message whose id is known is not stored again (docs/adr/0070-deduplication.md)
DEDUPLICATION: Final = Setting(
    "message_deduplication",
    Name(("off", "on")),
    lambda system: "on" if system.message_deduplication.enabled else "off",
    ChangedBy.TOPIC_MANAGER,
    OldSegments.UNCHANGED,
)
# of how many of the last messages of a partition the ids are known, and for how long
DEDUPLICATION_ENTRIES: Final = Setting(
    "message_deduplication_max_entries",
    Count(1, DEDUPLICATION_ENTRIES_MAX),
    lambda system: system.message_deduplication.max_entries,
    ChangedBy.TOPIC_MANAGER,
    OldSegments.UNCHANGED,
)
DEDUPLICATION_EXPIRY: Final = Setting(
    "message_deduplication_expiry",
    Duration(1_000_000, DEDUPLICATION_EXPIRY_MAX_MS * 1000),
    lambda system: system.message_deduplication.expiry_ms * 1000,
    ChangedBy.TOPIC_MANAGER,
    OldSegments.UNCHANGED,
)
SETTINGS: Mapping[str, Setting[Any]] = {
    each.key: each
    for each in (
        ACK,
        COMPRESSION,
        RETENTION,
        PARTITION_MESSAGES_MAX,
        PARTITION_SIZE_MAX,
        SIZE_HELD_MAX,
        SEGMENT_SIZE,
        SEGMENT_AGE_MAX,
        DISCARD,
        MESSAGE_SIZE_MAX,
        ARCHIVE,
        DEDUPLICATION,
        DEDUPLICATION_ENTRIES,
        DEDUPLICATION_EXPIRY,
    )
}
SETTINGS_OF_NEW: Final = ((SIZE_HELD_MAX.key, "0"),)
"""What every topic that is made from now on has, unless asked otherwise. Topics that exist keep the default."""
ASKED_BY_WIRE: Final = "gzip"  # value 2 of CREATE_TOPIC and UPDATE_TOPIC


def settings_of_new(asked: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Canonical settings of a topic that is made now."""
    return tuple(sorted((dict(SETTINGS_OF_NEW) | dict(asked)).items()))


def codec_of(stored: Mapping[str, str], wire: int, system: System) -> str:
    """How sealed segments are compressed (shardd/config/codecs.py), for a topic with these settings and this value
    on the classic wire. Its own setting counts first, then a 2 of the wire, then the server's default."""
    compression = system.compression
    if not compression.allow_override:
        return compression.default_algorithm
    if COMPRESSION.key not in stored and wire == Compression.GZIP:
        return ASKED_BY_WIRE
    return COMPRESSION.of(stored, system)


def setting_of(key: str) -> Setting[Any]:
    """The row of a key, or `ShardError` 5."""
    found = SETTINGS.get(key)
    if found is None:
        raise ShardError(Status.FEATURE_UNAVAILABLE, f"there is no topic setting {key!r}")
    return found


def canonical(key: str, text: str) -> str:
    """What is stored for what somebody wrote; "" stands for the default. `ShardError` 5, or 2 with a sentence."""
    setting = setting_of(key)
    try:
        return setting.type.store(setting.type.parse(text)) if text else ""
    except ValueError:
        sentence = f"{key} takes {setting.type.takes}, not {text!r}"
        raise ShardError(Status.INVALID_CONFIGURATION, sentence) from None


def check_stored(key: str, stored: str) -> Status:
    """OK for a key of the table and a value in canonical form, or "" for the default; else 5 or 2."""
    setting = SETTINGS.get(key)
    if setting is None:
        return Status.FEATURE_UNAVAILABLE
    try:
        if stored:
            setting.type.load(stored)
    except ValueError:
        return Status.INVALID_CONFIGURATION
    return Status.OK
