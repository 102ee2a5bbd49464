"""The history of a topic as it really was, and what a reader owes to it. The model knows no reader and no server.

Every payload is unique, so a payload says where its message was: in which history of which partition, at which offset.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Where(NamedTuple):
    """The place of a message. `number`: of the history of the topic's life, over all partitions."""

    partition: int
    number: int
    offset: int


@dataclass(slots=True)
class History:
    """One history of one partition. `first`: the smallest offset that is kept; `gone`: isolated offsets above it."""

    partition: int
    number: int
    first: int = 0
    rows: list[bytes] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    has_ended: bool = False

    @property
    def end(self) -> int:
        return len(self.rows)

    def has(self, offset: int) -> bool:
        """Whether a poll can bring this offset now."""
        return self.first <= offset < self.end and offset not in self.gone

    def kept(self, begin: int, count: int) -> list[int]:
        """The offsets of a poll from `begin` on."""
        found: list[int] = []
        for offset in range(max(begin, self.first), self.end):
            if len(found) == count:
                break
            if offset not in self.gone:
                found.append(offset)
        return found


class TopicHistory:
    """All histories of all partitions of one topic name. `partitions`: those that there are now.
    `made`: how often the topic was made."""

    def __init__(self, partitions: int) -> None:
        self.all: list[History] = []
        self.partitions: list[History] = []
        self.where: dict[bytes, list[Where]] = {}
        self.made = 1
        self.add(partitions)

    def _begin(self, partition: int) -> History:
        made = History(partition, len(self.all) + 1)
        self.all.append(made)
        return made

    def add(self, count: int) -> None:
        self.partitions += [self._begin(len(self.partitions) + number) for number in range(count)]

    def remove(self, count: int) -> None:
        for each in self.partitions[len(self.partitions) - count :]:
            each.has_ended = True
        del self.partitions[len(self.partitions) - count :]

    def purge(self) -> None:
        for each in self.partitions:
            each.has_ended = True
        self.partitions = [self._begin(each.partition) for each in self.partitions]

    def recreate(self, partitions: int) -> None:
        self.made += 1
        self.remove(len(self.partitions))
        self.add(partitions)

    def append(self, partition: int, payloads: list[bytes]) -> int:
        """The first offset."""
        history = self.partitions[partition]
        first = history.end
        for payload in payloads:
            self.where.setdefault(payload, []).append(Where(partition, history.number, history.end))
            history.rows.append(payload)
        return first

    def retain(self, partition: int, first: int) -> None:
        history = self.partitions[partition]
        demand(
            history.first <= first <= history.end,
            f"offset {first} is told to be the first, of those from {history.first} to {history.end}",
        )
        history.first = first

    def isolate(self, partition: int, begin: int, end: int) -> None:
        history = self.partitions[partition]
        history.gone |= set(range(begin, end))

    def history(self, number: int) -> History:
        return self.all[number - 1]


class Broken(AssertionError):  # noqa: N818
    """A reader or a writer does not hold what it promises."""


def demand(holds: bool, sentence: str) -> None:
    if not holds:
        raise Broken(sentence)


