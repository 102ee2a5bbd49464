"""`shardd produce`: messages from lines, files and JSON."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

from shardd.cli.formats import KEY, from_json
from shardd.cli.identity import identifier
from shardd.cli.output import size_text
from shardd.cli.remote import EXIT_USAGE, CommandError, Remote

if TYPE_CHECKING:
    from shardd.client.messages import Header
    from shardd.client.producer import Producer

_BLOCK_BYTES: Final = 1 << 20
_BATCH_BYTES: Final = 1 << 20
_BATCHES_MAX: Final = 8
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
        self._shown_at = time.monotonic()
        self._on_terminal = sys.stderr.isatty()

    def show(self) -> None:
        now = time.monotonic()
        if self._on_terminal and now - self._shown_at >= _PROGRESS_S:
            self._shown_at = now
            print(f"\r{self.stored} messages stored, {size_text(self.size_bytes)} read", end="", file=sys.stderr)

    def sentence(self) -> str:
        """For who interrupted it."""
        left = self.taken - self.stored
        behind = f"; of {left} more it is not known" if left else ""
        return f"interrupted: {self.stored} messages are stored{behind}"


async def produce(remote: Remote, stream: str, topic: str, options: Options) -> int:
    """How many messages were stored. ClientError, CommandError."""
    from shardd.cli.topics import topic_found
    from shardd.client.producer import Producer

    found = await topic_found(remote, stream, topic)
    if options.partition is not None and options.partition >= found.partitions_count:
        raise CommandError(f"there is no partition {options.partition}; the topic has {found.partitions_count}", 3)
    progress = Progress()
    remote.farewell = progress.sentence
    if options.dry_run:
        return await _count(options)
    place = (identifier(stream), identifier(topic))
    async with Producer(remote.client, *place, batch_bytes=_BATCH_BYTES, shares_connection=True) as producer:
        under_way: deque[tuple[asyncio.Future[Any], int]] = deque()
        try:
            await _send_all(producer, options, progress, under_way)
            await _stored(under_way, progress, 0)
        finally:
            for future, _ in under_way:
                if future.done() and not future.cancelled():
                    future.exception()  # looked at: the first one has been told
    return progress.stored


async def _send_all(producer: Producer, options: Options, progress: Progress, under_way: deque[Any]) -> None:
    plain = not (options.as_json or options.key_delimiter or options.headers or options.key)
    begun = time.monotonic()
    async for lines in _in_turn(options):
        for part in _parts(lines, options.rate):
            progress.taken += len(part)
            progress.size_bytes += sum(map(len, part)) + len(part)
            if plain:
                future = await producer.send_batch(part, partition=options.partition)
                under_way.append((future, len(part)))
            else:
                await _send_each(producer, part, options, progress.taken - len(part), under_way)
            await _stored(under_way, progress, _BATCHES_MAX if plain else 10_000)
            progress.show()
            if options.rate:
                await _stored(under_way, progress, 0)
                await asyncio.sleep(max(0.0, begun + progress.taken / options.rate - time.monotonic()))


async def _send_each(
    producer: Producer, lines: list[bytes], options: Options, before: int, under_way: deque[Any]
) -> None:
    for number, line in enumerate(lines, before + 1):
        payload, partition, headers = line, options.partition, dict(options.headers)
        key = options.key
        if options.as_json:
            payload, own, its_headers = from_json(line, number)
            partition = own if partition is None and not key else partition
            headers |= its_headers
        elif options.key_delimiter:
            key, mark, payload = line.partition(options.key_delimiter)
            if not mark:
                raise CommandError(
                    f"line {number} has no key: {options.key_delimiter.decode()!r} is not in it", EXIT_USAGE
                )
        if key:
            headers[KEY] = _text(key)
        future = await producer.send(payload, key=key or None, partition=partition, headers=headers or None)
        under_way.append((future, 1))


def _text(key: bytes) -> Header:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key


async def _stored(under_way: deque[Any], progress: Progress, leave: int) -> None:
    """Waits until no more than `leave` are under way. The error of the first one that was not stored."""
    while len(under_way) > leave:
        future, count = under_way[0]
        await future
        under_way.popleft()
        progress.stored += count


def _parts(lines: list[bytes], rate: float) -> Iterator[list[bytes]]:
    """With a rate, a tenth of a second each."""
    step = max(1, int(rate / 10)) if rate else len(lines)
    for at in range(0, len(lines), step or 1):
        yield lines[at : at + step]


async def _in_turn(options: Options) -> Any:
    """Lines of the inputs, some together. What blocks is read beside the loop, so that an interrupt is heard."""
    for file in _inputs(options):
        with file:
            if options.whole:
                yield [await asyncio.to_thread(file.read)]
                continue
            rest = b""
            while block := await _read(file):
                lines = (rest + block).split(b"\n")
                rest = lines.pop()
                if lines:
                    yield lines
            if rest:
                yield [rest]


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def _read(file: BinaryIO) -> bytes:
    if file.seekable():
        return file.read(_BLOCK_BYTES)
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    try:
        loop.add_reader(file.fileno(), _set, ready)
    except PermissionError:  # /dev/null and the like never block
        return file.read(_BLOCK_BYTES)
    try:
        await ready
    finally:
        loop.remove_reader(file.fileno())
    return file.read1(_BLOCK_BYTES)  # type: ignore[attr-defined,no-any-return]


def _inputs(options: Options) -> Iterator[BinaryIO]:
    """CommandError for a file that cannot be opened."""
    if not options.files:
        yield sys.stdin.buffer
    for path in options.files:
        try:
            yield path.open("rb")
        except OSError as error:
            raise CommandError(f"{path} cannot be read: {error.strerror}", EXIT_USAGE) from None


async def _count(options: Options) -> int:
    count = 0
    async for lines in _in_turn(options):
        if options.as_json:
            for number, line in enumerate(lines, count + 1):
                from_json(line, number)
        count += len(lines)
    return count
