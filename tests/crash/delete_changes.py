"""The changes under which `delete_kills` kills: what each is done to, and what has to hold afterwards."""

from __future__ import annotations

import struct
import time
from typing import Final

from tests.crash import faults
from tests.crash.delete_subject import Change, FindingError, Subject, partition_command, read, require_empty
from tests.support import wire

PURGE_STREAM, CREATE_PARTITIONS, DELETE_PARTITIONS, DELETE_SEGMENTS = 205, 402, 403, 503
ROLL_MESSAGES: Final = 40  # of ROLL_SIZE_BYTES: as large as a segment
ROLL_SIZE_BYTES: Final = 400
ROLLS: Final = 12
SEGMENT_MESSAGES: Final = 2 * ROLL_MESSAGES  # the second batch finds its segment full, goes into it and seals it
SEGMENT_SIZE: Final = "16 KiB"


class Scenario:
    """One kind of change: what it is done to, how, and what has to hold afterwards."""

    topics, partitions, filled = 3, 60, 12
    sends_beside = True

    def __init__(self, name: str) -> None:
        self.name = name

    def subject(self, name: str) -> Subject:
        return Subject(name, self.topics, self.partitions, self.filled)

    def prepare(self, connection: wire.Wire, subject: Subject) -> None:
        """More than its first messages."""

    def change(self, subject: Subject) -> Change:
        return Change(self.name, lambda connection: self.run(connection, subject))

    def run(self, connection: wire.Wire, subject: Subject) -> None:
        raise NotImplementedError(self.name)

    def check(self, connection: wire.Wire, subject: Subject, change: Change) -> None:
        raise NotImplementedError(self.name)

    def finish(self, connection: wire.Wire, subject: Subject, change: Change, done: bool) -> None:
        """What was acknowledged must be done; what was not done is done now, and must work."""
        if change.acknowledged and not done:
            raise FindingError("missing", f"{change.name} of {subject.name} was answered and is not there")
        if not done:
            self.run(connection, subject)


class CreateStream(Scenario):
    topics = filled = 0
    sends_beside = False

    def run(self, connection: wire.Wire, subject: Subject) -> None:
        connection.create_stream(f"{subject.name} new")

    def check(self, connection: wire.Wire, subject: Subject, change: Change) -> None:
        name = f"{subject.name} new"
        self.finish(connection, subject, change, name in connection.streams())
        made = Subject(name, 1, 20, 5)
        connection.create_topic(name, "t0", made.partitions)
        require_empty(connection, name, 0, range(made.partitions))
        made.fill(connection)
        made.check_whole(connection, 0, range(made.filled))
        connection.delete_stream(name)


class CreateTopic(Scenario):
    topics, partitions = 1, 12
    made = 400

    def run(self, connection: wire.Wire, subject: Subject) -> None:
        connection.create_topic(subject.name, "new", self.made)

    def check(self, connection: wire.Wire, subject: Subject, change: Change) -> None:
        self.finish(connection, subject, change, len(connection.partitions(subject.name, "new")) == self.made)
        require_empty(connection, subject.name, 1, range(self.made))
        for partition in (0, 1, 2, self.made - 1):
            subject.check_usable(connection, 1, partition)
        subject.check_whole(connection, 0, range(subject.filled))


class CreatePartitions(Scenario):
    topics, partitions = 1, 12
    made = 400

    def run(self, connection: wire.Wire, subject: Subject) -> None:
        connection.request(CREATE_PARTITIONS, partition_command(subject, 0, self.made))

    def check(self, connection: wire.Wire, subject: Subject, change: Change) -> None:
        there = len(connection.partitions(subject.name, 0))
        if there not in (self.partitions, self.partitions + self.made):
            raise FindingError("missing", f"{subject.name}: {there} partitions after {change.name}")
        self.finish(connection, subject, change, there > self.partitions)
        require_empty(connection, subject.name, 0, range(self.partitions, self.partitions + self.made))
        for partition in (self.partitions, self.partitions + self.made - 1):
            subject.check_usable(connection, 0, partition)
        subject.check_whole(connection, 0, range(subject.filled))


class DeletePartitions(Scenario):
    topics, partitions, filled = 1, 40, 40
    gone = 30

    def run(self, connection: wire.Wire, subject: Subject) -> None:
        connection.request(DELETE_PARTITIONS, partition_command(subject, 0, self.gone))

    def check(self, connection: wire.Wire, subject: Subject, change: Change) -> None:
        there = len(connection.partitions(subject.name, 0))
        if there not in (self.partitions, self.partitions - self.gone):
            raise FindingError("missing", f"{subject.name}: {there} partitions after {change.name}")
        self.finish(connection, subject, change, there < self.partitions)
        connection.request(CREATE_PARTITIONS, partition_command(subject, 0, self.gone))
        again = range(self.partitions - self.gone, self.partitions)
        require_empty(connection, subject.name, 0, again)
        subject.forget(0, again)
        subject.check_usable(connection, 0, self.partitions - 1)
        subject.check_whole(connection, 0, range(self.partitions - self.gone))


