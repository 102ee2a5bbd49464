"""What tasks ask the server for segments that they read as files: as little as tells that the directory is that of the
plan, whatever the files say. No Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition

from shardd.client.blocking import BlockingLink
from shardd.client.settings import Settings
from shardd.log import layout
from shardd.log.diagnosis import diagnose_partition, isolate
from shardd.protocol.record_layout import INDEX_ENTRY
from shardd.spark import live
from shardd.spark.loss import DataLossError
from shardd.spark.piece import PieceOrigin
from shardd.spark.reading import SlicePartition
from shardd.spark.source import ShardReader
from tests.spark.direct import Stream, batch, rows
from tests.spark.test_gaps import thin_segment
from tests.spark.test_put_back_directories import COPIED, EARLIEST, OTHERS, READ, Kept, copied, kept
from tests.support import wire

__all__ = ["copied", "kept"]
SMALL_TASKS = {"maxRecordsPerPartition": "100", "minBytesPerPartition": "0"}
NO_RETRY = {"fetchOffset.numRetries": "0"}
LARGE_BYTES = 4 << 20


def path_of(kept: Kept) -> dict[str, str]:
    return {"path": str(kept.topic.server.data_dir)}


def of_files(tasks: list[InputPartition]) -> list[InputPartition]:
    """The tasks that read segments alone."""
    found: list[InputPartition] = []
    for task in tasks:
        assert isinstance(task, SlicePartition)
        if all(piece.place is PieceOrigin.SEGMENT for each in task.slices for piece in each.pieces):
            found.append(task)
    assert len(found) > 3
    return found


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Bytes of each answer that a connection has received since the list was emptied; nothing is connected."""
    sizes: list[int] = []
    real = BlockingLink.receive

    def receive(self: BlockingLink, *words: Any) -> memoryview:
        answer = real(self, *words)
        sizes.append(len(answer))
        return answer

    monkeypatch.setattr(BlockingLink, "receive", receive)
    monkeypatch.setattr(live, "_asked", {})
    yield sizes


