"""What an archive has of a segment of the spool already: a run that was killed before its ACK wrote it, and then it is
the segment's. A data directory that was put back as files gives other messages the same numbers; to acknowledge those
would delete the only copy of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from shardd.spark.archive_files import DamagedArchiveError
from shardd.spark.planner import Slice
from shardd.spark.reading import SlicePartition, TaskSettings, read

_COLUMNS: Final = ("offset", "checksum")
_Numbers = np.ndarray[Any, np.dtype[np.int64]]


def first_other(
    settings: TaskSettings, segment: Slice, files: Iterable[tuple[pafs.FileSystem, str, int, int]]
) -> int | None:
    """The first offset of a segment of which a file has another message, or, though it has those around it, none;
    None: the files have the same messages. `files`: with the offsets [start, end) of each. `DamagedArchiveError`."""
    offsets, checksums = _of_segment(settings, segment)
    others: list[int] = []
    for system, path, start, end in files:
        there, stored = _of_file(system, path)
        inside = (there >= segment.start) & (there < segment.end)
        wanted = (offsets >= start) & (offsets < end)
        if np.array_equal(there[inside], offsets[wanted]):
            differ = there[inside][stored[inside] != checksums[wanted]]
        else:
            differ = np.setxor1d(there[inside], offsets[wanted])
        others += [int(each) for each in differ[:1]]
    return min(others, default=None)


def _of_segment(settings: TaskSettings, segment: Slice) -> tuple[_Numbers, _Numbers]:
    batches = [*read(replace(settings, columns=_COLUMNS), SlicePartition(segment))]
    return _numbers(pa.Table.from_batches(batches)) if batches else (np.empty(0, np.int64), np.empty(0, np.int64))


def _of_file(system: pafs.FileSystem, path: str) -> tuple[_Numbers, _Numbers]:
    try:
        with system.open_input_file(path) as file:
            return _numbers(pq.ParquetFile(file, page_checksum_verification=True).read(columns=[*_COLUMNS]))
    except (OSError, pa.ArrowException, ValueError) as error:
        raise DamagedArchiveError(f"the archive file {path} is damaged: {error}") from error


def _numbers(table: pa.Table) -> tuple[_Numbers, _Numbers]:
    offsets, checksums = (table.column(each).cast(pa.int64()).to_numpy() for each in _COLUMNS)
    return offsets, checksums
