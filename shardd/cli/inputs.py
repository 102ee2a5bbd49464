"""The input of `shardd produce`: lines of the standard input or of files, or whole files."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from shardd.cli.remote import EXIT_USAGE, CommandError

_BLOCK_BYTES: Final = 1 << 20


async def lines_in_turn(files: Sequence[Path], longest: int) -> AsyncIterator[list[bytes]]:
    """Lines without their ends, some together. CommandError for one of more than `longest` bytes. What blocks is read
    beside the loop, so that an interrupt is heard."""
    number = 0
    for file in _inputs(files):
        with file:
            pieces: list[bytes] = []  # of a line whose end has not come: joined once, however long it is
            size = 0
            while block := await _read(file):
                first, *others = block.split(b"\n")
                pieces.append(first)
                size += len(first)
                if size > longest:
                    raise CommandError(f"line {number + 1} has more than {longest} bytes", EXIT_USAGE)
                if others:
                    lines = [b"".join(pieces), *others]
                    pieces = [lines.pop()]
                    size = len(pieces[0])
                    number += len(lines)
                    yield lines
            if size:
                number += 1
                yield [b"".join(pieces)]


async def whole_files(files: Sequence[Path], longest: int) -> AsyncIterator[list[bytes]]:
    """Each file as one. CommandError for one of more than `longest` bytes."""
    for file in _inputs(files):
        with file:
            content = await asyncio.to_thread(file.read, longest + 1)
            if len(content) > longest:
                raise CommandError(f"{file.name} has more than {longest} bytes", EXIT_USAGE)
            yield [content]


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


def _inputs(files: Sequence[Path]) -> Iterator[BinaryIO]:
    """CommandError for a file that cannot be opened."""
    if not files:
        yield sys.stdin.buffer
    for path in files:
        try:
            yield path.open("rb")
        except OSError as error:
            raise CommandError(f"{path} cannot be read: {error.strerror}", EXIT_USAGE) from None
