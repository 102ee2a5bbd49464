"""Sockets of this process that the library has: they are found by their descriptors, which it may close at any moment.
What is looked at is a copy. The number of a copy is kept free from the beginning: whoever has opened all that there are
can be looked at, and shut down, without one more."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_DESCRIPTORS: Final = "/proc/self/fd"
_SOCKET: Final = "socket:"


def socket_name(descriptor: str) -> str:
    """It is the socket's alone; "": the descriptor is another thing, or is gone."""
    try:
        name = os.readlink(f"{_DESCRIPTORS}/{descriptor}")  # noqa: PTH115 - thousands in a look
    except OSError:
        return ""
    return name if name.startswith(_SOCKET) else ""


def descriptors() -> list[str]:
    """All that are open, and perhaps others."""
    try:
        return os.listdir(_DESCRIPTORS)  # noqa: PTH208 - names, no paths
    except OSError:  # none is left to list them with: so each number has one
        return [str(number) for number in range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])]


class Copies:
    """Loop thread only. One at a time."""

    def __init__(self) -> None:
        self._nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._number = os.dup(self._nothing)

    def close(self) -> None:
        os.close(self._number)
        os.close(self._nothing)

    @contextmanager
    def of(self, descriptor: int, name: str) -> Iterator[socket.socket | None]:
        """None: the descriptor is not this socket any more."""
        copy: socket.socket | None = None
        try:
            try:
                os.dup2(descriptor, self._number, inheritable=False)
                if socket_name(str(self._number)) == name:
                    copy = socket.socket(fileno=self._number)
            except OSError:
                copy = None
            yield copy
        finally:
            if copy is not None:
                copy.detach()
            os.dup2(self._nothing, self._number, inheritable=False)
