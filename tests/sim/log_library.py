"""The real C partition as a library (`make -C native sim`), called through ctypes; its disk is a Python object."""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, Structure, c_bool, c_char_p, c_int, c_int64, c_uint8, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

from shardd.engine import SegmentInfo
from shardd.protocol.producers import Produced, ProducedKind

LIBRARY = Path(__file__).parents[2] / "native" / "build" / "sim" / "libsim_log.so"
POLL_OFFSET, POLL_TIMESTAMP, POLL_FIRST, POLL_LAST, POLL_NEXT = range(1, 6)
NOTHING_STORED = 2**64 - 1
SYNC_FDS_MAX = 64
_BUFFER_BYTES = 1 << 18


class Calls(Protocol):
    """What the partition asks of its disk: results of the system calls of the same name, or -errno."""

    def open(self, path: bytes, flags: int) -> int: ...
    def close(self, descriptor: int) -> int: ...
    def duplicate(self, descriptor: int) -> int: ...
    def pwrite(self, descriptor: int, data: bytes, position: int) -> int: ...
    def pread(self, descriptor: int, length: int, position: int) -> bytes | int: ...
    def ftruncate(self, descriptor: int, length: int) -> int: ...
    def allocate(self, descriptor: int, mode: int, start: int, length: int) -> int: ...
    def fdatasync(self, descriptor: int) -> int: ...
    def rename(self, source: bytes, target: bytes) -> int: ...
    def unlink(self, path: bytes) -> int: ...
    def mkdir(self, path: bytes) -> int: ...


_TYPES = {
    "open": (c_char_p, c_int),
    "close": (c_int,),
    "duplicate": (c_int,),
    "pwrite": (c_int, c_void_p, c_uint64, c_int64),
    "pread": (c_int, c_void_p, c_uint64, c_int64),
    "ftruncate": (c_int, c_int64),
    "allocate": (c_int, c_int, c_int64, c_int64),
    "fdatasync": (c_int,),
    "rename": (c_char_p, c_char_p),
    "unlink": (c_char_p,),
    "mkdir": (c_char_p,),
}


class _Calls(Structure):
    _fields_ = [(name, CFUNCTYPE(c_int64, *types)) for name, types in _TYPES.items()]


class _SegmentInfo(Structure):
    """`layout`: NULL, plain; else a pointer of `sim_layout`."""

    _fields_ = [
        *(
            (name, c_uint64)
            for name in ("start_offset", "log_bytes", "count", "first_timestamp", "last_timestamp", "absent")
        ),
        ("layout", c_void_p),
        ("counted_us", c_uint64),
    ]


class _Batch(Structure):
    """append_batch of native/src/log/partition.h; sim_log.c holds its size."""

    _fields_ = [
        ("messages", c_void_p),
        ("length", c_uint64),
        ("count", c_uint32),
        ("status", c_uint32),
        ("first_offset", c_uint64),
        ("producer", c_uint64),
        ("sequence", c_uint64),
        ("begun", c_uint64),
        ("digest", c_uint64),
        ("epoch", c_uint32),
        ("asks", c_uint8),
        ("made", c_uint32),
        ("made_count", c_uint32),
        ("made_first", c_uint64),
        ("made_timestamp", c_uint64),
    ]


class Place(Structure):
    """An entry of a file of stored offsets, as sim_place of native/tests/sim_log.c."""

    _fields_ = [
        ("value", c_uint64),
        ("sequence", c_uint64),
        ("used_us", c_uint64),
        ("owner", c_uint64),
        ("name", c_uint64),
        ("place", c_uint32),
        ("id", c_uint32),
        ("kind", c_uint8),
        ("half", c_uint8),
        ("hurt", c_uint8),
        ("state", c_uint8),
    ]


def read_places(descriptor: int, incarnation: int, size: int) -> tuple[int, list[Place]]:
    """What the core says of a file of so many bytes: its head as `Head` of offsets_table.py, and its entries."""
    most = size // 64 + 1
    places, head = (Place * most)(), c_uint32()
    count = library().sim_table_read(
        c_int(descriptor), c_uint64(incarnation), ctypes.byref(head), places, c_uint64(most)
    )
    assert 0 <= count <= most
    return head.value, list(places[:count])


