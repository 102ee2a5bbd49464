"""Who may talk to a worker, and how that is proven: one mechanism for all that connects to a worker.

The supervisor makes one listening unix socket for each worker in a directory that nobody else may enter, and removes
its name at once. What is left are descriptors that only its own processes inherit: the listening one, and a *place* for
whoever may connect (`/proc/self/fd/N`). No path leads there from outside, none is ever too long, none is left behind.

Each process, in each of its incarnations, has a name and a key of its own for each of the others; only the supervisor
makes keys, and hands them over in the sealed inheritance and through the control channels. With the death of a process
all its keys end. A connection is taken from the same user (told by the kernel) with a name and the right key.

Here is what every process needs; sockets and keys are made by `shardd.server.introductions`.
"""

from __future__ import annotations

import hmac
import os
from typing import Final

import msgspec

WRONG_KEY: Final = "the key is wrong"
NO_LISTENER: Final = -1


def shard_name(shard: int) -> str:
    """How the worker of a shard is called here."""
    return f"shard-{shard}"


def door_name(door: str) -> str:
    """How a door is called here."""
    return f"door-{door}"


def door_kind(name: str) -> str:
    """Of a name of `door_name`: a door of several processes calls them http, http-2, http-3."""
    return name.removeprefix("door-").partition("-")[0]


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


def place_path(place_fd: int) -> str:
    """Where a process that has inherited a place connects to."""
    return f"/proc/self/fd/{place_fd}"
