"""`shardd produce`: messages from lines, files and JSON."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shardd.cli.formats import KEY, from_json
from shardd.cli.identity import identifier
from shardd.cli.inputs import lines_in_turn, whole_files
from shardd.cli.output import size_text
from shardd.cli.remote import EXIT_NOT_FOUND, EXIT_USAGE, CommandError, Remote, explained

if TYPE_CHECKING:
    from shardd.client.messages import Header
    from shardd.client.producer import Producer

_BATCH_BYTES: Final = 1 << 20
_BATCHES_MAX: Final = 8
_TOGETHER_BYTES_MAX: Final = 8 << 20  # above it messages go one by one: a batch may have 16 MiB, a message more
_KEY_BYTES_MAX: Final = 255
_JSON_LINE_BYTES_MAX: Final = 512 << 20  # six characters for a byte, as in \\u0000
_PROGRESS_S: Final = 0.5


class Options(NamedTuple):
    """`whole`: each file is a message. `rate`: messages a second, 0: as fast as possible."""

    files: tuple[Path, ...] = ()
    whole: bool = False
    as_json: bool = False
    key_delimiter: bytes = b""
    key: bytes = b""
    partition: int | None = None
    headers: dict[str, Header] = {}  # noqa: RUF012
    rate: float = 0.0
    dry_run: bool = False


class Progress:
    """What is read and what is stored; shown on a terminal alone."""

    def __init__(self) -> None:
        self.taken = self.stored = self.size_bytes = 0
        self._under_way: deque[tuple[asyncio.Future[Any], int]] = deque()
        self._shown_at = time.monotonic()
        self._on_terminal = sys.stderr.isatty()

    def add(self, future: asyncio.Future[Any], count: int) -> None:
        """Messages that were given to the producer."""
        self._under_way.append((future, count))

    async def stored_but(self, left: int) -> None:
        """Waits until no more than `left` are under way. The error of the first one that was not stored."""
        while len(self._under_way) > left:
            future, count = self._under_way[0]
            await future
            self._under_way.popleft()
            self.stored += count

    async def settled(self) -> None:
        """All that was given to the producer has been answered."""
        if self._under_way:
            await asyncio.wait([future for future, _ in self._under_way])

    def show(self) -> None:
        now = time.monotonic()
        if self._on_terminal and now - self._shown_at >= _PROGRESS_S:
            self._shown_at = now
            print(f"\r{self.stored} messages stored, {size_text(self.size_bytes)} read", end="", file=sys.stderr)

    def _known(self) -> tuple[int, int]:
        """How many are stored, and of how many it is not known."""
        stored, unknown = self.stored, 0
        for future, count in self._under_way:
            if future.done() and not future.cancelled() and future.exception() is None:
                stored += count
            elif not _not_sent(future):
                unknown += count
        return stored, unknown

    def interrupted(self) -> str:
        """For the person who interrupted it."""
        stored, unknown = self._known()
        behind = f"; of {unknown} more it is not known" if unknown else ""
        return f"interrupted: {stored} messages are stored{behind}"

    def before(self) -> str:
        """Behind the sentence that says why it ends."""
        stored, unknown = self._known()
        behind = f", of {unknown} more it is not known" if unknown else ""
        return f"; {stored} messages before are stored{behind}" if stored or unknown else ""


def _not_sent(future: asyncio.Future[Any]) -> bool:
    """Whether it is certain that the messages are not stored."""
    from shardd.client.errors import ClientError, Fate

    error = None if not future.done() or future.cancelled() else future.exception()
    return isinstance(error, ClientError) and error.fate is Fate.NOT_SENT


async def produce(remote: Remote, stream: str, topic: str, options: Options) -> int:
    """How many messages were stored. CommandError, which says how many were stored before."""
    from shardd.client import statuses
    from shardd.client.errors import ClientError, NotFoundError
    from shardd.client.partitioning import partitions_of

    partitions = await partitions_of(remote.client, identifier(stream), identifier(topic))
    if partitions is None:
        raise NotFoundError(statuses.TOPIC_NOT_FOUND)
    if options.partition is not None and options.partition >= partitions:
        raise CommandError(f"there is no partition {options.partition}; the topic has {partitions}", 3)
    if not partitions:
        raise CommandError(f"topic {stream}/{topic} has no partition; `shardd partition create` adds one")
    progress = Progress()
    if options.dry_run:
        async for lines in _in_turn(options):
            for number, line in enumerate(lines, progress.taken + 1):
                check(message_of(line, number, options, partitions), number)
            progress.taken += len(lines)
        return progress.taken
    remote.farewell = progress.interrupted
    try:
        await _send(remote, (identifier(stream), identifier(topic)), options, progress, partitions)
    except CommandError as error:
        raise CommandError(f"{error}{progress.before()}", error.status) from None
    except ClientError as error:
        why = await explained(remote.client, error, {"stream": stream, "topic": topic})
        raise CommandError(f"{why}{progress.before()}", why.status) from None
    return progress.stored


async def _send(
    remote: Remote, place: tuple[int | str, int | str], options: Options, progress: Progress, partitions: int
) -> None:
    from shardd.client.errors import ClientError
    from shardd.client.producer import Producer

    async with Producer(remote.client, *place, batch_bytes=_BATCH_BYTES, shares_connection=True) as producer:
        try:
            await _send_all(producer, options, progress, partitions)
            await progress.stored_but(0)
        except (CommandError, ClientError):
            await progress.settled()  # the sentence says what was stored before
            raise


async def _send_all(producer: Producer, options: Options, progress: Progress, partitions: int) -> None:
    plain = not (options.as_json or options.key_delimiter or options.headers or options.key)
    begun = time.monotonic()
    async for lines in _in_turn(options):
        for part in _parts(lines, options.rate):
            if options.rate:
                await progress.stored_but(0)
                await asyncio.sleep(max(0.0, begun + progress.taken / options.rate - time.monotonic()))
            size = sum(map(len, part))
            before = progress.taken
            progress.size_bytes += size + len(part)
            if plain and size <= _TOGETHER_BYTES_MAX:
                progress.taken += len(part)
                progress.add(await producer.send_batch(part, partition=options.partition), len(part))
            else:
                await _send_each(producer, part, options, before, progress, partitions)
            await progress.stored_but(_BATCHES_MAX if plain else 10_000)
            progress.show()


async def _send_each(
    producer: Producer, lines: list[bytes], options: Options, before: int, progress: Progress, partitions: int
) -> None:
    for number, line in enumerate(lines, before + 1):
        message = message_of(line, number, options, partitions)
        check(message, number)
        future = await producer.send(
            message.payload, key=message.key or None, partition=message.partition, headers=message.headers or None
        )
        progress.taken += 1
        progress.add(future, 1)


class Outgoing(NamedTuple):
    """`key` b"": none."""

    payload: bytes
    key: bytes
    partition: int | None
    headers: dict[str, Header]


def message_of(line: bytes, number: int, options: Options, partitions: int) -> Outgoing:
    """CommandError, which names the line."""
    payload, key, partition, headers = line, options.key, options.partition, dict(options.headers)
    if options.as_json:
        payload, own, its_headers = from_json(line, number)
        partition = own if partition is None and not key else partition
        headers |= its_headers
        if partition is not None and not 0 <= partition < partitions:
            there = f"the topic has {partitions}"
            raise CommandError(f"line {number}: there is no partition {partition}; {there}", EXIT_NOT_FOUND)
    elif options.key_delimiter:
        key, mark, payload = line.partition(options.key_delimiter)
        if not mark:
            sentence = f"line {number} has no key: {options.key_delimiter.decode(errors='replace')!r} is not in it"
            raise CommandError(sentence, EXIT_USAGE)
    if key:
        headers[KEY] = _text(key)
    return Outgoing(payload, key, partition, headers)


def check(message: Outgoing, number: int) -> None:
    """What the client would refuse, before it is asked. CommandError."""
    from shardd.client.errors import ClientError
    from shardd.client.messages import PAYLOAD_BYTES_MAX, encode_headers

    if len(message.payload) > PAYLOAD_BYTES_MAX:
        raise CommandError(f"line {number}: a payload has more than {PAYLOAD_BYTES_MAX} bytes", EXIT_USAGE)
    if len(message.key) > _KEY_BYTES_MAX:
        raise CommandError(f"line {number}: a key has more than {_KEY_BYTES_MAX} bytes", EXIT_USAGE)
    if message.headers:
        try:
            encode_headers(message.headers)
        except (ClientError, UnicodeEncodeError) as error:
            raise CommandError(f"line {number}: {error}", EXIT_USAGE) from None


def _text(key: bytes) -> Header:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key


def _parts(lines: list[bytes], rate: float) -> Iterator[list[bytes]]:
    """With a rate, a tenth of a second each."""
    step = max(1, int(rate / 10)) if rate else len(lines)
    for at in range(0, len(lines), step or 1):
        yield lines[at : at + step]


def _in_turn(options: Options) -> AsyncIterator[list[bytes]]:
    from shardd.client.messages import PAYLOAD_BYTES_MAX

    if options.whole:
        return whole_files(options.files, PAYLOAD_BYTES_MAX)
    return lines_in_turn(options.files, _JSON_LINE_BYTES_MAX if options.as_json else PAYLOAD_BYTES_MAX + 256)
