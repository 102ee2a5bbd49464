"""What tasks ask the server for segments that they read as files: as little as tells that the directory is that of the
plan, whatever the files say. No Spark."""

from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from shardd.spark.piece import PieceOrigin
from shardd.spark.reading import SlicePartition
from tests.spark.direct import Stream, rows
from tests.spark.test_put_back_directories import EARLIEST, READ, Kept, copied, kept

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
