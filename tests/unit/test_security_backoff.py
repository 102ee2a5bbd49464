"""How failed attempts with passwords cost their caller."""

from __future__ import annotations

from shardd.runtime.networks import network_of
from shardd.security.backoff import FIRST_WAIT_S, FREE_FAILURES, WAIT_MAX_S, site_of, wait_s


def test_the_wait_grows_to_its_limit() -> None:
    waits = [wait_s(failures) for failures in range(-3, 40)]
    assert waits[: FREE_FAILURES + 3] == [0.0] * (FREE_FAILURES + 3)
    assert waits[FREE_FAILURES + 3 :][:3] == [FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S]
    assert waits == sorted(waits)
    assert wait_s(1 << 31) == WAIT_MAX_S


def test_networks() -> None:
    assert network_of("10.0.0.1:80") == "10.0.0.1"
    assert network_of("[::ffff:10.0.0.1]:80") == "10.0.0.1"
    assert network_of("[2001:db8::1]:80") == network_of("[2001:db8::ffff:1]:81") == "2001:db8::/64"
    assert network_of("[2001:db8:0:1::1]:80") != network_of("[2001:db8::1]:80")
    assert network_of("") == ""


def test_sites_are_what_one_customer_may_have() -> None:
    assert site_of("10.0.0.1") == "10.0.0.1"
    assert site_of("2001:db8::/64") == site_of("2001:db8:0:ffff::/64") == "2001:db8::/48"
    assert site_of("2001:db8:1::/64") != site_of("2001:db8::/64")
    assert site_of("") == ""
