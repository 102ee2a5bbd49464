"""From a request of the engine to its answer: decode, login check, service (docs/protocol/framing.md#checks). Lives on
the loop thread of the worker that holds the connection; the engine keeps the order of the requests of one connection.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Final

from shardd.groups.hub import GroupHub
from shardd.groups.members import GroupMembers
from shardd.metadata import DeleteUser, Record, State
from shardd.protocol import limits
from shardd.protocol.codes import ALLOWED_WITHOUT_LOGIN, Code
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.requests import decode
from shardd.security import Rule, allowed
from shardd.service import logins, messages, partitions, streams, tokens, topic_settings, topics, users
from shardd.service.base import Caller
from shardd.service.bounds import BoundsService
from shardd.service.context import ShardContext
from shardd.service.extensions import ExtensionService
from shardd.service.groups import GroupService
from shardd.service.offsets import OffsetService
from shardd.service.partition_calls import PartitionCalls
from shardd.service.sessions import Session
from shardd.service.snapshot import SnapshotService
from shardd.service.system import SystemService

_log = logging.getLogger(__name__)

_LOGINS: Final = frozenset({Code.LOGIN_USER, Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN})
_USER_CHANGES: Final = frozenset({Code.CREATE_USER, Code.UPDATE_PERMISSIONS})
_LARGE_BYTES: Final = 4096  # of a payload; what small ones cost is the same for everybody
_FAILED_LOGINS: Final = frozenset(
    {
        Status.INVALID_CREDENTIALS,
        Status.USER_INACTIVE,
        Status.RESOURCE_NOT_FOUND,
        Status.PERSONAL_ACCESS_TOKEN_EXPIRED,
    }
)

Service = Callable[[ShardContext, Caller, Any], Awaitable[bytes | None]]  # None: the engine answers


def _services(
    system: SystemService,
    snapshots: SnapshotService,
    calls: PartitionCalls,
    groups: GroupService,
    extensions: ExtensionService,
) -> dict[int, Service]:
    """The service of every command. SEND_MESSAGES is executed by the engine alone."""
    offsets = OffsetService(calls, groups)
    return {
        Code.PING: system.ping,
        Code.GET_STATS: system.get_stats,
        Code.GET_SNAPSHOT: snapshots.get_snapshot,
        Code.GET_CLUSTER_METADATA: system.get_cluster_metadata,
        Code.GET_ME: system.get_me,
        Code.GET_CLIENT: system.get_client,
        Code.GET_CLIENTS: system.get_clients,
        Code.LOGIN_USER: logins.login,
        Code.LOGOUT_USER: logins.logout,
        Code.GET_USER: users.get_user,
        Code.GET_USERS: users.get_users,
        Code.CREATE_USER: users.create_user,
        Code.DELETE_USER: users.delete_user,
        Code.UPDATE_USER: users.update_user,
        Code.UPDATE_PERMISSIONS: users.update_permissions,
        Code.CHANGE_PASSWORD: users.change_password,
        Code.GET_PERSONAL_ACCESS_TOKENS: tokens.get_tokens,
        Code.CREATE_PERSONAL_ACCESS_TOKEN: tokens.create_token,
        Code.DELETE_PERSONAL_ACCESS_TOKEN: tokens.delete_token,
        Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN: logins.login_with_token,
        Code.POLL_MESSAGES: partial(messages.poll_messages, groups=groups),
        Code.FLUSH_UNSAVED_BUFFER: partial(messages.flush_unsaved_buffer, calls=calls),
        Code.GET_CONSUMER_OFFSET: offsets.get_offset,
        Code.STORE_CONSUMER_OFFSET: offsets.store_offset,
        Code.DELETE_CONSUMER_OFFSET: offsets.delete_offset,
        Code.GET_STREAM: streams.get_stream,
        Code.GET_STREAMS: streams.get_streams,
        Code.CREATE_STREAM: streams.create_stream,
        Code.DELETE_STREAM: streams.delete_stream,
        Code.UPDATE_STREAM: streams.update_stream,
        Code.PURGE_STREAM: streams.purge_stream,
        Code.GET_TOPIC: topics.get_topic,
        Code.GET_TOPICS: topics.get_topics,
        Code.CREATE_TOPIC: topics.create_topic,
        Code.DELETE_TOPIC: topics.delete_topic,
        Code.UPDATE_TOPIC: topics.update_topic,
        Code.PURGE_TOPIC: topics.purge_topic,
        Code.CREATE_PARTITIONS: partial(partitions.create_partitions, groups=groups),
        Code.DELETE_PARTITIONS: partial(partitions.delete_partitions, groups=groups),
        Code.GET_CONSUMER_GROUP: groups.get_group,
        Code.GET_CONSUMER_GROUPS: groups.get_groups,
        Code.CREATE_CONSUMER_GROUP: groups.create_group,
        Code.DELETE_CONSUMER_GROUP: groups.delete_group,
        Code.JOIN_CONSUMER_GROUP: groups.join_group,
        Code.LEAVE_CONSUMER_GROUP: groups.leave_group,
        Code.DELETE_SEGMENTS: partial(partitions.delete_segments, calls=calls),
        ExtensionCode.LIST_EXTENSIONS: extensions.list_extensions,
        ExtensionCode.GET_METRICS: extensions.get_metrics,
        ExtensionCode.GET_PARTITION_BOUNDS: BoundsService().get_partition_bounds,
        ExtensionCode.SET_TOPIC_SETTINGS: topic_settings.set_topic_settings,
        ExtensionCode.GET_TOPIC_SETTINGS: topic_settings.get_topic_settings,
    }


class Dispatcher:
    """Answers every request that the engine hands to Python. Never raises for a request: a fault is status 1."""

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._hub = GroupHub(context) if context.shard == 0 else None
        self._members = GroupMembers(context)
        self._calls = PartitionCalls(context)
        self._services: Final = _services(
            SystemService(context),
            SnapshotService(context),
            self._calls,
            GroupService(self._members),
            ExtensionService(context),
        )

    async def handle(self, connection: int, code: int, payload: bytes, user_id: int, authenticated: bool) -> None:
        """Answers one EVENT_REQUEST through `engine.reply`."""
        try:
            reply = await self._answer(connection, code, payload, user_id if authenticated else None)
        except ShardError as error:
            _log.debug("request %d refused with %d: %s", code, error.status, error)
            close = error.close or self._is_last_login(connection, code, error.status)
            self._context.engine.reply(connection, error.status, b"", close)
        except Exception:
            _log.exception("request %d failed", code)
            self._context.engine.reply(connection, Status.ERROR)
        else:
            if reply is not None:
                self._context.engine.reply(connection, Status.OK, reply)

    async def _answer(self, connection: int, code: int, payload: bytes, user_id: int | None) -> bytes | None:
        if len(payload) > _LARGE_BYTES and code in _USER_CHANGES and user_id is not None:
            state = self._context.metadata.state
            if not allowed(state, user_id, Rule.MANAGE_USERS):  # before it costs the loop a long decoding
                raise ShardError(Status.UNAUTHORIZED)
        request = decode(code, payload)
        if user_id is None and code not in ALLOWED_WITHOUT_LOGIN:
            raise ShardError(Status.UNAUTHENTICATED)
        session = self._context.sessions.get(connection)
        caller = Caller(connection, user_id, 0 if session is None else session.user_incarnation)
        return await self._services[code](self._context, caller, request)

    def _is_last_login(self, connection: int, code: int, status: Status) -> bool:
        """Counts a login that has failed; True when the connection gets no further one (docs/limits.md)."""
        session = self._context.sessions.get(connection)
        if session is None or code not in _LOGINS or status not in _FAILED_LOGINS:
            return False
        session.failed_logins += 1
        return session.failed_logins >= self._context.settings.tcp.login_attempts_max

    async def route_miss(
        self,
        connection: int,
        code: int,
        stream_identifier: bytes,
        topic_identifier: bytes,
        user_id: int,
        attempt: int,
    ) -> None:
        """Answers one EVENT_ROUTE_MISS: fills the route table and resumes the connection, or refuses its request."""
        engine = self._context.engine
        caller = Caller(connection, user_id)
        self._members.polled(connection, 0, 0)  # a group poll, if it is one, starts over
        try:
            await messages.route(self._context, caller, code, stream_identifier, topic_identifier, attempt)
        except ShardError as error:
            _log.debug("request %d refused with %d: %s", code, error.status, error)
            engine.reply(connection, error.status)
        except Exception:
            _log.exception("no route for request %d", code)
            engine.reply(connection, Status.ERROR)
        else:
            engine.resume(connection)

    def export_session(self, connection: int) -> bytes:
        """EVENT_MOVE: the session as bytes; the connection stays known here until it is closed here. KeyError."""
        self._members.moving(connection)
        return self._context.sessions.export(connection)

    def import_session(self, connection: int, address: str, state: bytes) -> None:
        """EVENT_MOVED_IN: enters the connection with the session that another shard exported.

        Its user may have been deleted while the socket was between the two.
        """
        session = self._context.sessions.admit(connection, address, state)
        self._members.moved_in(session)
        if session.user_id is None:
            return
        user = self._context.metadata.state.users.get(session.user_id)
        if user is None or user.incarnation != session.user_incarnation:
            self._remove(session)

    def group_polled(self, connection: int, count: int, offset: int, stored: bool) -> None:
        """EVENT_GROUP_POLLED."""
        self._members.polled(connection, count, offset, stored)

    def synced(self, token: int, status: int) -> None:
        """EVENT_SYNCED."""
        self._calls.synced(token, status)

    def evict_stale_clients(self) -> Iterator[None]:
        """Clients that have not sent PING for 1.2 intervals leave their groups and the client table for good; their
        sockets stay open (docs/protocol/sessions.md#heartbeat). A step for each."""
        for connection in self._context.engine.stale_connections(
            self._context.settings.heartbeat.interval_ms * 12 // 10
        ):
            session = self._context.sessions.get(connection)
            if session is not None and not session.removed:
                _log.info("client %d sends no heartbeat and is evicted", session.client_id)
                self._context.sessions.remove(session)
            yield

    def close(self) -> None:
        """The worker stops."""
        self._members.close()
        if self._hub is not None:
            self._hub.close()

    def applied(self, old: State, new: State, record: Record) -> None:
        """A record, before it is acknowledged. The connections of a deleted user may do nothing any more, whoever gets
        its id next (docs/protocol/sessions.md#entry)."""
        if isinstance(record.command, DeleteUser):
            for session in self._context.sessions.of_user(record.command.user.id):
                self._remove(session)

    def _remove(self, session: Session) -> None:
        """The connection stays open as that of a user who does not exist (docs/protocol/sessions.md#entry)."""
        self._context.sessions.remove(session)
        self._context.sessions.set_user(session.connection, None)
        self._context.engine.set_session(session.connection, limits.NOT_LOGGED_IN, True)
