"""The columns of an Arrow batch as the buffers that the native encoder takes (native/src/log/encode.h), and digests of
the contents of rows and messages."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardd.spark import _decode
from shardd.spark.columns import HEADERS_TYPE

SAME: Final = (("headers", "headersRaw"), ("originTimestamp", "originTimestampRaw"))
Digests = np.ndarray[tuple[int], np.dtype[np.int64]]
_NO_ID: Final = bytes(16)
_BINARY: Final = pa.binary()
_U64: Final = pa.int64()
_NEITHER_IDS_NOR_ORIGINS: Final = (None, None, None)


class RowError(ValueError):
    """A row that cannot be a message, or rows that are not in the order that was promised."""


def buffers_of(batch: pa.RecordBatch, key_header: str) -> tuple[Any, ...]:
    """The columns as shardd/spark/_decode.pyi lists them. `RowError`."""
    names = batch.schema.names
    value = batch.column("value")
    if value.null_count:
        raise RowError("column 'value' has a null, which cannot be sent")
    none = (None, None)
    ids = batch.column("id") if "id" in names else None
    if ids is not None and ids.null_count:
        ids = ids.fill_null(_NO_ID)
    origin = next((each for each in SAME[1] if each in names), None)
    return (
        *bytes_of(value),
        *(bytes_of(batch.column("headersRaw")) if "headersRaw" in names else none),
        *(bytes_of(batch.column("key")) if "key" in names else none),
        key_header.encode() if key_header else None,
        *(_entries(batch.column("headers")) if "headers" in names else (None,) * 5),
        *(none if ids is None else bytes_of(ids)),
        None if origin is None else _origins(batch.column(origin)),
    )


def bytes_of(column: pa.Array) -> tuple[pa.Buffer, pa.Buffer]:
    """Offsets from its first row on, and data; a null is empty."""
    narrow = column if column.type in (_BINARY, pa.string()) else column.cast(_BINARY)
    if narrow.null_count:
        narrow = narrow.fill_null(b"" if narrow.type == _BINARY else "")
    _, offsets, data = narrow.buffers()
    return offsets.slice(narrow.offset * 4, (len(narrow) + 1) * 4), _present(data)


def _present(data: pa.Buffer | None) -> pa.Buffer:
    return pa.py_buffer(b"") if data is None else data


def _origins(column: pa.Array) -> pa.Buffer:
    if column.type == _U64:  # the bits of any number: what a producer has said
        raw = column.fill_null(0)
        return raw.buffers()[1].slice(raw.offset * 8, len(raw) * 8)
    micros = column.cast(pa.timestamp("us", tz="UTC")).cast(_U64).fill_null(0)
    if pc.min(micros).as_py() < 0:
        raise RowError("column 'originTimestamp' has a time before 1970, which cannot be sent")
    return micros.buffers()[1].slice(micros.offset * 8, len(micros) * 8)


def _entries(column: pa.Array) -> tuple[pa.Buffer, pa.Buffer, pa.Buffer, pa.Buffer, pa.Buffer]:
    """Offsets of each row's headers, and those, one behind the other."""
    plain = column.cast(HEADERS_TYPE)
    lengths = pc.fill_null(pc.list_value_length(plain), 0).cast(_U64)
    ends = pc.cumulative_sum(lengths).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    keys, values = plain.flatten().flatten()
    if keys.null_count or values.null_count:
        raise RowError("column 'headers' has a header without a key or without a value")
    return offsets.buffers()[1], *bytes_of(keys), *bytes_of(values)


def digests_of(batch: pa.RecordBatch, key_header: str = "") -> Digests:
    """Of the value and the user headers of each row or message: equal for a row and the message that it has become.
    `RowError`."""
    columns = (*buffers_of(batch, key_header)[: -len(_NEITHER_IDS_NOR_ORIGINS)], *_NEITHER_IDS_NOR_ORIGINS)
    try:
        return np.frombuffer(_decode.digests_of(columns, len(batch)), np.int64)
    except ValueError as error:
        raise RowError(f"a row cannot be sent: {error}") from error
