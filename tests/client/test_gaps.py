"""Offsets without a message: of an import they are no loss, of isolated damage they are one."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Final

from shardd.client import Client, Consumer
from shardd.client.history import Loss
from shardd.log import layout
from shardd.log.diagnosis import diagnose_partition, isolate
from shardd.log.incarnation import read_incarnation
from shardd.log.manifest import write_manifest
from tests.client.topics import make, send, taken, url
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving
from tests.unit import log_files

MESSAGES: Final = 3000
ENV: Final = {**ONE_SHARD, "SHARDD_SYSTEM_SEGMENT_SIZE": "16 KiB"}


def fill(server: Server) -> None:
    """The topic has several segments, and the server has stopped."""

    async def send_all() -> None:
        async with Client(url(server)) as client:
            await make(client, "s")
            for begin in range(0, MESSAGES, 100):
                await send(client, "s", range(begin, begin + 100))

    asyncio.run(send_all())
    server.stop()


SERVER: Final = Serving(env=ENV, fill=fill)


def partition(server: Server) -> tuple[Path, list[int]]:
    """Its directory, and where its segments begin."""
    directory = layout.partition_directory(server.data_dir, 0, 0, 0)
    starts = sorted(int(path.stem) for path in directory.glob("*.log"))
    assert len(starts) > 3
    return directory, starts


def read(server: Server, count: int) -> tuple[list[int], list[Loss]]:
    """Offsets of so many messages, and what is told as lost."""
    told: list[Loss] = []

    async def main() -> list[int]:
        async with (
            Client(url(server)) as client,
            Consumer(client, "s", "t", name="n", start=0, batch_messages=50, when_lost=told.append) as consumer,
        ):
            return [each.offset for each in await taken(consumer, count)]

    server.start()
    return asyncio.run(main()), told


def test_offsets_without_a_message_in_a_sparse_segment_are_no_loss(own_server: Server) -> None:
    directory, starts = partition(own_server)
    incarnation = read_incarnation(directory)
    assert incarnation is not None
    left = set(range(MESSAGES))
    for start, end in list(pairwise(starts))[1::2]:
        index = layout.segment_index(directory, start).read_bytes()
        ends = [int.from_bytes(index[at + 4 : at + 8], "little") for at in range(0, len(index), 16)]
        stored = log_files.Stored(start, layout.segment_log(directory, start).read_bytes(), index, [0, *ends])
        kept = list(range(start + 1, end, 3))
        left -= set(range(start, end)) - set(kept)
        thinned = log_files.thinned(stored, kept)
        log_files.write(directory, thinned, incarnation=incarnation)
        write_manifest(directory, log_files.manifest_of(thinned, end, incarnation=incarnation))
    assert len(left) < MESSAGES - 10
    assert read(own_server, len(left)) == (sorted(left), [])


def test_isolated_messages_are_told_as_lost(own_server: Server) -> None:
    directory, starts = partition(own_server)
    log = layout.segment_log(directory, starts[1])
    content = bytearray(log.read_bytes())
    content[64] ^= 1  # the payload of the first message
    content[24] ^= 1  # its offset, too
    log.write_bytes(content)
    for view in diagnose_partition(directory):
        if view.damaged:
            isolate(directory, view.damaged)
    left = [each for each in range(MESSAGES) if each != starts[1]]
    assert read(own_server, len(left)) == (left, [Loss(0, starts[1], starts[1] + 1)])
