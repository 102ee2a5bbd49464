"""Arrow batches to frames: byte for byte what the pure client encodes, and what cannot be a message."""

from __future__ import annotations

import datetime
import random
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from shardd.client import messages
from shardd.client.partitioning import by_key
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.producers import send_once_digest_head
from shardd.spark.columns import HEADERS_TYPE
from shardd.spark.positions import OptionError
from shardd.spark.sinks.topic import options as topic_options
from shardd.spark.sinks.topic.buffers import RowError, digests_of
from shardd.spark.sinks.topic.rows import Numbers, RowEncoder, check_columns
from shardd.spark.sinks.topic.stored import Content, StoredPart, StoredRows, UnprovableError, ids_of

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
FRAME_HEAD = 8


def options(**more: str) -> topic_options.SinkOptions:
    given = {"topic": "s/t", "username": "u", "password": "p", **more}
    return topic_options.parse(given, streaming=False)


def frames(
    batch: pa.RecordBatch, *, partitions: int = 4, seed: bytes | None = None, task: int = 0, **more: str
) -> list[bytes]:
    return [each.data for each in RowEncoder(options(**more), partitions, seed, task).frames(batch)]


def frame(partition: int, records: Sequence[bytes]) -> bytes:
    """As the client that is written in Python makes it."""
    payload = messages.encode_batch(messages.batch_head("s", "t", partition), list(records))
    return (len(payload) + 4).to_bytes(4, "little") + (101).to_bytes(4, "little") + payload


def raw_header(key: str, value: bytes) -> bytes:
    return messages.encode_headers({key: value})


