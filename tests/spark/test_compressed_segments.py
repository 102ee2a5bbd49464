"""archive and audit of a topic whose sealed segments are compressed: from the server where the files say nothing to
Spark, with the same rows and the same faults."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.record_layout import LAYOUT_COMPRESSED
from shardd.protocol.topic_settings import SetTopicSettings
from shardd.spark.pipelines import archive
from shardd.spark.positions import OptionError
from tests.spark import direct
from tests.spark.support import DEADLINE_S, Topic, flip, source_of
from tests.spark.test_pipelines import audited, holds_exactly, target_of
from tests.support.wide import wide


def compress(topic: Topic, codec: str) -> list[Path]:
    """The files of blocks, once every sealed segment has one."""
    request = SetTopicSettings(topic.stream, topic.topic, (("compression", codec),))
    topic.connection.request(ExtensionCode.SET_TOPIC_SETTINGS, request.encode())
    deadline = time.monotonic() + DEADLINE_S
    while True:
        sealed = [each for bounds in topic.bounds() for each in bounds.segments if each.sealed]
        if sealed and all(each.layout & LAYOUT_COMPRESSED for each in sealed):
            break
        assert time.monotonic() < deadline, "the segments are not compressed"
        time.sleep(0.1)
    streams = topic.server.data_dir / "streams" / str(topic.connection.streams()[topic.stream])
    return sorted(streams.rglob("*.blocks"))


@pytest.mark.parametrize("kind", ["parquet", wide("delta")])
def test_archive_of_compressed_segments_holds_every_row_once(
    spark: SparkSession, topic: Topic, tmp_path: Path, kind: str
) -> None:
    assert compress(topic, "zstd:3")
    source, target = source_of(topic, path=str(topic.server.data_dir)), target_of(kind, tmp_path)
    assert archive.archive(spark, source, target)["rows"] == 6000
    holds_exactly(target, topic)
    assert archive.archive(spark, source, target)["rows"] == 0


def test_a_cold_query_of_compressed_segments_says_so_and_auto_reads_every_row(topic: Topic, tmp_path: Path) -> None:
    """A cold stream says so, too. An archive of the segments is read in their place."""
    compress(topic, "zstd:3")
    path = str(topic.server.data_dir)
    cold = topic.options(path=path, readMode="cold", startingOffsets="earliest")
    says = r"^offsets 0 to \d+ of partition 0 .* are in compressed segments, .*; readMode 'auto' reads them"
    with pytest.raises(OptionError, match=says):
        direct.everything(cold)
    with pytest.raises(OptionError, match=says):
        direct.Stream(cold).run()
    assert set(direct.everything(topic.options(path=path))) == topic.rows()
    for job in archive.plan(source_of(topic), target_of("parquet", tmp_path))[0]:
        job.run()
    found = direct.everything(topic.options(path=path, readMode="cold", archivePath=str(tmp_path / "parquet")))
    ends = {each.id: max(s.end for s in each.segments if s.sealed) for each in topic.bounds()}
    assert sorted(found) == sorted(each for each in topic.rows() if each[1] < ends[each[0]])


def test_audit_of_compressed_segments_is_clean(spark: SparkSession, topic: Topic) -> None:
    compress(topic, "lz4")
    assert audited(spark, topic) == (0, "[]")


def test_audit_finds_a_damaged_block(spark: SparkSession, topic: Topic) -> None:
    """One that the server has not unpacked yet: it keeps some of them in memory."""
    files = compress(topic, "lz4")
    flip(files[0], -40)
    faults, said = audited(spark, topic)
    assert faults and json.loads(said)
