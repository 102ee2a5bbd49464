"""`shardd produce`, `shardd consume` and `shardd message`: what a person types."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from shardd.cli.declared import Argument, Family, Option
from shardd.cli.names import Stream, Topic
from shardd.cli.remote import EXIT_USAGE, CommandError, DryRun, Remote, remote

if TYPE_CHECKING:
    from shardd.client.messages import Header

flow_family = Family()
_RATE_MIN: Final = 0.001
_RATE_MAX: Final = 1e9
message_family = Family("Messages of a topic.")
_FIELDS = "%t topic %p partition %o offset %T time (us) %d date %k key %v payload %S size %h headers %i id, \\n \\t."
Partition = Annotated[int | None, Option("--partition", "-p", least=0, about="This one; else balanced, or by key.")]
Partitions = Annotated[list[int] | None, Option("--partition", "-p", least=0, about="Only these.")]
FileFormat = Annotated[bool, Option("--json", about="A JSON object a line.")]
Grep = Annotated[str, Option("--grep", about="Only payloads in which this regular expression is found.")]
Where = Annotated[str, Option("--offset", "-o", about="earliest, latest, N, -N (the last), @-1h, @DATE.")]
Since = Annotated[str, Option("--offset", about="As of `shardd consume`.")]
Limit = Annotated[int, Option("--count", "-n", least=0, about="At most so many; 0: all.")]
Follow = Annotated[bool, Option("--follow", about="Wait for more.")]


@remote(flow_family, "produce", output=False)
async def produce(
    remote: Remote,
    stream: Stream,
    topic: Topic,
    files: Annotated[list[Path] | None, Argument(about="Lines of these; else of the input.")] = None,
    whole: Annotated[bool, Option("--whole", about="A file is a message, not its lines.")] = False,
    as_json: FileFormat = False,
    partition: Partition = None,
    key: Annotated[str, Option("--key", "-k", about="Of all messages.")] = "",
    key_delimiter: Annotated[str, Option("--key-delimiter", "-K", about="A line is KEY, this, and payload.")] = "",
    header: Annotated[list[str] | None, Option("--header", "-H", about="NAME=VALUE, of all messages.")] = None,
    rate: Annotated[float, Option("--rate", least=0, about="Messages a second; 0: without a limit.")] = 0.0,
    quiet: Annotated[bool, Option("--quiet", "-q", about="Do not say how many.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Send messages: lines of the input or of files."""
    from shardd.cli.formats import unescaped
    from shardd.cli.produce import Options
    from shardd.cli.produce import produce as send

    pairs = [each.partition("=") for each in header or ()]
    if not all(mark and name for name, mark, _ in pairs):
        raise CommandError("a header is NAME=VALUE", EXIT_USAGE)
    headers: dict[str, Header] = {name: value for name, _, value in pairs}
    if len(headers) != len(pairs):
        raise CommandError("a header is given twice; a message has one of each name", EXIT_USAGE)
    if rate and not _RATE_MIN <= rate <= _RATE_MAX:
        raise CommandError(f"--rate {rate:g} is refused: 0, or {_RATE_MIN:g} to {_RATE_MAX:g}", EXIT_USAGE)
    if sum(map(bool, (key, key_delimiter, partition is not None))) > 1:
        raise CommandError("choose one of --key, --key-delimiter and --partition", EXIT_USAGE)
    if whole and (as_json or key_delimiter or not files):
        raise CommandError("--whole is for files, without --json and --key-delimiter", EXIT_USAGE)
    options = Options(
        tuple(files or ()),
        whole,
        as_json,
        unescaped(key_delimiter),
        key.encode(),
        partition,
        headers,
        rate,
        dry_run,
    )
    count = await send(remote, stream, topic, options)
    if not quiet:
        what = "would be sent" if dry_run else "are stored"
        print(f"{count} messages {what}", file=sys.stderr)


@remote(flow_family, "consume", output=False, reads=lambda values: not values["group"])
async def consume(
    remote: Remote,
    stream: Stream,
    topic: Topic,
    format_: Annotated[str, Option("--format", "-f", about=_FIELDS)] = "%v\\n",
    as_json: FileFormat = False,
    offset: Where = "earliest",
    count: Limit = 0,
    grep: Grep = "",
    follow: Follow = False,
    group: Annotated[str, Option("--group", "-g", about="Read as a member, and commit what was written.")] = "",
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


@remote(message_family, "tail", output=False, reads=True)
async def tail(
    remote: Remote,
    stream: Stream,
    topic: Topic,
    count: Annotated[int, Option("--count", "-n", least=0, about="The last so many of each partition.")] = 10,
    follow: Annotated[bool, Option("--follow/--no-follow", about="Wait for more.")] = True,
    as_json: FileFormat = False,
    grep: Grep = "",
) -> None:
    """Write the last messages, and those that come."""
    from shardd.cli.consume import Options
    from shardd.cli.consume import consume as read
    from shardd.cli.reading import Start

    options = Options("%d %p/%o %v\\n", as_json, Start("last", count), grep=grep, follow=follow)
    await read(remote, stream, topic, options)


@remote(message_family, "export", output=False, reads=True)
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


@remote(message_family, "import", output=False)
async def import_(
    remote: Remote,
    stream: Stream,
    topic: Topic,
    files: Annotated[list[Path] | None, Argument(about="Else the input.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Send what was exported, each message to its partition, with new offsets and times."""
    from shardd.cli.produce import Options
    from shardd.cli.produce import produce as send

    count = await send(remote, stream, topic, Options(tuple(files or ()), as_json=True, dry_run=dry_run))
    print(f"{count} messages {'would be sent' if dry_run else 'are stored'}", file=sys.stderr)


@remote(message_family, "count", reads=True)
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
