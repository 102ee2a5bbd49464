"""Stored records made by hand, and a plain decoder to compare the native one with. From docs/formats.md#log alone."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import xxhash

HEADER = struct.Struct("<16sQQQIIQ")


@dataclass(frozen=True, slots=True)
class Row:
    offset: int
    payload: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    timestamp_us: int = 1_000_000
    origin_us: int = 5
    id: int = 77

    def header_bytes(self) -> bytes:
        return b"".join(
            b"\x02" + struct.pack("<I", len(key)) + key + b"\x01" + struct.pack("<I", len(value)) + value
            for key, value in self.headers
        )

    def encode(self) -> bytes:
        """The record, checksum included."""
        block = self.header_bytes()
        identity = self.id.to_bytes(16, "little")
        numbers = (self.offset, self.timestamp_us, self.origin_us, len(block), len(self.payload), 0)
        body = HEADER.pack(identity, *numbers) + self.payload + block
        return struct.pack("<Q", xxhash.xxh3_64_intdigest(body)) + body

    def checksum(self) -> int:
        return int.from_bytes(self.encode()[:8], "little", signed=True)


def segment(rows: list[Row]) -> tuple[bytes, bytes]:
    """(.log, .index) of rows with dense offsets."""
    log, index = bytearray(), bytearray()
    for number, row in enumerate(rows):
        log += row.encode()
        index += struct.pack("<IIQ", number, len(log), row.timestamp_us)
    return bytes(log), bytes(index)
