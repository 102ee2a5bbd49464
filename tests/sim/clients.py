"""Clients of the metadata: random commands on random shards; what got no answer is sent again under its number."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Coroutine
from typing import Any, TypeVar

from shardd.metadata import State, Stream, Topic, commands
from shardd.metadata.commands import Command, Ref
from shardd.metadata.service import Result
from shardd.protocol.errors import Status
from shardd.runtime.channel import PeerLost
from tests.sim.cluster import Cluster, Shard, submission_number
from tests.sim.loop import Process, ProcessKilled

ROOT = Ref(0, 1)
ATTEMPTS_MAX = 6
ANSWER_TIMEOUT_S = 40.0  # longer than anything that the server may wait for
NAMES = [f"n{number}" for number in range(5)]
T = TypeVar("T")
_outside = contextvars.Context()


class ConnectionLostError(Exception):
    """The process that had the request is dead."""


async def call(cluster: Cluster, process: Process, work: Coroutine[Any, Any, T]) -> T:
    """Runs a request inside a process. ConnectionLostError when that dies; what the request raises."""
    if not process.alive:
        work.close()
        raise ConnectionLostError
    ended: asyncio.Future[None] = cluster.loop.create_future()

    def end(*_: object) -> None:
        if not ended.done():
            ended.set_result(None)

    task = process.spawn(cluster.loop, work)
    task.add_done_callback(end, context=_outside)
    process.on_kill.append(end)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await ended
    except TimeoutError:
        cluster.trace.report(f"a request to {process.name} has no answer after {ANSWER_TIMEOUT_S:g} s")
        raise ConnectionLostError from None
    finally:
        if process.alive:
            process.on_kill.remove(end)
    if not task.done() or isinstance(task.exception(), ProcessKilled):
        raise ConnectionLostError
    return task.result()


async def metadata_client(cluster: Cluster, rng: random.Random, stop: asyncio.Event) -> None:
    while not stop.is_set():
        await asyncio.sleep(rng.random() * 0.05)
        serving = cluster.serving()
        if serving:
            shard = rng.choice(serving)
            await submit(cluster, rng, shard, random_command(rng, shard.node.state))


async def submit(cluster: Cluster, rng: random.Random, shard: Shard, command: Command) -> int | None:
    """The status, None when nobody ever said."""
    number = rng.getrandbits(64)
    for attempt in range(ATTEMPTS_MAX):
        try:
            result = await call(cluster, shard.process, _submit(shard, number, command))
        except (ConnectionLostError, PeerLost):
            await asyncio.sleep(rng.random() * 0.1)
            serving = cluster.serving()
            while not serving:
                await asyncio.sleep(0.05)
                serving = cluster.serving()
            shard = rng.choice(serving)
            continue
        kind = "done" if result.status == Status.OK else "refused"
        cluster.trace.add(
            cluster.loop.time(), kind, f"{type(command).__name__} {result.status} by shard {shard.number}"
        )
        cluster.oracle.answered(result.status, number, cluster.states(), cluster.followed(), again=attempt > 0)
        return int(result.status)
    return None


async def _submit(shard: Shard, number: int, command: Command) -> Result:
    submission_number.set(number)
    return await shard.node.submit(ROOT, command)


def random_command(rng: random.Random, state: State) -> Command:
    """Mostly about what exists."""
    stream = _one(rng, state.streams) or Stream(9, "", 0, 0)
    topic = _one(rng, stream.topics) or Topic(9, "", 0, 0, 1, 0, 0, 1)
    group = _one(rng, topic.groups)
    at, of = Ref(stream.id, stream.incarnation), Ref(topic.id, topic.incarnation)
    name = rng.choice(NAMES)
    choices: list[tuple[int, Command]] = [
        (3, commands.CreateStream(name)),
        (1, commands.UpdateStream(at, name)),
        (1, commands.DeleteStream(at)),
        (1, commands.PurgeStream(at)),
        (6, commands.CreateTopic(at, name, rng.randint(1, 5), 1, 2**64 - 1, 2**64 - 1, 1)),
        (1, commands.DeleteTopic(at, of)),
        (2, commands.PurgeTopic(at, of)),
        (3, commands.CreatePartitions(at, of, rng.randint(1, 2))),
        (2, commands.DeletePartitions(at, of, 1)),
        (4, commands.CreateConsumerGroup(at, of, name)),
        (1, commands.DeleteConsumerGroup(at, of, Ref(group.id, group.incarnation) if group else Ref(0, 0))),
        (1, commands.CreateUser(f"user-{rng.randrange(20)}", "$argon2id$", True, None)),
    ]
    return rng.choices([command for _, command in choices], [weight for weight, _ in choices])[0]


def _one(rng: random.Random, found: Any) -> Any:
    return found[rng.choice(sorted(found))] if len(found) else None
