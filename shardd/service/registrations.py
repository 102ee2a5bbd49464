"""Clients that choose their own id (0.9) and come with it on another connection: of two connections with one id only
the later one goes on, with the numbers and the last answer of the other (docs/protocol/iggy-0.9.md#session). Lives on
the loop thread."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from shardd.protocol.errors import ShardError, Status
from shardd.runtime.bus import Bus, Senders
from shardd.service.kept_sessions import KeptSessions, User
from shardd.service.sessions import Session, SessionTable

METHOD: Final = "iggy09.registered"
_FENCED: Final = 2**64 - 1  # every session that a request can name is an earlier one


class RegistrationEngine(Protocol):
    """The part of the engine that knows the numbers of sessions and requests."""

    def begin_session(self, connection: int, session: int, memory: bytes, /) -> None: ...
    def session_memory(self, connection: int, /) -> bytes: ...
    def session_number(self) -> int: ...


class FencedError(Exception):
    """A later connection has come with the same id meanwhile."""


class _Registered(msgspec.Struct, array_like=True, frozen=True):
    """The connection `key` speaks for the client from now on."""

    chosen_id: bytes
    number: int
    key: str
    user: User


class _Held(msgspec.Struct, array_like=True, frozen=True):
    """What a shard knew of the client: what the session with that number remembers."""

    number: int = 0
    memory: bytes = b""
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
        self._kept = KeptSessions()
        bus.serve(METHOD, Senders.ANY_SHARD, self._serve)

    async def enter(self, session: Session, chosen_id: bytes, user_id: int) -> int:
        """Begins a session on a connection that has logged in; its number. Numbers of requests go on where an earlier
        connection of the client stopped, with its last answer; it has no session from now on.

        FencedError. `ShardError` 100: another user has a connection with this id, or had one just now, and keeps it.
        """
        number = self._next_number()
        registered = _Registered(chosen_id, number, session.key, (user_id, session.user_incarnation))
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
        latest = max(held, key=lambda each: each.number)
        self._engine.begin_session(session.connection, number, latest.memory)
        return number

    def leave(self, session: Session, user: User) -> None:
        """The session of a connection has ended with a logout: nothing of it is remembered."""
        if session.chosen_id:
            self._kept.keep(session.chosen_id, user, session.number, b"")
        self._sessions.choose(session, b"", 0)

    def closed(self, connection: int, memory: bytes) -> None:
        """The end of a connection, before its session is closed: its client may come again."""
        session = self._sessions.get(connection)
        if session is not None:
            self._keep(session, memory)

    def _keep(self, session: Session, memory: bytes) -> None:
        if session.chosen_id and memory and session.user_id is not None:
            user = (session.user_id, session.user_incarnation)
            self._kept.keep(session.chosen_id, user, session.number, memory)

    async def _serve(self, sender: int, payload: bytes) -> bytes:
        return _encoder.encode(self._fence(_registered.decode(payload)))

    def _fence(self, registered: _Registered) -> _Held:
        """Ends the earlier session of the client on this shard."""
        holder = self._sessions.by_chosen(registered.chosen_id)
        if holder is not None and holder.key != registered.key:
            if holder.number > registered.number:
                return _Held()
            if holder.user_id not in (None, registered.user[0]):
                return _Held(is_other_user=True)
            self._keep(holder, self._engine.session_memory(holder.connection))
            self._sessions.choose(holder, b"", 0)
            self._engine.begin_session(holder.connection, _FENCED, b"")
        kept = self._kept.find(registered.chosen_id)
        if kept is None:
            return _Held()
        if kept.memory and kept.user != registered.user:
            return _Held(is_other_user=True)
        return _Held(kept.number, kept.memory)

    def _next_number(self) -> int:
        """Grows with every login, also on another shard and after a start."""
        return self._engine.session_number()
