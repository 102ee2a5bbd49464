"""The load of tests/power: threads that each write to one partition, or to the metadata, and keep its ledger.

A hand stops at its first error: until the power goes there must be none, and after it there is nothing to do.
"""

from __future__ import annotations

import random
import struct
import threading
import time
from typing import Final

from tests.power.ledger import EpochLedger, Fact, LogLedger, MetadataLedger, OffsetLedger, payload_of
from tests.support import wire

STREAM: Final = "load"
CONSUMER: Final = 7
BATCH_MAX: Final = 6
LIMITED_MESSAGES: Final = 150
STREAMS_MAX: Final = 3
TOPICS_MAX: Final = 3
DAMAGED: Final = 4027
CONNECT_S: Final = 60.0  # a request of a starved machine, not of a slow server
_CREATE_USER, _DELETE_USER, _GET_USERS = 33, 34, 32
_DELETE_TOPIC, _DELETE_SEGMENTS = 303, 503
_GET_GROUPS, _CREATE_GROUP, _DELETE_GROUP = 601, 602, 603


class Hand(threading.Thread):
    """Runs `step` until `stop`; `steps` counts those that were answered, `error` tells what ended it before."""

    def __init__(self, name: str, address: str, seed: str) -> None:
        super().__init__(name=name, daemon=True)
        self.address = address
        self.rng = random.Random(seed)
        self.steps = 0
        self.error: str | None = None
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            with wire.connect(self.address, deadline_s=CONNECT_S, timeout_s=CONNECT_S) as connection:
                while not self._stopping.is_set():
                    self.step(connection)
                    self.steps += 1
        except (OSError, wire.StatusError) as problem:
            self.error = f"{self.name}: {type(problem).__name__} {problem}"

    def step(self, connection: wire.Wire) -> None:
        raise NotImplementedError(f"{type(self).__name__} has no step")

    def stop(self, timeout_s: float = 2 * CONNECT_S) -> None:
        self._stopping.set()
        self.join(timeout_s)
        if self.is_alive():
            raise TimeoutError(f"{self.name} does not stop")


class Producer(Hand):
    """Fills one partition of the topic `log`, stores an offset, asks for a sync."""

    def __init__(self, address: str, seed: str, number: int, log: LogLedger, offsets: OffsetLedger) -> None:
        super().__init__(f"producer {number}", address, seed)
        self.number = number
        self.log = log
        self.offsets = offsets

    def step(self, connection: wire.Wire) -> None:
        send(connection, "log", self.number, self.log, self.rng, self.number)
        what = self.rng.random()
        if what < 0.2 and self.log.base == 0:
            value = self.rng.randrange(self.log.acknowledged)
            self.offsets.prepare(value)
            asked = len(self.offsets.values) - 1
            connection.store_offset(STREAM, "log", self.number, value, CONSUMER)
            self.offsets.acknowledged = asked
        elif what < 0.22:
            messages, stored = self.log.acknowledged, self.offsets.acknowledged
            connection.request(wire.FLUSH_UNSAVED_BUFFER, place("log") + struct.pack("<IB", self.number, 1))
            self.log.synced, self.offsets.synced = messages, stored
        else:
            time.sleep(self.rng.random() * 0.004)


class Reader(Hand):
    """Follows all partitions of the topic `log`: at `durable` nobody may read what a power cut takes away."""

    def __init__(self, address: str, seed: str, logs: list[LogLedger]) -> None:
        super().__init__("reader", address, seed)
        self.logs = logs

    def step(self, connection: wire.Wire) -> None:
        for partition, log in enumerate(self.logs):
            last = poll_one(connection, "log", partition, wire.POLL_LAST)
            if last is not None and log.base == 0:
                log.read = last.offset + 1
        time.sleep(0.002)


class Purger(Hand):
    """Fills the topic `purged` and purges it."""

    def __init__(self, address: str, seed: str, epochs: EpochLedger) -> None:
        super().__init__("purger", address, seed)
        self.epochs = epochs

    def step(self, connection: wire.Wire) -> None:
        send(connection, "purged", 0, self.epochs.log, self.rng, 100)
        if self.rng.random() < 0.06:
            self.epochs.begin_purge()
            connection.purge_topic(STREAM, "purged")
            self.epochs.end_purge()
        time.sleep(self.rng.random() * 0.004)


