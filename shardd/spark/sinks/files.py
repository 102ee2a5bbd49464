"""Parquet files as tasks write them: unique names, bounded sizes, told of only when they are whole."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

FILE_BYTES: Final = 256 << 20  # a file is closed when it has reached this size
ROW_GROUP_BYTES: Final = 64 << 20  # of data in memory
COMPRESSION: Final = "zstd"
COMPRESSION_LEVEL: Final = 1


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """`path` in the file system that the writer was given."""

    path: str
    size_bytes: int
    rows: int


class ParquetFile:
    """One file being written. `finish` or `discard` ends it."""

    def __init__(self, system: pafs.FileSystem, path: str, schema: pa.Schema, **properties: Any) -> None:
        self._system = system
        self._path = path
        self._rows = 0
        self._sink = system.open_output_stream(path)
        try:
            self._writer = pq.ParquetWriter(
                self._sink, schema, compression=COMPRESSION, compression_level=COMPRESSION_LEVEL, **properties
            )
        except BaseException:
            with contextlib.suppress(OSError):
                self._sink.close()
            with contextlib.suppress(OSError):
                system.delete_file(path)
            raise

    @property
    def size_bytes(self) -> int:
        """Bytes that have left the writer."""
        return int(self._sink.tell())

    def add(self, table: pa.Table) -> None:
        """One row group."""
        self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self._rows += table.num_rows

    def finish(self, metadata: Mapping[str, str] | None = None) -> WrittenFile:
        """Ends it; `metadata` goes into the footer."""
        if metadata:
            self._writer.add_key_value_metadata(dict(metadata))
        self._writer.close()
        size = self.size_bytes
        self._sink.close()
        return WrittenFile(self._path, size, self._rows)

    def discard(self) -> None:
        """Nothing is left of it."""
        # the writer first: it would write its footer when it is collected, and tell of the closed file in vain
        for each in (self._writer, self._sink):
            with contextlib.suppress(OSError, ValueError, pa.ArrowException):
                each.close()
        self._writer.is_open = False  # also when its end could not be written
        with contextlib.suppress(OSError):
            self._system.delete_file(self._path)


def row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches gathered into tables of about ROW_GROUP_BYTES; empty ones are left out."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        waiting.append(batch)
        size += batch.nbytes
        if size >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def write(
    system: pafs.FileSystem,
    directory: str,
    batches: Iterable[pa.RecordBatch],
    *,
    prefix: str,
    file_bytes: int = FILE_BYTES,
) -> list[WrittenFile]:
    """Writes all rows into files `<prefix>-<unique>.parquet` of about `file_bytes`; no file for no rows."""
    written: list[WrittenFile] = []
    file: ParquetFile | None = None
    try:
        for table in row_groups(batches):
            if file is None:
                file = ParquetFile(system, f"{directory}/{prefix}-{uuid.uuid4().hex}.parquet", table.schema)
            file.add(table)
            if file.size_bytes >= file_bytes:
                written.append(file.finish())
                file = None
        if file is not None:
            written.append(file.finish())
    except BaseException:
        if file is not None:
            file.discard()
        raise
    return written
