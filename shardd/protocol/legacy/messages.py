"""SEND_MESSAGES of earlier generations (docs/protocol/legacy.md#messages). The records themselves are read by the core
(native/src/wire/record_forms.h)."""

from __future__ import annotations

from typing import Final

import msgspec

from shardd.protocol.errors import ShardError, Status
from shardd.protocol.legacy import generations
from shardd.protocol.legacy.generations import Generation
from shardd.protocol.legacy.reader import LegacyReader
from shardd.protocol.primitives import Identifier
from shardd.protocol.send_request import Partitioning, PartitioningKind

_RECORDS_LOOKED_AT: Final = 100


class SentMessages(msgspec.Struct, frozen=True):
    """`records` as they were sent, in one of `forms`; the first one that fits is theirs. `count`: 0, nobody tells."""

    stream: Identifier
    topic: Identifier
    partitioning: Partitioning
    count: int
    records: bytes
    forms: tuple[int, ...]


def _partitioning(reader: LegacyReader) -> Partitioning:
    kind, value = reader.u8(), reader.take(reader.u8())
    if kind == PartitioningKind.BALANCED and not value:
        return Partitioning(PartitioningKind.BALANCED)
    if kind == PartitioningKind.PARTITION and len(value) == 4:
        sent = int.from_bytes(value, "little")
        return Partitioning(PartitioningKind.PARTITION, reader.own_id(sent))
    if kind == PartitioningKind.KEY and value:
        return Partitioning(PartitioningKind.KEY, key=value)
    raise ShardError(Status.INVALID_COMMAND, "unknown partitioning")


def _address(reader: LegacyReader) -> tuple[Identifier, Identifier]:
    try:
        return reader.identifier(), reader.identifier()
    except ShardError as error:
        raise ShardError(Status.INVALID_IDENTIFIER, "bad identifier of a stream or topic") from error


def _fit(records: bytes, form: int) -> bool:
    """Whether they look like records of a form, as far as the first ones tell."""
    at = 0
    for _ in range(_RECORDS_LOOKED_AT):
        at += form - 4
        if form == 24:  # the user headers
            at += int.from_bytes(records[at - 4 : at], "little")
        at += 4 + int.from_bytes(records[at : at + 4], "little")
        if at >= len(records):
            return at == len(records)
    return True


def _begin_like_20(records: bytes) -> bool:
    return not _fit(records, 24) and _fit(records, 20)


def read_send(reader: LegacyReader, generation: Generation) -> tuple[SentMessages, Generation]:
    """With headers of 56 bytes the payload begins as the classic one; before, there is neither a length nor a count."""
    if generation.send_form != 56:
        stream, topic = _address(reader)
        partitioning = _partitioning(reader)
        if not generation.logs_in and generation.send_form == 24 and _begin_like_20(reader.rest):
            generation = generations.SHORT_RECORDS
        forms = (24, 20) if generation.send_form == 24 else (20,)
        return SentMessages(stream, topic, partitioning, 0, reader.rest, forms), generation
    metadata_length = reader.u32()
    begin = reader.position
    if metadata_length > reader.remaining:
        raise ShardError(Status.INVALID_COMMAND, "payload is cut")
    stream, topic = _address(reader)
    partitioning, count = _partitioning(reader), reader.u32()
    if reader.position - begin > metadata_length:
        raise ShardError(Status.INVALID_COMMAND, "payload is cut")
    records = reader.at(begin + metadata_length).rest
    return SentMessages(stream, topic, partitioning, count, records, (56,)), generation
