"""Where a time lies in the archive of a partition: the first archived message that is not older."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shardd.spark.archive_files import DamagedArchiveError, file_system
from shardd.spark.piece import Piece


def offset_at(files: Sequence[Piece], timestamp_us: int) -> int | None:
    """Offset of the first message whose append time is not before `timestamp_us`, in files of one partition by start
    offset; None when there is none. Times never fall within a partition, so files are halved, not read one by one."""
    forward: list[Piece] = []  # without files that lie inside others: their ends rise, and so do their last times
    for each in files:
        if not forward or each.end > forward[-1].end:
            forward.append(each)
    low, high = 0, len(forward)
    while low < high:
        middle = probe = (low + high) // 2
        while probe < high and _is_empty(forward[probe]):  # all of its offsets are gaps: it tells nothing
            probe += 1
        if probe < high and _first(forward[probe], timestamp_us) is None:
            low = probe + 1
        else:
            high = middle
    found = (_first(each, timestamp_us) for each in forward[low:])
    return next((each for each in found if each is not None), None)


def _is_empty(file: Piece) -> bool:
    """`DamagedArchiveError`."""
    system, inner = file_system(file.path)
    with system.open_input_file(inner) as opened:
        try:
            return bool(pq.read_metadata(opened).num_rows == 0)
        except (OSError, pa.ArrowException) as error:
            raise DamagedArchiveError(f"the archive file {file.path} is damaged: {error}") from error


def time_at(files: Sequence[Piece], offset: int) -> int | None:
    """Append time of the first message from `offset` on, in files of one partition by start offset; None when there is
    none. `DamagedArchiveError`."""
    for file in files:
        if file.end <= offset:
            continue
        system, inner = file_system(file.path)
        with system.open_input_file(inner) as opened:
            try:
                source = pq.ParquetFile(opened, page_checksum_verification=True)
                for group in range(source.num_row_groups):
                    table = source.read_row_group(group, columns=["offset", "timestamp"])
                    place = pc.index(pc.greater_equal(table.column("offset"), offset), True).as_py()
                    if place >= 0:
                        return int(table.column("timestamp").cast(pa.int64())[place].as_py())
            except (OSError, pa.ArrowException, KeyError) as error:
                raise DamagedArchiveError(f"the archive file {file.path} is damaged: {error}") from error
    return None


def _first(file: Piece, timestamp_us: int) -> int | None:
    """The same in one file. `DamagedArchiveError`."""
    system, inner = file_system(file.path)
    with system.open_input_file(inner) as opened:
        try:
            source = pq.ParquetFile(opened, page_checksum_verification=True)
            for group in range(source.num_row_groups):
                if _ends_before(source, group, timestamp_us):
                    continue
                table = source.read_row_group(group, columns=["offset", "timestamp"])
                late = pc.greater_equal(table.column("timestamp").cast(pa.int64()), timestamp_us)
                place = pc.index(late, True).as_py()
                if place >= 0:
                    return int(table.column("offset")[place].as_py())
        except (OSError, pa.ArrowException, KeyError) as error:
            raise DamagedArchiveError(f"the archive file {file.path} is damaged: {error}") from error
    return None


def _ends_before(source: pq.ParquetFile, group: int, timestamp_us: int) -> bool:
    """Whether the statistics tell that no message of the row group is late enough."""
    metadata = source.metadata.row_group(group)
    for i in range(metadata.num_columns):
        column = metadata.column(i)
        if column.path_in_schema == "timestamp" and column.statistics is not None and column.statistics.has_min_max:
            return int(column.statistics.max_raw) < timestamp_us
    return False
