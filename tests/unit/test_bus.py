"""The bus over real ZeroMQ, several shards in one process."""

from __future__ import annotations

import asyncio
import selectors
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shardd.runtime.bus import (
    MESSAGES_AT_ONCE,
    PEER_HOLD_MS,
    REQUESTS_IN_FLIGHT_MAX,
    Bus,
    PeerLost,
    PeerUnavailableError,
    RemoteError,
    RequestTimeoutError,
    Senders,
)
from tests.support.bus_peers import BusPeers

TEST_TIMEOUT_S = 30


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(TEST_TIMEOUT_S):
            await scenario()

    asyncio.run(bounded())


async def started(peers: BusPeers, shard: int) -> Bus:
    bus = peers.bus(shard)

    async def echo(sender: int, payload: bytes) -> bytes:
        return bytes([shard]) + payload

    bus.serve("echo", Senders.ANY_SHARD, echo)
    await bus.start()
    return bus


@asynccontextmanager
async def shards(count: int) -> AsyncIterator[list[Bus]]:
    with BusPeers(count) as peers:
        buses = [await started(peers, shard) for shard in range(count)]
        try:
            yield buses
        finally:
            for bus in buses:
                await bus.close()


def test_every_shard_answers_every_shard_and_itself() -> None:
    async def scenario() -> None:
        async with shards(3) as buses:
            for bus in buses:
                for target in range(3):
                    assert await bus.request(target, "echo", b"hello") == bytes([target]) + b"hello"

    run(scenario)


def test_empty_and_large_payloads() -> None:
    async def scenario() -> None:
        async with shards(2) as (bus, _):
            assert await bus.request(1, "echo", b"") == b"\x01"
            large = bytes(range(256)) * 40_000
            assert await bus.request(1, "echo", large) == b"\x01" + large

    run(scenario)


def test_a_failing_handler_is_an_error_answer_and_the_shard_lives_on() -> None:
    async def scenario() -> None:
        async def broken(sender: int, payload: bytes) -> bytes:
            raise ValueError("planted")

        async with shards(2) as buses:
            for bus in buses:
                bus.serve("broken", Senders.ANY_SHARD, broken)
            for target in (0, 1):
                with pytest.raises(RemoteError, match="planted"):
                    await buses[0].request(target, "broken", b"")
                with pytest.raises(RemoteError, match="does not serve nonsense"):
                    await buses[0].request(target, "nonsense", b"")
                assert await buses[0].request(target, "echo", b"!") == bytes([target]) + b"!"

    run(scenario)


def test_gather_asks_all_live_shards() -> None:
    async def scenario() -> None:
        async with shards(3) as buses:
            assert await buses[1].gather("echo", b"x") == [b"\x00x", b"\x01x", b"\x02x"]
            buses[1].peer_down(2)
            assert await buses[1].gather("echo", b"x") == [b"\x00x", b"\x01x"]

    run(scenario)


def test_gather_leaves_out_a_shard_that_dies_meanwhile() -> None:
    async def scenario() -> None:
        async with shards(3) as buses:
            hanging = asyncio.Event()

            async def answer(sender: int, payload: bytes) -> bytes:
                return b"here"

            async def hang(sender: int, payload: bytes) -> bytes:
                hanging.set()
                await asyncio.Event().wait()
                return b""

            for bus, handler in zip(buses, (answer, answer, hang), strict=True):
                bus.serve("who", Senders.ANY_SHARD, handler)
            gathering = asyncio.create_task(buses[0].gather("who", b""))
            await hanging.wait()
            await asyncio.sleep(0.05)
            buses[0].peer_down(2)
            assert await gathering == [b"here", b"here"]

    run(scenario)


