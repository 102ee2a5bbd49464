"""The writer and its replicas over the real bus, with real files: acknowledgements, catching up, deaths."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shardd.metadata import Record, State, commands, messages, service
from shardd.metadata.commands import Command, Ref
from shardd.metadata.deletions import DELETIONS_SENT_MAX
from shardd.metadata.log_file import FILE_NAME, read_log
from shardd.metadata.replica import MetadataReplica
from shardd.metadata.state import Permissions
from shardd.metadata.writer import MetadataWriter
from shardd.protocol.errors import Status
from shardd.runtime.bus import REQUESTS_IN_FLIGHT_MAX, Bus
from shardd.runtime.disk import Disk
from shardd.runtime.helper_threads import HelperThreads
from shardd.security import Passwords, command_allowed, ensure_root
from tests.support.bus_peers import BusPeers
from tests.support.on_loop import until

TEST_TIMEOUT_S = 30
ROOT = Ref(0, 1)


class Cluster:
    """Shards in one process. `stop(shard)` is a death: the others are told, as the supervisor does."""

    def __init__(self, directory: Path, shards: int) -> None:
        self.path = directory / FILE_NAME
        self.shards = shards
        self.peers = BusPeers(shards)
        self.threads = HelperThreads(2)
        self.buses: dict[int, Bus] = {}
        self.nodes: dict[int, MetadataWriter | MetadataReplica] = {}
        self.diverged: list[str] = []
        self.now_us = 1_000_000

    def now(self) -> int:
        self.now_us += 1
        return self.now_us

    async def start(
        self, shard: int, disk: Disk | None = None, *, tell: bool = True
    ) -> MetadataWriter | MetadataReplica:
        """Starts one shard and (`tell`) tells the others that it is up."""
        bus = self.peers.bus(shard)
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
        if tell:
            for peer, other in self.buses.items():
                if peer != shard:
                    other.peer_up(shard)
        return node

    async def stop(self, shard: int, *, tell: bool = True) -> None:
        node, bus = self.nodes.pop(shard), self.buses.pop(shard)
        self.peers.ended(shard)
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

    def record_after(self, index: int) -> list[bytes]:
        """The encoded record, from the log of shard 0."""
        log = self.writer._log
        assert log is not None
        return log.read_after(index, 0)

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
        made.peers.close()


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
                result = await origin.submit(ROOT, commands.CreateStream(f"s{number}"))
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
                *(shards.nodes[n % 3].submit(ROOT, commands.CreateStream(name)) for n, name in enumerate(names))
            )
            assert sorted(result.id for result in results) == list(range(150))
            for name, result in zip(names, results, strict=True):
                assert result.state.streams[result.id].name == name
                assert result.state.index == result.state.streams[result.id].incarnation
            shards.check_equal()

    run(scenario)


def test_a_submission_sees_its_own_state_even_when_later_changes_overtake_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 2) as shards:
            request = shards.buses[1].request

            async def late(shard: int, method: str, payload: bytes, timeout_s: float | None = None) -> bytes:
                answer = await request(shard, method, payload, timeout_s)
                await shards.writer.submit(ROOT, commands.DeleteStream(Ref(0, 2)))
                return answer

            monkeypatch.setattr(shards.buses[1], "request", late)
            result = await shards.nodes[1].submit(ROOT, commands.CreateStream("short-lived"))
            assert result.state.streams[result.id].name == "short-lived"
            assert not shards.nodes[1].state.streams

    run(scenario)


def test_refusals_are_statuses_and_leave_no_record(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 2) as shards:
            stream = await shards.writer.submit(ROOT, commands.CreateStream("s"))
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
                    result = await node.submit(Ref(user, 1), command)
                    assert (result.status, result.id) == (status, 0)
            assert len(read_log(shards.path).records) == 2

    run(scenario)


def test_a_forwarded_change_of_a_deleted_user_has_nobodys_rights(tmp_path: Path) -> None:
    """The user is deleted, and its id given to another one, while the change is on its way to shard 0."""

    async def scenario() -> None:
        async with cluster(tmp_path, 2) as shards:
            rights = Permissions(manage_streams=True)
            await shards.writer.submit(ROOT, commands.CreateUser("leaver", "hash", True, rights))
            leaver = Ref(1, shards.writer.state.index)
            assert (await shards.nodes[1].submit(leaver, commands.CreateStream("mine"))).status == Status.OK
            await shards.writer.submit(ROOT, commands.DeleteUser(leaver))
            await shards.writer.submit(ROOT, commands.CreateUser("comer", "hash", True, rights))
            comer = Ref(1, shards.writer.state.index)
            for node in shards.nodes.values():
                refused = await node.submit(leaver, commands.CreateStream(f"late {node}"))
                assert refused.status == Status.UNAUTHORIZED
            assert (await shards.nodes[1].submit(comer, commands.CreateStream("later"))).status == Status.OK
            assert sorted(shards.writer.state.stream_ids) == ["later", "mine"]

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
            await shards.nodes[1].submit(ROOT, commands.CreateStream("a"))
            assert seen[0] == seen[1] == [(1, 2, 2)]

    run(scenario)


def test_a_record_is_acknowledged_when_it_is_followed_and_the_loop_goes_on_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "APPLY_INLINE_STEPS", -1)  # applied in a helper thread, too

    async def scenario() -> None:
        async with cluster(tmp_path, 2) as shards:
            for shard, node in shards.nodes.items():
                go_on, begun, followed = asyncio.Event(), asyncio.Event(), list[tuple[int, int]]()

                async def follow(
                    old: State,
                    new: State,
                    go_on: asyncio.Event = go_on,
                    begun: asyncio.Event = begun,
                    followed: list[tuple[int, int]] = followed,
                ) -> None:
                    begun.set()
                    await go_on.wait()
                    followed.append((old.index, new.index))

                node.follow_with(follow)
                before = node.state.index
                change = asyncio.create_task(shards.writer.submit(ROOT, commands.CreateStream(f"s{shard}")))
                await begun.wait()
                assert (node.state.index, node.followed_index) == (before + 1, before)
                [record] = shards.record_after(before)  # once more, as after a HELLO that came in between
                again = asyncio.create_task(shards.buses[0].request(1, messages.METHOD_APPLY, record))
                done, _ = await asyncio.wait((change, again) if shard == 1 else (change,), timeout=0.1)
                assert not done, "nobody is told before it is followed"
                go_on.set()
                assert (await change).status == Status.OK
                await again
                assert followed == [(before, before + 1)]
                assert node.followed_index == node.state.index

    run(scenario)


def test_a_replica_that_starts_late_gets_everything(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 3) as shards:
            await shards.stop(2)
            for number in range(400):
                assert (await shards.nodes[number % 2].submit(ROOT, commands.CreateStream(f"s{number}"))).status == 0
            await shards.start(2)
            shards.check_equal()
            assert (await shards.nodes[2].submit(ROOT, commands.CreateStream("again"))).status == Status.OK
            shards.check_equal()

    run(scenario)


def test_a_replica_without_the_file_gets_everything_from_shard_0(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(tmp_path, 2) as shards:
            for number in range(50):
                await shards.writer.submit(ROOT, commands.CreateStream("x" * 200 + f"{number}"))
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
            await shards.writer.submit(ROOT, commands.CreateStream("kept"))
            await shards.stop(1)
            ahead = tmp_path / "ahead" / FILE_NAME
            ahead.parent.mkdir()
            ahead.write_bytes(shards.path.read_bytes())
            other = Cluster(ahead.parent, 1)
            await other.start(0)
            await other.writer.submit(ROOT, commands.CreateStream("never acknowledged"))
            await other.stop(0)
            await other.threads.close()
            hidden, shards.path = shards.path, ahead
            await shards.start(1)
            shards.path = hidden
            shards.check_equal()
            assert not shards.diverged

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
            assert (await writer.submit(ROOT, commands.CreateStream("s"))).status == Status.DISCONNECTED

    run(scenario)


def test_deletions_that_wait_leave_the_way_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than the bus has places, from another shard, while shard 0 lets none pass."""
    monkeypatch.setattr("shardd.metadata.replica.DELETION_WAIT_S", 0.5)
    entered, open_again = 0, asyncio.Event()

    @asynccontextmanager
    async def gate(_user: int) -> AsyncIterator[Status]:
        nonlocal entered
        entered += 1
        await open_again.wait()
        yield Status.DISCONNECTED

    async def scenario() -> None:
        async with cluster(tmp_path, 2) as made:
            root = Ref(0, made.writer.state.users[0].incarnation)
            assert (await made.nodes[1].submit(root, commands.CreateStream("s"))).status == Status.OK
            stream = Ref(0, made.writer.state.streams[0].incarnation)
            made.writer._deletions = gate
            purges = [
                asyncio.create_task(made.nodes[1].submit(root, commands.PurgeStream(stream)))
                for _ in range(REQUESTS_IN_FLIGHT_MAX + 10)
            ]
            await until(lambda: entered == DELETIONS_SENT_MAX)
            assert (await made.nodes[1].submit(root, commands.CreateStream("other"))).status == Status.OK
            done, _ = await asyncio.wait(purges[DELETIONS_SENT_MAX:])
            assert {each.result().status for each in done} == {Status.CANNOT_DELETE_FILE}
            open_again.set()
            statuses = [(await each).status for each in purges[:DELETIONS_SENT_MAX]]
            assert statuses == [Status.DISCONNECTED] * DELETIONS_SENT_MAX == [Status.DISCONNECTED] * entered
            made.check_equal()

    run(scenario)
