"""The load of the kill campaign: producers of every kind, readers, consumers that store offsets, members of groups.

Three topics of eight partitions, fewer producers than partitions. Clients of every generation that shares the classic
frame, and of 0.9, are among them. Everything keeps going through kills, as in
tests.support.load, and is written into one `History` a topic and one `OffsetHistory`.
"""

from __future__ import annotations

import itertools
import random
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from tests.support import load, wire
from tests.support.checker import Destination, Finding, History, Report
from tests.support.earlier_wire import RELEASES
from tests.support.load import LoadThread, Target
from tests.support.offset_history import NOTHING, Key, OffsetHistory
from tests.support.wire09 import RELEASE as RELEASE_0_9

STREAM = "load"
TOPICS = ("first", "second", "third")
PARTITIONS = 8
PIPELINED = ((6,), (1, 2, 3, 4))  # partitions of the two producers of each topic that send ahead
DEPTH = 24
PLACES: tuple[Destination, ...] = (0, 5, b"key", None)  # of each topic; keys fall anywhere, as the balanced ones do
SEND_PAUSE_S = 0.02  # leaves the machine some room, and the judge less to read
CONSUME_PAUSE_S = 0.04
CONSUME_MAX = 200
GROUP = "group"
MEMBERS = 2
CREATE_GROUP, JOIN_GROUP, LEAVE_GROUP = 602, 604, 605
CONSUMER_KIND, GROUP_KIND = 1, 2
CLIENTS = ("", RELEASE_0_9, *RELEASES)  # in turn: what a topic has is of several
CLIENTS_APART = 3  # from one topic to the next


class Observer(Protocol):
    """Whoever looks at what was read."""

    def observe(self, partition: int, messages: Iterable[wire.Message]) -> None: ...


def _place(topic: str) -> bytes:
    return wire.identifier(STREAM) + wire.identifier(topic)


def _who(kind: int, name: str) -> bytes:
    return bytes([kind]) + wire.identifier(name)


def create_all(connection: wire.Wire) -> str:
    """Returns the token that the load logs in with: beside other work a password may take longer than all else."""
    connection.create_stream(STREAM)
    for topic in TOPICS:
        connection.create_topic(STREAM, topic, PARTITIONS)
        connection.request(CREATE_GROUP, _place(topic) + wire.str8(GROUP))
    return connection.create_token("load")


class Producer(load.Producer):
    """Batches of 1 to 100 messages, small ones more often."""

    def __init__(self, target: Target, history: History, producer: int, place: Destination, seed: int) -> None:
        super().__init__(target, history, producer, place, pause_s=SEND_PAUSE_S)
        self._random = random.Random(seed)

    def next_count(self) -> int:
        return self._random.choice((1, 1, 1, 2, 3, self._random.randint(1, 10), self._random.randint(1, 100)))


class PipelinedProducer(load.PipelinedProducer):
    """Small batches, many of them on their way."""

    def __init__(self, target: Target, history: History, producer: int, partitions: Sequence[int], seed: int) -> None:
        super().__init__(target, history, producer, partitions, DEPTH, pause_s=SEND_PAUSE_S)
        self._random = random.Random(seed)

    def next_count(self) -> int:
        return self._random.choice((1, 1, 1, 2))


class Consumer(LoadThread):
    """Follows one partition by its stored offset: auto-commit and STORE_CONSUMER_OFFSET in turn."""

    def __init__(self, target: Target, history: History, offsets: OffsetHistory, topic: str, partition: int) -> None:
        super().__init__(target, f"consumer-{topic}-{partition}")
        self.history = history
        self.offsets = offsets
        self.topic = topic
        self.partition = partition
        self.rounds = 0

    @property
    def key(self) -> Key:
        return (self.topic, self.partition, self.name)

    def step(self, connection: wire.Wire) -> None:
        time.sleep(CONSUME_PAUSE_S)
        self.rounds += 1
        commits = self.rounds % 2 == 0
        floor, attempted = self.offsets.floors().get(self.key, NOTHING), self.offsets.attempted(self.key)
        if commits:  # at most so far, also when the answer is lost
            self.offsets.attempt(self.key, attempted + CONSUME_MAX)
        polled = connection.poll(
            STREAM,
            self.topic,
            self.partition,
            strategy=wire.POLL_NEXT,
            count=CONSUME_MAX,
            auto_commit=commits,
            who=self.name,
        )
        if not polled.messages:
            if commits:
                self.offsets.settle(self.key, attempted)
            return
        self.offsets.observe(self.key, polled.messages[0].offset - 1, floor)
        self.history.observe(self.partition, polled.messages)
        last = polled.messages[-1].offset
        if not commits:
            self.offsets.attempt(self.key, last)
            connection.store_offset(STREAM, self.topic, self.partition, last, self.name)
        self.offsets.acknowledge(self.key, last)
        self.offsets.settle(self.key, last)


