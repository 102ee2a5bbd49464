"""Tests that are coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Final, ParamSpec

TIMEOUT_S: Final = 180.0
P = ParamSpec("P")


def on_loop(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """The test runs on a loop of its own, for three minutes at most."""

    @wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(TIMEOUT_S):
                await test(*arguments, **named)

        asyncio.run(bounded())

    return run


async def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Returns when it holds; TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.005)
