"""Commands that read while a topic is purged, or while its oldest messages are removed."""

from __future__ import annotations

import asyncio
import itertools
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import pytest

from shardd.cli.consume import messages
from shardd.cli.names import missing
from shardd.cli.places import Places
from shardd.cli.reading import Span, bounds_of, polled
from shardd.cli.remote import CommandError, Format, Remote
from shardd.client import Client, SyncClient, SyncProducer, commands, statuses
from shardd.client.errors import NotFoundError, PermissionDeniedError
from shardd.client.values import PartitionBounds, Permissions, StreamRights, TopicRights
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving

SHARDD = [sys.executable, "-P", "-m", "shardd"]
SERVER: Final = Serving(env=ONE_SHARD)


@pytest.fixture
def client(server: Server, request: pytest.FixtureRequest) -> Iterator[SyncClient]:
    with SyncClient(f"shardd://iggy:iggy@{server.address}?connect_timeout=60&deadline=60") as made:
        made.create_stream(request.node.name)
        made.create_topic(request.node.name, "t", 1)
        yield made


@pytest.fixture
def environment(server: Server, tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDD_", "XDG_"))}
    url = f"shardd://iggy:iggy@{server.address}?connect_timeout=60&deadline=60"
    return kept | {"SHARDD_URL": url, "HOME": str(tmp_path)}


def send(client: SyncClient, stream: str, numbers: range, partition: int = 0) -> None:
    with SyncProducer(client, stream, "t") as producer:
        producer.send_batch([b"%d" % number for number in numbers], partition=partition).result(60)


@contextmanager
def running(words: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A command that follows a topic. Behind some minutes it is killed, so that a test reads the end and fails."""
    with subprocess.Popen(
        [*SHARDD, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as reading:
        watch = threading.Timer(240, reading.kill)
        watch.start()
        try:
            yield reading
        finally:
            watch.cancel()
            reading.terminate()


def lines(stream: IO[bytes] | None, count: int) -> list[int]:
    assert stream is not None
    return [int(line.split()[-1]) for line in (stream.readline() for _ in range(count)) if line]


def told(stream: IO[bytes] | None, sentence: bytes) -> bool:
    """Whether the command says it, before it ends."""
    assert stream is not None
    return any(sentence in line for line in iter(stream.readline, b""))


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
    with running([*words, stream, "t"], environment) as reading:
        assert lines(reading.stdout, 50) == list(range(50))
        client.purge_topic(stream, "t")
        send(client, stream, range(1000, 1080))
        assert lines(reading.stdout, 80) == list(range(1000, 1080))
        assert told(reading.stderr, b"partition 0 was purged or made again: offset 50 is void")


FOLLOWERS = {
    "consume": ["consume", "--follow"],
    "latest": ["consume", "--follow", "-o", "latest"],
    "group": ["consume", "--follow", "--group", "g"],
    "tail": ["message", "tail", "-n", "50"],
}


@pytest.mark.parametrize("words", FOLLOWERS.values(), ids=FOLLOWERS)
def test_followers_read_partitions_that_are_added_later_from_their_first_message(
    client: SyncClient, environment: dict[str, str], words: list[str], request: pytest.FixtureRequest
) -> None:
    stream = request.node.name
    client.create_group(stream, "t", "g")
    with running([*words, stream, "t"], environment) as reading:
        for number in itertools.count():  # until one comes: `latest` begins at the end as it was
            send(client, stream, range(number, number + 1))
            assert reading.stdout is not None
            if select.select([reading.stdout], [], [], 1)[0]:
                break
        client.create_partitions(stream, "t", 2)
        send(client, stream, range(5000, 5005), partition=2)
        found: list[int] = []
        while found[-1:] != [5004]:
            found += (line := lines(reading.stdout, 1))
            assert line, f"the command ended behind {found}"
        assert found[-5:] == list(range(5000, 5005))


@pytest.mark.parametrize("words", [FOLLOWERS["consume"], FOLLOWERS["tail"]], ids=["consume", "tail"])
def test_followers_tell_a_partition_that_is_deleted_and_read_it_when_it_comes_back(
    client: SyncClient, environment: dict[str, str], words: list[str], request: pytest.FixtureRequest
) -> None:
    stream = request.node.name
    client.create_partitions(stream, "t", 1)
    with running([*words, stream, "t"], environment) as reading:
        send(client, stream, range(3), partition=1)
        assert lines(reading.stdout, 3) == [0, 1, 2]
        client.delete_partitions(stream, "t", 1)
        assert told(reading.stderr, b"partition 1 was deleted, offset 3 was next")
        client.create_partitions(stream, "t", 1)
        send(client, stream, range(10, 14), partition=1)
        assert lines(reading.stdout, 4) == [10, 11, 12, 13]
        assert told(reading.stderr, b"partition 1 was purged or made again: offset 3 is void")
        client.delete_topic(stream, "t")
        assert reading.wait(60) == 3


@pytest.mark.parametrize("words", [FOLLOWERS["consume"], FOLLOWERS["tail"]], ids=["consume", "tail"])
def test_a_follower_that_may_only_poll_reads_partitions_that_are_added(
    server: Server, client: SyncClient, environment: dict[str, str], words: list[str], request: pytest.FixtureRequest
) -> None:
    stream = request.node.name
    found = client.stream(stream)
    assert found is not None
    only = Permissions(streams={found[0].id: StreamRights(topics={0: TopicRights(poll_messages=True)})})
    client.create_user(f"{words[0]}-reader", "reader-secret", permissions=only)
    url = f"shardd://{words[0]}-reader:reader-secret@{server.address}?connect_timeout=60&deadline=60"
    with running([*words, stream, "t"], environment | {"SHARDD_URL": url}) as reading:
        send(client, stream, range(1))
        assert lines(reading.stdout, 1) == [0]
        client.create_partitions(stream, "t", 1)
        send(client, stream, range(70, 75), partition=1)
        assert lines(reading.stdout, 5) == list(range(70, 75))
        client.update_permissions(f"{words[0]}-reader", Permissions())
        assert reading.wait(60) == 5


def test_a_follower_that_may_not_ask_for_partitions_reads_those_that_it_knows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def refused() -> tuple[PartitionBounds, ...]:
        raise PermissionDeniedError(41)

    places = Places("s/t", [Span(0, 0, -1)], messages, grows=True)
    asyncio.run(places.grow(refused))
    assert list(places.here) == [0] and not places.is_due
    assert capsys.readouterr().err.count("s/t: partitions that are added from now on are not read") == 1


def test_a_follower_of_chosen_partitions_ends_when_one_is_deleted(
    client: SyncClient, environment: dict[str, str], request: pytest.FixtureRequest
) -> None:
    stream = request.node.name
    client.create_partitions(stream, "t", 1)
    with running(["consume", "--follow", "-p", "1", stream, "t"], environment) as reading:
        send(client, stream, range(3), partition=1)
        assert lines(reading.stdout, 3) == [0, 1, 2]
        client.delete_partitions(stream, "t", 1)
        assert reading.wait(60) == 3
        assert told(reading.stderr, b"there is no partition 1")


def test_a_follower_of_a_topic_without_partitions_waits_for_the_first_one(
    server: Server, client: SyncClient, request: pytest.FixtureRequest
) -> None:
    stream = request.node.name
    client.delete_partitions(stream, "t", 1)

    async def main() -> None:
        async with Client(f"shardd://iggy:iggy@{server.address}") as used, asyncio.timeout(60):
            remote = Remote(used, Format.TABLE)
            assert await bounds_of(remote, stream, "t") == ()
            client.create_partitions(stream, "t", 1)
            await asyncio.to_thread(send, client, stream, range(3))
            answer = await anext(polled(remote, stream, "t", [], messages, grows=True))
            assert [each.payload for each in answer.messages] == [b"0", b"1", b"2"]

    asyncio.run(main())


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


def test_topic_that_is_there_again_when_its_name_is_looked_up_is_told(server: Server, client: SyncClient) -> None:
    """As one that is deleted and made again while a command reads it: the poll comes between."""
    stream = client.streams()[-1].name

    async def asked() -> str:
        async with Client(f"shardd://iggy:iggy@{server.address}") as asking:
            error = NotFoundError(statuses.TOPIC_NOT_FOUND)
            return await missing(asking, error, {"stream": stream, "topic": "t"})

    assert asyncio.run(asked()).startswith(f"{stream}/t was not there when it was asked for, and is there now: ")
