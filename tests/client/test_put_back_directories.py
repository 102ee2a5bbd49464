"""Consumers whose server gets its data directory back as files, and then other messages behind its end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from shardd.client import Client, Consumer, Message
from shardd.client.history import HistoryChangedError, Reset
from tests.client.put_back import COPIED, OTHERS, READ, Kept
from tests.client.topics import make, send, taken, url

Options = dict[str, Any]


def numbers(messages: list[Message]) -> list[int]:
    return [int(each.payload) for each in messages]


@pytest.mark.parametrize("options", [{"name": "n"}, {"group": "g", "commit": "each"}], ids=str)
def test_a_directory_that_is_put_back_is_read_from_its_start(tmp_path: Path, options: Options) -> None:
    kept = Kept(tmp_path)
    told: list[Reset] = []

    async def main() -> None:
        await kept.filled()
        more: Options = {**options, "assignment_interval_ms": 100, "when_reset": told.append}
        async with Client(url(kept.server)) as client, Consumer(client, "s", "t", **more) as consumer:
            assert numbers(await taken(consumer, 150)) == [*COPIED, *READ]
            await kept.rolled_back()
            assert numbers(await taken(consumer, 180)) == [*COPIED, *OTHERS]

    with kept.server:
        asyncio.run(main())
    [reset] = told
    assert reset.partition == 0 and reset.put_back


def test_a_directory_that_is_put_back_is_an_error_where_that_is_asked_for(tmp_path: Path) -> None:
    kept = Kept(tmp_path)

    async def main() -> None:
        await kept.filled()
        error: Options = {"name": "n", "on_reset": "error"}
        async with Client(url(kept.server)) as client, Consumer(client, "s", "t", **error) as consumer:
            assert numbers(await taken(consumer, 150)) == [*COPIED, *READ]
            await kept.rolled_back()
            with pytest.raises(HistoryChangedError, match="put back"):
                await taken(consumer, 1)
            assert numbers(await taken(consumer, 180)) == [*COPIED, *OTHERS]

    with kept.server:
        asyncio.run(main())


def test_a_restart_is_no_reset(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    told: list[Reset] = []

    async def main() -> None:
        await kept.filled()
        more: Options = {"name": "n", "when_reset": told.append}
        async with Client(url(kept.server)) as client, Consumer(client, "s", "t", **more) as consumer:
            assert numbers(await taken(consumer, 150)) == [*COPIED, *READ]
            kept.server.stop()
            kept.server.start()
            async with Client(url(kept.server)) as other:
                await send(other, "s", OTHERS)
            assert numbers(await taken(consumer, 80)) == [*OTHERS]

    with kept.server:
        asyncio.run(main())
    assert not told


COMMITS: list[Options] = [
    {"name": "n"},
    {"name": "n", "commit": "each"},
    {"name": "n", "commit": "manual"},
    {"group": "g"},
    {"group": "g", "commit": "each"},
    {"group": "g", "commit": "manual"},
]


@pytest.mark.parametrize("options", COMMITS, ids=str)
def test_what_was_read_before_a_directory_was_put_back_is_not_committed_behind_it(
    tmp_path: Path, options: Options
) -> None:
    """The commit is what opens the connection; the consumer after it would begin behind messages of the others."""
    kept = Kept(tmp_path)
    reader = {each: options[each] for each in options if each != "commit"}

    async def main() -> None:
        await kept.filled()
        async with Client(url(kept.server)) as client:
            consumer = Consumer(client, "s", "t", **options)
            got: list[Message] = []
            while len(got) < 150:
                got += await consumer.get_batch()
            await kept.rolled_back()
            if options.get("commit") == "manual":
                consumer.done()
                await consumer.commit()
            assert numbers([await consumer.get()]) == [0]
            await consumer._session.close()  # no orderly end
        async with Client(url(kept.server)) as client, Consumer(client, "s", "t", **reader) as consumer:
            assert numbers(await taken(consumer, 180)) == [*COPIED, *OTHERS]

    with kept.server:
        asyncio.run(main())


def test_what_was_read_is_committed_behind_a_restart(tmp_path: Path) -> None:
    kept = Kept(tmp_path)

    async def main() -> None:
        await kept.filled()
        async with Client(url(kept.server)) as client:
            consumer = Consumer(client, "s", "t", name="n", commit="manual")
            await taken(consumer, 150)
            consumer.done()
            kept.server.stop()
            kept.server.start()
            await consumer.commit()
            found = await client.stored_offset("n", "s", "t", 0)
            assert found is not None and found.stored == 149
            await consumer.close()

    with kept.server:
        asyncio.run(main())


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "no_commit"])
def test_member_of_a_directory_that_was_put_back_with_a_stored_offset_reads_all_over_a_lost_connection(
    tmp_path: Path, commits: bool
) -> None:
    """The stored offset that came back with the files is void, until a commit replaces it."""
    kept = Kept(tmp_path, empty=True)
    told: list[Reset] = []

    async def stored(client: Client) -> int:
        found = await client.stored_offset("g", "s", "t", 0, group=True)
        return -1 if found is None else found.stored

    async def main() -> None:
        options: Options = {"group": "g", "commit": "manual", "batch_messages": 10, "when_reset": told.append}
        async with Client(url(kept.server)) as client:
            await make(client, "s")
            await send(client, "s", COPIED)
            async with Consumer(client, "s", "t", **options) as consumer:
                await taken(consumer, 50)
                consumer.done()
                await consumer.commit()
        kept.copy()
        async with Client(url(kept.server)) as client, Consumer(client, "s", "t", **options) as consumer:
            await send(client, "s", READ)
            assert numbers(await taken(consumer, 100)) == [*range(50, 150)]
            await kept.rolled_back()
            assert numbers(await consumer.get_batch()) == [*range(10)]
            assert await stored(client) == 49
            kept.server.stop()
            kept.server.start()
            first = 0
            if commits:
                consumer.done()
                await consumer.commit()
                assert await stored(client) == 9
                first = 10
            assert numbers(await taken(consumer, 180 - first)) == [*COPIED, *OTHERS][first:]
            consumer.done()
            await consumer.commit()
            assert await stored(client) == 179

    with kept.server:
        asyncio.run(main())
    [reset] = told
    assert reset.put_back
