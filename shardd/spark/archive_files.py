"""Files of a Parquet archive (names: archive_listing.py): what stands in them, and how they are read and checked.

The columns are ARCHIVED below: with `headersRaw` and `checksum` nothing of a record is lost. A file appears whole
(written under a temporary name, fsync, link). It has one row for each offset of its name, in order, but those of which
its footer says that they have no message (`gaps`), or that it was lost (`lost`): a reader is told of those. The footer
says once more whose rows these are, with a digest of each row group (over the checksums of the records), so that a file
under another's name, with fewer rows or with other ones is refused. Every page has a CRC-32. Reading verifies all that,
and makes every record anew to compare its checksum, unless `verifyChecksums` is false. Files of earlier versions have
no such footer; all the rest holds for them, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from shardd.client.marks import Mark
from shardd.spark import _decode
from shardd.spark.archive_listing import Range, file_system, find, parse_file_name
from shardd.spark.columns import ALL, HEADERS_TYPE, SHOWN_BELOW_US, arrow_schema
from shardd.spark.decode import Fault, Verify
from shardd.spark.loss import HistoryGoneError

ARCHIVED: Final = ("offset", "timestamp", "originTimestamp", "id", "value", "headersRaw", "checksum", "partition")
FOOTER: Final = b"shardd.archive"
LAST: Final = b"shardd.archive.last"  # apart, as earlier programs refuse a footer that has more than they know
_HASHED: Final = ("id", "offset", "timestamp", "originTimestamp", "headersRaw", "value", "checksum")
_RECORD: Final = np.dtype(
    [
        ("checksum", "<i8"),
        ("id", "u1", 16),
        ("offset", "<i8"),
        ("timestamp", "<i8"),
        ("originTimestamp", "<i8"),
        ("headers", "<u4"),
        ("payload", "<u4"),
        ("reserved", "<u8"),
    ]
)  # a record up to its payload (docs/formats.md)
_ABSENT: Final = ("gaps", "lost")
_VERIFIED_ROWS: Final = 8192  # put together at a time: small messages stay in the cache
_BYTES_MAX: Final = 1 << 30  # of payload and user headers in one call


class DamagedArchiveError(ValueError):
    """A file of the archive that cannot be read, or does not hold what its name says; the message names the file."""


@dataclass(frozen=True, slots=True)
class Footer:
    """Whose rows a file has, and under which run it was written. `digests`: one for each row group. `gaps`, `lost`:
    offsets [start, end) without a row, ascending."""

    stream: str
    topic: str
    partition: int
    incarnation: int
    start: int
    end: int
    run: str
    digests: tuple[str, ...] = ()
    gaps: tuple[Range, ...] = ()
    lost: tuple[Range, ...] = ()

    def encode(self, digests: list[str], last: Mark | None = None) -> dict[str, str]:
        """As metadata of a Parquet file, `last` is its last record. With a row for each offset it is as in earlier
        versions."""
        known = {name: value for name in self.__slots__ if (value := getattr(self, name)) or name not in _ABSENT}
        found = {FOOTER.decode(): json.dumps({**known, "digests": digests})}
        return found if last is None else {**found, LAST.decode(): json.dumps(last)}

    def present(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The offsets that have a row."""
        there = np.ones(self.end - self.start, np.bool_)
        for low, high in (*self.gaps, *self.lost):
            there[low - self.start : high - self.start] = False
        return np.flatnonzero(there) + self.start

    @classmethod
    def of(cls, metadata: pq.FileMetaData) -> Footer | None:
        """None for a file of an earlier version. ValueError for what is not a footer."""
        text = (metadata.metadata or {}).get(FOOTER)
        if text is None:
            return None
        try:
            known = dict(json.loads(text))
            absent = {name: tuple((int(a), int(b)) for a, b in known.get(name, ())) for name in _ABSENT}
            found = cls(**{**known, "digests": tuple(known["digests"]), **absent})
            if not all(found.start <= a < b <= found.end for a, b in (*found.gaps, *found.lost)):
                raise ValueError("it says of offsets that are not its own that they have no row")
            return found
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"its footer cannot be read: {error}") from error


__all__ = [
    "ARCHIVED",
    "DamagedArchiveError",
    "Footer",
    "digest",
    "entries",
    "file_system",
    "find",
    "parse_headers",
    "read",
]


