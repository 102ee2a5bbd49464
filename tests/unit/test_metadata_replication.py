"""The writer and its replicas over the real bus, with real files: acknowledgements, catching up, deaths."""

from __future__ import annotations

import asyncio
import errno
import os
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shardd.metadata import MetadataReplica, MetadataWriter, Record, State, commands, messages
from shardd.metadata.commands import Command, Ref, encode_command
from shardd.metadata.disk import Disk, OsDisk
from shardd.metadata.wal import FILE_NAME, read_log
from shardd.protocol.errors import Status
from shardd.security import Passwords, command_allowed, ensure_root
from shardd.shard.bus import Bus, PeerLost
from shardd.shard.helper_threads import HelperThreads

TEST_TIMEOUT_S = 30


class Cluster:
    """Shards in one process. `stop(shard)` is a death: the others are told, as the supervisor does."""

    def __init__(self, directory: Path, shards: int) -> None:
        self.path = directory / FILE_NAME
        self.shards = shards
        self.prefix = f"ipc://@shardd-test-{uuid.uuid4()}"
        self.threads = HelperThreads(2)
        self.buses: dict[int, Bus] = {}
        self.nodes: dict[int, MetadataWriter | MetadataReplica] = {}
        self.diverged: list[str] = []
        self.now_us = 1_000_000

    def now(self) -> int:
        self.now_us += 1
        return self.now_us

    async def start(self, shard: int, disk: Disk | None = None) -> MetadataWriter | MetadataReplica:
        """Starts one shard and tells the others that it is up."""
        bus = Bus(self.prefix, shard, self.shards)
        await bus.start()
        node: MetadataWriter | MetadataReplica
        if shard == 0:
            node = MetadataWriter(self.path, bus, self.threads, command_allowed, disk=disk)
        else:
            node = MetadataReplica(self.path, bus, self.threads, self.diverged.append)
        for peer in range(self.shards):
            if peer != shard and self.nodes and peer not in self.nodes:
                bus.peer_down(peer)
        self.buses[shard] = bus
        await node.start()
        self.nodes[shard] = node
        for peer, other in self.buses.items():
            if peer != shard:
                other.peer_up(shard)
        return node

    async def stop(self, shard: int, *, tell: bool = True) -> None:
        node, bus = self.nodes.pop(shard), self.buses.pop(shard)
        if tell:
            self.tell_down(shard)
        await bus.close()
        await node.close()

    def tell_down(self, shard: int) -> None:
        for other in self.buses.values():
            other.peer_down(shard)

    @property
    def writer(self) -> MetadataWriter:
        node = self.nodes[0]
        assert isinstance(node, MetadataWriter)
        return node

    def check_equal(self) -> None:
        assert len({node.state.digest for node in self.nodes.values()}) == 1
        assert all(node.state == self.writer.state for node in self.nodes.values())


@asynccontextmanager
async def cluster(directory: Path, shards: int, *, disk: Disk | None = None) -> AsyncIterator[Cluster]:
    """All shards running, the root user created."""
    made = Cluster(directory, shards)
    try:
        await asyncio.gather(made.start(0, disk), *(made.start(shard) for shard in range(1, shards)))
        assert await ensure_root(made.writer, Passwords(made.threads), "iggy", "iggy")
        yield made
    finally:
        for shard in list(made.nodes):
            await made.stop(shard)
        await made.threads.close()


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(TEST_TIMEOUT_S):
            await scenario()

    asyncio.run(bounded())


def test_a_change_is_on_every_shard_when_it_is_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 3) as shards:
            for number in range(30):
                origin = shards.nodes[number % 3]
                result = await origin.submit(0, commands.CreateStream(f"s{number}"))
                assert (result.status, result.id) == (Status.OK, number)
                assert result.state.streams[number].name == f"s{number}"
                for node in shards.nodes.values():
                    assert node.state.stream_ids[f"s{number}"] == number
            shards.check_equal()
            assert [record.digest for record in read_log(shards.path).records][-1] == shards.writer.state.digest

    run(scenario)