def test_every_column_is_sent_as_the_pure_client_does_it() -> None:
    """Random rows, also as slices of larger batches, with nulls where they are allowed."""
    chance = random.Random(5)
    for _ in range(30):
        count = chance.randrange(1, 40)
        values = [chance.randbytes(chance.randrange(0, 50)) for _ in range(count)]
        keys = [chance.choice((None, b"", chance.randbytes(3))) for _ in range(count)]
        ids = [chance.choice((None, chance.randbytes(16))) for _ in range(count)]
        origins = [chance.choice((None, chance.randrange(1 << 50))) for _ in range(count)]
        places = [chance.randrange(4) for _ in range(count)]
        headers: list[Any] = [
            None
            if chance.random() < 0.2
            else [{"key": f"k{n}", "value": b"v" * (n + 1)} for n in range(chance.randrange(3))]
            for _ in range(count)
        ]
        arrays = [
            pa.array(values, pa.binary()),
            pa.array(keys, pa.binary()),
            pa.array(ids, pa.binary()),
            pa.array(origins, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            pa.array(places, pa.int32()),
            pa.array(headers, HEADERS_TYPE),
        ]
        names = ["value", "key", "id", "originTimestamp", "partition", "headers"]
        batch = pa.RecordBatch.from_arrays(arrays, names)
        low = chance.randrange(count)
        part = batch.slice(low)
        wanted = []
        for place in sorted(set(places[low:])):
            records = []
            for n in range(low, count):
                if places[n] == place:
                    block = raw_header("shop", keys[n] or b"") if keys[n] else b""
                    block += b"".join(raw_header(each["key"], each["value"]) for each in headers[n] or ())
                    given = (ids[n] or bytes(16))[::-1]
                    records.append(messages.encode_record(values[n], block, origins[n] or 0, given))
            wanted.append(frame(place, records))
        assert frames(part, keyHeader="shop") == wanted


def test_raw_headers_are_kept() -> None:
    block = messages.encode_headers({"a": 5, "b": "text"})
    batch = pa.RecordBatch.from_pydict({"value": pa.array(["x"]), "headersRaw": pa.array([block], pa.binary())})
    assert frames(batch, partitions=1) == [frame(0, [messages.encode_record(b"x", block)])]


def test_keys_go_where_the_clients_send_them() -> None:
    keys = [f"key {n}".encode() * (n % 5 + 1) for n in range(200)]
    values = [str(n).encode() for n in range(200)]
    batch = pa.RecordBatch.from_arrays([pa.array(values), pa.array(keys)], ["value", "key"])
    wanted: dict[int, list[bytes]] = {}
    for key, value in zip(keys, values, strict=True):
        wanted.setdefault(by_key(key, b"", 7), []).append(messages.encode_record(value))
    assert frames(batch, partitions=7) == [frame(place, wanted[place]) for place in sorted(wanted)]


def test_frames_end_at_their_size_and_go_round() -> None:
    """Each row once, in its order, for every size of frames; a row that is larger than a frame goes alone."""
    values = [bytes([n]) * 300 for n in range(40)] + [b"large" * 2000] + [b"s"]
    batch = pa.RecordBatch.from_arrays([pa.array(values)], ["value"])
    made = frames(batch, batchBytes="1024", task=2)
    chunks = [values[n : n + 2] for n in range(0, 40, 2)] + [[values[40]], [values[41]]]
    assert made == [
        frame((2 + n) % 4, [messages.encode_record(each) for each in chunk]) for n, chunk in enumerate(chunks)
    ]


def test_stable_ids_are_those_of_the_position() -> None:
    """Equal for a repeated task, whatever the batches; different for each row and each task."""
    values = pa.RecordBatch.from_arrays([pa.array([b"v"] * 30)], ["value"])
    whole = ids_in(RowEncoder(options(), 1, b"s" * 16, 0), [values])
    cut = ids_in(RowEncoder(options(), 1, b"s" * 16, 0), [values.slice(0, 7), values.slice(7)])
    other = ids_in(RowEncoder(options(), 1, b"t" * 16, 0), [values])
    assert whole == cut and len(set(whole + other)) == 60
    hashed = xxhash.xxh3_128_intdigest(b"s" * 16 + (3).to_bytes(8, "little"))
    assert whole[3] == hashed


def test_frames_of_a_producer_are_counted_in_each_partition() -> None:
    """The head of SEND_ONCE_DIGEST in front of the same request; ids are those that `ids_of` tells."""
    batch = pa.RecordBatch.from_pydict({"value": ["a", "b", "c"], "partition": pa.array([1, 0, 1], pa.int32())})
    encoder = RowEncoder(options(semantics="idempotent", appId="a", order="source"), 2, b"s" * 16, 0)
    encoder.numbers = Numbers(77, 5, {1: 9})
    made = [*encoder.frames(batch), *encoder.frames(batch)]
    assert [(each.partition, each.number, each.rows) for each in made] == [(0, 0, 1), (1, 9, 2), (0, 1, 1), (1, 10, 2)]
    ids = [each[::-1] for each in ids_of(b"s" * 16, 0, 6).to_pylist()]
    wanted = frame(1, [messages.encode_record(value, b"", 0, ids[n]) for n, value in ((3, b"a"), (5, b"c"))])
    records = wanted[-2 * len(messages.encode_record(b"a", b"", 0, ids[3])) :]
    head = send_once_digest_head(77, 5, 10, xxhash.xxh3_64_intdigest(records))
    length = (len(wanted) + len(head) - 4).to_bytes(4, "little")
    assert made[3].data == length + ExtensionCode.SEND_ONCE_DIGEST.to_bytes(4, "little") + head + wanted[8:]


def test_messages_that_are_found_are_used_up() -> None:
    """As many rows with an id are stored as there are messages with it, the first ones."""
    x, y, z = (bytes([n]) * 16 for n in (1, 2, 3))
    found = StoredRows({0: [part(x, y), part(x)], 1: [part(y)]})
    places = pa.array([0, 0, 1, 0, 0, 2], pa.int32())
    assert found.take(binaries(x, z, y, x, x, y), places).to_pylist() == [True, False, True, True, False, False]
    assert found.take(binaries(y, y, y, z), None).to_pylist() == [True, True, False, False]
    assert StoredRows({}).take(binaries(x), None).to_pylist() == [False]


def part(*ids: bytes) -> StoredPart:
    return StoredPart(binaries(*ids), np.zeros(len(ids), np.int64))


def test_another_row_under_the_id_of_a_position_is_not_taken_for_a_stored_one() -> None:
    x, y = (bytes([n]) * 16 for n in (1, 2))
    one, other = (digests_of(pa.RecordBatch.from_pydict({"value": [value], "key": ["k"]}), "k") for value in "ab")
    found = StoredRows({0: [StoredPart(binaries(x), one)]})
    made, own = pa.array([True, True]), pa.array([False, True])
    same, differs = (Content(made, np.concatenate([each, each])) for each in (one, other))
    with pytest.raises(UnprovableError, match="other rows at the positions"):
        found.take(binaries(x, y), None, differs)
    assert found.take(binaries(x, y), None, Content(own, differs.digests)).to_pylist() == [True, False]
    found = StoredRows({0: [StoredPart(binaries(x), one)]})
    assert found.take(binaries(x, y), None, same).to_pylist() == [True, False]


def test_a_row_and_its_message_have_the_same_digest() -> None:
    row = pa.RecordBatch.from_pydict({"value": ["a", ""], "key": ["k", "l"]})
    headers = [b"\x02" + struct.pack("<I", 3) + b"key" + b"\x01" + struct.pack("<I", 1) + each for each in (b"k", b"l")]
    message = pa.RecordBatch.from_pydict({"value": [b"a", b""], "headersRaw": headers})
    assert digests_of(row, "key").tolist() == digests_of(message).tolist()
    assert digests_of(row, "key").tolist() != digests_of(row, "kex").tolist()
    assert digests_of(row.slice(1), "key").tolist() == digests_of(message).tolist()[1:]


def ids_in(encoder: RowEncoder, batches: Sequence[pa.RecordBatch]) -> list[int]:
    found = []
    for batch in batches:
        for each in encoder.frames(batch):
            at = FRAME_HEAD + 4 + len(messages.batch_head("s", "t", 0)) + 4 + 16 * each.rows
            for _ in range(each.rows):
                found.append(int.from_bytes(each.data[at + 8 : at + 24], "little"))
                at += 64 + 1
    return found


def binaries(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


def header_of(key: str | None, value: bytes | None) -> pa.Array:
    return pa.array([[{"key": key, "value": value}]], HEADERS_TYPE)


ONE = binaries(b"a")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"value": binaries(b"a", None)}, "column 'value' has a null"),
        ({"value": ONE, "partition": pa.array([4], pa.int32())}, "has 4, but 's/t' has the partitions 0 to 3"),
        ({"value": ONE, "partition": pa.array([-1], pa.int64())}, "has -1"),
        ({"value": ONE, "partition": pa.array([None], pa.int64())}, "'partition' has a null"),
        (
            {"value": binaries(b"a", b"b"), "id": binaries(b"x" * 16, b"x" * 15)},
            "row 1 of the batch: the id has not 16",
        ),
        ({"value": ONE, "headers": header_of("", b"v")}, "has 1 to 255 bytes, its value 0 to 255"),
        ({"value": ONE, "headers": header_of("k", b"v" * 256)}, "has 1 to 255 bytes, its value 0 to 255"),
        ({"value": ONE, "headers": header_of("k", None)}, "without a value"),
        ({"value": ONE, "headersRaw": binaries(b"h" * 100_001)}, "more than 100000 bytes"),
        ({"value": binaries(b"a" * 64_000_001)}, "more than 64000000 bytes"),
        ({"value": ONE, "originTimestamp": pa.array([-1], pa.timestamp("us", tz="UTC"))}, "before 1970"),
    ],
)
def test_rows_that_cannot_be_messages_are_one_sentence(columns: dict[str, pa.Array], said: str) -> None:
    with pytest.raises(RowError, match=said):
        frames(pa.RecordBatch.from_pydict(columns))


