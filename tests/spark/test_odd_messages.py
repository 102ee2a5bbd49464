"""Messages that clients may send and tables cannot take as they are: producers' times that are none, header keys that
are no text, header values without a byte. No Spark."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from shardd.client import messages
from shardd.spark import archive_files
from shardd.spark.decode import Decoder, Verify
from shardd.spark.options import parse
from shardd.spark.pipelines import archive
from shardd.spark.pipelines.archive import Target
from shardd.spark.pipelines.topics import KEPT
from shardd.spark.sinks.topic import options as topic_options
from shardd.spark.sinks.topic.buffers import RowError
from shardd.spark.sinks.topic.rows import RowEncoder
from shardd.spark.source import ShardReader
from tests.spark.records import Row, segment
from tests.spark.support import Topic, settle, source_of
from tests.support import wire
from tests.support.server import Server

LATE_US = 253_370_764_800_000_000  # year 9999
TIMES_US = (0, 1, LATE_US - 1, LATE_US, 2**63 - 1, 2**63, 2**64 - 1)
SHOWN = [time_us if time_us < LATE_US else None for time_us in TIMES_US]
RAW = list(struct.unpack(f"<{len(TIMES_US)}q", struct.pack(f"<{len(TIMES_US)}Q", *TIMES_US)))
ODD_KEYS = ((b"\xff\xfe", b"1"), (b"good", b"2"), ("ä".encode()[:1], b""))


def decoded(*names: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> pa.RecordBatch:
    rows = [Row(n, b"v", headers, origin_us=each) for n, each in enumerate(TIMES_US)]
    decoder = Decoder(names, stream="s", topic="t", partition=0, verify=Verify.STOP)
    batch = decoder.decode(segment(rows)[0], 0, 0, len(rows)).batch
    assert batch is not None
    batch.validate(full=True)
    return batch


def micros(column: pa.Array | pa.ChunkedArray) -> list[int | None]:
    found: list[int | None] = column.cast(pa.int64()).to_pylist()
    return found


def test_a_producers_time_that_is_none_is_null_and_there_as_a_number() -> None:
    batch = decoded("originTimestamp", "originTimestampRaw")
    assert micros(batch.column(0)) == SHOWN
    assert batch.column(0).to_pylist()[2].year == 9998  # a Python datetime, as collect() makes it
    assert batch.column(1).to_pylist() == RAW


def test_keys_that_are_no_text_become_text() -> None:
    [pairs, *_] = decoded("headers", headers=ODD_KEYS).column(0).to_pylist()
    assert [(each["key"], each["value"]) for each in pairs] == [("��", b"1"), ("good", b"2"), ("�", b"")]
    [same, *_] = decoded("headersRaw", headers=ODD_KEYS).column(0).to_pylist()
    assert archive_files.parse_headers(same) == pairs


def sink(**more: str) -> topic_options.SinkOptions:
    return topic_options.parse({"topic": "s/t", "username": "u", "password": "p", **more}, streaming=False)


def test_times_are_sent_as_they_were_read() -> None:
    """What `copy` does with them: the bits of any number come back."""
    batch = decoded(*KEPT)
    [frame] = RowEncoder(sink(), 1, None, 0).frames(batch.slice(1))
    wanted = [messages.encode_record(b"v", b"", each, (77).to_bytes(16, "little")) for each in TIMES_US[1:]]
    assert frame.data.endswith(b"".join(wanted))


def test_the_columns_of_the_source_are_taken_by_the_sink() -> None:
    """Headers with empty values, too, and a time that is null."""
    batch = decoded("value", "headers", "originTimestamp", headers=((b"empty", b""), (b"k", b"v")))
    [frame] = RowEncoder(sink(), 1, None, 0).frames(batch)
    assert frame.rows == len(TIMES_US)
    block = b"\x02\x05\x00\x00\x00empty\x01\x00\x00\x00\x00" + messages.encode_headers({"k": b"v"})
    times = [each or 0 for each in SHOWN]
    assert frame.data.endswith(b"".join(messages.encode_record(b"v", block, each) for each in times))


def test_a_key_without_a_byte_is_refused() -> None:
    batch = decoded("value", "headers", headers=((b"", b"1"),))
    with pytest.raises(RowError, match="key of a header has 1 to 255 bytes, its value 0 to 255"):
        list(RowEncoder(sink(), 1, None, 0).frames(batch))


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topic]:
    env = {"SHARDD_SYSTEM_PARTITION_SYNC_INTERVAL": "50 ms"}
    with Server(tmp_path_factory.mktemp("odd") / "data", env=env) as server:
        with wire.connect(server.address) as connection:
            connection.create_topic(connection.create_stream("s"), "rows", 1)
            made = Topic(server, "s", connection)
            headers = b"".join(
                b"\x02" + struct.pack("<I", len(key)) + key + b"\x01" + struct.pack("<I", len(value)) + value
                for key, value in ODD_KEYS
            )
            batch = [wire.message(b"v", headers, origin_timestamp_us=each) for each in TIMES_US]
            connection.send("s", "rows", wire.to_partition(0), batch)
            made.payloads[0] = [b"v"] * len(TIMES_US)
            settle(made)
        yield made


def test_an_archive_keeps_every_time_and_shows_those_that_are_one(topic: Topic, tmp_path: Path) -> None:
    target = Target.parse(f"parquet:{tmp_path / 'archive'}", {})
    for job in archive.plan(source_of(topic), target)[0]:
        job.run()
    [file] = (tmp_path / "archive").rglob("*.parquet")
    assert micros(pq.read_table(file).column("originTimestamp")) == RAW  # as in archives of earlier versions
    names = ("originTimestamp", "originTimestampRaw", "headers")
    options = parse(topic.options(readMode="archive", archivePath=str(tmp_path / "archive")), streaming=False)
    reader = ShardReader(options, names)
    [batch] = [each for task in reader.partitions() for each in reader.read(task)]
    batch.validate(full=True)
    assert (micros(batch.column(0)), batch.column(1).to_pylist()) == (SHOWN, RAW)
    assert [each["key"] for each in batch.column(2).to_pylist()[0]] == ["��", "good", "�"]


def test_a_table_of_an_archive_has_only_times_that_its_readers_take(topic: Topic, tmp_path: Path) -> None:
    target = Target.parse(f"delta:{tmp_path / 'table'}", {})
    archive.commit(target, [job.run() for job in archive.plan(source_of(topic), target)[0]])
    table = DeltaTable(tmp_path / "table").to_pyarrow_table().sort_by("offset")
    assert micros(table.column("originTimestamp")) == SHOWN
    assert table.column("originTimestamp").to_pylist()[2].year == 9998
