"""Tables of the lake and archive files without Spark: what a task would write, committed by real processes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from shardd.spark import archive_files
from shardd.spark.archive_files import Footer
from shardd.spark.archive_listing import file_name, topic_path
from shardd.spark.columns import arrow_schema
from shardd.spark.pipelines.archive import COLUMNS
from shardd.spark.positions import TopicName
from shardd.spark.sinks import files
from shardd.spark.sinks.delta import DeltaLake
from shardd.spark.sinks.files import ParquetFile, WrittenFile
from shardd.spark.sinks.iceberg import IcebergTable
from shardd.spark.sinks.parquet import ParquetDirectory
from shardd.spark.sinks.tables import CommitConflictError, LakeTable, Step
from tests.spark.records import Row

NUMBERS = pa.schema([("n", pa.int64())])
NAME = TopicName("shop", "orders")
BATCHES = 5
SLOT_S = 0.2


def catalog_of(directory: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}/warehouse"}


def table_of(kind: str, directory: Path) -> LakeTable:
    if kind == "delta":
        return DeltaLake(str(directory / "table"))
    if kind == "iceberg":
        return IcebergTable("default", catalog_of(directory), "space.rows")
    return ParquetDirectory(str(directory / "table"))


def written(table: LakeTable, rows: pa.Table, prefix: str = "part-0-00000") -> list[WrittenFile]:
    """What one task leaves behind."""
    system, directory = table.place()
    return files.write(system, directory, rows.to_batches(), prefix=prefix)


def numbers(first: int, count: int) -> pa.Table:
    return pa.table({"n": range(first, first + count)}, schema=NUMBERS)


def rows_in(kind: str, directory: Path) -> list[dict[str, Any]]:
    """By readers that know nothing of the sinks."""
    if kind == "delta":
        from deltalake import DeltaTable

        return list(DeltaTable(str(directory / "table")).to_pyarrow_table().to_pylist())
    if kind == "iceberg":
        from pyiceberg.catalog import load_catalog

        return list(
            load_catalog("default", **catalog_of(directory)).load_table("space.rows").scan().to_arrow().to_pylist()
        )
    import pyarrow.parquet as pq

    found = sorted((directory / "table").glob("batch=*/*.parquet"))
    return [row for each in found for row in pq.read_table(each, partitioning=None).to_pylist()]


def archived(start: int, count: int, size: int = 20) -> pa.Table:
    """Rows of an archive file, every checksum right."""
    made = [
        Row(n, bytes([n % 251]) * size, ((b"k", b"v"),) if n % 3 == 0 else (), timestamp_us=1000 * n)
        for n in range(start, start + count)
    ]
    columns = {
        "offset": [each.offset for each in made],
        "timestamp": [each.timestamp_us for each in made],
        "originTimestamp": [each.origin_us for each in made],
        "id": [each.id.to_bytes(16, "big") for each in made],
        "value": [each.payload for each in made],
        "headersRaw": [each.header_bytes() for each in made],
        "checksum": [each.checksum() for each in made],
        "partition": [0] * count,
        "stream": [NAME.stream] * count,
        "topic": [NAME.topic] * count,
    }
    schema = arrow_schema(COLUMNS)
    return pa.table([pa.array(columns[each.name], each.type) for each in schema], schema=schema)


def archive_file(
    root: Path,
    start: int,
    count: int,
    *,
    rows: pa.Table | None = None,
    footer: bool = True,
    partition: int = 0,
    incarnation: int = 5,
    group_rows: int = 1 << 20,
) -> Path:
    """One file below `root`, as the archive writes it; `rows` and `footer` for those that it would not write."""
    table = archived(start, count) if rows is None else rows
    directory = Path(topic_path(str(root), NAME))
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / file_name(partition, incarnation, start, start + count)
    file = ParquetFile(pafs.LocalFileSystem(), str(path), table.schema, write_page_checksum=True)
    digests = []
    for at in range(0, table.num_rows, group_rows):
        group = table.slice(at, group_rows)
        file.add(group)
        digests.append(archive_files.digest(group.column("checksum")))
    known = Footer(NAME.stream, NAME.topic, partition, incarnation, start, start + count, "run")
    file.finish(known.encode(digests) if footer else None)
    return path


def repeat_batches(table: LakeTable, first: int, slot_s: Iterator[float]) -> Iterator[object]:
    """Batch after batch of the query `q`, three rows each, at the times that the other process has, too."""
    for batch in range(BATCHES):
        mine = written(table, numbers(first + 3 * batch, 3))
        wait_until(next(slot_s))
        yield attempt(table, mine, Step("q", batch))


def append_runs(table: LakeTable, count: int, slot_s: Iterator[float]) -> Iterator[object]:
    """Runs that go on where the table stands, `count` rows each."""
    for _ in range(BATCHES):
        begin = table.version("q")
        mine = written(table, numbers(begin or 0, count))
        wait_until(next(slot_s))
        yield attempt(table, mine, Step("q", (begin or 0) + count, begin, proven=True))


def attempt(table: LakeTable, mine: list[WrittenFile], step: Step) -> object:
    try:
        return table.commit(mine, NUMBERS, (step,))
    except CommitConflictError as error:
        return str(error)


def wait_until(at_s: float) -> None:
    while time.time() < at_s:
        time.sleep(0.0002)


def main(kind: str, directory: Path, work: str, number: str) -> None:
    """`python -m tests.spark.lake KIND DIRECTORY WORK NUMBER`: says when it is ready, takes the time of its start, and
    prints what became of each commit."""
    table = table_of(kind, directory)
    table.version("q")  # whatever must be imported
    print("ready", flush=True)
    start_s = float(sys.stdin.readline())
    slots = (start_s + SLOT_S * n for n in range(BATCHES))
    done = repeat_batches(table, int(number), slots) if work == "repeat" else append_runs(table, int(number), slots)
    print(json.dumps(list(done)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:5])
