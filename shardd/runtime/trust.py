"""Who may talk to a worker, and how that is proven: one mechanism for all that connects to a worker.

The supervisor makes one listening unix socket for each worker in a directory that nobody else may enter, and removes
its name at once. What is left are descriptors that only its own processes inherit: the listening one, and a *place* for
whoever may connect (`/proc/self/fd/N`). No path leads there from outside, none is ever too long, none is left behind.

Each process, in each of its incarnations, has a name and a key of its own for each of the others; only the supervisor
makes keys, and hands them over in the sealed inheritance and through the control channels. With the death of a process
all its keys end. A connection is taken from the same user (told by the kernel) with a name and the right key.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

DIRECTORY_NAME: Final = ".sockets"  # in the data directory, for the moment between bind and unlink
WRONG_KEY: Final = "the key is wrong"
NO_LISTENER: Final = -1
_BACKLOG: Final = 4096
_FIRST_INCARNATION: Final = 1


def shard_name(shard: int) -> str:
    """How the worker of a shard is called here."""
    return f"shard-{shard}"


def door_name(door: str) -> str:
    """How a door is called here."""
    return f"door-{door}"


class PeerKey(msgspec.Struct, frozen=True):
    """The key between the process that gets this and one incarnation of the process `name`."""

    name: str
    incarnation: int
    key: str

    def __repr__(self) -> str:
        return f"PeerKey({self.name}.{self.incarnation}, ***)"


class TrustInheritance(msgspec.Struct, frozen=True):
    """What one process gets at its start. `listener_fd`: where others connect to it, or NO_LISTENER. `places`:
    descriptors of the sockets of the others, by name."""

    name: str
    incarnation: int
    listener_fd: int
    places: dict[str, int]
    keys: list[PeerKey]

    def descriptors(self) -> list[int]:
        return [fd for fd in (self.listener_fd, *self.places.values()) if fd >= 0]


class Trust:
    """What one process knows of the others. Loop thread only."""

    def __init__(self, inheritance: TrustInheritance) -> None:
        self._own_id = f"{inheritance.name}.{inheritance.incarnation}"
        self._uid = os.geteuid()
        self._keys: dict[str, PeerKey] = {}
        self._names: dict[str, str] = {}  # by the id of a present incarnation
        for key in inheritance.keys:
            self.renew(key)

    def renew(self, key: PeerKey) -> None:
        """The next incarnation of a process: its earlier keys, and what was let in with them, are refused from now."""
        known = self._keys.get(key.name)
        if known is not None:
            self._names.pop(f"{known.name}.{known.incarnation}", None)
        self._keys[key.name] = key
        self._names[f"{key.name}.{key.incarnation}"] = key.name

    def credentials(self, name: str) -> tuple[str, str]:
        """Own id and key, as the process `name` wants to see them. KeyError."""
        return self._own_id, self._keys[name].key

    def refusal(self, uid: int, id_: str, key: str) -> str | None:
        """Why a connection is refused; None: it may come in, as `id_`. `uid`: as the kernel tells it."""
        if uid != self._uid:
            return f"user {uid} is another user"
        name = self._names.get(id_)
        if name is None:
            return "no such process"
        if not hmac.compare_digest(self._keys[name].key.encode(), key.encode()):
            return WRONG_KEY
        return None

    def sender(self, id_: str) -> str | None:
        """The name of the process behind a connection that was let in as `id_`; None when that one is dead."""
        return self._names.get(id_)


@dataclass(frozen=True, slots=True)
class PrivateListener:
    """A listening unix socket without a name. `place_fd`: for connecting, as `place_path` says."""

    listener: socket.socket
    place_fd: int

    def close(self) -> None:
        self.listener.close()
        os.close(self.place_fd)


def place_path(place_fd: int) -> str:
    """Where a process that has inherited a place connects to."""
    return f"/proc/self/fd/{place_fd}"


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
        self._master = secrets.token_bytes(32)
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
        key = hmac.new(self._master, " ".join(pair).encode(), hashlib.sha256).hexdigest()
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
