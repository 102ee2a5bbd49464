"""The load of the soak on one server: producers, a verifier that also deletes what it has verified, a group, changes.

Every producer has a partition of its own. The verifier follows all partitions, checks every message (truth.py), stores
its offset and deletes the segments behind it (DELETE_SEGMENTS): there is no retention, this is what keeps the disk from
filling. Members of a consumer group follow the same partitions and come and go. One more thread creates, grows, fills,
purges and deletes streams, each time on a new connection.
"""

from __future__ import annotations

import random
import struct
import threading
import time
from collections.abc import Iterable

from tests.crash import kill_load
from tests.crash.kill_load import STREAM, TOPICS, Member
from tests.soak.truth import PAYLOAD_BYTES, PartitionTruth
from tests.support import wire
from tests.support.checker import Finding, identity_of, make_payload
from tests.support.load import LoadThread, Target
from tests.support.offset_history import NOTHING, OffsetHistory

TOPIC = TOPICS[0]
SEND_PAUSE_S = 0.1
BATCHES = (1, 1, 2, 5, 10, 40)
VERIFY_COUNT = 2000
VERIFIER = "verifier"
DELETE_EVERY_MESSAGES = 2000  # of a partition
DELETE_SEGMENTS = 503
MEMBERS = 4
CHANGE_PAUSE_S = 1.0
CHURN = "churn"
LATENCIES_MAX = 100_000  # between two samples


