"""A device in memory that keeps apart what was synced, behind the seam of the metadata (`shardd.runtime.disk`).

What a process reads is the page cache: every write at once. The device has what an fdatasync brought there; names come
with `sync_directory`. `cut_power` leaves of everything else what the seed chooses: single sectors of single writes, in
any order, and names that changed or did not. A failed fdatasync may lose what it was to bring and never try again.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.sim.loop import Process, ProcessKilled
from tests.sim.threads import park

SECTOR_BYTES = 64  # smaller than a real one: a record has several
QUICK = ("close", "size", "pread")  # nothing comes between these and the call before
DEATHS_AT_SYNC = 20  # the moment that matters most: written and not synced
ERRNO = {
    "open": (errno.EMFILE, errno.ENOSPC, errno.EIO),
    "pwrite": (errno.ENOSPC, errno.EIO, errno.EDQUOT),
    "ftruncate": (errno.EIO,),
    "fdatasync": (errno.EIO, errno.ENOSPC),
    "rename": (errno.EIO, errno.ENOSPC),
    "unlink": (errno.EIO,),
    "sync_directory": (errno.EIO,),
    "pread": (errno.EIO,),
}


class _File:
    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes | None]] = []  # (position, data), or (size, None) for a new size


class Device:
    """The files of one machine; `names` as processes see them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.names: dict[str, _File] = {}
        self._durable_names: dict[str, _File] = {}
        self._pending_names: list[tuple[str | None, str | None, _File]] = []  # (name that goes, that comes, file)
        self.calls: Counter[str] = Counter()
        self.injected: Counter[str] = Counter()

    def rename_pending(self, gone: str | None, come: str | None, file: _File) -> None:
        self._pending_names.append((gone, come, file))

    def sync_file(self, file: _File) -> None:
        for position, data in file.pending:
            change(file.durable, position, data)
        file.pending.clear()

    def lose_some(self, file: _File) -> None:
        """A sync has failed: some pages count as clean now and will never be written."""
        file.pending = [each for each in file.pending if self.rng.random() < 0.5]

    def sync_names(self) -> None:
        self._durable_names = dict(self.names)
        self._pending_names.clear()

    def cut_power(self) -> None:
        """Everything that is open is gone; what is on the device is what the next process reads."""
        survives = self.rng.choice([0.0, 0.3, 0.7, 1.0])
        names = dict(self._durable_names)
        for gone, come, file in self._pending_names:
            if self.rng.random() < survives:
                if gone is not None and names.get(gone) is file:
                    del names[gone]
                if come is not None:
                    names[come] = file
        files = {id(file): file for file in itertools.chain(names.values(), self.names.values())}
        for file in files.values():
            for position, data in file.pending:
                torn(self.rng, file.durable, position, data, survives)
            file.pending.clear()
            file.content = bytearray(file.durable)
        self.names = names
        self.sync_names()


def torn(rng: random.Random, content: bytearray, position: int, data: bytes | None, survives: float) -> None:
    """Does to `content` what a power cut leaves of one change: a new size or not, of a write any of its sectors."""
    if data is None:
        if rng.random() < survives:
            change(content, position, None)
        return
    for start in range(0, len(data), SECTOR_BYTES):
        if rng.random() < survives:
            change(content, position + start, data[start : start + SECTOR_BYTES])


def change(content: bytearray, position: int, data: bytes | None) -> None:
    """A write at `position`, or (None) that size."""
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    if data is None:
        del content[position:]
    else:
        content[position : position + len(data)] = data


class Faults:
    """What goes wrong at the disk calls of one process: an errno or a short write, or its death there."""

    def __init__(self, errno_share: float = 0.0, death_share: float = 0.0) -> None:
        self.errno_share = errno_share
        self.death_share = death_share


class SimDisk:
    """One process's way to the device (`shardd.runtime.disk.Disk`). `die` ends the process."""

    def __init__(self, device: Device, process: Process, faults: Faults, die: Callable[[], None]) -> None:
        self._device = device
        self._process = process
        self._faults = faults
        self._die = die
        self._descriptors: dict[int, _File] = {}
        self._next = itertools.count(3)

    def _enter(self, call: str) -> None:
        if call not in QUICK:
            park(self._process)
        if not self._process.alive:
            raise ProcessKilled
        device, rng = self._device, self._device.rng
        device.calls[call] += 1
        death_share = self._faults.death_share * (DEATHS_AT_SYNC if call == "fdatasync" else 1)
        if death_share and rng.random() < death_share:
            device.injected[f"death at {call}"] += 1
            self._die()
            raise ProcessKilled
        if call in ERRNO and self._faults.errno_share and rng.random() < self._faults.errno_share:
            device.injected[f"errno at {call}"] += 1
            code = rng.choice(ERRNO[call])
            raise OSError(code, os.strerror(code))

    def open(self, path: Path, flags: int) -> int:
        self._enter("open")
        name, device = str(path), self._device
        file = device.names.get(name)
        if file is None and not flags & os.O_CREAT:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        if file is not None and flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        if file is None:
            file = device.names[name] = _File()
            device.rename_pending(None, name, file)
        elif flags & os.O_TRUNC:
            self._change(file, 0, None)
        descriptor = next(self._next)
        self._descriptors[descriptor] = file
        return descriptor

    def close(self, descriptor: int) -> None:
        self._enter("close")
        del self._descriptors[descriptor]

    def size(self, descriptor: int) -> int:
        self._enter("size")
        return len(self._descriptors[descriptor].content)

    def pread(self, descriptor: int, length: int, position: int) -> bytes:
        self._enter("pread")
        return bytes(self._descriptors[descriptor].content[position : position + length])

    def pwrite(self, descriptor: int, data: bytes | memoryview, position: int) -> int:
        file, rng = self._descriptors[descriptor], self._device.rng
        try:
            self._enter("pwrite")
        except OSError:
            if rng.random() < 0.5 or len(data) < 2:
                raise
            data = data[: rng.randrange(1, len(data))]  # a short write; the rest may go well
        except ProcessKilled:
            if self._process.alive or rng.random() < 0.5:
                raise
            self._change(file, position, bytes(data[: rng.randrange(len(data) + 1)]))
            raise
        self._change(file, position, bytes(data))
        return len(data)

    def ftruncate(self, descriptor: int, size: int) -> None:
        self._enter("ftruncate")
        self._change(self._descriptors[descriptor], size, None)

    def fdatasync(self, descriptor: int) -> None:
        file = self._descriptors[descriptor]
        try:
            self._enter("fdatasync")
        except OSError:
            self._device.lose_some(file)
            raise
        self._device.sync_file(file)

    def rename(self, source: Path, target: Path) -> None:
        self._enter("rename")
        file = self._device.names.pop(str(source))
        self._device.names[str(target)] = file
        self._device.rename_pending(str(source), str(target), file)

    def unlink(self, path: Path) -> None:
        self._enter("unlink")
        file = self._device.names.pop(str(path), None)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self._device.rename_pending(str(path), None, file)

    def sync_directory(self, path: Path) -> None:
        self._enter("sync_directory")
        self._device.sync_names()

    @staticmethod
    def _change(file: _File, position: int, data: bytes | None) -> None:
        file.pending.append((position, data))
        change(file.content, position, data)
