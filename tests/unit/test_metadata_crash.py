"""Shard 0 in a process of its own, killed -9 again and again while a replica submits changes, with a snapshot every
7 records."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import sys
from pathlib import Path

from shardd.metadata import FILE_NAME, commands
from shardd.metadata.commands import Ref
from shardd.metadata.load import load_state, read_stored
from shardd.metadata.replica import MetadataReplica
from shardd.protocol.errors import Status
from shardd.runtime.bus import PeerLost
from shardd.runtime.helper_threads import HelperThreads
from tests.support.bus_peers import BusPeers

KILLS = 6
BETWEEN_KILLS = 8
TEST_TIMEOUT_S = 240
ROOT = Ref(0, 1)
ROOT_DIRECTORY = Path(__file__).parents[2]
SHARD_0 = """
import asyncio, sys
from pathlib import Path
from shardd.metadata.compaction import Limits
from shardd.metadata.writer import MetadataWriter
from shardd.security import Passwords, command_allowed, ensure_root
from shardd.runtime.helper_threads import HelperThreads
from tests.support.bus_peers import bus_of_text

async def main():
    bus = bus_of_text(sys.argv[1])
    await bus.start()
    threads = HelperThreads(2)
    writer = MetadataWriter(Path(sys.argv[2]), bus, threads, command_allowed, limits=Limits(7, 4))
    await writer.start()
    await ensure_root(writer, Passwords(threads), "iggy", "iggy")
    print("ready", flush=True)
    await asyncio.sleep(120)

asyncio.run(main())
"""


def _popen(peers: BusPeers, path: Path) -> subprocess.Popen[str]:
    place = peers.place(0)
    command = [sys.executable, "-c", SHARD_0, place.encode(), str(path)]
    inherited = place.trust.descriptors()
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=inherited, cwd=ROOT_DIRECTORY)


async def _ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert (await asyncio.to_thread(process.stdout.readline)).strip() == "ready"


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


class _Load:
    """Adds streams, and partitions to one topic, counting what was acknowledged and what nobody can know."""

    def __init__(self, replica: MetadataReplica) -> None:
        self.replica = replica
        self.acknowledged: dict[str, int] = {}
        self.unknown: set[str] = set()
        self.partitions = [0, 0]  # acknowledged, unknown
        self.stopping = False

    async def streams(self, client: int) -> None:
        number = 0
        while not self.stopping:
            name = f"client {client} stream {number}"
            number += 1
            try:
                result = await self.replica.submit(ROOT, commands.CreateStream(name))
            except PeerLost:
                self.unknown.add(name)
                continue
            assert result.status in (Status.OK, Status.SHARD_COMMUNICATION_ERROR), result.status
            if result.status == Status.OK:
                self.acknowledged[name] = result.id

    async def grow(self, stream: Ref, topic: Ref) -> None:
        while not self.stopping:
            try:
                result = await self.replica.submit(ROOT, commands.CreatePartitions(stream, topic, 1))
            except PeerLost:
                self.partitions[1] += 1
                continue
            self.partitions[0] += result.status == Status.OK


def test_acknowledged_changes_survive_kill9_of_shard_0_and_are_done_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        rng = random.Random(20261121)
        peers, path = stack.enter_context(BusPeers(2)), tmp_path / FILE_NAME
        bus, threads = peers.bus(1), HelperThreads(1)
        await bus.start()
        process = _popen(peers, path)
        diverged: list[str] = []
        replica = MetadataReplica(path, bus, threads, diverged.append)
        await asyncio.gather(replica.start(), _ready(process))
        assert (await replica.submit(ROOT, commands.CreateStream("first"))).status == Status.OK
        stream = Ref(0, replica.state.index)
        assert (await replica.submit(ROOT, commands.CreateTopic(stream, "t", 0, 1, 0, 0, 1))).status == Status.OK
        load = _Load(replica)
        clients = [
            asyncio.create_task(load.grow(stream, Ref(0, replica.state.index))),
            *(asyncio.create_task(load.streams(client)) for client in range(3)),
        ]
        for _ in range(KILLS):
            await asyncio.sleep(rng.uniform(0.05, 0.2))
            acknowledged = len(load.acknowledged)
            while len(load.acknowledged) < acknowledged + BETWEEN_KILLS:  # noqa: ASYNC110 - ends with the test's time
                await asyncio.sleep(0.001)
            _end(process)
            peers.ended(0)
            bus.peer_down(0)
            process = _popen(peers, path)
            await _ready(process)
            bus.peer_up(0)
        load.stopping = True
        await asyncio.gather(*clients)
        state = replica.state
        assert {name: state.stream_ids[name] for name in load.acknowledged} == load.acknowledged
        assert set(state.stream_ids) - {"first"} - set(load.acknowledged) <= load.unknown
        sure, unsure = load.partitions
        assert sure <= len(state.streams[0].topics[0].partitions) <= sure + unsure
        assert len(load.acknowledged) >= KILLS * BETWEEN_KILLS
        stored = read_stored(path)
        assert stored.content.digest == state.digest
        assert stored.content.base > 0, "the kills met no snapshot"
        assert load_state(path) == state
        assert not diverged
        await replica.close()
        await bus.close()
        await threads.close()
        _end(process)

    with contextlib.ExitStack() as stack:
        asyncio.run(asyncio.wait_for(scenario(), TEST_TIMEOUT_S))
