"""What time it was when the server was last up, so that a clock that jumps while it is down is doubted, too
(docs/adr/0055-a-clock-that-jumped-while-the-server-was-down.md).

<data>/retention.clock, all integers little-endian:

    offset size
    0      8    magic "SHRDCLK1"
    8      8    time by which messages expire, in microseconds since the epoch
    16     8    time since the boot of the machine (CLOCK_BOOTTIME) in microseconds
    24     36   id of that boot, as the kernel tells it; zeros: not known
    60     8    XXH3-64 of bytes 0 to 60
"""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Final

import xxhash

from shardd.log import layout
from shardd.runtime.boot import boot_text
from shardd.runtime.regular_files import read_regular

FILE_NAME: Final = "retention.clock"
_MAGIC: Final = b"SHRDCLK1"
_FIELDS: Final = struct.Struct("<8sQQ36s")
_CHECKSUM: Final = struct.Struct("<Q")


def _boot() -> tuple[bytes, int]:
    """Id of this boot, zeros where nobody tells it, and microseconds since then."""
    return boot_text(), time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def encode(now_us: int, boot: bytes, since_boot_us: int) -> bytes:
    """The whole file."""
    body = _FIELDS.pack(_MAGIC, now_us, since_boot_us, boot)
    return body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))


def remember(data: Path, now_us: int) -> None:
    """Blocks. OSError."""
    layout.write_durably(data / FILE_NAME, encode(now_us, *_boot()))


def recalled_us(data: Path) -> int:
    """What time it is by the last time that was remembered; without a boot since then, exactly. After one, what time it
    was: how long the machine was off nobody knows. 0: nothing is known."""
    try:
        found = read_regular(data / FILE_NAME)
    except (OSError, ValueError):
        return 0
    body = found[: _FIELDS.size]
    if len(body) < _FIELDS.size or found[_FIELDS.size :] != _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body)):
        return 0
    magic, now_us, since_us, boot = _FIELDS.unpack(body)
    if magic != _MAGIC:
        return 0
    this_boot, this_us = _boot()
    same = boot == this_boot and any(boot) and this_us >= since_us
    return int(now_us + this_us - since_us) if same else int(now_us)
