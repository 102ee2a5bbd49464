"""The connections of one worker: who is behind each (docs/protocol/sessions.md). Lives on the shard that holds the
socket.

When a socket moves to another shard its session travels as bytes (`export`), so that login, client id, the time of
the connection and its memberships in consumer groups survive the move.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec

from shardd.engine import xxh32
from shardd.groups import Membership
from shardd.protocol.system_replies import TRANSPORT_TCP
from shardd.security.access_tokens import AccessClaims, IssuedLogin


class Heartbeat(msgspec.Struct):
    """Of a connection whose client promises a sign of life at least every `timeout_ms`. `since_us`: when it did, or
    came to this shard, on the monotonic clock. `is_late`: it was at the last look."""

    timeout_ms: int
    since_us: int
    is_late: bool = False


class Session(msgspec.Struct):
    """One connection of this worker. `user_id` is None without a login; time in microseconds since the epoch.

    `user_incarnation`: which user with that id, as ids are reused. `removed`: the entry is not in the client table any
    more. Its connection is closed or moved away, or the server has taken it out (its user was deleted, or it sent no
    heartbeat); then the socket stays open, but GET_ME, logins and commands of groups are refused
    (docs/protocol/sessions.md#entry). `moves`: how often the connection has come to another shard. `door`: through
    which it comes (docs/protocol/doors.md); "": it is a socket of this worker. `transport`: as clients are told;
    only TCP moves. `chosen_id`: which client it is, in its own words (0.9), b"" when it has none or another connection
    has come with it since; `number`: of its session. `shown`: the token that its login rests on for as long as the
    token holds: what an access token says, the login that an issuer vouches for, or the
    digest of a personal one; None: the login stands by itself. `heartbeat`: what its client has announced.
    """

    connection: int
    client_id: int
    address: str
    connected_at_us: int
    user_id: int | None = None
    user_incarnation: int = 0
    removed: bool = False
    failed_logins: int = 0  # on this connection since it was opened
    memberships: dict[int, Membership] = {}  # by incarnation of the group, in the order of joining
    moves: int = 0
    door: str = ""
    transport: int = TRANSPORT_TCP
    chosen_id: bytes = b""
    number: int = 0
    shown: AccessClaims | IssuedLogin | bytes | None = None
    heartbeat: Heartbeat | None = None

    @property
    def key(self) -> str:
        """Names this connection on every shard, and no other one: two addresses may have the same client id."""
        return f"{self.address} {self.connected_at_us}"

    def set_user(self, user_id: int | None, user_incarnation: int = 0) -> None:
        """Notes a login or (None) a logout."""
        self.user_id = user_id
        self.user_incarnation = user_incarnation
        self.shown = None


class _Moved(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What travels with a moved socket."""

    client_id: int
    connected_at_us: int
    user_id: int | None
    user_incarnation: int = 0
    removed: bool = False
    memberships: list[Membership] = []
    failed_logins: int = 0
    moves: int = 0
    chosen_id: bytes = b""
    number: int = 0
    heartbeat_timeout_ms: int = 0  # 0: it has announced nothing


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Moved)


