"""The shards of one server as simulated processes: the real metadata and bus of each, and a supervisor.

`kill` is SIGKILL, `pause` a process that the scheduler forgets, `cut_power` the end of all of them and of everything
that was not synced. The supervisor tells deaths and starts over an ordered channel to each process, as the real one.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from pathlib import Path
from typing import Any, cast

from shardd.metadata import FILE_NAME, LogError, State
from shardd.metadata.commands import CreateUser, Ref
from shardd.metadata.compaction import Limits
from shardd.metadata.replica import MetadataReplica
from shardd.metadata.writer import MetadataWriter
from shardd.runtime.bus import Bus
from shardd.security import command_allowed
from tests.sim.disk import Device, Faults, SimDisk
from tests.sim.findings import Trace
from tests.sim.groups import ShardGroups
from tests.sim.loop import Process, ProcessKilled, SimLoop
from tests.sim.metadata_oracle import MetadataOracle
from tests.sim.network import Network, SimSockets
from tests.sim.planted import Planted
from tests.sim.store import PartitionStore
from tests.sim.threads import SimThreads

PATH = Path("/sim") / FILE_NAME
RESTART_S = 0.3
INTERLEAVED_SHARE = 0.4  # of the seeds: other shards run between the disk calls of a helper thread
CONTROL_DELAY_S = 0.004
SLOW_FOLLOW_SHARE, SLOW_FOLLOW_S = 0.1, 0.02
RESERVE_BYTES = 256
submission_number: contextvars.ContextVar[int] = contextvars.ContextVar("submission_number")


class WallClock:
    """Of shard 0; may go back."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.shift_us = 0

    def now_us(self) -> int:
        return int(self._loop.time() * 1_000_000) + self.shift_us


class Shard:
    """One process of a shard. `serving`: it has started and answers clients."""

    def __init__(self, cluster: Cluster, number: int, incarnation: int) -> None:
        self.cluster = cluster
        self.number = number
        self.incarnation = incarnation
        self.process = Process(f"shard {number}", incarnation)
        self.serving = False
        self.identity = incarnation << 8 | number
        cluster_rng = cluster.rng
        self.threads = SimThreads(cluster.loop, self.process, cluster_rng, interleaved=cluster.interleaved)
        self.disk = SimDisk(cluster.device, self.process, cluster.faults, lambda: cluster.kill(number, "disk"))
        sockets = SimSockets(cluster.network, self.process, number)
        self.bus = Bus(number, cluster.shards_count, cast(Any, sockets))
        self.node: MetadataWriter | MetadataReplica
        disk = cluster.planted.disk(self.disk)
        if number == 0:
            limits = Limits(cluster.records_max, cluster.records_kept, RESERVE_BYTES)
            self.node = cluster.planted.writer(
                PATH,
                self.bus,
                self.threads,
                command_allowed,
                clock=cluster.clock,
                disk=disk,
                limits=limits,
                random_bits=_number,
                hear=self.hear,
            )
        else:
            self.node = cluster.planted.replica(
                PATH, self.bus, self.threads, self._diverged, disk=disk, random_bits=_number
            )
        self.node.subscribe(lambda old, new, record: cluster.oracle.applied(number, old, new, record))
        self.node.follow_with(self._follow)
        self.started_index = self.followed_index = 0
        self.groups: ShardGroups | None = None
        self.heard: deque[tuple[Any, int]] = deque()  # words of the supervisor that wait to be read

    def hear(self) -> None:
        """Follows all of them."""
        while self.heard:
            call, shard = self.heard.popleft()
            call(shard)

    async def boot(self) -> None:
        """As `shardd.worker.worker.Worker.main`."""
        submission_number.set(self.cluster.rng.getrandbits(64))
        await self.bus.start()
        try:
            await (self.node.start(self._prepare) if isinstance(self.node, MetadataWriter) else self.node.start())
        except LogError as error:
            if not isinstance(error.__cause__, OSError):
                self.cluster.trace.report(f"shard {self.number} refuses what a crash has left: {error}")
            self.cluster.kill(self.number, f"cannot start: {error}")
            raise ProcessKilled from error
        self.started_index = self.node.state.index
        self.groups = ShardGroups(self)
        self.cluster.ready(self)

    async def _prepare(self) -> None:
        """The root user."""
        if isinstance(self.node, MetadataWriter) and not self.node.state.users:
            await self.node.bootstrap(Ref(0, 0), CreateUser("iggy", "$argon2id$", True, None))

    async def _follow(self, old: State, new: State) -> None:
        """Stands for opening and closing partitions."""
        if self.cluster.rng.random() < SLOW_FOLLOW_SHARE:
            await asyncio.sleep(self.cluster.rng.random() * SLOW_FOLLOW_S)
        self.followed_index = new.index

    def _diverged(self, sentence: str) -> None:
        self.cluster.kill(self.number, f"diverged: {sentence}")
        raise ProcessKilled