class Member(LoadThread):
    """Joins the group of a topic, polls what it is given and commits as the group; leaves now and then."""

    def __init__(self, target: Target, history: Observer, offsets: OffsetHistory, topic: str, seed: int) -> None:
        super().__init__(target, f"member-{topic}-{seed}")
        self.history = history
        self.offsets = offsets
        self.topic = topic
        self._random = random.Random(seed)
        self._joined: wire.Wire | None = None

    def step(self, connection: wire.Wire) -> None:
        place = _place(self.topic)
        if self._joined is not connection:
            connection.request(JOIN_GROUP, place + wire.identifier(GROUP))
            self._joined = connection
        time.sleep(CONSUME_PAUSE_S)
        floors = self.offsets.floors()
        tail = wire.optional_partition(None) + struct.pack("<BQIB", wire.POLL_NEXT, 0, CONSUME_MAX, 0)
        answer = connection.request(wire.POLL_MESSAGES, _who(GROUP_KIND, GROUP) + place + tail)
        polled = wire.parse_polled(answer)
        if polled.messages:
            key = (self.topic, polled.partition, GROUP)
            self.offsets.observe(key, polled.messages[0].offset - 1, floors.get(key, NOTHING))
            self.history.observe(polled.partition, polled.messages)
            last = polled.messages[-1].offset
            self.offsets.attempt(key, last)
            where = _who(GROUP_KIND, GROUP) + place + wire.optional_partition(polled.partition)
            connection.request(wire.STORE_OFFSET, where + struct.pack("<Q", last))
            self.offsets.acknowledge(key, last)
        if self._random.random() < 0.02:
            connection.request(LEAVE_GROUP, place + wire.identifier(GROUP))
            self._joined = None


class Load:
    """All threads of one data directory; `resume` starts them anew on the next server of it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.histories = {topic: History() for topic in TOPICS}
        self.offsets = OffsetHistory()
        self.token = ""
        self.targets: dict[str, Target] = {}
        self._of_releases: list[Target] = []
        self.producers: list[load.Producer] = []
        self.threads: list[LoadThread] = []
        self._numbers = itertools.count()  # a producer that starts again is another producer

    def resume(self, address: str) -> None:
        self.targets = {topic: Target(address, STREAM, topic, token=self.token) for topic in TOPICS}
        self.producers, self.threads, self._of_releases = [], [], []
        releases = itertools.cycle(CLIENTS)
        for topic, target in self.targets.items():
            history = self.histories[topic]

            def client(target: Target = target) -> Target:
                self._of_releases.append(replace(target, release=next(releases)))
                return self._of_releases[-1]

            for place in PLACES:
                number = next(self._numbers)
                self.producers.append(Producer(client(), history, number, place, self.seed + number))
            for partitions in PIPELINED:
                number = next(self._numbers)
                self.producers.append(PipelinedProducer(target, history, number, partitions, self.seed + number))
            self.threads.append(load.Reader(client(), history, 5))
            self.threads.append(Consumer(client(), history, self.offsets, topic, 0))
            of_0_9 = replace(target, release=RELEASE_0_9)
            self._of_releases.append(of_0_9)
            self.threads.append(Consumer(of_0_9, history, self.offsets, topic, 3))
            self.threads += [Member(client(), history, self.offsets, topic, number) for number in range(MEMBERS)]
            for _ in range(CLIENTS_APART):
                next(releases)
        self.threads += self.producers
        for thread in self.threads:
            thread.start()

    def use(self, address: str) -> None:
        for target in (*self.targets.values(), *self._of_releases):
            target.address = address

    def pause(self, paused: bool) -> None:
        for target in (*self.targets.values(), *self._of_releases):
            (target.paused.set if paused else target.paused.clear)()

    def answers(self) -> list[int]:
        """Acknowledged batches of each producer. Raises what a thread has died of."""
        for thread in self.threads:
            if thread.failure is not None:
                raise thread.failure
        return [producer.acknowledged_batches for producer in self.producers]

    def stop(self) -> None:
        for thread in self.threads:
            thread.stopping.set()

    def judge(self) -> list[Report]:
        """Ends the load, reads everything and compares; one report a topic."""
        self.stop()
        for thread in self.threads:
            thread.finish()
        reports = []
        for topic, target in self.targets.items():
            contents, unreadable = read_all(target, range(PARTITIONS))
            report = self.histories[topic].judge(contents)
            report.findings += unreadable
            reports.append(report)
        reports[0].findings += self.offsets.judge(self._stored_offsets())
        return reports

    def _stored_offsets(self) -> dict[Key, int]:
        found: dict[Key, int] = {}
        with wire.connect(next(iter(self.targets.values())).address) as connection:
            for topic, partition, who in self.offsets.floors():
                kind = GROUP_KIND if who == GROUP else CONSUMER_KIND
                where = _who(kind, who) + _place(topic) + wire.optional_partition(partition)
                answer = connection.request(wire.GET_OFFSET, where)
                found[topic, partition, who] = int.from_bytes(answer[12:20], "little") if answer else NOTHING
        return found


def read_all(target: Target, partitions: Iterable[int]) -> tuple[dict[int, list[wire.Message]], list[Finding]]:
    """Every partition from its start to its end; one that refuses is a finding and counts as what was read before."""
    contents: dict[int, list[wire.Message]] = {}
    unreadable: list[Finding] = []
    with load.Patient(target, timeout_s=60.0, pause_s=0.05) as patient:
        for partition in partitions:
            try:
                contents[partition] = load.read_partition(patient, target, partition)
            except (OSError, wire.StatusError) as problem:
                unreadable.append(Finding("unreadable", partition, f"topic {target.topic}: {problem}"))
                contents[partition] = []
    return contents, unreadable
