"""What stands in the memory of a process."""

from __future__ import annotations

import re
from pathlib import Path


def memory_holds(pid: int, secret: bytes) -> bool:
    """Whether the bytes stand anywhere in the private memory of a process."""
    with Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for begin, end, rights in re.findall(
            r"^([0-9a-f]+)-([0-9a-f]+) (rw)", Path(f"/proc/{pid}/maps").read_text(), re.M
        ):
            assert rights == "rw"
            try:
                memory.seek(int(begin, 16))
                if secret in memory.read(int(end, 16) - int(begin, 16)):
                    return True
            except OSError:  # the kernel's own pages
                continue
    return False
