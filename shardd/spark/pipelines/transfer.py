"""copy and replay: messages of a topic or of an archive into a topic, with their headers, ids and times, each partition
in its order and once. How far they are stands in a checkpoint and in the sink's journal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from shardd.spark.pipelines import topics
from shardd.spark.pipelines.common import PipelineError, Source
from shardd.spark.pipelines.topics import KEPT, TopicTarget
from shardd.spark.positions import parse_timestamp
from shardd.spark.sinks.topic.options import Semantics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Transfer(msgspec.Struct, frozen=True):
    """`until_us`: messages that were stored before, None for all. `new_ids`: the server of the target makes them."""

    pipeline: str
    source: Source
    target: TopicTarget
    state: Path
    until_us: int | None = None
    new_ids: bool = False

    @property
    def checkpoint(self) -> Path:
        more = [self.source.options.get("archivePath", ""), self.source.options.get("startingTimestamp", "")]
        return topics.state_of(
            self.state, self.pipeline, self.source, self.target, *more, str(self.until_us), str(self.new_ids)
        )

    def columns(self) -> tuple[str, ...]:
        kept = tuple(each for each in KEPT if not (each == "id" and self.new_ids))
        return (*kept, "partition", *(("timestamp",) if self.until_us is not None else ()))


def replay_source(place: str, topic: str, begin: str | None, options: dict[str, str]) -> Source:
    """An archive that `shardd pipeline archive` has made. `PipelineError`."""
    kind, _, directory = place.partition(":")
    if kind != "parquet" or not directory:
        raise PipelineError(f"replay reads 'parquet:DIR', an archive, but was given '{place}'")
    more = {} if begin is None else {"startingTimestamp": begin, "startingOffsetsByTimestampStrategy": "latest"}
    source = Source(topic, {**options, "readMode": "archive", "archivePath": directory, **more})
    source.parsed()
    return source


def until_of(text: str | None) -> int | None:
    return None if text is None else parse_timestamp("--until", text)


def dry_run(work: Transfer) -> dict[str, Any]:
    """What a run would do. `PipelineError`."""
    topics.check_apart(work.source, work.target)
    needed, there = topics.partitions_of(work.source), work.target.partitions()
    _check_partitions(work, needed, there)
    return {
        "pipeline": work.pipeline,
        "topic": work.source.topic,
        "to": work.target.topic,
        "messages": topics.waiting(work.source, work.checkpoint),
        "partitions": needed,
        "creates": there is None,
        "checkpoint": str(work.checkpoint),
    }


def run(spark: SparkSession, work: Transfer, *, follow: bool) -> dict[str, Any]:
    """Copies what is not copied yet; with `follow` until interrupted."""
    planned = dry_run(work)
    rows = spark.readStream.format("shardd").options(**topics.stream_options(work.source, work.columns())).load()
    if work.until_us is not None:
        rows = rows.where(f"timestamp < timestamp_micros({work.until_us})").drop("timestamp")
    own = {name.lower() for name in work.target.options}
    once = {} if own & {"semantics", "journal"} else {"semantics": Semantics.IDEMPOTENT}
    sink = work.target.sink(createTopic=str(planned["partitions"]), partitioning="column", order="source", **once)
    return topics.run_query(
        work.pipeline,
        rows,
        sink,
        work.checkpoint,
        total=planned["messages"],
        follow=follow,
        topic=work.source.topic,
        to=work.target.topic,
    )


def _check_partitions(work: Transfer, needed: int, there: int | None) -> None:
    if there is not None and there < needed:
        raise PipelineError(
            f"'{work.target.topic}' has {there} partitions, but '{work.source.topic}' has {needed}: each partition is"
            " copied to the one with its number"
        )
