"""dedup: each message once, into a topic or a table, as a streaming query that remembers what it has seen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from shardd.spark.pipelines import topics
from shardd.spark.pipelines.aggregate import field, interval
from shardd.spark.pipelines.common import PipelineError, Source
from shardd.spark.pipelines.topics import KEPT, SHOWN, TopicTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Deduplication(msgspec.Struct, frozen=True):
    """`by`: id, header:NAME or json:$.PATH. `within`: a repetition comes no later (as 1h); None: all are remembered for
    ever. `table`: a Delta table, with options of its sink, else `target`. `late_allowed`: messages that come later than
    the watermark allows are left out and counted, instead of stopping the run."""

    source: Source
    by: str
    within: str | None
    state: Path
    table: str | None = None
    target: TopicTarget | None = None
    late_allowed: bool = False
    table_options: Mapping[str, str] = {}

    @property
    def checkpoint(self) -> Path:
        more = (self.by, str(self.within), self.table or "")
        return topics.state_of(self.state, "dedup", self.source, self.target, *more)

    def columns(self) -> tuple[str, ...]:
        kept = SHOWN if self.target is None else KEPT
        return (*kept, "partition", "timestamp", *(("headers",) if self.by.startswith("header:") else ()))


def dry_run(work: Deduplication) -> dict[str, Any]:
    """`PipelineError`."""
    if work.by != "id" and not work.by.startswith(("header:", "json:$")):
        raise PipelineError(f"--by is '{work.by}', but must be id, header:NAME or json:$.path")
    if work.within is not None:
        interval(work.within)
    if work.target is not None:
        topics.check_apart(work.source, work.target)
    return {
        "pipeline": "dedup",
        "topic": work.source.topic,
        "to": f"delta:{work.table}" if work.target is None else work.target.topic,
        "messages": topics.waiting(work.source, work.checkpoint),
        "checkpoint": str(work.checkpoint),
    }


def distinct(rows: DataFrame, by: str, within: str | None) -> DataFrame:
    """Messages without the field are all kept."""
    from pyspark.sql import functions as f

    named = f.col("id") if by == "id" else field(by)
    alone = f.concat_ws(" ", f.lit("no field"), f.hex("id"))
    rows = rows.withColumn("seen", f.coalesce(f.hex(named.cast("binary")), alone)).drop("headers")
    if within is None:
        return rows.dropDuplicates(["seen"]).drop("seen", "timestamp")
    marked = rows.withWatermark("timestamp", interval(within))
    return marked.dropDuplicatesWithinWatermark(["seen"]).drop("seen", "timestamp")


def run(spark: SparkSession, work: Deduplication, *, follow: bool) -> dict[str, Any]:
    planned = dry_run(work)
    options = topics.stream_options(work.source, work.columns())
    if work.within is not None:
        options["watermarkDelay"] = work.within
    rows = distinct(spark.readStream.format("shardd").options(**options).load(), work.by, work.within)
    kind, sink = "shardd_delta", {**work.table_options, "path": work.table or ""}
    if work.target is not None:
        partitions = work.target.partitions() or topics.partitions_of(work.source)
        kind, sink = "shardd", work.target.sink(createTopic=str(partitions), partitioning="column")
    return topics.run_query(
        "dedup",
        rows,
        sink,
        work.checkpoint,
        total=planned["messages"],
        follow=follow,
        kind=kind,
        late_allowed=None if work.within is None else work.late_allowed,
        topic=work.source.topic,
        to=planned["to"],
    )
