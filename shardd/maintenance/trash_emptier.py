"""The second step of a deletion: what was renamed into the trash (log/trash.py) is unlinked, later and slowly.

A large file is cut off from its end, a step at a time, before it is unlinked: freeing a GiB at once would hold up the
journal of the file system, and with it every sync. The pace grows with what is left and as the free room falls
(docs/adr/0037). When the disk is short of room nothing of this holds: then sends wait for every byte. It is cut only
when nobody else has it open (a poll that is being answered may still read it through its descriptor, a backup may copy
it) and when it has no other name.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from shardd.log import layout
from shardd.maintenance.job import Job, JobThread, Turn
from shardd.maintenance.scheduler import JobScheduler
from shardd.maintenance.trash_content import TrashContent
from shardd.runtime.throttle import Throttle

_log = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 15.0
IN_USE_INTERVAL_S: Final = 1.0  # while somebody has a large file open that was deleted
STEPS_PER_S: Final = 200  # unlinks, rmdirs and cuts; as much again for each NAMES_STEP names that are left
NAMES_STEP: Final = 2_000
NAMES_MAX: Final = 50_000  # `system.trash.names_max`
CUT_BYTES: Final = 64 * 1024 * 1024  # freed by one step at most
ROOM_INTERVAL_S: Final = 0.25  # between two looks at the free room of the disk
_RESERVE_BYTES: Final = 64 * 1024 * 1024  # of the disk where the settings keep none
_THREAD: Final = JobThread("trash")
_RESERVE_INODES: Final = 4096  # where their number is fixed (native/src/log/room.h)
_ROOM_PART: Final = 16  # of the disk is kept at most (native/src/log/room.h)
_ROOM_MUCH: Final = 8  # times what is kept: with less free the pace grows, with _ROOM_SHORT there is none
_ROOM_SHORT: Final = 2


class TrashStep(msgspec.Struct, frozen=True):
    """One step of emptying: a name that was removed, a file that was made shorter (`removed` False, no error), or the
    error that keeps a name from going (EBUSY: somebody has a large file open). That name stays for the next run."""

    path: Path
    removed: bool = False
    freed_bytes: int = 0
    error: OSError | None = None


def reserves_free(directory: Path, reserve_bytes: int) -> float:
    """How many times what is kept of the disk is free; what is in the trash is not. Sends are refused for want of room
    below 1, and until there is half as much more (native/src/log/room.c)."""
    try:
        disk = os.statvfs(directory)
    except OSError:
        return float("inf")
    low_bytes = min(reserve_bytes or _RESERVE_BYTES, disk.f_blocks * disk.f_frsize // _ROOM_PART)
    reserves = disk.f_bavail * disk.f_frsize / max(1, low_bytes)
    if disk.f_files == 0:  # no fixed number of inodes
        return reserves
    return min(reserves, disk.f_favail / max(1, min(_RESERVE_INODES, disk.f_files // _ROOM_PART)))


def pace(steps_per_s: int, names: int, names_max: int, reserves: float) -> int:
    """Steps a second; 0: no limit. `names` that are left, above `names_max` somebody may wait for them; `reserves`: as
    `reserves_free`."""
    if names > names_max or reserves < _ROOM_SHORT:
        return 0
    grown = steps_per_s * (1 + names / NAMES_STEP)
    return max(1, round(grown * max(1.0, _ROOM_MUCH / reserves)))


def empty_trash(trash: Path, hurry: Callable[[], bool] = lambda: False) -> Iterator[TrashStep]:
    """Removes the content of the trash, depth first. In a `hurry` files that somebody has open go, too: their room is
    free when the last reader is done."""
    try:
        with os.scandir(trash) as entries:
            children = [(Path(entry.path), entry.is_dir(follow_symlinks=False)) for entry in entries]
    except FileNotFoundError:
        return
    except OSError as error:
        yield TrashStep(trash, error=error)
        return
    for path, is_directory in children:
        if is_directory:
            yield from empty_trash(path, hurry)
        try:
            if is_directory:
                path.rmdir()
                yield TrashStep(path, removed=True)
            else:
                yield from _remove_file(path, hurry)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield TrashStep(path, error=error)


def _remove_file(path: Path, hurry: Callable[[], bool]) -> Iterator[TrashStep]:
    """Raises what `os` raises."""
    status = path.lstat()
    size = status.st_size if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 else 0
    if size > CUT_BYTES:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            while size > CUT_BYTES and _may_be_cut(descriptor, hurry):
                size -= CUT_BYTES
                os.ftruncate(descriptor, size)
                yield TrashStep(path, freed_bytes=CUT_BYTES)
        finally:
            os.close(descriptor)
    path.unlink()
    yield TrashStep(path, removed=True, freed_bytes=size)


def _may_be_cut(descriptor: int, hurry: Callable[[], bool]) -> bool:
    try:
        return _nobody_else_has(descriptor)
    except OSError as error:
        if error.errno == errno.EBUSY and hurry():
            return False
        raise


def _nobody_else_has(descriptor: int) -> bool:
    """The kernel gives a write lease on a file only when it is open once. False where it gives none at all (the file is
    then unlinked as it is); OSError EBUSY when somebody else has it open."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            raise OSError(errno.EBUSY, "somebody has it open") from error
        return False
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return True


