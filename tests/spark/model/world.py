"""A real server and the truth about it: what every incarnation of every partition has ever held."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from shardd.backup.create import create_backup
from shardd.backup.restore import restore_backup
from shardd.protocol.bounds import GetPartitionBounds, PartitionBounds, TopicBounds, TopicSelection, decode_reply
from shardd.protocol.extensions import ExtensionCode
from shardd.spark import archive_listing
from shardd.spark.pipelines import archive, vacuum
from shardd.spark.pipelines.archive import Target
from shardd.spark.pipelines.common import PipelineError, Source
from shardd.spark.positions import TopicName
from tests.spark.support import DEADLINE_S, DELETE_SEGMENTS
from tests.support import wire
from tests.support.ports import free_port
from tests.support.server import Server

STREAM = "ten/ant"  # names are part of what must hold
TOPICS = ("rows", "more")
CREATE_TOKEN, DELETE_TOPIC = 42, 303
CREATE_PARTITIONS = 402
PARTITIONS_MAX = 4
AHEAD_S = 3600


class BrokenPromiseError(AssertionError):
    """The source broke a promise."""


@dataclass
class History:
    """One incarnation of one partition. `floor`: offsets below it were deleted; `over`: it is another one's turn.
    `life`: how often its files were put back; `shared`: up to there it has what it had in each life before. `sparse`,
    `isolated`: offsets without a message, and those of damaged ones that an operator has given up. `ahead`: from there
    on times are those of a clock that was an hour ahead."""

    payloads: list[bytes] = field(default_factory=list)
    floor: int = 0
    over: bool = False
    changes: int = 0  # that took something away
    life: int = 0
    shared: tuple[int, ...] = ()
    sparse: set[int] = field(default_factory=set)
    isolated: set[int] = field(default_factory=set)
    ahead: int | None = None

    def copy(self, count: int) -> History:
        """A history that begins with the first `count` messages of this one."""
        sparse, isolated = ({each for each in of if each < count} for of in (self.sparse, self.isolated))
        ahead = self.ahead if self.ahead is not None and self.ahead < count else None
        return History(self.payloads[:count], self.floor, sparse=sparse, isolated=isolated, ahead=ahead)


Key = tuple[str, int, int]  # topic, partition, incarnation


class World:
    """The server on one port, through restarts and restores; every change is known here when its method returns."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._backups: list[tuple[Path, dict[tuple[str, int], History]]] = []
        self.put_backs = 0
        self.rewinds = 0  # how often the server had older messages anew
        self._servers = 0
        self._port = free_port()
        self.archive_root = directory / "archive"
        self.histories: dict[Key, History] = {}
        self.now: dict[tuple[str, int], int] = {}  # incarnation
        self._sent = 0
        self._numbers = 0
        self.server = self._server()
        self.server.start()
        self._connect()
        self._token = ""
        self._set_up()

    def _set_up(self) -> None:
        """As a script does it with each server."""
        answer = self.connection.request(CREATE_TOKEN, wire.str8("model") + bytes(8))  # a login by it costs no hash
        self._token = answer[1:].decode()
        self.connection.create_stream(STREAM)
        for topic in TOPICS:
            self.connection.create_topic(STREAM, topic, 2)
            self._look(topic)

    def close(self) -> None:
        self.connection.close()
        self.server.stop()

    def _server(self) -> Server:
        self._servers += 1
        env = {
            "SHARDD_TCP_ADDRESS": f"127.0.0.1:{self._port}",
            "SHARDD_SYSTEM_SEGMENT_SIZE": "4 KiB",
            "SHARDD_SYSTEM_PARTITION_SYNC_INTERVAL": "20 ms",
        }
        return Server(self._directory / f"data{self._servers}", env=env)

    def _connect(self) -> None:
        self.connection = wire.connect(self.server.address)

    def options(self, **more: str) -> dict[str, str]:
        return {"servers": self.server.address, "token": self._token, **more}

    def topic_bounds(self, topic: str, stream: str = STREAM) -> TopicBounds:
        request = GetPartitionBounds((TopicSelection(stream, topic),)).encode()
        return decode_reply(self.connection.request(ExtensionCode.GET_PARTITION_BOUNDS, request))[0]

    def next_number(self) -> int:
        """For a name that this world has not had."""
        self._numbers += 1
        return self._numbers

    def first_of(self, stream: str, topic: str) -> int:
        """Of its partition 0."""
        return self.topic_bounds(topic, stream).partitions[0].first

    def bounds(self, topic: str) -> tuple[PartitionBounds, ...]:
        return self.topic_bounds(topic).partitions

    def history(self, topic: str, partition: int) -> History:
        return self.histories[topic, partition, self.now[topic, partition]]

    def partitions(self, topic: str) -> list[int]:
        return sorted(n for name, n in self.now if name == topic)

    def settle(self) -> None:
        """All that was sent is on the device."""
        deadline_s = time.monotonic() + DEADLINE_S
        for topic in TOPICS:
            while any(each.durable_end < len(self.history(topic, each.id).payloads) for each in self.bounds(topic)):
                assert time.monotonic() < deadline_s, "the durable end does not follow"
                time.sleep(0.005)

    def _look(self, topic: str) -> None:
        """Takes note of incarnations that have changed."""
        for each in self.bounds(topic):
            place, known = (topic, each.id), self.now.get((topic, each.id))
            if known == each.incarnation:
                continue
            if known is not None:
                self._end(topic, each.id)
            if (topic, each.id, each.incarnation) in self.histories:
                raise BrokenPromiseError(
                    f"incarnation {each.incarnation} of partition {each.id} of {topic} has come back"
                )
            self.now[place] = each.incarnation
            self.histories[topic, each.id, each.incarnation] = History()

    def _end(self, topic: str, partition: int) -> None:
        old = self.history(topic, partition)
        old.over, old.changes = True, old.changes + 1

    # ---- changes ----

    def send(self, topic: str, partition: int, count: int) -> None:
        """In small requests: one goes into one segment as a whole."""
        known = self.history(topic, partition)
        for low in range(0, count, 25):
            numbers = range(self._sent + low, self._sent + min(low + 25, count))
            batch = [f"{topic}:{partition}:{n}:".encode() + b"x" * (n % 60) for n in numbers]
            self.connection.send(STREAM, topic, wire.to_partition(partition), [wire.message(each) for each in batch])
            known.payloads += batch
        self._sent += count

    def purge(self, topic: str) -> None:
        self.connection.purge_topic(STREAM, topic)
        self._look(topic)

    def recreate(self, topic: str) -> None:
        self.connection.request(DELETE_TOPIC, wire.identifier(STREAM) + wire.identifier(topic))
        for partition in self.partitions(topic):
            self._end(topic, partition)
            del self.now[topic, partition]
        self.connection.create_topic(STREAM, topic, 2)
        self._look(topic)

    def delete_segments(self, topic: str, partition: int, count: int) -> None:
        address = wire.identifier(STREAM) + wire.identifier(topic)
        self.connection.request(
            DELETE_SEGMENTS, address + partition.to_bytes(4, "little") + count.to_bytes(4, "little")
        )
        known, first = self.history(topic, partition), self.bounds(topic)[partition].first
        known.changes += first > known.floor
        known.floor = first
        self._give_up_archive(topic, partition)

    def add_partition(self, topic: str) -> None:
        if len(self.partitions(topic)) < PARTITIONS_MAX:
            address = wire.identifier(STREAM) + wire.identifier(topic)
            self.connection.request(CREATE_PARTITIONS, address + (1).to_bytes(4, "little"))
            self._look(topic)

    def restart(self) -> None:
        with self.stopped():
            pass

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Its files may be changed meanwhile."""
        self.connection.close()
        self.server.stop()
        yield
        self.server.start()
        self._connect()

    def kill(self) -> None:
        """The whole server dies at once; what was acknowledged is in the page cache."""
        self.connection.close()
        self.server.kill_supervisor()
        self.server.start()
        self._connect()

    # ---- directories as files, other servers ----

    def copy(self) -> tuple[Path, dict[Key, int]]:
        """The data directory as it is, and how many messages each history has."""
        self.connection.close()
        self.server.stop()
        path = self._directory / f"copy{self.put_backs}"
        shutil.copytree(self.server.data_dir, path, symlinks=True)
        self.server.start()
        self._connect()
        keys = [(*place, incarnation) for place, incarnation in self.now.items()]
        return path, {key: len(self.histories[key].payloads) for key in keys}

    def put_back(self, path: Path, counts: dict[Key, int]) -> None:
        """A copy in place of what the server has; no topic was made or purged since. Each history that has lost
        something has another life, in which others follow."""
        self.connection.close()
        self.server.stop()
        shutil.rmtree(self.server.data_dir)
        path.rename(self.server.data_dir)
        self.server.start()
        self._connect()
        self.put_backs += 1
        self.rewinds += 1
        for key, count in counts.items():
            old = self.histories[key]
            if len(old.payloads) > count:
                old.over, old.changes = True, old.changes + 1
                floor = self.bounds(key[0])[key[1]].first
                made = self.histories[key] = old.copy(count)
                made.floor, made.changes, made.life = floor, 1, old.life + 1
                made.shared = (*(min(each, count) for each in old.shared), count)

    def replace(self) -> None:
        """Another server under the same address, which a script has set up as it did the first."""
        self.connection.close()
        self.server.stop()
        self.server = self._server()
        self.server.start()
        self._connect()
        self._backups.clear()
        self.rewinds += 1
        for topic, partition in list(self.now):
            self._end(topic, partition)
        self.now.clear()
        self._set_up()

    # ---- archive and backup ----

    def archive(self, topic: str, *, path: bool) -> None:
        target = Target.parse(f"parquet:{self.archive_root}", {})
        options = self.options(maxRecordsPerPartition="150", failOnDataLoss="false")
        if path:
            options["path"] = str(self.server.data_dir)
        try:
            for job in archive.plan(Source(f"`{STREAM}`/{topic}", options), target)[0]:
                job.run()
        except PipelineError as error:
            lives = [self.history(topic, n) for n in self.partitions(topic)]
            if not any(each.floor or each.life or each.isolated for each in lives):  # nothing is gone, nor put back
                raise BrokenPromiseError(f"an archive run fails without a reason: {error}") from error

    def _give_up_archive(self, topic: str, partition: int) -> None:
        """Files of an earlier life, of which the server has nothing any more, cannot be compared. An operator names
        another place before that; here they are gone from the one there is."""
        known, name = self.history(topic, partition), TopicName(STREAM, topic)
        listing = archive_listing.list_topic(str(self.archive_root), name)
        files = listing.get((partition, self.now[topic, partition]), archive_listing.History()).files
        end = max((each.end for each in files), default=0)
        if known.shared and min(known.shared) < end <= known.floor:
            for each in files:
                Path(each.path).unlink()

    def vacuum(self) -> None:
        if self.archive_root.exists():
            vacuum.vacuum("parquet", str(self.archive_root), older_than_s=0, dry_run=False, properties={})

    def backup(self) -> None:
        path = create_backup(self.server.data_dir, self._directory / "backups").path
        known = {place: self.histories[*place, number] for place, number in self.now.items()}
        self._backups.append((path, {place: each.copy(len(each.payloads)) for place, each in known.items()}))

    def restore(self) -> None:
        """The newest backup, as a new data directory under the same address."""
        if not self._backups:
            self.backup()
        path, contents = self._backups[-1]
        self.connection.close()
        self.server.stop()
        self.server = self._server()
        restore_backup(path, self.server.data_dir)
        self.server.start()
        self._connect()
        for topic, partition in list(self.now):
            self._end(topic, partition)
        self.now.clear()
        for topic in TOPICS:
            self._look(topic)
        if self.now.keys() != contents.keys():
            raise BrokenPromiseError(f"the backup had {sorted(contents)}, restored is {sorted(self.now)}")
        self.rewinds += 1
        for place, known in contents.items():  # the same backup may be restored again
            self.histories[*place, self.now[place]] = known.copy(len(known.payloads))