def last_of(path: str) -> Mark | None:
    """The last record of a file; one of an earlier version is asked for its last row. None for a file without rows.
    FileNotFoundError, `DamagedArchiveError`."""
    system, inner = file_system(path)
    with system.open_input_file(inner) as file:
        try:
            source = pq.ParquetFile(file, page_checksum_verification=True)
            text = (source.metadata.metadata or {}).get(LAST)
            if text is not None:
                offset, checksum = json.loads(text)
                return Mark(int(offset), int(checksum))
            if not source.metadata.num_rows:
                return None
            group = source.read_row_group(source.num_row_groups - 1, columns=["offset", "checksum"])
            return last_row(group)
        except (OSError, pa.ArrowException, ValueError, TypeError, KeyError) as error:
            raise DamagedArchiveError(f"the archive file {path} is damaged: {error}") from error


def last_row(table: pa.Table) -> Mark:
    """Of a table that has one."""
    row = table.slice(table.num_rows - 1)
    checksum = int(row.column("checksum")[0].as_py())
    return Mark(int(row.column("offset")[0].as_py()), checksum % (1 << 64))


def digest(checksums: pa.ChunkedArray) -> str:
    """Digest of a row group: XXH3 (64 bits) over the checksums of its records, little-endian."""
    state = xxhash.xxh3_64()
    for chunk in checksums.chunks:
        state.update(np.ascontiguousarray(chunk.to_numpy(zero_copy_only=False)).astype("<i8").tobytes())
    return str(state.hexdigest())


