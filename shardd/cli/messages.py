"""`shardd produce`, `shardd consume` and `shardd message`: what a person types."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from shardd.cli.names import Stream, Topic
from shardd.cli.remote import EXIT_USAGE, CommandError, DryRun, Remote, remote

flow_app = typer.Typer()
message_app = typer.Typer(no_args_is_help=True, help="Messages of a topic.", rich_markup_mode=None)
_FIELDS = "%t topic %p partition %o offset %T time (us) %d date %k key %v payload %S size %h headers %i id, \\n \\t."
Partition = Annotated[int | None, typer.Option("--partition", "-p", min=0, help="This one; else balanced, or by key.")]
Partitions = Annotated[list[int] | None, typer.Option("--partition", "-p", min=0, help="Only these.")]
FileFormat = Annotated[bool, typer.Option("--json", help="A JSON object a line.")]
Grep = Annotated[str, typer.Option("--grep", help="Only payloads in which this regular expression is found.")]
Where = Annotated[str, typer.Option("--offset", "-o", help="earliest, latest, N, -N (the last), @-1h, @DATE.")]
Since = Annotated[str, typer.Option("--offset", help="As of `shardd consume`.")]
Limit = Annotated[int, typer.Option("--count", "-n", min=0, help="At most so many; 0: all.")]
Follow = Annotated[bool, typer.Option("--follow", help="Wait for more.")]


@remote(flow_app, "produce", output=False)
async def produce(
    remote: Remote,
    stream: Stream,
    topic: Topic,
    files: Annotated[list[Path] | None, typer.Argument(help="Lines of these; else of the input.")] = None,
    whole: Annotated[bool, typer.Option("--whole", help="A file is a message, not its lines.")] = False,
    as_json: FileFormat = False,
    partition: Partition = None,
    key: Annotated[str, typer.Option("--key", "-k", help="Of all messages.")] = "",
    key_delimiter: Annotated[str, typer.Option("--key-delimiter", "-K", help="A line is KEY, this, and payload.")] = "",
    header: Annotated[list[str] | None, typer.Option("--header", "-H", help="NAME=VALUE, of all messages.")] = None,
    rate: Annotated[float, typer.Option("--rate", min=0, help="Messages a second; 0: without a limit.")] = 0.0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not say how many.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Send messages: lines of the input or of files."""
    from shardd.cli.produce import Options
    from shardd.cli.produce import produce as send

    pairs = [each.partition("=") for each in header or ()]
    if not all(mark and name for name, mark, _ in pairs):
        raise CommandError("a header is NAME=VALUE", EXIT_USAGE)
    if sum(map(bool, (key, key_delimiter, partition is not None))) > 1:
        raise CommandError("choose one of --key, --key-delimiter and --partition", EXIT_USAGE)
    if whole and (as_json or key_delimiter or not files):
        raise CommandError("--whole is for files, without --json and --key-delimiter", EXIT_USAGE)
    options = Options(
        tuple(files or ()),
        whole,
        as_json,
        key_delimiter.encode().decode("unicode_escape").encode(),
        key.encode(),
        partition,
        {name: value for name, _, value in pairs},
        rate,
        dry_run,
    )
    count = await send(remote, stream, topic, options)
    if not quiet:
        what = "would be sent" if dry_run else "are stored"
        print(f"{count} messages {what}", file=sys.stderr)


@remote(flow_app, "consume", output=False)
async def consume(
    remote: Remote,
    stream: Stream,
    topic: Topic,
    format_: Annotated[str, typer.Option("--format", "-f", help=_FIELDS)] = "%v\\n",
    as_json: FileFormat = False,
    offset: Where = "earliest",
    count: Limit = 0,
    grep: Grep = "",
    follow: Follow = False,
    group: Annotated[str, typer.Option("--group", "-g", help="Read as a member, and commit what was written.")] = "",
    partition: Partitions = None,
) -> None:
    """Write messages, until the end of what there is now."""
    from shardd.cli.consume import Options
    from shardd.cli.consume import consume as read
    from shardd.cli.reading import start_of

    if group and partition:
        raise CommandError("the group gives the partitions", EXIT_USAGE)
    options = Options(format_, as_json, start_of(offset), count, grep, follow, group, tuple(partition or ()))
    await read(remote, stream, topic, options)


@remote(message_app, "tail", output=False)
async def tail(
    remote: Remote,
    stream: Stream,
    topic: Topic,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="The last so many of each partition.")] = 10,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for more.")] = True,
    as_json: FileFormat = False,
    grep: Grep = "",
) -> None:
    """Write the last messages, and those that come."""
    from shardd.cli.consume import Options
    from shardd.cli.consume import consume as read
    from shardd.cli.reading import Start

    options = Options("%d %p/%o %v\\n", as_json, Start("last", count), grep=grep, follow=follow)
    await read(remote, stream, topic, options)


@remote(message_app, "export", output=False)
async def export(
    remote: Remote,
    stream: Stream,
    topic: Topic,
    offset: Where = "earliest",
    partition: Partitions = None,
) -> None:
    """Write messages with partition, headers and times as JSON lines; `shardd message import` reads them."""
    from shardd.cli.consume import Options
    from shardd.cli.consume import consume as read
    from shardd.cli.reading import start_of

    options = Options(as_json=True, start=start_of(offset), partitions=tuple(partition or ()))
    await read(remote, stream, topic, options)


@remote(message_app, "import", output=False)
async def import_(
    remote: Remote,
    stream: Stream,
    topic: Topic,
    files: Annotated[list[Path] | None, typer.Argument(help="Else the input.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Send what was exported, each message to its partition, with new offsets and times."""
    from shardd.cli.produce import Options
    from shardd.cli.produce import produce as send

    count = await send(remote, stream, topic, Options(tuple(files or ()), as_json=True, dry_run=dry_run))
    print(f"{count} messages {'would be sent' if dry_run else 'are stored'}", file=sys.stderr)


@remote(message_app, "count")
async def count(remote: Remote, stream: Stream, topic: Topic, since: Since = "earliest") -> None:
    """How many messages there are in each partition, from an offset or a time on."""
    from shardd.cli.reading import bounds_of, first_offset, start_of

    rows: list[dict[str, int | None]] = []
    start, total = start_of(since), 0
    for each in await bounds_of(remote, stream, topic):
        begin = await first_offset(remote, stream, topic, each, start)
        rows.append({"partition": each.id, "from": begin, "end": each.end, "messages": max(0, each.end - begin)})
        total += max(0, each.end - begin)
    if remote.output.value == "table":
        rows.append({"partition": None, "from": None, "end": None, "messages": total})
    remote.show(rows, ("partition", "from", "end", "messages"))
