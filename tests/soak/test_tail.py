"""The short form of `make soak-tail`, and its checker on planted faults."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.soak.tail import follow, problems

ACKNOWLEDGED = {(0, "message 1"), (0, "message 2"), (3, "message 3")}
WHOLE = ["0 0 message 1", "3 0 message 3", "0 1 message 2", "0 2 message 4"]


def test_what_is_followed_has_no_gap_while_workers_and_the_server_are_killed(tmp_path: Path) -> None:
    assert asyncio.run(follow(0.25, 7, 4.0, tmp_path)) == []


def test_the_checker_is_content_with_what_is_whole() -> None:
    assert problems(WHOLE, ACKNOWLEDGED) == []


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (WHOLE[1:], "partition 0: offset 1 where 0 is next"),
        ([*WHOLE, "3 0 message 3"], "partition 3: offset 0 where 1 is next"),
        ([*WHOLE[:2], "0 1 message 9", *WHOLE[3:]], "partition 0: 'message 2' was acknowledged and never written"),
        (WHOLE[:2], "partition 0: 'message 2' was acknowledged and never written"),
        ([*WHOLE, "0 4 message 6"], "partition 0: offset 4 where 3 is next"),
    ],
)
def test_a_planted_gap_repetition_or_loss_is_found(lines: list[str], sentence: str) -> None:
    assert any(sentence in each for each in problems(lines, ACKNOWLEDGED))