class TrashEmptier:
    """Jobs `trash` and `free_space` of shard 0: empty the trash at a bounded rate, and see to it that it does not wait
    when the disk is short of room. Owns no partition."""

    def __init__(
        self,
        trash: Path,
        jobs: JobScheduler,
        *,
        steps_per_s: int = STEPS_PER_S,
        names_max: int = NAMES_MAX,
        reserve_bytes: int = 0,
    ) -> None:
        """`reserve_bytes` of the disk are kept free of messages: near that everything goes at once and without a rate,
        and so does what is above `names_max`. The directory is made now: on a full disk it could not be made when it is
        needed. `wake`: something was moved to the trash. What an earlier process has left goes first."""
        self._trash = trash
        self._steps_per_s = steps_per_s
        self._names_max = names_max
        self._reserve_bytes = reserve_bytes
        self._report_again_s = 0.0
        self._figures = {"names_removed": 0, "bytes_freed": 0}
        self._files_in_use = 0
        self.content = TrashContent(trash)
        with contextlib.suppress(OSError):
            trash.mkdir(parents=True, exist_ok=True)
        job = Job(
            "trash",
            self._work,
            LOOK_INTERVAL_S,
            thread=_THREAD,
            per_second=steps_per_s,
            gives_way=self._has_time,
            left=lambda: self.content.names,
        )
        self.wake = jobs.add(job)
        jobs.add(Job("free_space", self._watch, ROOM_INTERVAL_S, thread=_THREAD))

    def gauges(self) -> dict[str, int]:
        """What is in the trash by the last look and was not removed since: directories and files that were moved there,
        all names in them that can be removed, their bytes on the disk, and large files that somebody has open. Any
        thread."""
        return {
            "entries_left": len(self.content),
            "names_left": self.content.names,
            "bytes_left": self.content.size_bytes,
            "files_in_use": self._files_in_use,
        }

    def counters(self) -> dict[str, int]:
        """What this process has removed: names, and the bytes of files. Any thread."""
        return dict(self._figures)

    async def _work(self, turn: Turn) -> float | None:
        errors = await turn.beside(self._empty, turn.throttle)
        now_s = asyncio.get_running_loop().time()
        if errors and now_s >= self._report_again_s:
            self._report_again_s = now_s + LOOK_INTERVAL_S
            _log.warning("%d names in %s cannot be removed, the first: %s", len(errors), self._trash, errors[0])
        return IN_USE_INTERVAL_S if self._files_in_use else None

    async def _watch(self, turn: Turn) -> None:
        """Segments come without a word: any shard moves its own."""
        if await turn.beside(self._waits_for_room):
            self.wake()

    def _has_time(self) -> bool:
        """Whether it may wait for a better moment: there is room, and nobody waits for the trash, or soon will."""
        return self.content.names <= self._names_max // 2 and self._reserves() >= _ROOM_MUCH

    def _waits_for_room(self) -> bool:
        if not self._hurry():
            return False
        self.content.look()
        return len(self.content) > 0

    def _empty(self, throttle: Throttle) -> list[OSError]:
        """On the helper thread; what could not be removed, but for large files that are still being read."""
        errors: list[OSError] = []
        busy = freed_bytes = 0
        self.content.try_again()
        self.content.look()
        steps = empty_trash(self._trash, self._hurry)
        while True:
            rate = pace(self._steps_per_s, self.content.names, self._names_max, self._reserves())
            throttle.allow(rate)
            throttle.spend(1 if rate else 0)
            step = next(steps, None)
            if step is None:
                break
            if step.error is not None:
                self.content.is_stuck(step.path)
                if step.error.errno == errno.EBUSY:
                    busy += 1
                elif step.error.errno != errno.ENOTEMPTY:  # what stays in it is told itself
                    errors.append(step.error)
                continue
            self.content.removed(step.path, step.freed_bytes, name=step.removed)
            self._figures["names_removed"] += step.removed
            self._figures["bytes_freed"] += step.freed_bytes
            freed_bytes += step.freed_bytes
        if freed_bytes and self._hurry():
            with contextlib.suppress(OSError):
                layout.sync_directory(self._trash)  # some file systems give room back with their next commit
        self._files_in_use = busy
        return errors

    def _reserves(self) -> float:
        return reserves_free(self._trash, self._reserve_bytes)

    def _hurry(self) -> bool:
        return self._reserves() < _ROOM_SHORT