class Trimmer(Hand):
    """Fills the topic `trimmed` and deletes its oldest segments."""

    def __init__(self, address: str, seed: str, log: LogLedger) -> None:
        super().__init__("trimmer", address, seed)
        self.log = log

    def step(self, connection: wire.Wire) -> None:
        send(connection, "trimmed", 0, self.log, self.rng, 101)
        if self.rng.random() < 0.1:
            self.log.first_max = self.log.acknowledged
            count = self.rng.randint(1, 3)
            connection.request(_DELETE_SEGMENTS, place("trimmed") + struct.pack("<II", 0, count))
            oldest = poll_one(connection, "trimmed", 0, wire.POLL_FIRST)
            if oldest is not None:
                self.log.first = self.log.first_max = self.log.sent.index(oldest.payload)
        time.sleep(self.rng.random() * 0.004)


class Limited(Hand):
    """Fills the topic `limited`, which keeps its last messages only; when they are sealed they are compressed."""

    def __init__(self, address: str, seed: str, log: LogLedger) -> None:
        super().__init__("limited", address, seed)
        self.log = log

    def step(self, connection: wire.Wire) -> None:
        self.log.first_max = self.log.last(LIMITED_MESSAGES - BATCH_MAX)  # with those on their way
        send(connection, "limited", 0, self.log, self.rng, 102)
        time.sleep(self.rng.random() * 0.004)


class Changer(Hand):
    """Creates and deletes streams, topics, partitions, groups and users, and sends a message into each topic."""

    def __init__(self, address: str, seed: str, ledger: MetadataLedger) -> None:
        super().__init__("changer", address, seed)
        self.ledger = ledger

    def step(self, connection: wire.Wire) -> None:
        facts, rng = self.ledger.facts, self.rng
        streams = sorted(fact[1] for fact in facts if fact[0] == "stream")
        topics = sorted(fact[1:] for fact in facts if fact[0] == "topic")
        name = f"{rng.getrandbits(40):010x}"
        what = rng.choices(["stream", "topic", "more", "group", "user", "drop"], [3, 5, 1, 1, 0.3, 3])[0]
        if what == "user":
            self._user(connection, name)
        elif what == "drop":
            self._drop(connection, streams, topics)
        elif what == "stream" and len(streams) < STREAMS_MAX:
            self._change(facts | {("stream", name)}, connection, wire.CREATE_STREAM, wire.str8(name))
        elif what == "topic" and streams and len(topics) < TOPICS_MAX * len(streams):
            stream = rng.choice(streams)
            self.ledger.begin(facts | {("topic", stream, name, "2")})
            connection.create_topic(stream, name, 2)
            self.ledger.end()
            self.ledger.begin(self.ledger.facts | {("message", stream, name)})
            connection.send(stream, name, wire.to_partition(rng.randrange(2)), [wire.message(name.encode())])
            self.ledger.end()
        elif what == "more" and topics:
            stream, topic, count = rng.choice(topics)
            after = facts - {("topic", stream, topic, count)} | {("topic", stream, topic, str(int(count) + 1))}
            words = wire.identifier(stream) + wire.identifier(topic) + struct.pack("<I", 1)
            self._change(after, connection, wire.CREATE_PARTITIONS, words)
        elif what == "group" and topics:
            stream, topic, _ = rng.choice(topics)
            words = wire.identifier(stream) + wire.identifier(topic) + wire.str8(name)
            self._change(facts | {("group", stream, topic, name)}, connection, _CREATE_GROUP, words)

    def _change(self, after: frozenset[Fact], connection: wire.Wire, code: int, words: bytes) -> None:
        self.ledger.begin(after)
        connection.request(code, words)
        self.ledger.end()

    def _user(self, connection: wire.Wire, name: str) -> None:
        facts = self.ledger.facts
        users = [fact for fact in facts if fact[0] == "user"]
        if len(users) > 1:
            self._change(facts - {users[0]}, connection, _DELETE_USER, wire.identifier(users[0][1]))
        else:
            words = wire.str8(name) + wire.str8("secret") + b"\1\0"
            self._change(facts | {("user", name)}, connection, _CREATE_USER, words)

    def _drop(self, connection: wire.Wire, streams: list[str], topics: list[tuple[str, ...]]) -> None:
        facts = self.ledger.facts
        groups = [fact for fact in facts if fact[0] == "group"]
        if groups and self.rng.random() < 0.3:
            words = b"".join(wire.identifier(part) for part in groups[0][1:])
            self._change(facts - {groups[0]}, connection, _DELETE_GROUP, words)
        elif topics and self.rng.random() < 0.7:
            stream, topic, _ = self.rng.choice(topics)
            after = frozenset(fact for fact in facts if fact[0] == "stream" or fact[1:3] != (stream, topic))
            self._change(after, connection, _DELETE_TOPIC, wire.identifier(stream) + wire.identifier(topic))
        elif streams:
            stream = self.rng.choice(streams)
            after = frozenset(fact for fact in facts if fact[1] != stream)
            self._change(after, connection, wire.DELETE_STREAM, wire.identifier(stream))


