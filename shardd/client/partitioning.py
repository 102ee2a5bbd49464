"""Which partition a message goes to."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

Partitioner = Callable[[bytes, bytes, int], int]
"""(key, payload, partitions) -> partition"""

_P1: Final = 2654435761
_P2: Final = 2246822519
_P3: Final = 3266489917
_P4: Final = 668265263
_P5: Final = 374761393
_MASK: Final = 0xFFFF_FFFF
_STRIPE: Final = struct.Struct("<IIII")
_WORD: Final = struct.Struct("<I")


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _MASK


def xxh32(data: bytes) -> int:
    """XXH32 with seed 0, by which the server and all clients choose the partition of a key."""
    size, at = len(data), 0
    if size >= 16:
        lanes = [(_P1 + _P2) & _MASK, _P2, 0, -_P1 & _MASK]
        while at <= size - 16:
            words = _STRIPE.unpack_from(data, at)
            lanes = [
                _rotated((lane + word * _P2) & _MASK, 13) * _P1 & _MASK for lane, word in zip(lanes, words, strict=True)
            ]
            at += 16
        hashed = sum(_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
    else:
        hashed = _P5
    hashed = (hashed + size) & _MASK
    while at <= size - 4:
        hashed = _rotated((hashed + _WORD.unpack_from(data, at)[0] * _P3) & _MASK, 17) * _P4 & _MASK
        at += 4
    for byte in data[at:]:
        hashed = _rotated((hashed + byte * _P5) & _MASK, 11) * _P1 & _MASK
    hashed = (hashed ^ hashed >> 15) * _P2 & _MASK
    hashed = (hashed ^ hashed >> 13) * _P3 & _MASK
    return hashed ^ hashed >> 16


def by_key(key: bytes, _payload: bytes, partitions: int) -> int:
    """The one of the server."""
    return xxh32(key) % partitions
