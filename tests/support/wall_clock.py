"""A server whose wall clock a test sets (clock_preload.c); the time since the boot stays that of the machine."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final

from tests.support.built import shared_library

SOURCE: Final = Path(__file__).with_name("clock_preload.c")


class WallClock:
    """By how much the wall clock of all processes of a server is ahead of the machine's. `env`: for the server."""

    def __init__(self, directory: Path, also: tuple[str, ...] = ()) -> None:
        """`directory`: for the library and the shared file. `also`: other clocks that follow the wall clock."""
        library, shared = directory / "clock_preload.so", directory / "clock"
        library.write_bytes(shared_library(SOURCE))
        shared.write_bytes(bytes(8))
        with shared.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8)
        self.library = str(library)
        self.env = {"LD_PRELOAD": self.library, "CLOCK_CONTROL": str(shared)}
        if also:
            self.env["CLOCK_ALSO"] = ",".join(also)

    def set(self, ahead_s: int) -> None:
        self.set_us(ahead_s * 1_000_000)

    def set_us(self, ahead_us: int) -> None:
        """In one step: a look at the clock sees the value before or this one."""
        self._map[:] = struct.pack("<q", ahead_us)
