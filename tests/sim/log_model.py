"""What one partition may hold, by everything that was sent, answered, synced, deleted and lost."""

from __future__ import annotations

import struct
from collections import defaultdict

from tests.sim.findings import Trace
from tests.sim.log_library import Ends

HEADER_BYTES = 64
STORE_FAILED = (10006, 3011, 3023)
_PLACE = struct.Struct("<QQ")  # offset and timestamp, at byte 24 of a record
_LENGTHS = struct.Struct("<II")  # of user headers and payload, at byte 48


def split_records(data: bytes) -> list[bytes]:
    """Whole records, by the lengths in their headers."""
    found, at = [], 0
    while at + HEADER_BYTES <= len(data):
        end = at + HEADER_BYTES + sum(_LENGTHS.unpack_from(data, at + 48))
        found.append(data[at:end])
        at = end
    return found


class LogModel:
    """`log[i]` is the record at offset i as the partition has stored it."""

    def __init__(self, trace: Trace, level: str, *, expires: bool) -> None:
        self._trace = trace
        self._level = level
        self.expires = expires
        self._clear()

    def _clear(self) -> None:
        self.log: list[bytes] = []
        # What may be at an offset after a crash: (record, it was refused), the others got no answer.
        self._maybe: dict[int, list[tuple[bytes, bool]]] = defaultdict(list)
        self.first = 0  # what lies below was deleted, or has expired
        self._deleted = 0  # the same without what has only expired: a crash may forget that until the next look
        self._first_durable = 0
        self.saved_end = 0  # the kernel has them: they survive a kill
        self.durable_end = 0  # the device has them: they survive a power cut
        self._sync_end = self._sync_first = 0
        self._offsets: dict[int, list[int | None]] = defaultdict(lambda: [None])  # the first one is on the device
        self._sync_offsets: dict[int, int] = {}
        self._attempts: dict[int, list[int | None]] = defaultdict(list)  # stores that failed or have no answer
        self._half_written: set[int] = set()  # since the last power cut: of a store that failed, a half may be damaged
        self.power_was_cut = False
        self._refused_stay = False

    @property
    def end(self) -> int:
        return len(self.log)

    def _report(self, sentence: str) -> None:
        self._trace.report(f"{sentence} (level {self._level})")

    def expired_end(self, age_us: int, now_us: int) -> int:
        """Everything below it is that old; timestamps never fall."""
        at = self.first
        while at < self.end and self.timestamp(at) + age_us <= now_us:
            at += 1
        return at

    def timestamp(self, offset: int) -> int:
        """Of a message that is there."""
        at: int = _PLACE.unpack_from(self.log[offset], 24)[1]
        return at

    # ---- what happened ----

    def appended(self, records: list[bytes], status: int, first_offset: int, *, alive: bool) -> None:
        """`alive`: somebody lived to see the status."""
        if status == 0 and alive:
            if first_offset != self.end:
                self._report(f"a batch got offset {first_offset} instead of {self.end}")
            for record in records:
                self._check_record(record)
                self.log.append(record)
            return
        for record in records:
            at, _ = _PLACE.unpack_from(record, 24)
            self._maybe[at].append((record, alive))

    def _check_record(self, record: bytes) -> None:
        at, timestamp = _PLACE.unpack_from(record, 24)
        if at != self.end:
            self._report(f"the record at offset {self.end} says {at}")
        if self.end > self.first and timestamp < _PLACE.unpack_from(self.log[-1], 24)[1]:
            self._report(f"the timestamp at offset {at} falls")

    def saved(self, ends: Ends) -> None:
        if ends.state == 0 or self._level != "memory":
            self.saved_end = max(self.saved_end, ends.next - ends.unsaved)

    def sync_begins(self, ends: Ends) -> None:
        self.saved(ends)
        self._sync_end = self.saved_end
        self._sync_first = self._deleted
        self._sync_offsets = {number: len(values) - 1 for number, values in self._offsets.items()}

    def sync_ends(self, *, covered: bool, ends: Ends) -> None:
        """`covered`: whoever waits for the device is answered now."""
        self.check(ends)
        if not covered:
            return
        self.durable_end = max(self.durable_end, self._sync_end)
        self._first_durable = self._sync_first
        for number, place in self._sync_offsets.items():
            del self._offsets[number][:place]
        self._sync_offsets = {}

    def offset_stored(self, number: int, value: int | None, status: int, *, alive: bool) -> None:
        """`value` None: it was deleted."""
        if not alive or status in STORE_FAILED:  # the file is as it was, if the disk lets us
            self._attempts[number].append(value)
        elif status == 0:
            self._offsets[number].append(value)
            if value is not None and value >= self.end:
                self._report(f"offset {value} is stored, the partition ends at {self.end}")

    def deleted(self, ends: Ends, first_file: int) -> None:
        """`first_file`: what the first file begins with; behind it more may have expired."""
        if ends.first < self.first:
            self._report(f"the first offset falls from {self.first} to {ends.first}")
        self.first, self._deleted = ends.first, min(first_file, ends.first)

    def expired(self, ends: Ends, wanted: int) -> None:
        """The log start may have moved by itself, up to `wanted`: what lies below has expired, and nothing holds it."""
        if ends.first > max(self.first, wanted):
            self._report(f"the log starts at {ends.first}, only what lies below {wanted} has expired")
        self.first = max(self.first, ends.first)

    def purged(self) -> None:
        self._clear()

    def polled(self, first: int, records: list[bytes], ends: Ends, wanted: int = 0) -> None:
        """What a poll returned: exactly what was stored there, nothing behind what polls may see, and nothing below
        `wanted`, which has expired."""
        if records and first < wanted:
            self._report(f"a poll returns offset {first}, everything below {wanted} has expired")
        for offset, record in enumerate(records, first):
            if not self.first <= offset < min(self.end, ends.visible):
                self._report(f"a poll returns offset {offset}, visible are {self.first} .. {ends.visible}")
                return
            if self.log[offset] != record:
                self._report(f"a poll returns another message at offset {offset} than was stored there")
                return

    def check(self, ends: Ends) -> None:
        """After every step."""
        if ends.state == 0 and ends.next != self.end:
            self._report(f"the partition ends at {ends.next} instead of {self.end}")
        if ends.first < self.first:
            self._report(f"offset {ends.first} is back, everything below {self.first} was deleted")
        if ends.visible > ends.next:
            self._report(f"polls see up to {ends.visible}, the partition ends at {ends.next}")
        if self._level == "durable":
            if ends.visible > max(self.durable_end, self._sync_end):
                self._report(f"polls see up to {ends.visible}, a sync was begun for {self._sync_end}")
            self.durable_end = max(self.durable_end, ends.visible)  # what was polled must never vanish

    # ---- crashes ----

    def killed(self, *, refused_stay: bool = False) -> None:
        """`refused_stay`: the disk did not let go of what it had refused."""
        self.power_was_cut, self._refused_stay = False, refused_stay

    def power_cut(self) -> None:
        self.power_was_cut = True

    def recovered(
        self, ends: Ends, records: list[bytes], offsets: dict[int, int | None], *, hole: bool, wanted: int
    ) -> None:
        """What is there after a crash: `records` from `ends.first` on, all of it or (`hole`) up to damage. Below
        `wanted` everything has expired, or may have been deleted by who died."""
        promised = self.durable_end if self.power_was_cut else self.saved_end
        kept = self._first_durable if self.power_was_cut else self._deleted
        found = ends.first + len(records)
        if found < promised and not (hole and found < self.first):  # a part of what was deleted is back
            self._report(f"offset {found} is gone, everything below {promised} was promised")
        if ends.first < kept:
            self._report(f"deleted messages are back: from {ends.first} instead of {kept}")
        if max(self.first, wanted) < min(ends.first, promised):
            self._report(f"the log starts at {ends.first}, {max(self.first, wanted)} was promised and has not expired")
        if found != ends.next and not hole:
            self._report(f"{len(records)} messages from {ends.first} on can be read, {ends.next} is the end")
        for offset, record in enumerate(records, ends.first):
            self._check_survivor(offset, record, promised)
        self._check_offsets(ends, offsets)
        known = self.log[: ends.first]  # deleted, but a power cut may bring them back
        self.log = known + [b""] * (ends.first - len(known)) + records
        self.first = ends.first
        self._deleted = kept if self.expires else ends.first
        self.saved_end = self.end
        if self.power_was_cut:
            self._maybe.clear()
        if self.power_was_cut or self._level == "durable":  # it syncs what it finds before it opens
            self.durable_end, self._first_durable = self.end, min(self._first_durable, self.first)
        else:
            self.durable_end = min(self.durable_end, self.end)
        self._sync_end = self.durable_end
        self._sync_offsets = {}

    def opened(self, end: int) -> None:
        """By a process that ended before anybody looked: it may have lowered what was stored to the end of its log."""
        last = end - 1 if end else None
        for number, values in self._offsets.items():
            if any(value is not None and (last is None or value > last) for value in values):
                self._attempts[number].append(last)

    def _check_survivor(self, offset: int, record: bytes, promised: int) -> None:
        if offset < self.end and self.log[offset] == record:
            return
        if offset < promised:
            self._report(f"another message is at offset {offset} than was promised there")
        for candidate, refused in self._maybe.get(offset, ()):
            if candidate == record and (self.power_was_cut or self._refused_stay or not refused):
                return
        self._report(f"a message is at offset {offset} that was refused, purged or never sent there")

    def _check_offsets(self, ends: Ends, offsets: dict[int, int | None]) -> None:
        last = ends.next - 1
        for number, values in self._offsets.items():
            found = offsets.get(number)
            allowed = values if self.power_was_cut else values[-1:]
            possible = [*allowed, *self._attempts[number]]
            clamped = {None if value is None or last < 0 else min(value, last) for value in possible}
            if self.power_was_cut and number in self._half_written:
                clamped.add(None)
            if found not in clamped:
                self._report(f"consumer {number} has offset {found} after a crash, stored was {allowed}")
            self._offsets[number] = [found] if self.power_was_cut else [*values[:-1], found]
        self._half_written = set() if self.power_was_cut else self._half_written | self._attempts.keys()
        self._attempts.clear()
