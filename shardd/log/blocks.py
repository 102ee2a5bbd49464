"""Files of blocks: the plain log of a sealed segment, compressed (docs/formats.md#blocks, docs/adr/0042).

All integers little-endian; checksums are XXH3-64.

    offset size head
    0      8    magic "SHRDBLKS"
    8      4    version 1
    12     4    bytes of a plain block, 65536
    16     8    incarnation of the partition
    24     8    start offset of the segment
    32     8    bytes of the plain log
    40     16   reserved, 0
    56     8    checksum of bytes 0 to 56

    entry, 32 bytes, one for each block, from byte 64 on
    0      8    position of the block in the file
    8      4    bytes stored
    12     1    codec: 1 gzip (raw deflate), 2 lz4, 3 zstd; 0: stored as it is
    13     3    reserved, 0
    16     8    checksum of the plain bytes
    24     8    checksum of bytes 0 to 24, with the number of the block as its seed

Block i has the bytes from 65536 * i on of the plain log, 65536 of them, the last one what is left: sizes follow from
the length of the log, and nobody has to believe one. The head only says what the file is; it is never needed. A record
may lie in several blocks. A block that is damaged reads as zeros, so the records in it fail their checks, as those of a
damaged plain log do. The file is written once, by compressing.py, and read by native/src/log/segment_compressed.c.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import Final

import msgspec
import xxhash

from shardd.engine import _native

MAGIC: Final = b"SHRDBLKS"
VERSION: Final = 1
BLOCK_BYTES: Final = 65536
CODECS: Final = {"gzip": 1, "lz4": 2, "zstd": 3}
_AS_IT_IS: Final = 0

_HEAD: Final = struct.Struct("<8sIIQQQ16s")
_ENTRY: Final = struct.Struct("<QIB3sQ")
_CHECKSUM: Final = struct.Struct("<Q")
HEAD_BYTES: Final = _HEAD.size + _CHECKSUM.size
ENTRY_BYTES: Final = _ENTRY.size + _CHECKSUM.size


Pread = Callable[[int, int, int], bytes]  # as os.pread


class Codec(msgspec.Struct, frozen=True):
    """An algorithm of `CODECS` with a level of its own."""

    name: str
    level: int

    def pack(self, plain: bytes) -> bytes:
        """The stored form; empty when that is not smaller."""
        return _native.pack_block(plain, CODECS[self.name], self.level)


def block_count(plain_bytes: int) -> int:
    """Of a log of that length."""
    return -(-plain_bytes // BLOCK_BYTES)


def data_position(plain_bytes: int) -> int:
    """Where the blocks begin, behind head and table."""
    return HEAD_BYTES + block_count(plain_bytes) * ENTRY_BYTES


def encode_head(incarnation: int, start_offset: int, plain_bytes: int) -> bytes:
    """The first bytes of the file."""
    head = _HEAD.pack(MAGIC, VERSION, BLOCK_BYTES, incarnation, start_offset, plain_bytes, bytes(16))
    return head + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(head))


def plain_bytes_in(head: bytes) -> int | None:
    """The length of the plain log that a head tells; None: it is damaged."""
    body = head[: _HEAD.size]
    if not body.startswith(MAGIC) or head[_HEAD.size :] != _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body)):
        return None
    size: int = _HEAD.unpack(body)[5]
    return size


def encode_block(number: int, plain: bytes, position: int, codec: Codec) -> tuple[bytes, bytes]:
    """(entry, what is stored at `position`)."""
    packed = codec.pack(plain)
    stored = packed or plain
    which = CODECS[codec.name] if packed else _AS_IT_IS
    entry = _ENTRY.pack(position, len(stored), which, bytes(3), xxhash.xxh3_64_intdigest(plain))
    return entry + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(entry, seed=number)), stored


class Blocks:
    """The plain log in an open file of blocks, of which it is known how long it is."""

    def __init__(self, descriptor: int, plain_bytes: int, read: Pread = os.pread) -> None:
        self.plain_bytes = plain_bytes
        self._descriptor, self._pread = descriptor, read
        self._last: tuple[int, bytes] | None = None  # who reads in small steps unpacks each block once

    def block(self, number: int) -> bytes | None:
        """The plain bytes of a block; None when it is damaged. OSError."""
        size = min(BLOCK_BYTES, self.plain_bytes - number * BLOCK_BYTES)
        entry = self._pread(self._descriptor, ENTRY_BYTES, HEAD_BYTES + number * ENTRY_BYTES)
        body = entry[: _ENTRY.size]
        if entry[_ENTRY.size :] != _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body, seed=number)):
            return None
        position, length, which, _, checksum = _ENTRY.unpack(body)
        if not 0 < length <= size or (which == _AS_IT_IS) != (length == size) or which > max(CODECS.values()):
            return None
        stored = self._pread(self._descriptor, length, position)
        plain = stored if which == _AS_IT_IS else _native.unpack_block(stored, which, size)
        return plain if plain is not None and xxhash.xxh3_64_intdigest(plain) == checksum else None

    def read(self, size_bytes: int, position: int) -> bytes:
        """Bytes of the plain log, less only at its end; those of a damaged block are zeros. OSError."""
        end = min(position + size_bytes, self.plain_bytes)
        parts = []
        while position < end:
            number, at = divmod(position, BLOCK_BYTES)
            if self._last is None or self._last[0] != number:
                plain = self.block(number)
                self._last = number, plain or bytes(min(BLOCK_BYTES, self.plain_bytes - number * BLOCK_BYTES))
            parts.append(self._last[1][at : at + end - position])
            position += len(parts[-1])
        return b"".join(parts)

    def unpack(self, target: int) -> None:
        """All of it into an empty file; a hole for each damaged block. OSError."""
        os.ftruncate(target, self.plain_bytes)
        for number in range(block_count(self.plain_bytes)):
            plain = self.block(number)
            if plain is not None:
                os.pwrite(target, plain, number * BLOCK_BYTES)
