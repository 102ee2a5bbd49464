"""Requests between shards wait longer for a shard that stands still, and never without a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from shardd.runtime import bus as bus_module
from shardd.runtime.bus import Bus
from shardd.runtime.channel import RequestTimeoutError, Senders
from shardd.runtime.control_messages import Standing
from shardd.runtime.patience import AT_ONCE
from tests.support.bus_peers import BusPeers

STANDING = {1: Standing(1, "device", 0)}
TIMEOUT_S = 0.2
ANSWERED_AFTER_S = 0.6


async def pair(peers: BusPeers) -> tuple[Bus, Bus]:
    """Two shards; the second one answers "slow" after ANSWERED_AFTER_S."""
    asker, answerer = peers.bus(0), peers.bus(1)

    async def slow(sender: int, payload: bytes) -> bytes:
        await asyncio.sleep(ANSWERED_AFTER_S)
        return b"late"

    async def quick(sender: int, payload: bytes) -> bytes:
        return b"mine"

    answerer.serve("slow", Senders.ANY_SHARD, slow)
    asker.serve("slow", Senders.ANY_SHARD, quick)
    await answerer.start()
    await asker.start()
    return asker, answerer


def with_pair(check: Callable[[Bus], Awaitable[None]]) -> None:
    async def run() -> None:
        asker, answerer = await pair(peers)
        try:
            async with asyncio.timeout(20):
                await check(asker)
        finally:
            await asker.close()
            await answerer.close()

    with BusPeers(2) as peers:
        asyncio.run(run())


def test_a_request_to_a_shard_that_is_well_ends_with_its_timeout() -> None:
    async def check(asker: Bus) -> None:
        with pytest.raises(RequestTimeoutError):
            await asker.request(1, "slow", b"", TIMEOUT_S)

    with_pair(check)


@pytest.mark.parametrize("told_before", [True, False])
def test_a_request_waits_for_a_shard_that_stands_still(told_before: bool) -> None:
    async def check(asker: Bus) -> None:
        if told_before:
            asker.patience.follow(STANDING)
        request = asyncio.create_task(asker.request(1, "slow", b"", TIMEOUT_S))
        await asyncio.sleep(TIMEOUT_S / 3)
        asker.patience.follow(STANDING)
        assert await request == b"late"

    with_pair(check)


def test_when_the_shard_goes_on_a_request_has_its_whole_timeout_again_and_no_more() -> None:
    async def check(asker: Bus) -> None:
        asker.patience.follow(STANDING)
        request = asyncio.create_task(asker.request(1, "slow", b"", TIMEOUT_S))
        await asyncio.sleep(TIMEOUT_S)
        asker.patience.follow({})
        with pytest.raises(RequestTimeoutError):
            await request

    with_pair(check)


def test_the_patience_has_a_bound() -> None:
    async def check(asker: Bus) -> None:
        asker.patience.follow(STANDING)
        with pytest.raises(RequestTimeoutError):
            await asker.request(1, "slow", b"", TIMEOUT_S, patience_s=TIMEOUT_S * 2)

    with_pair(check)


def test_who_has_another_way_does_not_wait() -> None:
    async def check(asker: Bus) -> None:
        asker.patience.follow(STANDING)
        with pytest.raises(RequestTimeoutError):
            await asker.request(1, "slow", b"", TIMEOUT_S, patience_s=None)

    with_pair(check)


@pytest.mark.parametrize("told_before", [True, False])
def test_figures_are_gathered_without_the_shard_that_stands_still(told_before: bool) -> None:
    async def check(asker: Bus) -> None:
        if told_before:
            asker.patience.follow(STANDING)
        gathering = asyncio.create_task(asker.gather("slow", b"", 10.0, patience_s=AT_ONCE))
        await asyncio.sleep(TIMEOUT_S / 3)
        asker.patience.follow(STANDING)
        assert await gathering == [b"mine"]

    with_pair(check)


def test_a_shard_that_stood_still_itself_does_not_end_its_requests() -> None:
    async def check(asker: Bus) -> None:
        request = asyncio.create_task(asker.request(1, "slow", b"", TIMEOUT_S))
        await asyncio.sleep(TIMEOUT_S / 3)
        asker.patience.forgive(ANSWERED_AFTER_S)
        assert await request == b"late"

    with_pair(check)


def test_a_dead_shard_whose_successor_stands_still_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus_module, "PEER_HOLD_MS", 200)

    async def check(asker: Bus) -> None:
        asker.peer_down(1)
        asker.patience.follow(STANDING)
        request = asyncio.create_task(asker.request(1, "slow", b""))
        await asyncio.sleep(0.5)
        asker.peer_up(1)
        assert await request == b"late"

    with_pair(check)
