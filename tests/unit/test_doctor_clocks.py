"""`shardd doctor` names partitions that carry times ahead of the clock that the server believes."""

from __future__ import annotations

import time
from pathlib import Path

from shardd.cli.doctor.report import Finding
from shardd.cli.doctor.retention import retention_findings
from shardd.config.loader import load_settings
from shardd.log.sealing import seal_segment
from shardd.maintenance import clock_memory
from shardd.runtime.throttle import Throttle
from tests.unit import log_files
from tests.unit.backup_data import DataDirectory

HOUR_US = 3_600_000_000


def ahead(data: DataDirectory) -> list[Finding]:
    settings = load_settings(None, {}, {"system.path": str(data.path)}).settings
    return [each for each in retention_findings(settings) if "times ahead of the clock" in each.finding]


def test_partitions_with_times_ahead_of_the_believed_clock_are_named(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path / "data")
    assert ahead(data) == []
    later_us = time.time_ns() // 1000 + 2 * HOUR_US
    data.fill(2, log_files.segment(0, [4], later_us))
    seal_segment(data.partition(2), 0, data.incarnation(2), Throttle())
    [finding] = ahead(data)
    assert finding.finding == "1 partitions carry times ahead of the clock, up to 2.0 h: renamed/t/2"
    clock_memory.remember(data.path, clock_memory.Recalled(later_us))  # as the server believes, it is so late
    assert ahead(data) == []
