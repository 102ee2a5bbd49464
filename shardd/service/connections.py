"""What happens to the connections of a worker beside their requests: they move between shards, go stale, and lose their
user (docs/protocol/sessions.md)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Protocol

from shardd.config.schema import Settings
from shardd.groups.members import GroupMembers
from shardd.metadata import DeleteUser, Metadata, Record, State
from shardd.protocol import limits
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.heartbeats import TIMEOUT_MAX_MS, TIMEOUT_MIN_MS, HeartbeatTimeout
from shardd.runtime.asker import ASKER, Asker
from shardd.runtime.networks import network_of
from shardd.security.backoff import LOCAL_PREFIX
from shardd.service.identity import Identity
from shardd.service.sessions import Session, SessionTable

_log = logging.getLogger(__name__)


class ConnectionsEngine(Protocol):
    """The part of the engine that this changes."""

    def set_session(self, connection: int, user_id: int, authenticated: bool) -> None: ...
    def stale_connections(self, age_ms: int, /) -> list[int]: ...
    def silence_ms(self, connection: int, /) -> int: ...
    def close_connection(self, connection: int, status: int = ...) -> None: ...
    def resume(self, connection: int, /) -> None: ...


class ConnectionService:
    """Lives on the loop thread of the worker that holds the connections."""

    def __init__(
        self,
        metadata: Metadata,
        engine: ConnectionsEngine,
        sessions: SessionTable,
        members: GroupMembers,
        settings: Settings,
    ) -> None:
        self._heartbeat = settings.heartbeat
        self._local_users = settings.unix.users  # by uid of this host: they need no login
        self._metadata = metadata
        self._engine = engine
        self._sessions = sessions
        self._members = members

    def identity(self, connection: int, user_id: int | None) -> Identity:
        """Who is behind a request of a connection. One that is closed by now has a session that is removed: what asks
        whether it still waits hears that it does not. What the task holds from now on counts for that user."""
        session = self._sessions.get(connection) or Session(connection, 0, "", 0, removed=True)
        ASKER.set(Asker((user_id, session.user_incarnation), network_of(session.address)))
        return Identity(user_id, session.user_incarnation, session)

    def accepted(self, connection: int, address: str, transport: int) -> None:
        """A new connection. One over the Unix socket is heard from now on."""
        session = self._sessions.open(connection, address, time.time_ns() // 1000, transport=transport)
        if address.startswith(LOCAL_PREFIX):
            self._log_in_local(session)
            self._engine.resume(connection)

    def _log_in_local(self, session: Session) -> None:
        """By the uid that the kernel tells; without an entry, or without such a user now, as everybody else."""
        name = self._local_users.get(int(session.address.split(":")[1]))
        state = self._metadata.state
        user_id = None if name is None else state.user_ids.get(name)
        user = None if user_id is None else state.users.get(user_id)
        if user is None or not user.active:
            return
        session.set_user(user.id, user.incarnation)
        self._engine.set_session(session.connection, user.id, True)

    def export_session(self, connection: int) -> bytes:
        """The session as bytes; the connection stays known here until it is closed here. KeyError."""
        self._members.moving(connection)
        return self._sessions.export(connection)

    def import_session(self, connection: int, address: str, state: bytes) -> None:
        """Enters the connection with the session that another shard exported.

        Its user may have been deleted while the socket was between the two.
        """
        session = self._sessions.admit(connection, address, state)
        self._members.moved_in(session)
        if session.user_id is None:
            return
        user = self._metadata.state.users.get(session.user_id)
        if user is None or user.incarnation != session.user_incarnation:
            self._remove(session)

    def leave_groups(self, connection: int) -> None:
        """A session has ended; its connection stays."""
        session = self._sessions.get(connection)
        if session is not None:
            self._sessions.leave_groups(session)

    async def announce_heartbeat(self, identity: Identity, request: HeartbeatTimeout) -> HeartbeatTimeout:
        """The silence that is allowed from now on: where all clients must send PING, no longer one than theirs. 4; 30
        and close when the connection has no entry in the client table."""
        if not TIMEOUT_MIN_MS <= request.timeout_ms <= TIMEOUT_MAX_MS:
            raise ShardError(
                Status.INVALID_FORMAT,
                f"a heartbeat timeout of {request.timeout_ms} ms is not within {TIMEOUT_MIN_MS} to {TIMEOUT_MAX_MS}",
            )
        session = identity.session
        if session is None or session.removed:
            raise ShardError(Status.STALE_CLIENT, close=True)
        allowed_ms = min(request.timeout_ms, self._silence_max_ms) if self._heartbeat.enabled else request.timeout_ms
        self._sessions.announce(session, allowed_ms)
        return HeartbeatTimeout(allowed_ms)

    def evict_silent_clients(self) -> Iterator[None]:
        """Of those that have announced a heartbeat: they leave their groups, and the connection closes. Silence counts
        when two looks find it, as what has arrived while the worker stood still is read in between. A step for each."""
        now_us = time.monotonic_ns() // 1000
        for session in self._sessions.announced():
            heartbeat = session.heartbeat
            if heartbeat is not None and not session.removed:
                announced_ms = (now_us - heartbeat.since_us) // 1000
                silence_ms = min(self._engine.silence_ms(session.connection), announced_ms)
                was_late, heartbeat.is_late = heartbeat.is_late, silence_ms > heartbeat.timeout_ms
                if was_late and heartbeat.is_late:
                    _log.info("client %d is evicted: it has been silent for %d ms", session.client_id, silence_ms)
                    self._sessions.remove(session)
                    self._engine.close_connection(session.connection, Status.STALE_CLIENT)
            yield

    @property
    def _silence_max_ms(self) -> int:
        """1.2 intervals."""
        return self._heartbeat.interval_ms * 12 // 10

    def evict_stale_clients(self) -> Iterator[None]:
        """Clients that have not sent PING for 1.2 intervals leave their groups and the client table for good; their
        sockets stay open (docs/protocol/sessions.md#heartbeat). A step for each."""
        for connection in self._engine.stale_connections(self._silence_max_ms):
            session = self._sessions.get(connection)
            if session is not None and not session.removed:
                _log.info("client %d sends no heartbeat and is evicted", session.client_id)
                self._sessions.remove(session)
            yield

    def applied(self, old: State, new: State, record: Record) -> None:
        """A record, before it is acknowledged. The connections of a deleted user may do nothing any more, whoever gets
        its id next (docs/protocol/sessions.md#entry)."""
        if isinstance(record.command, DeleteUser):
            for session in self._sessions.of_user(record.command.user.id):
                self._remove(session)

    def _remove(self, session: Session) -> None:
        """The connection stays open as that of a user who does not exist (docs/protocol/sessions.md#entry)."""
        self._sessions.remove(session)
        session.set_user(None)
        self._engine.set_session(session.connection, limits.NOT_LOGGED_IN, True)
