"""Commands that read while a topic is purged, or while its oldest messages are removed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from shardd.cli.consume import messages
from shardd.cli.reading import Span, bounds_of, polled
from shardd.cli.remote import CommandError, Format, Remote
from shardd.client import Client, SyncClient, SyncProducer, commands
from tests.support.server import ONE_SHARD, Server

SHARDD = [sys.executable, "-P", "-m", "shardd"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("histories") / "data", ONE_SHARD) as made:
        yield made


@pytest.fixture
def client(server: Server, request: pytest.FixtureRequest) -> Iterator[SyncClient]:
    with SyncClient(f"shardd://iggy:iggy@{server.address}") as made:
        made.create_stream(request.node.name)
        made.create_topic(request.node.name, "t", 1)
        yield made


@pytest.fixture
def environment(server: Server, tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDD_", "XDG_"))}
    return kept | {"SHARDD_URL": f"shardd://iggy:iggy@{server.address}", "HOME": str(tmp_path)}


def send(client: SyncClient, stream: str, numbers: range) -> None:
    with SyncProducer(client, stream, "t") as producer:
        producer.send_batch([b"%d" % number for number in numbers], partition=0).result(60)


def lines(stream: IO[bytes] | None, count: int) -> list[int]:
    assert stream is not None
    return [int(stream.readline().split()[-1]) for _ in range(count)]


@pytest.mark.parametrize(
    "words",
    [["consume", "--follow"], ["consume", "--follow", "-f", "%o %v\\n"], ["message", "tail", "-n", "50"]],
    ids=str,
)
def test_a_purge_is_told_to_who_follows_and_the_new_history_is_written_from_its_start(
    client: SyncClient, environment: dict[str, str], words: list[str], request: pytest.FixtureRequest
) -> None:
    stream = request.node.name
    send(client, stream, range(50))
    command = [*SHARDD, *words, stream, "t"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reading:
        try:
            assert lines(reading.stdout, 50) == list(range(50))
            client.purge_topic(stream, "t")
            send(client, stream, range(1000, 1080))
            assert lines(reading.stdout, 80) == list(range(1000, 1080))
        finally:
            reading.terminate()
        assert reading.stderr is not None
        assert b"partition 0 was purged or made again: offset 50 is void" in reading.stderr.read()


async def bounded(client: Client, stream: str, meanwhile: Any) -> list[int]:
    """Offsets of the topic as it is now; `meanwhile` is awaited behind the first answer. CommandError."""
    remote = Remote(client, Format.TABLE)
    [each] = await bounds_of(remote, stream, "t")
    found: list[int] = []
    try:
        async for answer in polled(remote, stream, "t", [Span(0, each.first, each.end, each.incarnation)], messages):
            if not found:
                await meanwhile(client)
            found += [message.offset for message in answer.messages]
    except CommandError as error:
        assert error.status == 1
        raise CommandError(f"{error} after {found}") from None
    return found


def test_messages_that_are_removed_before_an_export_has_them_are_named(
    server: Server, client: SyncClient, request: pytest.FixtureRequest
) -> None:
    """Answers have 4 MiB at most: the first one has 6 of 30 messages."""
    stream = request.node.name
    client.call(commands.set_topic_settings(stream, "t", {"segment_size": "1 MiB"}))
    with SyncProducer(client, stream, "t") as producer:
        for _ in range(30):
            producer.send_and_wait(bytes(600_000), partition=0)

    async def remove(used: Client) -> None:
        await used.delete_segments(stream, "t", 0, 10)

    async def main() -> None:
        async with Client(f"shardd://iggy:iggy@{server.address}") as used:
            with pytest.raises(CommandError) as raised:
                await bounded(used, stream, remove)
            [left] = (await used.bounds(stream, "t")).partitions
            had = [*range(6), *range(left.first, 30)]
            sentence = f"offset 6 to {left.first - 1} of partition 0 is gone after {had}"
            assert left.first > 7 and sentence in str(raised.value)

    asyncio.run(main())


def test_an_export_over_a_purge_does_not_end_well(
    server: Server, client: SyncClient, request: pytest.FixtureRequest
) -> None:
    stream = request.node.name
    with SyncProducer(client, stream, "t") as producer:
        for _ in range(10):
            producer.send_and_wait(bytes(600_000), partition=0)

    async def purge(used: Client) -> None:
        await used.purge_topic(stream, "t")
        await asyncio.to_thread(send, client, stream, range(100))

    async def main() -> None:
        async with Client(f"shardd://iggy:iggy@{server.address}") as used:
            with pytest.raises(CommandError, match="purged or made again"):
                await bounded(used, stream, purge)

    asyncio.run(main())
