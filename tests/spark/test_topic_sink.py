"""format("shardd") as a sink: batches and streams into topics, on a real session and a real server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from shardd.spark import session
from shardd.spark.sinks.topic.options import JOURNAL_STREAM
from tests.spark.support import Topic
from tests.support import wire

COPY_COLUMNS = ("value", "partition", "headersRaw", "originTimestamp", "id")


def written(topic: Topic, name: str = "copy") -> dict[int, list[wire.Message]]:
    """All messages of a topic of the same stream, by a reader that knows nothing of Spark; offsets are dense."""
    found = {}
    with wire.connect(topic.server.address) as connection:
        for partition in range(len(connection.partitions(topic.stream, name))):
            messages = connection.read_all(topic.stream, name, partition)
            assert [each.offset for each in messages] == list(range(len(messages)))
            found[partition] = messages
    return found


def sink(topic: Topic, name: str = "copy", **more: str) -> dict[str, str]:
    given = {name: value for name, value in topic.options().items() if name != "subscribe"}
    return {**given, "topic": f"{topic.stream}/{name}", "createTopic": "2", **more}


def save(rows: DataFrame, options: dict[str, str]) -> None:
    rows.write.format("shardd").options(**options).mode("append").save()


def source(spark: SparkSession, topic: Topic, **more: str) -> DataFrame:
    given = topic.options(startingOffsets="earliest", columns=",".join((*COPY_COLUMNS, "offset")), **more)
    return spark.readStream.format("shardd").options(**given).load()


def run_stream(rows: DataFrame, options: dict[str, str], checkpoint: Path) -> int:
    """To the end of what there is; rows that were read."""
    query = (
        rows.writeStream.format("shardd")
        .options(**options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    failure = query.exception()
    if failure is not None:
        raise failure
    return sum(each["numInputRows"] for each in query.recentProgress)


def payloads(found: dict[int, list[wire.Message]]) -> dict[int, list[bytes]]:
    return {partition: [each.payload for each in messages] for partition, messages in found.items()}


def said(error: BaseException, text: str) -> None:
    assert text in str(error), str(error)[-2000:]


# ---- batches ----


def test_a_topic_is_copied_row_by_row(spark: SparkSession, topic: Topic) -> None:
    """Payloads, their order, user headers, times of the producers and ids."""
    rows = session.read(spark, topic.name, columns=",".join(COPY_COLUMNS), **topic.options())
    save(rows, sink(topic, order="source", semantics="stable-ids", appId=topic.stream))
    before, after = written(topic, "rows"), written(topic)
    assert payloads(after) == topic.payloads
    for partition, messages in before.items():
        for a, b in zip(messages, after[partition], strict=True):
            assert (a.id, a.headers, a.origin_timestamp_us) == (b.id, b.headers, b.origin_timestamp_us)


def test_keys_and_rounds(spark: SparkSession, topic: Topic) -> None:
    from shardd.client.partitioning import by_key

    rows = spark.range(5000).select(
        f.col("id").cast("string").alias("value"), (f.col("id") % 7).cast("string").alias("key")
    )
    save(rows, sink(topic, "keyed", createTopic="3", keyHeader="shop"))
    for partition, messages in written(topic, "keyed").items():
        for each in messages:
            key = str(int(each.payload) % 7).encode()
            assert by_key(key, b"", 3) == partition and each.headers.endswith(key)
    save(rows.select("value"), sink(topic, "round", createTopic="3", batchBytes="4 KiB"))
    found = written(topic, "round")
    assert sorted(int(each) for messages in payloads(found).values() for each in messages) == list(range(5000))
    assert all(len(messages) > 1000 for messages in found.values())
    place = {**topic.options(isolation="visible"), "subscribe": f"{topic.stream}/keyed"}
    again = session.read(spark, f"{topic.stream}/keyed", columns="key,value", keyHeader="shop", **place)
    assert again.where("cast(cast(value AS string) AS int) % 7 = cast(cast(key AS string) AS int)").count() == 5000


def test_a_batch_with_a_name_is_stored_once(spark: SparkSession, topic: Topic) -> None:
    rows = spark.range(1000).selectExpr("cast(id AS string) AS value")
    options = sink(topic, appId=f"job {topic.stream}", appVersion="4")
    save(rows, options)
    save(rows, options)
    assert sum(map(len, written(topic).values())) == 1000
    with pytest.raises(PySparkException) as caught:
        save(rows.limit(999), options)
    said(caught.value, "is stored in")
    save(rows, {**options, "appVersion": "5"})
    assert sum(map(len, written(topic).values())) == 2000


def test_what_cannot_be_written_is_one_sentence(spark: SparkSession, topic: Topic) -> None:
    rows = spark.range(10).selectExpr("cast(id AS string) AS value")
    for frame, options, text in (
        (rows.selectExpr("value AS payload"), sink(topic), "has no column 'payload'"),
        (rows, {**sink(topic), "topic": f"{topic.stream}/gone", "createTopic": ""}, "there is no topic"),
        (rows, {**sink(topic), "password": "wrong"}, "INVALID_CREDENTIALS"),
        (rows, sink(topic, semantics="idempotent", appId="a"), "in the same order"),
        (rows.selectExpr("value", "9 AS partition"), sink(topic), "has 9, but"),
    ):
        with pytest.raises(PySparkException) as caught:
            save(frame, options)
        said(caught.value, text)
    with pytest.raises(PySparkException) as caught:
        rows.write.format("shardd").options(**sink(topic)).mode("overwrite").save()
    said(caught.value, "only appends")


# ---- streams ----


def test_a_stream_goes_on_where_it_was(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    from tests.spark.support import settle

    rows = source(spark, topic, maxOffsetsPerTrigger="2500").select(*COPY_COLUMNS)
    options = sink(topic, semantics="stable-ids", order="source")
    assert run_stream(rows, options, tmp_path) == 6000
    topic.send(0, 500)
    settle(topic)
    assert run_stream(rows, options, tmp_path) == 500
    assert payloads(written(topic)) == topic.payloads


def last_batch(checkpoint: Path) -> int:
    return max(int(each.name) for each in (checkpoint / "commits").iterdir() if each.name.isdigit())


def journal(checkpoint: Path, topic: Topic) -> list[dict[str, Any]]:
    query = json.loads((checkpoint / "metadata").read_text().splitlines()[0])["id"]
    with wire.connect(topic.server.address) as connection:
        return [json.loads(each.payload) for each in connection.read_all(JOURNAL_STREAM, query, 0)]


@pytest.mark.parametrize("semantics", ["at-least-once", "stable-ids", "idempotent"])
def test_a_lost_entry_of_the_checkpoint_stores_nothing_twice(
    spark: SparkSession, topic: Topic, tmp_path: Path, semantics: str
) -> None:
    """The last commit of the checkpoint is deleted: Spark runs the batch again, the journal knows it."""
    rows = source(spark, topic, maxOffsetsPerTrigger="2500").select(*COPY_COLUMNS)
    options = sink(topic, semantics=semantics, order="source")
    run_stream(rows, options, tmp_path)
    last = last_batch(tmp_path)
    for name in (str(last), f".{last}.crc"):
        (tmp_path / "commits" / name).unlink(missing_ok=True)
    assert run_stream(rows, options, tmp_path) > 0, "the batch is run again"
    assert payloads(written(topic)) == topic.payloads
    assert last_batch(tmp_path) == last
    records = journal(tmp_path, topic)
    assert [each["done"] for each in records][-1] == last and len({each["run"] for each in records}) == 2


def test_a_python_worker_that_is_killed_repeats_nothing(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    """In the first batch of a run and in a later one; what its task had sent is not stored again."""
    spark.conf.set(ARROW_ROWS, "100")
    try:
        rows = source(spark, topic, maxOffsetsPerTrigger="3000").select(*COPY_COLUMNS)
        options = sink(topic, semantics="idempotent", order="source", batchBytes="2 KiB")
        assert run_stream(rows.mapInArrow(dies_once, rows.schema), options, tmp_path) == 6000
    finally:
        spark.conf.unset(ARROW_ROWS)
    assert payloads(written(topic)) == topic.payloads


ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


def dies_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first attempt of each task, in the middle."""
    context = TaskContext.get()
    assert context is not None
    for number, batch in enumerate(batches):
        if number == 8 and context.attemptNumber() == 0:
            time.sleep(0.5)  # what is behind has been sent
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch


def test_a_checkpoint_that_lost_its_offsets_too_is_told(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    """The batch would be planned anew with other rows: these are not left out silently."""
    from tests.spark.support import settle

    rows = source(spark, topic).select(*COPY_COLUMNS)
    options = sink(topic)
    run_stream(rows, options, tmp_path)
    for kind in ("commits", "offsets"):
        shutil.rmtree(tmp_path / kind)
    topic.send(0, 500)
    settle(topic)
    with pytest.raises(PySparkException) as caught:
        run_stream(rows, options, tmp_path)
    said(caught.value, "is stored in")
    assert sum(map(len, written(topic).values())) == 6000