def _number(bits: int) -> int:
    return submission_number.get()


class Cluster:
    """Supervisor and machine. Everything random comes from the seed."""

    def __init__(self, loop: SimLoop, seed: int, trace: Trace, planted: Planted) -> None:
        self.loop = loop
        self.rng = random.Random(f"cluster {seed}")
        self.trace = trace
        self.planted = planted
        self.shards_count = self.rng.choice([2, 3, 3, 4])
        self.device = Device(random.Random(f"device {seed}"))
        self.network = Network(loop, random.Random(f"network {seed}"))
        self.clock = WallClock(loop)
        self.faults = Faults()
        self.interleaved = self.rng.random() < INTERLEAVED_SHARE
        self.records_max = self.rng.choice([6, 15, 40, 1000])
        self.records_kept = self.rng.choice([2, 4, 64])
        self.oracle = MetadataOracle(trace)
        self.store = PartitionStore(trace, loop)
        self.shards: dict[int, Shard] = {}
        self.generations = [0] * self.shards_count
        self.powered = True
        self.all_ready = False  # this supervisor has seen all shards serve
        self._restarting: set[int] = set()

    # ---- life ----

    def start_all(self) -> None:
        self.powered = True
        for number in range(self.shards_count):
            self._start(number)

    def _start(self, number: int) -> None:
        self._restarting.discard(number)
        if not self.powered or number in self.shards:
            return
        self.generations[number] += 1
        shard = self.shards[number] = Shard(self, number, self.generations[number])
        self.trace.add(self.loop.time(), "start", f"shard {number}")
        shard.process.spawn(self.loop, self._booted(shard))
        for peer in range(self.shards_count):
            if peer != number and self.all_ready and peer not in self.shards:
                self._control(shard, shard.bus.peer_down, peer)

    async def _booted(self, shard: Shard) -> None:
        try:
            await shard.boot()
        except ProcessKilled:
            pass
        except Exception as error:
            self.trace.report(f"shard {shard.number} fails to start: {error!r}")
            self.kill(shard.number, f"fails to start: {error!r}")

    def ready(self, shard: Shard) -> None:
        shard.serving = True
        shard.followed_index = max(shard.followed_index, shard.started_index)
        self.trace.add(self.loop.time(), "ready", f"shard {shard.number} at record {shard.node.state.index}")
        done = shard.node._done if isinstance(shard.node, MetadataWriter) else {}
        submissions = {number: index for number, index, _ in done.values()}
        self.all_ready = self.all_ready or self.all_serving()
        self.oracle.recovered(shard.number, shard.node.state, submissions)
        for other in self.shards.values():
            if other is not shard:
                self._control(other, other.bus.peer_up, shard.number)

    def kill(self, number: int, why: str) -> None:
        shard = self.shards.pop(number, None)
        if shard is None:
            return
        self.trace.add(self.loop.time(), "kill", f"shard {number} ({why})")
        shard.process.kill()
        self.store.owner_died(shard.identity)
        for other in self.shards.values():
            self._control(other, other.bus.peer_down, number)
        self._restart_later(number)

    def _restart_later(self, number: int) -> None:
        if self.powered and number not in self._restarting:
            self._restarting.add(number)
            _outside.run(self.loop.call_later, self.rng.random() * RESTART_S, self._start, number)

    def cut_power(self) -> None:
        self.powered = self.all_ready = False
        self.trace.add(self.loop.time(), "power cut")
        for number in list(self.shards):
            self.kill(number, "power")
        self.device.cut_power()
        self.store.power_cut()

    def pause(self, number: int, seconds: float) -> None:
        shard = self.shards.get(number)
        if shard is None or shard.process.paused:
            return
        self.trace.add(self.loop.time(), "pause", f"shard {number} for {seconds:.3f} s")
        shard.process.paused = True
        _outside.run(self.loop.call_later, seconds, self.loop.resume, shard.process)

    def _control(self, target: Shard, call: Any, shard: int) -> None:
        """A word of the supervisor: in the socket at once, read a little later."""
        target.heard.append((call, shard))
        target.process.context.run(self.loop.call_later, self.rng.random() * CONTROL_DELAY_S, target.hear)

    # ---- what is so ----

    def serving(self) -> list[Shard]:
        return [shard for _, shard in sorted(self.shards.items()) if shard.serving]

    def states(self) -> dict[int, State]:
        return {shard.number: shard.node.state for shard in self.serving()}

    def followed(self) -> dict[int, int]:
        """The last record that each live shard has followed."""
        return {shard.number: shard.followed_index for shard in self.serving()}

    def all_serving(self) -> bool:
        return len(self.serving()) == self.shards_count

    async def wait_serving(self, seconds: float) -> bool:
        """Whether all shards serve within so much virtual time."""
        end = self.loop.time() + seconds
        while not self.all_serving():
            if self.loop.time() > end:
                return False
            await asyncio.sleep(0.02)
        return True


_outside = contextvars.Context()
