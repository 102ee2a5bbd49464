"""Memory of large blocks goes back to the kernel when they are freed.

The allocator of glibc maps large blocks on their own, but counts those that are freed as a sign that such sizes come
again: from then on they lie among small ones, which keep the memory of a crowd's answers for as long as the process
lives. A threshold that is set stays.
"""

from __future__ import annotations

import ctypes
from typing import Final

THRESHOLD_BYTES: Final = 512 << 10  # above what asyncio allocates for each read of a socket (256 KiB)
_M_MMAP_THRESHOLD: Final = -3


def give_back_large_blocks() -> bool:
    """False: the C library has no such setting."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_MMAP_THRESHOLD, THRESHOLD_BYTES))
