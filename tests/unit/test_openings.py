"""Handshakes take turns: those of an address that opens many come behind the others, and leave them more time."""

from __future__ import annotations

import asyncio

import pytest

from shardd.doors.openings import PER_ADDRESS, Openings
from shardd.runtime.networks import network_of_host


def test_an_address_that_opens_many_comes_behind_the_others() -> None:
    ran: list[str] = []

    async def main() -> None:
        openings, done = Openings(lambda: 0.0), asyncio.Event()
        for number in range(PER_ADDRESS + 5):
            openings.enter("192.0.2.1", lambda number=number: ran.append(f"many {number}"))  # type: ignore[misc]
        openings.enter("192.0.2.2", lambda: ran.append("few"))
        openings.enter("192.0.2.1", done.set)
        await done.wait()

    asyncio.run(main())
    assert ran.index("few") == PER_ADDRESS
    assert len(ran) == PER_ADDRESS + 6


def test_handshakes_of_trusted_proxies_take_turns_with_the_others() -> None:
    ran: list[str] = []

    async def main() -> None:
        openings, done = Openings(lambda: 0.0), asyncio.Event()
        for number in range(2 * PER_ADDRESS):
            openings.enter("192.0.2.9", lambda number=number: ran.append(f"proxy {number}"), of_proxy=True)  # type: ignore[misc]
        openings.enter("192.0.2.1", lambda: ran.append("few"))
        openings.enter("192.0.2.2", lambda: ran.append("few"))
        openings.enter("192.0.2.9", done.set, of_proxy=True)
        await done.wait()

    asyncio.run(main())
    assert ran[:4].count("few") == 2, "clients of a proxy hold up no client of another address"
    assert ran.index(f"proxy {PER_ADDRESS + 1}") < 2 * PER_ADDRESS, "they have no bound by address"


def test_addresses_of_one_network_are_one_address() -> None:
    ran: list[str] = []

    async def main() -> None:
        openings, done = Openings(lambda: 0.0), asyncio.Event()
        for number in range(2 * PER_ADDRESS):
            openings.enter(f"2001:db8::{number:x}", lambda: ran.append("many"))
        openings.enter("2001:db8:0:1::1", lambda: ran.append("few"))
        openings.enter("2001:db8::1", done.set)
        await done.wait()

    asyncio.run(main())
    assert ran.index("few") == PER_ADDRESS


def test_everything_else_has_as_long_as_a_step_took() -> None:
    used_s, others = 0.0, 0

    def step() -> None:
        nonlocal used_s
        used_s += 0.02

    async def main() -> None:
        nonlocal others
        openings, done = Openings(lambda: used_s), asyncio.Event()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        openings.enter("192.0.2.1", step)
        openings.enter("192.0.2.2", done.set)
        while not done.is_set():
            others += 1
            await asyncio.sleep(0)
        assert loop.time() - began_s >= 0.02

    asyncio.run(main())
    assert others > 1


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_networks_of_hosts(host: str, network: str) -> None:
    assert network_of_host(host) == network
