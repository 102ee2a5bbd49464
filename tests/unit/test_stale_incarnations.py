"""Behind an await a namespace is no address: every call into the engine that changes a partition names the incarnation
that is meant, and one that is not there any more takes nothing of what came after it."""

from __future__ import annotations

import ast
import asyncio
import struct
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import shardd.engine as engine_package
from shardd.engine import WithheldRange
from shardd.engine._native import DeletedSegments
from shardd.engine.calls import Place, PlaceUnknownError, Reader
from shardd.engine.partition_limits import IdWindow, PartitionLimits, SendingPartition, SendLimits
from shardd.log import compressing, layout, sealing
from shardd.log.blocks import Codec
from shardd.log.incarnation import write_incarnation
from shardd.log.segment_reader import opened_log
from shardd.log.single_pass import LogPass
from shardd.log.verified_slices import SegmentExtent
from shardd.maintenance import damage_surveys
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.namespaces import namespace
from shardd.protocol.record_layout import LAYOUT_COMPRESSED
from shardd.runtime.throttle import Throttle
from tests.support import wire
from tests.support.wire import Wire
from tests.unit.log_files import segment, tree, write
from tests.unit.services_harness import Workers

SEGMENT: Final = "512 B"
MESSAGES: Final = 20
READS: Final = frozenset(
    {
        *("partition_segments", "partition_damage", "partition_slowest", "partition_is_durable"),
        *("offset_get", "offsets_unused", "group_lag"),
    }
)
# Which partitions a request goes to, by names of topics; each partition with its incarnation, which its owner compares.
ROUTES: Final = frozenset({"route_topic_known", "route_topic_put", "route_put", "routes_end_topic"})
CALLS: Final = frozenset({"call_append", "call_prepare", "call_read", "call_store", "call_wait", "execute_poll"})
OPENS: Final = frozenset({"partition_open"})
# Every other call on a partition, with arguments that would change it; the first ones are namespace and incarnation.
CHANGES: Final[dict[str, Callable[[Any, int, int], object]]] = {
    "fence_drop": lambda e, *place: e.fence_drop(*place, 1),
    "offset_delete": lambda e, *place: e.offset_delete(*place, 1, 7),
    "offset_store": lambda e, *place: e.offset_store(*place, 1, 7, 1),
    "partition_change_layout": lambda e, *place: e.partition_change_layout(*place, 0, LAYOUT_COMPRESSED),
    "partition_clean": lambda e, *place: e.partition_clean(*place, "/nowhere/x"),
    "partition_close": lambda e, *place: e.partition_close(*place),
    "partition_delete_segments": lambda e, *place: e.partition_delete_segments(*place, 3, "/nowhere/x"),
    "partition_drop_oldest": lambda e, *place: e.partition_drop_oldest(*place),
    "partition_flush": lambda e, *place: e.partition_flush(*place),
    "partition_lease": lambda e, *place: e.partition_lease(*place, 0),
    "partition_oldest_segment": lambda e, *place: e.partition_oldest_segment(*place),
    "partition_roll_early": lambda e, *place: e.partition_roll_early(*place),
    "partition_set_level": lambda e, *place: e.partition_set_level(*place, 0),
    "partition_set_limits": lambda e, *place: e.partition_set_limits(*place, PartitionLimits(expiry_us=1)),
    "partition_set_paused": lambda e, *place: e.partition_set_paused(*place, True),
    "partition_set_readonly": lambda e, *place: e.partition_set_readonly(*place, True),
    "partition_set_window": lambda e, *place: e.partition_set_window(*place, IdWindow(5, 1)),
    "partition_surveyed": lambda e, *place: e.partition_surveyed(*place, 0, 1, [WithheldRange((0, 5, False))]),
    "partition_sync": lambda e, *place: e.partition_sync(*place, 99),
    "partition_sync_lost": lambda e, *place: e.partition_sync_lost(*place, 5),
    "topic_set_send_limits": lambda e, *place: e.topic_set_send_limits(
        [SendingPartition(place[0], place[1], 0)], SendLimits(1), [(0, place[1])]
    ),
}
IGNORED: Final = frozenset(  # one that is gone is no error there
    {"fence_drop", "partition_change_layout", "partition_close", "partition_surveyed", "topic_set_send_limits"}
)