class SessionTable:
    """Sessions by connection id and by client id. Used by the worker's loop thread only."""

    def __init__(self) -> None:
        self._sessions: dict[int, Session] = {}
        self._by_client: dict[int, Session] = {}
        self._by_key: dict[str, Session] = {}
        self._by_chosen: dict[bytes, Session] = {}
        self._announced: dict[int, Session] = {}
        self._left: Callable[[Session], None] | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        """Those that clients are told about."""
        return (session for session in self._sessions.values() if not session.removed)

    def open(
        self, connection: int, address: str, now_us: int, door: str = "", transport: int = TRANSPORT_TCP
    ) -> Session:
        """Enters an accepted connection; `address` is the peer's "ip:port". A door may have many clients of one."""
        named = f"{address} {door} {connection}" if door else address
        session = Session(connection, xxh32(named.encode()), address, now_us, door=door, transport=transport)
        self._enter(session)
        return session

    def on_leave(self, left: Callable[[Session], None]) -> None:
        """Calls `left` for a connection that is closed or removed, while its memberships are known."""
        self._left = left

    def close(self, connection: int, *, moved: bool = False) -> None:
        """Forgets a connection that was closed or `moved` away; an unknown one is no error."""
        session = self._sessions.pop(connection, None)
        if session is None:
            return
        session.removed = True  # whoever still works for it
        self._announced.pop(connection, None)
        if not moved:
            self.leave_groups(session)
        if self._by_key.get(session.key) is session:
            del self._by_key[session.key]
        self.choose(session, b"", 0)
        if self._by_client.get(session.client_id) is session:
            del self._by_client[session.client_id]

    def get(self, connection: int) -> Session | None:
        return self._sessions.get(connection)

    def by_client(self, client_id: int) -> Session | None:
        """The session with a client id; the newest one when two addresses have the same hash."""
        return self._by_client.get(client_id)

    def by_key(self, key: str) -> Session | None:
        """The session with a `Session.key`."""
        return self._by_key.get(key)

    def by_chosen(self, chosen_id: bytes) -> Session | None:
        """The connection that came last with the id that a client has chosen."""
        return self._by_chosen.get(chosen_id)

    def choose(self, session: Session, chosen_id: bytes, number: int) -> None:
        """Notes the id that its client has chosen (b"": none, any more), and the number of its session."""
        if session.chosen_id and self._by_chosen.get(session.chosen_id) is session:
            del self._by_chosen[session.chosen_id]
        session.chosen_id, session.number = chosen_id, number
        if chosen_id:
            self._by_chosen[chosen_id] = session

    def announce(self, session: Session, timeout_ms: int) -> None:
        """Its client promises signs of life from now on."""
        session.heartbeat = Heartbeat(timeout_ms, time.monotonic_ns() // 1000)
        self._announced[session.connection] = session

    def announced(self) -> list[Session]:
        """Those whose clients promise signs of life."""
        return list(self._announced.values())

    def remove(self, session: Session) -> None:
        """Takes the entry of an open connection out of the table for good. Its login stays as it is."""
        session.removed = True
        self._announced.pop(session.connection, None)
        self.leave_groups(session)
        if self._by_client.get(session.client_id) is session:
            del self._by_client[session.client_id]

    def of_user(self, user_id: int) -> list[Session]:
        """The connections on which a user is logged in, also those that have lost their entry."""
        return [session for session in self._sessions.values() if session.user_id == user_id]

    def export(self, connection: int) -> bytes:
        """The state that moves with the socket. KeyError for an unknown connection. The entry stays until `close`."""
        session = self._sessions[connection]
        return _encoder.encode(
            _Moved(
                session.client_id,
                session.connected_at_us,
                session.user_id,
                session.user_incarnation,
                session.removed,
                [*session.memberships.values()],
                session.failed_logins,
                session.moves,
                session.chosen_id,
                session.number,
                0 if session.heartbeat is None else session.heartbeat.timeout_ms,
            )
        )

    def admit(self, connection: int, address: str, state: bytes) -> Session:
        """Enters a connection that came from another shard with the state it `export`ed. msgspec.DecodeError."""
        moved = _decoder.decode(state)
        session = Session(
            connection,
            moved.client_id,
            address,
            moved.connected_at_us,
            moved.user_id,
            moved.user_incarnation,
            moved.removed,
            moved.failed_logins,
            {membership.group: membership for membership in moved.memberships},
            moved.moves + 1,
        )
        self._enter(session)
        self.choose(session, moved.chosen_id, moved.number)
        if moved.heartbeat_timeout_ms:
            self.announce(session, moved.heartbeat_timeout_ms)
        return session

    def leave_groups(self, session: Session) -> None:
        """All of them, at once for whoever asks here."""
        if self._left is not None:
            self._left(session)
        session.memberships.clear()

    def _enter(self, session: Session) -> None:
        self._sessions[session.connection] = session
        self._by_key[session.key] = session
        if not session.removed:
            self._by_client[session.client_id] = session
