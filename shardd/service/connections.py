"""What happens to the connections of a worker beside their requests: they move between shards, go stale, and lose their
user (docs/protocol/sessions.md)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Protocol

from shardd.groups.members import GroupMembers
from shardd.metadata import DeleteUser, Metadata, Record, State
from shardd.protocol import limits
from shardd.security.backoff import LOCAL_PREFIX
from shardd.service.identity import Identity
from shardd.service.sessions import Session, SessionTable

_log = logging.getLogger(__name__)


class ConnectionsEngine(Protocol):
    """The part of the engine that this changes."""

    def set_session(self, connection: int, user_id: int, authenticated: bool) -> None: ...
    def stale_connections(self, age_ms: int, /) -> list[int]: ...
    def resume(self, connection: int, /) -> None: ...


class ConnectionService:
    """Lives on the loop thread of the worker that holds the connections. `local_users`: who a uid of this host is
    without a login."""

    def __init__(
        self,
        metadata: Metadata,
        engine: ConnectionsEngine,
        sessions: SessionTable,
        members: GroupMembers,
        local_users: Mapping[int, str],
    ) -> None:
        self._local_users = local_users
        self._metadata = metadata
        self._engine = engine
        self._sessions = sessions
        self._members = members

    def identity(self, connection: int, user_id: int | None) -> Identity:
        """Who is behind a request of a connection. One that is closed by now has a session that is removed: what asks
        whether it still waits hears that it does not."""
        session = self._sessions.get(connection) or Session(connection, 0, "", 0, removed=True)
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

    def evict_stale_clients(self, heartbeat_interval_ms: int) -> Iterator[None]:
        """Clients that have not sent PING for 1.2 intervals leave their groups and the client table for good; their
        sockets stay open (docs/protocol/sessions.md#heartbeat). A step for each."""
        for connection in self._engine.stale_connections(heartbeat_interval_ms * 12 // 10):
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