def calls_on_partitions() -> dict[str, list[str]]:
    """Calls of the engine that name a partition, with the names of their arguments, from its contract."""
    path = Path(engine_package.__file__).with_name("_native.pyi")
    [engine] = [
        each for each in ast.parse(path.read_text()).body if isinstance(each, ast.ClassDef) and each.name == "Engine"
    ]
    found = {}
    for each in engine.body:
        if isinstance(each, ast.FunctionDef):
            arguments = [argument.arg for argument in [*each.args.posonlyargs, *each.args.args]]
            if {"namespace", "own"} & set(arguments):
                found[each.name] = arguments
    return found


def test_every_call_that_changes_a_partition_names_its_incarnation() -> None:
    found = calls_on_partitions()
    assert set(found) == set(CHANGES) | READS | ROUTES | CALLS | OPENS, "a call of the engine is in no list"
    for name in set(found) - READS - ROUTES - {"topic_set_send_limits"}:  # its list has them
        at = found[name].index("namespace")
        assert found[name][at + 1] == "incarnation", name


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    settings = {"system.partition.ack": "durable"}
    with Workers(tmp_path_factory.mktemp("data"), segment_size=SEGMENT, settings=settings) as running:
        running.connect().create_stream("st")
        yield running


class Purged:
    """A topic that was purged and has messages again."""

    def __init__(self, workers: Workers, name: str) -> None:
        self.workers, self.name, self.root = workers, name, workers.connect()
        self.number = self.root.create_topic("st", name, 1)
        self.send(b"before")
        self.stale = self.incarnation
        self.root.purge_topic("st", name)
        self.send(b"after")
        self.root.store_offset("st", name, 0, MESSAGES - 1, who=7)
        assert self.incarnation != self.stale
        self.place = namespace(0, self.number, 0), self.incarnation

    @property
    def incarnation(self) -> int:
        topic = self.workers.context().metadata.state.streams[0].topics[self.number]
        return topic.partitions[0].incarnation

    def send(self, payload: bytes) -> None:
        send(self.root, self.name, payload)

    def engine(self, change: Callable[[Any, int, int], object], *place: int) -> object:
        async def on_loop() -> object:
            return change(self.workers.context().engine, *place)

        return self.workers.call(on_loop())

    def look(self) -> list[object]:
        """What there is of it."""
        messages = self.root.read_all("st", self.name, 0)
        segments = self.engine(lambda e, ns, _: e.partition_segments(ns), *self.place)
        return [[m.payload for m in messages], segments, self.root.get_offset("st", self.name, 0, who=7)]


def send(root: Wire, topic: str, payload: bytes) -> None:
    for _ in range(MESSAGES):
        root.send("st", topic, wire.to_partition(0), [wire.message(payload + bytes(100))])


@pytest.fixture
def purged(workers: Workers, request: pytest.FixtureRequest) -> Purged:
    return Purged(workers, request.node.name[-40:].replace("[", "-").strip("]"))


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_a_stale_incarnation_changes_nothing(purged: Purged, name: str) -> None:
    before = purged.look()
    assert len(before[0]) == MESSAGES and len(before[1]) > 3  # type: ignore[arg-type]
    if name in IGNORED:
        assert not purged.engine(CHANGES[name], purged.place[0], purged.stale)
    else:
        with pytest.raises(KeyError):
            purged.engine(CHANGES[name], purged.place[0], purged.stale)
    assert purged.look() == before
    purged.root.send("st", purged.name, wire.to_partition(0), [wire.message(b"goes on")])
    assert purged.root.read_all("st", purged.name, 0)[-1].payload == b"goes on"


@pytest.mark.parametrize("name", sorted(set(CHANGES) - IGNORED))
def test_the_same_call_with_the_incarnation_of_now_is_carried_out(purged: Purged, name: str) -> None:
    purged.engine(CHANGES[name], *purged.place)


def test_calls_of_other_shards_and_doors_find_no_stale_incarnation(purged: Purged, workers: Workers) -> None:
    place = Place(0, purged.place[0], purged.stale)
    message = wire.message(b"stale")
    batch = struct.pack("<IIQ", 0, len(message), 0) + message

    async def refused(call: Coroutine[Any, Any, object]) -> None:
        with pytest.raises(PlaceUnknownError):
            await call

    before = purged.look()
    calls = workers.context().services.engine_calls
    workers.call(refused(calls.append(place, 1, batch)))
    workers.call(refused(calls.store_offset(place, Reader(1, 7), 0)))
    assert purged.look() == before


