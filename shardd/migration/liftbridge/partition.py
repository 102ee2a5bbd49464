"""Reads one whole partition of Liftbridge: checks every record and passes it to the writer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

import msgspec

from shardd.migration.liftbridge.log import (
    Damage,
    DamagedError,
    DamageKind,
    LogReader,
    SourceRecord,
    log_files,
    read_checkpoint,
)
from shardd.migration.liftbridge.streams import SourcePartition
from shardd.migration.liftbridge.values import VARIABLE, Opener, SealedError, looks_sealed
from shardd.protocol.liftbridge.records import LiftbridgeMessage, RecordTooLargeError, stored
from shardd.protocol.limits import MESSAGE_PAYLOAD_BYTES_MAX

_LOOKED_AT: Final = 256  # records that tell on which subjects a partition gets messages, and whether it is encrypted
_DAMAGE_MAX: Final = 1_000  # places that are told of
_PROGRESS_RECORDS: Final = 1_024

Take = Callable[[int, int, bytes, bytes], None]  # offset, timestamp in microseconds, payload, headers


class Look(msgspec.Struct, frozen=True):
    """What the first records say. `value`: the first one, if any; `sealed`: whether all look encrypted."""

    subjects: set[str]
    value: bytes | None
    sealed: bool


class PartitionFigures(msgspec.Struct):
    """`absent`: offsets from `first_offset` to `end_offset` without a message. `uncommitted`: messages behind the high
    watermark that was saved last. `torn_bytes`: what an interrupted write has left."""

    partition: int
    first_offset: int = 0
    end_offset: int = 0
    messages: int = 0
    bytes: int = 0
    absent: int = 0
    uncommitted: int = 0
    torn_bytes: int = 0
    encrypted: bool = False
    damage: list[Damage] = []


def look(partition: SourcePartition) -> Look:
    """At the first records, as far as they are whole. OSError."""
    subjects: set[str] = set()
    first: bytes | None = None
    sealed = True
    try:
        for record in islice(_all_records(partition), _LOOKED_AT):
            subject = record.headers.get("subject", b"").decode(errors="replace")
            if subject:
                subjects.add(subject)
            if record.value:
                first = record.value if first is None else first
                sealed = sealed and looks_sealed(record.value)
    except DamagedError:
        pass  # found again by whoever reads all of it
    return Look(subjects, first, sealed and first is not None)


def _all_records(partition: SourcePartition) -> Iterator[SourceRecord]:
    next_offset = 0
    files = log_files(partition.directory) if partition.directory is not None else []
    for file in files:
        reader = LogReader(file, next_offset, last=file is files[-1])
        yield from reader.records()
        next_offset = reader.next_offset


class PartitionReader:
    """Reads one partition once. `opener`: of a source with a key; `plain`: its values are not encrypted, whatever they
    look like."""

    def __init__(
        self,
        partition: SourcePartition,
        subject: str,
        opener: Opener | None,
        plain: bool,
        progress: Callable[[int], None],
    ) -> None:
        self._partition = partition
        self._subject = f"{subject}.{partition.id}" if partition.id else subject
        self._opener, self._plain = opener, plain
        self._progress = progress
        self.figures = PartitionFigures(partition.id)

    def read(self, seen: Look, take: Take | None, *, salvage: bool) -> PartitionFigures:
        """`take` gets every message, None: they are only checked. With `salvage` what is whole is taken, without it
        DamagedError ends it. OSError, also of `take`."""
        directory, figures = self._partition.directory, self.figures
        if directory is None:
            self._note(Damage(DamageKind.MISSING, "", 0, 0, "the directory of the partition is missing"), salvage)
            return figures
        figures.encrypted = self._is_sealed(seen)
        files = log_files(directory)
        for file in files:
            reader = LogReader(file, figures.end_offset, last=file is files[-1])
            if file.base_offset < figures.end_offset:
                about = f"it begins at {file.base_offset}, below the end of the file before it"
                self._note(Damage(DamageKind.OFFSET, str(file.path), 0, figures.end_offset, about), salvage)
            self._read_file(reader, take, salvage)
            figures.end_offset = max(figures.end_offset, reader.next_offset)
            figures.torn_bytes += reader.torn_bytes
        self._compare(read_checkpoint(directory), str(directory), salvage)
        if not figures.messages:
            figures.first_offset = figures.end_offset
        figures.absent = figures.end_offset - figures.first_offset - figures.messages
        return figures

    def _read_file(self, reader: LogReader, take: Take | None, salvage: bool) -> None:
        figures = self.figures
        done = 0
        try:
            for record in reader.records():
                message = self._message(reader, record, salvage)
                if message is None:
                    continue
                if not figures.messages:
                    figures.first_offset = record.offset
                figures.messages += 1
                payload, headers = message
                figures.bytes += len(payload) + len(headers)
                if take is not None:
                    take(record.offset, max(record.timestamp_ns, 0) // 1_000, payload, headers)
                if not figures.messages % _PROGRESS_RECORDS:
                    self._progress(reader.position - done)
                    done = reader.position
        except DamagedError as error:
            self._note(error.damage, salvage)
        self._progress(reader.size_bytes - done)

    def _message(self, reader: LogReader, record: SourceRecord, salvage: bool) -> tuple[bytes, bytes] | None:
        """Payload and headers as they lie here; None: left out."""
        headers = record.headers
        subject = headers.get("subject", b"").decode(errors="replace")
        reply = headers.get("reply", b"").decode(errors="replace")
        try:
            value = record.value
            if self.figures.encrypted and value and self._opener is not None:
                value = self._opener.open(value)
            message = LiftbridgeMessage(value, record.key, headers, subject or self._subject, reply)
            return stored(message, self._subject, MESSAGE_PAYLOAD_BYTES_MAX)
        except SealedError as error:
            kind, about = DamageKind.SEALED, str(error)
        except RecordTooLargeError as error:
            kind, about = DamageKind.FORMAT, str(error)
        self._note(Damage(kind, str(reader.file.path), record.position, record.offset, about), salvage)
        return None

    def _is_sealed(self, seen: Look) -> bool:
        """DamagedError when the values cannot be read, which no salvage changes."""
        if self._plain or not seen.sealed or seen.value is None:
            return False
        if self._opener is not None and self._opener.fits(seen.value):
            return True
        missing = f"{VARIABLE} has another key" if self._opener is not None else f"{VARIABLE} is not set"
        raise DamagedError(
            Damage(DamageKind.SEALED, str(self._partition.directory), 0, 0, f"its values look encrypted, and {missing}")
        )

    def _compare(self, watermark: int | None, directory: str, salvage: bool) -> None:
        figures = self.figures
        if watermark is None:
            return
        if watermark >= figures.end_offset:
            about = f"messages up to {watermark} were committed, the log ends before {figures.end_offset}"
            self._note(Damage(DamageKind.MISSING, directory, 0, figures.end_offset, about), salvage)
            figures.end_offset = watermark + 1  # what was acknowledged there is not given to another message
            return
        figures.uncommitted = max(figures.end_offset - 1 - watermark, 0) if figures.messages else 0

    def _note(self, damage: Damage, salvage: bool) -> None:
        if not salvage:
            raise DamagedError(damage)
        if len(self.figures.damage) < _DAMAGE_MAX:
            self.figures.damage.append(damage)
