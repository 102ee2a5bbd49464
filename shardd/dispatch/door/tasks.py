"""Tasks that a door asks for in the name of the server itself: each has a name, and is permitted to one door only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from shardd.dispatch.door.commands import LIFTBRIDGE, request_type
from shardd.dispatch.door.values import decoder_of, keep_encoded
from shardd.protocol.door_frames import Task
from shardd.protocol.errors import ShardError, Status
from shardd.service.services import Services

Run = Callable[[Any], Awaitable[object]]


class DoorTask(msgspec.Struct, frozen=True):
    """`door`: whose task it is. `decode`: the request, or `ShardError`."""

    door: str
    decode: Callable[[msgspec.Raw], object]
    run: Run


def task_table(services: Services) -> dict[str, DoorTask]:
    """By name."""
    tasks = services.liftbridge_tasks
    functions: dict[str, Run] = {
        "prepare": tasks.prepare,
        "all_streams": partial(tasks.all_streams, keep=keep_encoded),
        "all_groups": partial(tasks.all_groups, keep=keep_encoded),
        "all_users": tasks.all_users,
        "publish": tasks.publish,
        "poll": tasks.poll,
        "pause_partitions": tasks.pause_partitions,
        "partition_ends": tasks.partition_ends,
        "tell_figures": services.liftbridge_figures.tell,
        "expire_member": tasks.expire_member,
        "events": partial(tasks.events, keep=keep_encoded),
    }
    of_doors = {name: DoorTask(LIFTBRIDGE, decoder_of(request_type(run)), run) for name, run in functions.items()}
    return of_doors | _tellings(services)


def _tellings(services: Services) -> dict[str, DoorTask]:
    """Of doors with handshakes: what they have counted."""
    functions: dict[str, Run] = {"http": services.http_handshakes.tell, "quic": services.quic_handshakes.tell}
    return {
        f"tell_handshakes_of_{door}": DoorTask(door, decoder_of(request_type(run)), run)
        for door, run in functions.items()
    }


async def run_task(tasks: dict[str, DoorTask], door: str, request: Task) -> object:
    """What the task answers. `ShardError` 41 for the task of another door, whether there is one of that name or not."""
    task = tasks.get(request.name)
    if task is None or task.door != door:
        raise ShardError(Status.UNAUTHORIZED, f"no task of door {door}")
    return await task.run(task.decode(request.request))