class SlowReader:
    """The engine, which says for a while that somebody still reads the segments that are to be deleted."""

    def __init__(self, engine: Any) -> None:
        self._engine, self.reads, self.asked = engine, True, asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def partition_delete_segments(self, *arguments: Any) -> DeletedSegments:
        if not self.reads:
            return self._engine.partition_delete_segments(*arguments)  # type: ignore[no-any-return]
        self.asked.set()
        return DeletedSegments((0, 0, True))


def test_what_comes_after_a_purge_is_not_deleted_by_a_request_that_came_before(workers: Workers) -> None:
    root = workers.connect()
    number = root.create_topic("st", "waits", 1)
    send(root, "waits", b"before")
    calls = workers.context().services.partition_calls

    async def begin() -> tuple[SlowReader, asyncio.Task[None]]:
        stream = workers.context().metadata.state.streams[0]
        home = calls.home(stream, stream.topics[number], stream.topics[number].partitions[0])
        reader = SlowReader(calls._engine)
        calls._engine = reader  # type: ignore[assignment]
        task = asyncio.create_task(calls.delete_segments(home, 1000))
        await reader.asked.wait()
        return reader, task

    async def go_on(reader: SlowReader, task: asyncio.Task[None]) -> int:
        reader.reads, calls._engine = False, reader._engine
        try:
            await task
        except ShardError as error:
            return error.status
        return Status.OK

    reader, task = workers.call(begin())
    root.purge_topic("st", "waits")
    send(root, "waits", b"after")
    assert workers.call(go_on(reader, task)) == Status.PARTITION_NOT_FOUND
    assert len(root.read_all("st", "waits", 0)) == MESSAGES


def test_a_survey_that_meets_a_purge_writes_no_index_beside_the_new_log(tmp_path: Path) -> None:
    before, after = segment(0, [3, 2]), segment(0, [4], 9000)
    directory = layout.partition_directory(tmp_path, 0, 0, 0)
    write(directory, after, incarnation=8)
    layout.segment_index(directory, 0).write_bytes(b"")
    extent = SegmentExtent(0, len(before.log), 5)
    there = tree(directory)
    assert damage_surveys._survey_open(directory, 7, extent, 5, 0, Throttle()) is None
    assert tree(directory) == there
    write_incarnation(directory, 7)
    layout.segment_log(directory, 0).write_bytes(before.log)
    survey = damage_surveys._survey_open(directory, 7, extent, 5, 0, Throttle())
    assert survey is not None and survey.index_changed
    assert layout.segment_index(directory, 0).read_bytes() == before.index


class Purging(Throttle):
    """Whoever works by it meets a purge in the middle of the work: another log is behind the same names."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    def spend(self, units: int) -> None:
        if self.steps == 0:
            self._directory.rename(self._directory.with_name("purged"))
            write(self._directory, segment(0, [4], 9000), segment(4, [], 9000), incarnation=8)
        super().spend(units)


def seal(directory: Path, throttle: Throttle) -> None:
    sealing.seal_segment(directory, 0, 7, throttle)


def compress(directory: Path, throttle: Throttle) -> None:
    sealing.seal_segment(directory, 0, 7, Throttle())
    compressing.prepare(directory, 0, 7, Codec("zstd", 1), throttle)


def scrub(directory: Path, throttle: Throttle) -> None:
    with opened_log(directory, 0) as log:
        LogPass(log, 0, 0, throttle).whole()


@pytest.mark.parametrize("work", [seal, compress, scrub])
def test_a_helper_that_meets_a_purge_writes_nothing_beside_the_new_log(
    tmp_path: Path, work: Callable[[Path, Throttle], None]
) -> None:
    directory = layout.partition_directory(tmp_path, 0, 0, 0)
    write(directory, segment(0, [30, 30]), segment(60, [], 2000), incarnation=7)
    throttle = Purging(directory)
    work(directory, throttle)
    assert throttle.steps > 0, "it was not met"
    found = tree(directory)
    clean = tmp_path / "clean"
    write(clean, segment(0, [4], 9000), segment(4, [], 9000), incarnation=8)
    assert found == tree(clean)
    work(directory, Throttle())  # afterwards, with the incarnation of before
    assert tree(directory) == found
