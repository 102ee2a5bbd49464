"""The state log of Apache Iggy 0.8, `<data>/state/log` (docs/formats.md#iggy-state-log), as entries. Sans-IO;
little-endian.

    offset size field
    0      8    index           0 for the first entry, then +1
    8      8    term            0
    16     4    leader          0
    20     4    version         of the server: major * 1,000,000 + minor * 1,000 + patch
    24     8    flags           0
    32     8    timestamp       microseconds
    40     4    user            who made the change
    44     8    checksum        XXH3-64, seed 0, over bytes 0 to 44 and 52 to the end
    52     4    context length  0
    56     4    code            of the command
    60     4    length          of the payload
    64     n    payload         the request as sent, for some commands behind the assigned id (iggy_model.py)

The whole file is checked before anything is made of it. Iggy's own encryption replaces the payloads but keeps the
checksums of their plain texts: so no checksum fits, while the frames do.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec
import xxhash

from shardd.migration.errors import MigrationError
from shardd.protocol.codes import Code

VERSION_MIN: Final = 8_000  # 0.8.0
VERSION_END: Final = 9_000
ENCRYPTION_BYTES: Final = 28  # nonce and tag of AES-256-GCM around every encrypted payload

_HEADER: Final = struct.Struct("<QQIIQQIQI")
_COMMAND: Final = struct.Struct("<II")
_ENTRY_BYTES_MIN: Final = _HEADER.size + _COMMAND.size
_CHECKSUM: Final = slice(44, 52)


class Entry(msgspec.Struct, frozen=True):
    """One change. `position`: byte of the file where the entry starts; `whole`: its checksum fits."""

    index: int
    position: int
    timestamp_us: int
    user_id: int
    code: int
    payload: bytes
    whole: bool = True


def parse_log(data: bytes, name: str) -> list[Entry]:
    """The entries of a complete log; `name` is what sentences call the file. Raises MigrationError for all else."""
    entries: list[Entry] = []
    position = 0
    while position < len(data):
        entry, position = _parse_entry(data, position, len(entries), name)
        entries.append(entry)
    if _is_encrypted(entries):
        raise MigrationError(
            f"{name} is encrypted by Apache Iggy (system.encryption), so the messages are too; this server does not "
            "read that: run Apache Iggy on the directory and copy the messages with a client"
        )
    for entry in entries:
        if not entry.whole:
            raise MigrationError(
                f"{name} is damaged: the checksum of entry {entry.index} at byte {entry.position} does not match"
            )
    return entries


def _parse_entry(data: bytes, position: int, expected: int, name: str) -> tuple[Entry, int]:
    where = f"entry {expected} at byte {position}"
    if position + _ENTRY_BYTES_MIN > len(data):
        raise MigrationError(f"{name} is damaged: it ends inside {where}")
    index, term, leader, version, flags, timestamp_us, user_id, checksum, context = _HEADER.unpack_from(data, position)
    if index != expected:
        raise MigrationError(f"{name} is damaged: {where} is numbered {index}")
    if not VERSION_MIN <= version < VERSION_END:
        raise MigrationError(
            f"{name}: {where} was written by version {version // 1_000_000}.{version // 1_000 % 1_000}."
            f"{version % 1_000} of Apache Iggy; only 0.8 can be taken over"
        )
    if (term, leader, flags, context) != (0, 0, 0, 0):
        raise MigrationError(
            f"{name}: {where} has a term, leader, flags or a context, which Apache Iggy 0.8 never writes"
        )
    code, length = _COMMAND.unpack_from(data, position + _HEADER.size)
    end = position + _ENTRY_BYTES_MIN + length
    if end > len(data):
        raise MigrationError(f"{name} is damaged: it ends inside {where}")
    body = data[position : position + _CHECKSUM.start] + data[position + _CHECKSUM.stop : end]
    whole = xxhash.xxh3_64_intdigest(body) == checksum
    payload = data[position + _ENTRY_BYTES_MIN : end]
    return Entry(index, position, timestamp_us, user_id, code, payload, whole), end


def _is_encrypted(entries: list[Entry]) -> bool:
    """True when no checksum fits though every frame does, and the first entry is not a readable root user either."""
    if not entries or any(entry.whole or len(entry.payload) < ENCRYPTION_BYTES for entry in entries):
        return False
    first = entries[0]
    assigned, length = struct.unpack_from("<II", first.payload)
    return first.code == Code.CREATE_USER and (assigned, length) != (0, len(first.payload) - 8)
