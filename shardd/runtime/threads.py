"""Threads for calls that block, as a protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class UnwantedError(Exception):
    """A call that nobody waited for any more when its turn came: it was not made."""


class Threads(Protocol):
    """Runs blocking calls away from the loop (`shardd.runtime.helper_threads.HelperThreads`)."""

    async def run(self, function: Callable[[*Ts], T], *arguments: *Ts, wanted: Callable[[], bool] | None = None) -> T:
        """What `function(*arguments)` returns or raises; `UnwantedError` when `wanted` said no at its turn."""
        ...
