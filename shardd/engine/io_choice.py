"""Which implementation of the engine's I/O runs: io_uring, or epoll where that is refused."""

from __future__ import annotations

from typing import Final

import msgspec

from shardd.engine._native import probe

IO_URING: Final = "io_uring"
EPOLL: Final = "epoll"


class IoEngineError(Exception):
    """The wanted engine cannot work on this machine; the text is a sentence for the operator."""


class IoEngine(msgspec.Struct, frozen=True):
    """`name`: io_uring or epoll; `reason`: why this one, as the start-up line tells it."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


def choose_io_engine(setting: str) -> IoEngine:
    """The engine for `system.io_engine` ("auto", "io_uring" or "epoll"). Raises IoEngineError when io_uring is forced
    and cannot be used."""
    if setting == EPOLL:
        return IoEngine(EPOLL, "system.io_engine")
    refusal = probe()
    if not refusal:
        return IoEngine(IO_URING, "it works here" if setting == "auto" else "system.io_engine")
    if setting == IO_URING:
        raise IoEngineError(f"io_uring cannot be used: {refusal}")
    return IoEngine(EPOLL, refusal)