def test_concurrent_submissions_are_ordered_and_each_sees_its_own_state(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 3) as shards:
            names = [f"s{number}" for number in range(150)]
            results = await asyncio.gather(
                *(shards.nodes[n % 3].submit(0, commands.CreateStream(name)) for n, name in enumerate(names))
            )
            assert sorted(result.id for result in results) == list(range(150))
            for name, result in zip(names, results, strict=True):
                assert result.state.streams[result.id].name == name
                assert result.state.index == result.state.streams[result.id].incarnation
            shards.check_equal()

    run(scenario)


def test_refusals_are_statuses_and_leave_no_record(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 2) as shards:
            stream = await shards.writer.submit(0, commands.CreateStream("s"))
            stale = Ref(stream.id, 999)
            cases: list[tuple[int, Command, Status]] = [
                (0, commands.CreateStream("s"), Status.STREAM_NAME_ALREADY_EXISTS),
                (0, commands.DeleteStream(stale), Status.STREAM_ID_NOT_FOUND),
                (7, commands.DeleteStream(stale), Status.STREAM_ID_NOT_FOUND),  # existence wins over permission
                (7, commands.CreateStream("s"), Status.UNAUTHORIZED),  # permission wins over the taken name
                (7, commands.CreateTopic(stale, "t", 1001, 1, 0, 0, 1), Status.TOO_MANY_PARTITIONS),
            ]
            for node in shards.nodes.values():
                for user, command, status in cases:
                    result = await node.submit(user, command)
                    assert (result.status, result.id) == (status, 0)
            assert len(read_log(shards.path).records) == 2

    run(scenario)


def test_subscribers_see_every_record_before_it_is_acknowledged(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 2) as shards:
            seen: dict[int, list[tuple[int, int, int]]] = {0: [], 1: []}

            def broken(old: State, new: State, record: Record) -> None:
                raise ValueError("planted")

            for shard, node in shards.nodes.items():

                def applied(old: State, new: State, record: Record, shard: int = shard) -> None:
                    seen[shard].append((old.index, new.index, record.index))

                node.subscribe(broken)
                node.subscribe(applied)
            await shards.nodes[1].submit(0, commands.CreateStream("a"))
            assert seen[0] == seen[1] == [(1, 2, 2)]

    run(scenario)


def test_a_replica_that_starts_late_gets_everything(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 3) as shards:
            await shards.stop(2)
            for number in range(400):
                assert (await shards.nodes[number % 2].submit(0, commands.CreateStream(f"s{number}"))).status == 0
            await shards.start(2)
            shards.check_equal()
            assert (await shards.nodes[2].submit(0, commands.CreateStream("again"))).status == Status.OK
            shards.check_equal()

    run(scenario)


def test_a_replica_without_the_file_gets_everything_from_shard_0(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 2) as shards:
            for number in range(50):
                await shards.writer.submit(0, commands.CreateStream("x" * 200 + f"{number}"))
            await shards.stop(1)
            hidden, shards.path = shards.path, tmp_path / "elsewhere"
            await shards.start(1)
            shards.path = hidden
            shards.check_equal()

    run(scenario)


def test_a_file_with_a_record_that_shard_0_has_cut_off_is_taken_anew(tmp_path: Path) -> None:
    """The replica reads the log between a write and its failing sync."""

    async def scenario() -> None:
        async with cluster(tmp_path, 2) as shards:
            await shards.writer.submit(0, commands.CreateStream("kept"))
            await shards.stop(1)
            ahead = tmp_path / "ahead" / FILE_NAME
            ahead.parent.mkdir()
            ahead.write_bytes(shards.path.read_bytes())
            other = Cluster(ahead.parent, 1)
            await other.start(0)
            await other.writer.submit(0, commands.CreateStream("never acknowledged"))
            await other.stop(0)
            await other.threads.close()
            hidden, shards.path = shards.path, ahead
            await shards.start(1)
            shards.path = hidden
            shards.check_equal()
            assert not shards.diverged

    run(scenario)


