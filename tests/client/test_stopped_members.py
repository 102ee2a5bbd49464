"""Members of `shardd.client` announce a heartbeat: the partitions of one that is stopped move within its timeout, and a
member that is only busy keeps them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest

from shardd.client import Client, Consumer, SyncClient, SyncConsumer, SyncProducer, command_codes, heartbeat, membership
from shardd.client.errors import SettingsError
from tests.client.topics import make, send, taken, url
from tests.support.ports import free_port
from tests.support.server import ONE_SHARD, Server
from tests.support.serving import Serving

TIMEOUT_MS: Final = 3_000
TIMEOUT_S: Final = TIMEOUT_MS / 1000
MOVED_S: Final = 60.0  # of a busy machine
PROGRAM: Final = Path(__file__).with_name("member_program.py")
SERVER: Final = Serving(env=ONE_SHARD)


@pytest.fixture
def stream(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)[:80]


class Program:
    """`member_program.py` under way."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def do(self, command: str) -> str:
        await self.begin(command)
        return await self.answer()

    async def begin(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command.encode() + b"\n")
        await self.process.stdin.drain()

    async def answer(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(MOVED_S):
            return (await self.process.stdout.readline()).decode().strip()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@contextlib.asynccontextmanager
async def program(server: Server, stream: str, timeout_ms: int = TIMEOUT_MS) -> AsyncIterator[Program]:
    arguments = str(PROGRAM), url(server), stream, str(timeout_ms)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdin=pipe, stdout=pipe)
    try:
        yield Program(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def members(client: Client, stream: str) -> int:
    group = await client.group(stream, "t", "g")
    return 0 if group is None else group.members_count


async def until(fits: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(MOVED_S):
        while True:
            if await fits():
                return
            await asyncio.sleep(0.05)


async def until_members(client: Client, stream: str, count: int) -> None:
    async def reached() -> bool:
        return await members(client, stream) == count

    await until(reached)


async def stored(client: Client, stream: str) -> int:
    found = await client.stored_offset("g", stream, "t", 0, group=True)
    return -1 if found is None else found.stored


def test_partition_of_a_stopped_member_moves_and_its_commit_sets_nothing_back(server: Server, stream: str) -> None:
    async def main() -> None:
        async with Client(url(server)) as client, program(server, stream) as stopped:
            await make(client, stream)
            await send(client, stream, range(50))
            assert await stopped.do("get 10") == " ".join(map(str, range(10)))
            assert await stopped.do("commit") == "commit"
            assert await stopped.do("get 10") == " ".join(map(str, range(10, 20)))
            stopped.signal(signal.SIGSTOP)
            stopped_at = time.monotonic()
            async with Consumer(client, stream, "t", group="g", commit="manual") as other:
                found = await taken(other, 40)
                print(f"moved after {time.monotonic() - stopped_at:.1f} s")
                assert [int(each.payload) for each in found] == [*range(10, 50)]
                other.done()
                await other.commit()
                assert await stored(client, stream) == 49
            assert await members(client, stream) == 0
            stopped.signal(signal.SIGCONT)
            assert await stopped.do("commit") == "commit"
            assert await stored(client, stream) == 49
            await send(client, stream, range(50, 51))
            assert await stopped.do("get 1") == "50"
            assert await stopped.do("commit") == "commit"
            assert await stored(client, stream) == 50

    asyncio.run(main())


def test_stopped_member_that_wakes_up_beside_its_successor_shares_again(server: Server, stream: str) -> None:
    async def main() -> None:
        async with Client(url(server)) as client, program(server, stream) as stopped:
            await make(client, stream, 2)
            for partition in (0, 1):
                await send(client, stream, range(10), partition)
            other = Consumer(client, stream, "t", group="g", assignment_interval_ms=100)
            assert await stopped.do("get 20")
            reading = asyncio.ensure_future(collect(other))

            async def has_both() -> bool:
                return other.partitions == (0, 1)

            await until_members(client, stream, 2)
            stopped.signal(signal.SIGSTOP)
            await until(has_both)
            stopped.signal(signal.SIGCONT)
            await stopped.begin("get 1")
            await until_members(client, stream, 2)
            await reached(client, stream)
            for partition in (0, 1):
                await send(client, stream, range(10, 20), partition)
            assert await stopped.answer() in map(str, range(20))
            reading.cancel()
            await asyncio.wait([reading])
            await other.close()

    asyncio.run(main())


async def collect(consumer: Consumer) -> None:
    async for _message in consumer:
        pass


async def reached(client: Client, stream: str) -> None:
    """Each of the two members has one partition."""

    async def shared() -> bool:
        group = await client.group(stream, "t", "g")
        return group is not None and [len(each.partitions) for each in group.members] == [1, 1]

    await until(shared)


def test_member_that_stands_still_for_less_than_its_timeout_keeps_its_partition(server: Server, stream: str) -> None:
    async def main() -> None:
        async with Client(url(server)) as client, program(server, stream, 20_000) as frozen:
            await make(client, stream)
            await send(client, stream, range(20))
            assert await frozen.do("get 10")
            other = asyncio.ensure_future(collect(Consumer(client, stream, "t", group="g")))
            await until_members(client, stream, 2)
            for _ in range(3):
                frozen.signal(signal.SIGSTOP)
                await asyncio.sleep(1.5)
                frozen.signal(signal.SIGCONT)
                await asyncio.sleep(0.5)
            assert await members(client, stream) == 2
            assert await frozen.do("commit") == "commit"
            assert await stored(client, stream) == 9
            other.cancel()

    asyncio.run(main())


def test_member_with_a_busy_application_keeps_its_partition(server: Server, stream: str) -> None:
    """It asks for nothing for several timeouts; PING goes on in the background."""

    async def main() -> None:
        async with Client(url(server)) as client, program(server, stream) as busy:
            await make(client, stream)
            await send(client, stream, range(20))
            assert await busy.do("get 10")
            await asyncio.sleep(3 * TIMEOUT_S)
            assert await members(client, stream) == 1
            assert await busy.do("commit") == "commit"
            assert await stored(client, stream) == 9
            assert await busy.do("get 1") == "10"

    asyncio.run(main())


def test_plain_work_on_each_of_many_messages_keeps_the_partition(server: Server, stream: str) -> None:
    """All of them are of one poll: `get` has nothing to wait for between them."""

    async def main() -> None:
        count = 100
        async with Client(url(server)) as client:
            await make(client, stream)
            await send(client, stream, range(count))
            async with Consumer(client, stream, "t", group="g", heartbeat_timeout_ms=TIMEOUT_MS) as consumer:
                for number in range(count):
                    assert int((await consumer.get()).payload) == number
                    time.sleep(3 * TIMEOUT_S / count)  # noqa: ASYNC251 - work that does not wait
                connections = consumer._session.connections
                assert await members(client, stream) == 1
                assert connections == 1

    asyncio.run(main())


def test_blocked_event_loop_loses_the_partition_and_the_member_joins_again(server: Server, stream: str) -> None:
    async def main() -> None:
        async with Client(url(server)) as client, program(server, stream) as blocked:
            await make(client, stream)
            await send(client, stream, range(20))
            assert await blocked.do("get 10")
            await blocked.begin(f"block {4 * TIMEOUT_S}")
            await until_members(client, stream, 0)
            assert await blocked.answer() == "block"
            # The stored offset is where the member left it, so what it has done is stored after all.
            assert await blocked.do("commit") == "commit"
            assert await stored(client, stream) == 9
            assert await blocked.do("get 1") == "10"
            assert await members(client, stream) == 1

    asyncio.run(main())


def test_sync_member_keeps_its_partition_while_its_thread_works(server: Server, stream: str) -> None:
    with SyncClient(url(server)) as client:
        client.create_stream(stream)
        client.create_topic(stream, "t", 1)
        with SyncProducer(client, stream, "t") as producer:
            producer.send_and_wait(b"m")
        with SyncConsumer(client, stream, "t", group="g", heartbeat_timeout_ms=TIMEOUT_MS) as consumer:
            assert consumer.get().payload == b"m"
            time.sleep(3 * TIMEOUT_S)
            group = client.group(stream, "t", "g")
            assert group is not None and group.members_count == 1


def test_reconnected_member_announces_again(tmp_path: Path, stream: str) -> None:
    """Behind a restart of the server, a stopped one is noticed as before."""

    async def main(server: Server) -> None:
        async with Client(url(server)) as client, program(server, stream) as stopped:
            await make(client, stream)
            await send(client, stream, range(20))
            assert await stopped.do("get 10")
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            # What it has read already, and then what was not committed, from the beginning.
            assert await stopped.do("get 11") == " ".join(map(str, [*range(10, 20), 0]))
            assert await members(client, stream) == 1
            stopped.signal(signal.SIGSTOP)
            await until_members(client, stream, 0)

    with Server(tmp_path / "data", ONE_SHARD | {"SHARDD_TCP_ADDRESS": f"127.0.0.1:{free_port()}"}) as server:
        asyncio.run(main(server))


@pytest.mark.parametrize("lists_it", [False, True])
def test_member_at_a_server_without_the_extension_reads_and_announces_nothing(
    server: Server, stream: str, lists_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A code that the server does not have: it does not list it, or does no longer."""
    missing = command_codes.ANNOUNCE_HEARTBEAT._replace(code=0x5344_0003)
    monkeypatch.setattr(heartbeat, "ANNOUNCE_HEARTBEAT", missing)
    monkeypatch.setattr(membership, "ANNOUNCE_HEARTBEAT", command_codes.LIST_EXTENSIONS if lists_it else missing)

    async def main() -> None:
        async with Client(url(server)) as client:
            await make(client, stream)
            await send(client, stream, range(5))
            async with Consumer(client, stream, "t", group="g", heartbeat_timeout_ms=1_000) as consumer:
                assert [int(each.payload) for each in await taken(consumer, 5)] == [*range(5)]
                assert consumer._session._link is not None and consumer._session._link._beat is None
                time.sleep(4)  # noqa: ASYNC251  # the loop stands still, and nothing was promised
                assert await members(client, stream) == 1

    asyncio.run(main())


@pytest.mark.parametrize("timeout_ms", [0, -1, 999, 3_600_001])
def test_heartbeat_timeout_out_of_bounds_is_refused_with_a_sentence(server: Server, timeout_ms: int) -> None:
    async def main() -> None:
        async with Client(url(server)) as client:
            sentence = rf"heartbeat_timeout_ms {timeout_ms} is not within 1000 to 3600000"
            with pytest.raises(SettingsError, match=sentence):
                Consumer(client, "s", "t", group="g", heartbeat_timeout_ms=timeout_ms)

    asyncio.run(main())


def test_canary_member_that_announced_nothing_keeps_its_partition_when_stopped(
    server: Server, stream: str, tmp_path: Path
) -> None:
    """So the tests above see the announcement at work, and no other timeout of the server."""
    patched = tmp_path / "program.py"
    missing = "membership.ANNOUNCE_HEARTBEAT._replace(code=0x5344_0003)"
    head = f"from shardd.client import membership\nmembership.ANNOUNCE_HEARTBEAT = {missing}\n"
    source = PROGRAM.read_text().replace("import asyncio\n", f"import asyncio\n{head}", 1)
    assert head in source
    patched.write_text(source)

    async def main() -> None:
        pipe = asyncio.subprocess.PIPE
        arguments = str(patched), url(server), stream, "1000"
        async with Client(url(server)) as client:
            await make(client, stream)
            await send(client, stream, range(10))
            process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdin=pipe, stdout=pipe)
            try:
                assert await Program(process).do("get 10")
                process.send_signal(signal.SIGSTOP)
                await asyncio.sleep(8)
                assert await members(client, stream) == 1
            finally:
                process.kill()
                await process.wait()

    asyncio.run(main())


def test_idle_member_stays_where_all_clients_must_send_ping(tmp_path: Path) -> None:
    """The answer to the announcement says how often, and it is shorter than the default of the client."""
    settings = {"IGGY_HEARTBEAT_ENABLED": "true", "IGGY_HEARTBEAT_INTERVAL": "3 s"}

    async def main(server: Server) -> None:
        async with Client(url(server)) as client:
            await make(client, "s")
            await send(client, "s", range(3))
            async with Consumer(client, "s", "t", group="g") as consumer:
                assert [int(each.payload) for each in await taken(consumer, 2)] == [0, 1]
                await asyncio.sleep(12)
                assert await members(client, "s") == 1
                assert consumer._session.connections == 1

    with Server(tmp_path / "data", ONE_SHARD | settings) as server:
        asyncio.run(main(server))
