"""What the memory of processes holds, and how much of it there is."""

from __future__ import annotations

import contextlib
import mmap
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import psutil

_CHUNK_PAGES: Final = 64
_CHUNK_BYTES: Final = _CHUNK_PAGES * mmap.PAGESIZE
_ENTRY_BYTES: Final = 8
# Bit 63: the page is in memory, bit 62: it is in swap (pagemap of proc(5)).
_HAS_CONTENT: Final = int.from_bytes(_CHUNK_PAGES * bytes([0, 0, 0, 0, 0, 0, 0, 0xC0]), "little")


def _filled_chunks(pid: int) -> Iterator[int]:
    """Addresses of the chunks of private memory of which a page was ever written. A worker reserves gigabytes, and to
    read a page that nothing has written makes it."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    with Path(f"/proc/{pid}/pagemap").open("rb", 0) as pages:
        for begin, end in re.findall(r"^([0-9a-f]+)-([0-9a-f]+) rw", maps, re.M):
            for address in range(int(begin, 16), int(end, 16), _CHUNK_BYTES):
                pages.seek(address // mmap.PAGESIZE * _ENTRY_BYTES)
                count = min(_CHUNK_PAGES, (int(end, 16) - address) // mmap.PAGESIZE)
                if int.from_bytes(pages.read(count * _ENTRY_BYTES), "little") & _HAS_CONTENT:
                    yield address


def memory_holds(pid: int, secret: bytes) -> bool:
    """Whether the bytes stand anywhere in the private memory of a process."""
    with Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for address in [*_filled_chunks(pid)]:  # before the first is read: that may make a page of the next one
            try:
                memory.seek(address)
                if secret in memory.read(_CHUNK_BYTES + len(secret)):  # what begins here may end in the next one
                    return True
            except OSError:  # the kernel's own pages
                continue
    return False


def shared_out_bytes(processes: Iterable[psutil.Process]) -> int:
    """Resident memory of all of them (PSS): a page that two have, as those of the pool of the engine, counts once."""
    found = 0
    for process in processes:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            told = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            found += sum(int(size_kib) << 10 for size_kib in re.findall(r"^Pss:\s+(\d+) kB", told, re.MULTILINE))
    return found
