"""Archive of a topic as Parquet files, named so that the name alone tells what is inside:

    <root>/<stream>/<topic>/<partition>-<incarnation>-<start offset, 20 digits>-<end offset, exclusive, 20
    digits>.parquet

Stream and topic are percent-encoded, so that every name is one directory. The columns are ARCHIVED below: with
`headersRaw` and `checksum` nothing of a record is lost. A file appears whole (written under a temporary name, fsync,
rename). Every page has a CRC-32, which every read checks; the column `checksumOk` hashes the record anew.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import xxhash

from shardd.spark.columns import ALL, HEADERS_TYPE, arrow_schema
from shardd.spark.piece import Piece, Place
from shardd.spark.positions import TopicName

ARCHIVED: Final = ("offset", "timestamp", "originTimestamp", "id", "value", "headersRaw", "checksum", "partition")
_U64: Final = 1 << 64
_HASHED: Final = ("id", "offset", "timestamp", "originTimestamp", "headersRaw", "value", "checksum")
_HEAD: Final = struct.Struct("<16sQQQIIQ")  # a record from its id to its payload (docs/formats.md)
_NAME: Final = re.compile(r"(\d+)-(\d+)-(\d{20})-(\d{20})\.parquet")


class DamagedArchiveError(ValueError):
    """A file of the archive that cannot be read, or whose pages fail their check; the message names the file."""


def topic_path(root: str, name: TopicName) -> str:
    """Directory of a topic below the archive's root."""
    return f"{root.rstrip('/')}/{quote(name.stream, safe='')}/{quote(name.topic, safe='')}"


def file_name(partition: int, incarnation: int, start: int, end: int) -> str:
    return f"{partition}-{incarnation}-{start:020}-{end:020}.parquet"


def parse_file_name(name: str) -> tuple[int, int, int, int] | None:
    """(partition, incarnation, start, end), or None for any other file."""
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3]), int(match[4]))


def file_system(path: str) -> tuple[pafs.FileSystem, str]:
    """File system and path in it, from a local path or a URI such as s3://bucket/dir."""
    if "://" in path:
        system, inner = pafs.FileSystem.from_uri(path)
        return system, inner
    return pafs.LocalFileSystem(), path


def find(root: str, name: TopicName, partition: int, incarnation: int) -> list[Piece]:
    """The files of one incarnation of a partition, by start offset; of overlapping ones the longer first."""
    system, inner = file_system(topic_path(root, name))
    listing = system.get_file_info(pafs.FileSelector(inner, allow_not_found=True))
    found = []
    for info in listing:
        parsed = parse_file_name(info.base_name)
        if parsed is not None and parsed[:2] == (partition, incarnation):
            found.append(Piece(Place.ARCHIVE, parsed[2], parsed[3], f"{topic_path(root, name)}/{info.base_name}"))
    return sorted(found, key=lambda each: (each.start, -each.end))


def read(
    path: str,
    names: tuple[str, ...],
    *,
    stream: str,
    topic: str,
    key_header: str | None,
    start: int,
    end: int,
    rows: int = 65_536,
) -> Iterator[pa.RecordBatch]:
    """The rows [start, end) of an archive file with exactly the wanted columns. FileNotFoundError,
    `DamagedArchiveError`."""
    system, inner = file_system(path)
    wanted = {"offset"} | {name for name in names if name in ARCHIVED}
    if {"headers", "key"} & set(names):
        wanted.add("headersRaw")
    if "checksumOk" in names:
        wanted |= set(_HASHED)
    with system.open_input_file(inner) as file:
        try:
            source = pq.ParquetFile(file, page_checksum_verification=True)
            groups = [g for g in range(source.num_row_groups) if _touches(source, g, start, end)]
            for batch in source.iter_batches(rows, row_groups=groups, columns=sorted(wanted)):
                offsets = batch.column("offset")
                chosen = batch.filter(pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end)))
                if chosen.num_rows:
                    yield _complete(chosen, names, stream, topic, key_header)
        except (OSError, pa.ArrowException) as error:
            raise DamagedArchiveError(f"the archive file {path} is damaged: {error}") from error


def _touches(source: pq.ParquetFile, group: int, start: int, end: int) -> bool:
    metadata = source.metadata.row_group(group)
    for i in range(metadata.num_columns):
        column = metadata.column(i)
        if column.path_in_schema == "offset" and column.statistics is not None and column.statistics.has_min_max:
            return bool(column.statistics.min < end and column.statistics.max >= start)
    return True


def _complete(
    batch: pa.RecordBatch, names: tuple[str, ...], stream: str, topic: str, key_header: str | None
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
            arrays.append(_verified(batch))
        elif name == "key":
            arrays.append(_keys(batch, key_header))
        else:
            arrays.append(batch.column(name).cast(kind))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(names))


def _verified(batch: pa.RecordBatch) -> pa.Array:
    """Whether each row, put together as the record it was (the column `id` is big-endian), has the checksum it had in
    the log."""
    columns = [batch.column(name) for name in _HASHED]
    numbers = (each.cast(pa.int64()) if pa.types.is_timestamp(each.type) else each for each in columns)
    good = []
    for identity, offset, time_us, origin_us, headers, value, checksum in zip(
        *(each.to_pylist() for each in numbers), strict=True
    ):
        times = (time_us % _U64, origin_us % _U64)
        head = _HEAD.pack(identity[::-1], offset, *times, len(headers), len(value), 0)
        found = xxhash.xxh3_64_intdigest(head + value + headers)
        good.append(found == checksum % _U64)
    return pa.array(good, pa.bool_())


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
    """Keys and values of a user headers block (iggy-protocol 2.8), up to where it does not parse."""
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
