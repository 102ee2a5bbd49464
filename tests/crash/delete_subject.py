"""The streams that `delete_kills` makes, changes and kills under: what was told about each message, what may be there
afterwards, and what lies on the disk that nobody knows."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from shardd.log import layout
from shardd.log.incarnation import read_incarnation
from shardd.log.layout import PartitionIds
from shardd.metadata import FILE_NAME
from shardd.metadata.load import load_state
from shardd.worker.partition_changes import partitions_of
from tests.support import wire
from tests.support.server import Server

CONSUMER: Final = "who stored an offset"
DISK_WAIT_S: Final = 15.0  # for a change that was not answered and goes on
SENDER_PAUSE_S: Final = 0.004


class FindingError(AssertionError):
    """Something that must never be. `kind`: resurrected, lost, missing, foreign, unknown directory, start, usable."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


@dataclass(slots=True)
class Sent:
    """One message; times are monotonic seconds, None while there is no answer (and for ever when none came)."""

    payload: bytes
    begun_s: float
    acknowledged_s: float | None = None


@dataclass(slots=True)
class Change:
    """The command under which somebody is killed."""

    name: str
    run: Callable[[wire.Wire], object]
    begun_s: float = 0.0
    answered_s: float | None = None
    refused: int = 0  # status

    @property
    def acknowledged(self) -> bool:
        return self.answered_s is not None and self.refused == 0

    def execute(self, connection: wire.Wire) -> None:
        """Runs it and notes when what was told. A broken connection leaves it unanswered."""
        self.begun_s = time.monotonic()
        try:
            self.run(connection)
        except wire.StatusError as error:
            self.refused = error.status
        except OSError:
            return
        self.answered_s = time.monotonic()


@dataclass(slots=True)
class Subject:
    """A stream with topics of equally many partitions, the first `filled` of each with messages."""

    name: str
    topics: int
    partitions: int
    filled: int
    sent: dict[tuple[int, int], list[Sent]] = field(default_factory=dict)  # by topic and partition
    counter: int = 0

    def make(self, connection: wire.Wire) -> None:
        """Creates it and checks that nothing of whoever had these ids before can be seen."""
        stream = connection.create_stream(self.name)
        for topic in range(self.topics):
            connection.create_topic(stream, f"t{topic}", self.partitions)
            require_empty(connection, self.name, topic, range(self.partitions))
        self.fill(connection)

    def fill(self, connection: wire.Wire) -> None:
        for topic in range(self.topics):
            for partition in range(self.filled):
                self.send(connection, topic, partition)
            if self.filled:
                connection.store_offset(self.name, topic, 0, 0, CONSUMER)

    def send(self, connection: wire.Wire, topic: int, partition: int, messages: int = 1, size: int = 64) -> None:
        """One batch. Raises what the connection raises; what was attempted is noted all the same."""
        batch: list[Sent] = []
        for _ in range(messages):
            self.counter += 1
            text = f"{self.name}/{topic}/{partition}/{self.counter}/".encode()
            batch.append(Sent(text.ljust(size, b"."), time.monotonic()))
        self.sent.setdefault((topic, partition), []).extend(batch)
        place = wire.to_partition(partition)
        connection.send(self.name, topic, place, [wire.message(each.payload) for each in batch])
        now = time.monotonic()
        for each in batch:
            each.acknowledged_s = now

    # ---- what must hold

    def check_whole(self, connection: wire.Wire, topic: int, partitions: Sequence[int], kept_from: int = 0) -> None:
        """Partitions that nothing was deleted from: all that was acknowledged is there, once, in order. `kept_from`:
        the first offset that has to be there."""
        for partition in partitions:
            sent = self.sent.get((topic, partition), [])
            messages = read(connection, self.name, topic, partition)
            found = [message.payload for message in messages]
            where = f"{self.name}/{topic}/{partition}"
            if [message.offset for message in messages] != list(range(kept_from, kept_from + len(messages))):
                raise FindingError("lost", f"{where}: offsets {[message.offset for message in messages][:5]}...")
            possible = [each.payload for each in sent if each.acknowledged_s is not None or each.payload in set(found)]
            if found != possible[kept_from:]:
                missing = [payload for payload in possible[kept_from:] if payload not in set(found)]
                raise FindingError("lost" if missing else "foreign", f"{where}: {missing[:3]} of {len(possible)}")

    def check_purged(self, connection: wire.Wire, change: Change, topic: int, partitions: Sequence[int]) -> None:
        """Partitions that were purged or deleted and made again: nothing from before is there, nor is its offset."""
        for partition in partitions:
            where = f"{self.name}/{topic}/{partition}"
            found = [message.payload for message in read(connection, self.name, topic, partition)]
            for each in self.sent.get((topic, partition), []):
                before = each.acknowledged_s is not None and each.acknowledged_s < change.begun_s
                if before and each.payload in found:
                    raise FindingError("resurrected", f"{where}: {each.payload!r} is back after a {change.name}")
                after = change.acknowledged and change.answered_s is not None and each.begun_s > change.answered_s
                if after and each.acknowledged_s is not None and each.payload not in found:
                    raise FindingError("lost", f"{where}: {each.payload!r}, sent after the {change.name} was answered")
            possible = {each.payload for each in self.sent.get((topic, partition), [])}
            if not possible.issuperset(found) or len(set(found)) != len(found):
                raise FindingError("foreign", f"{where}: {[payload for payload in found if payload not in possible]}")
            if connection.get_offset(self.name, topic, partition, CONSUMER) is not None:
                raise FindingError("resurrected", f"{where}: a stored offset is back after a {change.name}")

    def forget(self, topic: int, partitions: Sequence[int]) -> None:
        """They start empty again."""
        for partition in partitions:
            self.sent.pop((topic, partition), None)

    def check_usable(self, connection: wire.Wire, topic: int, partition: int) -> None:
        before = read(connection, self.name, topic, partition)
        self.send(connection, topic, partition)
        new = read(connection, self.name, topic, partition)[len(before) :]
        if self.sent[topic, partition][-1].payload not in [message.payload for message in new]:
            raise FindingError("usable", f"{self.name}/{topic}/{partition}: a message that was sent is not read")


