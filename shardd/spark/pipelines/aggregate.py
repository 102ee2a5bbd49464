"""aggregate: windowed aggregation of a topic into a Delta table (as a stream, or once), or onto the terminal."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shardd.config.digits import number_of
from shardd.spark.options import DURATION_MAX_DAYS
from shardd.spark.pipelines.common import Counted, Meter, PipelineError, Source, follow_query, summary
from shardd.spark.pipelines.export import distinct_name, view_name
from shardd.spark.pipelines.lag import last_offsets

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_PERCENTILE: Final = re.compile(r"p(\d{1,2}(?:\.\d+)?)")
_DURATION: Final = re.compile(r"([0-9]+)\s*(ms|s|m|h|d)")
_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_A_DAY: Final = {"ms": 86_400_000, "s": 86_400, "m": 1440, "h": 24, "d": 1}
PLAIN: Final = ("count", "sum", "avg", "min", "max", "bytes")


@dataclass(frozen=True, slots=True)
class Aggregation:
    """`by`: partition, header:NAME or json:$.PATH. `value`: json:$.PATH, header:NAME or length, for everything but
    count
    and bytes. `functions`: count, bytes, sum, avg, min, max, p50, p99 ..."""

    window: str | None
    by: tuple[str, ...]
    functions: tuple[str, ...]
    value: str = "length"

    @classmethod
    def parse(cls, window: str | None, by: str | None, functions: str, value: str) -> Aggregation:
        named = tuple(each.strip() for each in functions.split(",") if each.strip())
        for each in named:
            if each not in PLAIN and _PERCENTILE.fullmatch(each) is None:
                raise PipelineError(f"--agg has '{each}'; there are {', '.join(PLAIN)} and percentiles such as p99")
        if not named:
            raise PipelineError("--agg names no function")
        if window is not None and _DURATION.fullmatch(window.strip()) is None:
            raise PipelineError(f"--window is '{window}', but must be a duration such as 10s")
        if window is not None and interval(window, "--window").startswith("0 "):
            raise PipelineError(f"--window is '{window}', but a window needs a length")
        keys = tuple(each.strip() for each in (by or "").split(",") if each.strip())
        for each in (*keys, value):
            if each not in ("partition", "length") and not each.startswith(("header:", "json:$")):
                raise PipelineError(f"'{each}' is no field: use partition, header:NAME or json:$.path")
        return cls(window, keys, named, value)

    def columns(self) -> str:
        """Columns of the source that are needed."""
        wanted = ["value"]
        fields = (*self.by, self.value)
        if self.window is not None:
            wanted.append("timestamp")
        if "partition" in fields:
            wanted.append("partition")
        if any(each.startswith("header:") for each in fields):
            wanted.append("headers")
        return ",".join(wanted)

    def apply(self, rows: DataFrame, watermark: str | None) -> DataFrame:
        from pyspark.sql import functions as f

        keys = [field(each).alias(_label(each)) for each in self.by]
        if self.window is not None:
            if watermark is not None:
                rows = rows.withWatermark("timestamp", interval(watermark))
            keys.insert(0, f.window("timestamp", interval(self.window)))
        grouped = rows.groupBy(*keys).agg(*[self._aggregate(each) for each in self.functions])
        if self.window is None:
            return grouped
        rest = [name for name in grouped.columns if name != "window"]
        return grouped.select(
            f.col("window.start").alias("window_start"), f.col("window.end").alias("window_end"), *rest
        )

    def _aggregate(self, name: str) -> Column:
        from pyspark.sql import functions as f

        if name == "count":
            return f.count("*").alias("count")
        if name == "bytes":
            return f.sum(f.length("value")).alias("bytes")
        number = field(self.value).cast("double") if self.value != "length" else f.length("value")
        match = _PERCENTILE.fullmatch(name)
        if match is not None:
            return f.percentile(number, float(match[1]) / 100).alias(name.replace(".", "_"))
        return {"sum": f.sum, "avg": f.avg, "min": f.min, "max": f.max}[name](number).alias(name)


def field(text: str) -> Column:
    """partition, header:NAME or json:$.PATH of a row; null when it has no such field."""
    from pyspark.sql import functions as f

    if text == "partition":
        return f.col("partition")
    if text.startswith("header:"):
        name = text.removeprefix("header:")
        found = f.filter("headers", lambda each: each.key == name)
        return f.get(found, 0)["value"].cast("string")
    return f.get_json_object(f.col("value").cast("string"), text.removeprefix("json:"))


def _label(text: str) -> str:
    return re.sub(r"\W+", "_", text.removeprefix("header:").removeprefix("json:$")).strip("_") or "value"


def interval(text: str, name: str = "the duration") -> str:
    """A duration as 10s in the words of Spark, which counts microseconds in 63 bits. `PipelineError`."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise PipelineError(f"'{text}' is no duration such as 10s")
    count, unit = number_of(match[1]), match[2]
    if count is None or count > DURATION_MAX_DAYS * _A_DAY[unit]:
        raise PipelineError(f"{name} '{text}' is longer than {DURATION_MAX_DAYS}d")
    return f"{count} {_UNITS[unit]}"