@pytest.fixture
def logins(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Addresses of the connections that are made."""
    made: list[str] = []
    real = BlockingLink.__init__

    def connect(self: BlockingLink, settings: Settings, *words: Any, **more: Any) -> None:
        made.append(settings.address)
        real(self, settings, *words, **more)

    monkeypatch.setattr(BlockingLink, "__init__", connect)
    monkeypatch.setattr(live, "_asked", {})
    yield made


def test_cold_stream_without_a_server_reads_its_plan(kept: Kept) -> None:
    stream = Stream(kept.topic.options(readMode="cold", **path_of(kept), **EARLIEST, **NO_RETRY))
    tasks, _ = stream.plan()
    kept.topic.server.stop()
    found = set(rows(stream.reader, tasks))
    kept.topic.server.start()
    assert len(found) > READ and found < kept.topic.rows()


def test_files_of_a_visible_stream_without_a_server_are_read(kept: Kept) -> None:
    """As those of a batch query: a power failure may take the marked record."""
    stream = Stream(kept.topic.options(isolation="visible", **path_of(kept), **EARLIEST, **NO_RETRY, **SMALL_TASKS))
    tasks, _ = stream.plan()
    kept.topic.server.stop()
    found = set(rows(stream.reader, of_files(tasks)))
    kept.topic.server.start()
    assert len(found) > READ and found < kept.topic.rows()


def test_large_last_record_is_received_once_for_all_files(kept: Kept, received: list[int]) -> None:
    large = b"x" * LARGE_BYTES
    kept.topic.connection.send("shop", "rows", wire.to_partition(0), [wire.message(large)])
    kept.topic.payloads[0].append(large)
    kept.settled()
    reader = batch(kept.topic.options(**path_of(kept), **SMALL_TASKS))
    tasks = of_files(reader.partitions())
    received.clear()
    found = set(rows(reader, tasks))
    assert len(found) > READ and found < kept.topic.rows()
    assert LARGE_BYTES < sum(received) < 2 * LARGE_BYTES
    assert len(received) > len(tasks), "each file is proven behind its open"


def test_restart_between_tasks_of_files_is_no_attempt(kept: Kept) -> None:
    for more in ({}, path_of(kept)):
        reader = batch(kept.topic.options(**more, **SMALL_TASKS, **NO_RETRY))
        first, *others = reader.partitions()
        found = rows(reader, [first])
        kept.restart()
        assert {*found, *rows(reader, others)} == kept.topic.rows()


def test_restart_between_batches_of_a_stream_is_no_attempt(kept: Kept) -> None:
    stream = Stream(kept.topic.options(**EARLIEST, **NO_RETRY))
    found = stream.run()
    kept.restart()
    kept.send("more", 10)
    kept.settled()
    assert {*found, *stream.run()} == kept.topic.rows()


def test_server_that_is_gone_ends_tasks_of_files(kept: Kept) -> None:
    """The connection that was kept is no attempt, the fresh one is."""
    reader = batch(kept.topic.options(**path_of(kept), **SMALL_TASKS, **NO_RETRY))
    first, second, *_ = of_files(reader.partitions())
    assert rows(reader, [first])
    kept.topic.server.stop()
    with pytest.raises(ConnectionError, match="answers after 1 attempts"):
        rows(reader, [second])
    kept.topic.server.start()


def test_readers_in_turn_log_in_once_for_each_way_to_the_server(kept: Kept, logins: list[str]) -> None:
    """What a query asks in one answer is no way; how long it waits is one."""
    ways: tuple[dict[str, str], ...] = ({}, {"poll.maxBytes": "2 MiB"}, {"poll.timeoutMs": "29000"})
    readers = [batch(kept.topic.options(**path_of(kept), **SMALL_TASKS, **way)) for way in ways]
    plans = [of_files(reader.partitions()) for reader in readers]
    logins.clear()
    for turn in zip(*plans, strict=True):
        for reader, task in zip(readers, turn, strict=True):
            assert rows(reader, [task])
    assert len(logins) == 2


def test_more_ways_than_are_kept_close_the_oldest(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = dict[Any, Any]()
    monkeypatch.setattr(live, "_asked", asked)
    for number in range(7):
        way = {"poll.timeoutMs": f"{20 + number}000"}
        reader = batch(kept.topic.options(**path_of(kept), **SMALL_TASKS, **way))
        assert rows(reader, of_files(reader.partitions())[:1])
    assert [key[2] for key in asked] == [23.0, 24.0, 25.0, 26.0]


@pytest.fixture
def singles(kept: Kept) -> tuple[ShardReader, list[InputPartition]]:
    """A query whose tasks read one offset each, behind those of the copy."""
    more = {"maxRecordsPerPartition": "1", "minBytesPerPartition": "0"}
    reader = batch(kept.topic.options(**path_of(kept), **more, startingOffsets=f'{{"shop/rows": {{"0": {COPIED}}}}}'))
    return reader, of_files(reader.partitions())


def put_back_with(kept: Kept, change: Callable[[Path, int, int], Any]) -> tuple[int, Any]:
    """The copy is put back, and the segment of its end changed while no server runs: its end, and the result."""
    kept.put_back(OTHERS)
    start, end = next((s.start, s.end) for s in kept.topic.bounds()[0].segments if s.start <= COPIED < s.end)
    kept.topic.server.stop()
    found = change(layout.partition_directory(kept.topic.server.data_dir, 0, 0, 0), start, end)
    kept.topic.server.start()
    return end, found


def test_sparse_file_of_another_life_without_a_row_is_not_passed_over(
    kept: Kept, singles: tuple[ShardReader, list[InputPartition]]
) -> None:
    """A thinned segment has no message for most offsets of the plan."""
    reader, tasks = singles
    end, left = put_back_with(kept, thin_segment)
    empty = [task for task in tasks if slice_of(task).start < end and slice_of(task).start not in left]
    assert len(empty) > 3
    for task in empty[:5]:
        with pytest.raises(DataLossError, match="put back"):
            rows(reader, [task])


def test_isolated_message_of_another_life_is_not_told_as_that_of_the_plan(
    kept: Kept, singles: tuple[ShardReader, list[InputPartition]]
) -> None:
    def damage(directory: Path, start: int, _: int) -> None:
        log, index = layout.segment_log(directory, start), layout.segment_index(directory, start).read_bytes()
        before = (COPIED - start - 1) * INDEX_ENTRY.size
        at, content = INDEX_ENTRY.unpack(index[before : before + INDEX_ENTRY.size])[1], bytearray(log.read_bytes())
        content[at + 24] ^= 1  # its offset and its payload
        content[at + 70] ^= 1
        log.write_bytes(content)
        for view in diagnose_partition(directory):
            if view.damaged:
                isolate(directory, view.damaged)

    reader, tasks = singles
    put_back_with(kept, damage)
    [first] = [task for task in tasks if slice_of(task).start == COPIED]
    with pytest.raises(DataLossError, match="put back"):
        rows(reader, [first])


def slice_of(task: InputPartition) -> Any:
    assert isinstance(task, SlicePartition)
    [found] = task.slices
    return found
