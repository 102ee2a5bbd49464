"""`shardd pipeline copy|replay|compact|dedup`: those that write into topics. The others are in pipeline.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardd.cli.pipeline import (
    DEFAULT_STATE,
    AllowLate,
    DryRun,
    Follow,
    Interval,
    Master,
    Options,
    Servers,
    StateDirectory,
    Topic,
    given_options,
    make_session,
    pipeline_app,
    run,
    source_of,
)

if TYPE_CHECKING:
    from shardd.spark.pipelines.topics import TopicTarget
    from shardd.spark.pipelines.transfer import Transfer

__all__ = ["pipeline_app"]

To = Annotated[str, typer.Option("--to", help="stream/topic; made when it is not there.")]
ToTopicOrTable = Annotated[str, typer.Option("--to", help="stream/topic (made when it is not there) or delta:DIR")]
ToServers = Annotated[
    str | None, typer.Option("--to-servers", help="Where --to is, when it is another server: host:port, with commas.")
]
ToOptions = Annotated[
    list[str] | None, typer.Option("--to-option", help="An option of the sink, as name=value; may be repeated.")
]
NewIds = Annotated[bool, typer.Option("--new-ids", help="Do not keep the ids of the messages.")]
Until = Annotated[str | None, typer.Option("--until", help="Only messages stored before: ISO time or milliseconds.")]
WHO = ("username", "password", "token", "credentialsFile")


def _target(
    topic: str, servers: str, to_servers: str | None, source: list[str] | None, own: list[str] | None
) -> TopicTarget:
    """The credentials are those of the source unless it has its own."""
    from shardd.spark.pipelines.topics import TopicTarget

    mine = given_options(to_servers or servers, own, "--to-option")
    if not any(name in mine for name in WHO):
        mine |= {name: value for name, value in given_options("", source).items() if name in WHO}
    target = TopicTarget(topic, mine)
    target.parsed(streaming=True)
    return target


def _transfer(work: Transfer, master: str, *, dry_run: bool, follow: bool) -> dict[str, Any]:
    from shardd.spark.pipelines import transfer as pipeline

    planned = pipeline.dry_run(work)  # what is wrong is said before Java is started
    return planned if dry_run else pipeline.run(make_session(master, work.pipeline), work, follow=follow)


@pipeline_app.command()
def copy(
    topic: Topic,
    to: To,
    to_servers: ToServers = None,
    to_option: ToOptions = None,
    until: Until = None,
    new_ids: NewIds = False,
    state_dir: StateDirectory = DEFAULT_STATE,
    servers: Servers = "127.0.0.1:8090",
    option: Options = None,
    master: Master = "local[*]",
    dry_run: DryRun = False,
    follow: Follow = False,
) -> None:
    """Copy a topic into another one, also of another server: partitions, order, headers, ids and times of producers. A
    second run goes on behind the first."""

    def work() -> dict[str, Any]:
        from shardd.spark.pipelines import transfer as pipeline

        target = _target(to, servers, to_servers, option, to_option)
        made = pipeline.Transfer(
            "copy", source_of(topic, servers, option), target, state_dir, pipeline.until_of(until), new_ids
        )
        return _transfer(made, master, dry_run=dry_run, follow=follow)

    run(work)


@pipeline_app.command()
def replay(
    place: Annotated[str, typer.Argument(help="parquet:DIR, an archive of `shardd pipeline archive`")],
    topic: Annotated[str, typer.Option("--topic", help="Which topic of the archive, as stream/topic.")],
    to: To,
    begin: Annotated[
        str | None, typer.Option("--from", help="Only messages stored from then on: ISO time or milliseconds.")
    ] = None,
    until: Until = None,
    new_ids: NewIds = False,
    to_option: ToOptions = None,
    state_dir: StateDirectory = DEFAULT_STATE,
    servers: Servers = "127.0.0.1:8090",
    master: Master = "local[*]",
    dry_run: DryRun = False,
    follow: Follow = False,
) -> None:
    """Send what an archive has into a topic. A second run goes on behind the first."""

    def work() -> dict[str, Any]:
        from shardd.spark.pipelines import transfer as pipeline

        source = pipeline.replay_source(place, topic, begin, {})
        target = _target(to, servers, None, None, to_option)
        made = pipeline.Transfer("replay", source, target, state_dir, pipeline.until_of(until), new_ids)
        return _transfer(made, master, dry_run=dry_run, follow=follow)

    run(work)


def _topic_or_table(
    to: str, servers: str, to_servers: str | None, source: list[str] | None, own: list[str] | None
) -> tuple[TopicTarget | None, str | None, dict[str, str]]:
    """A topic, or the directory of a table and the options of its sink."""
    kind, _, directory = to.partition(":")
    if kind == "delta" and directory:
        from pyspark.sql.datasource import CaseInsensitiveDict

        from shardd.spark.sinks.sink import DeltaSink

        options = given_options("", own, "--to-option")
        del options["servers"]
        DeltaSink(CaseInsensitiveDict({**options, "path": directory})).check()
        return None, directory, options
    return _target(to, servers, to_servers, source, own), None, {}


@pipeline_app.command()
def compact(
    topic: Topic,
    key: Annotated[str, typer.Option("--key", help="header:NAME or json:$.PATH")],
    to: ToTopicOrTable,
    keep_deleted: Annotated[
        bool, typer.Option("--keep-deleted", help="Keep keys whose latest message has no payload.")
    ] = False,
    to_servers: ToServers = None,
    to_option: ToOptions = None,
    servers: Servers = "127.0.0.1:8090",
    option: Options = None,
    master: Master = "local[*]",
    dry_run: DryRun = False,
    follow: Follow = False,
    interval_s: Interval = 60.0,
) -> None:
    """The latest message of each key, into a new topic or a table that is replaced."""

    def work() -> dict[str, Any]:
        from shardd.spark.pipelines import compact as pipeline

        target, table, own = _topic_or_table(to, servers, to_servers, option, to_option)
        made = pipeline.Compaction(source_of(topic, servers, option), key, table, target, keep_deleted, own)
        planned = pipeline.dry_run(made, follow=follow)
        if dry_run:
            return planned
        spark = make_session(master, "compact")
        return pipeline.follow(spark, made, interval_s) if follow else pipeline.run(spark, made)

    run(work)


@pipeline_app.command()
def dedup(
    topic: Topic,
    to: ToTopicOrTable,
    by: Annotated[str, typer.Option("--by", help="id, header:NAME or json:$.PATH")] = "id",
    within: Annotated[
        str | None, typer.Option("--within", help="How late a repetition may be, as 1h; without it all are remembered.")
    ] = None,
    allow_late: AllowLate = False,
    to_servers: ToServers = None,
    to_option: ToOptions = None,
    state_dir: StateDirectory = DEFAULT_STATE,
    servers: Servers = "127.0.0.1:8090",
    option: Options = None,
    master: Master = "local[*]",
    dry_run: DryRun = False,
    follow: Follow = False,
) -> None:
    """Each message once, into a topic or a table. A second run goes on behind the first."""

    def work() -> dict[str, Any]:
        from shardd.spark.pipelines import dedup as pipeline

        target, table, own = _topic_or_table(to, servers, to_servers, option, to_option)
        source = source_of(topic, servers, option)
        made = pipeline.Deduplication(source, by, within, state_dir, table, target, allow_late, own)
        planned = pipeline.dry_run(made)
        return planned if dry_run else pipeline.run(make_session(master, "dedup"), made, follow=follow)

    run(work)
