"""Another server that one script set up as it did the first: nothing of the first is taken for its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shardd.spark.loss import DataLossError
from shardd.spark.pipelines import archive
from shardd.spark.pipelines.archive import Target
from tests.spark.direct import Stream, batch, everything, rows
from tests.spark.support import Topic, settle, source_of
from tests.support import wire
from tests.support.server import ONE_SHARD, Server

SMALL = {**ONE_SHARD, "SHARDD_SYSTEM_SEGMENT_SIZE": "64 KiB", "SHARDD_SYSTEM_PARTITION_SYNC_INTERVAL": "100 ms"}
ROWS = 1500


@contextmanager
def server_of(directory: Path, text: str) -> Iterator[Topic]:
    """A topic `shop/rows` with one partition; the payloads begin with `text`, all of them at the same offsets."""
    with Server(directory, SMALL) as server, wire.connect(server.address) as connection:
        connection.create_topic(connection.create_stream("shop"), "rows", 1)
        topic = Topic(server, "shop", connection)
        payloads = [f"{text} {number}:".encode() + b"x" * 60 for number in range(ROWS)]
        for first in range(0, ROWS, 500):
            some = [wire.message(payload) for payload in payloads[first : first + 500]]
            connection.send("shop", "rows", wire.to_partition(0), some)
        topic.payloads[0] = payloads
        settle(topic)
        yield topic


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[Topic, Topic]]:
    with server_of(tmp_path / "first", "first") as first, server_of(tmp_path / "second", "second") as second:
        yield first, second


def test_a_checkpoint_of_another_server_is_data_loss(servers: tuple[Topic, Topic]) -> None:
    first, second = servers
    old = Stream(first.options(startingOffsets="earliest"))
    assert set(old.run()) == first.rows()
    new = Stream(second.options(startingOffsets="earliest"))
    new.at = old.at
    with pytest.raises(DataLossError):
        new.run()
    lenient = Stream(second.options(startingOffsets="earliest", failOnDataLoss="false"))
    lenient.at = old.at
    assert set(lenient.run()) == second.rows()


def test_a_plan_of_another_server_reads_no_row_of_this_one(servers: tuple[Topic, Topic]) -> None:
    first, second = servers
    tasks = batch(first.options()).partitions()
    with pytest.raises(DataLossError):
        rows(batch(second.options()), tasks)


def test_files_of_another_server_are_not_read(servers: tuple[Topic, Topic]) -> None:
    first, second = servers
    assert set(everything(second.options(path=str(first.server.data_dir)))) == second.rows()


def test_an_archive_of_another_server_gives_no_row_and_keeps_no_row_back(
    servers: tuple[Topic, Topic], tmp_path: Path
) -> None:
    first, second = servers
    target = Target.parse(f"parquet:{tmp_path / 'archive'}", {})
    for topic in (first, second):
        jobs, _ = archive.plan(source_of(topic), target)
        for job in jobs:
            job.run()
        if topic is first:
            found = everything(second.options(archivePath=str(tmp_path / "archive")))
            assert set(found) == second.rows()
    archived = {"readMode": "archive", "archivePath": str(tmp_path / "archive"), "subscribe": "shop/rows"}
    assert {row[2] for row in everything(archived)} in (set(first.payloads[0]), set(second.payloads[0]))
