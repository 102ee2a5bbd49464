"""Texts of sizes, durations and addresses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardd.config import units
from shardd.config.schema import NEVER


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("10 MB", 10_000_000),
        ("1 GiB", 1 << 30),
        ("1gib", 1 << 30),
        ("1.5 KiB", 1536),
        ("4096", 4096),
        (4096, 4096),
        ("64 B", 64),
        ("unlimited", 0),
        ("0", 0),
    ],
)
def test_sizes(text: object, size: int) -> None:
    assert units.parse_size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "10 XB", "-1", -1, True, 1.5, "MB", "1 MB 2", "9999999999 GiB"])
def test_no_sizes(text: object) -> None:
    with pytest.raises(ValueError, match=r"is no size|out of range"):
        units.parse_size_bytes(text)


@pytest.mark.parametrize(
    ("text", "duration_us"),
    [
        ("1 m", 60_000_000),
        ("7 days", 604_800_000_000),
        ("2h 30m", 9_000_000_000),
        ("1s500ms", 1_500_000),
        ("0.25 s", 250_000),
        ("10 us", 10),
        ("none", 0),
        (0, 0),
    ],
)
def test_durations(text: object, duration_us: int) -> None:
    assert units.parse_duration_us(text) == duration_us


@pytest.mark.parametrize("text", ["", "30", 30, "s", "5 parsecs", "1 m and", True, "-1 s"])
def test_no_durations(text: object) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        units.parse_duration_us(text)


def test_expiry_and_topic_size() -> None:
    assert units.parse_expiry_us("none") == NEVER
    assert units.parse_expiry_us("7 days") == 604_800_000_000
    assert units.parse_max_size_bytes("unlimited") == NEVER
    for text in ("0", "0 s", "4294967296 s"):
        with pytest.raises(ValueError, match="out of range"):
            units.parse_expiry_us(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8090", "127.0.0.1:8090"),
        ("localhost:0", "127.0.0.1:0"),
        ("0.0.0.0:65535", "0.0.0.0:65535"),
        ("[::1]:8090", "[::1]:8090"),
        ("[0:0::1]:1", "[::1]:1"),
    ],
)
def test_addresses(text: str, address: str) -> None:
    assert units.parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", ":1", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "::1:80", "[127.0.0.1]:1", 8090, "a:1"]
)
def test_no_addresses(text: object) -> None:
    with pytest.raises(ValueError, match="is no address"):
        units.parse_address(text)


@given(st.integers(0, 2**62))
def test_sizes_are_written_exactly(size: int) -> None:
    assert units.parse_size_bytes(units.format_size(size)) == size


@given(st.integers(0, 2**62))
def test_durations_are_written_exactly(duration_us: int) -> None:
    assert units.parse_duration_us(units.format_duration_us(duration_us)) == duration_us
