"""What is known of the clocks, for the next start (docs/adr/0127-one-believed-clock.md): a clock that jumps while the
server is down is doubted, too.

<data>/retention.clock, all integers little-endian:

    offset size
    0      8    magic "SHRDCLK2"
    8      8    the believed time, in microseconds since the epoch
    16     8    time since the boot of the machine (CLOCK_BOOTTIME) in microseconds
    24     36   id of that boot, as the kernel tells it; zeros: not known
    60     8    the time that is stamped
    68     8    for how long a jump of the clock is doubted by which things age; 0: none is
    76     8    the same for stamps
    84     64   four times: the first stamp of what was stored while a clock was doubted that was right; when that ended
    148    8    XXH3-64 of bytes 0 to 148

Version 1 ("SHRDCLK1") ends behind the id of the boot, with the same checksum.
"""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import xxhash

from shardd.log import layout
from shardd.runtime.boot import boot_text
from shardd.runtime.regular_files import read_regular

if TYPE_CHECKING:
    from shardd.engine import ExpiryClock

FILE_NAME: Final = "retention.clock"
_MAGIC: Final = b"SHRDCLK2"
_MAGIC_BEFORE: Final = b"SHRDCLK1"
_FIELDS: Final = struct.Struct("<8sQQ36s")
_MORE: Final = struct.Struct("<QQQ64s")
_CHECKSUM: Final = struct.Struct("<Q")
_NO_DOUBTS: Final = bytes(64)


class Recalled(NamedTuple):
    """What `shared_clock_begin` takes: times of `since_boot_us` (0: of now), 0: as the wall clock says. They are of
    that moment, however late the process comes to write or to use them."""

    believed_us: int = 0
    stamps_us: int = 0
    believed_doubted_us: int = 0
    stamps_doubted_us: int = 0
    doubts: bytes = _NO_DOUBTS
    since_boot_us: int = 0

    def now_us(self) -> int:
        """What is believed now, 0: nothing is known."""
        passed_us = _since_boot_us() - self.since_boot_us if self.since_boot_us else 0
        return self.believed_us + passed_us if self.believed_us else 0


def _since_boot_us() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def encode(known: Recalled, boot: bytes, since_boot_us: int) -> bytes:
    """The whole file."""
    body = _FIELDS.pack(_MAGIC, known.believed_us, since_boot_us, boot) + _MORE.pack(*known[1:5])
    return body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))


def remember(data: Path, known: Recalled) -> None:
    """Blocks. OSError."""
    content = encode(known, boot_text(), known.since_boot_us or _since_boot_us())
    layout.write_durably(data / FILE_NAME, content)


def recalled(data: Path) -> Recalled:
    """What is known by the last time that was remembered; without a boot since then, exactly. After one, what time it
    was, by which things age: how long the machine was off nothing tells, and stamps go by the clock of that boot."""
    try:
        found = read_regular(data / FILE_NAME)
    except (OSError, ValueError):
        return Recalled()
    body, checksum = found[: -_CHECKSUM.size], found[-_CHECKSUM.size :]
    if checksum != _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body)):
        return Recalled()
    if len(body) == _FIELDS.size + _MORE.size and body.startswith(_MAGIC):
        stamps_us, believed, stamps, doubts = _MORE.unpack_from(body, _FIELDS.size)
    elif len(body) == _FIELDS.size and body.startswith(_MAGIC_BEFORE):
        stamps_us, believed, stamps, doubts = 0, 0, 0, _NO_DOUBTS
    else:
        return Recalled()
    _, now_us, since_us, boot = _FIELDS.unpack_from(body)
    if boot != boot_text() or not any(boot) or _since_boot_us() < since_us:
        return Recalled(now_us, doubts=doubts)
    return Recalled(now_us, stamps_us, believed, stamps, doubts, since_us)


def known_of(clock: ExpiryClock) -> Recalled:
    return Recalled(
        clock.now_us, clock.stamp_us, clock.believed_doubted_us, clock.stamps_doubted_us, clock.doubts,
        clock.since_boot_us,
    )  # fmt: skip
