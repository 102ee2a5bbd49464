"""Batches of messages as Arrow tables (needs pyarrow, which `shardd[spark]` brings)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from shardd.client.messages import Header, Message, headers_of

SCHEMA: Final = pa.schema(
    [
        pa.field("partition", pa.uint32(), nullable=False),
        pa.field("offset", pa.uint64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("origin_timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("id", pa.binary(16), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("headers", pa.map_(pa.string(), pa.binary()), nullable=False),
    ]
)


def record_batch(messages: Sequence[Message]) -> pa.RecordBatch:
    """`record_batch(await consumer.get_batch())`: columns as in `SCHEMA`, a row for each message in its order. `id` as
    it is on the wire, little-endian; headers that are not bytes as the text that `str` makes of them. ProtocolError."""
    columns = list(zip(*messages, strict=True)) if messages else [()] * len(Message._fields)
    partitions, offsets, timestamps, payloads, headers, ids, origins, _checksums = columns
    return pa.RecordBatch.from_arrays(
        [
            pa.array(partitions, pa.uint32()),
            pa.array(offsets, pa.uint64()),
            pa.array(timestamps, pa.int64()).cast(SCHEMA.field("timestamp").type),
            pa.array(origins, pa.int64()).cast(SCHEMA.field("origin_timestamp").type),
            pa.array([each.to_bytes(16, "little") for each in ids], pa.binary(16)),
            pa.array(payloads, pa.binary()),
            pa.array([_pairs(block) for block in headers], SCHEMA.field("headers").type),
        ],
        schema=SCHEMA,
    )


def _pairs(block: bytes) -> list[tuple[str, bytes]]:
    return [(key, _bytes(value)) for key, value in headers_of(block).items()] if block else []


def _bytes(value: Header) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
