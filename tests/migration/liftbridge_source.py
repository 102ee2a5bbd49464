"""Writes data directories as a Liftbridge server leaves them: from the description of the format and an example of the
real server's bytes (EXAMPLE), with a checksum of its own, not with what reads them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.keywrap import aes_key_wrap_with_padding

EXAMPLE = bytes.fromhex(
    "0000000000000000 18e9ee4febeabec8 000000000000003d 0000003a"
    "32eb555c 01 00 00000002 6b31 00000005 68656c6c6f 0002"
    "0007 7375626a656374 0000000b 6f72646572732e696e2e31"
    "0005 7265706c79 00000000".replace(" ", "")
)
EPOCH_NS = 1_795_227_953_511_710_408


def crc32c(data: bytes) -> int:
    """Castagnoli, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


class Entry(NamedTuple):
    """One message; `headers` beside those that Liftbridge adds itself."""

    offset: int
    value: bytes | None
    key: bytes | None = None
    headers: Mapping[str, bytes] = MappingProxyType({})
    subject: str = "in"
    reply: str = ""
    timestamp_ns: int = EPOCH_NS


def record(entry: Entry, epoch: int = 61) -> bytes:
    headers = {**entry.headers} | {"subject": entry.subject.encode(), "reply": entry.reply.encode()}
    rest = bytes([1, 0]) + _part(entry.key, 4) + _part(entry.value, 4) + len(headers).to_bytes(2, "big")
    rest += b"".join(_part(name.encode(), 2) + _part(value, 4) for name, value in headers.items())
    head = entry.offset.to_bytes(8, "big") + entry.timestamp_ns.to_bytes(8, "big") + epoch.to_bytes(8, "big")
    return head + (len(rest) + 4).to_bytes(4, "big") + crc32c(rest).to_bytes(4, "big") + rest


def _part(content: bytes | None, width: int) -> bytes:
    return b"\xff" * width if content is None else len(content).to_bytes(width, "big") + content


def write_partition(
    directory: Path, segments: dict[int, list[Entry]], watermark: int | None = None, tail: bytes = b""
) -> Path:
    """`segments`: by base offset. The last one gets `tail` behind its records."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, (base, entries) in enumerate(segments.items()):
        content = b"".join(map(record, entries)) + (tail if number == len(segments) - 1 else b"")
        (directory / f"{base:020d}.log").write_bytes(content)
        (directory / f"{base:020d}.index").write_bytes(bytes(10 << 10))  # preallocated; nobody believes it
    entries = [entry for part in segments.values() for entry in part]
    if watermark is None and entries:
        watermark = entries[-1].offset
    if watermark is not None:
        (directory / "replication-offset-checkpoint").write_text(f"{watermark}")
    (directory / "leader-epoch-checkpoint").write_text("0\n1\n61 0\n")
    return directory


def write_stream(source: Path, name: str, *partitions: dict[int, list[Entry]]) -> Path:
    for number, segments in enumerate(partitions):
        write_partition(source / "streams" / name / str(number), segments)
    return source / "streams" / name


def cursor(stream: str, partition: int, cursor_id: str, position: int, offset: int) -> Entry:
    """A record of `__cursors`; `position` below 128."""
    value = _field(1, stream.encode()) + (bytes([0x10, partition]) if partition else b"")
    value += _field(3, cursor_id.encode()) + bytes([0x20, position])
    return Entry(offset, value, f"{cursor_id},{stream},{partition}".encode(), subject="liftbridge-default.cursors")


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def sealed(value: bytes, master: bytes, data_key: bytes) -> bytes:
    """As an encrypted stream stores it."""
    wrapped = aes_key_wrap_with_padding(master, data_key)
    nonce = os.urandom(12)
    return bytes([len(wrapped)]) + wrapped + nonce + AESGCM(data_key).encrypt(nonce, value, None)
