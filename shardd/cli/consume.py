"""`shardd consume`: messages as text, JSON or bytes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shardd.cli.formats import Writer, json_line, writer
from shardd.cli.identity import identifier
from shardd.cli.reading import COUNT_MAX, Span, Start, bounds_of, first_offset, polled
from shardd.cli.remote import CommandError, Remote
from shardd.cli.standard import EXIT_USAGE, out

if TYPE_CHECKING:
    from shardd.client.messages import Message

_IDLE_S: Final = 2.0
PLAIN: Final = "%v\\n"


class Options(NamedTuple):
    """`limit` 0: none. `follow`: the end of what there is now is not the end."""

    format: str = PLAIN
    as_json: bool = False
    start: Start = Start("earliest")
    limit: int = 0
    grep: str = ""
    follow: bool = False
    group: str = ""
    partitions: tuple[int, ...] = ()


class Messages(NamedTuple):
    """Of an answer."""

    size: int
    next_offset: int
    last_checksum: int
    messages: list[Message]


def messages(answer: bytes) -> Messages:
    from shardd.client.codec import decode_polled

    found = decode_polled(answer).messages
    if not found:
        return Messages(0, 0, 0, found)
    return Messages(len(found), found[-1].offset + 1, found[-1].checksum, found)


class Sink:
    """Writes what passes the filter, until the limit. `written`: how many."""

    def __init__(self, options: Options, topic: str) -> None:
        self._write: Writer = json_line if options.as_json else writer(options.format, topic)
        try:
            self._pattern = re.compile(options.grep.encode()) if options.grep else None
        except re.error as error:
            raise CommandError(f"{options.grep!r} is no regular expression: {error}", EXIT_USAGE) from None
        self._limit = options.limit
        self.written = 0

    @property
    def full(self) -> bool:
        return 0 < self._limit <= self.written

    def take(self, batch: list[Message]) -> int:
        """How many of them were taken: those behind the limit were not."""
        lines: list[bytes] = []
        taken = 0
        for message in batch:
            if self._limit and self.written + len(lines) >= self._limit:
                break
            taken += 1
            if self._pattern is None or self._pattern.search(message.payload):
                lines.append(self._write(message))
        out(b"".join(lines))
        self.written += len(lines)
        return taken


async def consume(remote: Remote, stream: str, topic: str, options: Options) -> int:
    """How many messages were written. ClientError, CommandError."""
    sink = Sink(options, topic)
    remote.farewell = lambda: f"interrupted: {sink.written} messages were written"
    if options.group:
        await _as_member(remote, stream, topic, options, sink)
        return sink.written
    bounds = await bounds_of(remote, stream, topic, options.partitions)
    spans = []
    for each in bounds:
        begin = await first_offset(remote, stream, topic, each, options.start)
        spans.append(Span(each.id, begin, -1 if options.follow else each.end, each.incarnation))
    grows = options.follow and not options.partitions
    if options.format == PLAIN and not (options.as_json or options.grep or options.limit):
        from shardd.client.codec import payload_lines

        async for answer in polled(remote, stream, topic, spans, payload_lines, grows=grows):
            out(answer.data)
            sink.written += answer.size
        return sink.written
    async for answer in polled(remote, stream, topic, spans, messages, grows=grows):
        sink.take(answer.messages)
        if sink.full:
            break
    return sink.written


async def _as_member(remote: Remote, stream: str, topic: str, options: Options, sink: Sink) -> None:
    """What was written is committed; without --follow it ends when nothing has come for a while."""
    import asyncio

    from shardd.cli.places import reset_sentence, sentence_of, tell
    from shardd.client.consumer import Consumer

    committed = 0
    remote.farewell = lambda: f"interrupted: {sink.written} messages were written, {committed} of them are committed"
    async with Consumer(
        remote.client,
        identifier(stream),
        identifier(topic),
        group=identifier(options.group),
        commit="manual",
        start=_first_start(options.start),
        batch_messages=min(options.limit or COUNT_MAX, COUNT_MAX),
        when_reset=lambda reset: tell(reset_sentence(f"{stream}/{topic}", reset)),
        when_lost=lambda loss: tell(sentence_of(f"{stream}/{topic}", loss)),
    ) as consumer:
        while not sink.full:
            try:
                batch = await _next(consumer, None if options.follow else _IDLE_S)
            except TimeoutError:
                return
            taken = sink.take(batch)
            if taken == len(batch):
                consumer.done()
                # cancelled here, the commit goes on: what the sentence says is the least that is committed
                await asyncio.shield(consumer.commit())
                committed += taken
            elif taken:
                await consumer.commit_to(batch[taken - 1])


async def _next(consumer: Any, timeout_s: float | None) -> list[Message]:
    import asyncio

    async with asyncio.timeout(timeout_s):
        found: list[Message] = await consumer.get_batch()
        return found


def _first_start(start: Start) -> str | int:
    """As a consumer wants it, where nothing is stored."""
    if start.kind == "last":
        raise CommandError("a group begins at earliest, latest, an offset or a time", EXIT_USAGE)
    if start.kind == "time":
        return f"time:{start.value}"
    return start.value if start.kind == "offset" else start.kind
