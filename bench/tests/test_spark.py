"""The pure parts of bench.spark: requests, ranges, the order of works, ratios and verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import numpy as np

from bench.spark import report
from bench.spark.__main__ import interleave, main
from bench.spark.child import peak_mib
from bench.spark.data import HEADER_BYTES, Rows, batches, payloads, sealed_ends, send_request
from bench.spark.lines import LINES, Line, names, select
from bench.spark.report import Cell
from shardd.protocol.bounds import PartitionBounds, SegmentBounds, TopicBounds
from tests.support import wire


def test_a_request_is_what_a_client_would_send() -> None:
    values = payloads(3, 20, np.random.default_rng(1))
    messages = [wire.message(bytes(each), origin_timestamp_us=77) for each in values]
    assert send_request(5, 6, 2, values, 77) == wire.batch(5, 6, wire.to_partition(2), messages)


def test_payloads_differ_and_are_text() -> None:
    values = {bytes(each) for each in payloads(1000, 16, np.random.default_rng(1))}
    assert len(values) == 1000 and all(each.isascii() and each.decode().isprintable() for each in values)


@pytest.mark.parametrize(("rows", "payload_bytes"), [(1, 8), (25_001, 8), (5000, 1024), (3, 4 << 20)])
def test_requests_hold_all_rows_and_are_bounded(rows: int, payload_bytes: int) -> None:
    sizes = list(batches(rows, payload_bytes))
    assert sum(sizes) == rows and min(sizes) > 0
    assert all(size == 1 or size * (HEADER_BYTES + payload_bytes) <= 1 << 20 for size in sizes)


def topic(*segments: tuple[SegmentBounds, ...]) -> TopicBounds:
    partitions = (PartitionBounds(n, 0, 1, 0, 9, 9, 1, 9, each) for n, each in enumerate(segments))
    return TopicBounds(1, 0, "s", "rows", tuple(partitions))


def test_ranges_end_with_the_last_sealed_segment() -> None:
    sealed, more, active = SegmentBounds(0, 4, 1, True), SegmentBounds(4, 6, 1, True), SegmentBounds(6, 9, 1, False)
    ends = sealed_ends(topic((sealed, more, active), (sealed, active)))
    assert ends == (6, 4)
    rows = Rows("s/rows", 100, ends, "127.0.0.1:1", Path("/data"))
    assert (rows.count, rows.log_bytes) == (10, 1640)
    assert rows.options()["endingOffsets"] == '{"s/rows": {"0": 6, "1": 4}}'
    with pytest.raises(ValueError, match="partition 1 of 's' has no sealed segment"):
        sealed_ends(topic((sealed, active), (active,)))


def test_the_order_alternates_and_the_warm_up_does_not_count() -> None:
    line, calls = Line("a", 100, "ours", "reference", 1.0), []

    def run(_: Line, work: str) -> float:
        calls.append(work)
        return float(len(calls))

    found = interleave([line], 2, run)
    assert calls == ["reference", "ours", "ours", "reference", "reference", "ours"]
    assert found == {"a": [[3.0, 6.0], [4.0, 5.0]]}


def test_ratios_are_of_one_round_and_decide_the_verdict() -> None:
    line = Line("a", 100, "ours", "reference", 2.0)
    (row,) = report.rows([line], {"a": Cell(8_000_000, [1.0, 2.0, 4.0], [2.0, 8.0, 4.0])})
    assert row == ["a", "ours", "4", "reference", "2", "2.00 [1.00..4.00]", ">= 2.0: met"]
    (row,) = report.rows([line], {"a": Cell(8_000_000, [1.0], [1.9])})
    assert row[-1] == ">= 2.0: NOT met"


def test_first_row_and_memory_have_verdicts() -> None:
    assert report.first_row([9.0, 12.0, 18.0], [9.0, 10.0, 10.0])[-2:] == ["1.20 [1.00..1.80]", "<= 1.3: met"]
    assert report.first_row([14.0], [10.0])[-1] == "<= 1.3: NOT met"
    small = {"python_mib": 60.0, "heap_mib": 40.0, "jvm_peak_mib": 500.0, "rows": 1e6, "tasks": 4}
    assert report.memory(small, small | {"heap_mib": 45.0})[-2:] == ["1.05", "<= 1.1: met"]
    assert report.memory(small, small | {"heap_mib": 80.0})[-2:] == ["1.40", "<= 1.1: NOT met"]
    assert peak_mib("Name:\tjava\nVmHWM:\t  2048 kB\nVmRSS:\t 1 kB\n") == 2.0


def test_lines_are_chosen_by_pattern(capsys: pytest.CaptureFixture[str]) -> None:
    assert select(["*"]) == set(names()) and len(set(names())) == len(LINES) + 2
    assert select(["archive-*", "first-row"]) == {"archive-1024", "archive-100", "first-row"}
    assert main(["--lines", "nothing"]) == 2 and main(["--rounds", "0"]) == 2
    assert main(["--list"]) == 0
    assert capsys.readouterr().out.split() == list(names())
