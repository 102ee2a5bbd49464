"""Rows of a spool segment that an archive has already. A run that was killed before its ACK wrote them, and then they
are the segment's. A data directory that was put back as files gives other messages the same numbers; to acknowledge
those would delete the only copy of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from shardd.spark.archive_rows import COLUMNS, Rows, rows_of
from shardd.spark.decode import Verify
from shardd.spark.planner import Slice
from shardd.spark.reading import SlicePartition, TaskSettings, read

_ROW: Final = np.dtype([("offset", "<i8"), ("checksum", "<i8")])


def first_absent(settings: TaskSettings, segment: Slice, archived: Sequence[Rows]) -> int | None:
    """The first offset of a segment whose message is not among the rows of an archive; None: all are there. Rows that
    the segment does not have (any more) are of no account: they were read before an operator isolated them. A message
    is known by its checksum as it stands, so that a damaged one is still the archived one."""
    batches = [*read(replace(settings, columns=COLUMNS, verify=Verify.NO), SlicePartition(segment))]
    if not batches:
        return None
    wanted = _paired(rows_of(pa.Table.from_batches(batches)))
    there = np.concatenate([np.empty(0, _ROW), *(_paired(each) for each in archived)])
    absent = wanted["offset"][~np.isin(wanted, there)]
    return int(absent.min()) if len(absent) else None


def _paired(rows: Rows) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    found = np.empty(len(rows.offsets), _ROW)
    found["offset"], found["checksum"] = rows
    return found
