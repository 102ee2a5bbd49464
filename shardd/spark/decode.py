"""Stored records to Arrow record batches: the native decoder (native/src/log/decode.c) and the columns around it."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import pyarrow as pa

from shardd.spark import _decode
from shardd.spark.columns import ALL, HEADERS_TYPE, LOG_APPEND_TIME, SHOWN_BELOW_US, arrow_schema

BATCH_BYTES: Final = 2 << 20  # payload and user headers of one batch; measured best (docs/adr on the Spark source)
ROWS_MAX: Final = 1 << 17


class Fault(IntEnum):
    """Why a batch ended; decode_fault in native/src/log/decode.h."""

    OK = _decode.OK
    TRUNCATED = _decode.TRUNCATED
    BAD_LENGTH = _decode.BAD_LENGTH
    GAP = _decode.GAP
    BAD_CHECKSUM = _decode.BAD_CHECKSUM


class Verify(IntEnum):
    """What is done about checksums."""

    NO = _decode.VERIFY_NO
    STOP = _decode.VERIFY_STOP
    REPORT = _decode.VERIFY_REPORT


@dataclass(frozen=True, slots=True)
class Decoded:
    """`position`: byte behind the rows in the data. `fault_offset`: where it happened, for GAP what was found."""

    batch: pa.RecordBatch | None
    rows: int
    position: int
    next_offset: int
    fault: Fault
    fault_offset: int
    bad_checksums: int


class Decoder:
    """Decodes records of one partition into batches with exactly the wanted columns, in their order."""

    def __init__(
        self,
        names: tuple[str, ...],
        *,
        stream: str,
        topic: str,
        partition: int,
        key_header: str | None = None,
        verify: Verify = Verify.STOP,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        self._names = names
        self._schema = arrow_schema(names)
        self._key = None if key_header is None else key_header.encode()
        self._verify = verify
        self._batch_bytes = batch_bytes
        self._letters = b"".join(ALL[name].letter.encode() for name in names if name != "key" or key_header is not None)
        self._constants: dict[str, pa.Scalar] = {
            "stream": _string(stream),
            "topic": _string(topic),
            "partition": _int32(partition),
            "timestampType": _int32(LOG_APPEND_TIME),
        }
        if key_header is None:
            self._constants["key"] = pa.nulls(1, pa.binary())[0]
        self._repeated: dict[str, pa.Array] = {}
        self.following = 0  # the offset behind the last batch

    def decode(
        self,
        data: bytes | bytearray | memoryview | mmap.mmap,
        position: int,
        from_offset: int,
        to_offset: int,
        *,
        gaps: bool = False,
    ) -> Decoded:
        """The next batch of the offsets [from_offset, to_offset) in `data`, whose byte `position` is a record
        border. `gaps`: some of them have no record, which somebody explains."""
        found = _decode.decode(
            data,
            position,
            from_offset,
            to_offset,
            ROWS_MAX,
            self._batch_bytes,
            self._verify,
            self._letters,
            self._key,
            gaps,
        )
        self.following = found.next_offset
        batch = self._assemble(found.rows, found.columns) if found.rows else None
        return Decoded(
            batch,
            found.rows,
            found.position,
            found.next_offset,
            Fault(found.fault),
            found.fault_offset,
            found.bad_checksums,
        )

    def _assemble(self, rows: int, columns: tuple[tuple[bytes, ...], ...]) -> pa.RecordBatch:
        decoded = iter(columns)
        arrays = [
            self._constant(name, rows) if name in self._constants else _array(name, rows, next(decoded))
            for name in self._names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _constant(self, name: str, rows: int) -> pa.Array:
        array = self._repeated.get(name)
        if array is None or len(array) < rows:
            array = self._repeated[name] = pa.repeat(self._constants[name], rows)
        return array.slice(0, rows)


# Not `pa.scalar`: it loads pandas, wherever that is installed, into every process of Spark that reads.
def _string(text: str) -> pa.Scalar:
    value = text.encode()
    buffers = [None, pa.py_buffer(struct.pack("=2i", 0, len(value))), pa.py_buffer(value)]
    return pa.Array.from_buffers(pa.string(), 1, buffers)[0]


def _int32(number: int) -> pa.Scalar:
    return pa.Array.from_buffers(pa.int32(), 1, [None, pa.py_buffer(struct.pack("=i", number))])[0]


def _array(name: str, rows: int, parts: tuple[bytes, ...]) -> pa.Array:
    buffers = [pa.py_buffer(part) for part in parts]
    kind = ALL[name].arrow
    if name == "key":
        return pa.Array.from_buffers(kind, rows, buffers)
    if name == "headers":
        lists, key_offsets, keys, value_offsets, values = buffers
        entries = len(parts[1]) // 4 - 1
        key_array = _text(pa.Array.from_buffers(pa.string(), entries, [None, key_offsets, keys]))
        value_array = pa.Array.from_buffers(pa.binary(), entries, [None, value_offsets, values])
        pairs = pa.Array.from_buffers(HEADERS_TYPE.value_type, entries, [None], children=[key_array, value_array])
        return pa.Array.from_buffers(kind, rows, [None, lists], children=[pairs])
    validity = _shown(parts[0]) if name == "originTimestamp" else None
    return pa.Array.from_buffers(kind, rows, [validity, *buffers])


def _shown(times: bytes) -> pa.Buffer | None:
    """Which of the producers' times are one that Spark and Python can show; None: all of them."""
    beyond = np.frombuffer(times, "<u8") >= SHOWN_BELOW_US
    return pa.py_buffer(np.packbits(~beyond, bitorder="little").tobytes()) if beyond.any() else None


def _text(keys: pa.Array) -> pa.Array:
    """The keys of headers, with U+FFFD for bytes that are not UTF-8: Arrow and all tables behind it demand text."""
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid:
        binary = pa.Array.from_buffers(pa.binary(), len(keys), keys.buffers())
        return pa.array([each.decode(errors="replace") for each in binary.to_pylist()], pa.string())
    return keys
