"""Where reading starts and ends: topic names, position options, and the offsets that a checkpoint holds. Pure.

Offset of a streaming query, stored by Spark as JSON (format version 1):

    {"v": 1, "topics": {"stream/topic": {"p": {"0": [incarnation, next offset], ...}, "stride": offsets in one task}}}

Ends are exclusive. The incarnation changes with a purge or a new creation, so a number alone never mixes two histories.
The stride is stored so that a batch that is planned again after a crash is cut at the same places.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Self

EARLIEST: Final = -2
LATEST: Final = -1
_OFFSET_MAX: Final = 2**63 - 1
FORMAT_VERSION: Final = 1


class OptionError(ValueError):
    """An option that cannot be served; the message names it and the way out."""


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """A topic by names; text form "stream/topic"."""

    stream: str
    topic: str

    def __str__(self) -> str:
        return f"{self.stream}/{self.topic}"

    @classmethod
    def parse(cls, text: str, stream: str | None) -> Self:
        """From "topic" (in the default stream) or "stream/topic"."""
        name = text.strip()
        if "/" in name:
            before, _, after = name.partition("/")
            if before and after and "/" not in after:
                return cls(before, after)
        elif name and stream:
            return cls(stream, name)
        elif name:
            raise OptionError(f"topic '{name}' has no stream: write 'stream/{name}' or set the option 'stream'")
        raise OptionError(f"'{text}' is no topic: write 'topic' or 'stream/topic'")


@dataclass(frozen=True, slots=True)
class Positions:
    """One side of a range: `default` (EARLIEST or LATEST) or `timestamp_us` for all partitions, or `explicit` ones.

    With `by_timestamp` the explicit values are microseconds, otherwise offsets, EARLIEST or LATEST.
    """

    default: int
    timestamp_us: int | None = None
    explicit: Mapping[TopicName, Mapping[int, int]] = field(default_factory=dict)
    by_timestamp: bool = False


def parse_timestamp(name: str, text: str) -> int:
    """Microseconds, from milliseconds since 1970 or ISO text (without a zone: UTC)."""
    value = text.strip()
    if value.isdigit():
        return int(value) * 1000
    try:
        moment = datetime.fromisoformat(value)
    except ValueError as error:
        raise OptionError(
            f"option '{name}' is '{text}', but must be milliseconds or a time such as 2026-01-31T12:00:00Z"
        ) from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1_000_000)


def _load_map(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise OptionError(f"option '{name}' is no JSON: {error}") from error
    if not isinstance(value, dict) or not value:
        raise OptionError(f"option '{name}' must be a JSON object such as {{\"stream/topic\": ...}}")
    return value


def parse_assign(text: str, stream: str | None) -> dict[TopicName, tuple[int, ...]]:
    """{"s/t": [0, 1]}."""
    found = {}
    for key, value in _load_map("assign", text).items():
        good = isinstance(value, list) and value and all(type(each) is int and 0 <= each < 2**32 for each in value)
        if not good or len(set(value)) != len(value):
            raise OptionError(f"option 'assign': '{key}' needs a list of different partition numbers")
        found[TopicName.parse(key, stream)] = tuple(sorted(value))
    return found


def parse_positions(name: str, text: str, stream: str | None, *, by_timestamp: bool, default: int) -> Positions:
    """earliest, latest, or {"s/t": {"0": 23, "1": -2}} (offsets; with `by_timestamp` milliseconds)."""
    word = text.strip().lower()
    if not by_timestamp and word in ("earliest", "latest"):
        if name.startswith("ending") and word == "earliest":
            raise OptionError("option 'endingOffsets' cannot be 'earliest'")
        return Positions(EARLIEST if word == "earliest" else LATEST)
    explicit: dict[TopicName, dict[int, int]] = {}
    for key, value in _load_map(name, text).items():
        if not isinstance(value, dict):
            raise OptionError(f"option '{name}': '{key}' needs an object such as {{\"0\": 23}}")
        explicit[TopicName.parse(key, stream)] = {
            _partition(name, key, partition): _position(name, key, position, by_timestamp)
            for partition, position in value.items()
        }
    return Positions(default, explicit=explicit, by_timestamp=by_timestamp)


def _partition(name: str, topic: str, text: str) -> int:
    if not text.isdigit() or int(text) >= 2**32:
        raise OptionError(f"option '{name}': '{text}' is no partition of '{topic}'")
    return int(text)


def _position(name: str, topic: str, value: object, by_timestamp: bool) -> int:
    low = 0 if by_timestamp or name.startswith("ending") else EARLIEST
    low = LATEST if name.startswith("ending") and not by_timestamp else low
    if type(value) is not int or not low <= value <= _OFFSET_MAX:
        raise OptionError(f"option '{name}': {value!r} is no position in '{topic}'")
    return value * 1000 if by_timestamp else value


@dataclass(frozen=True, slots=True)
class Place:
    """A place in one partition: next offset in one incarnation of it."""

    incarnation: int
    offset: int


@dataclass(frozen=True, slots=True)
class Offsets:
    """A place in every partition, and the stride of each topic. The offset of a streaming query."""

    places: Mapping[TopicName, Mapping[int, Place]]
    strides: Mapping[TopicName, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        topics = {}
        for name in sorted(self.places):
            places = {str(n): [each.incarnation, each.offset] for n, each in sorted(self.places[name].items())}
            topics[str(name)] = {"p": places, "stride": self.strides.get(name, 0)}
        return {"v": FORMAT_VERSION, "topics": topics}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """ValueError for a checkpoint that this version cannot read."""
        if value.get("v") != FORMAT_VERSION:
            raise ValueError(
                f"the checkpoint has offsets of version {value.get('v')}, this shardd reads {FORMAT_VERSION}"
            )
        places, strides = {}, {}
        for text, entry in value["topics"].items():
            name = TopicName.parse(text, None)
            places[name] = {int(n): Place(int(each[0]), int(each[1])) for n, each in entry["p"].items()}
            strides[name] = int(entry["stride"])
        return cls(places, strides)


def cuts(start: int, end: int, stride: int) -> list[tuple[int, int]]:
    """[start, end) cut at the multiples of `stride` (0: not at all): the same places whenever it is planned again."""
    if end <= start:
        return []
    if stride <= 0:
        return [(start, end)]
    borders = [start, *range((start // stride + 1) * stride, end, stride), end]
    return list(itertools.pairwise(borders))


def stride_of(
    offsets: int,
    size_bytes: int,
    messages: int,
    partitions: int,
    *,
    max_records: int | None,
    max_bytes: int,
    min_partitions: int | None,
) -> int:
    """Offsets that one task gets: at most `max_records`, about `max_bytes`, and few enough for `min_partitions` tasks.

    `offsets` are to be read in all, from `partitions` partitions with `messages` of `size_bytes` in all.
    """
    average = max(size_bytes // messages, 1) if messages else 1
    stride = max(max_bytes // average, 1)
    if max_records is not None:
        stride = min(stride, max_records)
    if min_partitions is not None and min_partitions > partitions and offsets:
        stride = min(stride, -(-offsets // min_partitions))
    return max(stride, 1)


def share(limit: int, backlog: Mapping[Any, int]) -> dict[Any, int]:
    """`limit` split over what waits, in proportion; everyone who waits gets one at least, nobody more than waits."""
    total = sum(backlog.values())
    if total <= limit:
        return dict(backlog)
    return {key: min(waiting, max(1, limit * waiting // total)) if waiting else 0 for key, waiting in backlog.items()}
