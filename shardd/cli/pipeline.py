"""`shardd pipeline ...`: the ready-made Spark pipelines. Each prints a JSON summary and ends with status 1 on a
failure."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from shardd.cli.output import printable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from shardd.spark.pipelines.archive import Target
    from shardd.spark.pipelines.common import Source

pipeline_app = typer.Typer(
    no_args_is_help=True, help="Spark pipelines over topics.", rich_markup_mode=None, pretty_exceptions_enable=False
)
STATUS_FAILED: Final = 1
STATUS_USAGE: Final = 2
_PYTHON_SAYS: Final = re.compile(r"^[\w.]+(?:Error|Exception): (.*)$", re.MULTILINE)

Topic = Annotated[str, typer.Argument(help="stream/topic")]
Options = Annotated[
    list[str] | None, typer.Option("--option", "-o", help="An option of the source, as name=value; may be repeated.")
]
Servers = Annotated[str, typer.Option("--servers", envvar="SHARDD_SERVERS", help="host:port, or several with commas.")]
Master = Annotated[str, typer.Option("--master", help="Spark master.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")]
Follow = Annotated[bool, typer.Option("--follow", help="Go on until SIGTERM or an interrupt.")]
AllowLate = Annotated[bool, typer.Option("--allow-late", help="Count messages behind the watermark, do not stop.")]
Interval = Annotated[float, typer.Option("--interval", min=0.1, help="Seconds between two runs with --follow.")]
StateDirectory = Annotated[Path, typer.Option("--state-dir", help="Checkpoints of streaming pipelines.")]
DEFAULT_STATE: Final = Path("shardd_pipelines")


@pipeline_app.callback()
def pipeline() -> None:
    """Spark pipelines over topics. User and password: SHARDD_USERNAME and SHARDD_PASSWORD, or options of the source."""


def given_options(servers: str, options: list[str] | None, flag: str = "--option") -> dict[str, str]:
    """`PipelineError`."""
    from shardd.spark.pipelines.common import PipelineError

    given = {"servers": servers}
    for each in options or []:
        name, equals, value = each.partition("=")
        if not equals:
            raise PipelineError(f"{flag} is '{each}', but must be name=value")
        given[name] = value
    return given


def source_of(topic: str, servers: str, options: list[str] | None) -> Source:
    """A topic with the options of the command line. `PipelineError`, `OptionError`."""
    from shardd.spark.pipelines.common import Source

    source = Source(topic, given_options(servers, options))
    source.parsed()  # a wrong option is said before Java is started
    return source


def make_session(master: str, name: str) -> SparkSession:
    """The session of a pipeline."""
    from shardd.spark.session import session

    spark = session(master, name=f"shardd pipeline {name}")
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def run(work: Callable[[], dict[str, Any]]) -> None:
    """Prints the summary; one sentence on stderr for what can go wrong."""
    try:
        typer.echo(json.dumps(work(), default=str))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except Exception as error:
        if isinstance(error, typer.Exit):
            raise
        typer.echo(printable(f"shardd: {_sentence(error)}"), err=True)
        if os.environ.get("SHARDD_TRACEBACK"):
            raise
        raise typer.Exit(STATUS_FAILED) from None


def _sentence(error: Exception) -> str:
    """Of an exception that came through the JVM, the last message of Python inside."""
    if type(error).__module__.startswith(("pyspark.", "py4j.")):
        found = _PYTHON_SAYS.findall(str(error))
        if found:
            return str(found[-1])
    return str(error).split("\n", 1)[0] or type(error).__name__


def _properties(catalog: list[str] | None) -> dict[str, str]:
    return dict(each.partition("=")[::2] for each in catalog or [])


Catalog = Annotated[
    list[str] | None, typer.Option("--catalog", help="Property of the Iceberg catalog, as name=value; repeatable.")
]


@pipeline_app.command()
def archive(
    to: Annotated[str, typer.Option("--to", help="parquet:DIR, delta:DIR or iceberg:NAMESPACE.TABLE")],
    topic: Annotated[str | None, typer.Argument(help="stream/topic")] = None,
    spool: Annotated[
        Path | None, typer.Option("--spool", help="Instead of a topic: archive/spool of a data directory.")
    ] = None,
    servers: Servers = "127.0.0.1:8090",
    option: Options = None,
    catalog: Catalog = None,
    master: Master = "local[*]",
    dry_run: DryRun = False,
    follow: Follow = False,
    interval_s: Interval = 60.0,
) -> None:
    """Archive a topic, every checksum verified; a second run adds what is new. Or segments that wait for their archive
    before they are deleted, and acknowledge them."""

    def work() -> dict[str, Any]:
        from shardd.spark.pipelines import archive as pipeline
        from shardd.spark.pipelines.common import PipelineError
        from shardd.spark.pipelines.following import again_and_again

        if (topic is None) == (spool is None):
            raise PipelineError("archive needs either a topic or --spool")
        target = pipeline.Target.parse(to, _properties(catalog))
        if topic is None:
            return _archive_spool(spool, target, master, dry_run, interval_s if follow else None)
        source = source_of(topic, servers, option)
        if dry_run:
            return pipeline.dry_run(source, target)
        spark = make_session(master, "archive")
        if follow:
            return again_and_again(lambda: pipeline.archive(spark, source, target), interval_s)
        return pipeline.archive(spark, source, target)

    run(work)


def _archive_spool(
    spool: Path | None, target: Target, master: str, dry_run: bool, again_s: float | None
) -> dict[str, Any]:
    from shardd.spark.pipelines import archive_spool as pipeline
    from shardd.spark.pipelines.common import PipelineError
    from shardd.spark.pipelines.following import again_and_again

    if spool is None or not spool.is_dir():
        raise PipelineError(f"there is no spool at {spool}")
    if dry_run:
        return pipeline.dry_run(spool, target)
    spark = make_session(master, "archive")
    if again_s is not None:
        return again_and_again(lambda: pipeline.archive_spool(spark, spool, target), again_s)
    return pipeline.archive_spool(spark, spool, target)


@pipeline_app.command()
def audit(
    topic: Topic,
    servers: Servers = "127.0.0.1:8090",
    option: Options = None,
    archive: Annotated[str | None, typer.Option("--archive", help="Root of a Parquet archive to check, too.")] = None,
    master: Master = "local[*]",
    dry_run: DryRun = False,
) -> None:
    """Check every checksum, offset, timestamp and index entry. Exit status 1 when something is damaged."""

    def work() -> dict[str, Any]:
        from shardd.spark.pipelines import audit as pipeline

        source = source_of(topic, servers, option)
        if dry_run:
            return {"pipeline": "audit", "tasks": len(pipeline.plan(source, archive)[0])}
        result = pipeline.audit(make_session(master, "audit"), source, archive)
        if result["faults"]:
            typer.echo(json.dumps(result))
            typer.echo(printable(f"shardd: {result['faults']} faults found in '{topic}'"), err=True)
            raise typer.Exit(STATUS_FAILED)
        return result

    run(work)


@pipeline_app.command()
def aggregate(
    topic: Topic,
    agg: Annotated[str, typer.Option("--agg", help="count,bytes,sum,avg,min,max,p99 ...")] = "count",
    window: Annotated[str | None, typer.Option("--window", help="Tumbling window of append time, as 10s.")] = None,
    by: Annotated[str | None, typer.Option("--by", help="partition, header:NAME, json:$.PATH; with commas.")] = None,
    value: Annotated[str, typer.Option("--value", help="length, header:NAME or json:$.PATH")] = "length",
    to: Annotated[str | None, typer.Option("--to", help="delta:DIR; without it the rows are printed.")] = None,
    stream: Annotated[bool, typer.Option("--stream", help="As a streaming query that goes on where it was.")] = False,
    watermark: Annotated[str, typer.Option("--watermark", help="How late a message may be.")] = "10s",
    allow_late: AllowLate = False,
    state_dir: StateDirectory = DEFAULT_STATE,
    servers: Servers = "127.0.0.1:8090",
    option: Options = None,
    master: Master = "local[*]",
    dry_run: DryRun = False,
    follow: Follow = False,
) -> None:
    """Aggregate a topic by time and fields."""

    def work() -> dict[str, Any]:
        from shardd.spark.pipelines import aggregate as pipeline
        from shardd.spark.pipelines.common import PipelineError

        source = source_of(topic, servers, option)
        aggregation = pipeline.Aggregation.parse(window, by, agg, value)
        table = _delta_path(to)
        streaming = stream or follow
        if streaming and table is None:
            raise PipelineError("a streaming aggregate needs --to delta:DIR")
        checkpoint = pipeline.checkpoint_of(state_dir, source)
        if dry_run:
            return {"pipeline": "aggregate", "columns": aggregation.columns(), "streaming": streaming, "table": table}
        spark = make_session(master, "aggregate")
        if streaming and table is not None:
            more: dict[str, Any] = {"watermark": watermark, "follow": follow, "late_allowed": allow_late}
            return pipeline.run_stream(spark, source, aggregation, table, checkpoint=checkpoint, **more)
        return pipeline.run_batch(spark, source, aggregation, table)

    run(work)


def _delta_path(to: str | None) -> str | None:
    from shardd.spark.pipelines.common import PipelineError

    if to is None:
        return None
    kind, _, place = to.partition(":")
    if kind != "delta" or not place:
        raise PipelineError(f"--to is '{to}', but must be delta:DIR")
    return place


@pipeline_app.command()
def export(
    topic: Annotated[list[str], typer.Argument(help="stream/topic, each a view named stream_topic")],
    sql: Annotated[str, typer.Option("--sql", help="The statement.")],
    to: Annotated[Path, typer.Option("--to", help="A new directory.")],
    kind: Annotated[str, typer.Option("--format", help="parquet, csv or json")] = "parquet",
    servers: Servers = "127.0.0.1:8090",
    option: Options = None,
    master: Master = "local[*]",
    dry_run: DryRun = False,
) -> None:
    """Write the result of a SQL statement over topics to files."""

    def work() -> dict[str, Any]:
        from shardd.spark.pipelines import export as pipeline

        views = pipeline.view_names(topic)
        sources = {views[each]: source_of(each, servers, option) for each in topic}
        pipeline.check_target(to, kind)
        spark = make_session(master, "export")
        pipeline.register_views(spark, sources)
        if dry_run:
            query = pipeline.query(spark, sql)
            return {"pipeline": "export", "views": sorted(sources), "columns": query.columns}
        return pipeline.export(spark, sql, to, kind)

    run(work)


@pipeline_app.command()
def sql(
    topic: Annotated[list[str], typer.Argument(help="stream/topic, each a view named stream_topic")],
    statement: Annotated[str | None, typer.Option("--execute", "-e", help="One statement; else from stdin.")] = None,
    rows: Annotated[int, typer.Option("--rows", help="Rows to show of each result.")] = 100,
    servers: Servers = "127.0.0.1:8090",
    option: Options = None,
    master: Master = "local[*]",
) -> None:
    """SQL over topics: one statement, or statements from a terminal, each ended by a semicolon."""

    def work() -> dict[str, Any]:
        from shardd.spark.pipelines import export as pipeline

        views = pipeline.view_names(topic)
        sources = {views[each]: source_of(each, servers, option) for each in topic}
        spark = make_session(master, "sql")
        done = 0
        for each in [statement] if statement is not None else _statements(sorted(sources)):
            pipeline.register_views(spark, sources)  # each statement sees what there is now
            pipeline.query(spark, each).show(rows, truncate=False)
            done += 1
        return {"pipeline": "sql", "views": sorted(sources), "statements": done}

    run(work)


def _statements(views: list[str]) -> list[str]:
    if sys.stdin.isatty():
        typer.echo(printable(f"views: {', '.join(views)}; end a statement with ';', the session with Ctrl-D"), err=True)
    return [each.strip() for each in sys.stdin.read().split(";") if each.strip()]


@pipeline_app.command()
def latency(
    files: Annotated[list[Path] | None, typer.Argument(help="Reports of `make bench`, or one figure a line.")] = None,
    from_topic: Annotated[str | None, typer.Option("--from-topic", help="stream/topic")] = None,
    out: Annotated[Path, typer.Option("--out", help="The HTML page.")] = Path("latency.html"),
    servers: Servers = "127.0.0.1:8090",
    option: Options = None,
    master: Master = "local[*]",
) -> None:
    """Percentiles, throughput over time and outliers as an HTML page with plots."""

    def work() -> dict[str, Any]:
        from shardd.spark.pipelines import latency as pipeline
        from shardd.spark.pipelines.common import Meter, PipelineError

        if bool(files) == bool(from_topic):
            raise PipelineError("latency needs either files or --from-topic")
        with Meter("latency", None) as meter:
            if from_topic is not None:
                source = source_of(from_topic, servers, option)
                runs = pipeline.from_topic(make_session(master, "latency"), source)
            else:
                runs = pipeline.from_files(files or [])
            return pipeline.latency(runs, out, from_topic or "latency", meter)

    run(work)


@pipeline_app.command()
def lag(
    topic: Topic,
    consumer: Annotated[list[str] | None, typer.Option("--consumer", help="A named consumer; repeatable.")] = None,
    group: Annotated[list[str] | None, typer.Option("--group", help="A consumer group; repeatable.")] = None,
    checkpoint: Annotated[list[Path] | None, typer.Option("--checkpoint", help="Of a streaming query.")] = None,
    servers: Servers = "127.0.0.1:8090",
    option: Options = None,
) -> None:
    """How far readers are behind the end of a topic, in messages and in seconds."""

    def work() -> dict[str, Any]:
        from shardd.spark.pipelines import lag as pipeline
        from shardd.spark.pipelines.common import PipelineError

        if not (consumer or group or checkpoint):
            raise PipelineError("name a reader: --consumer, --group or --checkpoint")
        source = source_of(topic, servers, option)
        found = pipeline.of_readers(source, consumer or [], group or [], checkpoint or [])
        return {
            "pipeline": "lag",
            "messages": sum(each.messages for each in found),
            "seconds": max((each.seconds for each in found), default=0.0),
            "totals": pipeline.totals(found),
            "readers": [each.to_json() for each in found],
        }

    run(work)


@pipeline_app.command()
def vacuum(
    table: Annotated[str, typer.Argument(help="delta:DIR, parquet:DIR or iceberg:NAMESPACE.TABLE")],
    catalog: Catalog = None,
    older_than_hours: Annotated[float, typer.Option("--older-than", help="Hours; younger files stay.")] = 24.0,
    dry_run: DryRun = False,
) -> None:
    """Remove files that no commit refers to."""

    def work() -> dict[str, Any]:
        from shardd.spark.pipelines import vacuum as pipeline

        kind, _, place = table.partition(":")
        return pipeline.vacuum(
            kind, place, older_than_s=older_than_hours * 3600, dry_run=dry_run, properties=_properties(catalog)
        )

    run(work)


@pipeline_app.command()
def doctor() -> None:
    """The same as `shardd spark doctor`."""
    from shardd.cli.spark_command import doctor as look

    look()