class ReaderAccount:
    """What one reader has handed over and told: a consumer by its name over all of its lives, all members of a group.
    `reader`: one object of them.

    `begins`: offsets from which on it owes the first history of a partition, by partition; none: from its first
    message on. `repeats`: a message may come again to the same object."""

    def __init__(self, topic: TopicHistory, *, repeats: bool, begins: dict[int, int] | None = None) -> None:
        self.topic, self.repeats = topic, repeats
        self.begins = {} if begins is None else begins
        self.first_histories = {each.partition: each.number for each in topic.partitions}
        self.handed: dict[int, set[int]] = {}  # by history: offsets
        self.excused: dict[
            int, set[int]
        ] = {}  # by history: what was told to be lost, or nobody had a place in front of
        self.stored: dict[int, int] = {}  # by history
        self.resets: dict[tuple[int, int], int] = {}  # by object and partition: how many were told
        self._newest: dict[tuple[int, int], int] = {}  # by object and partition: the history of the last delivery
        self._last: dict[tuple[int, int], int] = {}  # by object and history: the last offset

    # ---- what the reader does ----

    def delivered(self, partition: int, offset: int | None, payload: bytes, reader: int = 0) -> Where:
        """`offset` None: the reader does not tell it."""
        places = [each for each in self.topic.where.get(payload, []) if each.partition == partition]
        demand(len(places) == 1, f"{payload!r} comes from partition {partition}, which never had it")
        where = places[0]
        demand(offset is None or offset == where.offset, f"{payload!r} comes with offset {offset}, it has {where}")
        newest, last = self._newest.get((reader, partition)), self._last.get((reader, where.number))
        demand(self.repeats or newest is None or where.number >= newest, f"{where} comes behind history {newest}")
        demand(self.repeats or last is None or where.offset > last, f"{where} comes behind offset {last}")
        if newest is not None and where.number > newest:
            demand(
                self.resets.get((reader, partition), 0) > 0,
                f"history {where.number} of partition {partition} follows {newest} and no reset was told",
            )
        self._newest[reader, partition] = where.number
        self._placed(reader, where.number, where.offset)
        self._last[reader, where.number] = where.offset
        self.handed.setdefault(where.number, set()).add(where.offset)
        self._no_hole(where)
        return where

    def _placed(self, reader: int, number: int, offset: int) -> None:
        """An object that had no place in a history, where none is stored, begins at what is there."""
        if (reader, number) not in self._last and number not in self.stored:
            history = self.topic.history(number)
            gone = {each for each in range(offset) if not history.has(each)}
            self.excused.setdefault(number, set()).update(gone)
        self._last.setdefault((reader, number), -1)

    def _begin(self, history: History) -> int:
        is_first = self.first_histories.get(history.partition) == history.number
        return self.begins.get(history.partition, 0) if is_first else 0

    def _no_hole(self, where: Where) -> None:
        """Nothing between the beginning and this message is missing."""
        history = self.topic.history(where.number)
        settled = self.handed[where.number] | self.excused.get(where.number, set())
        for offset in range(self._begin(history), where.offset):
            demand(
                offset in settled,
                f"{where} is delivered, offset {offset} was left out without a word (first offset {history.first})",
            )

    def lost(self, partition: int, begin: int, end: int, reader: int = 0) -> None:
        """The reader tells that these offsets are gone before it could read them."""
        newest = self._newest.get((reader, partition), 0)
        told = False
        for history in self.topic.all:
            if history.partition != partition or history.number < newest or end > history.end:
                continue
            if all(not history.has(offset) for offset in range(begin, end)):
                self.excused.setdefault(history.number, set()).update(range(begin, end))
                self._placed(reader, history.number, begin)
                told = True
        demand(told, f"offsets {begin} to {end - 1} of partition {partition} are told to be lost, and are there")

    def reset(self, partition: int, reader: int = 0) -> None:
        self.resets[reader, partition] = self.resets.get((reader, partition), 0) + 1
        changes = sum(1 for each in self.topic.all if each.partition == partition and each.has_ended)
        demand(
            self.resets[reader, partition] <= changes,
            f"{self.resets[reader, partition]} resets of partition {partition} are told, it had {changes}",
        )

    def committed(self, partition: int, number: int, offset: int) -> None:
        """The server has stored this offset for the reader, for this history."""
        handed = self.handed.get(number, set())
        demand(
            offset in handed or offset < self._begin(self.topic.history(number)),
            f"offset {offset} of history {number} of partition {partition} is committed, and was not handed over",
        )
        self.stored[number] = offset

    # ---- the end ----

    def missing(self) -> dict[int, list[int]]:
        """By history that goes on: offsets that are there and were not handed over."""
        found = {}
        for history in self.topic.partitions:
            handed = self.handed.get(history.number, set())
            left = [each for each in history.kept(self._begin(history), history.end) if each not in handed]
            if left:
                found[history.number] = left
        return found

    def check_end(self) -> None:
        demand(not self.missing(), f"never handed over, by history: {self.missing()}")


class WriterAccount:
    """The fate of every message of one writer. `repeats`: a message may be stored more than once; `doubted`: messages
    that may, as their connection was cut."""

    def __init__(self, topic: TopicHistory, *, repeats: bool) -> None:
        self.topic, self.repeats = topic, repeats
        self.sent: list[tuple[bytes, int | None]] = []  # in their order
        self.ends: dict[bytes, str] = {}
        self.doubted: set[bytes] = set()

    def sending(self, payload: bytes, partition: int | None = None) -> None:
        self.sent.append((payload, partition))

    def ended(self, payload: bytes, end: str) -> None:
        """`end`: "stored", "not stored" or "unknown"."""
        demand(payload not in self.ends, f"{payload!r} ends twice")
        self.ends[payload] = end

    def check_end(self) -> None:
        for payload, partition in self.sent:
            places, end = self.topic.where.get(payload, []), self.ends.get(payload)
            demand(end is not None, f"the end of {payload!r} is not told")
            demand(end != "stored" or bool(places), f"{payload!r} is acknowledged and was never stored")
            demand(end != "not stored" or not places, f"{payload!r} is said not to be stored and is at {places}")
            demand(
                self.repeats or payload in self.doubted or len(places) <= 1, f"{payload!r} is stored twice: {places}"
            )
            demand(
                all(partition is None or each.partition == partition for each in places),
                f"{payload!r} was sent to partition {partition} and is at {places}",
            )
        self._check_order()

    def _check_order(self) -> None:
        """Of what was told to be stored, the last copies in a history are in the order of sending. An earlier copy may
        stand in front of a message that was refused before it, when the answers of both were lost."""
        turn = {payload: number for number, (payload, _) in enumerate(self.sent)}
        for history in self.topic.all:
            lasts = list(dict.fromkeys(reversed(history.rows)))[::-1]
            order = [turn[each] for each in lasts if self._is_last(each, history.number)]
            demand(order == sorted(order), f"history {history.number} has another order than that of sending")

    def _is_last(self, payload: bytes, number: int) -> bool:
        return self.ends.get(payload) == "stored" and self.topic.where[payload][-1].number == number
