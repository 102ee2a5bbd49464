"""archive --spool on a real session and a real server: expired segment -> verified archive -> ACK -> deletion. Results
are read back without Spark."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from shardd.cli.main import app
from shardd.log import spool
from shardd.spark.archive_listing import History
from shardd.spark.archive_rows import COLUMNS, Rows
from shardd.spark.archive_rows import rows_of as rows_of_table
from shardd.spark.options import ReadMode
from shardd.spark.piece import Piece, PieceOrigin
from shardd.spark.pipelines import archive, archive_overlap, archive_spool
from shardd.spark.pipelines.archive import Target
from shardd.spark.pipelines.archive_spool import uncovered
from shardd.spark.pipelines.common import PipelineError, Source
from shardd.spark.reading import SlicePartition, read
from tests.server.test_archive import covered, entries, root, settings
from tests.server.test_retention import ENV, SECOND_US, create_topic, send, until, update_topic
from tests.spark.test_pipelines import KINDS, stored, target_of
from tests.support import wire
from tests.support.server import Server
from tests.support.serving import Serving
from tests.support.wide import wide, wide_but
from tests.support.wire import Wire

__all__ = ["root"]  # a fixture

MESSAGES = 40
ROWS = {(partition, offset) for partition in range(2) for offset in range(MESSAGES)}
SERVER: Final = Serving(env=ENV)


def fill(server: Server, root: Wire, *, compression: str = "none") -> None:
    create_topic(root, partitions=2, expiry_us=2 * SECOND_US)
    settings(root, archive="required", compression=compression)
    for partition in range(2):
        send(root, MESSAGES, partition)
    until(lambda: len(covered(server.data_dir)) == len(ROWS), server)


def rows_of(target: Target) -> set[tuple[int, int]]:
    table = stored(target)
    counted = Counter(zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True))
    assert set(counted.values()) <= {1}, "doubled rows"
    assert set(table.column("value").to_pylist()) <= {b"x" * 936}
    return set(counted)


@pytest.mark.parametrize("kind", wide_but(["parquet", "delta"], KINDS))
def test_an_expired_segment_is_archived_acknowledged_and_deleted(
    spark: SparkSession, own_server: Server, root: Wire, tmp_path: Path, kind: str
) -> None:
    fill(own_server, root)
    target, directory = target_of(kind, tmp_path), spool.spool_directory(own_server.data_dir)
    made = archive_spool.archive_spool(spark, directory, target)
    assert made["rows"] == len(ROWS)
    assert rows_of(target) == ROWS
    until(lambda: entries(own_server.data_dir) == [], own_server)
    assert archive_spool.archive_spool(spark, directory, target)["rows"] == 0
    send(root, 5)
    until(lambda: len(covered(own_server.data_dir)) == 5, own_server)
    own_server.stop()  # so that the ACKs stay
    assert archive_spool.archive_spool(spark, directory, target)["rows"] == 5
    for path, manifest in entries(own_server.data_dir):
        found = spool.read_acknowledgement(path, manifest)
        assert found is not None and sum(each.rows for each in found.files) == manifest.records
    assert rows_of(target) == ROWS | {(0, MESSAGES + each) for each in range(5)}


@pytest.mark.parametrize("kind", [wide("parquet"), "delta"])
def test_what_was_archived_without_its_ack_is_not_archived_twice(
    spark: SparkSession, own_server: Server, root: Wire, tmp_path: Path, kind: str
) -> None:
    """A run that is killed before its ACKs, and one that is killed between them."""
    fill(own_server, root)
    own_server.stop()
    target, directory = target_of(kind, tmp_path), spool.spool_directory(own_server.data_dir)
    archive_spool.archive_spool(spark, directory, target)
    found = [path for path, _ in entries(own_server.data_dir)]
    for path in found[1:]:
        (path / spool.ACK).unlink()
    again = archive_spool.archive_spool(spark, directory, target)
    assert (again["rows"], again["acknowledged"]) == (0, len(found) - 1)
    assert all((path / spool.ACK).exists() for path in found)
    assert rows_of(target) == ROWS


@pytest.mark.parametrize("kind", wide_but(["delta"], KINDS))
def test_other_messages_under_the_numbers_of_archived_ones_are_not_acknowledged(
    spark: SparkSession, own_server: Server, root: Wire, tmp_path: Path, kind: str
) -> None:
    """A data directory that was put back as files; to acknowledge would delete the only copy. The other partition is
    archived."""
    create_topic(root, partitions=2, expiry_us=2 * SECOND_US)
    settings(root, archive="required")
    own_server.stop()
    shutil.copytree(own_server.data_dir, tmp_path / "copy", symlinks=True)
    target, directory = target_of(kind, tmp_path), spool.spool_directory(own_server.data_dir)
    spooled(own_server, {0: MESSAGES})
    archive_spool.archive_spool(spark, directory, target)
    if kind == "delta":
        DeltaTable(target.place).optimize.compact()  # its files have names of another program
    shutil.rmtree(own_server.data_dir)
    shutil.copytree(tmp_path / "copy", own_server.data_dir, symlinks=True)
    spooled(own_server, {0: MESSAGES + 10, 1: MESSAGES})
    with pytest.raises(PipelineError, match=r"offset 0, but not the message of .* was put back"):
        archive_spool.archive_spool(spark, directory, target)
    acknowledged = {spool.read_entry(each.parent).partition for each in directory.rglob(spool.ACK)}
    assert acknowledged == {1}
    assert rows_of(target) == {(partition, offset) for partition in range(2) for offset in range(MESSAGES)}


def spooled(server: Server, counts: dict[int, int]) -> None:
    """The server has run, and so many messages of each partition are in its spool."""
    server.start()
    with wire.connect(server.address) as connection:
        for partition, count in counts.items():
            send(connection, count, partition)
    until(lambda: len(covered(server.data_dir)) == sum(counts.values()), server)
    server.stop()


def test_two_histories_in_one_spool_are_not_acknowledged(own_server: Server, root: Wire, tmp_path: Path) -> None:
    """The directory was put back, and the spool beside it stayed."""
    fill(own_server, root)
    own_server.stop()
    directory = spool.spool_directory(own_server.data_dir)
    found = archive_spool.pending(directory)
    twice = sorted([*found, found[0]], key=lambda each: (each.history, each.manifest.start))
    planned = archive_spool.plan(twice, target_of("parquet", tmp_path))
    assert len(planned.refused) == 1 and "have the same offsets" in planned.refused[0]
    assert {each.history for each in planned.entries} == {each.history for each in found} - {found[0].history}


def test_rows_that_a_segment_does_not_have_any_more_are_of_no_account(
    own_server: Server, root: Wire, tmp_path: Path
) -> None:
    """An operator isolated them behind the archive."""
    fill(own_server, root)
    own_server.stop()
    first = archive_spool.pending(spool.spool_directory(own_server.data_dir))[0]
    segment = archive_spool._slice(first, (first.manifest.start, first.manifest.end))
    batches = [*read(replace(archive_spool.task_settings(), columns=COLUMNS), SlicePartition(segment))]
    rows = rows_of_table(pa.Table.from_batches(batches))
    more = Rows(np.append(rows.offsets, 10**6), np.append(rows.checksums, 1))
    assert archive_overlap.first_absent(archive_spool.task_settings(), segment, [more]) is None
    fewer = Rows(rows.offsets[:-1], rows.checksums[:-1])
    assert archive_overlap.first_absent(archive_spool.task_settings(), segment, [fewer]) == rows.offsets[-1]
    other = Rows(rows.offsets, np.where(rows.offsets == 3, rows.checksums + 1, rows.checksums))
    assert archive_overlap.first_absent(archive_spool.task_settings(), segment, [other]) == 3


@pytest.mark.parametrize("compression", ["lz4", wide("zstd:3")])
def test_compressed_segments_are_archived_from_their_blocks(
    spark: SparkSession, own_server: Server, root: Wire, tmp_path: Path, compression: str
) -> None:
    create_topic(root, partitions=2)
    settings(root, compression=compression)
    for partition in range(2):
        send(root, MESSAGES, partition)
    directory = own_server.data_dir / "streams"
    until(lambda: len(list(directory.rglob("*.blocks"))) >= 4, own_server)
    until(lambda: len(list(directory.rglob("*.log"))) == 2, own_server)  # the active ones
    settings(root, archive="required", partition_messages_max="1")
    until(lambda: any(each.layout == "compressed" for _, each in entries(own_server.data_dir)), own_server)
    own_server.stop()
    target, kept = target_of("parquet", tmp_path), set(covered_rows(own_server))
    assert kept and any(path.suffix == ".blocks" for path in spool.spool_directory(own_server.data_dir).rglob("*"))
    archive_spool.archive_spool(spark, spool.spool_directory(own_server.data_dir), target)
    assert rows_of(target) == kept


def covered_rows(server: Server) -> Iterator[tuple[int, int]]:
    for _, each in entries(server.data_dir):
        yield from ((each.partition, offset) for offset in range(each.start, each.end))


def test_a_damaged_segment_is_not_acknowledged(
    spark: SparkSession, own_server: Server, root: Wire, tmp_path: Path
) -> None:
    fill(own_server, root)
    own_server.stop()
    path, manifest = entries(own_server.data_dir)[0]
    damaged = bytearray((path / manifest.file).read_bytes())
    damaged[100] ^= 1
    (path / manifest.file).write_bytes(damaged)
    target, directory = target_of("parquet", tmp_path), spool.spool_directory(own_server.data_dir)
    with pytest.raises(Exception, match="fails its checksum"):
        archive_spool.archive_spool(spark, directory, target)
    assert not list(directory.rglob(spool.ACK))


def test_a_table_is_kept_by_runs_over_the_topic_or_over_the_spool(
    spark: SparkSession, own_server: Server, root: Wire, tmp_path: Path
) -> None:
    """What one of them has recorded says nothing about the messages of the other one."""
    create_topic(root, expiry_us=3600 * SECOND_US)
    settings(root, archive="required")
    send(root, MESSAGES)
    source, directory = Source("s/t", {"servers": own_server.address, "username": "iggy", "password": "iggy"}), tmp_path
    eager = target_of("delta", directory)
    assert archive.archive(spark, source, eager)["rows"] > 0
    update_topic(root, expiry_us=SECOND_US)  # not before: the run may take longer than that
    until(lambda: len(covered(own_server.data_dir)) == MESSAGES, own_server)
    with pytest.raises(PipelineError, match="is kept by runs over 's/t'"):
        archive_spool.archive_spool(spark, spool.spool_directory(own_server.data_dir), eager)
    own = target_of("delta", directory / "own")
    archive_spool.archive_spool(spark, spool.spool_directory(own_server.data_dir), own)
    with pytest.raises(PipelineError, match="is kept by runs with --spool"):
        archive.archive(spark, source, own)


def test_the_command_archives_a_spool(own_server: Server, root: Wire, tmp_path: Path, spark: SparkSession) -> None:
    fill(own_server, root)
    directory = spool.spool_directory(own_server.data_dir)
    arguments = ["pipeline", "archive", "--spool", str(directory), "--to", f"parquet:{tmp_path / 'parquet'}"]
    planned = json.loads(CliRunner().invoke(app, [*arguments, "--dry-run"]).stdout)
    assert planned["rows"] == len(ROWS) and len(planned["segments"]) == len(entries(own_server.data_dir))
    both = CliRunner().invoke(app, [*arguments, "s/t"])
    assert both.exit_code == 1 and "either a topic or --spool" in both.output
    nowhere = CliRunner().invoke(app, [*arguments[:3], str(tmp_path / "no"), *arguments[4:]])
    assert nowhere.exit_code == 1 and "there is no spool" in nowhere.output


def test_an_entry_behind_one_that_a_listing_missed_waits(
    own_server: Server, root: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(own_server, root)
    own_server.stop()
    directory = spool.spool_directory(own_server.data_dir)
    first, *rest = [path for path in spool.entries(directory) if spool.read_entry(path).partition == 0]
    listings = iter([rest, [first, *rest]])
    monkeypatch.setattr(spool, "entries", lambda _: iter(next(listings)))
    assert [each.path for each in archive_spool.pending(directory)] == [first, *rest]
    monkeypatch.undo()
    shutil.rmtree(rest[-1])
    listings = iter([[first], [first, *rest[:-1]]])
    monkeypatch.setattr(spool, "entries", lambda _: iter(next(listings)))
    assert [each.path for each in archive_spool.pending(directory)] == [first]


def test_what_no_file_covers() -> None:
    files = [Piece(PieceOrigin.ARCHIVE, start, end) for start, end in ((0, 10), (5, 8), (20, 30))]
    for start, end, wanted in (
        (0, 10, []),
        (0, 35, [(10, 20), (30, 35)]),
        (12, 15, [(12, 15)]),
        (9, 21, [(10, 20)]),
        (40, 50, [(40, 50)]),
    ):
        assert uncovered(History(files), start, end) == wanted


def test_the_spool_is_read_without_a_server() -> None:
    settings_of_tasks = archive_spool.task_settings()
    assert settings_of_tasks.read_mode is ReadMode.COLD and settings_of_tasks.fail_on_data_loss
    assert settings_of_tasks.polling.servers.addresses == ()