def test_a_request_to_a_dead_shard_waits_for_its_next_process() -> None:
    async def scenario() -> None:
        with BusPeers(2) as peers:
            bus = await started(peers, 0)
            peers.ended(1)
            bus.peer_down(1)
            request = asyncio.create_task(bus.request(1, "echo", b"later"))
            await asyncio.sleep(0.2)
            assert not request.done()
            peer = await started(peers, 1)
            bus.peer_up(1)
            assert await request == b"\x01later"
            await peer.close()
            await bus.close()

    run(scenario)


def test_a_request_that_was_not_taken_is_done_once_by_the_next_process() -> None:
    async def scenario() -> None:
        with BusPeers(2) as peers:
            bus = await started(peers, 0)  # its requests go to a queue: nobody serves shard 1 yet
            requests = [asyncio.create_task(bus.request(1, "count", b"")) for _ in range(5)]
            await asyncio.sleep(0.05)
            peers.ended(1)
            bus.peer_down(1)
            calls = 0

            async def count(sender: int, payload: bytes) -> bytes:
                nonlocal calls
                calls += 1
                return b"%d" % calls

            peer = await started(peers, 1)
            peer.serve("count", Senders.ANY_SHARD, count)
            await asyncio.sleep(0.1)
            bus.peer_up(1)
            assert sorted(await asyncio.gather(*requests)) == [b"1", b"2", b"3", b"4", b"5"]
            await asyncio.sleep(0.2)
            assert calls == 5
            await peer.close()
            await bus.close()

    run(scenario)


def test_a_request_to_a_shard_that_stays_dead_fails_after_the_hold() -> None:
    async def scenario() -> None:
        with BusPeers(2) as peers:
            bus = await started(peers, 0)
            bus.peer_down(1)
            loop = asyncio.get_running_loop()
            before = loop.time()
            with pytest.raises(PeerUnavailableError):
                await bus.request(1, "echo", b"")
            assert PEER_HOLD_MS / 1000 * 0.9 <= loop.time() - before < PEER_HOLD_MS / 1000 + 2
            await bus.close()

    run(scenario)


def test_a_request_in_the_hands_of_a_shard_that_dies_is_lost() -> None:
    async def scenario() -> None:
        async with shards(2) as (bus, peer):
            taken = asyncio.Event()

            async def hang(sender: int, payload: bytes) -> bytes:
                taken.set()
                await asyncio.Event().wait()
                return b""

            peer.serve("hang", Senders.ANY_SHARD, hang)
            request = asyncio.create_task(bus.request(1, "hang", b""))
            await taken.wait()
            await asyncio.sleep(0.05)
            bus.peer_down(1)
            with pytest.raises(PeerLost):
                await request
            bus.peer_up(1)
            assert await bus.request(1, "echo", b"") == b"\x01"

    run(scenario)


def test_no_answer_in_time() -> None:
    async def scenario() -> None:
        async with shards(2) as (bus, peer):

            async def slow(sender: int, payload: bytes) -> bytes:
                await asyncio.sleep(0.2)
                return b""

            peer.serve("slow", Senders.ANY_SHARD, slow)
            with pytest.raises(RequestTimeoutError):
                await bus.request(1, "slow", b"", timeout_s=0.05)
            assert await bus.request(1, "slow", b"", timeout_s=5) == b""

    run(scenario)


def test_others_get_a_turn_between_many_requests() -> None:
    """A socket that has more messages never makes its reader wait."""

    async def scenario() -> None:
        async with shards(2) as (bus, peer):
            turn, begun = 0, Counter[int]()

            async def tick() -> None:
                nonlocal turn
                while True:
                    await asyncio.sleep(0)
                    turn += 1

            async def work(sender: int, payload: bytes) -> bytes:
                begun[turn] += 1
                return payload

            peer.serve("work", Senders.ANY_SHARD, work)
            ticking = asyncio.create_task(tick())
            await asyncio.gather(*(bus.request(1, "work", b"") for _ in range(REQUESTS_IN_FLIGHT_MAX)))
            ticking.cancel()
            assert begun.total() == REQUESTS_IN_FLIGHT_MAX
            assert max(begun.values()) <= MESSAGES_AT_ONCE

    run(scenario)