@cache
def library() -> ctypes.CDLL:
    """OSError when it was not built."""
    found = ctypes.CDLL(str(LIBRARY), use_errno=True)
    found.sim_log_open.restype = c_void_p
    found.sim_fences_make.restype = c_void_p
    found.sim_layout.restype = c_void_p
    found.sim_log_change_layout.restype = c_bool
    found.sim_log_offset_get.restype = c_uint64
    found.sim_log_sync_begin.restype = c_uint64
    found.sim_log_sync_done.restype = c_bool
    found.sim_table_read.restype = c_int64
    found.sim_fences_pass.restype = c_bool
    return found


def _table(calls: Calls) -> _Calls:
    def pwrite(descriptor: int, data: int, length: int, position: int) -> int:
        return calls.pwrite(descriptor, ctypes.string_at(data, length), position)

    def pread(descriptor: int, data: int, length: int, position: int) -> int:
        found = calls.pread(descriptor, length, position)
        if isinstance(found, int):
            return found
        ctypes.memmove(data, found, len(found))
        return len(found)

    special = {"pwrite": pwrite, "pread": pread}
    table = _Calls()
    for name, types in _TYPES.items():
        setattr(table, name, CFUNCTYPE(c_int64, *types)(special.get(name) or getattr(calls, name)))
    return table


class Batch:
    """One batch: `data` is changed in place; `status` and `first_offset` come back."""

    def __init__(self, records: list[bytes]) -> None:
        self.lengths = [len(record) for record in records]
        self.data = ctypes.create_string_buffer(b"".join(records), sum(self.lengths))
        self.status = 0
        self.first_offset = 0

    def stored(self) -> list[bytes]:
        """The records as they are in the log."""
        raw, at, found = self.data.raw, 0, []
        for length in self.lengths:
            found.append(raw[at : at + length])
            at += length
        return found


class Producing(NamedTuple):
    """producer_memory of native/src/log/producers.h. `boot`: the number of this one."""

    boot: int = 1
    barrier: int = 0
    known_last: int = 0

    @property
    def boot_id(self) -> bytes:
        return self.boot.to_bytes(16, "little")


class By(NamedTuple):
    """Whose batch it is: producer_batch of native/src/log/producers.h."""

    producer: int
    epoch: int
    sequence: int
    begun: int


class Ends:
    """First offset that is kept, next one, end of what polls see, messages in the journal, sticky status."""

    __slots__ = ("first", "next", "state", "unsaved", "visible")

    def __init__(self, first: int, next_: int, visible: int, unsaved: int, state: int) -> None:
        self.first, self.next, self.visible, self.unsaved, self.state = first, next_, visible, unsaved, state


