"""compact: the latest message of each key, into a new topic or a table. Never in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from shardd.spark.pipelines import topics
from shardd.spark.pipelines.aggregate import field
from shardd.spark.pipelines.common import Meter, PipelineError, Source, summary
from shardd.spark.pipelines.following import until_sigterm
from shardd.spark.pipelines.topics import KEPT, SHOWN, TopicTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PLACE: Final = ("timestamp", "partition", "offset")


class Compaction(msgspec.Struct, frozen=True):
    """`key`: header:NAME or json:$.PATH. `table`: a Delta table that is replaced, with options of its sink, else
    `target`. A latest message without a payload deletes its key, unless `keep_deleted`. Messages without the key are
    left out and counted."""

    source: Source
    key: str
    table: str | None = None
    target: TopicTarget | None = None
    keep_deleted: bool = False
    table_options: Mapping[str, str] = {}

    def columns(self) -> tuple[str, ...]:
        kept = SHOWN if self.target is None else KEPT
        return (*kept, *_PLACE, *(("headers",) if self.key.startswith("header:") else ()))


def check(work: Compaction, *, follow: bool = False) -> None:
    """`PipelineError`."""
    if not work.key.startswith(("header:", "json:$")):
        raise PipelineError(f"--key is '{work.key}', but must be header:NAME or json:$.path")
    if work.target is None:
        return
    if follow:
        raise PipelineError("compact --follow needs --to delta:DIR, which it replaces; a topic is written once")
    topics.check_apart(work.source, work.target)
    found = work.target.messages()
    if found:
        raise PipelineError(f"'{work.target.topic}' has {found} messages; compact writes to a new topic")


def dry_run(work: Compaction, *, follow: bool = False) -> dict[str, Any]:
    check(work, follow=follow)
    count = sum(each.end - each.first for topic in work.source.bounds().values() for each in topic.partitions)
    return {"pipeline": "compact", "topic": work.source.topic, "messages": count, "to": _to(work)}


def latest(rows: DataFrame, key: str, *, keep_deleted: bool) -> DataFrame:
    """One row for each key: the one that was stored last; equal times are decided by partition and offset."""
    from pyspark.sql import functions as f

    keyed = rows.withColumn("key", field(key)).drop("headers").where("key IS NOT NULL")
    others = [name for name in keyed.columns if name != "key"]
    newest = f.max_by(f.struct(*others), f.struct(*_PLACE)).alias("row")
    found = keyed.groupBy("key").agg(newest).select("key", "row.*")
    return found if keep_deleted else found.where("length(value) > 0")


def run(spark: SparkSession, work: Compaction) -> dict[str, Any]:
    """All that is there now."""
    planned = dry_run(work)
    options = {**work.source.options, "subscribe": work.source.topic, "columns": ",".join(work.columns())}
    with Meter("compact", None) as meter:
        rows = spark.read.format("shardd").options(**options).load()
        found = latest(rows, work.key, keep_deleted=work.keep_deleted)
        if work.target is None:
            sink = {**work.table_options, "path": work.table or ""}
            found.write.format("shardd_delta").options(**sink).mode("overwrite").save()
            count = _rows_of_table(work.table or "")
        else:
            count = _send(found, work, work.target)
    return summary("compact", meter, count, 0, read=planned["messages"], to=_to(work))


def ends(work: Compaction) -> list[tuple[int, int]]:
    """What there is to read: incarnation and end of each partition, when all of it is on the device. The server by
    itself may bring it there much later. `NotDurableError`."""
    bounds = work.source.durable_bounds()
    return [(each.incarnation, each.durable_end) for topic in bounds.values() for each in topic.partitions]


def follow(spark: SparkSession, work: Compaction, interval_s: float) -> dict[str, Any]:
    """The table is made anew when there are new messages. The last summary."""
    before, made, runs = None, {}, 0
    with until_sigterm() as ended:
        while True:
            now = ends(work)
            if now != before:
                made, before, runs = run(spark, work), now, runs + 1
            if ended.wait(interval_s):
                return {**made, "runs": runs}


def _send(found: DataFrame, work: Compaction, target: TopicTarget) -> int:
    """By the hash of the key. Sorted, so that a repeated task sends the same."""
    partitions = target.partitions() or topics.partitions_of(work.source)
    ordered = found.repartition(partitions, "key").sortWithinPartitions(*_PLACE)
    sent = ordered.selectExpr("key", *KEPT, "timestamp", "partition AS stored_in", "offset")
    sink = target.sink(createTopic=str(partitions), partitioning="key", order="timestamp,stored_in,offset")
    sent.write.format("shardd").options(**sink).mode("append").save()
    return target.messages()


def _rows_of_table(path: str) -> int:
    from deltalake import DeltaTable

    return int(DeltaTable(path).count())


def _to(work: Compaction) -> str:
    return f"delta:{work.table}" if work.target is None else work.target.topic
