"""One record of the metadata log. All integers little-endian.

    offset size field
    0      4    length      of the payload, 1 .. PAYLOAD_BYTES_MAX
    4      8    index       1 for the first record, then +1
    12     8    timestamp   microseconds since the epoch, clock of shard 0
    20     8    submission  random number of the submission; a repeated one is answered, not done again
    28     4    user_id     who submitted it
    32     n    payload     MessagePack of the command (commands.py)
    32+n   32   digest      SHA-256 over the digest before (zeros for the first) and bytes 0 .. 32+n

The digests form a chain: a record proves everything that came before it.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

import msgspec

from shardd.metadata.commands import Command, decode_command, encode_command

HEADER: Final = struct.Struct("<IQQQI")
DIGEST_BYTES: Final = 32
FIRST_DIGEST: Final = bytes(DIGEST_BYTES)
PAYLOAD_BYTES_MAX: Final = 16 * 1024 * 1024
RECORD_BYTES_MIN: Final = HEADER.size + 1 + DIGEST_BYTES
RECORD_BYTES_MAX: Final = HEADER.size + PAYLOAD_BYTES_MAX + DIGEST_BYTES


class Record(msgspec.Struct, frozen=True):
    """A change and its place in the log. `digest` is the chain up to and with this record."""

    index: int
    timestamp_us: int
    submission: int
    user_id: int
    command: Command
    digest: bytes = FIRST_DIGEST


class RecordError(Exception):
    """Bytes that are not the next record of the chain; the text is a sentence about why."""


class UnknownCommandError(Exception):
    """A whole record whose change this version does not know: written by a newer one."""


def _digest(previous: bytes | memoryview, body: bytes | memoryview) -> bytes:
    sha = hashlib.sha256(previous)
    sha.update(body)
    return sha.digest()


def encode_record(
    previous_digest: bytes, index: int, timestamp_us: int, submission: int, user_id: int, command: Command
) -> tuple[bytes, Record]:
    """(bytes for the log, the record). Raises RecordError when the command is larger than a record may be."""
    payload = encode_command(command)
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise RecordError(f"a change of {len(payload)} bytes exceeds the {PAYLOAD_BYTES_MAX} bytes of a record")
    body = HEADER.pack(len(payload), index, timestamp_us, submission, user_id) + payload
    digest = _digest(previous_digest, body)
    return body + digest, Record(index, timestamp_us, submission, user_id, command, digest)


def record_end(data: memoryview, position: int) -> int | None:
    """Where the record at `position` ends by its length field; None when it cannot lie within `data`."""
    if position + RECORD_BYTES_MIN > len(data):
        return None
    length: int = HEADER.unpack_from(data, position)[0]
    end = position + HEADER.size + length + DIGEST_BYTES
    return end if 0 < length <= PAYLOAD_BYTES_MAX and end <= len(data) else None


def body_digest(data: memoryview, position: int, end: int, previous_digest: bytes | memoryview) -> bytes:
    """The digest that the record in [position, end) should carry after `previous_digest`."""
    return _digest(previous_digest, data[position : end - DIGEST_BYTES])


def decode_record(data: memoryview, position: int, previous_digest: bytes, expected_index: int) -> tuple[Record, int]:
    """(the record at `position`, its end).

    Raises RecordError when it is not the valid next one of the chain, UnknownCommandError when it is but says nothing
    that this version understands.
    """
    end = record_end(data, position)
    if end is None:
        raise RecordError(f"record {expected_index} is not complete")
    _, index, timestamp_us, submission, user_id = HEADER.unpack_from(data, position)
    if index != expected_index:
        raise RecordError(f"record {expected_index} is numbered {index}")
    digest = body_digest(data, position, end, previous_digest)
    if digest != data[end - DIGEST_BYTES : end]:
        raise RecordError(f"the digest of record {index} does not match")
    try:
        command = decode_command(data[position + HEADER.size : end - DIGEST_BYTES])
    except ValueError as error:
        raise UnknownCommandError(f"record {index} holds no change that this version knows: {error}") from error
    return Record(index, timestamp_us, submission, user_id, command, digest), end
