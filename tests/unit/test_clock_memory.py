"""What a start knows of the clocks (docs/adr/0127-one-believed-clock.md)."""

from __future__ import annotations

import time
from pathlib import Path

import xxhash

from shardd.maintenance import clock_memory
from shardd.runtime.boot import boot_text


def test_a_file_of_version_1_leaves_stamps_to_the_wall_clock(tmp_path: Path) -> None:
    since_us = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
    body = b"SHRDCLK1" + (10**15).to_bytes(8, "little") + since_us.to_bytes(8, "little") + boot_text()
    (tmp_path / clock_memory.FILE_NAME).write_bytes(body + xxhash.xxh3_64_digest(body)[::-1])
    known = clock_memory.recalled(tmp_path)
    assert known.believed_us >= 10**15
    assert known.stamps_us == 0
