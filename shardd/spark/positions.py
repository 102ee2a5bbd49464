"""Where reading starts and ends: topic names, position options, and the offsets that a checkpoint holds. Pure.

Offset of a streaming query, stored by Spark as JSON:

    {"v": 1, "topics": {"stream/topic": {"p": {"0": [incarnation, next offset, marks], ...},
                                         "stride": offsets in one task,
                                         "group": offsets up to which small pieces share a task, 0 or absent: never}}}

Ends are exclusive. The incarnation changes with a purge, a new creation or a restore, so a number alone never mixes two
histories. The marks, [[offset, checksum], ...], tell a directory that was put back as files (rollbacks.py); earlier
versions do not write them and do not look at them. Stride and group are stored so that a batch that is planned again
after a crash is cut and put together in the same way. Version 2 is the same with quoted names; it is written when a
name needs quotes.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Self

from shardd.client.marks import Mark, Marks
from shardd.config.digits import number_of

EARLIEST: Final = -2
LATEST: Final = -1
_OFFSET_MAX: Final = 2**63 - 1
_TIME_MAX_MS: Final = _OFFSET_MAX // 1000  # 63 bits of microseconds
FORMAT_PLAIN: Final = 1  # topics as "stream/topic" without quotes
FORMAT_QUOTED: Final = 2
_PART: Final = r"(`(?:[^`]|``)+`|[^`/][^/]*)"
_NAME: Final = re.compile(f"{_PART}(?:/{_PART})?", re.DOTALL)
_LISTED: Final = re.compile(r"(?:`(?:[^`]|``)*`|[^,])*")


class OptionError(ValueError):
    """An option that cannot be served; the message names it and the way out."""


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """A topic by names. Text form: "stream/topic"; a name with a slash, or with a backtick in front, stands in
    backticks (those inside doubled), so that no two topics have the same text."""

    stream: str
    topic: str

    def __str__(self) -> str:
        return f"{_quoted(self.stream)}/{_quoted(self.topic)}"

    @property
    def needs_quotes(self) -> bool:
        return str(self) != f"{self.stream}/{self.topic}"

    @classmethod
    def parse(cls, text: str, stream: str | None) -> Self:
        """From "topic" (in the default stream) or "stream/topic"."""
        given = text.strip()
        match = _NAME.fullmatch(given)
        if match is None:
            raise OptionError(
                f"'{text}' is no topic: write 'topic' or 'stream/topic', a name with a slash in backticks: `a/b`/c"
            )
        first, second = match.groups()
        if second is not None:
            return cls(_unquoted(first), _unquoted(second))
        if not stream:
            raise OptionError(f"topic '{given}' has no stream: write 'stream/{given}' or set the option 'stream'")
        return cls(stream, _unquoted(first))

    @classmethod
    def from_text(cls, text: str, *, quoted: bool) -> Self:
        """From the text of a checkpoint; before there were quotes it was cut at its only slash. ValueError."""
        if not quoted:
            stream, _, topic = text.partition("/")
            return cls(stream, topic)
        match = _NAME.fullmatch(text)
        if match is None or match[2] is None:
            raise ValueError(f"the checkpoint names the topic {text!r}")
        return cls(_unquoted(match[1]), _unquoted(match[2]))


def _quoted(part: str) -> str:
    return "`" + part.replace("`", "``") + "`" if "/" in part or part.startswith("`") else part


def _unquoted(part: str) -> str:
    return part[1:-1].replace("``", "`") if part.startswith("`") else part


def parse_names(text: str, stream: str | None) -> tuple[TopicName, ...]:
    """A list with commas, each topic once."""
    items, at = [], 0
    while at <= len(text):
        match = _LISTED.match(text, at)
        assert match is not None  # it may be empty
        items.append(match[0])
        at = match.end() + 1
    return tuple(dict.fromkeys(TopicName.parse(item, stream) for item in items))


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
    milliseconds = number_of(value)
    if milliseconds is not None:
        return _time_us(name, text, milliseconds * 1000)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError as error:
        raise OptionError(
            f"option '{name}' is '{text}', but must be milliseconds or a time such as 2026-01-31T12:00:00Z"
        ) from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return _time_us(name, text, int(moment.timestamp() * 1_000_000))


def _time_us(name: str, text: str, time_us: int) -> int:
    if not 0 <= time_us <= _TIME_MAX_MS * 1000:
        raise OptionError(
            f"option '{name}' is '{text}', but must be a time from 1970 on, of {_TIME_MAX_MS} milliseconds at most"
        )
    return time_us


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
    partition = number_of(text)
    if partition is None or partition >= 2**32:
        raise OptionError(f"option '{name}': '{text}' is no partition of '{topic}'")
    return partition


def _position(name: str, topic: str, value: object, by_timestamp: bool) -> int:
    low = 0 if by_timestamp or name.startswith("ending") else EARLIEST
    low = LATEST if name.startswith("ending") and not by_timestamp else low
    high = _TIME_MAX_MS if by_timestamp else _OFFSET_MAX
    if type(value) is not int or not low <= value <= high:
        raise OptionError(f"option '{name}': {value!r} is no position in '{topic}'")
    return value * 1000 if by_timestamp else value


@dataclass(frozen=True, slots=True)
class Position:
    """A place in one partition: next offset in one incarnation of it. `marks`: records in front of it that were read;
    places are equal without them."""

    incarnation: int
    offset: int
    marks: Marks = field(default=(), compare=False)

    def to_json(self) -> list[Any]:
        head = [self.incarnation, self.offset]
        return [*head, [list(each) for each in self.marks]] if self.marks else head

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Self:
        marks = value[2] if len(value) > 2 else ()
        return cls(int(value[0]), int(value[1]), tuple(Mark(int(offset), int(of)) for offset, of in marks))


@dataclass(frozen=True, slots=True)
class Offsets:
    """A place in every partition, and stride and group of each topic. The offset of a streaming query."""

    places: Mapping[TopicName, Mapping[int, Position]]
    strides: Mapping[TopicName, int] = field(default_factory=dict)
    groups: Mapping[TopicName, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        topics = {}
        for name in sorted(self.places):
            places = {str(n): each.to_json() for n, each in sorted(self.places[name].items())}
            topics[str(name)] = {"p": places, "stride": self.strides.get(name, 0), "group": self.groups.get(name, 0)}
        quoted = any(name.needs_quotes for name in self.places)
        return {"v": FORMAT_QUOTED if quoted else FORMAT_PLAIN, "topics": topics}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """ValueError for a checkpoint that this version cannot read."""
        version = value.get("v")
        if version not in (FORMAT_PLAIN, FORMAT_QUOTED):
            raise ValueError(
                f"the checkpoint has offsets of version {version}, this shardd reads {FORMAT_PLAIN} and {FORMAT_QUOTED}"
            )
        places, strides, groups = {}, {}, {}
        for text, entry in value["topics"].items():
            name = TopicName.from_text(text, quoted=version == FORMAT_QUOTED)
            places[name] = {int(n): Position.from_json(each) for n, each in entry["p"].items()}
            strides[name] = int(entry["stride"])
            groups[name] = int(entry.get("group", 0))
        return cls(places, strides, groups)


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


def group_of(offsets: int, size_bytes: int, messages: int, *, min_bytes: int, min_partitions: int | None) -> int:
    """Offsets up to which pieces share a task: about `min_bytes`, and so few that there are `min_partitions` tasks; 0:
    they never share one. `offsets` are to be read in all; the topic has `messages` of `size_bytes`."""
    average = max(size_bytes // messages, 1) if messages else 1
    group = min_bytes // average
    return group if min_partitions is None else min(group, offsets // min_partitions)


def share(limit: int, backlog: Mapping[Any, int]) -> dict[Any, int]:
    """`limit` split over what waits, in proportion; everyone who waits gets one at least, nobody more than waits."""
    total = sum(backlog.values())
    if total <= limit:
        return dict(backlog)
    return {key: min(waiting, max(1, limit * waiting // total)) if waiting else 0 for key, waiting in backlog.items()}
