"""Subscriptions start and stop as those of Liftbridge do (Lb appendix A). Messages of the log are 10 us apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shardd.protocol.liftbridge.positions import (
    NO_STOP,
    Asked,
    Log,
    PositionError,
    Span,
    span_of,
    start_timestamp_us,
    stop_timestamp_us,
)
from shardd.protocol.liftbridge.positions import StartPosition as Start
from shardd.protocol.liftbridge.positions import StopPosition as Stop

T0_US = 1_700_000_000_000_000
EMPTY, TEN, THIRTEEN = Log(-1, -1), Log(0, 9), Log(0, 12)
READONLY, READONLY_EMPTY = Log(0, 2, readonly=True), Log(-1, -1, readonly=True)
COMPACTED, TRIMMED = Log(7, 10), Log(6, 9)


def t(offset: int) -> int:
    """When that message came, in ns."""
    return (T0_US + 10 * offset) * 1000


def first_from(log: Log) -> Callable[[int], int | None]:
    def look_up(timestamp_us: int) -> int | None:
        assert 0 <= timestamp_us < 1 << 64 and log.newest >= 0
        offsets = range(log.oldest, log.newest + 1)
        return next((offset for offset in offsets if T0_US + 10 * offset >= timestamp_us), None)

    return look_up


def offset(number: int, stop: int = Stop.STOP_ON_CANCEL, stop_offset: int = 0) -> Asked:
    return Asked(Start.OFFSET, number, stop=stop, stop_offset=stop_offset)


def since(ns: int) -> Asked:
    return Asked(Start.TIMESTAMP, start_timestamp_ns=ns)


def until(ns: int, start: int = Start.EARLIEST, start_offset: int = 0) -> Asked:
    return Asked(start, start_offset, stop=Stop.STOP_TIMESTAMP, stop_timestamp_ns=ns)


SPANS = [
    (EMPTY, Asked(Start.NEW_ONLY), Span(0)),
    (EMPTY, Asked(Start.EARLIEST), Span(0)),
    (EMPTY, Asked(Start.LATEST), Span(0)),
    (EMPTY, offset(5), Span(0)),
    (EMPTY, since(t(4)), Span(0)),
    (EMPTY, Asked(Start.NEW_ONLY, stop=Stop.STOP_OFFSET, stop_offset=3), Span(0, 3)),
    (TEN, Asked(Start.EARLIEST), Span(0)),
    (TEN, Asked(Start.LATEST), Span(9)),
    (TEN, offset(7), Span(7)),
    (TEN, offset(-1), Span(0)),
    (TEN, offset(-(1 << 63)), Span(0)),
    (TEN, offset(100), Span(10)),
    (TEN, offset((1 << 63) - 1), Span(10)),
    (TEN, Asked(Start.NEW_ONLY), Span(10)),
    (TEN, since(t(4)), Span(4)),
    (TEN, since(t(4) + 1), Span(5)),
    (TEN, since(0), Span(0)),
    (TEN, since(-5), Span(0)),
    (TEN, since((1 << 63) - 1), Span(10)),
    (TEN, Asked(Start.EARLIEST, stop=Stop.STOP_OFFSET, stop_offset=3), Span(0, 3)),
    (TEN, offset(3, Stop.STOP_OFFSET, 3), Span(3, 3)),
    (THIRTEEN, offset(10, Stop.STOP_OFFSET, -1), Span(10)),
    (THIRTEEN, offset(10, Stop.STOP_LATEST), Span(10, 12)),
    (THIRTEEN, offset(11, Stop.STOP_OFFSET, 14), Span(11, 14)),
    (TEN, until(t(4)), Span(0, 4)),
    (TEN, until(t(4) + 1), Span(0, 4)),
    (TEN, until(t(4) - 1), Span(0, 3)),
    (THIRTEEN, until((1 << 63) - 1, Start.OFFSET, 10), Span(10, 12)),
    (READONLY, Asked(Start.EARLIEST), Span(0, 2)),
    (READONLY, Asked(Start.LATEST), Span(2, 2)),
    (READONLY, offset(3, Stop.STOP_OFFSET, 5), Span(3, 2, ends_readonly=True)),
    (READONLY, Asked(Start.EARLIEST, stop=Stop.STOP_OFFSET, stop_offset=9), Span(0, 2, ends_readonly=True)),
    (READONLY_EMPTY, Asked(Start.EARLIEST), Span(0, ends_readonly=True)),
    (READONLY_EMPTY, Asked(Start.NEW_ONLY), Span(0, ends_readonly=True)),
    (COMPACTED, offset(2), Span(7)),
    (TRIMMED, Asked(Start.EARLIEST), Span(6)),
    (TRIMMED, offset(1), Span(6)),
]
REFUSED = [
    (EMPTY, Asked(stop=Stop.STOP_LATEST), "RESOURCE_EXHAUSTED", "Stream is empty"),
    (EMPTY, until(t(4)), "INTERNAL", "EOF"),
    (TEN, Asked(9), "INVALID_ARGUMENT", "Unknown StartPosition 9"),
    (TEN, Asked(stop=9), "INVALID_ARGUMENT", "Unknown StopPosition 9"),
    (TEN, offset(4, Stop.STOP_OFFSET, 3), "INVALID_ARGUMENT", "Stop offset is before start offset: 3 < 4"),
    (THIRTEEN, offset(10, Stop.STOP_OFFSET, -2), "INVALID_ARGUMENT", "Stop offset is before start offset: -2 < 10"),
    (THIRTEEN, Asked(stop=Stop.STOP_LATEST), "INVALID_ARGUMENT", "12 < 13"),
    (TEN, until(t(0) - 1), "INTERNAL", "timestamp is before the beginning of the log"),
    (TEN, until(-5), "INTERNAL", "timestamp is before the beginning of the log"),
    (TRIMMED, until(t(5)), "INTERNAL", "timestamp is before the beginning of the log"),
    (READONLY, Asked(Start.NEW_ONLY), "INVALID_ARGUMENT", "2 < 3"),
    (READONLY, offset(3), "INVALID_ARGUMENT", "2 < 3"),
    (
        COMPACTED,
        Asked(Start.EARLIEST, stop=Stop.STOP_OFFSET, stop_offset=1),
        "INVALID_ARGUMENT",
        "1 < 7",
    ),
]


@pytest.mark.parametrize(("log", "asked", "span"), SPANS)
def test_what_is_read(log: Log, asked: Asked, span: Span) -> None:
    assert span_of(asked, log, first_from(log)) == span


@pytest.mark.parametrize(("log", "asked", "code", "text"), REFUSED)
def test_what_is_refused(log: Log, asked: Asked, code: str, text: str) -> None:
    with pytest.raises(PositionError, match=text) as refused:
        span_of(asked, log, first_from(log))
    assert refused.value.code.value == code


@pytest.mark.parametrize("start", Start)
@pytest.mark.parametrize("stop", Stop)
@pytest.mark.parametrize("log", [EMPTY, TEN, READONLY, READONLY_EMPTY, COMPACTED, TRIMMED])
def test_a_span_lies_in_the_log_or_right_behind_it(log: Log, start: int, stop: int) -> None:
    numbers = (-(1 << 63), -2, -1, 0, 1, 7, 9, 10, 11, 1 << 40, (1 << 63) - 1)
    for number in numbers:
        for limit in numbers:
            asked = Asked(start, number, number, stop, limit, limit)
            try:
                span = span_of(asked, log, first_from(log))
            except PositionError:
                continue
            assert max(0, log.oldest) <= span.start <= log.newest + 1
            assert span.ends_readonly or span.stop == NO_STOP or span.stop >= span.start


def test_times_of_the_log_have_microseconds() -> None:
    assert [start_timestamp_us(ns) for ns in (-1, 0, 1, 999, 1000, 1001)] == [0, 0, 1, 1, 1, 2]
    assert [stop_timestamp_us(ns) for ns in (-1, 0, 1, 999, 1000, 1001)] == [-1, 0, 0, 0, 1, 1]
