"""One run of the shards: chaos for some seconds of virtual time, then quiet, then everything must have settled."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import warnings
from collections import Counter
from dataclasses import dataclass, field

from shardd.groups.hub import GroupHub
from shardd.metadata import commands
from shardd.metadata.load import load_state
from shardd.protocol.errors import Status
from tests.sim.clients import metadata_client, submit
from tests.sim.cluster import PATH, Cluster
from tests.sim.disk import Faults, SimDisk
from tests.sim.findings import Trace
from tests.sim.group_clients import GroupClient
from tests.sim.groups import group_topics
from tests.sim.loop import DeadlockError, Process, SimLoop
from tests.sim.planted import Planted

CHAOS_S = 3.0
SETTLE_S = 20.0  # virtual; the longest wait of the server itself is 10 s
STEPS_MAX = 2_000_000
FAULTS = ("kill", "pause", "power cut", "errno phase", "clock goes back")
DONE = ("join", "leave", "poll", "commit", "move", "disconnect")


@dataclass(slots=True)
class Outcome:
    """Of one seed."""

    seed: int
    finding: str | None
    digest: str
    steps: int
    faults: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    last: list[str] = field(default_factory=list)


def run_shards(seed: int, planted: Planted, *, verbose: bool = False) -> Outcome:
    """Metadata and groups of one server."""
    collecting = gc.isenabled()
    gc.disable()  # a dead process's tasks must not be closed at a moment of the collector's choice
    try:
        return _run(seed, planted, verbose)
    finally:
        _collect()
        if collecting:
            gc.enable()


def _run(seed: int, planted: Planted, verbose: bool) -> Outcome:
    trace = Trace(verbose=verbose)
    loop = SimLoop(seed)
    loop.set_exception_handler(lambda _, context: _unexpected(trace, context))
    cluster = Cluster(loop, seed, trace, planted)
    loop.after_step = lambda: _look(cluster, loop)
    try:
        loop.run_until_complete(_scenario(cluster, seed))
    except DeadlockError as error:
        trace.report(str(error))
    except _Enough:
        pass
    trace.add(loop.time(), "end", str(loop.steps))
    faults = Counter(cluster.device.injected)
    faults.update({kind: trace.counts[kind] for kind in FAULTS})
    faults["message lost"] = cluster.network.lost
    done = Counter({"records": len(cluster.oracle.states) - 1, "answers": cluster.oracle.answers})
    done.update({kind: trace.counts[kind] for kind in DONE})
    for shard in cluster.shards.values():
        shard.process.kill()
    loop.set_exception_handler(lambda *_: None)
    loop.close()
    return Outcome(seed, trace.finding, trace.digest, loop.steps, faults, done, list(trace.last))


def _collect() -> None:
    """Ends what still waited, without letting it do or say anything: its loop is closed."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        gc.collect()
    sys.unraisablehook = hook


class _Enough(BaseException):
    """There is a finding, or no end."""


def _look(cluster: Cluster, loop: SimLoop) -> None:
    hub = _hub(cluster)
    if hub is not None:
        cluster.store.watch(hub)
    if cluster.trace.finding is not None:
        raise _Enough
    if loop.steps > STEPS_MAX:
        cluster.trace.report(f"no end after {loop.steps} steps")
        raise _Enough


def _hub(cluster: Cluster) -> GroupHub | None:
    shard = cluster.shards.get(0)
    return shard.groups.hub if shard is not None and shard.groups is not None else None


def _unexpected(trace: Trace, context: dict[str, object]) -> None:
    error = context.get("exception")
    if isinstance(error, Exception):
        trace.report(f"{context.get('message')}: {error!r}")


async def _scenario(cluster: Cluster, seed: int) -> None:
    rng = random.Random(f"scenario {seed}")
    cluster.start_all()
    stop = asyncio.Event()
    if not await cluster.wait_serving(SETTLE_S):
        cluster.trace.report("the shards do not start")
        return
    clients = [
        asyncio.create_task(metadata_client(cluster, random.Random(f"client {seed} {number}"), stop))
        for number in range(rng.randint(1, 3))
    ]
    clients += [
        asyncio.create_task(GroupClient(cluster, random.Random(f"member {seed} {number}"), number).run(stop))
        for number in range(rng.randint(0, 6))
    ]
    await _chaos(cluster, rng)
    stop.set()
    await _settle(cluster, rng, clients)


