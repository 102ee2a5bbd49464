"""What the supervisor makes so that its processes can trust each other (shardd/runtime/trust.py): listening sockets
without a name, and the keys."""

from __future__ import annotations

import contextlib
import hmac
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from shardd.runtime.trust import NO_LISTENER, PeerKey, TrustInheritance, door_name, place_path, shard_name

DIRECTORY_NAME: Final = ".sockets"  # in the data directory, for the moment between bind and unlink
_BACKLOG: Final = 4096
_FIRST_INCARNATION: Final = 1


class PrivateListener(msgspec.Struct, frozen=True):
    """A listening unix socket without a name. `place_fd`: for connecting, as `place_path` says."""

    listener: socket.socket
    place_fd: int

    def close(self) -> None:
        self.listener.close()
        os.close(self.place_fd)


def make_private_listeners(data_directory: Path, count: int) -> list[PrivateListener]:
    """In the data directory, whose lock must be held; where its file system has no sockets, in a temporary directory.
    Raises OSError."""
    try:
        with _directory_of_data(data_directory) as directory:
            return _make_listeners(directory, count)
    except OSError:
        with tempfile.TemporaryDirectory(prefix="shardd-sockets-") as temporary:
            return _make_listeners(Path(temporary), count)


class Introductions:
    """The supervisor's part: gives every process its keys. The master key never leaves it.

    A worker has one socket for the bus and, when there are doors, another one for them: a door has no place of a bus,
    and no process of the bus knows the name of a door."""

    def __init__(
        self,
        listeners: list[PrivateListener],
        doors: Sequence[str] = (),
        door_listeners: Sequence[PrivateListener] = (),
    ) -> None:
        self._listeners = dict(zip(map(shard_name, range(len(listeners))), listeners, strict=True))
        self._doors = [door_name(door) for door in doors]
        pairs = zip(self._listeners, door_listeners, strict=True) if doors else ()
        self._door_listeners = dict(pairs)
        self._master = os.urandom(32)
        self._incarnations = dict.fromkeys([*self._listeners, *self._doors], _FIRST_INCARNATION)

    def inheritance(self, shard: int) -> TrustInheritance:
        """Of the present incarnation of a worker, or of the next one when there is none."""
        name = shard_name(shard)
        others = [other for other in self._listeners if other != name]
        places = {other: self._listeners[other].place_fd for other in others}
        return self._inheritance(name, self._listeners[name].listener.fileno(), places, others)

    def inheritance_for_doors(self, shard: int) -> TrustInheritance | None:
        """The same for the socket of the doors; None when there is no door."""
        name = shard_name(shard)
        if not self._doors:
            return None
        return self._inheritance(name, self._door_listeners[name].listener.fileno(), {}, self._doors)

    def inheritance_of_door(self, door: str) -> TrustInheritance:
        places = {name: listener.place_fd for name, listener in self._door_listeners.items()}
        return self._inheritance(door_name(door), NO_LISTENER, places, list(places))

    def ended(self, shard: int) -> None:
        """The process is dead: its keys are worth nothing any more. The others must get the `key` of the next one."""
        self._incarnations[shard_name(shard)] += 1

    def door_ended(self, door: str) -> None:
        """The same for a door; the workers must get its `door_key`."""
        self._incarnations[door_name(door)] += 1

    def key(self, shard: int, reader: int) -> PeerKey:
        """What worker `reader` must know of the next incarnation of `shard`."""
        return self._key(shard_name(shard), shard_name(reader))

    def door_key(self, door: str, reader: int) -> PeerKey:
        """What worker `reader` must know of the next incarnation of a door."""
        return self._key(door_name(door), shard_name(reader))

    def key_for_door(self, shard: int, reader: str) -> PeerKey:
        """What the door `reader` must know of the next incarnation of `shard`."""
        return self._key(shard_name(shard), door_name(reader))

    def close(self) -> None:
        for each in (*self._listeners.values(), *self._door_listeners.values()):
            each.close()

    def _inheritance(self, name: str, listener_fd: int, places: dict[str, int], others: list[str]) -> TrustInheritance:
        keys = [self._key(other, name) for other in others]
        return TrustInheritance(name, self._incarnations[name], listener_fd, places, keys)

    def _key(self, name: str, reader: str) -> PeerKey:
        pair = sorted(f"{each}.{self._incarnations[each]}" for each in (name, reader))
        key = hmac.new(self._master, " ".join(pair).encode(), "sha256").hexdigest()
        return PeerKey(name, self._incarnations[name], key)


# ---- sockets without a name ----


@contextlib.contextmanager
def _directory_of_data(data_directory: Path) -> Iterator[Path]:
    """One that a killed server left goes first."""
    path = data_directory / DIRECTORY_NAME
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)
    path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def _make_listeners(directory: Path, count: int) -> list[PrivateListener]:
    """Through a descriptor of the directory: an address has room for 107 bytes only."""
    directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    made: list[PrivateListener] = []
    try:
        for number in range(count):
            made.append(_make_listener(directory_fd, str(number)))
    except OSError:
        for each in made:
            each.close()
        raise
    finally:
        os.close(directory_fd)
    return made


def _make_listener(directory_fd: int, name: str) -> PrivateListener:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        listener.bind(f"{place_path(directory_fd)}/{name}")
        os.chmod(name, 0o600, dir_fd=directory_fd)
        place_fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory_fd)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return PrivateListener(listener, place_fd)
