"""The pace of work in the background: the same for everything that reads, copies or removes much and slowly."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class StoppedError(Exception):
    """The work ends between two of its steps, because it was told to."""


class Throttle:
    """At most so many units (bytes, names) a second, 0: no limit; what was not used is not saved up.

    The thread that works calls `spend` between two steps; there it rests, waits while it is held, and ends when it is
    told to. All other calls come from any thread and take effect at once, in the middle of a rest too.
    """

    def __init__(
        self,
        per_second: int = 0,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float | None], object] | None = None,
    ) -> None:
        """`clock` and `wait` (for so many seconds; None: until something changes) are those of a test."""
        self._rate = per_second
        self._due_s = 0.0
        self._clock = clock
        self._changed = threading.Condition()
        self._wait = wait or self._changed.wait
        self._held = self._stopped = False
        self.steps = 0
        self.units = 0
        self.rested_s = 0.0

    @property
    def held(self) -> bool:
        return self._held

    def spend(self, units: int) -> None:
        """Another step, of so many units: first rests when the last ones were too many. StoppedError."""
        with self._changed:
            while not self._stopped and (self._held or (self._rate and self._due_s > self._clock())):
                began_s = self._clock()
                self._wait(None if self._held else self._due_s - began_s)
                self.rested_s += self._clock() - began_s
            if self._stopped:
                raise StoppedError
            if self._rate:
                self._due_s = max(self._due_s, self._clock()) + units / self._rate
            self.steps += 1
            self.units += units

    def count(self) -> None:
        """Another step of a loop that shares its time otherwise: no rest. StoppedError."""
        if self._stopped:
            raise StoppedError
        self.steps += 1

    def hold(self) -> None:
        """The next `spend` waits for `go_on`."""
        with self._changed:
            self._held = True

    def go_on(self) -> None:
        with self._changed:
            self._held = False
            self._changed.notify_all()

    def lift(self) -> None:
        """No limit from now on."""
        self.allow(0)

    def allow(self, per_second: int) -> None:
        """So many units a second from now on, 0: no limit; a rest that has begun ends as it was."""
        if per_second == self._rate:
            return
        with self._changed:
            self._rate = per_second
            self._changed.notify_all()

    def stop(self) -> None:
        """The next `spend`, or the one that rests now, raises StoppedError."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
