"""The bounds of the metadata writer and its replicas (docs/limits.md), each reached."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from shardd.metadata import commands, replica, writer
from shardd.metadata.commands import Ref
from shardd.metadata.log_file import read_log
from shardd.metadata.records import PAYLOAD_BYTES_MAX
from shardd.protocol.errors import Status
from shardd.runtime.disk import OsDisk
from tests.unit.test_metadata_replication import cluster, run

ROOT = Ref(0, 1)
WAIT_S = 60.0


class HeldDisk(OsDisk):
    """Writes wait while it is held."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.waiting = threading.Event()
        self.free.set()

    def pwrite(self, descriptor: int, data: bytes | memoryview, position: int) -> int:
        if not self.free.is_set():
            self.waiting.set()
        self.free.wait(WAIT_S)
        return super().pwrite(descriptor, data, position)


def test_changes_beyond_the_queue_wait_for_a_place_and_all_are_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = HeldDisk()
        async with cluster(tmp_path, 1, disk=disk) as shards:
            disk.free.clear()
            first = asyncio.create_task(shards.writer.submit(ROOT, commands.CreateStream("first")))
            assert await asyncio.to_thread(disk.waiting.wait, WAIT_S)
            unknown = commands.UpdateStream(Ref(7, 7), "x")
            count = writer.SUBMISSIONS_MAX + 20
            others = [asyncio.create_task(shards.writer.submit(ROOT, unknown)) for _ in range(count)]
            await asyncio.sleep(0.1)
            assert shards.writer._queue.qsize() == writer.SUBMISSIONS_MAX
            assert not any(task.done() for task in (first, *others))
            disk.free.set()
            assert (await first).status == Status.OK
            statuses = [(await task).status for task in others]
            assert statuses == [Status.STREAM_ID_NOT_FOUND] * count

    run(scenario)


def test_a_change_larger_than_a_record_is_refused_and_the_next_one_is_made(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 2) as shards:
            root = Ref(0, shards.writer.state.users[0].incarnation)
            large = commands.ChangePassword(root, "x" * PAYLOAD_BYTES_MAX)
            assert (await shards.writer.submit(ROOT, large)).status == Status.CANNOT_SERIALIZE_RESOURCE
            result = await shards.nodes[1].submit(ROOT, commands.CreateStream("s"))
            assert result.status == Status.OK
            assert len(read_log(shards.path).records) == 2
            shards.check_equal()

    run(scenario)


def test_a_record_that_never_arrives_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "APPLY_TIMEOUT_S", 0.2)

    async def swallow(self: replica.MetadataReplica, sender: int, payload: bytes) -> bytes:
        return b""

    monkeypatch.setattr(replica.MetadataReplica, "_on_apply", swallow)

    async def scenario() -> None:
        async with cluster(tmp_path, 2) as shards:
            result = await shards.nodes[1].submit(ROOT, commands.CreateStream("s"))
            assert result.status == Status.SHARD_COMMUNICATION_ERROR
            assert "s" in shards.writer.state.stream_ids

    run(scenario)


def test_a_change_at_work_holds_up_the_end_only_so_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "CLOSE_TIMEOUT_S", 0.2)

    async def scenario() -> None:
        disk = HeldDisk()
        async with cluster(tmp_path, 1, disk=disk) as shards:
            disk.free.clear()
            at_work = asyncio.create_task(shards.writer.submit(ROOT, commands.CreateStream("at work")))
            assert await asyncio.to_thread(disk.waiting.wait, WAIT_S)
            waiting = asyncio.create_task(shards.writer.submit(ROOT, commands.CreateStream("waiting")))
            closing = asyncio.create_task(shards.writer.close())
            assert (await at_work).status == Status.DISCONNECTED
            assert not disk.free.is_set(), "answered while the disk still held the write"
            disk.free.set()
            await closing
            assert (await waiting).status == Status.DISCONNECTED

    run(scenario)
