"""Turns Arrow batches into frames of SEND_MESSAGES: the permitted columns, the partition of each row, and the buffers
that the native encoder takes (native/src/log/encode.h). No row becomes a Python object."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardd.client.messages import batch_head
from shardd.protocol.producers import send_once_head
from shardd.spark import _decode
from shardd.spark.columns import ALL
from shardd.spark.positions import OptionError
from shardd.spark.sinks.topic.buffers import SAME, RowError, buffers_of, bytes_of, digests_of
from shardd.spark.sinks.topic.options import ONCE_BYTES_MAX, SOURCE_ORDER, Partitioning, Semantics, SinkOptions
from shardd.spark.sinks.topic.stored import Content, StoredRows, ids_of, named_ids

COLUMNS: Final = (
    "value", "key", "headers", "headersRaw", "id", "partition", "originTimestamp", "originTimestampRaw",
)  # fmt: skip
_TYPES: Final = {"value": ("binary", "string"), "key": ("binary", "string"), "partition": ("int", "bigint")}
_INDEX_ENTRY: Final = 16
_COUNT_AT: Final = 12  # in a frame, behind the head: length, code and length of the metadata are in front
_DIGEST_BYTES: Final = 8  # the native encoder puts it behind the head of a numbered batch


class Frame(msgspec.Struct, frozen=True):
    """One request, for one partition. `number`: of the batch of an idempotent producer."""

    data: bytes
    rows: int
    partition: int
    number: int | None = None


class Numbers:
    """Of the batches of a producer in one epoch, by partition."""

    def __init__(self, producer: int, epoch: int, numbers: dict[int, int]) -> None:
        self.producer = producer
        self.epoch = epoch
        self.next = dict(numbers)

    def head(self, partition: int) -> bytes:
        """Of the next batch."""
        return send_once_head(self.producer, self.epoch, self.next.get(partition, 0))

    def take(self, partition: int) -> int:
        number = self.next.get(partition, 0)
        self.next[partition] = number + 1
        return number


def check_columns(names_and_types: Sequence[tuple[str, str]], options: SinkOptions) -> None:
    """Whether a DataFrame can be written. `OptionError`."""
    given = dict(names_and_types)
    for name, kind in given.items():
        if name in options.order and name not in COLUMNS:
            continue
        if name not in COLUMNS:
            close = difflib.get_close_matches(name, COLUMNS, 1)
            hint = f"did you mean '{close[0]}'?" if close else f"there may be {', '.join(COLUMNS)}"
            raise OptionError(f"the sink shardd has no column '{name}'; {hint} Select what is to be sent")
        known = _TYPES.get(name, (ALL[name].sql,))
        if kind not in known:
            raise OptionError(f"column '{name}' of the sink shardd is {' or '.join(known)}, not {kind}")
    if "value" not in given:
        raise OptionError("the sink shardd needs a column 'value'")
    for one, other in SAME:
        if one in given and other in given:
            raise OptionError(f"columns '{one}' and '{other}' say the same twice; select one of them")
    _check_partitioning(given, options)
    _check_order(given, options)


def _check_partitioning(given: dict[str, str], options: SinkOptions) -> None:
    needed = {Partitioning.KEY: "key", Partitioning.COLUMN: "partition"}.get(options.partitioning)
    if needed is not None and needed not in given:
        raise OptionError(f"partitioning '{options.partitioning}' needs a column '{needed}'")
    if options.key_header and "key" not in given:
        raise OptionError("option 'keyHeader' names the user header of a column 'key', but there is no such column")


def _check_order(given: dict[str, str], options: SinkOptions) -> None:
    for name in options.order:
        if name != SOURCE_ORDER and name not in given:
            raise OptionError(f"option 'order' names the column '{name}', but the rows do not have it")
    with_ids = options.semantics is Semantics.STABLE_IDS and "id" in given
    if options.semantics.needs_order and not options.order and not with_ids:
        raise OptionError(
            f"semantics '{options.semantics}' knows a row by its position, so a repeated task must have its rows in the"
            " same order: sort within partitions and name the columns in 'order', or say order=source when nothing is"
            " shuffled between source and sink"
            + (", or give a column 'id'" if options.semantics is Semantics.STABLE_IDS else "")
        )


class RowEncoder:
    """Frames of one task. `seed`: 16 bytes that ids are made from; None: the server makes them. `numbers`: frames are
    those of an idempotent producer. `stored`: rows that are left out."""

    def __init__(self, options: SinkOptions, partitions: int, seed: bytes | None, task: int) -> None:
        self._options = options
        self._partitions = partitions
        self._seed = seed
        self._turn = task  # rows without a place go to one partition after the other, tasks begin at different ones
        self._position = 0
        self._last: list[Any] | None = None
        self._heads: dict[int, bytes] = {}
        self.numbers: Numbers | None = None
        self.stored: StoredRows | None = None

    def frames(self, batch: pa.RecordBatch) -> Iterator[Frame]:
        """`RowError`."""
        self.check_order(batch)
        yield from self.frames_at(batch, self._position)
        self._position += batch.num_rows

    def frames_at(self, batch: pa.RecordBatch, position: int) -> Iterator[Frame]:
        """Of a batch whose first row has this position in the task. `RowError`."""
        if self._options.semantics is Semantics.IDEMPOTENT:
            batch = self._with_ids(batch, position)
        if batch.num_rows == 0:
            return
        self._position = position
        columns = buffers_of(batch, self._options.key_header)
        places = self._places(batch)
        if places is None:
            yield from self._balanced(columns, batch.num_rows)
        else:
            for partition in sorted(
                pc.unique(pa.Array.from_buffers(pa.int32(), len(batch), [None, places])).to_pylist()
            ):
                yield from self._all_of(columns, batch.num_rows, places, partition)

    def _with_ids(self, batch: pa.RecordBatch, position: int) -> pa.RecordBatch:
        """Each row with an id by which it is found again, without those that are stored."""
        given = "id" in batch.schema.names
        if not given and self.stored is None:
            return batch  # the native encoder makes them
        assert self._seed is not None
        made = ids_of(self._seed, position, batch.num_rows)
        ids = made if not given else named_ids(batch.column("id"), made)
        stored = None if self.stored is None else self._stored(batch, ids, made)
        at = batch.schema.get_field_index("id")
        batch = batch.set_column(at, "id", ids) if given else batch.append_column("id", ids)
        return batch if stored is None else batch.filter(pc.invert(stored))

    def _stored(self, batch: pa.RecordBatch, ids: pa.Array, made: pa.Array) -> pa.Array:
        assert self.stored is not None
        given = "id" in batch.schema.names
        own = pc.equal(ids, made) if given else pa.array(np.ones(len(batch), bool))
        content = digests_of(batch, self._options.key_header)
        return self.stored.take(ids, self._own_places(batch) if given else None, Content(own, content))

    def _own_places(self, batch: pa.RecordBatch) -> pa.Array | None:
        """The partitions that the rows name themselves."""
        if not self._by_partition(batch.schema.names):
            return None
        return pa.Array.from_buffers(pa.int32(), len(batch), [None, self._by_column(batch.column("partition"))])

    def _by_partition(self, names: list[str]) -> bool:
        way = self._options.partitioning
        return way is Partitioning.COLUMN or (way is Partitioning.AUTO and "partition" in names)

    def _places(self, batch: pa.RecordBatch) -> pa.Buffer | None:
        """int32s: the partition of each row; None when any will do."""
        way, names = self._options.partitioning, batch.schema.names
        if self._by_partition(names):
            return self._by_column(batch.column("partition"))
        if way is Partitioning.KEY or (way is Partitioning.AUTO and "key" in names):
            keys = bytes_of(batch.column("key"))
            if way is Partitioning.AUTO and batch.column("key").null_count == len(batch):
                return None
            self._turn += 1
            offsets, data = keys
            made = _decode.partitions_of(offsets, data, len(batch), self._partitions, self._turn % self._partitions)
            return pa.py_buffer(made)
        return None

    def _by_column(self, column: pa.Array) -> pa.Buffer:
        if column.null_count:
            raise RowError("column 'partition' has a null; every row needs a partition, or leave the column away")
        ends = pc.min_max(column)
        low, high = ends["min"].as_py(), ends["max"].as_py()
        if low < 0 or high >= self._partitions:
            wrong = low if low < 0 else high
            raise RowError(
                f"column 'partition' has {wrong}, but '{self._options.topic}' has the partitions 0 to"
                f" {self._partitions - 1}; with partitioning=key or balanced the sink chooses"
            )
        narrow = column.cast(pa.int32())
        return narrow.buffers()[1].slice(narrow.offset * 4, len(narrow) * 4)

    def _balanced(self, columns: tuple[Any, ...], rows: int) -> Iterator[Frame]:
        at = 0
        while at < rows:
            frame, at = self._frame(columns, rows, at, None, self._turn % self._partitions)
            self._turn += 1
            if frame is not None:
                yield frame

    def _all_of(self, columns: tuple[Any, ...], rows: int, places: pa.Buffer, partition: int) -> Iterator[Frame]:
        at = 0
        while at < rows:
            frame, at = self._frame(columns, rows, at, places, partition)
            if frame is not None:
                yield frame

    def _frame(
        self, columns: tuple[Any, ...], rows: int, at: int, places: pa.Buffer | None, partition: int
    ) -> tuple[Frame | None, int]:
        head = self._heads.get(partition)
        if head is None:
            name = self._options.topic
            head = self._heads[partition] = batch_head(name.stream, name.topic, partition)
        numbers = self.numbers
        once = None if numbers is None else numbers.head(partition)
        size_max = self._options.batch_bytes
        try:
            data, following = _decode.encode(
                columns, rows, at, head, places, partition, size_max, self._seed, self._position, once
            )
        except ValueError as error:
            raise RowError(f"'{self._options.topic}' cannot take a row: {error}") from error
        if data is None:
            return None, following
        count_at = _COUNT_AT + len(head) + (0 if once is None else len(once) + _DIGEST_BYTES)
        count = int.from_bytes(data[count_at : count_at + 4], "little")
        if numbers is None:
            return Frame(data, count, partition), following
        if len(data) - count_at - 4 - _INDEX_ENTRY * count > ONCE_BYTES_MAX:
            raise RowError(
                f"'{self._options.topic}' cannot take a row: with its headers it has more than"
                f" {ONCE_BYTES_MAX // (1 << 20)} MiB, the most that semantics 'idempotent' can send at once"
            )
        return Frame(data, count, partition, numbers.take(partition)), following

    def check_order(self, batch: pa.RecordBatch) -> None:
        """Rows ascend strictly by the columns of `order`, so that a repeated task has each at the same position."""
        names = [name for name in self._options.order if name != SOURCE_ORDER]
        if not names or not len(batch):
            return
        columns = [batch.column(name) for name in names]
        if any(column.null_count for column in columns):
            raise RowError(
                f"a column of 'order' has a null ({', '.join(names)}); positions of rows would not be stable"
            )
        first = [column[0].as_py() for column in columns]
        bad = self._last is not None and first <= self._last
        if not bad and len(batch) > 1:
            bad = not pc.all(_ascends(columns)).as_py()
        if bad:
            raise RowError(
                f"the rows of a task do not ascend by {', '.join(names)} (option 'order'), each one above the one"
                " before: sort within partitions by columns that no two rows share"
            )
        self._last = [column[len(batch) - 1].as_py() for column in columns]


def _ascends(columns: list[pa.Array]) -> pa.Array:
    """For each row but the first: whether it is above the one before."""
    above = None
    for column in reversed(columns):
        low, high = column.slice(0, len(column) - 1), column.slice(1)
        more = pc.greater(high, low)
        above = more if above is None else pc.or_(more, pc.and_(pc.equal(high, low), above))
    return above
