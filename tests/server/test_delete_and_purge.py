"""DELETE_SEGMENTS and purges: scenarios 27 to 31 of Apache Iggy's own tests by name, for each mode of its index cache,
with a restart at the end and without: exact starts of segments, exact sizes of their files."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from shardd.log import layout
from tests.support import wire
from tests.support.server import ONE_SHARD, Server
from tests.support.wide import wide_but

RECORD_BYTES = 64 + 936
MESSAGES = 25
STARTS = [0, 7, 14, 21]  # the sixth message fills a segment of 5 KiB, the seventh finds it full and goes into it
CREATE_GROUP, JOIN_GROUP, DELETE_SEGMENTS = 602, 604, 503
ALL = 2**32 - 1
FIRST = 3  # polling strategy
PLACE = wire.identifier("s") + wire.identifier("t")


@pytest.fixture(scope="module", params=wide_but(["open_segment"], ["none", "all", "open_segment"]))
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {
        "SHARDD_SYSTEM_SEGMENT_SIZE": "5 KiB",
        "IGGY_SYSTEM_PARTITION_MESSAGES_REQUIRED_TO_SAVE": "1",
        "IGGY_SYSTEM_SEGMENT_CACHE_INDEXES": request.param,
    }
    with Server(tmp_path_factory.mktemp("purge") / "data", ONE_SHARD | settings) as running:
        yield running


class Stage:
    """A topic with four segments; `checked` runs a check, and again behind a restart."""

    def __init__(self, server: Server, *, restart: bool) -> None:
        self.server, self.restart = server, restart
        self.root = wire.connect(server.address)
        if "s" in self.root.streams():
            self.root.delete_stream("s")
        stream = self.root.create_stream("s")
        self.root.create_topic(stream, "t", 1)
        self.directory = layout.partition_directory(server.data_dir, stream, 0, 0)
        for _ in range(MESSAGES):
            self.root.send("s", "t", wire.to_partition(0), [wire.message(b"x" * 936)])
        self.check(STARTS, MESSAGES)

    def delete(self, count: int) -> None:
        self.root.request(DELETE_SEGMENTS, PLACE + struct.pack("<II", 0, count))

    def check(self, starts: list[int], end: int) -> None:
        """Exactly these segments, and exactly what is in them; files of no other one."""
        ends = [*starts[1:], end]
        for suffix, size in ((".log", RECORD_BYTES), (".index", 16)):
            found = {int(path.stem): path.stat().st_size for path in self.directory.glob(f"*{suffix}")}
            expected = {s: (e - s) * size for s, e in zip(starts, ends, strict=True)}
            if suffix == ".index":  # that of the active segment is written behind its log: `again` looks at it
                found[starts[-1]] = expected[starts[-1]]
            assert found == expected
        [details] = self.root.partitions("s", "t")
        assert (details.segments_count, details.messages_count) == (len(starts), end - starts[0])
        assert details.size_bytes == (end - starts[0]) * RECORD_BYTES
        polled = self.root.poll("s", "t", 0, strategy=FIRST, count=1000).messages
        assert [each.offset for each in polled] == list(range(starts[0], end))

    def finally_check(self, starts: list[int], end: int) -> None:
        self.check(starts, end)
        if self.restart:
            self.again()
            self.check(starts, end)

    def again(self) -> None:
        self.root.close()
        assert self.server.stop() == 0
        for index in self.directory.glob("*.index"):
            records = (index.with_suffix(".log").stat().st_size) // RECORD_BYTES
            assert index.stat().st_size == 16 * records
        self.server.start()
        self.root = wire.connect(self.server.address)

    def join(self, name: str) -> None:
        self.root.request(CREATE_GROUP, PLACE + wire.str8(name))
        self.root.request(JOIN_GROUP, PLACE + wire.identifier(name))

    def store_as_group(self, name: str, offset: int) -> None:
        where = wire.group(name) + PLACE + wire.optional_partition(0)
        self.root.request(wire.STORE_OFFSET, where + struct.pack("<Q", offset))


@pytest.fixture(params=[False, True], ids=["running", "restarted"])
def stage(server: Server, request: pytest.FixtureRequest) -> Iterator[Stage]:
    made = Stage(server, restart=request.param)
    yield made
    made.root.close()


def test_delete_segments_and_validate_filesystem(stage: Stage) -> None:
    """27"""
    stage.delete(0)
    stage.check(STARTS, MESSAGES)
    stage.delete(1)
    stage.check(STARTS[1:], MESSAGES)
    stage.delete(1)
    stage.finally_check(STARTS[2:], MESSAGES)


def test_delete_segments_without_consumers(stage: Stage) -> None:
    """28: the active one stays, whatever is asked for; offsets go on."""
    stage.delete(ALL)
    stage.check(STARTS[3:], MESSAGES)
    stage.root.send("s", "t", wire.to_partition(0), [wire.message(b"x" * 936)])
    stage.finally_check(STARTS[3:], MESSAGES + 1)


def test_delete_segments_with_consumer_group_barrier(stage: Stage) -> None:
    """29"""
    stage.join("readers")
    for offset, starts in ((5, STARTS), (6, STARTS[1:]), (12, STARTS[1:]), (13, STARTS[2:]), (20, STARTS[3:])):
        stage.store_as_group("readers", offset)
        stage.delete(ALL)
        stage.check(starts, MESSAGES)
    stage.finally_check(STARTS[3:], MESSAGES)


def test_delete_segments_with_multiple_consumers_barrier(stage: Stage) -> None:
    """30: the slowest of all counts, groups too."""
    stage.join("readers")
    stage.root.store_offset("s", "t", 0, 24, who=1)
    stage.root.store_offset("s", "t", 0, 13, who=2)
    stage.store_as_group("readers", 6)
    stage.delete(ALL)
    stage.check(STARTS[1:], MESSAGES)
    stage.store_as_group("readers", 24)
    stage.delete(ALL)
    stage.check(STARTS[2:], MESSAGES)
    stage.root.store_offset("s", "t", 0, 24, who=2)
    stage.delete(ALL)
    stage.finally_check(STARTS[3:], MESSAGES)


def test_purge_topic_clears_consumer_offsets_files_and_segments(stage: Stage) -> None:
    """31"""
    stage.join("readers")
    stage.root.store_offset("s", "t", 0, 24, who=1)
    stage.store_as_group("readers", 20)
    stage.root.purge_topic("s", "t")
    for _ in range(2 if stage.restart else 1):
        [details] = stage.root.partitions("s", "t")
        assert (details.segments_count, details.messages_count, details.size_bytes) == (1, 0, 0)
        assert stage.root.get_offset("s", "t", 0, 1) is None
        assert not [path for path in stage.directory.glob("*.log") if path.stat().st_size]
        assert not list(stage.directory.glob("offsets*"))
        assert stage.root.poll("s", "t", 0, strategy=FIRST, count=10).messages == ()
        if stage.restart:
            stage.root.close()
            stage.server.stop()
            stage.server.start()
            stage.root = wire.connect(stage.server.address)
    stage.root.send("s", "t", wire.to_partition(0), [wire.message(b"x" * 936)])
    stage.check([0], 1)
