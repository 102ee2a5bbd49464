"""Commands that follow a topic of a real server."""

from __future__ import annotations

import os
import re
import select
from typing import ClassVar, Final

from tests.models.commands import Running
from tests.models.door_readers import Reader, written
from tests.models.history import Broken, demand
from tests.models.served import WAIT_S

_RESET: Final = re.compile(rb"partition (\d+) was purged or made again")
_LOST: Final = re.compile(rb"offset (\d+)(?: to (\d+))? of partition (\d+) is gone")
_CUT: Final = b"no login: the connection was lost"  # the first one
_SAID: Final = (b"was deleted, offset", b"there is no topic", b"was not there when it was asked for", b"not found")


class FollowReader(Reader):
    """`consume --follow`, or `message tail`. What it tells stands between the messages, on the same pipe. `ends`: it
    has ended with a sentence, which tells that there is nothing to go on with."""

    words: ClassVar[tuple[str, ...]] = ("consume", "--follow", "--json")
    _command: Running | None = None
    _come = b""
    _troubles = 0  # when it was begun

    def take(self, partition: int) -> None:
        if self._command is None:
            self.made += 1
            self._troubles = self.site.ways.troubles
            self._command = self.site.commands.start(*self.words, self.stream, self.name)
        self._took(self._line())

    def _line(self) -> bytes:
        """Empty: the command has ended."""
        assert self._command is not None
        pipe = self._command.stdout
        while b"\n" not in self._come:
            if not select.select([pipe], [], [], WAIT_S)[0]:
                raise Broken(f"{self.words} writes nothing, and misses {self.account.missing()}")
            found = os.read(pipe, 1 << 20)
            if not found:
                return b""
            self._come += found
        line, _, self._come = self._come.partition(b"\n")
        return line

    def _took(self, line: bytes) -> None:
        if line.startswith(b"{"):
            self.hand(*written(line))
        elif found := _RESET.search(line):
            self.account.reset(int(found[1]), self.made)
        elif found := _LOST.search(line):
            self.account.lost(int(found[3]), int(found[1]), int(found[2] or found[1]) + 1, self.made)
        elif not line:
            self.anew()
        elif not (_CUT in line and self.site.ways.troubles > self._troubles):
            demand(any(words in line for words in _SAID), f"{self.words} says {line!r}")

    def anew(self) -> None:
        if self._command is not None:
            self._command.end(WAIT_S)
            self._command, self._come = None, b""


class TailReader(FollowReader):
    words = ("message", "tail", "--json", "-n", "1000000")
