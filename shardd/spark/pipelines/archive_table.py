"""Files that archive puts into a table (Delta, Iceberg): archive-PARTITION-START-END-RANDOM.parquet in the directory of
the table, offsets with 20 digits, END exclusive; with the footer of an archive file (archive_files.py)."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterator
from typing import Final, NamedTuple

from shardd.client.marks import KEPT, Mark
from shardd.spark import archive_files
from shardd.spark.archive_files import Footer
from shardd.spark.positions import TopicName
from shardd.spark.sinks.tables import ListedTable

_log = logging.getLogger(__name__)
_NAME: Final = re.compile(r"archive-(\d+)-(\d{20})-(\d{20})-[0-9a-f]{32}\.parquet", re.ASCII)
_OPENED_MAX: Final = 256  # of one partition; a name does not say of which topic the rows are


def file_name(partition: int, start: int, end: int) -> str:
    return f"archive-{partition}-{start:020}-{end:020}-{uuid.uuid4().hex}.parquet"


class TableFile(NamedTuple):
    """`path`: in the file system of the table."""

    path: str
    partition: int
    start: int
    end: int


class TableFiles:
    """Those of one table as it is now. A footer is read when it is asked for, once."""

    def __init__(self, table: ListedTable) -> None:
        self.system, self._directory = table.place()
        found = (match for name in table.names() if (match := _NAME.fullmatch(name)) is not None)
        files = [TableFile(f"{self._directory}/{each[0]}", *(int(each[n]) for n in (1, 2, 3))) for each in found]
        self._newest_first = sorted(files, key=lambda file: file.end, reverse=True)
        self._ends: dict[str, tuple[Footer | None, Mark | None]] = {}

    def last_records(self, name: TopicName, partition: int, incarnation: int) -> Iterator[Mark]:
        """Of the newest files of a partition in one of its lives. `DamagedArchiveError`."""
        given = 0
        for _, last in self.of(name, partition, incarnation, 0, None):
            if last is not None:
                yield last
                given += 1
            if given == KEPT:
                return

    def of(
        self, name: TopicName, partition: int, incarnation: int, start: int, end: int | None
    ) -> Iterator[tuple[TableFile, Mark | None]]:
        """Files with some of [start, end), and their last records, the newest first. `DamagedArchiveError`."""
        opened = 0
        for file in self._newest_first:
            if file.partition != partition or file.end <= start or (end is not None and file.start >= end):
                continue
            if opened == _OPENED_MAX:
                _log.warning("%d files were looked at for partition %d of '%s', no more", opened, partition, name)
                return
            opened += file.path not in self._ends
            footer, last = self._end_of(file)
            if footer is not None and (footer.stream, footer.topic, footer.incarnation) == (
                name.stream,
                name.topic,
                incarnation,
            ):
                yield file, last

    def _end_of(self, file: TableFile) -> tuple[Footer | None, Mark | None]:
        if file.path not in self._ends:
            try:
                self._ends[file.path] = archive_files.end_of(self.system, file.path, file.path)
            except FileNotFoundError as error:
                _log.info("a file of the table is gone since it was listed: %s", error)
                self._ends[file.path] = (None, None)
        return self._ends[file.path]
