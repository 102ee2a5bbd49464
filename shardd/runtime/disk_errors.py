"""What an error of the disk means for what was being opened: the one place that tells them apart."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Final

from shardd.runtime.regular_files import NotRegularError

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_MOMENTARY: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN)
_FOREIGN: Final = (errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.EPROTO)


class Trouble(Enum):
    """Why something could not be opened."""

    ROOM = "until there is room"  # the reserve may give some; it is opened as soon as there is
    MOMENTARY = "until it can be opened, which is tried again"  # descriptors, memory, interrupts
    DEVICE = "until the next start"  # what is there cannot be read, or not be repaired
    FOREIGN = "until the next start, and nothing of it is touched"  # of a later version, or not made by this server

    @property
    def heals(self) -> bool:
        """By itself, while the server runs."""
        return self in (Trouble.ROOM, Trouble.MOMENTARY)


def trouble_of(error: OSError | ValueError | MemoryError) -> Trouble:
    """A ValueError says that what lies there is not what this version makes, a MemoryError is momentary."""
    if isinstance(error, MemoryError):
        return Trouble.MOMENTARY
    if not isinstance(error, OSError) or isinstance(error, NotRegularError) or error.errno in _FOREIGN:
        return Trouble.FOREIGN
    if error.errno in NO_ROOM:
        return Trouble.ROOM
    return Trouble.MOMENTARY if error.errno in _MOMENTARY else Trouble.DEVICE


@contextmanager
def losses_passed_over() -> Iterator[None]:
    """For a `with` block whose rest may be left out when the device does not give what it reads. OSError of what passes
    by itself."""
    try:
        yield
    except OSError as error:
        if trouble_of(error).heals:
            raise