def test_changes_wait_for_a_silent_replica_until_it_is_reported_dead(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 3) as shards:
            await shards.stop(2, tell=False)
            change = asyncio.create_task(shards.nodes[1].submit(0, commands.CreateStream("s")))
            await asyncio.sleep(0.3)
            assert not change.done()
            shards.tell_down(2)
            assert (await change).status == Status.OK

    run(scenario)


def test_a_restarted_shard_0_waits_for_the_replicas_to_come_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 3) as shards:
            await shards.writer.submit(0, commands.CreateStream("before"))
            await shards.stop(0)
            held = asyncio.create_task(shards.nodes[1].submit(0, commands.CreateStream("held")))
            await asyncio.sleep(0.2)
            await shards.start(0)
            result = await held
            assert (result.status, result.id) == (Status.OK, 1)
            for number in range(10):
                await shards.writer.submit(0, commands.CreateStream(f"after {number}"))
                shards.check_equal()
            assert not shards.diverged

    run(scenario)


def test_a_submission_without_shard_0_is_refused_after_the_hold(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 2) as shards:
            await shards.stop(0)
            result = await shards.nodes[1].submit(0, commands.CreateStream("s"))
            assert result.status == Status.SHARD_COMMUNICATION_ERROR
            await shards.start(0)
            assert (await shards.nodes[1].submit(0, commands.CreateStream("s"))).status == Status.OK

    run(scenario)


def test_a_submission_in_the_hands_of_a_shard_0_that_dies_is_lost(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 3) as shards:
            await shards.stop(2, tell=False)  # the writer waits for it with the change in its hands
            change = asyncio.create_task(shards.nodes[1].submit(0, commands.CreateStream("s")))
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
            await shards.writer.submit(0, commands.CreateStream("s"))
            topic = commands.CreateTopic(Ref(0, 2), "t", 1, 1, 0, 0, 1)
            await shards.writer.submit(0, topic)
            more = encode_command(commands.CreatePartitions(Ref(0, 2), Ref(0, 3), 5))
            payload = messages.encode(messages.Submission(12345, 0, more))
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
                await shards.writer.submit(0, commands.CreateStream(f"s{number}"))
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
            await shards.writer.submit(0, commands.CreateStream("s"))
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
                result = await node.submit(0, commands.CreateStream("s"))
                assert result.status == Status.CANNOT_WRITE_TO_FILE
                assert node.state == before
            disk.operation = ""
            assert (await shards.nodes[1].submit(0, commands.CreateStream("s"))).status == Status.OK
            before = shards.writer.state
            disk.operation = "fdatasync"
            assert (await shards.nodes[1].submit(0, commands.CreateStream("t"))).status == Status.CANNOT_SYNC_FILE
            disk.operation = ""
            assert (await shards.nodes[1].submit(0, commands.CreateStream("t"))).status == Status.CANNOT_SYNC_FILE
            assert shards.writer.state == shards.nodes[1].state == before
            await shards.stop(0)
            await shards.start(0)
            assert (await shards.nodes[1].submit(0, commands.CreateStream("t"))).status == Status.OK
            shards.check_equal()

    run(scenario)


def test_the_root_user_is_made_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 2) as shards:
            passwords = Passwords(shards.threads)
            root = shards.writer.state.users[0]
            assert (root.name, root.active, root.id) == ("iggy", True, 0)
            assert await passwords.verify(root.password_hash, "iggy")
            assert not await ensure_root(shards.writer, passwords, "other", "other")
            await shards.stop(0)
            await shards.start(0)
            assert not await ensure_root(shards.writer, passwords, "other", "other")
            assert dict(shards.writer.state.user_ids.items()) == {"iggy": 0}

    run(scenario)


def test_submissions_after_the_end_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 1) as shards:
            writer = shards.writer
            await writer.close()
            assert (await writer.submit(0, commands.CreateStream("s"))).status == Status.DISCONNECTED

    run(scenario)
