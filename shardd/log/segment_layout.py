"""How the records of a segment can be kept (docs/adr/0028-format-version-2.md): the layouts that this version knows.

`bits` stand in the manifest; the bit 8 (sparse) stands beside them, it says which offsets have a record and not how
records are kept. A layout comes to life here, in segment_reader.py (how Python reads it) and behind
native/src/log/segment_reader.h (how polls read it).
"""

from __future__ import annotations

from typing import Final

import msgspec

from shardd.protocol.record_layout import LAYOUT_COMPRESSED, LAYOUT_PLAIN, LAYOUT_SPARSE

_NAMES: Final = {1: "compressed", 2: "encrypted", 4: "remote"}  # the last two are planned


class SegmentLayout(msgspec.Struct, frozen=True):
    """`suffix` of the file that has the records."""

    name: str
    bits: int
    suffix: str


PLAIN: Final = SegmentLayout("plain", LAYOUT_PLAIN, "log")
COMPRESSED: Final = SegmentLayout("compressed", LAYOUT_COMPRESSED, "blocks")
KNOWN: Final = {each.bits: each for each in (PLAIN, COMPRESSED)}


def name_of(bits: int) -> str:
    """Of any layout: "compressed and remote"."""
    if bits in KNOWN:
        return KNOWN[bits].name
    return " and ".join(_NAMES.get(1 << i, f"bit {1 << i}") for i in range(8) if bits & 1 << i & ~LAYOUT_SPARSE)
