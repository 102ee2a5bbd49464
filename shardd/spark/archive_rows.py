"""Which messages an archive has, by offset and checksum: of a Parquet archive, and of tables (Delta, Iceberg).

`archive` calls the files that it puts into a table archive-PARTITION-START-END-RANDOM.parquet, offsets with 20
digits, END exclusive. The names only spare a look: a table may have been rewritten, and then its files have others."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardd.spark.archive_files import DamagedArchiveError
from shardd.spark.archive_listing import file_system
from shardd.spark.positions import TopicName
from shardd.spark.sinks.tables import ListedTable

_log = logging.getLogger(__name__)
COLUMNS: Final = ("offset", "checksum")
_NAME: Final = re.compile(r"archive-(\d+)-(\d{20})-(\d{20})-[0-9a-f]{32}\.parquet", re.ASCII)
Numbers = np.ndarray[Any, np.dtype[np.int64]]


class Rows(NamedTuple):
    """Of one offset there may be several, of which all but one are of earlier lives of the partition."""

    offsets: Numbers
    checksums: Numbers


def file_name(partition: int, start: int, end: int) -> str:
    return f"archive-{partition}-{start:020}-{end:020}-{uuid.uuid4().hex}.parquet"


def rows_of(table: pa.Table) -> Rows:
    return Rows(*(table.column(each).cast(pa.int64()).to_numpy() for each in COLUMNS))


def rows_in_file(path: str, start: int, end: int, of: TopicName | None = None, partition: int | None = None) -> Rows:
    """Those of a file with offsets [start, end); with `of` and `partition`: those of this topic's partition alone.
    FileNotFoundError, `DamagedArchiveError`."""
    system, inner = file_system(path)
    wanted: list[tuple[str, str, Any]] = [("offset", ">=", start), ("offset", "<", end)]
    if of is not None:
        wanted += [("partition", "=", partition), ("stream", "=", of.stream), ("topic", "=", of.topic)]
    try:
        table = pq.read_table(inner, columns=[*COLUMNS], filters=wanted, filesystem=system, partitioning=None)
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException, ValueError) as error:
        raise DamagedArchiveError(f"the archive file {path} is damaged: {error}") from error
    return rows_of(table)


class TableRows:
    """Of one table as it is when it is first asked for rows."""

    def __init__(self, table: ListedTable) -> None:
        self._table = table

    @cached_property
    def _paths(self) -> list[str]:
        return self._table.paths()

    def between(self, name: TopicName, partition: int, start: int, end: int) -> Iterator[Rows]:
        """The rows of a partition with offsets [start, end), file by file. `DamagedArchiveError`."""
        for path in self._paths:
            known = _NAME.fullmatch(path.rpartition("/")[2])
            if known is not None:
                number, low, high = (int(each) for each in known.groups())
                if number != partition or high <= start or low >= end:
                    continue
            try:
                yield rows_in_file(path, start, end, name, partition)
            except FileNotFoundError as error:
                _log.warning("a file of the table is gone: %s", error)
