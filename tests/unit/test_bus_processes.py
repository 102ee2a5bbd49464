"""The bus between real processes: kill -9 and SIGSTOP of a peer."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from shardd.shard.bus import Bus, PeerLost

TEST_TIMEOUT_S = 30
PEER = """
import asyncio, sys
from shardd.shard.bus import Bus

async def main():
    bus = Bus(sys.argv[1], 1, 2)
    calls = 0
    async def count(payload):
        nonlocal calls
        calls += 1
        return b"%d" % calls
    async def hang(payload):
        await asyncio.sleep(60)
    bus.serve("count", count)
    bus.serve("hang", hang)
    await bus.start()
    print("ready", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def run(scenario: Callable[[str], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(TEST_TIMEOUT_S):
            await scenario(f"ipc://@shardd-test-{uuid.uuid4()}")

    asyncio.run(bounded())


def _popen(prefix: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", PEER, prefix], stdout=subprocess.PIPE, text=True)


async def spawn(prefix: str) -> subprocess.Popen[str]:
    """A process that serves shard 1."""
    process = _popen(prefix)
    assert process.stdout is not None
    assert (await asyncio.to_thread(process.stdout.readline)).strip() == "ready"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_requests_in_the_hands_of_a_killed_process_are_lost_and_the_next_one_serves() -> None:
    async def scenario(prefix: str) -> None:
        bus = Bus(prefix, 0, 2)
        await bus.start()
        first = await spawn(prefix)
        assert await bus.request(1, "count", b"") == b"1"
        hanging = asyncio.create_task(bus.request(1, "hang", b""))
        await asyncio.sleep(0)  # it is on its way before the next one: what is answered later was taken later
        assert await bus.request(1, "count", b"") == b"2"
        end(first)
        bus.peer_down(1)
        with pytest.raises(PeerLost):
            await hanging
        held = asyncio.create_task(bus.request(1, "count", b""))
        second = await spawn(prefix)
        bus.peer_up(1)
        assert await held == b"1"
        await bus.close()
        end(second)

    run(scenario)


def test_requests_that_a_killed_process_never_saw_are_done_once_by_the_next() -> None:
    async def scenario(prefix: str) -> None:
        bus = Bus(prefix, 0, 2)
        await bus.start()
        first = await spawn(prefix)
        assert await bus.request(1, "count", b"") == b"1"
        first.send_signal(signal.SIGSTOP)
        unseen = [asyncio.create_task(bus.request(1, "count", b"")) for _ in range(20)]
        await asyncio.sleep(0.1)
        end(first)
        bus.peer_down(1)
        second = await spawn(prefix)
        bus.peer_up(1)
        assert sorted(int(answer) for answer in await asyncio.gather(*unseen)) == list(range(1, 21))
        assert await bus.request(1, "count", b"") == b"21"
        await bus.close()
        end(second)

    run(scenario)


def test_nothing_is_dropped_while_a_process_is_stopped() -> None:
    async def scenario(prefix: str) -> None:
        bus = Bus(prefix, 0, 2)
        await bus.start()
        process = await spawn(prefix)
        process.send_signal(signal.SIGSTOP)
        requests = [asyncio.create_task(bus.request(1, "count", bytes(1000))) for _ in range(2000)]
        await asyncio.sleep(0.3)
        assert not any(request.done() for request in requests)
        process.send_signal(signal.SIGCONT)
        assert sorted(int(answer) for answer in await asyncio.gather(*requests)) == list(range(1, 2001))
        await bus.close()
        end(process)

    run(scenario)
