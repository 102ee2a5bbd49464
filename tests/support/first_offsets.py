"""Bytes of `consumer-offsets` version 1, as earlier programs wrote them (docs/formats.md#consumer-offsets)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import xxhash

from shardd.log.offsets_table import FIRST_ENTRY_BYTES, FIRST_VERSION, MAGIC, Half, StoredOffset

_HEAD: Final = struct.Struct("<8sIIQ32x")
_HALF: Final = struct.Struct("<QQQ")
_HALF_BYTES: Final = FIRST_ENTRY_BYTES // 2


def _sealed(content: bytes) -> bytes:
    return content + xxhash.xxh3_64_intdigest(content).to_bytes(8, "little")


def first_head(incarnation: int) -> bytes:
    return _sealed(_HEAD.pack(MAGIC, FIRST_VERSION, FIRST_ENTRY_BYTES, incarnation))


def first_half(half: Half) -> bytes:
    return _sealed(_HALF.pack(half.id, half.value, half.sequence | half.kind << 56))


def first_table(incarnation: int, offsets: Iterable[StoredOffset]) -> bytes:
    """A whole file."""
    halves = (first_half(Half(number, *each[:3])) for number, each in enumerate(offsets, 1))
    return first_head(incarnation) + b"".join(half + bytes(_HALF_BYTES) for half in halves)
