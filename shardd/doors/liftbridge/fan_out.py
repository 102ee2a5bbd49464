"""A message for many partitions at once: many streams may listen to one subject."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from shardd.doors.door import DoorClient
from shardd.doors.liftbridge.publishing import Publisher
from shardd.doors.liftbridge.router import Target

TARGETS_AT_ONCE_MAX: Final = 256  # then others have their turn, and room is asked for anew

Submit = Callable[[Target], None]


def submit_all(
    publisher: Publisher, client: DoorClient, targets: Sequence[Target], submit: Submit
) -> Coroutine[Any, Any, None] | None:
    """Whoever calls has asked `publisher.room`. None: all is submitted. Else what has to be awaited until the rest is,
    before anything else of the same publisher."""
    for target in targets[:TARGETS_AT_ONCE_MAX]:
        submit(target)
    if len(targets) <= TARGETS_AT_ONCE_MAX:
        return None
    return _submit_rest(publisher, client, targets, submit)


async def _submit_rest(publisher: Publisher, client: DoorClient, targets: Sequence[Target], submit: Submit) -> None:
    for begin in range(TARGETS_AT_ONCE_MAX, len(targets), TARGETS_AT_ONCE_MAX):
        await asyncio.sleep(0)
        await publisher.room(client)
        for target in targets[begin : begin + TARGETS_AT_ONCE_MAX]:
            submit(target)
