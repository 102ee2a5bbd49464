"""Where a consumer reads on in each partition, and what of it is done. Sans-IO."""

from __future__ import annotations

import re
from typing import Final

from shardd.client import commands
from shardd.client.errors import SettingsError
from shardd.client.messages import History

Start = str | int
"""Where nothing is stored: "earliest", "latest", an offset, or "time:MICROSECONDS" (since 1970, of the server)."""

_TIME: Final = re.compile(r"time:0*([0-9]{1,20})")


def strategy_of(start: Start) -> tuple[int, int]:
    """(kind, value) of the polling strategy; "latest" is LAST. SettingsError."""
    if isinstance(start, int) and start >= 0:
        return commands.OFFSET, start
    if start == "earliest":
        return commands.FIRST, 0
    if start == "latest":
        return commands.LAST, 0
    time = _TIME.fullmatch(start) if isinstance(start, str) else None
    if time is not None and int(time[1]) < 1 << 64:
        return commands.TIMESTAMP, int(time[1])
    raise SettingsError(f'start is "earliest", "latest", an offset or "time:MICROSECONDS", not {start!r}')


class Place:
    """A partition of a consumer. `strategy`, `value`: of its next poll; `was_read`: it is the end of the last one.
    `done`: the last offset that was processed, `stored`: the one that the server knows; None: none since it came.
    `resumes`: where a consumer that begins now would. `is_kept`: it is a position that the consumer had, so what is
    gone from there on is lost. `history`: to which `value` belongs. `end`: the largest offset that was told of the
    partition. `handed`: the last offset that was handed out, -1: none. `reached`: in front of it, in this history,
    the consumer has handed out all before it joined its group again."""

    __slots__ = (
        "done",
        "end",
        "handed",
        "history",
        "is_kept",
        "partition",
        "reached",
        "resumes",
        "stored",
        "strategy",
        "value",
        "was_read",
    )

    def __init__(self, partition: int, strategy: int, value: int, resumes: int = 0, *, is_kept: bool = False) -> None:
        self.partition, self.resumes = partition, resumes
        self.strategy, self.value = strategy, value
        self.done: int | None = None
        self.stored: int | None = None
        self.was_read = False
        self.is_kept = is_kept
        self.history: History | None = None
        self.end = 0
        self.handed = -1
        self.reached = 0

    def seek(self, strategy: int, value: int) -> None:
        """What was done stays; it is committed when something behind the new place is."""
        self.strategy, self.value, self.was_read, self.is_kept = strategy, value, False, False
        self.reached = 0

    def read_to(self, offset: int) -> None:
        self.strategy, self.value, self.was_read, self.is_kept = commands.OFFSET, offset + 1, True, True

    def begin_anew(self, strategy: int, resumes: int = 0) -> None:
        """In another history: what was done belongs to the one before. `resumes`: by what the server has stored in it,
        as after files were put back."""
        self.seek(strategy, 0)
        self.done = self.stored = None
        self.resumes, self.end = resumes, 0
        self.handed = -1

    def store(self, offset: int) -> None:
        self.stored, self.resumes = offset, offset + 1

    @property
    def is_next(self) -> bool:
        """A poll of what is next for the consumer, by the server's book, is the poll of this place."""
        return self.strategy in (commands.OFFSET, commands.FIRST) and self.value == self.resumes

    @property
    def begins_in_front(self) -> bool:
        """Of what it has handed out before: what is gone behind that is lost."""
        return self.strategy in (commands.OFFSET, commands.FIRST) and self.value < self.reached

    def to_store(self) -> int | None:
        """None: nothing new is done."""
        return None if self.done == self.stored else self.done
