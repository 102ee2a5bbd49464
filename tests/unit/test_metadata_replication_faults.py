"""Replication when shards die, restart, miss records, and when the disk fails."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from shardd.metadata import State, commands, messages
from shardd.metadata.commands import Ref, encode_command
from shardd.metadata.compaction import Limits
from shardd.metadata.log_file import read_log
from shardd.protocol.errors import Status
from shardd.runtime.bus import PeerLost
from shardd.runtime.disk import OsDisk
from tests.support.on_loop import until
from tests.unit.test_metadata_replication import ROOT, Cluster, cluster, run


def test_changes_wait_for_a_silent_replica_until_it_is_reported_dead(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 3) as shards:
            await shards.stop(2, tell=False)
            change = asyncio.create_task(shards.nodes[1].submit(ROOT, commands.CreateStream("s")))
            await asyncio.sleep(0.3)
            assert not change.done()
            shards.tell_down(2)
            async with asyncio.timeout(1):  # not the hold of a request to a dead shard
                assert (await change).status == Status.OK

    run(scenario)


def test_a_restarted_shard_0_waits_for_the_replicas_to_come_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 3) as shards:
            await shards.writer.submit(ROOT, commands.CreateStream("before"))
            await shards.stop(0)
            held = asyncio.create_task(shards.nodes[1].submit(ROOT, commands.CreateStream("held")))
            await asyncio.sleep(0.2)
            await shards.start(0)
            result = await held
            assert (result.status, result.id) == (Status.OK, 1)
            for number in range(10):
                await shards.writer.submit(ROOT, commands.CreateStream(f"after {number}"))
                shards.check_equal()
            assert not shards.diverged

    run(scenario)


def test_a_restarted_shard_0_answers_nothing_while_a_live_replica_has_not_come_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 3) as shards:
            await shards.stop(0)
            await shards.start(0, tell=False)
            shards.buses[1].peer_up(0)
            change = asyncio.create_task(shards.nodes[1].submit(ROOT, commands.CreateStream("s")))
            await asyncio.sleep(0.3)
            assert not change.done(), "shard 2 would serve readers without the stream"
            shards.buses[2].peer_up(0)
            assert (await change).status == Status.OK
            assert "s" in shards.nodes[2].state.stream_ids

    run(scenario)


def test_a_replica_whose_hello_overtook_the_report_of_its_death_is_asked_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 2) as shards:
            shards.buses[0].peer_down(1)  # about the process before, heard after the HELLO of this one
            assert (await shards.writer.submit(ROOT, commands.CreateStream("missed"))).status == Status.OK
            assert "missed" not in shards.nodes[1].state.stream_ids
            shards.buses[0].peer_up(1)
            assert (await shards.writer.submit(ROOT, commands.CreateStream("s"))).status == Status.OK
            shards.check_equal()

    run(scenario)


async def _hold_catch_up(shards: Cluster) -> asyncio.Event:
    """Shard 1 has the complete answer to its HELLO and follows a record of it until the event is set."""
    held, release = asyncio.Event(), asyncio.Event()

    async def hold(old: State, new: State) -> None:
        held.set()
        await release.wait()

    shards.nodes[1].follow_with(hold)
    shards.buses[0].peer_down(1)
    assert (await shards.writer.submit(ROOT, commands.CreateStream("missed"))).status == Status.OK
    shards.buses[0].peer_up(1)
    await held.wait()
    return release


def test_a_replica_that_catches_up_with_a_shard_0_that_died_says_hello_to_the_next_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 2) as shards:
            release = await _hold_catch_up(shards)
            await shards.stop(0)
            await shards.start(0)
            release.set()
            async with asyncio.timeout(5):
                assert (await shards.writer.submit(ROOT, commands.CreateStream("s"))).status == Status.OK
            shards.check_equal()

    run(scenario)


def test_a_replica_that_is_asked_for_a_hello_while_it_catches_up_says_another_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 2) as shards:
            release = await _hold_catch_up(shards)
            shards.buses[0].peer_down(1)  # about the process before, heard after the HELLO of this one
            shards.buses[0].peer_up(1)
            await until(lambda: shards.buses[1].figures()["requests_in"] == 2)  # both want a HELLO
            release.set()
            async with asyncio.timeout(5):
                assert (await shards.writer.submit(ROOT, commands.CreateStream("s"))).status == Status.OK
            shards.check_equal()

    run(scenario)


def test_a_death_that_was_reported_is_heard_before_the_hello_of_the_next_process(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 2) as shards:
            await shards.stop(1, tell=False)
            reported = [1]

            def hear() -> None:
                while reported:
                    shards.buses[0].peer_down(reported.pop())

            shards.writer._hear = hear
            await shards.start(1, tell=False)
            assert not reported
            assert (await shards.writer.submit(ROOT, commands.CreateStream("s"))).status == Status.OK
            assert "s" in shards.nodes[1].state.stream_ids, "nobody has said that shard 1 is back, but its HELLO has"

    run(scenario)


def test_a_submission_without_shard_0_is_refused_after_the_hold(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 2) as shards:
            await shards.stop(0)
            result = await shards.nodes[1].submit(ROOT, commands.CreateStream("s"))
            assert result.status == Status.SHARD_COMMUNICATION_ERROR
            await shards.start(0)
            assert (await shards.nodes[1].submit(ROOT, commands.CreateStream("s"))).status == Status.OK

    run(scenario)


def test_a_submission_in_the_hands_of_a_shard_0_that_dies_is_lost(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 3) as shards:
            await shards.stop(2, tell=False)  # the writer waits for it with the change in its hands
            change = asyncio.create_task(shards.nodes[1].submit(ROOT, commands.CreateStream("s")))
            await asyncio.sleep(0.2)
            shards.buses[1].peer_down(0)
            with pytest.raises(PeerLost):
                await change
            shards.tell_down(2)

    run(scenario)


def test_a_submission_that_comes_twice_is_done_once(tmp_path: Path) -> None:
    """Shard 0 stored it and died before anybody heard of it: its sender sends it again to the next one."""

    async def scenario() -> None:
        async with cluster(tmp_path, 2) as shards:
            await shards.writer.submit(ROOT, commands.CreateStream("s"))
            topic = commands.CreateTopic(Ref(0, 2), "t", 1, 1, 0, 0, 1)
            await shards.writer.submit(ROOT, topic)
            more = encode_command(commands.CreatePartitions(Ref(0, 2), Ref(0, 3), 5))
            payload = messages.encode(messages.Submission(12345, ROOT, more))
            first = await shards.buses[1].request(0, messages.METHOD_SUBMIT, payload)
            assert await shards.buses[1].request(0, messages.METHOD_SUBMIT, payload) == first
            await shards.stop(0)
            await shards.start(0)
            assert await shards.buses[1].request(0, messages.METHOD_SUBMIT, payload) == first
            assert len(shards.nodes[1].state.streams[0].topics[0].partitions) == 6
            shards.check_equal()

    run(scenario)


def test_a_gap_is_asked_for_and_not_skipped(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 2) as shards:
            await shards.stop(1)
            for number in range(5):
                await shards.writer.submit(ROOT, commands.CreateStream(f"s{number}"))
            last = read_log(shards.path).records[-1]
            hidden, shards.path = shards.path, tmp_path / "elsewhere"
            replica = await shards.start(1)
            shards.path = hidden
            replica.state = State()  # as if five records had been lost on the way
            raw = hidden.read_bytes()
            last_bytes = raw[raw.rindex(last.index.to_bytes(8, "little")) - 4 :]
            assert await shards.buses[0].request(1, messages.METHOD_APPLY, last_bytes) == b""
            shards.check_equal()

    run(scenario)


def test_a_running_replica_with_records_that_shard_0_lacks_gives_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 2) as shards:
            await shards.writer.submit(ROOT, commands.CreateStream("s"))
            await shards.stop(0)
            records = read_log(shards.path)
            with shards.path.open("r+b") as file:
                file.truncate(records.ends[-2])
            await shards.start(0)
            async with asyncio.timeout(5):
                while not shards.diverged:  # noqa: ASYNC110 - bounded
                    await asyncio.sleep(0.01)
            assert "record 2" in shards.diverged[0]

    run(scenario)


class FailingDisk(OsDisk):
    """A disk that can be told to fail."""

    operation = ""
    code = errno.EIO

    def pwrite(self, descriptor: int, data: bytes | memoryview, position: int) -> int:
        if self.operation == "pwrite":
            raise OSError(self.code, os.strerror(self.code))
        return super().pwrite(descriptor, data, position)

    def fdatasync(self, descriptor: int) -> None:
        if self.operation == "fdatasync":
            raise OSError(self.code, os.strerror(self.code))
        super().fdatasync(descriptor)


def test_what_the_disk_does_not_take_is_not_applied_anywhere(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = FailingDisk()
        async with cluster(tmp_path, 2, disk=disk) as shards:
            before = shards.writer.state
            disk.operation, disk.code = "pwrite", errno.ENOSPC
            for node in shards.nodes.values():
                result = await node.submit(ROOT, commands.CreateStream("s"))
                assert result.status == Status.CANNOT_WRITE_TO_FILE
                assert node.state == before
            disk.operation = ""
            assert (await shards.nodes[1].submit(ROOT, commands.CreateStream("s"))).status == Status.OK
            before = shards.writer.state
            disk.operation = "fdatasync"
            assert (await shards.nodes[1].submit(ROOT, commands.CreateStream("t"))).status == Status.CANNOT_SYNC_FILE
            disk.operation = ""
            assert (await shards.nodes[1].submit(ROOT, commands.CreateStream("t"))).status == Status.CANNOT_SYNC_FILE
            assert shards.writer.state == shards.nodes[1].state == before
            await shards.stop(0)
            await shards.start(0)
            assert (await shards.nodes[1].submit(ROOT, commands.CreateStream("t"))).status == Status.OK
            shards.check_equal()

    run(scenario)


class SyncsNoMore(FailingDisk):
    """What was written can be read, but neither synced nor cut off."""

    def ftruncate(self, descriptor: int, size: int) -> None:
        if self.operation == "fdatasync":
            raise OSError(self.code, os.strerror(self.code))
        super().ftruncate(descriptor, size)


def test_a_replica_starts_although_a_cut_log_holds_a_record_that_shard_0_could_not_take_back(tmp_path: Path) -> None:
    """The log tells more than shard 0 does, and shard 0 has no longer what an empty replica would need."""

    async def scenario() -> None:
        disk = SyncsNoMore()
        async with cluster(tmp_path, 2, disk=disk) as shards:
            shards.writer._compaction.limits = Limits(5, 2)
            for number in range(8):
                await shards.writer.submit(ROOT, commands.CreateStream(f"{number}"))
                if shards.writer._compacting is not None:
                    await shards.writer._compacting
            disk.operation = "fdatasync"
            assert (await shards.nodes[1].submit(ROOT, commands.CreateStream("no"))).status == Status.CANNOT_SYNC_FILE
            content = read_log(shards.path)
            assert content.base > 0 and content.index == shards.writer.state.index + 1
            await shards.stop(1)
            async with asyncio.timeout(5):
                await shards.start(1)
            shards.check_equal()
            disk.operation = ""
            await shards.stop(0)
            await shards.start(0)  # takes the record for one of its own: its sender was told that nobody knows
            assert (await shards.nodes[1].submit(ROOT, commands.CreateStream("s"))).status == Status.OK
            shards.check_equal()

    run(scenario)
