"""Snapshot and cut of the metadata log: a crash or an error at every step loses nothing, and the next start works."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from shardd.metadata import State, apply, commands
from shardd.metadata.apply import replay
from shardd.metadata.commands import Ref
from shardd.metadata.compaction import Limits
from shardd.metadata.errors import LogError
from shardd.metadata.load import load_state, read_stored
from shardd.metadata.log_file import FILE_NAME, read_log
from shardd.metadata.records import Record
from shardd.metadata.reserve import RESERVE_NAME, Reserve
from shardd.metadata.snapshot import decode_snapshot, encode_snapshot, read_snapshot, snapshot_path, write_snapshot
from shardd.metadata.wal import AppendError, MetadataLog
from shardd.protocol import topic_setting_table
from shardd.protocol.errors import Status
from shardd.protocol.permissions import Permissions, StreamPermissions, TopicPermissions
from shardd.runtime.disk import OsDisk
from tests.support.metadata_chain import chain
from tests.unit.test_metadata_replication import cluster, run

ROOT = Ref(0, 1)
RECORDS = 30
SUBMISSIONS = [(7, 3, 1), (2**64 - 1, 29, 0)]


def rich_records() -> list[tuple[bytes, Record]]:
    """A history with every kind of object, freed ids, slots in disorder, and rights with both levels."""
    from immutables import Map

    rights = Permissions(read_servers=True, streams=Map({2: StreamPermissions(topics=Map({1: TopicPermissions()}))}))
    history: list[commands.Command] = [
        commands.CreateUser("iggy", "$argon2id$x", True, None),
        *(commands.CreateStream(f"stream {number}") for number in range(4)),
        commands.CreateTopic(Ref(0, 2), "a", 5, 1, 0, 0, 1),
        commands.CreateTopic(Ref(0, 2), "b", 3, 1, 2**64 - 1, 2**64 - 1, 1),
        commands.DeletePartitions(Ref(0, 2), Ref(0, 6), 2),
        commands.CreatePartitions(Ref(0, 2), Ref(1, 7), 4),
        commands.PurgeTopic(Ref(0, 2), Ref(0, 6)),
        commands.CreateConsumerGroup(Ref(0, 2), Ref(1, 7), "g"),
        commands.CreateConsumerGroup(Ref(0, 2), Ref(1, 7), "h"),
        commands.DeleteConsumerGroup(Ref(0, 2), Ref(1, 7), Ref(0, 11)),
        commands.DeleteStream(Ref(1, 3)),
        commands.CreateUser("second", "$argon2id$y", False, rights),
        commands.CreateUser("third", "$argon2id$y", False, None),
        commands.DeleteUser(Ref(2, 16)),
        commands.CreateToken(Ref(1, 15), "token", bytes(range(32)), 12, 100),
        commands.SetTopicSettings(Ref(0, 2), Ref(1, 7), (("ack", "durable"),)),
    ]
    history += [commands.UpdateStream(Ref(2, 4), f"name {number}") for number in range(RECORDS - len(history))]
    return chain(history)


ENCODED = rich_records()


def state_at(index: int) -> State:
    return replay(record for _, record in ENCODED[:index])


class CrashError(BaseException):
    """The process ends here."""


class CountingDisk(OsDisk):
    """Ends the process (`CrashError`) before the call `victim`, or half-way through it when it is a write; or fails it
    with `code`. `names`: every call so far."""

    def __init__(self, victim: int = 0, code: int = 0) -> None:
        self.victim, self.code = victim, code
        self.names: list[str] = []

    def _step(self, name: str) -> None:
        self.names.append(name)
        if len(self.names) == self.victim:
            raise OSError(self.code, os.strerror(self.code)) if self.code else CrashError

    def open(self, path: Path, flags: int) -> int:
        self._step("open")
        return super().open(path, flags)

    def pwrite(self, descriptor: int, data: bytes | memoryview, position: int) -> int:
        if len(self.names) + 1 == self.victim:
            super().pwrite(descriptor, data[: len(data) // 2], position)
        self._step("pwrite")
        return super().pwrite(descriptor, data, position)

    def pread(self, descriptor: int, length: int, position: int) -> bytes:
        self._step("pread")
        return super().pread(descriptor, length, position)

    def fdatasync(self, descriptor: int) -> None:
        self._step("fdatasync")
        super().fdatasync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename")
        super().rename(source, target)

    def sync_directory(self, path: Path) -> None:
        self._step("sync_directory")
        super().sync_directory(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / FILE_NAME


def write_log(path: Path, first: int = 1, last: int = RECORDS) -> None:
    log, _ = MetadataLog.open(path)
    for data, _ in ENCODED[first - 1 : last]:
        log.append(data)
    log.close()


def compact(path: Path, index: int, disk: OsDisk | None = None) -> None:
    write_snapshot(snapshot_path(path), state_at(index), SUBMISSIONS, disk)
    log, _ = MetadataLog.open(path)
    log._disk = disk or OsDisk()
    try:
        log.adopt(log.prepare_cut(index))
    finally:
        log._disk = OsDisk()
        log.close()


def test_a_snapshot_holds_the_whole_state(path: Path) -> None:
    for index in range(1, RECORDS + 1):
        state = state_at(index)
        decoded = decode_snapshot(path, encode_snapshot(state, SUBMISSIONS))
        assert decoded.state == state
        assert decoded.submissions == SUBMISSIONS
        assert encode_snapshot(decoded.state, SUBMISSIONS) == encode_snapshot(state, SUBMISSIONS), (
            "one state, one image"
        )


@pytest.mark.parametrize("index", [1, 17, RECORDS])
def test_a_cut_log_goes_on(path: Path, index: int) -> None:
    write_log(path, last=RECORDS - 1 if index < RECORDS else RECORDS)
    before = path.stat().st_size
    compact(path, index)
    assert path.stat().st_size < before or index == 1
    if index < RECORDS:
        write_log(path, first=RECORDS)
    assert load_state(path) == state_at(RECORDS)
    content = read_log(path)
    assert (content.base, len(content.records)) == (index, RECORDS - index)
    log, _ = MetadataLog.open(path)
    assert log.index == RECORDS
    assert log.digest_at(index) == ENCODED[index - 1][1].digest
    assert log.read_after(index, 0) == [data for data, _ in ENCODED[index : index + 1]]
    assert log.read_after(index, 1 << 20) == [data for data, _ in ENCODED[index:]]
    log.close()


def test_a_cut_log_can_be_cut_again(path: Path) -> None:
    write_log(path)
    for index in (5, 6, 20, RECORDS):
        compact(path, index)
        assert load_state(path) == state_at(RECORDS)


def steps(path: Path) -> list[str]:
    write_log(path)
    disk = CountingDisk()
    compact(path, 20, disk)
    return disk.names


@pytest.mark.parametrize("code", [0, errno.ENOSPC, errno.EIO])
def test_a_crash_or_an_error_at_every_step_loses_nothing(tmp_path: Path, code: int) -> None:
    (tmp_path / "count").mkdir()
    names = steps(tmp_path / "count" / FILE_NAME)
    assert names.count("rename") == 2, names
    assert names.count("sync_directory") == 2, names
    for victim in range(1, len(names) + 1):
        directory = tmp_path / f"{victim}"
        directory.mkdir()
        path = directory / FILE_NAME
        write_log(path)
        try:
            compact(path, 20, CountingDisk(victim, code))
        except (CrashError, OSError):
            pass
        else:
            assert names[victim - 1] == "sync_directory", f"step {victim} was not noticed"
        assert load_state(path) == state_at(RECORDS), f"step {victim}, {names[victim - 1]}"
        if code:
            assert not list(directory.glob("*.tmp")), f"step {victim} keeps room"
        compact(path, 25)
        assert load_state(path) == state_at(RECORDS)


def test_after_a_cut_whose_name_may_be_lost_nothing_is_written(path: Path) -> None:
    class Disk(OsDisk):
        def sync_directory(self, path: Path) -> None:
            raise OSError(errno.EIO, "broken")

    write_log(path, last=RECORDS - 1)
    write_snapshot(snapshot_path(path), state_at(20), [])
    log, _ = MetadataLog.open(path)
    log._disk = Disk()
    log.adopt(log.prepare_cut(20))
    with pytest.raises(AppendError) as caught:
        log.append(ENCODED[-1][0])
    assert caught.value.status == Status.CANNOT_SYNC_FILE
    log.close()
    assert load_state(path) == state_at(RECORDS - 1)


def test_only_a_snapshot_that_earlier_programs_would_misread_has_a_newer_version() -> None:
    assert encode_snapshot(state_at(18), SUBMISSIONS)[8] == 1
    with_settings = state_at(RECORDS)
    assert encode_snapshot(with_settings, SUBMISSIONS)[8] == 2
    reset = commands.SetTopicSettings(Ref(0, 2), Ref(1, 7), (("ack", ""),))
    without = apply(with_settings, Record(with_settings.index + 1, 1, 0, 0, reset))
    assert encode_snapshot(without, SUBMISSIONS)[8] == 1


def test_a_snapshot_with_an_unknown_topic_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_snapshot(state_at(RECORDS), SUBMISSIONS)
    monkeypatch.setattr(topic_setting_table, "SETTINGS", {})
    with pytest.raises(LogError, match="a state that this version does not know: topic b has 'ack' set to 'durable'"):
        decode_snapshot(Path("state.snapshot"), data)


def damaged(data: bytes) -> list[tuple[bytes, str]]:
    cases = [(data[:-1], "damaged"), (data + b"x", "damaged"), (data[:40], "is not a metadata snapshot")]
    cases += [(b"SHRDSNAQ" + data[8:], "is not a metadata snapshot"), (b"", "is not a metadata snapshot")]
    cases += [(data[:8] + b"\6" + data[9:], "format version 6")]
    rng = random.Random(20261121)
    for position in sorted(rng.sample(range(16, len(data)), 60)):
        cases.append((data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :], "damaged"))
    return cases


def test_a_damaged_or_unknown_snapshot_is_refused_with_a_sentence_and_left_alone(path: Path) -> None:
    write_log(path)
    write_snapshot(snapshot_path(path), state_at(20), SUBMISSIONS)
    for data, sentence in damaged(snapshot_path(path).read_bytes()):
        snapshot_path(path).write_bytes(data)
        with pytest.raises(LogError, match=sentence):
            load_state(path)
        assert snapshot_path(path).read_bytes() == data


def refused(path: Path, change: Callable[[], Any], sentence: str) -> None:
    change()
    with pytest.raises(LogError, match=sentence):
        load_state(path)


def test_a_snapshot_and_a_log_that_do_not_belong_together_are_refused(path: Path) -> None:
    write_log(path)
    compact(path, 20)
    whole, kept = path.read_bytes(), snapshot_path(path).read_bytes()
    refused(path, lambda: snapshot_path(path).unlink(), "begins behind record 20, but .* is missing")
    refused(path, lambda: write_snapshot(snapshot_path(path), state_at(10), []), "covers records up to 10")
    snapshot_path(path).write_bytes(kept)
    refused(path, lambda: path.unlink(), "ends with record 0")
    refused(path, lambda: path.write_bytes(whole[:40] + b"\1" + whole[41:]), "checksum of its header")
    path.unlink()
    write_log(path)
    other = replace(state_at(20), digest=bytes([1] * 32))
    refused(path, lambda: write_snapshot(snapshot_path(path), other, []), "another")


def test_the_reserve_takes_a_record_on_a_full_disk(path: Path) -> None:
    class FullDisk(OsDisk):
        """No room for the log as long as the reserve is there."""

        def pwrite(self, descriptor: int, data: bytes | memoryview, position: int) -> int:
            if (path.parent / RESERVE_NAME).exists():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().pwrite(descriptor, data, position)

    reserve = Reserve(path.parent)
    assert reserve.make()
    log, _ = MetadataLog.open(path, FullDisk(), reserve)
    log.append(ENCODED[0][0])
    assert not (path.parent / RESERVE_NAME).exists()
    assert reserve.make()
    log.append(ENCODED[1][0])
    assert not reserve.release(), "it was given up already"
    log.close()
    assert read_log(path).index == 2


def test_a_reserve_that_finds_no_room_leaves_none_taken(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path, CountingDisk(2, errno.ENOSPC))
    assert not reserve.make()
    assert list(tmp_path.iterdir()) == []
    assert reserve.make()


def test_the_writer_compacts_replicas_start_from_it_and_repeated_submissions_are_known(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 2) as shards:
            shards.writer._compaction.limits = Limits(20, 3)
            for number in range(70):
                result = await shards.nodes[number % 2].submit(ROOT, commands.CreateStream(f"stream {number}"))
                assert result.status == Status.OK
            compacting = shards.writer._compacting
            assert compacting is not None
            await compacting
            stored = read_stored(shards.path)
            assert stored.content.base == stored.snapshot.index - 3 >= 57
            assert len(stored.snapshot.submissions) == stored.snapshot.index
            await shards.stop(1)
            await shards.start(1)
            shards.check_equal()
            remembered = dict(shards.writer._done)
            await shards.stop(0)
            await shards.start(0)
            assert dict(shards.writer._done) == remembered
            await shards.nodes[1].submit(ROOT, commands.CreateStream("after"))
            shards.check_equal()

    run(scenario)


def test_a_compaction_that_fails_is_tried_again_and_stops_no_change(tmp_path: Path) -> None:
    class Disk(OsDisk):
        full = True

        def rename(self, source: Path, target: Path) -> None:
            if self.full and target == snapshot_path(tmp_path / FILE_NAME):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().rename(source, target)

    async def scenario() -> None:
        disk = Disk()
        async with cluster(tmp_path, 2, disk=disk) as shards:
            compaction = shards.writer._compaction
            compaction.limits = Limits(5, 3)
            for number in range(30):
                assert (await shards.writer.submit(ROOT, commands.CreateStream(f"{number}"))).status == Status.OK
            assert read_snapshot(snapshot_path(shards.path)).index == 0
            assert read_log(shards.path).base == 0
            disk.full = False
            compaction._not_before = 0
            assert (await shards.writer.submit(ROOT, commands.CreateStream("room"))).status == Status.OK
            assert shards.writer._compacting is not None
            await shards.writer._compacting
            assert read_log(shards.path).base > 0
            shards.check_equal()

    run(scenario)


def test_a_replica_that_starts_while_the_log_is_cut_gets_everything(tmp_path: Path) -> None:
    """The log is cut between the reads of a replica and its HELLO, again and again."""

    async def scenario() -> None:
        async with cluster(tmp_path, 2) as shards:
            shards.writer._compaction.limits = Limits(1, 0)
            stopping = False

            async def change() -> None:
                number = 0
                while not stopping:
                    number += 1
                    await shards.writer.submit(ROOT, commands.CreateStream(f"stream {number}"))

            for _ in range(5):
                await shards.stop(1)
                stopping = False
                changes = asyncio.create_task(change())
                await shards.start(1)
                stopping = True
                await changes
                shards.check_equal()
            assert not shards.diverged

    run(scenario)
