"""Commands that read while the data directory of their server is put back as files."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TypeVar

import pytest

from shardd.cli.consume import messages
from shardd.cli.reading import Span, bounds_of, polled
from shardd.cli.remote import CommandError, Format, Remote
from shardd.client import Client, Producer, commands
from shardd.client.commands import Command
from tests.cli.test_histories import bounded, lines, running, told
from tests.client.put_back import COPIED, OTHERS, READ, Kept
from tests.client.topics import make, send, url

T = TypeVar("T")
WAITS = "?connect_timeout=60&deadline=60"


def environment(kept: Kept, home: Path) -> dict[str, str]:
    passed = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDD_", "XDG_"))}
    return passed | {"SHARDD_URL": url(kept.server) + WAITS, "HOME": str(home)}


@pytest.mark.parametrize(
    "words",
    [["consume", "--follow"], ["consume", "--follow", "-f", "%o %v\\n"], ["message", "tail", "-n", "150"]],
    ids=str,
)
def test_a_directory_that_is_put_back_is_told_to_a_follower_and_read_from_its_start(
    tmp_path: Path, words: list[str]
) -> None:
    kept = Kept(tmp_path)
    with kept.server:
        asyncio.run(kept.filled())
        with running([*words, "s", "t"], environment(kept, tmp_path)) as reading:
            assert lines(reading.stdout, 150) == [*COPIED, *READ]
            asyncio.run(kept.rolled_back())
            assert lines(reading.stdout, 180) == [*COPIED, *OTHERS]
            assert told(reading.stderr, b"partition 0 was put back as files, or lost messages in a power cut")


class Asked(Client):
    """`has_polled`: it was told of a place three times: the mark, and what follows it."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.has_polled = asyncio.Event()
        self._polls = 0

    async def call(self, command: Command[T], deadline_s: float | None = None) -> T:
        found = await super().call(command, deadline_s)
        self._polls += command.code == commands.POLL_POSITION
        if self._polls == 3:
            self.has_polled.set()
        return found


def test_a_follower_that_began_at_the_end_is_told_of_a_directory_that_is_put_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = Kept(tmp_path)
    found: list[int] = []

    async def follow(client: Client) -> None:
        remote = Remote(client, Format.TABLE)
        [each] = await bounds_of(remote, "s", "t")
        spans = [Span(0, each.end, -1, each.incarnation)]
        async for answer in polled(remote, "s", "t", spans, messages):
            found.extend(int(message.payload) for message in answer.messages)
            if len(found) == 180:
                return

    async def main() -> None:
        await kept.filled()
        async with Asked(url(kept.server) + WAITS) as client, asyncio.timeout(120):
            following = asyncio.create_task(follow(client))
            await client.has_polled.wait()
            await kept.rolled_back()
            await following

    with kept.server:
        asyncio.run(main())
    assert found == [*COPIED, *OTHERS]
    assert "partition 0 was put back as files, or lost messages in a power cut: offset 150" in capsys.readouterr().err


def test_a_restart_is_not_told_to_a_follower(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = Kept(tmp_path)
    found: list[int] = []

    async def main() -> None:
        await kept.filled()
        async with Client(url(kept.server) + WAITS) as client, asyncio.timeout(120):
            remote = Remote(client, Format.TABLE)
            [each] = await bounds_of(remote, "s", "t")
            async for answer in polled(remote, "s", "t", [Span(0, 0, -1, each.incarnation)], messages):
                found.extend(int(message.payload) for message in answer.messages)
                if len(found) == 150:
                    kept.server.stop()
                    kept.server.start()
                    async with Client(url(kept.server)) as other:
                        await send(other, "s", OTHERS)
                if len(found) == 230:
                    return

    with kept.server:
        asyncio.run(main())
    assert found == [*COPIED, *READ, *OTHERS]
    assert not capsys.readouterr().err


def test_an_export_over_a_directory_that_is_put_back_does_not_end_well(tmp_path: Path) -> None:
    """Answers have 4 MiB at most: the first one has 6 of 12 messages."""
    kept = Kept(tmp_path, empty=True)

    async def fill(client: Client, count: int) -> None:
        async with Producer(client, "s", "t") as producer:
            for _ in range(count):
                await (await producer.send(bytes(600_000), partition=0))

    async def put_back(_: Client) -> None:
        kept.put_back()
        async with Client(url(kept.server)) as other:
            await fill(other, 10)

    async def main() -> None:
        async with Client(url(kept.server)) as client:
            await make(client, "s")
            await fill(client, 3)
        kept.copy()
        async with Client(url(kept.server) + WAITS) as client, asyncio.timeout(120):
            await fill(client, 9)
            with pytest.raises(CommandError, match=r"put back as files.*: offset 6 is void, 6 messages were not read"):
                await bounded(client, "s", put_back)

    with kept.server:
        asyncio.run(main())
