"""Writes state logs and directories as Apache Iggy 0.8 does (docs/formats.md#iggy-state-log), for what the recorded one
lacks."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import xxhash

from tests.support.wire import identifier, str8

VERSION = 8_000
TIME_US = 1_776_000_000_000_000
Change = tuple[int, bytes]  # command code, payload


def entry(index: int, change: Change, *, version: int = VERSION, user: int = 0, stored: bytes | None = None) -> bytes:
    """`stored`: payload in the file when it is not the one of the checksum (encryption)."""
    code, payload = change
    head = struct.pack("<QQIIQQI", index, 0, 0, version, 0, TIME_US + index, user)
    rest = struct.pack("<III", 0, code, len(payload)) + payload
    checksum = struct.pack("<Q", xxhash.xxh3_64_intdigest(head + rest))
    if stored is not None:
        rest = struct.pack("<III", 0, code, len(stored)) + stored
    return head + checksum + rest


def log(changes: Sequence[Change]) -> bytes:
    return b"".join(entry(index, change) for index, change in enumerate(changes))


def assigned(code: int, number: int, request: bytes) -> Change:
    return code, struct.pack("<II", number, len(request)) + request


def user(number: int, name: str, permissions: bytes = b"\x00", password_hash: str = "$argon2id$none") -> Change:
    return assigned(33, number, str8(name) + str8(password_hash) + b"\x01" + permissions)


ROOT = user(0, "iggy")


def stream(number: int, name: str) -> Change:
    return assigned(202, number, str8(name))


def topic(stream_id: int, number: int, name: str, partitions: int = 1, compression: int = 1) -> Change:
    fixed = struct.pack("<IBQQB", partitions, compression, 0, 0, 0)
    return assigned(302, number, identifier(stream_id) + fixed + str8(name))


def group(stream_id: int, topic_id: int, number: int, name: str) -> Change:
    return assigned(602, number, identifier(stream_id) + identifier(topic_id) + str8(name))


def token(name: str, expiry_us: int = 0, digest: bytes = bytes(32)) -> Change:
    text, request = digest.hex().encode(), str8(name) + struct.pack("<Q", expiry_us)
    return 42, struct.pack("<I", len(text)) + text + struct.pack("<I", len(request)) + request


def directory(data: Path, changes: Sequence[Change], partitions: Sequence[tuple[int, int, int]] = ()) -> Path:
    """A data directory with this state and empty partitions."""
    (data / "state").mkdir(parents=True)
    (data / "state" / "log").write_bytes(log(changes))
    for stream_id, topic_id, partition in partitions:
        path = data / "streams" / str(stream_id) / "topics" / str(topic_id) / "partitions" / str(partition)
        path.mkdir(parents=True)
        (path / f"{0:020d}.log").touch()
        (path / f"{0:020d}.index").touch()
    return data
