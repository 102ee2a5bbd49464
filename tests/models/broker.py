"""A broker of one topic in the process of the test: it answers the client's frames from a `TopicHistory`.

The groups are the server's own state machines. Everything else is as docs/protocol and docs/extensions.md say. Requests
fail as the test plants it.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from shardd.client import commands, statuses, wire
from shardd.client.messages import RECORD_HEAD
from tests.models.groups import Group
from tests.models.history import History, TopicHistory
from tests.models.numbers import Numbers
from tests.models.wires import Pipe

_STRATEGY: Final = struct.Struct("<BQIB")
_POLL_HEAD: Final = struct.Struct("<IQI")
_HISTORY_HEAD: Final = struct.Struct("<QQQII")
_TOPIC: Final = struct.Struct("<IQIQBQBQQ")
_PARTITION: Final = struct.Struct("<IQIQQQ")
_BOUNDS: Final = struct.Struct("<IIQQQQQQI")
_EXTENSIONS: Final = 0x5344_0000
STORE_POSITION: Final = _EXTENSIONS + 0x1A
OFFERED: Final = (0x10, 0x18, 0x19, 0x1A, 0x30, 0x31)


class Refused(Exception):  # noqa: N818
    """A request is answered with this status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Asked(NamedTuple):
    """Who asks for what: the place in front of polls and offsets."""

    is_group: bool
    name: str
    partition: int | None


def read_identifier(reader: wire.Reader) -> str:
    kind, data = reader.u8(), reader.take(reader.u8())
    return data.decode() if kind == 2 else str(int.from_bytes(data, "little"))


def read_place(reader: wire.Reader) -> Asked:
    is_group, name = reader.u8() == 2, read_identifier(reader)
    read_identifier(reader), read_identifier(reader)
    has_partition, partition = reader.u8(), reader.u32()
    return Asked(is_group, name, partition if has_partition else None)