def poll_one(connection: wire.Wire, topic: str, partition: int, strategy: int) -> wire.Message | None:
    """The first or the last message; None when there is none, or it is withheld (lost in an earlier cut)."""
    try:
        messages = connection.poll(STREAM, topic, partition, strategy=strategy, count=1).messages
    except wire.StatusError as problem:
        if problem.status != DAMAGED:
            raise
        return None
    return messages[0] if messages else None


def place(topic: str) -> bytes:
    return wire.identifier(STREAM) + wire.identifier(topic)


def send(connection: wire.Wire, topic: str, partition: int, log: LogLedger, rng: random.Random, producer: int) -> None:
    """One request of a few messages, most of them small, some longer than a page."""
    choices = (30, 200, 700, 3000, 9000) if rng.random() < 0.3 else (40, 120)
    sizes = [rng.choice(choices) for _ in range(rng.randint(1, BATCH_MAX))]
    payloads = [payload_of(producer, rng.getrandbits(63), size) for size in sizes]
    log.prepare(payloads)
    end = len(log.sent)
    connection.send(STREAM, topic, wire.to_partition(partition), [wire.message(payload) for payload in payloads])
    log.acknowledged = end


def observed(connection: wire.Wire, *, messages: bool) -> frozenset[Fact]:
    """The metadata as the server shows it, without the objects of the load. `messages`: whether topics hold theirs."""
    facts: set[Fact] = {("user", name) for name in _names(connection.request(_GET_USERS), 14) if name != "iggy"}
    for stream in connection.streams().keys() - {STREAM}:
        facts.add(("stream", stream))
        data, at = connection.request(wire.GET_TOPICS, wire.identifier(stream)), 0
        while at < len(data):
            (count,), length = struct.unpack_from("<I", data, at + 12), data[at + 50]
            topic = data[at + 51 : at + 51 + length].decode()
            at += 51 + length
            facts.add(("topic", stream, topic, str(count)))
            groups = connection.request(_GET_GROUPS, wire.identifier(stream) + wire.identifier(topic))
            facts |= {("group", stream, topic, group) for group in _names(groups, 13)}
            found = [item.payload for n in range(count) for item in connection.read_all(stream, topic, n)]
            if any(payload != topic.encode() for payload in found):
                facts.add(("foreign messages", stream, topic))
            if messages and found:
                facts.add(("message", stream, topic))
    return frozenset(facts)


def _names(data: bytes, fixed: int) -> list[str]:
    """Names of records that have `fixed` bytes, the last of which is the length of the name behind them."""
    found, at = [], 0
    while at < len(data):
        end = at + fixed + data[at + fixed - 1]
        found.append(data[at + fixed : end].decode())
        at = end
    return found
