"""Requests between workers that a shard does not answer: users have shares of the places."""

from __future__ import annotations

import asyncio
from collections import Counter

from shardd.runtime.asker import ASKER, SERVER, Asker
from shardd.runtime.bus import REQUESTS_IN_FLIGHT_MAX, Senders
from tests.unit.test_bus import run, shards


def test_requests_of_a_user_that_are_not_answered_leave_places_to_others() -> None:
    """Also those that nobody waits for any more."""

    async def scenario() -> None:
        async with shards(2) as (bus, peer):
            release = asyncio.Event()
            begun = Counter[bytes]()

            async def block(sender: int, payload: bytes) -> bytes:
                begun[payload] += 1
                if payload == b"user":
                    await release.wait()
                return payload

            async def ask(asker: Asker, payload: bytes) -> bytes:
                ASKER.set(asker)
                return await bus.request(1, "block", payload)

            peer.serve("block", Senders.ANY_SHARD, block)
            hosts = [f"1.1.1.{number}" for number in range(20)]
            crowd = [
                asyncio.create_task(ask(Asker("user", host), b"user"))
                for host in hosts
                for _ in range(REQUESTS_IN_FLIGHT_MAX // 4)
            ]
            while begun[b"user"] < REQUESTS_IN_FLIGHT_MAX // 2:  # noqa: ASYNC110 - bounded by the scenario's timeout
                await asyncio.sleep(0.01)
            for request in crowd[: len(crowd) // 2]:
                request.cancel()
            for number in range(REQUESTS_IN_FLIGHT_MAX // 2):
                assert await ask(Asker(f"other {number}", hosts[0]), b"other") == b"other"
            assert await ask(SERVER, b"other") == b"other"
            assert begun[b"user"] == REQUESTS_IN_FLIGHT_MAX // 2, "its others wait"
            release.set()
            assert set(await asyncio.gather(*crowd[len(crowd) // 2 :])) == {b"user"}

    run(scenario)
