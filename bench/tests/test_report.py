"""Figures to verdicts: ratios are formed inside rounds, targets are held against medians."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import __main__ as command
from bench import compare, report, start
from bench.lines import LINES, NAMES, STARTS, Line, Placement, chosen, owner, select, share
from bench.measure import TOUCH_MIN, Cell, Needs
from bench.targets import EPOLL, RING


def cell(*rates: float, p50_us: float = 10.0) -> Cell:
    keys = ("requests_per_s", "mb_per_s")
    times = {"p50_us": p50_us, "p99_us": 20.0, "p999_us": 30.0, "cpu_us_per_request": 5.0}
    rounds = [dict.fromkeys(keys, rate) | times for rate in rates]
    return Cell(rounds=rounds, placement="1:0")


def test_ratio_pairs_the_rounds() -> None:
    found = report.ratio(cell(50, 60, 70), cell(100, 60, 100), "requests_per_s")
    assert found == report.Summary(0.7, 0.5, 1.0, 0.6)
    assert report.ratio(Cell(), cell(1), "requests_per_s") is None


@pytest.mark.parametrize(
    ("rate", "p50_us", "words"), [(70, 13, "met"), (69, 13, "NOT met"), (70, 13.1, "NOT met"), (0, 10, "NOT met")]
)
def test_verdict_at_its_borders(rate: float, p50_us: float, words: str) -> None:
    line = Line("send", 1, 100, 1, Placement.HASH, 0.7, 1.3)
    body = report.rows([line], {line.name: {"floor": cell(100), "shardd": cell(rate, p50_us=p50_us)}})
    assert body[0][-1].endswith(f": {words}")


@pytest.mark.parametrize(("p99_ratio_max", "words"), [(1.0, "met"), (0.9, "NOT met")])
def test_a_tail_can_be_a_target(p99_ratio_max: float, words: str) -> None:
    line = Line("send", 1, 100, 4, Placement.BALANCED, 0.7, threads=2, p99_ratio_max=p99_ratio_max)
    body = report.rows([line], {line.name: {"floor": cell(100), "shardd": cell(100)}})
    assert body[0][-1].endswith(f"p99 <= {p99_ratio_max}x: {words}")


@pytest.mark.parametrize(("slow", "words"), [(81, "met"), (60, "NOT met")])
def test_the_lower_quartile_can_be_a_target(slow: float, words: str) -> None:
    line = Line("send", 100, 1000, 8, Placement.HASH, 0.9, quartile_min=0.8)
    body = report.rows([line], {line.name: {"floor": cell(*[100] * 5), "shardd": cell(slow, slow, 95, 95, 95)}})
    assert body[0][-1].endswith(f"lower quartile >= 0.8: {words}")


@pytest.mark.parametrize(
    ("after", "again", "words"),
    [
        ((95, 95, 95), (100, 94, 100), "held"),  # worse, but the same build differs from itself by more
        ((93, 93, 93), (100, 94, 100), "lost"),
        ((99, 99, 99), (101, 102, 103), "lost"),
        ((101, 101, 101), (102, 103, 104), "held"),  # better than before is never lost
    ],
)
def test_a_line_is_lost_below_what_the_same_build_shows(
    after: tuple[float, ...], again: tuple[float, ...], words: str
) -> None:
    line = Line("send", 1, 100, 1, Placement.HASH, 0.7)
    before = cell(100, 100, 100)
    noise = report.ratio(cell(*again), before, "requests_per_s")
    assert compare.verdict(line, report.ratio(cell(*after), before, "requests_per_s"), noise) == words
    large = Line("send", 1000, 1000, 8, Placement.HASH, 0.7)
    assert compare.verdict(large, report.ratio(cell(1), cell(100), "requests_per_s"), noise) == "not judged"


def test_failed_line_shows_its_error() -> None:
    line = LINES[0]
    body = report.rows([line], {line.name: {"floor": cell(100), "shardd": Cell(error="RuntimeError: status 41\nmore")}})
    assert body[0][-1] == "RuntimeError: status 41"


@pytest.mark.parametrize(("rate", "words"), [(80, "met"), (79, "NOT met")])
def test_the_engine_on_epoll_is_held_against_the_one_on_io_uring(rate: float, words: str) -> None:
    both, other = (Line("send", 1, 100, connections, Placement.HASH, 0.7, None, epoll_ratio_min=at_least)
                   for connections, at_least in ((32, 0.8), (8, None)))  # fmt: skip
    cells = {
        both.name: {"floor": cell(200), "shardd": cell(100), EPOLL: cell(rate)},
        other.name: {"floor": cell(200), "shardd": cell(100)},
    }
    (row,) = report.epoll_rows([both, other], cells)
    assert (row[0], row[3]) == (both.name, f"{rate / 100:.2f} [{rate / 100:.2f}..{rate / 100:.2f}]")
    assert row[-1].endswith(f": {words}")


@pytest.mark.parametrize(("rate", "words"), [(90, "met"), (89, "NOT met")])
def test_shardd_is_held_against_the_floor_on_io_uring_also_when_that_is_the_slower_one(rate: float, words: str) -> None:
    line = Line("send", 1, 100, 32, Placement.HASH, 1.0, ring_ratio_min=0.9)
    cells = {line.name: {"floor": cell(125), "shardd": cell(rate), RING: cell(100)}}
    (row,) = report.ring_rows([line], cells)
    assert row[3].startswith(f"{rate / 100:.2f} ") and row[-2].startswith("0.80 ") and row[-1] == f">= 0.9: {words}"
    assert not report.ring_rows([line], {line.name: {"floor": cell(125), "shardd": cell(rate)}}), "no such floor here"


@pytest.mark.parametrize(("p50_us", "words"), [(8, "met"), (8.1, "NOT met")])
def test_a_worker_that_stays_awake_is_held_to_less_than_the_floor(p50_us: float, words: str) -> None:
    (line,) = select(["busy-send-1x100-c1"])
    assert line.setup.settings == {"SHARDD_SYSTEM_SHARDING_BUSY_POLL": "200us"} and line.connections == 1
    (row,) = report.rows([line], {line.name: {"floor": cell(100), "shardd": cell(100, p50_us=p50_us)}})
    assert row[-1].endswith(f"p50 <= 0.8x: {words}")
    assert row[-2] == "5.0 / 5.0", "what it costs stands beside it"


@pytest.mark.parametrize(("memory", "words"), [(70, "met"), (71, "NOT met")])
def test_starts_are_held_to_their_targets(memory: float, words: str) -> None:
    rounds = {"shardd": [[1, 2, 3, memory, 5, 6], [1, 2, 3, memory, 5, 6]]}
    rows = start.rows(rounds, chosen(STARTS, ["start-memory"]))
    assert [(row[2], row[-1]) for row in rows] == [
        (f"{memory} MiB [{memory}..{memory}]", f"<= 70 MiB: {words}"),
        ("5 MiB [5..5]", ""),
    ]
    assert {row[0] for row in start.rows(rounds, STARTS)} == set(STARTS)
    assert {row[-1] for row in start.rows(rounds, STARTS, shards=1)} == {""}, "the targets are for two shards"


def test_lines_of_the_issue_are_there() -> None:
    names = [line.name for line in LINES]
    for mode in ("send", "poll"):
        for shape in ("1x100-c1", "1x100-c32", "10x100-c8", "100x1000-c8", "1000x1000-c8", "10x100-c8-even"):
            assert f"{mode}-{shape}" in names
    assert "send-10x100-c8-keyed" in names
    assert len(set(names)) == len(names)
    assert [line.name for line in select(["*-c8-keyed"])] == ["send-10x100-c8-keyed"]
    assert {"send-1x100-c1-d32", "send-1x100-c8-d16", "durable-send-1x100-c1-d32"} <= set(names)
    keyed = [line.name for line in select(["*-d32-keyed"])]
    assert keyed == ["send-1x100-c1-d32", "send-1x100-c1-d32-keyed"], "with what it is held against"
    assert "send-1x100-c1-d32-spread" in names
    on_the_ring = {line.name for line in LINES if line.ring_ratio_min is not None}
    small = {f"{mode}-{batch}x100-c{peers}" for mode in ("send", "poll") for batch in (1, 10) for peers in (8, 32)}
    assert on_the_ring == small
    assert select(["start-*"]) == [] and chosen(NAMES, ["start-*"]) == [*STARTS]
    with pytest.raises(ValueError, match="no line is called 'x'"):
        select(["x"])


def test_a_line_needs_twice_the_memory_that_it_has_written_and_all_of_it_at_first() -> None:
    needs, line, other = Needs(1 << 30), *(Line("send", 10, 100, peers, Placement.HASH, 1.0) for peers in (8, 32))
    assert needs.touch_bytes(line) == 1 << 30
    needs.answered(line, 100_000)
    needs.answered(line, 50_000)
    assert needs.touch_bytes(line) == 2 * 100_000 * line.request_bytes
    needs.answered(line, 10)
    assert needs.touch_bytes(other) == 1 << 30
    needs.answered(other, 10)
    assert needs.touch_bytes(other) == TOUCH_MIN
    needs.answered(other, 10**9)
    assert needs.touch_bytes(other) == 1 << 30


def test_owner_is_the_hash_of_the_namespace() -> None:
    assert {owner(stream, 1) for stream in range(50)} == {0}
    owners = [owner(stream, 2) for stream in range(64)]
    assert share(range(64), 2) == f"{owners.count(0)}:{owners.count(1)}"
    assert share([3], 2, 12) != share([3], 2)


def test_quick_run_of_the_floor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--quick", "--floor-only", "--lines", "*1x100-c1", "--duration-ms", "50", "--shards", "1"]
    words += [
        "--directory",
        str(tmp_path),
        "--results",
        str(tmp_path / "raw"),
        "--markdown",
        str(tmp_path / "table.md"),
    ]
    assert command.main(words) == 0
    assert "poll-1x100-c1" in capsys.readouterr().out
    (raw,) = (tmp_path / "raw").iterdir()
    lines = json.loads(raw.read_text())["lines"]
    assert lines["send-1x100-c1"]["floor"]["rounds"][0]["requests"] > 0
    assert "| send-1x100-c1 |" in (tmp_path / "table.md").read_text()


def test_wrong_usage_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--lines", "nothing"]) == 2
    assert command.main(["--quick", "--rounds", "0"]) == 2
    assert command.main(["--shards", "4096"]) == 2
    assert "bench: " in capsys.readouterr().err
