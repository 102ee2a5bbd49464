"""Clients that choose their own id (0.9) and come with it on another connection: of two connections with one id only
the later one goes on (docs/protocol/iggy-0.9.md#session). Lives on the loop thread."""

from __future__ import annotations

import time
from typing import Final, Protocol

import msgspec

from shardd.protocol.errors import ShardError, Status
from shardd.runtime.bus import Bus, Senders
from shardd.service.sessions import Session, SessionTable

METHOD: Final = "iggy09.registered"
_FENCED: Final = 2**64 - 1  # every session that a request can name is an earlier one


class RegistrationEngine(Protocol):
    """The part of the engine that knows the numbers of sessions and requests."""

    def begin_session(self, connection: int, session: int, request: int, /) -> int: ...


class FencedError(Exception):
    """A later connection has come with the same id meanwhile."""


class _Registered(msgspec.Struct, array_like=True, frozen=True):
    """The connection `key` speaks for the client from now on."""

    chosen_id: bytes
    number: int
    key: str
    user_id: int


class _Held(msgspec.Struct, array_like=True, frozen=True):
    """What a shard knew of the client. `request`: the number of its last request."""

    request: int = 0
    is_other_user: bool = False


_encoder = msgspec.msgpack.Encoder()
_registered = msgspec.msgpack.Decoder(_Registered)
_held = msgspec.msgpack.Decoder(_Held)


class Registrations:
    """Which connection speaks for a client; asks the other shards over the bus."""

    def __init__(self, engine: RegistrationEngine, bus: Bus, sessions: SessionTable) -> None:
        self._engine = engine
        self._bus = bus
        self._sessions = sessions
        self._last_number = 0
        bus.serve(METHOD, Senders.ANY_SHARD, self._serve)

    async def enter(self, session: Session, chosen_id: bytes, user_id: int) -> int:
        """Begins a session on a connection that has logged in; its number. Numbers of requests go on where an earlier
        connection of the client stopped, which has no session from now on.

        FencedError. `ShardError` 100: another user has a connection with this id, and keeps it.
        """
        number = self._next_number()
        registered = _Registered(chosen_id, number, session.key, user_id)
        here = self._fence(registered)
        if here.is_other_user:
            raise ShardError(Status.CLIENT_NOT_FOUND, "the id is that of another user")
        self._sessions.choose(session, chosen_id, number)
        held = [here, *map(_held.decode, await self._bus.gather(METHOD, _encoder.encode(registered)))]
        if session.number != number:
            raise FencedError
        if any(each.is_other_user for each in held):
            self._sessions.choose(session, b"", 0)
            raise ShardError(Status.CLIENT_NOT_FOUND, "the id is that of another user")
        self._engine.begin_session(session.connection, number, max(each.request for each in held))
        return number

    def leave(self, session: Session) -> None:
        """The session of a connection has ended with a logout."""
        self._sessions.choose(session, b"", 0)

    async def _serve(self, sender: int, payload: bytes) -> bytes:
        return _encoder.encode(self._fence(_registered.decode(payload)))

    def _fence(self, registered: _Registered) -> _Held:
        """Ends the earlier session of the client on this shard."""
        holder = self._sessions.by_chosen(registered.chosen_id)
        if holder is None or holder.key == registered.key or holder.number > registered.number:
            return _Held()
        if holder.user_id not in (None, registered.user_id):
            return _Held(is_other_user=True)
        self._sessions.choose(holder, b"", 0)
        return _Held(self._engine.begin_session(holder.connection, _FENCED, 0))

    def _next_number(self) -> int:
        """Grows with every login, also on another shard and after a start."""
        self._last_number = max(self._last_number + 1, time.time_ns() // 1000)
        return self._last_number
