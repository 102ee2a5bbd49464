"""The metadata log on the disk: torn tails, damage, failing disks."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from pathlib import Path

import pytest

from shardd.metadata import commands
from shardd.metadata.apply import replay
from shardd.metadata.errors import LogError
from shardd.metadata.log_file import FILE_HEADER, FILE_NAME, MAGIC, read_log
from shardd.metadata.records import RECORD_BYTES_MAX, Record, encode_record
from shardd.metadata.state import State
from shardd.metadata.wal import AppendError, MetadataLog
from shardd.protocol.errors import Status
from shardd.runtime.disk import OsDisk


class FaultyDisk(OsDisk):
    """Fails the calls of one operation from the `first`-th on, `times` times. A write that works takes half of it."""

    def __init__(self, operation: str, code: int = errno.EIO, first: int = 1, times: int = 10**6) -> None:
        self.operation, self.code, self.first, self.times = operation, code, first, times
        self.calls = 0
        self.writes = 0

    def _called(self, operation: str) -> None:
        if operation != self.operation:
            return
        self.calls += 1
        if self.first <= self.calls < self.first + self.times:
            raise OSError(self.code, os.strerror(self.code))

    def open(self, path: Path, flags: int) -> int:
        self._called("open")
        return super().open(path, flags)

    def pwrite(self, descriptor: int, data: bytes | memoryview, position: int) -> int:
        self.writes += 1
        self._called("pwrite")
        return super().pwrite(descriptor, data[: max(1, len(data) // 2)], position)

    def ftruncate(self, descriptor: int, size: int) -> None:
        self._called("ftruncate")
        super().ftruncate(descriptor, size)

    def fdatasync(self, descriptor: int) -> None:
        self._called("fdatasync")
        super().fdatasync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        self._called("rename")
        super().rename(source, target)

    def sync_directory(self, path: Path) -> None:
        self._called("sync_directory")
        super().sync_directory(path)


def encoded(count: int) -> list[tuple[bytes, Record]]:
    """A valid chain of records, as bytes and as values."""
    out: list[tuple[bytes, Record]] = []
    digest = State().digest
    for index in range(1, count + 1):
        data, record = encode_record(digest, index, 10 * index, index, 0, commands.CreateStream(f"stream-{index}"))
        out.append((data, record))
        digest = record.digest
    return out


def write_log(path: Path, count: int) -> list[bytes]:
    log, _ = MetadataLog.open(path)
    chain = [data for data, _ in encoded(count)]
    for data in chain:
        log.append(data)
    log.close()
    return chain


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / FILE_NAME


def test_what_is_appended_is_read_again(path: Path) -> None:
    write_log(path, 5)
    log, content = MetadataLog.open(path)
    records = content.records
    log.close()
    assert records == [record for _, record in encoded(5)]
    assert read_log(path).records == records
    assert [entry.name for entry in path.parent.iterdir()] == [FILE_NAME]


def test_no_file_is_an_empty_log_and_none_is_made_before_the_first_record(path: Path) -> None:
    log, content = MetadataLog.open(path)
    records = content.records
    log.close()
    assert (records, log.index, path.exists()) == ([], 0, False)


def test_a_log_cut_at_every_byte_of_its_last_record_loses_that_record_only(path: Path) -> None:
    chain = write_log(path, 4)
    whole = path.read_bytes()
    for size in range(len(whole) - len(chain[3]), len(whole)):
        path.write_bytes(whole[:size])
        assert len(read_log(path).records) == 3
        assert path.stat().st_size == size, "a reader never cuts"
        log, content = MetadataLog.open(path)
        records = content.records
        assert len(records) == 3
        log.append(chain[3])
        log.close()
        assert path.read_bytes() == whole
    torn = sorted(path.parent.glob(f"{FILE_NAME}.torn*"))
    assert len(torn) == len(chain[3]) - 1, "every cut is kept but the one of no bytes"
    assert (path.parent / f"{FILE_NAME}.torn").read_bytes() == chain[3][:1]


def test_a_last_record_with_spoilt_bytes_is_a_torn_tail(path: Path) -> None:
    """Only part of its blocks reached the disk before the power failed."""
    chain = write_log(path, 3)
    whole = path.read_bytes()
    path.write_bytes(whole[: -len(chain[2])] + bytes(len(chain[2])))
    log, content = MetadataLog.open(path)
    records = content.records
    log.close()
    assert len(records) == 2
    assert path.read_bytes() == whole[: -len(chain[2])]


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_any_flipped_byte_before_the_last_record_is_refused(path: Path, victim: int) -> None:
    chain = write_log(path, 4)
    whole = path.read_bytes()
    start = FILE_HEADER.size + sum(len(data) for data in chain[:victim])
    for position in range(start, start + len(chain[victim])):
        damaged = bytearray(whole)
        damaged[position] ^= 0x41
        path.write_bytes(damaged)
        with pytest.raises(LogError, match=f"record {victim + 1} at byte {start} is not valid, but a valid record"):
            MetadataLog.open(path)
        assert path.read_bytes() == damaged, "a refused file stays as it is"


def test_a_cut_in_the_middle_is_refused(path: Path) -> None:
    chain = write_log(path, 4)
    whole = path.read_bytes()
    middle = FILE_HEADER.size + len(chain[0])
    path.write_bytes(whole[: middle + 5] + whole[middle + 9 :])
    with pytest.raises(LogError, match="damaged"):
        MetadataLog.open(path)


def test_a_tail_longer_than_a_record_is_refused(path: Path) -> None:
    write_log(path, 1)
    with path.open("ab") as file:
        file.truncate(path.stat().st_size + RECORD_BYTES_MAX + 1)
    with pytest.raises(LogError, match="more than one interrupted write"):
        MetadataLog.open(path)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (FILE_HEADER.pack(MAGIC, 3, 0), "format version 3"),
        (FILE_HEADER.pack(b"NOTALOG!", 1, 0), "does not start with"),
        (b"SHRD", "ends inside its header"),
        (b"", "ends inside its header"),
    ],
)
def test_foreign_and_unknown_files_are_refused_with_a_sentence(path: Path, data: bytes, sentence: str) -> None:
    path.write_bytes(data)
    with pytest.raises(LogError, match=sentence):
        MetadataLog.open(path)
    assert path.read_bytes() == data


def test_a_change_of_a_newer_version_is_refused_and_not_cut(path: Path) -> None:
    write_log(path, 1)
    state = replay(record for _, record in encoded(1))
    known, _ = encode_record(state.digest, 2, 0, 0, 0, commands.CreateStream("stream-2"))
    body = known[:-32].replace(b"\xcc\xca", b"\xcc\xfe")  # tag 254 instead of 202
    unknown = body + hashlib.sha256(state.digest + body).digest()
    assert unknown != known
    path.write_bytes(path.read_bytes() + unknown)
    with pytest.raises(LogError, match="newer version"):
        MetadataLog.open(path)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_failed_write_is_taken_back_and_the_next_one_works(path: Path, code: int) -> None:
    write_log(path, 2)
    before = path.read_bytes()
    disk = FaultyDisk("", code, first=2, times=1)
    log, _ = MetadataLog.open(path, disk)
    disk.operation = "pwrite"
    third = encoded(3)[2][0]
    with pytest.raises(AppendError) as refused:
        log.append(third)
    assert refused.value.status == Status.CANNOT_WRITE_TO_FILE
    assert (path.read_bytes(), log.index) == (before, 2)
    log.append(third)
    log.close()
    assert len(read_log(path).records) == 3


def test_after_a_failed_sync_nothing_is_written_any_more(path: Path) -> None:
    write_log(path, 2)
    before = path.read_bytes()
    disk = FaultyDisk("fdatasync", first=2, times=1)  # the first one is that of opening
    log, _ = MetadataLog.open(path, disk)
    third = encoded(3)[2][0]
    for _ in range(3):
        with pytest.raises(AppendError) as refused:
            log.append(third)
        assert refused.value.status == Status.CANNOT_SYNC_FILE
    writes = disk.writes
    with pytest.raises(AppendError):
        log.append(third)
    assert disk.writes == writes
    assert disk.calls == 2, "a failed sync is never tried again"
    assert (path.read_bytes(), log.index) == (before, 2)
    log.close()


def test_a_write_that_cannot_be_taken_back_ends_writing(path: Path) -> None:
    write_log(path, 2)

    class Disk(FaultyDisk):
        def ftruncate(self, descriptor: int, size: int) -> None:
            raise OSError(errno.EIO, "no")

    disk = Disk("", errno.ENOSPC, first=2, times=1)
    log, _ = MetadataLog.open(path, disk)
    disk.operation = "pwrite"
    third = encoded(3)[2][0]
    with pytest.raises(AppendError) as refused:
        log.append(third)
    assert refused.value.status == Status.CANNOT_WRITE_TO_FILE
    with pytest.raises(AppendError) as refused:
        log.append(third)
    assert refused.value.status == Status.CANNOT_SYNC_FILE
    log.close()
    log, content = MetadataLog.open(path)
    records = content.records
    log.close()
    assert len(records) == 2


def test_a_record_whose_sync_failed_is_on_the_device_after_the_next_start(path: Path) -> None:
    """The kernel counts its page as clean: a sync that succeeds later brings nothing. Then the power goes."""

    class Disk(OsDisk):
        """`device`: what has come there."""

        device = bytearray()
        dirty: list[tuple[int, bytes]] = []  # noqa: RUF012 - of this test only
        fails = False

        def pwrite(self, descriptor: int, data: bytes | memoryview, position: int) -> int:
            self.dirty.append((position, bytes(data)))
            return super().pwrite(descriptor, data, position)

        def ftruncate(self, descriptor: int, size: int) -> None:
            raise OSError(errno.EIO, "no")

        def fdatasync(self, descriptor: int) -> None:
            changes, self.dirty = self.dirty, []
            if self.fails:
                raise OSError(errno.EIO, "no")
            for position, data in changes:
                self.device.extend(bytes(max(0, position + len(data) - len(self.device))))
                self.device[position : position + len(data)] = data

    disk = Disk()
    chain = [data for data, _ in encoded(4)]
    log, _ = MetadataLog.open(path, disk)
    log.append(chain[0])
    log.append(chain[1])
    disk.fails = True
    with pytest.raises(AppendError):
        log.append(chain[2])
    log.close()
    disk.fails = False
    log, content = MetadataLog.open(path, disk)
    assert content.index == 3, "it could not be taken back"
    log.append(chain[3])
    log.close()
    path.write_bytes(disk.device)
    log, content = MetadataLog.open(path)
    log.close()
    assert content.index == 4


@pytest.mark.parametrize("operation", ["open", "pwrite", "fdatasync", "rename", "sync_directory"])
def test_a_failed_birth_of_the_file_is_tried_again_with_the_next_record(path: Path, operation: str) -> None:
    log, _ = MetadataLog.open(path, FaultyDisk(operation, errno.ENOSPC, first=2 if operation == "open" else 1, times=1))
    first = encoded(1)[0][0]
    with pytest.raises(AppendError) as refused:
        log.append(first)
    assert refused.value.status == Status.CANNOT_WRITE_TO_FILE
    log.append(first)
    log.close()
    assert [record.index for record in read_log(path).records] == [1]


@pytest.mark.parametrize("operation", ["fdatasync", "ftruncate", "sync_directory", "pwrite"])
def test_a_log_that_cannot_be_made_ready_is_refused(path: Path, operation: str) -> None:
    write_log(path, 2)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(LogError, match="cannot be made ready"):
        MetadataLog.open(path, FaultyDisk(operation))
    log, content = MetadataLog.open(path)
    records = content.records
    log.close()
    assert len(records) == 1


def test_reading_on_from_any_record(path: Path) -> None:
    chain = write_log(path, 6)
    log, _ = MetadataLog.open(path)
    assert log.read_after(0, 10**6) == chain
    assert log.read_after(4, 10**6) == chain[4:]
    assert log.read_after(2, 0) == chain[2:3]
    assert log.read_after(2, 2 * len(chain[2])) == chain[2:4]
    assert log.read_after(6, 10**6) == []
    assert [log.digest_at(index) for index in range(7)] == [bytes(32), *(data[-32:] for data in chain)]
    log.close()


def test_ten_thousand_records_are_replayed(path: Path) -> None:
    data = [FILE_HEADER.pack(MAGIC, 1, 0)]
    digest, index = State().digest, 0
    for number in range(2500):
        stream = commands.Ref(number % 50, 1 + 4 * (number % 50)) if number >= 50 else commands.Ref(number, index + 1)
        changes: list[commands.Command] = [
            commands.CreateStream(f"s{number}"),
            commands.CreateTopic(stream, f"t{number}", 4, 1, 2**64 - 1, 2**64 - 1, 1),
            commands.UpdateStream(stream, f"renamed {number}"),
            commands.PurgeStream(stream),
        ]
        for command in changes:
            index += 1
            encoded_record, record = encode_record(digest, index, index, index, 0, command)
            data.append(encoded_record)
            digest = record.digest
    path.write_bytes(b"".join(data))
    started = time.perf_counter()
    state = replay(read_log(path).records)
    seconds = time.perf_counter() - started
    print(f"10,000 records, {path.stat().st_size} bytes: {seconds:.2f} s")
    assert (state.index, len(state.streams)) == (10_000, 2500)
