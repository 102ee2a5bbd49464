"""The pure-Python specification against known values: placement, statuses of golden vectors, stored bytes."""

from __future__ import annotations

import struct

import pytest
import xxhash

from shardd.engine import twin, twin_record
from shardd.engine.record_faults import RecordFault
from shardd.protocol.namespaces import namespace

# stream, topic, partition, owner with 2, 3, 4, 16 and 64 shards (docs/protocol/records.md#placement)
PLACEMENT = [
    ((0, 0, 0), (1, 1, 1, 5, 5)),
    ((0, 0, 1), (1, 0, 3, 7, 7)),
    ((0, 0, 2), (1, 1, 3, 15, 31)),
    ((0, 0, 4), (0, 2, 2, 2, 34)),
    ((0, 1, 1), (1, 2, 3, 11, 27)),
    ((1, 2, 3), (1, 0, 1, 9, 25)),
    ((42, 17, 99), (1, 2, 3, 7, 55)),
    ((1023, 1023, 1023), (0, 1, 2, 6, 22)),
    ((4095, 4095, 1048575), (0, 1, 2, 6, 38)),
]


@pytest.mark.parametrize(("ids", "owners"), PLACEMENT)
def test_placement(ids: tuple[int, int, int], owners: tuple[int, ...]) -> None:
    packed = namespace(*ids)
    assert tuple(twin.owner(packed, shards) for shards in (2, 3, 4, 16, 64)) == owners
    assert twin.owner(packed, 1) == 0


@pytest.mark.parametrize("ids", [(4096, 0, 0), (0, 4096, 0), (0, 0, 1 << 20), (-1, 0, 0)])
def test_ids_that_do_not_fit_are_refused(ids: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        namespace(*ids)


def test_xxh32_of_names_and_addresses() -> None:
    assert twin.xxh32(b"") == 46_947_589
    assert twin.xxh32(b"my-consumer") == 2_115_191_887


ADDRESS = b"\x02\x02st\x02\x02tp"


def payload(metadata: bytes, rest: bytes = b"") -> bytes:
    return struct.pack("<I", len(metadata)) + metadata + rest


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", 3),
        (b"\0\0\0", 3),
        (b"\1\0\0\0", 3),
        (payload(b""), 6),
        (payload(b"\0\4\0\0\0\0\2\2tp\1\0\0\0\0\0"), 6),
        (payload(b"\2\0\2\2tp\1\0\0\0\0\0"), 6),
        (payload(b"\1\2\0\0\2\2tp\1\0\0\0\0\0"), 6),
        (payload(b"\2\2st\2\11tp"), 6),
        (payload(ADDRESS + b"\0\0\0\0\0\0"), 3),
        (payload(ADDRESS + b"\1\1a\0\0\0\0"), 3),
        (payload(ADDRESS + b"\2\2\0\0\0\0\0\0"), 3),
        (payload(ADDRESS + b"\3\0\0\0\0\0"), 4009),
        (payload(ADDRESS + b"\3\0\1\0\0\0", bytes(80)), 3),
        (payload(ADDRESS + b"\1\0"), 3),
        (payload(ADDRESS + b"\1\0\0\0\0\0"), 4009),
        (payload(ADDRESS + b"\1\0\0\0\0\0surplus"), 4009),
        (payload(ADDRESS + b"\1\0\1\0\0\0"), 3),
        (payload(ADDRESS + b"\1\0\1\0\0\0", bytes(8)), 3),
        (payload(ADDRESS + b"\1\0\1\0\0\0", bytes(16)), 4009),
    ],
)
def test_metadata_errors_of_the_record(data: bytes, status: int) -> None:
    assert twin.send_request_parse(data) == (status, None)


def test_golden_send_of_two_messages() -> None:
    """A balanced send: 5-byte payload, then 2 bytes with a 12-byte header block."""
    frame = bytes.fromhex(
        "cd00000065000000120000000104000000000104000000000100020000000000000045000000000000000000000000000000930000"
        "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000018fc1e39"
        "434f06000000000005000000000000000000000068656c6c6f00000000000000000500000000000000000000000000000000000000"
        "00000000000000000000000018fc1e39434f06000c000000020000000000000000000000686902010000006b090100000007"
    )
    status, parts = twin.send_request_parse(frame[8:])
    assert status == 0
    identifier = bytes.fromhex("010400000000")
    assert parts == (identifier, identifier, twin.PARTITIONING_BALANCED, 0, b"", 2, 54)
    first = bytearray(frame[8 + 54 :])
    first[8] = 1  # the id that the golden reply shows for the message without one
    records, index = twin.batch_assign(bytes(first), 2, 0, 1_776_000_000_000_000, 0, 0, seed=1)
    assert records[:8].hex() == "ca831f02317e9424"
    assert records[69 : 69 + 8].hex() == "a239923e6d80db75"
    assert index == struct.pack("<IIQIIQ", 0, 69, 1_776_000_000_000_000, 1, 147, 1_776_000_000_000_000)
    assert twin_record.scan_buffer(records, 0, 0, 0, 0)[:3] == (147, 2, 2)


def test_assigned_ids_are_random_uuids_and_given_ones_stay() -> None:
    header = bytes(8) + bytes(16) + bytes(24) + struct.pack("<IIQ", 0, 1, 0) + b"x"
    given = header[:8] + b"\7" + header[9:]
    records, _ = twin.batch_assign(header + given + header, 3, 10, 5, 10, 650, seed=99)
    identities = [records[65 * i + 8 : 65 * i + 24] for i in range(3)]
    assert identities[1] == b"\7" + bytes(15)
    assert identities[0] != identities[2]
    for identity in (identities[0], identities[2]):
        assert identity[6] >> 4 == 4
        assert identity[8] >> 6 == 2


def record(offset: int, timestamp: int) -> bytes:
    body = b"\1" + bytes(15) + struct.pack("<QQQIIQ", offset, timestamp, 0, 0, 3, 0) + b"abc"
    return struct.pack("<Q", xxhash.xxh3_64_intdigest(body)) + body


def with_field(data: bytes, position: int, value: int) -> bytes:
    return data[:position] + struct.pack("<I", value) + data[position + 4 :]


@pytest.mark.parametrize(
    ("tail", "fault"),
    [
        (b"", RecordFault.OK),
        (record(2, 20)[:-1], RecordFault.TRUNCATED),
        (bytes(63), RecordFault.TRUNCATED),
        (with_field(record(2, 20), 52, 64_000_001), RecordFault.BAD_LENGTH),
        (with_field(record(2, 20), 48, 100_001), RecordFault.BAD_LENGTH),
        (record(3, 20), RecordFault.BAD_OFFSET),
        (record(2, 19), RecordFault.BAD_TIMESTAMP),
        (record(2, 20)[:-1] + b"!", RecordFault.BAD_CHECKSUM),
    ],
)
def test_why_a_scan_stops(tail: bytes, fault: RecordFault) -> None:
    good = record(0, 10) + record(1, 20)
    *found, index = twin_record.scan_buffer(good + tail, 0, 0, 0, 1000)
    assert found == [len(good), 2, 2, 10, 20, fault]
    assert index == struct.pack("<IIQIIQ", 0, 1067, 10, 1, 1134, 20)
