"""The disk below a simulated partition: real files for what processes see, a model for what the device has.

The partition writes through its seam; every change is noted until an fdatasync of that file, or of the directory for
names. `cut_power` makes the files anew: what was synced, and of the rest what the seed chooses: bytes sector by sector
in any order, names up to some moment, as journals keep them. A rename is one change of both directories. What Python
code does to the files itself is taken over by `adopt`, where each of its steps is synced (recovery), or by `see`.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections import Counter
from pathlib import Path

from tests.sim.disk import change, torn

KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE
ERRNO = {
    "open": (errno.EMFILE, errno.ENOSPC, errno.EIO, errno.EINTR),
    "duplicate": (errno.EMFILE,),
    "pwrite": (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EINTR),
    "pread": (errno.EIO, errno.EINTR),
    "ftruncate": (errno.EIO, errno.EINTR),
    "allocate": (errno.ENOSPC, errno.EOPNOTSUPP),
    "fdatasync": (errno.EIO, errno.ENOSPC, errno.EINTR),
    "rename": (errno.EIO, errno.EINTR),
    "unlink": (errno.EIO,),
    "mkdir": (errno.ENOSPC,),
}


class _File:
    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self.durable = bytearray(content)
        self.pending: list[tuple[int, bytes | None]] = []
        self.refusals: list[str] = []  # a part of a write that was taken, and what was refused since


class _Directory:
    def __init__(self) -> None:
        self.entries: dict[str, _Node] = {}
        self.durable: dict[str, _Node] = {}


_Node = _File | _Directory
_Change = list[tuple[_Directory, str, _Node | None]]  # at once: in this directory this name is that, or nothing


class LogDisk:
    """`Calls` of log_library.py. `dead`: nothing has an effect any more but closing."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.root = root
        self._rng = rng
        self._tree = _Directory()
        self._changes: list[_Change] = []
        self._nodes: dict[int, _Node] = {}
        self._keeping: set[_File] = set()  # they have parts of what was refused
        self.dead = False
        self.death_after = -1  # so many more calls
        self.errno_share = 0.0
        self.suspect = False  # a sync has failed: pages may be clean without being on the device
        self.injected: Counter[str] = Counter()
        self.calls = 0

    # ---- calls ----

    def _judge(self, call: str) -> int:
        """0 or -errno."""
        self.calls += 1
        if self.death_after > 0:
            self.death_after -= 1
            if self.death_after == 0:
                self.dead = True
                self.injected[f"death at {call}"] += 1
        if self.dead:
            return -errno.EIO
        if self.errno_share and self._rng.random() < self.errno_share:
            code = self._rng.choice(ERRNO[call])
            self.injected[f"errno at {call}"] += 1
            return -code
        return 0

    def open(self, path: bytes, flags: int) -> int:
        failure = self._judge("open")
        if failure:
            return failure
        try:
            descriptor = os.open(path, flags, 0o644)
        except OSError as error:
            return -(error.errno or errno.EIO)
        directory, name = self._place(path)
        node: _Node | None = directory.entries.get(name) if name else directory
        if node is None:
            node = _File()
            self._change([(directory, name, node)])
        elif flags & os.O_TRUNC and isinstance(node, _File):
            self._write(node, 0, None)
        self._nodes[descriptor] = node
        return descriptor

    def close(self, descriptor: int) -> int:
        del self._nodes[descriptor]
        os.close(descriptor)
        return 0

    def duplicate(self, descriptor: int) -> int:
        failure = self._judge("duplicate")
        if failure or descriptor not in self._nodes:  # it was given up for want of descriptors
            return failure or -errno.EBADF
        copy = os.dup(descriptor)
        self._nodes[copy] = self._nodes[descriptor]
        return copy

    def pwrite(self, descriptor: int, data: bytes, position: int) -> int:
        alive = not self.dead
        failure = self._judge("pwrite")
        if failure:
            if len(data) < 2 or not alive or (failure == -errno.EINTR) or self._rng.random() < 0.5:
                return self._refused(descriptor, "pwrite", failure)
            data = data[: self._rng.randrange(1, len(data))]  # a part was written
        os.pwrite(descriptor, data, position)
        self._write(self._file(descriptor), position, data)
        if not self.dead:
            self._refused(descriptor, "part" if failure else "pwrite", 0)
        return failure if self.dead else len(data)

    def pread(self, descriptor: int, length: int, position: int) -> bytes | int:
        failure = self._judge("pread")
        return failure or os.pread(descriptor, length, position)

    def ftruncate(self, descriptor: int, length: int) -> int:
        failure = self._judge("ftruncate")
        if not failure:
            os.ftruncate(descriptor, length)
            self._write(self._file(descriptor), length, None)
        return self._refused(descriptor, "ftruncate", failure)

    def allocate(self, descriptor: int, mode: int, start: int, length: int) -> int:
        failure = self._judge("allocate")
        if not failure and not mode & KEEP_SIZE and start + length > len(self._file(descriptor).content):
            os.ftruncate(descriptor, start + length)
            self._write(self._file(descriptor), start + length, None)
        return failure

    def fdatasync(self, descriptor: int) -> int:
        return self._sync(self._nodes[descriptor])

    def _sync(self, node: _Node) -> int:
        failure = self._judge("fdatasync")
        if failure:
            if failure != -errno.EINTR and not self.dead and isinstance(node, _File):
                self.suspect = True
                node.pending = [each for each in node.pending if self._rng.random() < 0.5]
        elif isinstance(node, _Directory):
            self._sync_names(node)
        else:
            self._sync_file(node)
        return failure

    def rename(self, source: bytes, target: bytes) -> int:
        failure = self._judge("rename")
        if failure:
            return failure
        try:
            os.rename(source, target)  # noqa: PTH104 - bytes
        except OSError as error:
            return -(error.errno or errno.EIO)
        old, old_name = self._place(source)
        new, new_name = self._place(target)
        self._change([(old, old_name, None), (new, new_name, old.entries[old_name])])
        return 0

    def unlink(self, path: bytes) -> int:
        failure = self._judge("unlink")
        if failure:
            return failure
        try:
            os.unlink(path)  # noqa: PTH108 - bytes
        except OSError as error:
            return -(error.errno or errno.EIO)
        directory, name = self._place(path)
        self._change([(directory, name, None)])
        return 0

    def mkdir(self, path: bytes) -> int:
        failure = self._judge("mkdir")
        if failure:
            return failure
        try:
            os.mkdir(path, 0o755)  # noqa: PTH102 - bytes
        except OSError as error:
            return -(error.errno or errno.EIO)
        directory, name = self._place(path)
        self._change([(directory, name, _Directory())])
        return 0

    def _refused(self, descriptor: int, call: str, failure: int) -> int:
        """The same failure; 0: it was taken."""
        file = self._file(descriptor)
        if failure == -errno.EINTR or self.dead:
            return failure
        if not failure:
            file.refusals.clear()
        if failure or call == "part":
            file.refusals.append(call)
        if file.refusals[:4] == ["part", "pwrite", "ftruncate", "pwrite"]:
            self._keeping.add(file)
        else:
            self._keeping.discard(file)
        return failure

    @property
    def keeps_what_was_refused(self) -> bool:
        """In one of its files: it took a part of a write, refused the others, to cut off that part, and to overwrite
        it."""
        return bool(self._keeping)

    # ---- the machine ----

    def restart(self) -> None:
        """A new process: the page cache stays."""
        for descriptor in list(self._nodes):
            self.close(descriptor)
        for file in self._keeping:
            file.refusals.clear()
        self._keeping.clear()
        self.dead = False
        self.death_after = -1

    def cut_power(self) -> None:
        """A new process on a machine that was off."""
        self.restart()
        self.suspect = False
        survives = self._rng.choice([0.0, 0.3, 0.7, 1.0])
        for each in self._changes[: self._rng.randint(0, len(self._changes))]:
            _apply(each, durable=True)
        self._changes.clear()
        shutil.rmtree(self.root)
        self._remake(self.root, self._tree, survives)

    def adopt(self) -> None:
        """What Python code has done to the files, each step synced."""
        self._adopt(self.root, self._tree)

    def see(self) -> None:
        """What Python code has done to the files, nothing of it synced."""
        self._see(self.root, self._tree)

    def forget(self, path: Path) -> None:
        """A file that could not be synced and will be written anew, maybe with the same bytes: `see` sees that, too."""
        directory, name = self._place(os.fsencode(path))
        node = directory.entries.get(name)
        if isinstance(node, _File):
            node.content = bytearray()

    def sync_of(self, path: Path) -> int:
        """As fdatasync, of a file or directory that Python code has open."""
        directory, name = self._place(os.fsencode(path))
        node = directory.entries.get(name) if name else directory
        return self._sync(node) if node is not None else self._judge("fdatasync")

    def _see(self, path: Path, directory: _Directory) -> None:
        found = {entry.name: entry for entry in sorted(os.scandir(path), key=lambda each: each.name)}
        for name in [each for each in directory.entries if each not in found]:
            self._change([(directory, name, None)])
        for name, entry in found.items():
            node = directory.entries.get(name)
            if node is None:
                node = _Directory() if entry.is_dir() else _File()
                self._change([(directory, name, node)])
            if isinstance(node, _Directory):
                self._see(path / name, node)
            elif node.content != (content := (path / name).read_bytes()):
                self._write(node, 0, None)
                self._write(node, 0, content)

    def _remake(self, path: Path, directory: _Directory, survives: float) -> None:
        path.mkdir()
        directory.entries = dict(directory.durable)
        for name, node in directory.entries.items():
            if isinstance(node, _Directory):
                self._remake(path / name, node, survives)
                continue
            for position, data in node.pending:
                torn(self._rng, node.durable, position, data, survives)
            node.pending.clear()
            node.content = bytearray(node.durable)
            (path / name).write_bytes(node.content)

    def _adopt(self, path: Path, directory: _Directory) -> None:
        found = {entry.name: entry for entry in sorted(os.scandir(path), key=lambda each: each.name)}
        if found.keys() != directory.entries.keys():
            self._sync_names(directory)  # it syncs the names that are there, then its own
        for name in list(directory.entries):
            if name not in found:
                _apply([(directory, name, None)], durable=False)
                _apply([(directory, name, None)], durable=True)
        for name, entry in found.items():
            node = directory.entries.get(name)
            is_new = node is None
            if entry.is_dir():
                node = node or _Directory()
                assert isinstance(node, _Directory)
                self._adopt(path / name, node)
            else:
                content = (path / name).read_bytes()
                node = node or _File(content)
                assert isinstance(node, _File)
                if node.content != content:
                    node.content, node.durable = bytearray(content), bytearray(content)
                    node.pending.clear()
            if is_new:
                _apply([(directory, name, node)], durable=False)
                _apply([(directory, name, node)], durable=True)

    # ---- inside ----

    def _place(self, path: bytes) -> tuple[_Directory, str]:
        """Directory and name; the name is empty for the root."""
        parts = Path(os.fsdecode(path)).relative_to(self.root).parts
        directory = self._tree
        for number, part in enumerate(parts):
            node = directory.entries.get(part)
            if not isinstance(node, _Directory):
                assert number + 1 == len(parts), path
                return directory, part
            if number + 1 == len(parts):
                return directory, part
            directory = node
        return directory, ""

    def _file(self, descriptor: int) -> _File:
        node = self._nodes[descriptor]
        assert isinstance(node, _File)
        return node

    @staticmethod
    def _write(file: _File, position: int, data: bytes | None) -> None:
        change(file.content, position, data)
        file.pending.append((position, data))

    @staticmethod
    def _sync_file(file: _File) -> None:
        for position, data in file.pending:
            change(file.durable, position, data)
        file.pending.clear()

    def _change(self, names: _Change) -> None:
        _apply(names, durable=False)
        self._changes.append(names)

    def _sync_names(self, directory: _Directory) -> None:
        """With the earlier changes that these rest on: of the same name, or of what is renamed."""
        touched: set[object] = set()
        due, kept = [], []
        for each in reversed(self._changes):
            about = {(id(concerned), name) for concerned, name, _ in each}
            about_nodes = {id(node) for _, _, node in each if node is not None}
            if any(concerned is directory for concerned, _, _ in each) or (about | about_nodes) & touched:
                touched |= about | about_nodes
                due.append(each)
            else:
                kept.append(each)
        for each in reversed(due):
            _apply(each, durable=True)
        self._changes = kept[::-1]


def _apply(names: _Change, *, durable: bool) -> None:
    for directory, name, node in names:
        entries = directory.durable if durable else directory.entries
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node
