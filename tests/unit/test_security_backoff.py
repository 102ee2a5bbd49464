"""Failed logins cost their caller, within bounds."""

from __future__ import annotations

import asyncio
import time

from shardd.security.backoff import (
    FIRST_WAIT_S,
    FORGET_AFTER_S,
    FREE_FAILURES,
    WAIT_MAX_S,
    FailedLogins,
    network_of,
)

HERE = "10.0.0.1:4711"


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_the_wait_grows_to_its_limit_and_ends() -> None:
    clock = Clock()
    logins = FailedLogins(clock)
    waits = []
    for _ in range(40):
        waits.append(logins.wait_s(HERE))
        logins.failed(HERE)
    assert waits[:FREE_FAILURES] == [0.0] * FREE_FAILURES
    assert waits[FREE_FAILURES : FREE_FAILURES + 3] == [FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S]
    assert waits[-1] == WAIT_MAX_S
    assert logins.wait_s("10.0.0.1:99") == WAIT_MAX_S, "the port does not matter"
    assert logins.wait_s("10.0.0.2:99") == 0.0
    clock.now_s = FORGET_AFTER_S + 1
    assert logins.wait_s(HERE) == 0.0
    logins.failed(HERE)
    assert logins.wait_s(HERE) == 0.0
    for _ in range(10):
        logins.failed(HERE)
    logins.succeeded(HERE)
    assert logins.wait_s(HERE) == 0.0


def test_the_table_is_capped() -> None:
    logins = FailedLogins(addresses_max=10)
    for number in range(1000):
        logins.failed(f"10.0.{number // 256}.{number % 256}:1")
    assert len(logins) == 10


def test_networks() -> None:
    assert network_of("10.0.0.1:80") == "10.0.0.1"
    assert network_of("[2001:db8::1]:80") == network_of("[2001:db8::ffff:1]:81") == "2001:db8::/64"
    assert network_of("[2001:db8:0:1::1]:80") != network_of("[2001:db8::1]:80")
    assert network_of("") == ""


def test_attempts_of_one_address_go_one_after_the_other() -> None:
    async def run() -> tuple[float, float]:
        logins = FailedLogins()
        for _ in range(FREE_FAILURES):
            logins.failed(HERE)

        async def attempt() -> None:
            async with logins.turn(HERE):
                pass

        started = time.monotonic()
        await asyncio.gather(*(attempt() for _ in range(4)))
        elsewhere = time.monotonic()
        async with logins.turn("10.0.0.2:1"):
            pass
        return elsewhere - started, time.monotonic() - elsewhere

    waited_s, elsewhere_s = asyncio.run(run())
    assert waited_s >= 4 * FIRST_WAIT_S
    assert elsewhere_s < FIRST_WAIT_S