async def _chaos(cluster: Cluster, rng: random.Random) -> None:
    end = cluster.loop.time() + CHAOS_S
    cluster.faults.death_share = rng.choice([0.0, 0.0, 0.0005])
    pauses = rng.random() < 0.5
    cuts = rng.random() < 0.4
    errnos = rng.random() < 0.4
    while cluster.loop.time() < end:
        await asyncio.sleep(rng.random() * rng.choice([0.05, 0.3, 0.8]))
        what = rng.randrange(12)
        number = 0 if rng.random() < 0.4 else rng.randrange(cluster.shards_count)
        if what < 5:
            cluster.kill(number, "chaos")
        elif what < 7 and pauses:
            cluster.pause(number, rng.random() * rng.choice([0.05, 0.5, 2.0]))
        elif what in (7, 10) and cuts:
            if what == 10:  # what the next process found may be in memory only
                cluster.kill(0, "before a power cut")
                await cluster.wait_serving(0.5)
                await asyncio.sleep(rng.random() * 0.02)
            cluster.cut_power()
            await asyncio.sleep(rng.random() * 0.2)
            cluster.start_all()
        elif what == 8 and errnos:
            cluster.trace.add(cluster.loop.time(), "errno phase")
            cluster.faults.errno_share = rng.choice([0.005, 0.03, 0.2])
            await asyncio.sleep(rng.random() * 0.5)
            cluster.faults.errno_share = 0.0
        elif what == 9:
            cluster.trace.add(cluster.loop.time(), "clock goes back")
            cluster.clock.shift_us -= rng.randrange(2_000_000)


async def _settle(cluster: Cluster, rng: random.Random, clients: list[asyncio.Task[None]]) -> None:
    """No more faults: everything must come to an end by itself."""
    cluster.faults.errno_share = cluster.faults.death_share = 0.0
    cluster.trace.add(cluster.loop.time(), "quiet")
    _, pending = await asyncio.wait(clients, timeout=SETTLE_S)
    if pending:
        cluster.trace.report(f"{len(pending)} clients still wait {SETTLE_S:g} s after the last fault")
        return
    for task in clients:
        task.result()
    if not await cluster.wait_serving(SETTLE_S):
        cluster.trace.report(f"not all shards serve {SETTLE_S:g} s after the last fault")
        return
    cluster.kill(0, "once more")  # a failed sync lasts until the next start
    await asyncio.sleep(0.01)
    await cluster.wait_serving(SETTLE_S)
    for shard in cluster.serving():
        status = await submit(cluster, rng, shard, commands.CreateStream(f"last words of {shard.number}"))
        if status != Status.OK:
            cluster.trace.report(f"shard {shard.number} refuses a change with {status} after the last fault")
    await _settle_groups(cluster)
    disk = SimDisk(cluster.device, Process("reader", 0), Faults(), lambda: None)
    cluster.oracle.settled(cluster.states(), load_state(PATH, disk))


async def _settle_groups(cluster: Cluster) -> None:
    """Hand-overs end, suspects go, everybody knows what it has."""
    end = cluster.loop.time() + SETTLE_S
    why: str | None = "shard 0 does not serve"
    while why is not None and cluster.loop.time() < end:
        await asyncio.sleep(0.1)
        hub = _hub(cluster)
        members: dict[int, dict[str, list[int]]] = {}
        for shard in cluster.serving():
            for incarnation, those in shard.groups.memberships().items() if shard.groups else ():
                members.setdefault(incarnation, {}).update(those)
        if hub is not None:
            topics = group_topics(cluster.shards[0].node.state)
            why = cluster.store.settled(hub, topics, members)
    if why is not None:
        cluster.trace.report(f"{SETTLE_S:g} s after the last fault {why}")
