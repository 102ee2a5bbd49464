"""One topic of the run: a thread that does everything to it that clients may do, and judges what it reads.

The only writer of its topic: what may have happened is known exactly. Requests without an answer are sent again until
there is one."""

from __future__ import annotations

import functools
import random
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.primitives import Reader
from shardd.protocol.producers import InitProducer, Produced, ProducedKind, ProducerEpoch, send_once_head
from shardd.protocol.topic_settings import SetTopicSettings
from tests.support import wire
from tests.support.load import LoadThread, Target
from tests.vopr.archive import Archive
from tests.vopr.judge import COUNTS, SEGMENT_BYTES_MOST, SIZES, Ledger, Look, Rules
from tests.vopr.plan import DELETIONS_MAX, Kind

STREAM: Final = "vopr"
PARTITIONS: Final = 2
PAGE: Final = 2000
READS_MAX: Final = 50  # of a log whose start moves meanwhile
DELETE_SEGMENTS: Final = 503
NOT_THERE: Final = frozenset({1009, 2010, 3007})
NAME_TAKEN: Final = 2013
TOPIC_SLACK_BYTES: Final = 2 * SEGMENT_BYTES_MOST


@dataclass(slots=True)
class Sending:
    """Of one partition: what waits for its answer, and the producer whose batches are stored once."""

    who: ProducerEpoch | None = None
    sequence: int = 0
    waiting: tuple[list[int], int] | None = None  # numbers, bytes of each payload
    last: list[list[int]] = field(default_factory=list)  # the last batches that were answered
    sizes: dict[int, int] = field(default_factory=dict)
    stored_offset: set[int | None] = field(default_factory=lambda: {None})  # what may be stored


