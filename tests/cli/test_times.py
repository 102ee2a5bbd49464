"""Times at which a reader begins: dates, ages, and numbers by their size."""

from __future__ import annotations

import pytest

from shardd.cli.reading import Start, start_of, time_us

DATE_S = 1_767_225_600  # 2026-01-01


@pytest.mark.parametrize("text", ["2026-01-01T00:00:00Z", "1767225600", "1767225600000", "1767225600000000"])
def test_time_in_any_unit_is_the_same_time(text: str) -> None:
    """The output of `date +%s`, the times of other systems in milliseconds, and ours."""
    assert time_us(text) == DATE_S * 1_000_000
    assert start_of("@" + text) == Start("time", DATE_S * 1_000_000)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("99999999999", 99_999_999_999_000_000),
        ("100000000000", 100_000_000_000_000),
        ("99999999999999", 99_999_999_999_999_000),
        ("100000000000000", 100_000_000_000_000),
        ("18446744073709551615", (1 << 64) - 1),
    ],
)
def test_number_at_the_bound_of_a_unit_is_taken_by_its_digits(text: str, expected: int) -> None:
    assert time_us(text) == expected