def read(
    path: str,
    names: tuple[str, ...],
    *,
    stream: str,
    topic: str,
    key_header: str | None,
    start: int,
    end: int,
    verify: Verify = Verify.STOP,
    rows: int = 65_536,
    lost: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The rows [start, end) of an archive file with exactly the wanted columns. FileNotFoundError,
    `DamagedArchiveError`; `HistoryGoneError` in front of lost ones, unless they are known (`lost`)."""
    system, inner = file_system(path)
    wanted = {"offset", "partition"} | {name for name in names if name in ARCHIVED}
    if {"headers", "key"} & set(names):
        wanted.add("headersRaw")
    if "originTimestampRaw" in names:
        wanted.add("originTimestamp")
    if verify is not Verify.NO or "checksumOk" in names:
        wanted |= set(_HASHED)
    gone: Range | None = None
    with system.open_input_file(inner) as file:
        try:
            source = pq.ParquetFile(file, page_checksum_verification=True)
            present, footer = _check_whole(source, path, stream, topic)
            if footer is not None and not lost:
                gone = next((each for each in footer.lost if start < each[1] and each[0] < end), None)
                end = end if gone is None else max(start, gone[0])
            at = 0
            for group in range(source.num_row_groups):
                offsets = present[at : at + source.metadata.row_group(group).num_rows]
                at += len(offsets)
                if len(offsets) and start <= offsets[-1] and offsets[0] < end:
                    expected = None if footer is None or verify is Verify.NO else footer.digests[group]
                    for batch in _group(source, group, sorted(wanted), offsets, rows, expected):
                        good = _verified(batch, verify) if wanted.issuperset(_HASHED) else None
                        chosen, good = _between(batch, good, start, end)
                        if chosen.num_rows:
                            yield _complete(chosen, names, stream, topic, key_header, good)
        except (OSError, pa.ArrowException, ValueError) as error:
            raise DamagedArchiveError(f"the archive file {path} is damaged: {error}") from error
    if gone is not None:
        what = f"the archive file {path}: offsets {gone[0]} to {gone[1] - 1} were lost before they were archived"
        raise HistoryGoneError(what, gone[1], end)


_Offsets = np.ndarray[Any, np.dtype[np.int64]]


def _check_whole(source: pq.ParquetFile, path: str, stream: str, topic: str) -> tuple[_Offsets, Footer | None]:
    """Name, footer and number of rows must agree. Returns the offsets of the rows. ValueError."""
    named = parse_file_name(path.rpartition("/")[2])
    if named is None:
        raise ValueError("its name is not that of a file of an archive")
    partition, incarnation, start, end = named
    held = source.metadata.num_rows
    footer = Footer.of(source.metadata)
    sparse = footer is not None and bool(footer.gaps or footer.lost)
    if held != end - start and not sparse:
        raise ValueError(f"it has {held} rows, but its name says {end - start}")
    if footer is not None:
        known = (footer.stream, footer.topic, footer.partition, footer.incarnation, footer.start, footer.end)
        if known != (stream, topic, partition, incarnation, start, end):
            raise ValueError(
                f"it was written as offsets {footer.start} to {footer.end} of partition {footer.partition} of"
                f" '{footer.stream}/{footer.topic}', incarnation {footer.incarnation}"
            )
        if len(footer.digests) != source.num_row_groups:
            raise ValueError(f"it has {source.num_row_groups} row groups, {len(footer.digests)} were written")
    present = footer.present() if sparse and footer is not None else np.arange(start, end)
    if held != len(present):
        raise ValueError(f"it has {held} rows, but its name and its footer say {len(present)}")
    return present, footer


def _group(
    source: pq.ParquetFile, group: int, wanted: list[str], present: _Offsets, rows: int, expected: str | None
) -> Iterator[pa.RecordBatch]:
    """A row group, which has the offsets `present`; at its end its digest is compared. ValueError."""
    state, first = xxhash.xxh3_64(), 0
    for batch in source.iter_batches(rows, row_groups=[group], columns=wanted):
        offsets = batch.column("offset").to_numpy(zero_copy_only=False)
        belong = present[first : first + len(offsets)]
        wrong = np.flatnonzero(offsets != belong)
        if len(wrong):
            at = int(wrong[0])
            raise ValueError(f"offset {offsets[at]} stands where offset {belong[at]} belongs")
        if expected is not None:
            state.update(batch.column("checksum").to_numpy(zero_copy_only=False).astype("<i8").tobytes())
        first += len(offsets)
        yield batch
    if expected is not None and state.hexdigest() != expected:
        raise ValueError(f"row group {group} does not have the records that were written (digest)")


def _between(
    batch: pa.RecordBatch, good: pa.Array | None, start: int, end: int
) -> tuple[pa.RecordBatch, pa.Array | None]:
    low, high = np.searchsorted(batch.column("offset").to_numpy(zero_copy_only=False), (start, end))
    if high <= low:
        return batch.slice(0, 0), None
    return batch.slice(low, high - low), None if good is None else good.slice(low, high - low)


def _verified(batch: pa.RecordBatch, verify: Verify) -> pa.Array:
    """Whether each row, put together as the record it was (the column `id` is big-endian), has the checksum it had in
    the log. ValueError when it must and has not."""
    if batch.num_rows == 0:
        return pa.array([], pa.bool_())
    parts = (batch.slice(at, _VERIFIED_ROWS) for at in range(0, batch.num_rows, _VERIFIED_ROWS))
    good = np.concatenate([_are_whole(part) for part in parts])
    if verify is Verify.STOP and not good.all():
        raise ValueError(
            f"the message at offset {batch.column('offset')[int(np.flatnonzero(~good)[0])]} fails its checksum;"
            " verifyChecksums=report reads on with the column checksumOk"
        )
    return pa.array(good)


def _are_whole(batch: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.bool_]]:
    offsets = batch.column("offset").to_numpy(zero_copy_only=False)
    borders = [*(np.flatnonzero(np.diff(offsets) != 1) + 1), len(offsets)]  # the ends of what is dense
    log, position, done = _records(batch), 0, 0
    good = np.ones(batch.num_rows, np.bool_)
    for border in borders:
        while done < border:
            at, end = int(offsets[done]), int(offsets[border - 1]) + 1
            found = _decode.decode(log, position, at, end, batch.num_rows, _BYTES_MAX, Verify.REPORT, b"b", None)
            if found.fault != Fault.OK or found.rows == 0:
                raise ValueError(f"the rows from offset {at} on are no records")
            if found.bad_checksums:
                ((bitmap,),) = found.columns
                bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")[: found.rows]
                good[done : done + found.rows] = bits
            position, done = found.position, done + found.rows
    return good


def _records(batch: pa.RecordBatch) -> memoryview:
    """The rows as they were in the log, one behind the other."""
    for name in _HASHED:
        if batch.column(name).null_count:
            raise ValueError(f"the column '{name}' has nulls")
    ids = batch.column("id")
    if pc.any(pc.not_equal(pc.binary_length(ids), 16)).as_py():
        raise ValueError("an id has not 16 bytes")
    heads = np.zeros(batch.num_rows, _RECORD)
    fixed_ids = ids.cast(pa.binary(16))
    bytes_of_ids = np.frombuffer(fixed_ids.buffers()[1], np.uint8)[fixed_ids.offset * 16 :]
    heads["id"] = bytes_of_ids[: batch.num_rows * 16].reshape(-1, 16)[:, ::-1]
    for name in ("checksum", "offset", "timestamp", "originTimestamp"):
        column = batch.column(name)
        numbers = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        heads[name] = numbers.to_numpy(zero_copy_only=False)
    heads["headers"] = pc.binary_length(batch.column("headersRaw")).to_numpy(zero_copy_only=False)
    heads["payload"] = pc.binary_length(batch.column("value")).to_numpy(zero_copy_only=False)
    borders = np.arange(0, (len(heads) + 1) * _RECORD.itemsize, _RECORD.itemsize, dtype=np.int64)
    buffers = [None, pa.py_buffer(borders), pa.py_buffer(heads.view(np.uint8))]
    wide = pa.large_binary()
    head = pa.Array.from_buffers(wide, len(heads), buffers)
    parts = (head, batch.column("value").cast(wide), batch.column("headersRaw").cast(wide))
    records = pc.binary_join_element_wise(*parts, pa.scalar(b"", wide))
    return memoryview(records.buffers()[2])


def _complete(
    batch: pa.RecordBatch,
    names: tuple[str, ...],
    stream: str,
    topic: str,
    key_header: str | None,
    good: pa.Array | None,
) -> pa.RecordBatch:
    rows = batch.num_rows
    constants = {"stream": stream, "topic": topic, "timestampType": 1}
    arrays = []
    for name in names:
        kind = ALL[name].arrow
        if name in constants:
            arrays.append(pa.repeat(pa.scalar(constants[name], kind), rows))
        elif name == "headers":
            raw = batch.column("headersRaw").to_pylist()
            arrays.append(pa.array([parse_headers(each) for each in raw], HEADERS_TYPE))
        elif name == "checksumOk":
            arrays.append(good)
        elif name == "key":
            arrays.append(_keys(batch, key_header))
        elif name == "originTimestampRaw":
            arrays.append(batch.column("originTimestamp").cast(kind))
        elif name == "originTimestamp":
            arrays.append(shown_times(batch.column(name)))
        else:
            arrays.append(batch.column(name).cast(kind))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(names))


def ranges(offsets: _Offsets) -> tuple[Range, ...]:
    """Ascending offsets as ranges [start, end)."""
    parts = np.split(offsets, np.flatnonzero(np.diff(offsets) != 1) + 1)
    return tuple((int(each[0]), int(each[-1]) + 1) for each in parts if len(each))


def shown_times(times: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The producers' times as the source gives them: null for one that is none (decode.py)."""
    micros = times.cast(pa.int64())
    shown = pc.and_(pc.greater_equal(micros, 0), pc.less(micros, SHOWN_BELOW_US))
    return pc.if_else(shown, micros, pa.scalar(None, pa.int64())).cast(ALL["originTimestamp"].arrow)


def _keys(batch: pa.RecordBatch, key_header: str | None) -> pa.Array:
    if key_header is None:
        return pa.nulls(batch.num_rows, pa.binary())
    wanted = key_header.encode()
    keys = (
        next((value for key, value in entries(raw) if key == wanted), None)
        for raw in batch.column("headersRaw").to_pylist()
    )
    return pa.array(keys, pa.binary())


def entries(raw: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a user headers block (docs/protocol/primitives.md#user-headers), up to where it does not
    parse."""
    at = 0
    while len(raw) - at >= 5:
        key_end = at + 5 + int.from_bytes(raw[at + 1 : at + 5], "little")
        value_at = key_end + 5
        if value_at > len(raw):
            return
        value_end = value_at + int.from_bytes(raw[key_end + 1 : value_at], "little")
        if value_end > len(raw):
            return
        yield raw[at + 5 : key_end], raw[value_at:value_end]
        at = value_end


def parse_headers(raw: bytes) -> list[dict[str, object]]:
    """The `headers` value of a row: [] when the block does not parse to its end."""
    found = list(entries(raw))
    if sum(len(key) + len(value) + 10 for key, value in found) != len(raw):
        return []
    return [{"key": key.decode(errors="replace"), "value": value} for key, value in found]
