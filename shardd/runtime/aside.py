"""A request that waits for a turn holds nothing that other requests need.

A connection lends a request a place and room for bytes while the request is carried out. A request that waits in a line
(for a password, a gate, a lock) steps aside for so long: its place serves other requests, and the request takes a place
again when its turn has come. Lines know nothing of connections: a line waits in `aside()`, which is what the dispatcher
of the request has set for the task.

A change that has begun waits `beside()`: for the device, which may stand still, or for other shards. It is refused
before it begins where too many wait so already, and is never ended once it has begun.

A send, a store of an offset, or a poll that stores one, waits `handed_over()`: the engine carries it out, and waits
for the device. Where too many are with the engine already, it steps aside until its user may hand over another one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Final

StepAside = Callable[[], AbstractContextManager[None]]
HandOver = Callable[[], AbstractAsyncContextManager[None]]
STEP_ASIDE: Final[ContextVar[StepAside]] = ContextVar("step_aside", default=nullcontext)
"""Of a task that carries out a request. What it returns is entered for one wait, and may end that wait with an error:
so nothing may have been done yet that the request would have to answer for."""


STAND_BESIDE: Final[ContextVar[StepAside]] = ContextVar("stand_beside", default=nullcontext)
"""As STEP_ASIDE, for what cannot be ended any more: what it returns may raise a refusal when it is entered only."""


HAND_OVER: Final[ContextVar[HandOver]] = ContextVar("hand_over", default=nullcontext)
"""As STEP_ASIDE until the request is handed over; from then on the request cannot be ended."""


def aside() -> AbstractContextManager[None]:
    """To wait in. Other tasks that the request has made, which have a copy of its context, hold nothing to lend."""
    return STEP_ASIDE.get()()


def beside() -> AbstractContextManager[None]:
    """To carry out in what has no other end than its own."""
    return STAND_BESIDE.get()()


def handed_over() -> AbstractAsyncContextManager[None]:
    """To await an answer of the engine in that may wait for the device."""
    return HAND_OVER.get()()
