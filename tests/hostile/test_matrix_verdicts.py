"""Verdicts of `make test-net`: how measurements of a line are judged, and which verdicts a later run keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.hostile.matrix.__main__ import Rounds, known
from tests.hostile.matrix.judge import Measured
from tests.hostile.matrix.lines import LINES
from tests.hostile.matrix.report import Report

LINE: Final = LINES[0]
ASKED: Final = 200


def measured(p99_ms: float, new_ms: float = 1.0, findings: tuple[str, ...] = ()) -> Measured:
    """98 of a hundred answers come within a millisecond."""
    steady_ms = [1.0] * (ASKED - 4) + [p99_ms] * 4
    return Measured([*findings], steady_ms, [new_ms] * 3, 0, 0, Report(entered=1))


def findings(control: list[Measured], beside: list[Measured]) -> list[str]:
    return Rounds(control, beside).verdict("c", LINE, 1.0).findings


@pytest.mark.parametrize(
    ("control_ms", "beside_ms", "holds"),
    [(1.0, 99.0, True), (1.0, 101.0, False), (40.0, 119.0, True), (40.0, 121.0, False)],
)
def test_p99_of_others_may_be_three_times_that_of_the_control_or_100_ms(
    control_ms: float, beside_ms: float, holds: bool
) -> None:
    found = findings([measured(control_ms)] * 3, [measured(beside_ms)] * 3)
    assert (not found) == holds and all(each.startswith("p99 of others") for each in found)


def test_newcomers_that_wait_are_found() -> None:
    found = findings([measured(1.0)] * 3, [measured(1.0, new_ms=500.0)] * 3)
    assert [each.partition(" is ")[0] for each in found] == ["the median of newcomers"]


def test_one_slow_round_of_three_is_not_found_and_two_are() -> None:
    quick, slow = measured(1.0), measured(900.0)
    assert not findings([quick] * 3, [quick, slow, quick])
    assert findings([quick] * 3, [slow, quick, slow])


def test_findings_of_each_round_and_of_the_control_are_told() -> None:
    bad = measured(1.0, findings=("door http is another process",))
    assert findings([measured(1.0)] * 3, [measured(1.0), bad, measured(1.0)]) == ["door http is another process"]
    assert findings([bad], [measured(1.0)]) == ["control: door http is another process"]


def test_verdicts_of_this_commit_are_kept_and_those_of_another_or_cut_off_are_not(tmp_path: Path) -> None:
    path = tmp_path / "verdicts"
    assert known(path, "c") == {}
    first, second = (Rounds([measured(1.0)], [measured(1.0)]).verdict("c", line, 1.0) for line in LINES[:2])
    other = msgspec.structs.replace(second, commit="d")
    lines = [msgspec.json.encode(each) for each in (first, other, second)]
    path.write_bytes(b"\n".join(lines)[:-5])
    assert known(path, "c") == {first.line: first}
    assert known(path, "d") == {second.line: other}
