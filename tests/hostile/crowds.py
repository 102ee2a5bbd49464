"""Crowds of one address: many connections of one process that are silent, drip, never read or pipeline, with and
without a login. Each is a `bad.Bad`: it sets up, says so, goes on until it is told to stop. Who is closed comes again.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.synchronize import Event
from typing import Final

from tests.hostile import bad, crowd
from tests.support import wire

CROWD: Final = 1_500
LOGIN_WITH_TOKEN: Final = 44
_SET_UP_S: Final = 3.0  # at most, for the first bytes of all of them
_ROUND_S: Final = 0.8
_RECEIVE_BUFFER_BYTES: Final = 4096
_RECONNECTS_PER_ROUND: Final = 200
_PIPELINED_BYTES: Final = 1 << 16
_PUSHES_AT_ONCE: Final = 8  # then it rests: on a small machine its own CPU time would be taken for the server's doing
_REST_S: Final = 0.001
_TEN_MIB: Final = 10 << 20


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What each connection sends at first (behind its login, if any), and what it adds in every round."""

    first: bytes = b""
    more: bytes = b""


class _Member:
    """One connection of the crowd; sends what the server takes and reads nothing."""

    def __init__(self, target: bad.Target, login: bytes, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        self.socket.settimeout(_SET_UP_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.connect(wire.host_and_port(target.address))
        self.socket.setblocking(False)
        self._left = login + behaviour.first
        self.at_work = True

    def push(self) -> None:
        """At most one piece; False in `at_work` when nothing is left or nothing is taken."""
        try:
            self._left = self._left[self.socket.send(self._left[:_PIPELINED_BYTES]) :] if self._left else b""
            self.at_work = bool(self._left)
        except BlockingIOError:
            self.at_work = False

    def go_on(self) -> None:
        """The next round."""
        if len(self._left) < len(self._behaviour.more):
            self._left += self._behaviour.more
        self.at_work = True


def _new(target: bad.Target, login: bytes, behaviour: Behaviour) -> _Member | None:
    try:
        return _Member(target, login, behaviour)
    except OSError:
        return None


def _push_all(members: list[_Member | None], stop: Event, limit_s: float) -> None:
    """Everybody as far as the server takes it. Whoever is closed leaves an empty place."""
    deadline = time.monotonic() + limit_s
    pushes = 0
    while not stop.is_set() and time.monotonic() < deadline:
        busy = False
        for number, member in enumerate(members):
            if member is None or not member.at_work:
                continue
            try:
                member.push()
                busy = busy or member.at_work
                pushes += 1
                if pushes % _PUSHES_AT_ONCE == 0:
                    time.sleep(_REST_S)
            except OSError:
                member.socket.close()
                members[number] = None
        if not busy:
            return


def hold(
    target: bad.Target,
    ready: Event,
    stop: Event,
    *,
    behaviour: Callable[[bad.Target], Behaviour],
    as_user: str,
    count: int,
) -> None:
    """`as_user`: "" without a login, else the field of the target that has its token."""
    crowd.allow_descriptors(count + 200)
    login = wire.frame(LOGIN_WITH_TOKEN, wire.str8(getattr(target, as_user))) if as_user else b""
    make = partial(_new, target, login, behaviour(target))
    members: list[_Member | None] = [make() for _ in range(count)]
    _push_all(members, stop, _SET_UP_S)
    ready.set()
    while not stop.wait(_ROUND_S):
        missing = [number for number, member in enumerate(members) if member is None]
        for count, number in enumerate(missing[:_RECONNECTS_PER_ROUND]):
            members[number] = make()
            if count % _PUSHES_AT_ONCE == 0:
                time.sleep(_REST_S)
        for member in members:
            if member is not None:
                member.go_on()
        _push_all(members, stop, _ROUND_S)
    for member in members:
        if member is not None:
            with contextlib.suppress(OSError):
                member.socket.close()


# ---- behaviours ----


def _silent(target: bad.Target) -> Behaviour:
    return Behaviour()


def _pings(target: bad.Target) -> Behaviour:
    pings = wire.frame(wire.PING) * (_PIPELINED_BYTES // 8)
    return Behaviour(pings, pings)


def _logins(target: bad.Target) -> Behaviour:
    """Of the user without rights, by its password, one behind the other."""
    return Behaviour(wire.frame(wire.LOGIN_USER, wire.str8("outsider") + wire.str8("outsider") + bytes(8)) * 200)


def _half_a_login(target: bad.Target) -> Behaviour:
    return Behaviour(wire.frame(wire.LOGIN_USER, bytes(1 << 16))[:62_000], b"\0")


def _half_a_small_login(target: bad.Target) -> Behaviour:
    return Behaviour(wire.frame(wire.LOGIN_USER, bytes(4_000))[:3_900], b"\0")


def _half_a_batch(target: bad.Target) -> Behaviour:
    return Behaviour(wire.frame(wire.SEND_MESSAGES, bytes(100_000))[:80_000], b"\0")


def _polls(target: bad.Target) -> Behaviour:
    request = wire.consumer() + wire.identifier("net") + wire.identifier("big") + wire.optional_partition(0)
    return Behaviour(wire.frame(wire.POLL_MESSAGES, request + struct.pack("<BQIB", wire.POLL_OFFSET, 0, 30, 0)) * 100)


def _long_contexts(target: bad.Target) -> Behaviour:
    """Logins with 10 MiB of context each, again and again."""
    texts = wire.str8("outsider") + wire.str8("outsider") + wire.str32("")
    login = wire.frame(wire.LOGIN_USER, texts + wire.str32("x" * (_TEN_MIB - len(texts) - 4)))
    return Behaviour(login, login)


def _crowd(behaviour: Callable[[bad.Target], Behaviour], as_user: str, count: int = CROWD) -> bad.Bad:
    return partial(hold, behaviour=behaviour, as_user=as_user, count=count)


CROWDS: Final = {
    "silent": _crowd(_silent, ""),
    "silent, login": _crowd(_silent, "outsider"),
    "drip": _crowd(_half_a_login, ""),
    "drip, small": _crowd(_half_a_small_login, ""),
    "drip, login": _crowd(_half_a_batch, "outsider"),
    "unread": _crowd(_pings, ""),
    "unread, login": _crowd(_polls, "token"),
    "pipelined, login": _crowd(_logins, "outsider", 800),
    "10 MiB of context": _crowd(_long_contexts, "outsider", 8),
}
"""What bad crowds there are, by the name in the table of `make test-net-engine`."""