class Latencies:
    """Answer times of all producers since they were taken last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: list[float] = []

    def add(self, seconds: float) -> None:
        with self._lock:
            if len(self._seconds) < LATENCIES_MAX:
                self._seconds.append(seconds)

    def take(self) -> list[float]:
        with self._lock:
            taken, self._seconds = self._seconds, []
            return taken


class Producer(LoadThread):
    def __init__(self, target: Target, truth: PartitionTruth, latencies: Latencies, seed: int) -> None:
        super().__init__(target, f"producer-{truth.partition}")
        self.truth = truth
        self.latencies = latencies
        self._random = random.Random(seed)
        self._count = 0  # of the batch that has no answer yet

    def step(self, connection: wire.Wire) -> None:
        if self._count == 0:
            self._count = self._random.choice(BATCHES)
        messages = [wire.message(payload) for payload in self.truth.attempt(self._count)]
        began = time.monotonic()
        where = wire.to_partition(self.truth.partition)
        connection.send(self.target.stream, self.target.topic, where, messages)
        self.latencies.add(time.monotonic() - began)
        self.truth.acknowledge()
        self._count = 0
        time.sleep(self._random.uniform(0, 2 * SEND_PAUSE_S))


class Verifier(LoadThread):
    """Reads, checks, stores its offset, deletes."""

    def __init__(self, target: Target, truths: list[PartitionTruth], offsets: OffsetHistory) -> None:
        super().__init__(target, "verifier")
        self.truths = truths
        self.offsets = offsets
        self.deletions = 0
        self.rounds = 0
        self._deleted_at = dict.fromkeys(range(len(truths)), 0)

    def step(self, connection: wire.Wire) -> None:
        for truth in self.truths:
            self.read(connection, truth)
            self._store_and_delete(connection, truth)
            if self.stopping.is_set():
                return
        self.rounds += 1
        time.sleep(0.2)

    def read(self, connection: wire.Wire, truth: PartitionTruth) -> None:
        """To the present end."""
        while True:
            polled = connection.poll(
                self.target.stream, self.target.topic, truth.partition, value=truth.next_offset, count=VERIFY_COUNT
            )
            if not polled.messages:
                return
            truth.check(polled.messages)

    def _store_and_delete(self, connection: wire.Wire, truth: PartitionTruth) -> None:
        key, last = (TOPIC, truth.partition, VERIFIER), truth.next_offset - 1
        if last <= self.offsets.floors().get(key, NOTHING):
            return
        self.offsets.attempt(key, last)
        connection.store_offset(STREAM, TOPIC, truth.partition, last, VERIFIER)
        self.offsets.acknowledge(key, last)
        if last - self._deleted_at[truth.partition] >= DELETE_EVERY_MESSAGES:
            place = wire.identifier(STREAM) + wire.identifier(TOPIC)
            connection.request(DELETE_SEGMENTS, place + struct.pack("<II", truth.partition, 1000))
            self._deleted_at[truth.partition] = last
            self.deletions += 1


class Contents:
    """What members of the group see: every payload must be what its identity says."""

    def __init__(self) -> None:
        self.messages = 0
        self.findings: list[Finding] = []

    def observe(self, partition: int, messages: Iterable[wire.Message]) -> None:
        for message in messages:
            self.messages += 1
            identity = identity_of(message.payload)
            if identity is None or make_payload(*identity, PAYLOAD_BYTES) != message.payload:
                self.findings.append(Finding("altered", partition, f"offset {message.offset}, read by the group"))


class Changes(LoadThread):
    """Streams that come and go, each round on a new connection."""

    def __init__(self, target: Target) -> None:
        super().__init__(target, "changes")
        self.rounds = 0

    def step(self, connection: wire.Wire) -> None:
        for name in connection.streams():
            if name.startswith(CHURN):
                connection.delete_stream(name)
        name = f"{CHURN} {self.rounds}"
        stream = connection.create_stream(name)
        topic = connection.create_topic(stream, "t", 3)
        place = wire.identifier(stream) + wire.identifier(topic)
        connection.request(kill_load.CREATE_GROUP, place + wire.str8("g"))
        for partition in range(3):
            connection.send(stream, topic, wire.to_partition(partition), [wire.message(b"old")])
        connection.purge_topic(stream, topic)
        connection.send(stream, topic, wire.to_partition(1), [wire.message(b"new")])
        (message,) = connection.poll(stream, topic, 1).messages
        if (message.offset, message.payload) != (0, b"new"):
            raise AssertionError(f"after a purge: offset {message.offset}, {message.payload!r}")
        connection.request(wire.CREATE_PARTITIONS, place + struct.pack("<I", 2))
        connection.delete_stream(stream)
        self.rounds += 1
        self._disconnect()
        time.sleep(CHANGE_PAUSE_S)


class Load:
    """All of one server; `start` once."""

    def __init__(self, address: str, producers: int, seed: int) -> None:
        self.target = Target(address, STREAM, TOPIC)
        self.truths = [PartitionTruth(partition) for partition in range(producers)]
        self.latencies, self.contents, self.offsets = Latencies(), Contents(), OffsetHistory()
        with wire.connect(address) as connection:
            connection.create_stream(STREAM)
            connection.create_topic(STREAM, TOPIC, producers)
            place = wire.identifier(STREAM) + wire.identifier(TOPIC)
            connection.request(kill_load.CREATE_GROUP, place + wire.str8(kill_load.GROUP))
        self.verifier = Verifier(self.target, self.truths, self.offsets)
        self.changes = Changes(self.target)
        self.members = [
            Member(self.target, self.contents, self.offsets, TOPIC, seed + number) for number in range(MEMBERS)
        ]
        self.producers = [Producer(self.target, truth, self.latencies, seed + truth.partition) for truth in self.truths]
        self.threads: list[LoadThread] = [*self.producers, *self.members, self.changes, self.verifier]

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def failures(self) -> list[str]:
        return [f"{thread.name}: {thread.failure!r}" for thread in self.threads if thread.failure is not None]

    def stop(self) -> None:
        for thread in self.threads:
            thread.stopping.set()

    def judge(self) -> list[Finding]:
        """Ends the load, reads what is left and compares."""
        self.stop()
        for thread in self.threads:
            thread.finish()
        with wire.connect(self.target.address) as connection:
            for truth in self.truths:
                self.verifier.read(connection, truth)
                truth.finish()
        found = [finding for truth in self.truths for finding in truth.findings]
        return found + self.contents.findings + self.offsets.findings

    @property
    def acknowledged(self) -> int:
        return sum(truth.acknowledged for truth in self.truths)

    @property
    def repeats(self) -> int:
        return sum(truth.repeats for truth in self.truths)