class LogPartition:
    """OSError when it cannot be opened."""

    def __init__(
        self,
        calls: Calls,
        directory: Path,
        incarnation: int,
        level: int,
        segment_size_bytes: int,
        state: int,
        seed: int,
        producing: Producing,
        segments: list[SegmentInfo],
    ) -> None:
        self._table = _table(calls)  # kept: the callbacks live as long as this
        infos = (_SegmentInfo * max(1, len(segments)))(
            *(
                _SegmentInfo(*each[:6], library().sim_layout(c_uint32(each.layout)), each.counted_us)
                for each in segments
            )
        )
        handle = library().sim_log_open(
            ctypes.byref(self._table),
            str(directory).encode(),
            c_uint64(incarnation),
            c_uint32(level),
            c_uint64(segment_size_bytes),
            c_uint32(state),
            c_uint64(seed),
            *map(c_uint64, producing),
            infos,
            c_uint64(len(segments)),
        )
        if not handle:
            raise OSError(ctypes.get_errno(), "the partition cannot be opened")
        self._handle = c_void_p(handle)
        self._buffer = ctypes.create_string_buffer(_BUFFER_BYTES)

    def free(self, *, orderly: bool) -> None:
        library().sim_log_free(self._handle, c_bool(orderly))

    def append(self, batches: list[Batch], now_us: int) -> None:
        table = (_Batch * len(batches))(
            *(_Batch(ctypes.addressof(b.data), sum(b.lengths), len(b.lengths), 0, 0) for b in batches)
        )
        library().sim_log_append(self._handle, table, c_uint64(len(batches)), c_uint64(now_us))
        for batch, entry in zip(batches, table, strict=True):
            batch.status, batch.first_offset = entry.status, entry.first_offset

    def send_once(self, batch: Batch, by: By, now_us: int) -> Produced | None:
        """None: it was refused, the batch has the status."""
        entry = _Batch(ctypes.addressof(batch.data), sum(batch.lengths), len(batch.lengths), 0, 0)
        entry.producer, entry.epoch, entry.sequence, entry.begun = by
        library().sim_log_send_once(self._handle, ctypes.byref(entry), c_uint64(now_us))
        batch.status, batch.first_offset = entry.status, entry.first_offset
        if batch.status != 0:
            return None
        return Produced(ProducedKind(entry.made), entry.made_count, entry.made_first)

    def poll(self, strategy: int, value: int, count: int, consumer: int) -> tuple[int, int, int, bytes]:
        """Status, first offset, how many, their bytes."""
        first, records, length = c_uint64(), c_uint64(), c_uint64()
        status: int = library().sim_log_poll(
            self._handle,
            c_uint8(strategy),
            c_uint64(value),
            c_uint32(count),
            c_uint32(consumer),
            self._buffer,
            c_uint64(_BUFFER_BYTES),
            ctypes.byref(first),
            ctypes.byref(records),
            ctypes.byref(length),
        )
        return status, first.value, records.value, self._buffer.raw[: length.value]

    def ends(self) -> Ends:
        values = [c_uint64(), c_uint64(), c_uint64(), c_uint64()]
        state = c_uint32()
        library().sim_log_ends(self._handle, *(ctypes.byref(each) for each in values), ctypes.byref(state))
        first, next_, visible, unsaved = (each.value for each in values)
        return Ends(first, next_, visible, unsaved, state.value)

    def sync_begin(self, *, everything: bool, most: int = SYNC_FDS_MAX) -> list[int]:
        descriptors = (c_int * most)()
        count = library().sim_log_sync_begin(self._handle, c_bool(everything), descriptors, c_uint64(most))
        return list(descriptors[:count])

    def sync_done(self, error: int) -> bool:
        return bool(library().sim_log_sync_done(self._handle, c_int(error)))

    def flush(self) -> int:
        return int(library().sim_log_flush(self._handle))

    def delete_segments(self, count: int, trash: Path) -> tuple[int, int]:
        """Status, how many are gone."""
        deleted = c_uint32()
        status = library().sim_log_delete_segments(
            self._handle, c_uint32(count), str(trash).encode(), ctypes.byref(deleted)
        )
        return int(status), deleted.value

    def change_layout(self, start_offset: int, bits: int) -> bool:
        """False: it is not there, not sealed, or read now."""
        return bool(library().sim_log_change_layout(self._handle, c_uint64(start_offset), c_uint32(bits)))

    def limit(self, expiry_us: int, held_us: int) -> None:
        library().sim_log_limit(self._handle, c_uint64(expiry_us), c_uint64(held_us))

    def clock(self, wall_us: int, monotonic_us: int) -> None:
        """By which messages expire."""
        library().sim_log_clock(self._handle, c_uint64(wall_us), c_int64(monotonic_us))

    def clean(self, trash: Path) -> tuple[int, int]:
        """One step of the retention: status, segments whose files are gone."""
        removed = c_uint32()
        status = library().sim_log_clean(self._handle, str(trash).encode(), ctypes.byref(removed))
        return int(status), removed.value

    def offset_store(self, kind: int, number: int, value: int) -> int:
        return int(library().sim_log_offset_store(self._handle, c_uint8(kind), c_uint32(number), c_uint64(value)))

    def offset_delete(self, kind: int, number: int) -> int:
        return int(library().sim_log_offset_delete(self._handle, c_uint8(kind), c_uint32(number)))

    def offset_get(self, kind: int, number: int) -> int | None:
        value: int = library().sim_log_offset_get(self._handle, c_uint8(kind), c_uint32(number))
        return None if value == NOTHING_STORED else value


class Fences:
    """The fences of one partition (native/src/core/fence.c)."""

    def __init__(self) -> None:
        self._handle = c_void_p(library().sim_fences_make())

    def passes(self, group: int, generation: int) -> bool:
        return bool(library().sim_fences_pass(self._handle, c_uint32(group), c_uint64(generation)))

    def drop(self, group: int) -> None:
        library().sim_fences_drop(self._handle, c_uint32(group))

    def __del__(self) -> None:
        library().sim_fences_free(self._handle)
