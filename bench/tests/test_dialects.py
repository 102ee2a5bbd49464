"""The table of `python -m bench.dialects`, and one short run of it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bench import dialects
from bench.dialects import SPEAKERS, Shape, cpu_ns, table


def _row(used: float) -> str:
    cells = {kind.name: [10.0, 20.0, 30.0] for kind in SPEAKERS} | {"0.9": [used, 2 * used, 3 * used]}
    return table({("send", Shape(1, 100, 0.9)): cells}).splitlines()[-1]


def test_a_ratio_is_of_the_classic_dialect_in_the_same_round() -> None:
    assert "0.91 [0.91..0.91]" in _row(11.0) and _row(11.0).endswith(">= 0.9: met")
    assert "0.80 [0.80..0.80]" in _row(12.5) and _row(12.5).endswith(">= 0.9: NOT met")


def test_the_clock_of_a_process_counts_its_work() -> None:
    began = cpu_ns(os.getpid())
    until = time.process_time() + 0.05
    while time.process_time() < until:
        continue
    assert cpu_ns(os.getpid()) - began >= 45_000_000


def test_every_dialect_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--rounds", "1", "--requests", "20", "--shapes", "1x100", "10x100", "--directory", str(tmp_path)]
    assert dialects.main(words) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[2:]] == [
        "send-1x100",
        "poll-1x100",
        "send-10x100",
        "poll-10x100",
    ]
