"""The bus between real processes: kill -9 and SIGSTOP of a peer."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from shardd.runtime import bus as bus_module
from shardd.runtime.bus import PeerLost
from tests.support.bus_peers import BusPeers

TEST_TIMEOUT_S = 120
ROOT = Path(__file__).parents[2]
PEER = """
import asyncio, sys
from shardd.runtime.bus import Senders
from tests.support.bus_peers import bus_of_text

async def main():
    bus = bus_of_text(sys.argv[1])
    calls = 0
    async def count(sender, payload):
        nonlocal calls
        calls += 1
        return b"%d" % calls
    async def hang(sender, payload):
        await asyncio.sleep(600)
    bus.serve("count", Senders.ANY_SHARD, count)
    bus.serve("hang", Senders.ANY_SHARD, hang)
    await bus.start()
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that starts on a busy machine may take longer than requests wait for one."""
    monkeypatch.setattr(bus_module, "PEER_HOLD_MS", 60_000)


def run(scenario: Callable[[BusPeers], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(TEST_TIMEOUT_S):
            with BusPeers(2) as peers:
                await scenario(peers)

    asyncio.run(bounded())


def _popen(peers: BusPeers) -> subprocess.Popen[str]:
    place = peers.place(1)
    command = [sys.executable, "-c", PEER, place.encode()]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=place.trust.descriptors(), cwd=ROOT)


async def spawn(peers: BusPeers) -> subprocess.Popen[str]:
    """A process that serves shard 1."""
    process = _popen(peers)
    assert process.stdout is not None
    assert (await asyncio.to_thread(process.stdout.readline)).strip() == "ready"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_requests_in_the_hands_of_a_killed_process_are_lost_and_the_next_one_serves() -> None:
    async def scenario(peers: BusPeers) -> None:
        bus = peers.bus(0)
        await bus.start()
        first = await spawn(peers)
        assert await bus.request(1, "count", b"") == b"1"
        hanging = asyncio.create_task(bus.request(1, "hang", b""))
        await asyncio.sleep(0)  # it is on its way before the next one: what is answered later was taken later
        assert await bus.request(1, "count", b"") == b"2"
        end(first)
        peers.ended(1)
        bus.peer_down(1)
        with pytest.raises(PeerLost):
            await hanging
        held = asyncio.create_task(bus.request(1, "count", b""))
        second = await spawn(peers)
        bus.peer_up(1)
        assert await held == b"1"
        await bus.close()
        end(second)

    run(scenario)


def test_requests_that_a_killed_process_never_saw_are_done_once_by_the_next() -> None:
    async def scenario(peers: BusPeers) -> None:
        bus = peers.bus(0)
        await bus.start()
        first = await spawn(peers)
        assert await bus.request(1, "count", b"") == b"1"
        first.send_signal(signal.SIGSTOP)
        unseen = [asyncio.create_task(bus.request(1, "count", b"")) for _ in range(20)]
        await asyncio.sleep(0.1)
        end(first)
        peers.ended(1)
        bus.peer_down(1)
        second = await spawn(peers)
        bus.peer_up(1)
        assert sorted(int(answer) for answer in await asyncio.gather(*unseen)) == list(range(1, 21))
        assert await bus.request(1, "count", b"") == b"21"
        await bus.close()
        end(second)

    run(scenario)


def test_nothing_is_dropped_while_a_process_is_stopped() -> None:
    async def scenario(peers: BusPeers) -> None:
        bus = peers.bus(0)
        await bus.start()
        process = await spawn(peers)
        process.send_signal(signal.SIGSTOP)
        requests = [asyncio.create_task(bus.request(1, "count", bytes(1000))) for _ in range(2000)]
        await asyncio.sleep(0.3)
        assert not any(request.done() for request in requests)
        process.send_signal(signal.SIGCONT)
        assert sorted(int(answer) for answer in await asyncio.gather(*requests)) == list(range(1, 2001))
        await bus.close()
        end(process)

    run(scenario)
