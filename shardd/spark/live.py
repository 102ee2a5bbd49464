"""Rows from the server, polled by explicit offset: no group, nothing committed. One connection for each worker process,
kept between tasks; the next poll is on its way while the last one is decoded."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from shardd.client import Connection, ConnectionFailedError, Credentials
from shardd.protocol.codes import Code
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.primitives import PollingKind
from shardd.spark.cold import DamagedRecordError, explain
from shardd.spark.decode import Decoder, Fault
from shardd.spark.positions import TopicName
from shardd.spark.server import poll_request

_HEAD: Final = struct.Struct("<IQI")
_RECORD_BYTES: Final = 64
_FIRST_COUNT: Final = 256
COUNT_MAX: Final = 1 << 20

_kept: dict[tuple[int, str, Credentials], Connection] = {}


class HistoryGoneError(LookupError):
    """The server has not got the offsets any more (or has them no longer)."""


def _connection(address: str, credentials: Credentials, timeout_s: float) -> Connection:
    key = (os.getpid(), address, credentials)
    if key not in _kept:
        _kept[key] = Connection(address, credentials, timeout_s=timeout_s)
    return _kept[key]


def _forget(address: str, credentials: Credentials) -> None:
    connection = _kept.pop((os.getpid(), address, credentials), None)
    if connection is not None:
        connection.close()


def read(
    decoder: Decoder,
    servers: tuple[str, ...],
    credentials: Credentials,
    name: TopicName,
    partition: int,
    *,
    start: int,
    end: int,
    poll_bytes: int,
    timeout_s: float,
    depth: int,
) -> Iterator[pa.RecordBatch]:
    """Batches of the offsets [start, end). A connection that breaks is made again, on the next server.

    `HistoryGoneError`, `DamagedRecordError`, `ConnectionFailedError`, `ShardError`.
    """
    at, broken = start, 0
    while at < end:
        address = servers[broken % len(servers)]
        try:
            connection = _connection(address, credentials, timeout_s)
            for batch, following in _polls(connection, decoder, name, partition, at, end, poll_bytes, depth):
                at, broken = following, 0
                yield batch
        except (ConnectionFailedError, ShardError) as error:
            _forget(address, credentials)
            broken += 1
            transient = isinstance(error, ConnectionFailedError) or error.status is Status.SHARD_COMMUNICATION_ERROR
            if not transient or broken > 2 * len(servers):
                raise
        except BaseException:
            _forget(address, credentials)  # answers may be on their way
            raise


def _polls(
    connection: Connection,
    decoder: Decoder,
    name: TopicName,
    partition: int,
    start: int,
    end: int,
    poll_bytes: int,
    depth: int,
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Batches with the offset behind each. Asks by count; the count follows the average size of what came."""
    asked: list[tuple[int, int]] = []  # ranges on their way, in order
    count, next_ask, at = _FIRST_COUNT, start, start
    buffers = [bytearray() for _ in range(depth)]
    turn = 0
    while at < end:
        while len(asked) < depth and next_ask < end:
            upto = min(next_ask + count, end)
            payload = poll_request(name, partition, PollingKind.OFFSET, next_ask, upto - next_ask)
            connection.send(Code.POLL_MESSAGES, payload)
            asked.append((next_ask, upto))
            next_ask = upto
        low, high = asked.pop(0)
        answer = connection.receive(buffers[turn % depth])
        turn += 1
        _, current, got = _HEAD.unpack_from(answer)
        if low != at:
            continue  # asked before an answer turned out to be shorter than its count
        if got == 0:
            raise HistoryGoneError(f"partition {partition} of '{name}' has no offset {at} (its last is {current})")
        data = answer[_HEAD.size :]
        position = 0
        while position < len(data) and at < high:
            decoded = decoder.decode(data, position, at, high)
            if decoded.fault is Fault.GAP and decoded.rows == 0 and position == 0:
                raise HistoryGoneError(
                    f"partition {partition} of '{name}' has no offset {at}, but {decoded.fault_offset}"
                )
            position, at = decoded.position, decoded.next_offset
            if decoded.batch is not None:
                yield decoded.batch, at
            if decoded.fault is not Fault.OK:
                what = explain(decoded.fault, at, decoded.fault_offset)
                raise DamagedRecordError(f"partition {partition} of '{name}': {what}")
        if at < high:
            next_ask = at
        average = max(len(data) // got, _RECORD_BYTES)
        count = max(1, min(poll_bytes // average, COUNT_MAX))
    while asked:  # leave the connection with nothing on its way
        connection.receive(buffers[0])
        asked.pop(0)