class Broker:
    """`is_ours` False: it offers no extensions. `stored`: called with (name, partition, history, offset) at each
    commit. `failures`: what becomes of the next sends: a status, or "answer lost"."""

    def __init__(self, topic: TopicHistory, *, is_ours: bool = True) -> None:
        self.topic, self.is_ours = topic, is_ours
        self.is_up = True
        self.is_there = True  # the topic
        self.groups: dict[str, Group] = {}
        self.numbers = Numbers()
        self.offsets: dict[tuple[bool, str, int], int] = {}  # by (group?, name, number of the history)
        self.stored: Callable[[bool, str, History, int], None] = lambda *_: None
        self.failures: deque[int | str] = deque()
        self.pipes: dict[int, Pipe] = {}
        self._waits: dict[int, Callable[[bool], None]] = {}  # by connection
        self._calls = {
            1: lambda *_: b"",
            20: lambda pipe, _: struct.pack("<IIB", pipe.number, 1, 1) + wire.text32("") + wire.u32(0),
            120: self._stored_offset,
            121: self._store,
            300: self._topic,
            600: self._group,
            602: self._create_group,
            604: self._join,
            605: self._leave,
            _EXTENSIONS: self._extensions,
            _EXTENSIONS + 0x10: self._bounds,
            STORE_POSITION: self._store_position,
            _EXTENSIONS + 0x30: self._init_producer,
        }

    # ---- connections ----

    def connected(self, pipe: Pipe) -> None:
        self.pipes[pipe.number] = pipe

    def gone(self, pipe: Pipe) -> None:
        del self.pipes[pipe.number]
        self._waits.pop(pipe.number, None)
        for group in self.groups.values():
            group.leave(pipe.number)
        self.changed()

    def restart(self) -> None:
        """What is stored stays; connections and members go. It is down until `is_up`."""
        self.is_up = False
        for pipe in list(self.pipes.values()):
            pipe.cut(carries_on=False)

    def asked(self, pipe: Pipe, code: int, payload: bytes) -> None:
        if code in (commands.SEND, commands.SEND_ONCE):
            self._send(pipe, code, payload)
            return
        if code in (commands.POLL, commands.POLL_AND_WAIT, commands.POLL_POSITION):
            self._poll(pipe, code, payload)
            return
        call = self._calls.get(code)
        if call is None or (code > _EXTENSIONS and not self.is_ours) or (code == _EXTENSIONS and not self.is_ours):
            pipe.answer(statuses.INVALID_COMMAND)
            return
        try:
            answer = call(pipe, wire.Reader(payload))
        except Refused as error:
            pipe.answer(error.status)
        else:
            pipe.answer(0, answer)

    def changed(self) -> None:
        """Polls that wait are asked again."""
        for ask in list(self._waits.values()):
            ask(False)

    # ---- what there is ----

    def _partition(self, number: int) -> History:
        if not self.is_there:
            raise Refused(statuses.TOPIC_NOT_FOUND)
        if number >= len(self.topic.partitions):
            raise Refused(statuses.PARTITION_NOT_FOUND)
        return self.topic.partitions[number]

    def _extensions(self, pipe: Pipe, reader: wire.Reader) -> bytes:
        entries = b"".join(struct.pack("<IH", _EXTENSIONS + code, 1) + wire.text8("x") for code in OFFERED)
        return wire.text8("1") + wire.u32(len(OFFERED)) + entries

    def _topic(self, pipe: Pipe, reader: wire.Reader) -> bytes:
        if not self.is_there:
            return b""
        parts = self.topic.partitions
        head = _TOPIC.pack(1, self.topic.made, len(parts), 0, 1, 0, 1, 0, 0) + wire.text8("t")
        return head + b"".join(_PARTITION.pack(each.partition, 0, 1, 0, 0, 0) for each in parts)

    def _bounds(self, pipe: Pipe, reader: wire.Reader) -> bytes:
        flags, _topics = reader.u8(), reader.u32()
        assert flags == 0
        read_identifier(reader), read_identifier(reader)
        wanted = [reader.u32() for _ in range(reader.u32())]
        self._partition(0)
        parts = [self._partition(each) for each in wanted] if wanted else self.topic.partitions
        head = wire.u32(1) + struct.pack("<II", 1, 1) + wire.text8("s") + wire.text8("t") + wire.u32(len(parts))
        return head + b"".join(
            _BOUNDS.pack(each.partition, 0, each.number, each.first, each.end, each.end, 0, each.end, 0)
            for each in parts
        )

    # ---- groups ----

    def _group_of(self, name: str) -> Group:
        if not self.is_there:
            raise Refused(statuses.TOPIC_NOT_FOUND)
        if name not in self.groups:
            raise Refused(statuses.GROUP_NOT_FOUND)
        return self.groups[name]

    def _member(self, pipe: Pipe, asked: Asked) -> Group:
        group = self._group_of(asked.name)
        if pipe.number not in group.members:
            raise Refused(statuses.MEMBER_NOT_FOUND)
        return group

    def _named_group(self, reader: wire.Reader) -> str:
        read_identifier(reader), read_identifier(reader)
        return read_identifier(reader)

    def _group(self, pipe: Pipe, reader: wire.Reader) -> bytes:
        name = self._named_group(reader)
        return self.groups[name].details() if self.is_there and name in self.groups else b""

    def _create_group(self, pipe: Pipe, reader: wire.Reader) -> bytes:
        read_identifier(reader), read_identifier(reader)
        name = reader.text8()
        if not self.is_there:
            raise Refused(statuses.TOPIC_NOT_FOUND)
        if name in self.groups:
            raise Refused(5004)
        self.groups[name] = Group(len(self.topic.partitions))
        return self.groups[name].details()

    def _join(self, pipe: Pipe, reader: wire.Reader) -> bytes:
        self._group_of(self._named_group(reader)).join(pipe.number)
        self.changed()
        return b""

    def _leave(self, pipe: Pipe, reader: wire.Reader) -> bytes:
        self._group_of(self._named_group(reader)).leave(pipe.number)
        self.changed()
        return b""

    # ---- offsets ----

    def _offset_key(self, pipe: Pipe, asked: Asked) -> tuple[History, tuple[bool, str, int]]:
        assert asked.partition is not None
        history = self._partition(asked.partition)
        return history, (asked.is_group, asked.name, history.number)

    def _stored_offset(self, pipe: Pipe, reader: wire.Reader) -> bytes:
        asked = read_place(reader)
        if asked.is_group and asked.name not in self.groups:
            return b""
        history, key = self._offset_key(pipe, asked)
        if key not in self.offsets:
            return b""
        return struct.pack("<IQQ", history.partition, max(history.end - 1, 0), self.offsets[key])

    def _store(self, pipe: Pipe, reader: wire.Reader, incarnation: int | None = None) -> bytes:
        asked, offset = read_place(reader), reader.u64()
        group = self._member(pipe, asked) if asked.is_group else None
        if group is not None and asked.partition is not None and not group.owns(pipe.number, asked.partition):
            raise Refused(statuses.OFFSET_NOT_RESOLVED)
        history, key = self._offset_key(pipe, asked)
        if incarnation is not None and incarnation != history.number:
            raise Refused(statuses.OTHER_HISTORY)
        if offset >= history.end:
            raise Refused(statuses.OFFSET_BEHIND_THE_END)
        self.offsets[key] = offset
        self.stored(asked.is_group, asked.name, history, offset)
        if group is not None:
            group.committed(pipe.number, history.partition, offset)
            self.changed()
        return b""

    def _store_position(self, pipe: Pipe, reader: wire.Reader) -> bytes:
        incarnation, _epoch = reader.u64(), reader.u32()
        return self._store(pipe, reader, incarnation)

    # ---- polls ----

    def _poll(self, pipe: Pipe, code: int, payload: bytes) -> None:
        if code != commands.POLL and not self.is_ours:
            pipe.answer(statuses.INVALID_COMMAND)
            return
        reader = wire.Reader(payload)
        asked = read_place(reader)
        strategy, value, count, _commit = reader.unpack(_STRATEGY)
        wait_ms = reader.u32() if code != commands.POLL else 0
        bytes_max = reader.u32() if code == commands.POLL_POSITION else 0
        tells = code == commands.POLL_POSITION

        def ask(is_last: bool) -> None:
            try:
                found, answer = self._polled(pipe, asked, (strategy, value, count), tells, bytes_max)
            except Refused as error:
                status, found, answer = error.status, True, b""
            else:
                status = 0
            if found or is_last:
                self._waits.pop(pipe.number, None)
                pipe.answer(status, answer)

        if wait_ms and count:
            self._waits[pipe.number] = ask
            pipe.loop.call_later(wait_ms / 1000, self._wait_over, pipe.number, ask)
        ask(not (wait_ms and count))

    def _wait_over(self, number: int, ask: Callable[[bool], None]) -> None:
        if self._waits.get(number) is ask:
            ask(True)

    def _polled(
        self, pipe: Pipe, asked: Asked, what: tuple[int, int, int], tells: bool, bytes_max: int
    ) -> tuple[bool, bytes]:
        """Whether there are messages, and the answer."""
        _, _, count = what
        group = self._member(pipe, asked) if asked.is_group else None
        partition = asked.partition
        if group is not None and partition is None:
            partition = group.turn(pipe.number, lambda each: bool(self._found(asked, each, what)), count)
        elif group is not None and partition is not None and not group.owns(pipe.number, partition):
            self._partition(partition)
            partition = None
        if partition is None:
            return False, bytes(_POLL_HEAD.size + (_HISTORY_HEAD.size if tells else 0))
        history, offsets = self._partition(partition), self._found(asked, partition, what)
        if bytes_max:
            offsets = offsets[: max(1, bytes_max // (RECORD_HEAD.size + 8))]
        if group is not None and offsets:
            group.polled(pipe.number, partition, offsets[-1])
        head = _POLL_HEAD.pack(partition, max(history.end - 1, 0), len(offsets))
        if tells:
            head += _HISTORY_HEAD.pack(history.number, history.first, 0, 0, 0)
        records = [
            RECORD_HEAD.pack(0, bytes(16), each, 0, 0, 0, len(history.rows[each]), 0) + history.rows[each]
            for each in offsets
        ]
        return bool(offsets), head + b"".join(records)

    def _found(self, asked: Asked, partition: int, what: tuple[int, int, int]) -> list[int]:
        history, (strategy, value, count) = self._partition(partition), what
        if strategy == commands.LAST:
            return history.kept(0, history.end)[-count:] if count else []
        begin = 0
        if strategy == commands.OFFSET:
            begin = value
        elif strategy == commands.NEXT:
            begin = self.offsets.get((asked.is_group, asked.name, history.number), -1) + 1
        return history.kept(begin, count)

    # ---- sends ----

    def _init_producer(self, pipe: Pipe, reader: wire.Reader) -> bytes:
        producer, epoch, renew = reader.u64(), reader.u32(), reader.u8()
        self.numbers.newest_history = len(self.topic.all)
        answer = self.numbers.renewed(producer, epoch) if renew else self.numbers.begun(producer)
        if isinstance(answer, int):
            raise Refused(answer)
        return answer

    def _send(self, pipe: Pipe, code: int, payload: bytes) -> None:
        failure = self.failures.popleft() if self.failures else None
        if isinstance(failure, int):
            pipe.answer(failure)
            return
        try:
            answer = self._carry_out(code, payload)
        except Refused as error:
            pipe.answer(error.status)
            return
        self.changed()
        if failure == "answer lost":
            pipe.cut(carries_on=False)
        else:
            pipe.answer(0, answer)

    def _carry_out(self, code: int, payload: bytes) -> bytes:
        reader = wire.Reader(payload)
        once = (reader.u64(), reader.u64(), reader.u32()) if code == commands.SEND_ONCE else None
        reader.u32()
        read_identifier(reader), read_identifier(reader)
        assert reader.u8() == 2 and reader.u8() == 4
        history, count = self._partition(reader.u32()), reader.u32()
        reader.take(16 * count)
        payloads = []
        for _ in range(count):
            head = reader.unpack(RECORD_HEAD)
            payloads.append(reader.take(head[6]))
            reader.take(head[5])
        if once is None:
            self.topic.append(history.partition, payloads)
            return b""
        answer, is_new = self.numbers.judged(history.number, once, count, history.end)
        if is_new:
            self.topic.append(history.partition, payloads)
        return answer
