"""Answers that grow with what there is: made in slices, so that the loop goes on beside them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

from shardd.protocol.errors import ShardError, Status
from shardd.runtime.slices import Slices
from shardd.runtime.threads import UnwantedError
from shardd.service import base
from shardd.service.base import Connections
from shardd.service.identity import Identity

_SORTED_AT_ONCE: Final = 1000
Id = TypeVar("Id", int, str)


class LongAnswers:
    """One per worker, loop thread only. Users take turns: together they get one slice in a turn of the loop."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._slices = Slices()

    async def take(self, identity: Identity, steps: Iterable[object]) -> None:
        """Takes steps whose number grows with what is asked about.

        8 and close when they take longer than a slice and the client has left meanwhile.
        """
        try:
            await self._slices.run(steps, lambda: base.waits(self._connections, identity), (str(identity.user),))
        except UnwantedError:
            raise ShardError(Status.DISCONNECTED, "it has left before its turn", close=True) from None


def ascending(ids: Iterable[Id]) -> Iterator[Id | None]:
    """All of them in their order; None for each step before the first one."""
    runs, left = list[list[Id]](), iter(ids)
    while run := sorted(islice(left, _SORTED_AT_ONCE)):
        runs.append(run)
        yield None
    yield from heapq.merge(*runs)
