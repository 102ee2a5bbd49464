"""The native decoder against the plain one: every column, limit and fault. Needs pyarrow, no Spark and no Java."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardd.log import layout
from shardd.log.incarnation import write_incarnation
from shardd.spark import cold
from shardd.spark.columns import ALL, default_names
from shardd.spark.decode import Decoder, Fault, Verify
from tests.spark.records import Row, segment

EVERY = tuple(name for name in ALL)
HEADER = st.tuples(st.binary(min_size=1, max_size=12), st.binary(max_size=20))
ROW = st.tuples(st.binary(max_size=300), st.lists(HEADER, max_size=3), st.integers(0, 2**128 - 1))


def decoder(names: tuple[str, ...] = EVERY, **more: object) -> Decoder:
    return Decoder(names, stream="s", topic="t", partition=3, **{"key_header": "k", **more})  # type: ignore[arg-type]


def expected(row: Row) -> dict[str, object]:
    key = next((value for name, value in row.headers if name == b"k"), None)
    return {
        "key": key,
        "value": row.payload,
        "topic": "t",
        "partition": 3,
        "offset": row.offset,
        "timestampType": 1,
        "stream": "s",
        "id": row.id.to_bytes(16, "big"),
        "checksum": row.checksum(),
        "headersRaw": row.header_bytes(),
        "checksumOk": True,
    }


def found(batch: pa.RecordBatch, row: int) -> dict[str, object]:
    return {name: batch.column(name)[row].as_py() for name in expected(Row(0, b""))}


@settings(max_examples=60, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=30), st.integers(0, 40), st.integers(0, 40), st.integers(1, 4000))
def test_every_column_is_what_the_record_says(
    contents: list[tuple[bytes, list[tuple[bytes, bytes]], int]], low: int, high: int, batch_bytes: int
) -> None:
    rows = [
        Row(10 + n, payload, tuple(headers), id=identity) for n, (payload, headers, identity) in enumerate(contents)
    ]
    data = segment(rows)[0]
    at, position, seen = 10 + min(low, len(rows) - 1), 0, []
    end = max(at, min(10 + high, 10 + len(rows)))
    first = at
    while at < end:
        decoded = decoder(batch_bytes=batch_bytes).decode(data, position, at, end)
        assert decoded.fault is Fault.OK and decoded.batch is not None
        seen += [found(decoded.batch, n) for n in range(decoded.rows)]
        at, position = decoded.next_offset, decoded.position
    assert seen == [expected(row) for row in rows[first - 10 : end - 10]]


def test_headers_become_a_list_of_pairs() -> None:
    data, _ = segment([Row(0, b"a", ((b"k", b"1"), (b"x", b""))), Row(1, b"b"), Row(2, b"c", ((b"y", b"\xff"),))])
    decoded = decoder(("headers",)).decode(data, 0, 0, 3)
    assert decoded.batch is not None
    decoded.batch.validate(full=True)
    pairs = [[(each["key"], each["value"]) for each in row] for row in decoded.batch.column("headers").to_pylist()]
    assert pairs == [[("k", b"1"), ("x", b"")], [], [("y", b"\xff")]]


def test_a_header_block_that_does_not_parse_has_no_entries_but_its_bytes() -> None:
    good = Row(0, b"a", ((b"k", b"1"),))
    cut = good.header_bytes()[:-1]
    body = bytearray(good.encode())
    raw = bytes(body[:48]) + len(cut).to_bytes(4, "little") + bytes(body[52:-1])
    decoded = decoder(("headers", "headersRaw"), verify=Verify.NO).decode(raw, 0, 0, 1)
    assert decoded.batch is not None
    assert decoded.batch.to_pylist() == [{"headers": [], "headersRaw": cut}]


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 255, 256, 4096, 1 << 20])
def test_payloads_of_every_size_keep_their_bytes(size: int) -> None:
    payload = random.Random(size).randbytes(size)
    decoded = decoder(("value", "offset")).decode(segment([Row(5, payload)])[0], 0, 5, 6)
    assert decoded.batch is not None and decoded.batch.to_pylist() == [{"value": payload, "offset": 5}]


def test_a_torn_tail_ends_the_batch_at_every_byte() -> None:
    rows = [Row(n, b"x" * 20) for n in range(3)]
    data = segment(rows)[0]
    for length in range(len(data)):
        decoded = decoder(("offset",)).decode(data[:length], 0, 0, 3)
        whole = length // (len(data) // 3)
        assert decoded.rows == whole
        assert decoded.fault is (Fault.OK if length % (len(data) // 3) == 0 else Fault.TRUNCATED)


def test_a_flipped_bit_in_every_byte_is_found() -> None:
    data = segment([Row(n, b"payload", ((b"k", b"v"),)) for n in range(2)])[0]
    half = len(data) // 2
    for place in range(half, len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << (place % 8)
        decoded = decoder(("offset",)).decode(bytes(flipped), 0, 0, 2)
        assert decoded.rows == 1 and decoded.fault is not Fault.OK, place


def test_without_verification_a_flipped_payload_passes() -> None:
    """The canary of the test above: it is the check that finds the flip."""
    data = bytearray(segment([Row(0, b"payload")])[0])
    data[70] ^= 1
    assert decoder(("value",), verify=Verify.NO).decode(bytes(data), 0, 0, 1).fault is Fault.OK


def test_report_goes_on_and_marks_the_rows() -> None:
    rows = [Row(n, b"payload") for n in range(10)]
    data = bytearray(segment(rows)[0])
    size = len(data) // 10
    data[3 * size + 66] ^= 1
    data[9 * size + 66] ^= 1
    decoded = decoder(("offset", "checksumOk"), verify=Verify.REPORT).decode(bytes(data), 0, 0, 10)
    assert decoded.bad_checksums == 2 and decoded.batch is not None
    assert [n for n, good in enumerate(decoded.batch.column("checksumOk").to_pylist()) if not good] == [3, 9]


def test_a_gap_is_told_with_the_offset_that_is_there() -> None:
    data = Row(0, b"a").encode() + Row(2, b"b").encode()
    decoded = decoder(("offset",)).decode(data, 0, 0, 5)
    assert (decoded.rows, decoded.fault, decoded.next_offset, decoded.fault_offset) == (1, Fault.GAP, 1, 2)


def test_impossible_lengths_are_no_record() -> None:
    data = bytearray(Row(0, b"a").encode())
    data[52:56] = b"\xff\xff\xff\xff"
    assert decoder(("offset",)).decode(bytes(data), 0, 0, 1).fault is Fault.BAD_LENGTH
    assert decoder(("offset",)).decode(bytes(200), 0, 7, 8).fault is not Fault.OK, "zeros are no record"


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400), st.integers(0, 2**63), st.integers(0, 400))
def test_any_bytes_are_survived(data: bytes, offset: int, position: int) -> None:
    for verify in Verify:
        decoded = decoder(EVERY, verify=verify).decode(data, min(position, len(data)), offset, offset + 10)
        assert decoded.position <= len(data)


def test_the_default_schema_begins_as_kafkas() -> None:
    kafka = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    assert default_names()[:7] == kafka
    assert "headers" in default_names(include_headers=True) and "checksum" not in default_names()


def test_arguments_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="position"):
        decoder(("offset",)).decode(b"", 1, 0, 1)
    with pytest.raises(ValueError, match="bytes_max"):
        decoder(("offset",), batch_bytes=1 << 40).decode(b"", 0, 0, 1)


def hidden_row(payload_ends_with: int) -> tuple[bytes, bytes, list[int]]:
    """A segment whose record 1 ends with what looks like a record of this offset; its index; where records begin."""
    forged = Row(payload_ends_with, b"forged").encode()
    rows = [Row(0, b"first"), Row(1, b"x" * 192 + forged), Row(2, b"third"), Row(3, b"fourth")]
    data, index = segment(rows)
    return data, index, [0, *(int.from_bytes(index[at + 4 : at + 8], "little") for at in (0, 16, 32))]


def test_a_damaged_length_before_the_first_row_leads_into_no_payload() -> None:
    """Without an index a reader passes over what lies before its first row."""
    data, _, begins = hidden_row(2)
    size = begins[2] - begins[1]
    inside = 64 + 192  # where the forged record stands in record 1
    wrong = data[: begins[1] + 48] + struct.pack("<II", 0, inside - 64) + data[begins[1] + 56 :]
    assert size > inside
    decoded = decoder().decode(wrong, 0, 2, 3)
    assert (decoded.batch, decoded.fault, decoded.fault_offset) == (None, Fault.BAD_CHECKSUM, 1)


def test_a_wrong_index_entry_leads_a_cold_read_into_no_payload(tmp_path: Path) -> None:
    data, index, begins = hidden_row(1)
    directory = tmp_path / "0"
    directory.mkdir()
    write_incarnation(directory, 7)
    log = layout.segment_log(directory, 0)
    log.write_bytes(data)
    inside = begins[1] + 64 + 192
    wrong = index[:4] + struct.pack("<I", inside) + index[8:]
    for entries in (index, wrong, b""):
        layout.segment_index(directory, 0).write_bytes(entries)
        [batch] = cold.read(decoder(), log, segment_start=0, incarnation=7, start=1, end=3, label="p")
        assert batch.column("value").to_pylist() == [data[begins[1] + 64 : begins[2]], b"third"]


@pytest.mark.parametrize("name", ["s", "", "größe/名", "x" * 255])
@pytest.mark.parametrize("partition", [0, 2**31 - 1])
def test_constant_columns_say_where_the_rows_come_from(name: str, partition: int) -> None:
    rows = [Row(n, b"value") for n in range(9)]
    made = Decoder(default_names(), stream=name, topic=name + "t", partition=partition)
    data, position, at = segment(rows)[0], 0, 0
    for count in (1, 6, 2):  # a batch that is larger than the one before, and one that is smaller
        decoded = made.decode(data, position, at, at + count)
        assert decoded.batch is not None
        decoded.batch.validate(full=True)
        kinds = {"stream": name, "topic": name + "t", "partition": partition, "timestampType": 1, "key": None}
        for column, value in kinds.items():
            assert decoded.batch.column(column).equals(pa.array([value] * count, ALL[column].arrow)), column
        position, at = decoded.position, decoded.next_offset