class Subject(LoadThread):
    """`calm`: held where something is judged that a stopped process would make uncertain."""

    def __init__(
        self,
        target: Target,
        kind: Kind,
        number: int,
        seed: int,
        archive: Archive,
        calm: threading.Lock,
        find: Callable[[str], None],
    ) -> None:
        super().__init__(target, f"{kind.name}-{number}")
        self.kind, self.number, self.archive, self.calm, self.find = kind, number, archive, calm, find
        self.dice = random.Random(f"{seed} {number}")
        self.ledgers = [Ledger(number, each, functools.partial(self._found, each)) for each in range(PARTITIONS)]
        self.sendings = [Sending() for _ in range(PARTITIONS)]
        self.counts: Counter[str] = Counter()
        self.lock = threading.RLock()  # of one step: whoever holds it sees the ledgers between two
        self.settings: dict[str, str] = dict(kind.settings)
        self.topic_id = -1
        self.made = False
        self.next_number = 0
        self.work: Callable[[wire.Wire], None] | None = None  # goes on after an error
        self.archived_from: list[int | None] = [None] * PARTITIONS
        self.deletes = False  # something since the last look of all partitions

    def _found(self, partition: int, sentence: str) -> None:
        self.ledgers[partition].note(f"has files {self.archive.files((self.topic_id, partition))}")
        self.find(sentence)

    # ---- steps ----

    def step(self, connection: wire.Wire) -> None:
        with self.lock:
            if not self.made:
                self._make(connection)
            elif self.work is not None:
                self.work(connection)
                self.work = None
            else:
                self._next(connection)
            self.counts["steps"] += 1
        time.sleep(self.kind.pause_s)

    @property
    def is_settled(self) -> bool:
        """The topic is there, and nothing that changes all of it waits for its answer."""
        return self.made and self.work is None

    def _next(self, connection: wire.Wire) -> None:
        weights = self.kind.weights
        [action] = self.dice.choices(list(weights), list(weights.values()))
        self.counts[action] += 1
        partition = self.dice.randrange(PARTITIONS)
        match action:
            case "send":
                self._send(connection, partition)
            case "look":
                self.look(connection)
            case "offset":
                self._offset(connection, partition)
            case "settings":
                self.work = self._settings_changed
            case "purge":
                self.work = self._purge
            case "recreate":
                self.work = self._delete_topic
            case "delete":
                self.delete(connection, partition, self.dice.randint(1, DELETIONS_MAX))
            case "overtake":
                self._delete_beside_a_purge(connection, partition)
            case _:
                raise AssertionError(action)

    # ---- the topic ----

    @property
    def place(self) -> bytes:
        return wire.identifier(STREAM) + wire.identifier(self.target.topic)

    def rules(self) -> Rules:
        return Rules(
            retention=self.settings.get("retention", "on") == "on",
            messages=int(self.settings.get("partition_messages_max") or 0),
            partition_bytes=self.kind.partition_bytes,
            topic_bytes=self.kind.topic_bytes,
            expiry_s=self.kind.expiry_s,
        )

    def _make(self, connection: wire.Wire) -> None:
        fixed = struct.pack("<IBQQB", PARTITIONS, 1, int(self.kind.expiry_s * 1e6), self.kind.topic_bytes, 0)
        status, _ = connection.exchange(wire.CREATE_TOPIC, wire.identifier(STREAM) + fixed + wire.str8(self.name))
        if status not in (0, NAME_TAKEN):
            raise wire.StatusError(wire.CREATE_TOPIC, status)
        self.topic_id = int.from_bytes(connection.request(wire.GET_TOPIC, self.place)[:4], "little")
        self.settings = dict(self.kind.settings)
        self._set(connection, self.settings)
        self._lives_anew()
        self.made = True
        self.counts["made"] += 1

    def _lives_anew(self) -> None:
        for partition, ledger in enumerate(self.ledgers):
            ledger.new_life(self.rules())
            self.sendings[partition] = Sending()
            self.archived_from[partition] = 0 if self.settings.get("archive") == "required" else None

    def _set(self, connection: wire.Wire, values: dict[str, str]) -> None:
        if values:
            request = SetTopicSettings(STREAM, str(self.target.topic), tuple(values.items()))
            connection.request(ExtensionCode.SET_TOPIC_SETTINGS, request.encode())

    def _settings_changed(self, connection: wire.Wire) -> None:
        """Until it is answered both hold; then the new ones."""
        values = {key: self.dice.choice(choices) for key, choices in self.kind.changes.items()}
        self.settings |= values
        for ledger in self.ledgers:
            ledger.changes(self.rules())
        self.archived_from = [None] * PARTITIONS
        self._set(connection, values)
        for ledger in self.ledgers:
            ledger.note("this was answered")
        self.look(connection)
        if self.settings.get("archive") == "required":
            self.archived_from = [ledger.start for ledger in self.ledgers]

    def _purge(self, connection: wire.Wire) -> None:
        connection.purge_topic(STREAM, self.target.topic)
        self._lives_anew()

    def _delete_topic(self, connection: wire.Wire) -> None:
        status = connection.status(wire.DELETE_TOPIC, self.place)
        if status not in (0, *NOT_THERE):
            raise wire.StatusError(wire.DELETE_TOPIC, status)
        self.made = False

    # ---- sends ----

    def _send(self, connection: wire.Wire, partition: int) -> None:
        sending, ledger = self.sendings[partition], self.ledgers[partition]
        if sending.waiting is None:
            count, size = self.dice.choice(COUNTS), self.dice.choice(SIZES)
            numbers = list(range(self.next_number, self.next_number + count))
            self.next_number += count
            sending.waiting = numbers, size
        numbers, size = sending.waiting
        ledger.sending(numbers, size, once=self.kind.once or self.kind.identified)
        if self.kind.once:
            first = self._send_once(connection, partition, numbers, size)
            ledger.acknowledged(numbers, first)
        else:
            self._send_plain(connection, partition, numbers, size)
            ledger.acknowledged(numbers)
        sending.waiting = None
        sending.last = [*sending.last[-3:], numbers]
        sending.sizes |= dict.fromkeys(numbers, size)
        self.counts["messages"] += len(numbers)
        if self.kind.identified and self.dice.random() < 0.3:
            self._again(connection, partition)

    def _again(self, connection: wire.Wire, partition: int) -> None:
        """What is known by its id is answered like the first time, and not stored."""
        sending = self.sendings[partition]
        numbers = self.dice.choice(sending.last)
        self.ledgers[partition].sending(numbers, 0, once=self.kind.identified)
        self._send_plain(connection, partition, numbers, sending.sizes[numbers[0]])
        if self.kind.identified:
            self.ledgers[partition].again(numbers)
        self.counts["repeats"] += len(numbers)

    def _send_once(self, connection: wire.Wire, partition: int, numbers: list[int], size: int) -> int:
        """The offset of the first one. Whoever is unknown has to begin anew: then the batch is a plain one."""
        sending, ledger = self.sendings[partition], self.ledgers[partition]
        if sending.who is None:
            answer = connection.request(ExtensionCode.INIT_PRODUCER, InitProducer(0, 0, False).encode())
            sending.who, sending.sequence = ProducerEpoch.read(Reader(answer)), 0
        send = wire.batch(
            STREAM, self.target.topic, wire.to_partition(partition), self.messages(partition, numbers, size)
        )
        head = send_once_head(sending.who.producer, sending.who.epoch, sending.sequence)
        produced = Produced.read(Reader(connection.request(ExtensionCode.SEND_ONCE, head + send)))
        if produced.kind not in (ProducedKind.STORED, ProducedKind.DUPLICATE) or produced.count != len(numbers):
            ledger.find(f"producer: number {numbers[0]} of {sending.who}, sequence {sending.sequence}, gets {produced}")
            raise ConnectionError("nothing more is to be said of this producer")
        if produced.kind is ProducedKind.STORED and any(ledger.sent[number].offsets for number in numbers):
            ledger.find(f"producer: number {numbers[0]} is stored again at {produced.first}")
        sending.sequence += 1
        return produced.first

    def _send_plain(self, connection: wire.Wire, partition: int, numbers: list[int], size: int) -> None:
        connection.send(
            STREAM, self.target.topic, wire.to_partition(partition), self.messages(partition, numbers, size)
        )

    def messages(self, partition: int, numbers: list[int], size: int) -> list[bytes]:
        ledger = self.ledgers[partition]
        return [
            wire.message(
                ledger.payload(number, size),
                message_id=(number + 1).to_bytes(16, "little") if self.kind.identified else bytes(16),
            )
            for number in numbers
        ]

    # ---- reads ----

    def look(self, connection: wire.Wire) -> None:
        looks, shrunk = [], False
        for partition, ledger in enumerate(self.ledgers):
            look = read(connection, str(self.target.topic), partition)
            shrunk |= look.start > ledger.start
            ledger.judge(look)
            looks.append(look)
            self._check_archive(partition)
        if shrunk and not self.deletes:
            self._judge_topic(looks)
        self.deletes = False
        self.counts["looks"] += 1

    def _judge_topic(self, looks: list[Look]) -> None:
        """A limit of the whole topic removes no more than it has to."""
        limit = self.kind.topic_bytes
        late_bytes = sum(ledger.late_budget_bytes for ledger in self.ledgers)
        there = sum(look.size_bytes for look in looks) + late_bytes
        if limit and there < limit * 0.9 - TOPIC_SLACK_BYTES:
            self.find(f"topic {self.number}: {there} bytes are left of {limit}")

    def _check_archive(self, partition: int) -> None:
        first, ledger = self.archived_from[partition], self.ledgers[partition]
        if first is None or ledger.start <= first:
            return
        hole = self.archive.hole((self.topic_id, partition), first, ledger.start)
        if hole is not None:
            ledger.find(
                f"archive: offsets from {hole} on have left the log and are in no archive; up to {ledger.start}"
            )
        self.counts["archives"] += 1

    def _offset(self, connection: wire.Wire, partition: int) -> None:
        sending = self.sendings[partition]
        found = connection.get_offset(STREAM, self.target.topic, partition)
        if found not in sending.stored_offset:
            self.ledgers[partition].find(f"stored offset: {found}, not {sorted(map(str, sending.stored_offset))}")
        seen = [offset for offset in self.ledgers[partition].seen if offset >= self.ledgers[partition].start]
        if seen:
            offset = self.dice.choice(seen)
            sending.stored_offset = {found, offset}
            connection.store_offset(STREAM, self.target.topic, partition, offset)
            sending.stored_offset = {offset}

    # ---- deletions ----

    def _delete_request(self, partition: int, count: int) -> bytes:
        return self.place + struct.pack("<II", partition, count)

    def delete(self, connection: wire.Wire, partition: int, count: int) -> None:
        ledger = self.ledgers[partition]
        self.deletes = True
        ledger.deletes(count)
        connection.request(DELETE_SEGMENTS, self._delete_request(partition, count))
        ledger.deleted(count)
        self.look(connection)

    def _delete_beside_a_purge(self, connection: wire.Wire, partition: int) -> None:
        """A request to delete that waits for a slow reader does not reach what comes after a purge."""
        ledger = self.ledgers[partition]
        with self.calm, wire.Wire(self.target.address) as slow, wire.Wire(self.target.address) as other:
            for each in (slow, other):
                each.login_with_token(self.target.token)
            where = wire.consumer() + self.place + wire.optional_partition(partition)
            ask = wire.frame(wire.POLL_MESSAGES, where + struct.pack("<BQIB", wire.POLL_FIRST, 0, 1_000_000, 0))
            slow.send_bytes(ask * 64)  # and takes no answer
            time.sleep(0.1)
            deletion = wire.frame(DELETE_SEGMENTS, self._delete_request(partition, 1000))
            other.send_bytes(wire.frame(wire.PING) + deletion)
            other.reply()  # it has been read by now
            time.sleep(0.2)
            ledger.deletes(1000)
            self.work = self._purge
            self._purge(connection)
            self.work = None
            for _ in range(30):
                self._send(connection, partition)
            slow.close()
            other.reply()
        self.look(connection)


def read(connection: wire.Wire, topic: str, partition: int) -> Look:
    """All of it; anew when its start moves meanwhile."""
    for _ in range(READS_MAX):
        polled = connection.poll(STREAM, topic, partition, strategy=wire.POLL_FIRST, count=PAGE)
        if not polled.messages:
            empty = polled.current_offset + 1 if _has_had(connection, topic, partition) else 0
            return Look(empty, empty, [])
        found, page = list(polled.messages), polled.messages
        while page:
            page = connection.poll(STREAM, topic, partition, value=found[-1].offset + 1, count=PAGE).messages
            found += page
        again = connection.poll(STREAM, topic, partition, strategy=wire.POLL_FIRST, count=1).messages
        if again and again[0].offset == found[0].offset:
            return Look(found[0].offset, found[-1].offset + 1, found)
    raise TimeoutError(f"the start of {topic}, partition {partition}, moves at each look")


def _has_had(connection: wire.Wire, topic: str, partition: int) -> bool:
    """`current_offset` is 0 before the first message and after it."""
    probe = connection.poll(STREAM, topic, partition, strategy=wire.POLL_LAST, count=1)
    return bool(probe.messages) or probe.current_offset > 0
