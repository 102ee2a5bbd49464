"""Failed logins cost their caller, within bounds."""

from __future__ import annotations

from shardd.security.backoff import (
    FIRST_WAIT_S,
    FORGET_AFTER_S,
    FREE_FAILURES,
    LINE_MAX_S,
    WAIT_MAX_S,
    FailedLogins,
    network_of,
)

HERE = "10.0.0.1"


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
        wait_s = logins.begin(HERE)
        assert wait_s is not None
        waits.append(wait_s)
        clock.now_s += wait_s
        logins.failed(HERE)
    assert waits[:FREE_FAILURES] == [0.0] * FREE_FAILURES
    expected = [FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S]
    assert [round(wait_s, 9) for wait_s in waits[FREE_FAILURES : FREE_FAILURES + 3]] == expected
    assert round(waits[-1], 9) == WAIT_MAX_S
    assert logins.begin("10.0.0.2") == 0.0
    clock.now_s += FORGET_AFTER_S + 1
    assert logins.begin(HERE) == 0.0
    logins.failed(HERE)
    assert logins.begin(HERE) == 0.0
    for _ in range(10):
        logins.failed(HERE)
    assert logins.begin(HERE) != 0.0
    logins.succeeded(HERE)
    assert logins.begin(HERE) == 0.0


def test_the_table_is_capped() -> None:
    logins = FailedLogins(addresses_max=10)
    for number in range(1000):
        logins.failed(f"10.0.{number // 256}.{number % 256}")
    assert len(logins) == 10


def test_networks() -> None:
    assert network_of("10.0.0.1:80") == "10.0.0.1"
    assert network_of("[2001:db8::1]:80") == network_of("[2001:db8::ffff:1]:81") == "2001:db8::/64"
    assert network_of("[2001:db8:0:1::1]:80") != network_of("[2001:db8::1]:80")
    assert network_of("") == ""


def test_attempts_that_come_together_go_one_after_the_other_and_not_for_ever() -> None:
    clock = Clock()
    logins = FailedLogins(clock)
    for _ in range(100):
        logins.failed(HERE)
    moments = [logins.begin(HERE) for _ in range(100)]
    line = int(LINE_MAX_S / WAIT_MAX_S)
    assert moments[:line] == [WAIT_MAX_S * number for number in range(1, line + 1)]
    assert set(moments[line:]) == {None}
    assert logins.begin("10.0.0.2") == 0.0
    clock.now_s = LINE_MAX_S
    assert logins.begin(HERE) == WAIT_MAX_S, "the line has moved on"


def test_who_is_in_the_table_is_said_at_every_change() -> None:
    known: set[str] = set()
    clock = Clock()
    logins = FailedLogins(
        clock, addresses_max=2, changed=lambda network, now: (known.add if now else known.remove)(network)
    )
    for network in ("10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.3"):
        logins.failed(network)
    assert known == {"10.0.0.2", "10.0.0.3"}
    clock.now_s = FORGET_AFTER_S + 1
    logins.failed("10.0.0.2")
    logins.succeeded("10.0.0.3")
    logins.succeeded("10.0.0.4")
    assert known == {"10.0.0.2"}