def run_batch(spark: SparkSession, source: Source, aggregation: Aggregation, table: str | None) -> dict[str, Any]:
    """All that is there now: into a Delta table that is replaced, or as rows of the summary."""
    with Meter("aggregate", None) as meter:
        rows = spark.read.format("shardd").options(**_options(source, aggregation)).load()
        result = aggregation.apply(rows, None)
        if table is None:
            found = [row.asDict() for row in result.collect()]
        else:
            result.write.format("shardd_delta").option("path", table).mode("overwrite").save()
            found = []
    return summary("aggregate", meter, len(found), 0, result=found, table=table)


def run_stream(
    spark: SparkSession,
    source: Source,
    aggregation: Aggregation,
    table: str,
    *,
    checkpoint: Path,
    watermark: str,
    follow: bool,
    late_allowed: bool = False,
) -> dict[str, Any]:
    """A streaming query into a Delta table: finished windows are appended, without a window the table is replaced."""
    windowed = aggregation.window is not None
    options = _options(source, aggregation)
    if windowed:
        options["watermarkDelay"] = watermark
    rows = spark.readStream.format("shardd").options(**options).load()
    result = aggregation.apply(rows, watermark if windowed else None)
    writer = (
        result.writeStream.format("shardd_delta")
        .option("path", table)
        .option("checkpointLocation", str(checkpoint))
        .outputMode("append" if windowed else "complete")
    )
    with Meter("aggregate", None) as meter:
        trigger: dict[str, Any] = {"processingTime": "1 second"} if follow else {"availableNow": True}
        counted = Counted()
        follow_query(writer.trigger(**trigger).start(), counted, late_allowed=late_allowed)
    late = {"late": counted.late} if windowed else {}
    return summary("aggregate", meter, counted.rows, 0, table=table, checkpoint=str(checkpoint), **late)


def checkpoint_of(state: Path, source: Source) -> Path:
    """Where the state of a streaming aggregate of a topic lies; two topics never share it.

    A topic whose view may have the name of another one's gets a digest, unless a directory of earlier versions, without
    one, is its own.
    """
    plain = state / f"aggregate-{view_name(source.topic)}"
    if re.fullmatch(r"[A-Za-z0-9]+/[A-Za-z0-9]+", source.topic) or _reads(plain, source):
        return plain
    return state / f"aggregate-{distinct_name(source.topic)}"


def _reads(checkpoint: Path, source: Source) -> bool:
    try:
        return set(last_offsets(checkpoint).places) == set(source.parsed().topics)
    except PipelineError:
        return False


def _options(source: Source, aggregation: Aggregation) -> dict[str, str]:
    return {
        "subscribe": source.topic,
        "startingOffsets": "earliest",
        **source.options,
        "columns": aggregation.columns(),
    }
