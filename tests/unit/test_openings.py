"""Handshakes take turns: those of an address that opens many come behind the others, and leave them more time."""

from __future__ import annotations

import asyncio
import weakref

import pytest

from shardd.doors.openings import CPU_PER_ADDRESS_S, PER_ADDRESS, Openings
from shardd.runtime.networks import network_of_host
from tests.unit.virtual_time import run_virtually


def test_an_address_that_opens_many_takes_turns_with_the_others() -> None:
    ran: list[str] = []

    async def main() -> None:
        openings, done = Openings(lambda: 0.0), asyncio.Event()
        for number in range(PER_ADDRESS + 5):
            openings.enter("192.0.2.1", lambda number=number: ran.append(f"many {number}"))  # type: ignore[misc]
        openings.enter("192.0.2.2", lambda: ran.append("few"))
        openings.enter("192.0.2.1", done.set)
        await done.wait()

    asyncio.run(main())
    assert ran[1] == "few"
    ran.remove("few")
    assert ran == [f"many {number}" for number in range(PER_ADDRESS + 5)], "each waits behind earlier ones"


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
    assert ran.index("few") == 1


@pytest.mark.parametrize(("steps", "step_s"), [(PER_ADDRESS, 0.0), (1, CPU_PER_ADDRESS_S)])
def test_an_address_that_took_much_has_one_of_four_turns_beside_the_others(steps: int, step_s: float) -> None:
    ran: list[str] = []
    used_s = 0.0

    def take() -> None:
        nonlocal used_s
        used_s += step_s

    async def main() -> None:
        openings, done = Openings(lambda: used_s), asyncio.Event()
        for _ in range(steps):
            openings.enter("192.0.2.1", take)
        await asyncio.sleep(2 * CPU_PER_ADDRESS_S)
        for _ in range(3):
            openings.enter("192.0.2.1", lambda: ran.append("many"))
        for number in range(8):
            openings.enter(f"198.51.100.{number}", lambda: ran.append("few"))
        openings.enter("198.51.100.8", done.set)
        await done.wait()

    run_virtually(main())
    assert ran[:10] == ["few", "few", "few", "many"] * 2 + ["few", "few"]


def test_turns_go_on_when_all_that_came_behind_the_others_have_left() -> None:
    async def main() -> None:
        openings, done = Openings(lambda: 0.0), asyncio.Event()
        for _ in range(PER_ADDRESS):
            openings.enter("192.0.2.1", lambda: None)
        await asyncio.sleep(0.1)
        behind = openings.enter("192.0.2.1", lambda: None)
        for number in range(2):
            openings.enter(f"198.51.100.{number}", lambda: None)
        openings.enter("198.51.100.2", lambda: openings.leave(behind))
        openings.enter("198.51.100.3", done.set)
        await done.wait()

    run_virtually(main())


def test_an_entry_that_is_left_is_not_kept_and_not_called() -> None:
    class Held: ...

    async def main() -> None:
        openings = Openings(lambda: 0.0)
        held, ran = Held(), list[str]()
        kept = weakref.ref(held)
        first = openings.enter("192.0.2.1", lambda: ran.append("first"))
        entry = openings.enter("192.0.2.1", lambda held=held: ran.append(f"left {held}"))  # type: ignore[misc]
        alone = openings.enter("192.0.2.2", lambda held=held: ran.append(f"left {held}"))  # type: ignore[misc]
        openings.leave(entry)
        openings.leave(alone)
        openings.leave(alone)
        del held, entry, alone
        assert kept() is None, "the line keeps it until its turn"
        await asyncio.sleep(0.01)
        assert ran == ["first"] and not openings._waiting and not openings._few
        openings.leave(first)

    asyncio.run(main())


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
