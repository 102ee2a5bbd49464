"""Finds the rows of a batch that are stored already, by their ids in the log. A sink needs this where the numbers of a
producer cannot tell: its epoch has ended, or the server has forgotten it.
docs/adr/0089-a-sink-that-stores-rows-once.md"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardd.protocol.bounds import PartitionBounds
from shardd.spark import _decode
from shardd.spark.decode import Decoder
from shardd.spark.live import Polling, read
from shardd.spark.loss import HistoryGoneError
from shardd.spark.positions import TopicName
from shardd.spark.retry import Retries
from shardd.spark.sinks.topic.buffers import Digests, digests_of
from shardd.spark.sinks.topic.journal import Places
from shardd.spark.sinks.topic.options import SinkOptions
from shardd.spark.sinks.topic.server import SinkServer

_ID_BYTES: Final = 16
_ID: Final = pa.binary(_ID_BYTES)
_NO_ID: Final = pa.scalar(bytes(_ID_BYTES), pa.binary())
_POLL_BYTES: Final = 1 << 20
_DEPTH: Final = 2
_RETRIES: Final = Retries(8, 0.25)


class UnprovableError(LookupError):
    """What is stored of a batch cannot be found any more, so nothing is sent."""


@dataclass(frozen=True)
class Content:
    """Of rows. `made`: which of them have an id that says their position and nothing else."""

    made: pa.Array
    digests: Digests


@dataclass(frozen=True)
class StoredPart:
    """Ids of messages, with digests of what they hold."""

    ids: pa.Array
    digests: Digests


class StoredRows:
    """Ids of messages, each as often as it is stored. `take` uses them up."""

    def __init__(self, parts: Mapping[int, list[StoredPart]]) -> None:
        """`parts`: by partition."""
        self._by_partition = {partition: _Counted(each) for partition, each in parts.items() if each}
        self._all = _Counted([part for each in parts.values() for part in each])

    @property
    def count(self) -> int:
        return self._all.count

    def take(self, ids: pa.Array, places: pa.Array | None, content: Content | None = None) -> pa.Array:
        """For each row whether it is stored. `places`: its partition; None: it may be in any. `UnprovableError` when
        another row is stored under an id that says only the position of a row."""
        if content is not None:
            self._all.check(ids, content)
        if places is None:
            return pa.array(self._all.take(ids))
        found = np.zeros(len(ids), bool)
        for partition in pc.unique(places).to_pylist():
            if partition in self._by_partition:
                own = pc.equal(places, partition)
                found[own.to_numpy(zero_copy_only=False)] = self._by_partition[partition].take(ids.filter(own))
        return pa.array(found)


class _Counted:
    def __init__(self, parts: list[StoredPart]) -> None:
        ids = pa.chunked_array([each.ids for each in parts], pa.binary())
        counts = pc.value_counts(ids)
        self._known: pa.Array = counts.field("values")
        self._left = counts.field("counts").to_numpy().copy()
        first = pc.index_in(self._known, value_set=ids).to_numpy()
        self._digests = np.concatenate([each.digests for each in parts])[first] if parts else np.zeros(0, np.int64)

    @property
    def count(self) -> int:
        return int(self._left.sum())

    def take(self, ids: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """The first rows with an id are those that are stored, as many as there are."""
        found = np.zeros(len(ids), bool)
        if not len(self._left):
            return found
        known = pc.fill_null(pc.index_in(ids, value_set=self._known), -1).to_numpy()
        rows = np.flatnonzero(known >= 0)
        rows = rows[np.argsort(known[rows], kind="stable")]
        kinds = known[rows]
        first = np.searchsorted(kinds, kinds, side="left")
        rows = rows[np.arange(len(rows)) - first < self._left[kinds]]
        np.subtract.at(self._left, known[rows], 1)
        found[rows] = True
        return found

    def check(self, ids: pa.Array, content: Content) -> None:
        if not len(self._left):
            return
        known = pc.fill_null(pc.index_in(ids, value_set=self._known), -1).to_numpy()
        rows = np.flatnonzero((known >= 0) & content.made.to_numpy(zero_copy_only=False))
        if (content.digests[rows] != self._digests[known[rows]]).any():
            raise UnprovableError(
                "an attempt before has stored other rows at the positions of the rows of this task: rows of its source"
                " were lost or have changed in between, so it is not known which rows are stored, and nothing more is"
                " sent. One run with semantics=at-least-once writes the batch again; a column 'id' lets the sink find"
                " each row whatever its position"
            )


def ids_of(seed: bytes, position: int, rows: int) -> pa.Array:
    """The ids that the encoder makes of rows from a position on."""
    made = pa.py_buffer(_decode.ids_of(seed, position, rows))
    return pa.Array.from_buffers(_ID, rows, [None, made]).cast(pa.binary())


def named_ids(given: pa.Array, made: pa.Array) -> pa.Array:
    """Those of the rows; where they have none, the ones that are made."""
    none = pc.fill_null(pc.equal(given, _NO_ID), True)
    return pc.if_else(none, made, given)


def find(server: SinkServer, options: SinkOptions, ends: Places) -> tuple[StoredRows, Places]:
    """Messages behind `ends`, and where the partitions end. Nobody may be sending rows of the batch any more.

    `UnprovableError`, `HistoryGoneError`, `ServerUnreachableError`, `ShardError`."""
    name = options.topic
    for partition in range(server.partitions()):
        server.flush(name, partition)  # at level durable nothing else brings what is not on the device into sight
    found: dict[int, list[StoredPart]] = {}
    places: Places = {}
    for each in server.bounds({name: ()})[name].partitions:
        places[each.id] = (each.incarnation, each.end)
        found[each.id] = _parts(options, each, _begin(name, each, ends))
    return StoredRows(found), places


def _begin(name: TopicName, partition: PartitionBounds, ends: Places) -> int:
    incarnation, offset = ends.get(partition.id, (partition.incarnation, 0))
    if incarnation != partition.incarnation:
        return partition.first
    if offset < partition.first:
        raise _gone(name, partition.id)
    return offset


def _gone(name: TopicName, partition: int) -> UnprovableError:
    return UnprovableError(
        f"messages of partition {partition} of '{name}' were deleted since the last batch, so it is not known which"
        " rows of this batch are stored: nothing is sent. One run with semantics=stable-ids writes the batch again,"
        " with the same ids"
    )


def _parts(options: SinkOptions, partition: PartitionBounds, start: int) -> list[StoredPart]:
    name = options.topic
    polling = Polling(options.servers, options.credentials, options.request_timeout_s, _RETRIES, _POLL_BYTES, _DEPTH)
    decoder = Decoder(("id", "value", "headersRaw"), stream=name.stream, topic=name.topic, partition=partition.id)
    rows = read(decoder, polling, name, partition.id, incarnation=partition.incarnation, start=start, end=partition.end)
    try:
        return [StoredPart(batch.column("id"), digests_of(batch)) for batch in rows]
    except HistoryGoneError as error:
        raise _gone(name, partition.id) from error
