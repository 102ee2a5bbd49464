"""From a request of the engine to its answer: decode, login check, service (iggy-protocol 1.3). Lives on the loop
thread of the worker that holds the connection; the engine keeps the order of the requests of one connection.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from shardd.protocol.codes import ALLOWED_WITHOUT_LOGIN, Code
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.requests import decode
from shardd.shard.context import ShardContext
from shardd.shard.services import messages, offsets, partitions, session, streams, topics
from shardd.shard.services.base import Caller
from shardd.shard.services.partition_calls import PartitionCalls
from shardd.shard.services.system import SystemService

_log = logging.getLogger(__name__)

Service = Callable[[ShardContext, Caller, Any], Awaitable[bytes]]


def _services(system: SystemService, calls: PartitionCalls) -> dict[int, Service]:
    """The service of every command. SEND_MESSAGES is executed by the engine alone."""
    return {
        Code.PING: system.ping,
        Code.GET_STATS: system.get_stats,
        Code.GET_CLUSTER_METADATA: system.get_cluster_metadata,
        Code.GET_ME: system.get_me,
        Code.GET_CLIENT: system.get_client,
        Code.GET_CLIENTS: system.get_clients,
        Code.LOGIN_USER: session.login,
        Code.LOGOUT_USER: session.logout,
        Code.POLL_MESSAGES: messages.poll_messages,
        Code.FLUSH_UNSAVED_BUFFER: partial(messages.flush_unsaved_buffer, calls=calls),
        Code.GET_CONSUMER_OFFSET: partial(offsets.get_offset, calls=calls),
        Code.STORE_CONSUMER_OFFSET: offsets.store_offset,
        Code.DELETE_CONSUMER_OFFSET: partial(offsets.delete_offset, calls=calls),
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
        Code.CREATE_PARTITIONS: partitions.create_partitions,
        Code.DELETE_PARTITIONS: partitions.delete_partitions,
    }


class Dispatcher:
    """Answers every request that the engine hands to Python. Never raises for a request: a fault is status 1."""

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._services: Final = _services(SystemService(context), PartitionCalls(context))

    async def handle(self, connection: int, code: int, payload: bytes, user_id: int, authenticated: bool) -> None:
        """Answers one EVENT_REQUEST through `engine.reply`."""
        try:
            reply = await self._answer(connection, code, payload, user_id if authenticated else None)
        except ShardError as error:
            _log.debug("request %d refused with %d: %s", code, error.status, error)
            self._context.engine.reply(connection, error.status, b"", error.close)
        except Exception:
            _log.exception("request %d failed", code)
            self._context.engine.reply(connection, Status.ERROR)
        else:
            self._context.engine.reply(connection, Status.OK, reply)

    async def _answer(self, connection: int, code: int, payload: bytes, user_id: int | None) -> bytes:
        request = decode(code, payload)
        if user_id is None and code not in ALLOWED_WITHOUT_LOGIN:
            raise ShardError(Status.UNAUTHENTICATED)
        return await self._services[code](self._context, Caller(connection, user_id), request)

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
        return self._context.sessions.export(connection)

    def import_session(self, connection: int, address: str, state: bytes) -> None:
        """EVENT_MOVED_IN: enters the connection with the session that another shard exported."""
        self._context.sessions.admit(connection, address, state)
