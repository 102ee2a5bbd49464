"""export and sql: any SQL over topics as views."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shardd.spark.pipelines.common import Meter, PipelineError, Source, summary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS: Final = ("parquet", "csv", "json")


def register_views(spark: SparkSession, sources: dict[str, Source]) -> None:
    """One temporary view for each name; it shows the range of its first use."""
    for name, source in sources.items():
        options = {"subscribe": source.topic, **source.options}
        spark.read.format("shardd").options(**options).load().createOrReplaceTempView(name)


def view_name(topic: str) -> str:
    """The view of "stream/topic": its letters and digits, the rest as underscores."""
    return "".join(each if each.isalnum() else "_" for each in topic)


def view_names(topics: Iterable[str]) -> dict[str, str]:
    """The view of each topic. Topics whose views would have one name (Spark takes `A` and `a` for the same) get a part
    of their digest behind it."""
    wanted = dict.fromkeys(topics)
    counted = Counter(view_name(each).casefold() for each in wanted)
    return {
        each: view_name(each) if counted[view_name(each).casefold()] == 1 else distinct_name(each) for each in wanted
    }


def distinct_name(topic: str) -> str:
    """`view_name` with a part of the topic's digest, for a name that no other topic has."""
    return f"{view_name(topic)}_{hashlib.sha256(topic.encode()).hexdigest()[:8]}"


def check_target(target: Path, kind: str) -> None:
    """PipelineError; what needs no Java to be told."""
    if kind not in FORMATS:
        raise PipelineError(f"--format is '{kind}', but must be one of {', '.join(FORMATS)}")
    if target.exists():
        raise PipelineError(f"{target} exists already; export writes to a new directory")


def export(spark: SparkSession, statement: str, target: Path, kind: str) -> dict[str, Any]:
    """Writes the result of a statement to a new directory."""
    check_target(target, kind)
    with Meter("export", None) as meter:
        result = query(spark, statement)
        result.write.format(kind).options(**({"header": "true"} if kind == "csv" else {})).save(str(target))
        size = sum(each.stat().st_size for each in target.rglob("*") if each.is_file())
        rows = (
            spark.read.format(kind).options(**({"header": "true"} if kind == "csv" else {})).load(str(target)).count()
        )
    return summary("export", meter, rows, size, target=str(target))


def query(spark: SparkSession, statement: str) -> DataFrame:
    """`PipelineError` for a statement that Spark cannot understand."""
    from pyspark.errors import AnalysisException, ParseException

    try:
        return spark.sql(statement)
    except (AnalysisException, ParseException) as error:
        first = str(error).split("\n", 1)[0]
        raise PipelineError(f"the statement cannot be run: {first}") from error