def test_an_order_that_does_not_hold_is_refused() -> None:
    def encoder() -> RowEncoder:
        return RowEncoder(options(order="a,b"), 1, b"s" * 16, 0)

    def rows(*pairs: tuple[int | None, str]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict(
            {"value": ["x"] * len(pairs), "a": pa.array([a for a, _ in pairs], pa.int64()), "b": [b for _, b in pairs]}
        )

    good = encoder()
    list(good.frames(rows((1, "a"), (1, "b"), (2, "a"))))
    list(good.frames(rows((2, "b"))))
    for bad in (rows((1, "b"), (1, "a")), rows((1, "a"), (1, "a")), rows((2, "a"), (1, "b"))):
        with pytest.raises(RowError, match="do not ascend by a, b"):
            list(encoder().frames(bad))
    with pytest.raises(RowError, match="do not ascend"):
        list(good.frames(rows((2, "b"))))  # the batch before ended with it
    with pytest.raises(RowError, match="has a null"):
        list(encoder().frames(rows((None, "a"))))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topic": ""}, "needs the option 'topic'"),
        ({"topic": "a/b,c/d"}, "names 2 topics"),
        ({"semantics": "idempotent"}, "'idempotent' of a batch write needs the option 'appId'"),
        ({"semantics": "idempotent", "appId": "a", "journal": "none"}, "'idempotent' needs the journal"),
        ({"semantics": "idempotent", "appId": "a", "batchBytes": "3 MiB"}, "must be a size from 1024 to 2097152"),
        ({"semantics": "exactly-once"}, "must be one of at-least-once, stable-ids, idempotent"),
        ({"semantics": "stable-ids"}, "needs the option 'appId'"),
        ({"appVersion": "3"}, "needs 'appId'"),
        ({"partitoning": "key"}, "did you mean 'partitioning'?"),
        ({"subscribe": "a/b"}, "the sink writes to 'topic'"),
        ({"batchBytes": "17 MiB"}, "must be a size from 1024 to 16777216"),
    ],
)
def test_wrong_options_are_one_sentence(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        options(**given)


@pytest.mark.parametrize(
    ("columns", "given", "said"),
    [
        ([("payload", "binary")], {}, "no column 'payload'"),
        ([("value", "binary"), ("offset", "bigint")], {}, "Select what is to be sent"),
        ([("value", "int")], {}, "'value' of the sink shardd is binary or string, not int"),
        ([("key", "binary")], {}, "needs a column 'value'"),
        ([("value", "binary")], {"partitioning": "key"}, "needs a column 'key'"),
        ([("value", "binary")], {"keyHeader": "k"}, "no such column"),
        (
            [("value", "binary")],
            {"semantics": "stable-ids", "appId": "a"},
            "sort within partitions and name the columns",
        ),
        ([("value", "binary")], {"order": "n"}, "names the column 'n'"),
    ],
)
def test_columns_that_do_not_fit_are_one_sentence(
    columns: list[tuple[str, str]], given: dict[str, str], said: str
) -> None:
    with pytest.raises(OptionError, match=said):
        check_columns(columns, options(**given))
