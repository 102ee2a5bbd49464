"""The connections of one worker: who is behind each (iggy-protocol 1.4). Lives on the shard that holds the socket.

When a socket moves to another shard its session travels as bytes (`export`), so that login, client id and the time of
the connection survive the move.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from shardd.engine import xxh32


class Session(msgspec.Struct):
    """One connection of this worker. `user_id` is None without a login; time in microseconds since the epoch."""

    connection: int
    client_id: int
    address: str
    connected_at_us: int
    user_id: int | None = None


class _Moved(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What travels with a moved socket."""

    client_id: int
    connected_at_us: int
    user_id: int | None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Moved)


class SessionTable:
    """Sessions by connection id and by client id. Used by the worker's loop thread only."""

    def __init__(self) -> None:
        self._sessions: dict[int, Session] = {}
        self._by_client: dict[int, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def open(self, connection: int, address: str, now_us: int) -> Session:
        """Enters an accepted connection; `address` is the peer's "ip:port"."""
        session = Session(connection, xxh32(address.encode()), address, now_us)
        self._enter(session)
        return session

    def close(self, connection: int) -> None:
        """Forgets a connection that was closed or moved away; an unknown one is no error."""
        session = self._sessions.pop(connection, None)
        if session is not None and self._by_client.get(session.client_id) is session:
            del self._by_client[session.client_id]

    def get(self, connection: int) -> Session | None:
        return self._sessions.get(connection)

    def by_client(self, client_id: int) -> Session | None:
        """The session with a client id; the newest one when two addresses have the same hash."""
        return self._by_client.get(client_id)

    def set_user(self, connection: int, user_id: int | None) -> None:
        """Notes a login or (None) a logout; nothing happens when the connection is gone."""
        session = self._sessions.get(connection)
        if session is not None:
            session.user_id = user_id

    def export(self, connection: int) -> bytes:
        """The state that moves with the socket. KeyError for an unknown connection. The entry stays until `close`."""
        session = self._sessions[connection]
        return _encoder.encode(_Moved(session.client_id, session.connected_at_us, session.user_id))

    def admit(self, connection: int, address: str, state: bytes) -> Session:
        """Enters a connection that came from another shard with the state it `export`ed. msgspec.DecodeError."""
        moved = _decoder.decode(state)
        session = Session(connection, moved.client_id, address, moved.connected_at_us, moved.user_id)
        self._enter(session)
        return session

    def _enter(self, session: Session) -> None:
        self._sessions[session.connection] = session
        self._by_client[session.client_id] = session
