"""A server whose wall clock a test sets, by libfaketime; the time since the boot stays that of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest


class WallClock:
    """`env`: for the server. It is read anew at every look at the clock."""

    def __init__(self, tmp_path: Path) -> None:
        libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
        if not libraries:
            pytest.skip("libfaketime is not installed")
        self._path = tmp_path / "clock"
        self.set(0)
        self.env = {
            "LD_PRELOAD": str(libraries[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, ahead_s: int) -> None:
        """In one step: no look finds the file empty."""
        replacement = self._path.with_name("clock.new")
        replacement.write_text(f"{ahead_s:+d}")
        replacement.replace(self._path)
