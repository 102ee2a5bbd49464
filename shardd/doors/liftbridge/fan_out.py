"""A message for many partitions at once: many streams may listen to one subject."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from shardd.doors.door import DoorClient
from shardd.doors.liftbridge.publishing import Publisher
from shardd.doors.liftbridge.router import Target

TARGETS_AT_ONCE_MAX: Final = 256  # then others have their turn

Submit = Callable[[Target], None]


def submit_all(
    publisher: Publisher, client: DoorClient, targets: Sequence[Target], submit: Submit
) -> Awaitable[None] | None:
    """The caller has asked `publisher.room`, for one target; others ask anew. None: all is submitted. Else what has to
    be awaited until the rest is, before anything else of the same publisher."""
    for at, target in enumerate(targets[:TARGETS_AT_ONCE_MAX]):
        if at and not publisher.has_room(client):
            return _submit_rest(publisher, client, targets[at:], submit)
        submit(target)
    if len(targets) <= TARGETS_AT_ONCE_MAX:
        return None
    return _submit_rest(publisher, client, targets[TARGETS_AT_ONCE_MAX:], submit)


async def _submit_rest(publisher: Publisher, client: DoorClient, targets: Sequence[Target], submit: Submit) -> None:
    for at, target in enumerate(targets):
        if at % TARGETS_AT_ONCE_MAX == 0:
            await asyncio.sleep(0)
        if not publisher.has_room(client):
            await publisher.room(client)
        submit(target)
