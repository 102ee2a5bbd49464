"""What the pipelines that write into topics share: the target, the place of their state, and how they run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from shardd.protocol.errors import ShardError
from shardd.spark.pipelines.common import Counted, Meter, PipelineError, Source, follow_query, summary
from shardd.spark.pipelines.export import view_name
from shardd.spark.pipelines.lag import last_offsets
from shardd.spark.sinks.topic import options as topic_options
from shardd.spark.sinks.topic.options import SinkOptions
from shardd.spark.sinks.topic.server import SinkServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEPT: Final = ("value", "headersRaw", "originTimestampRaw", "id")  # of a message, whatever becomes of its place
SHOWN: Final = ("value", "headersRaw", "originTimestamp", "id")  # the same for a table
BATCH_BYTES: Final = "256m"  # of a batch of a stream, unless the options say otherwise: what a kill repeats at most
ONE_TASK_BYTES: Final = str(1 << 60)  # a partition is not cut: its rows are sent in their order


class TopicTarget(msgspec.Struct, frozen=True):
    """A topic to write to, and how: the options of the sink."""

    topic: str
    options: Mapping[str, str]

    def parsed(self, *, streaming: bool) -> SinkOptions:
        return topic_options.parse({**self.options, "topic": self.topic}, streaming=streaming)

    def sink(self, **more: str) -> dict[str, str]:
        return {**self.options, **more, "topic": self.topic}

    def partitions(self) -> int | None:
        """None when there is no such topic. `PipelineError` when nobody can be asked."""
        server = SinkServer(self.parsed(streaming=True))
        try:
            return server.partitions_of(self.parsed(streaming=True).topic)
        except (ShardError, ConnectionError) as error:
            raise PipelineError(f"'{self.topic}' cannot be looked at: {error}") from error
        finally:
            server.close()

    def messages(self) -> int:
        """How many it has; 0 when it is not there."""
        if self.partitions() is None:
            return 0
        given = self.parsed(streaming=True)
        place = {"servers": ",".join(given.servers)}
        credentials = given.credentials
        if credentials.token:
            place["token"] = credentials.token
        else:
            place |= {"username": credentials.username, "password": credentials.password}
        (bounds,) = Source(self.topic, place).bounds().values()
        return sum(each.end - each.first for each in bounds.partitions)


def check_apart(source: Source, target: TopicTarget) -> None:
    """`PipelineError` when a topic would be written into itself."""
    here, there = source.parsed(), target.parsed(streaming=True)
    if there.topic in here.topics and set(there.servers) & set(here.servers):
        raise PipelineError(f"'{target.topic}' would be written into itself: --to must name another topic")


def state_of(directory: Path, pipeline: str, source: Source, target: TopicTarget | None, *more: str) -> Path:
    """Where the checkpoint of one pair of topics lies, or of a topic and a table (no target); two never share it."""
    if target is None:
        topic, servers = "table/table", source.parsed().servers
    else:
        topic, servers = target.topic, target.parsed(streaming=True).servers
    named = "\0".join((source.topic, topic, *sorted(servers), *more))
    return directory / f"{pipeline}-{view_name(source.topic)}-{hashlib.sha256(named.encode()).hexdigest()[:12]}"


def waiting(source: Source, checkpoint: Path) -> int:
    """Messages that a query has not read yet."""
    try:
        places = last_offsets(checkpoint).places
    except PipelineError:
        places = {}
    count = 0
    for name, topic in source.bounds().items():
        for each in topic.partitions:
            place = places.get(name, {}).get(each.id)
            known = place is not None and place.incarnation == each.incarnation
            begin = max(place.offset, each.first) if place is not None and known else each.first
            count += max(each.durable_end - begin, 0)
    return count


def partitions_of(source: Source) -> int:
    """Of its topic with the most of them."""
    return max(len(topic.partitions) for topic in source.bounds().values())


def stream_options(source: Source, columns: tuple[str, ...]) -> dict[str, str]:
    """Of the source of a streaming pipeline."""
    defaults = {"startingOffsets": "earliest", "maxBytesPerTrigger": BATCH_BYTES}
    if any(name.startswith("starting") for name in source.options):
        del defaults["startingOffsets"]
    if any(name.lower().startswith(("maxbytespertrigger", "maxoffsetspertrigger")) for name in source.options):
        del defaults["maxBytesPerTrigger"]
    return {
        "maxBytesPerPartition": ONE_TASK_BYTES,
        **defaults,
        **source.options,
        "subscribe": source.topic,
        "columns": ",".join(columns),
    }


def run_query(
    pipeline: str,
    rows: DataFrame,
    sink: Mapping[str, str],
    checkpoint: Path,
    *,
    total: int | None,
    follow: bool,
    kind: str = "shardd",
    late_allowed: bool | None = None,
    **more: Any,
) -> dict[str, Any]:
    """To the end of what there is, or until interrupted. `late_allowed`: of a query with a watermark."""
    writer = rows.writeStream.format(kind).options(**sink).option("checkpointLocation", str(checkpoint))
    trigger: dict[str, Any] = {"processingTime": "1 second"} if follow else {"availableNow": True}
    counted = Counted()
    with Meter(pipeline, None if follow else total, lambda: (counted.rows, 0)) as meter:
        follow_query(writer.trigger(**trigger).start(), counted, late_allowed=bool(late_allowed))
    late = {} if late_allowed is None else {"late": counted.late}
    return summary(pipeline, meter, counted.rows, 0, checkpoint=str(checkpoint), **late, **more)