class DeleteTopic(Scenario):
    def run(self, connection: wire.Wire, subject: Subject) -> None:
        connection.request(wire.DELETE_TOPIC, wire.identifier(subject.name) + wire.identifier("t1"))

    def check(self, connection: wire.Wire, subject: Subject, change: Change) -> None:
        self.finish(connection, subject, change, not connection.partitions(subject.name, "t1"))
        if connection.create_topic(subject.name, "t1", self.partitions) != 1:
            raise FindingError("usable", "the id of a deleted topic is not given out again")
        require_empty(connection, subject.name, 1, range(self.partitions))
        subject.forget(1, range(self.partitions))
        subject.check_usable(connection, 1, 0)
        for topic in (0, 2):
            subject.check_whole(connection, topic, range(subject.filled))


class DeleteStream(Scenario):
    def run(self, connection: wire.Wire, subject: Subject) -> None:
        connection.delete_stream(subject.name)

    def check(self, connection: wire.Wire, subject: Subject, change: Change) -> None:
        there = subject.name in connection.streams()
        if there and not change.acknowledged:
            for topic in range(subject.topics):
                subject.check_whole(connection, topic, range(subject.filled))
        self.finish(connection, subject, change, not there)
        again = Subject(subject.name, subject.topics, subject.partitions, subject.filled)
        again.make(connection)
        for topic in range(again.topics):
            again.check_whole(connection, topic, range(again.filled))


class Purge(Scenario):
    def check(self, connection: wire.Wire, subject: Subject, change: Change) -> None:
        first = subject.sent[0, 0][0].payload
        done = first not in [each.payload for each in read(connection, subject.name, 0, 0)]
        if not done and not change.acknowledged:
            for topic in range(subject.topics):
                subject.check_whole(connection, topic, range(subject.filled))
        if not done and not change.acknowledged:
            change.begun_s = time.monotonic()  # all that is there was acknowledged before this one
        self.finish(connection, subject, change, done)
        purged = range(subject.topics) if isinstance(self, PurgeStream) else (0,)
        for topic in range(subject.topics):
            if topic in purged:
                subject.check_purged(connection, change, topic, range(subject.filled))
            else:
                subject.check_whole(connection, topic, range(subject.filled))
        subject.check_usable(connection, 0, 0)


class PurgeTopic(Purge):
    def run(self, connection: wire.Wire, subject: Subject) -> None:
        connection.purge_topic(subject.name, 0)


class PurgeStream(Purge):
    def run(self, connection: wire.Wire, subject: Subject) -> None:
        connection.request(PURGE_STREAM, wire.identifier(subject.name))


class Roll(Scenario):
    """Each batch is as large as a segment: the next one seals it and makes another."""

    topics, partitions, filled = 1, 4, 4
    sends_beside = False

    def run(self, connection: wire.Wire, subject: Subject) -> None:
        for number in range(ROLLS):
            subject.send(connection, 0, number % self.partitions, ROLL_MESSAGES, ROLL_SIZE_BYTES)

    def check(self, connection: wire.Wire, subject: Subject, change: Change) -> None:
        subject.check_whole(connection, 0, range(self.partitions))
        for partition in range(self.partitions):
            subject.check_usable(connection, 0, partition)


class DeleteSegments(Roll):
    filled = 0

    def prepare(self, connection: wire.Wire, subject: Subject) -> None:
        for _ in range(ROLLS * 2):
            subject.send(connection, 0, 0, ROLL_MESSAGES, ROLL_SIZE_BYTES)
        subject.send(connection, 0, 0)  # the active segment holds one

    def run(self, connection: wire.Wire, subject: Subject) -> None:
        address = wire.identifier(subject.name) + wire.identifier(0)
        connection.request(DELETE_SEGMENTS, address + struct.pack("<II", 0, 2**32 - 1))

    def check(self, connection: wire.Wire, subject: Subject, change: Change) -> None:
        faults.wait_until_served(connection.address, subject.name, 0, [0])
        kept_from = read(connection, subject.name, 0, 0)[0].offset
        if kept_from % SEGMENT_MESSAGES:
            raise FindingError("lost", f"{subject.name}: starts at {kept_from}, which is within a segment")
        if change.acknowledged and kept_from != ROLLS * 2 * ROLL_MESSAGES:
            raise FindingError("resurrected", f"{subject.name}: segments are back after {change.name}")
        subject.check_whole(connection, 0, [0], kept_from)
        subject.check_usable(connection, 0, 0)


ALL: Final = (
    CreateStream("CREATE_STREAM"),
    CreateTopic("CREATE_TOPIC"),
    CreatePartitions("CREATE_PARTITIONS"),
    DeletePartitions("DELETE_PARTITIONS"),
    DeleteTopic("DELETE_TOPIC"),
    DeleteStream("DELETE_STREAM"),
    PurgeTopic("PURGE_TOPIC"),
    PurgeStream("PURGE_STREAM"),
    Roll("roll of a segment"),
    DeleteSegments("DELETE_SEGMENTS"),
)