class Sender(threading.Thread):
    """Sends one message after another to the filled partitions of a subject while it is being changed."""

    def __init__(self, address: str, subject: Subject, topics: Sequence[int]) -> None:
        super().__init__(daemon=True, name="sender")
        self.address = address
        self.subject = subject
        self.places = [(topic, partition) for topic in topics for partition in range(subject.filled)]
        self.stopping = threading.Event()

    def run(self) -> None:
        connection: wire.Wire | None = None
        while not self.stopping.is_set():
            for topic, partition in self.places:
                if self.stopping.wait(SENDER_PAUSE_S):
                    break
                try:
                    if connection is None:
                        connection = wire.connect(self.address, deadline_s=0.1, timeout_s=3.0)
                    self.subject.send(connection, topic, partition)
                except wire.StatusError:
                    continue  # deleted meanwhile
                except OSError:
                    if connection is not None:
                        connection.close()
                    connection = None
        if connection is not None:
            connection.close()


def read(connection: wire.Wire, stream: str, topic: int, partition: int) -> list[wire.Message]:
    """Everything from the first offset that is kept."""
    first = connection.poll(stream, topic, partition, strategy=wire.POLL_FIRST, count=1).messages
    found: list[wire.Message] = []
    offset = first[0].offset if first else None
    while offset is not None:
        polled = connection.poll(stream, topic, partition, value=offset, count=1000).messages
        found.extend(polled)
        offset = polled[-1].offset + 1 if polled else None
    return found


def require_empty(connection: wire.Wire, stream: str, topic: int, partitions: Sequence[int]) -> None:
    """FindingError unless these partitions show nothing: no message, no size, no stored offset."""
    for details in connection.partitions(stream, topic):
        if details.id in partitions and (details.messages_count or details.size_bytes or details.current_offset):
            raise FindingError("resurrected", f"{stream}/{topic}: a new partition starts with {details}")
    for partition in partitions[:16]:
        if read(connection, stream, topic, partition):
            raise FindingError("resurrected", f"{stream}/{topic}/{partition} is new and holds messages")
        if connection.get_offset(stream, topic, partition, CONSUMER) is not None:
            raise FindingError("resurrected", f"{stream}/{topic}/{partition} is new and has a stored offset")


def unknown_directories(data: Path) -> Iterator[Path]:
    """Directories of streams, topics and partitions that the metadata of the disk does not know, or knows as another
    incarnation."""
    state = load_state(data / FILE_NAME)
    known: dict[PartitionIds, int] = {
        place: incarnation
        for stream in state.streams.values()
        for place, (incarnation, _slot) in partitions_of(stream).items()
    }
    for stream_path in _entries(data / layout.STREAMS):
        stream = layout.parse_id(stream_path.name)
        if stream is None or stream not in state.streams:
            yield stream_path
            continue
        for topic_path in _entries(stream_path / layout.TOPICS):
            topic = layout.parse_id(topic_path.name)
            if topic is None or topic not in state.streams[stream].topics:
                yield topic_path
                continue
            for path in _entries(topic_path / layout.PARTITIONS):
                partition = layout.parse_id(path.name)
                incarnation = None if partition is None else known.get((stream, topic, partition))
                if incarnation is None or read_incarnation(path) not in (incarnation, None):
                    yield path


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def check_directories(server: Server) -> int:
    """How many unknown directories the server has reported; FindingError when one stays that it has not."""
    deadline = time.monotonic() + DISK_WAIT_S
    while unknown := list(unknown_directories(server.data_dir)):
        log = server.log()
        if all(f"{path}: " in log for path in unknown):
            return len(unknown)
        if time.monotonic() > deadline:
            raise FindingError("unknown directory", f"{unknown[:5]}: nobody knows it and nobody says so")
        time.sleep(0.05)
    return 0


def names_in(trash: Path) -> int:
    return len(_entries(trash))


def partition_command(subject: Subject, topic: int, count: int) -> bytes:
    """Payload of CREATE_PARTITIONS and DELETE_PARTITIONS."""
    return wire.identifier(subject.name) + wire.identifier(topic) + struct.pack("<I", count)
