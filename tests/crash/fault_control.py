"""A server whose calls of the disk can be made to fail from outside (fault_preload.c)."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from tests.support.built import shared_library

OPERATIONS = ("open", "write", "read", "sync", "truncate", "allocate", "rename", "unlink", "mkdir")
SOURCE = Path(__file__).with_name("fault_preload.c")
_FIELDS = struct.Struct("<9I220s256s")
_FOR_EVER = 2**31
FAIL, SHORT, LIE, DIE, TORN, HANG, AFTER = range(7)
AFTER_OF = ("sync", "rename")


class FaultControl:
    """The shared file below `directory`, and the library; `environment` is what the server needs."""

    def __init__(self, directory: Path) -> None:
        library, shared = directory / "fault_preload.so", directory / "fault_control"
        library.write_bytes(shared_library(SOURCE))
        shared.write_bytes(bytes(_FIELDS.size))
        with shared.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _FIELDS.size)
        self.environment = {"LD_PRELOAD": str(library), "FAULT_CONTROL": str(shared)}

    def arm(
        self,
        operation: str,
        path_part: str,
        at: int,
        error: int,
        *,
        for_ever: bool = False,
        how: int = FAIL,
        sector: int | None = None,
    ) -> None:
        """From now on: call `at` (from 1; 0: calls are only counted) of this operation on such a path fails, or (reads
        and writes) does half, or (writes) nothing while it claims to have done all, or its process is killed before it
        or (writes) in the middle of it or (`AFTER_OF`) after it, or it hangs until `disarm`. A path_part with a $ at
        its end is the end of the path. `sector`: only reads of that byte of a file.

        What an engine on io_uring submits to its ring (reads of files, syncs of what sends have written) counts only
        where a process is to die: the kernel makes those calls, nothing can stand before them."""
        assert how != AFTER or operation in AFTER_OF
        times = _FOR_EVER if for_ever else 1
        fields = (
            OPERATIONS.index(operation) + 1,
            at,
            times,
            error,
            how,
            0,
            0,
            0 if sector is None else sector + 1,
            0,
            path_part.encode(),
            b"",
        )
        self._map[4:] = _FIELDS.pack(*fields)[4:]
        self._map[:4] = _FIELDS.pack(*fields)[:4]  # last: the rest must be there when it counts

    def disarm(self) -> tuple[int, int, str]:
        """Since `arm`: calls seen, calls failed and the path of the last one that failed."""
        self._map[:4] = bytes(4)
        fields = _FIELDS.unpack(self._map[:])
        return fields[5], fields[6], fields[10].rstrip(b"\0").decode()

    @property
    def was_on_ring(self) -> bool:
        """Whether the last call that was due since `arm` was an entry of a ring."""
        return bool(_FIELDS.unpack(self._map[:])[8])

    @property
    def has_failed_any(self) -> bool:
        """Whether a call has failed since `arm`, or hangs."""
        return bool(_FIELDS.unpack(self._map[:])[6])
