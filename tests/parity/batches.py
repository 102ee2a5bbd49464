"""Well-formed SEND_MESSAGES payloads and stored records, and ways to damage them, for the differential tests."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from random import Random

import xxhash
from hypothesis import strategies as st

INTERESTING_U32 = (0, 1, 15, 63, 64, 65, 127, 100_000, 100_001, 64_000_000, 64_000_001, 2**31, 2**32 - 1)
U64_MAX = 2**64 - 1

# Hypothesis draws what is sound, which is dear; one of these seeds many kinds of damage to it, which is cheap.
seeds = st.randoms(use_true_random=True)


@dataclass(frozen=True)
class Message:
    """One message as a client sends it."""

    payload: bytes = b"x"
    user_headers: bytes = b""
    identity: int = 0
    offset: int = 0
    origin_timestamp: int = 1
    reserved: int = 0

    def encode(self) -> bytes:
        lengths = struct.pack("<IIQ", len(self.user_headers), len(self.payload), self.reserved)
        identity = self.identity.to_bytes(16, "little")
        clocks = struct.pack("<QQQ", self.offset, 0, self.origin_timestamp)
        return bytes(8) + identity + clocks + lengths + self.payload + self.user_headers


def send_payload(messages: list[Message], partitioning: bytes, stream: bytes, topic: bytes) -> bytes:
    """A whole SEND_MESSAGES payload; identifiers and partitioning as raw bytes."""
    metadata = stream + topic + partitioning + struct.pack("<I", len(messages))
    index, body = b"", b""
    for message in messages:
        body += message.encode()
        index += struct.pack("<IIQ", 0, len(body), 0)
    return struct.pack("<I", len(metadata)) + metadata + index + body


def stored_record(offset: int, timestamp: int, identity: int, payload: bytes, user_headers: bytes = b"") -> bytes:
    """One record as it stands in a .log file."""
    body = identity.to_bytes(16, "little") + struct.pack("<QQQ", offset, timestamp, timestamp // 2)
    body += struct.pack("<IIQ", len(user_headers), len(payload), 0) + payload + user_headers
    return struct.pack("<Q", xxhash.xxh3_64_intdigest(body)) + body


messages = st.builds(
    Message,
    payload=st.binary(max_size=40),
    user_headers=st.binary(max_size=20),
    identity=st.sampled_from((0, 0, 1, 2**64, 2**128 - 1)),
    offset=st.sampled_from((0, 0, 0, 7, U64_MAX)),
    origin_timestamp=st.integers(0, U64_MAX),
    reserved=st.sampled_from((0, 0, 0, 0, 1, 2**63)),
)
identifiers = st.one_of(
    st.integers(0, 2**32 - 1).map(lambda number: b"\x01\x04" + struct.pack("<I", number)),
    st.text(min_size=1, max_size=20)
    .map(lambda text: text.encode(errors="replace"))
    .map(lambda raw: b"\x02" + bytes((len(raw),)) + raw),
    st.binary(max_size=8),
)
partitionings = st.one_of(
    st.just(b"\x01\x00"),
    st.integers(0, 2**32 - 1).map(lambda number: b"\x02\x04" + struct.pack("<I", number)),
    st.binary(max_size=30).map(lambda key: b"\x03" + bytes((len(key),)) + key),
    st.binary(max_size=6),
)


def damaged(random: Random, sound: bytes, rounds: int = 3) -> bytes:
    """`sound` after up to `rounds` changes: flipped bits, cuts, surplus, overwritten 32-bit fields."""
    data = bytearray(sound)
    for _ in range(random.randint(0, rounds)):
        kind = random.choice(("flip", "cut", "append", "field", "remove"))
        if kind == "append" or not data:
            data += random.randbytes(random.randint(1, 70))
            continue
        position = random.randrange(len(data))
        if kind == "flip":
            data[position] ^= 1 << random.randint(0, 7)
        elif kind == "cut":
            del data[position:]
        elif kind == "remove":
            del data[position : position + random.randint(1, 20)]
        else:
            data[position : position + 4] = struct.pack("<I", random.choice(INTERESTING_U32))
    return bytes(data)