def test_requests_beyond_the_limit_wait_and_none_is_dropped() -> None:
    async def scenario() -> None:
        async with shards(2) as (bus, peer):
            running = most = 0

            async def work(sender: int, payload: bytes) -> bytes:
                nonlocal running, most
                running += 1
                most = max(most, running)
                await asyncio.sleep(0.02)
                running -= 1
                return payload

            peer.serve("work", Senders.ANY_SHARD, work)
            payloads = [b"%d" % number for number in range(3000)]
            answers = await asyncio.gather(*(bus.request(1, "work", payload) for payload in payloads))
            assert answers == payloads
            assert REQUESTS_IN_FLIGHT_MAX // 2 < most <= REQUESTS_IN_FLIGHT_MAX

    run(scenario)


def test_a_request_that_nobody_waits_for_keeps_its_room_until_it_is_answered() -> None:
    async def scenario() -> None:
        async with shards(2) as (bus, peer):
            release = asyncio.Event()
            running = 0

            async def block(sender: int, payload: bytes) -> bytes:
                nonlocal running
                running += 1
                await release.wait()
                return payload

            peer.serve("block", Senders.ANY_SHARD, block)
            abandoned = [asyncio.create_task(bus.request(1, "block", b"")) for _ in range(REQUESTS_IN_FLIGHT_MAX)]
            while running < REQUESTS_IN_FLIGHT_MAX:  # noqa: ASYNC110 - bounded by the timeout of the scenario
                await asyncio.sleep(0.01)
            for request in abandoned:
                request.cancel()
            one_more = asyncio.create_task(bus.request(1, "block", b"more"))
            assert await bus.request(1, "echo", b"other methods pass") == b"\x01other methods pass"
            await asyncio.sleep(0.1)
            assert running == REQUESTS_IN_FLIGHT_MAX
            release.set()
            assert await one_more == b"more"

    run(scenario)


def test_watchers_hear_of_every_change_once() -> None:
    async def scenario() -> None:
        async with shards(2) as (bus, _):
            heard: list[tuple[int, bool]] = []

            def broken(shard: int, up: bool) -> None:
                raise ValueError("planted")

            bus.watch(broken)
            bus.watch(lambda shard, up: heard.append((shard, up)))
            for change in (bus.peer_up, bus.peer_down, bus.peer_down, bus.peer_up, bus.peer_up):
                change(1)
            bus.peer_down(0)  # a shard is never told about itself
            assert heard == [(1, False), (1, True)]
            assert bus.is_up(0)

    run(scenario)


def test_two_handlers_of_one_method_are_refused() -> None:
    async def scenario() -> None:
        async with shards(1) as (bus,):
            with pytest.raises(ValueError, match="already"):
                bus.serve("echo", Senders.ANY_SHARD, lambda _, payload: asyncio.sleep(0, payload))

    run(scenario)


def test_garbage_from_a_peer_is_skipped() -> None:
    async def scenario() -> None:
        with BusPeers(2) as peers:
            bus = await started(peers, 0)
            peer = await started(peers, 1)
            socket = peer._links[0]._socket
            assert socket is not None
            for frames in ([b"one"], [b"\xc1", b""], [b"\x92\x01\x02", b""], [b"1", b"2", b"3"]):
                await socket.send_multipart(frames)
            assert await peer.request(0, "echo", b"") == b"\x00"
            await peer.close()
            await bus.close()

    run(scenario)


def test_on_a_loop_with_a_selector_of_its_own() -> None:
    class Selector(selectors.EpollSelector):
        turns = 0

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            Selector.turns += 1
            return super().select(timeout)

    async def scenario() -> None:
        async with shards(2) as (bus, _):
            for number in range(50):
                assert await bus.request(1, "echo", b"%d" % number) == b"\x01%d" % number

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(Selector())) as runner:
        runner.run(asyncio.wait_for(scenario(), TEST_TIMEOUT_S))
    assert Selector.turns > 50
