"""From a request of an earlier generation to its answer (docs/protocol/legacy.md). As the classic dispatcher, but who
asks is known by the dialect of the connection, and may become known better by what is asked."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from shardd.dispatch.classic.commands import Commands
from shardd.dispatch.classic.execution import Execution
from shardd.dispatch.legacy.commands import legacy_commands
from shardd.engine import DIALECT_CLASSIC, DIALECT_UNNAMED, Engine, RequestEvent
from shardd.metadata import Metadata
from shardd.protocol.account_requests import UserRequest
from shardd.protocol.catalogue import ALLOWED_WITHOUT_LOGIN
from shardd.protocol.codes import Code
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.legacy import generations
from shardd.protocol.legacy import replies as older
from shardd.protocol.legacy.generations import GENERATIONS, ErrorBody, Generation, code_of
from shardd.protocol.legacy.messages import read_send
from shardd.protocol.legacy.reader import LegacyReader
from shardd.protocol.legacy.requests import LegacyRequest, decode
from shardd.protocol.replies import ConsumerOffset
from shardd.protocol.requests import GetClient, GroupRequest, OffsetRequest, StreamRequest, TopicRequest
from shardd.protocol.send_request import SendMessages
from shardd.runtime import tracing
from shardd.service import base
from shardd.service.groups import group_of
from shardd.service.identity import Identity
from shardd.service.offsets import consumer_id
from shardd.service.services import Services

_log = logging.getLogger(__name__)


class LegacyDispatcher:
    """Answers every request of these dialects. Never raises for a request: a fault is status 1."""

    def __init__(self, engine: Engine, metadata: Metadata, services: Services) -> None:
        self._engine = engine
        self._metadata = metadata
        self._services = services
        self._execution = Execution(metadata, services.threads)
        self._tables: dict[int, Commands] = {}

    async def handle(self, request: RequestEvent) -> None:
        """Answers a request through `engine.reply`."""
        await self.handle_as(GENERATIONS[request.dialect], request)

    async def handle_as(self, generation: Generation, request: RequestEvent, entered: int | None = None) -> None:
        """The same for a request that has told which generation it is. `entered`: as whom it acts without a login."""
        connection, speaks = request.connection, request.dialect
        code = code_of(request.code, request.payload, generation)
        try:
            user_id = request.user_id if request.authenticated else entered
            if code == Code.SEND_MESSAGES and user_id is None:
                raise ShardError(Status.UNAUTHENTICATED)  # nothing of it was kept
            if code == Code.SEND_MESSAGES and generation.send_form == 56 and is_classic_batch(request.payload):
                await self._send_classic(connection, request.payload, user_id)
                return
            identity = self._services.connections.identity(connection, user_id)
            asked, generation = await self._execution.decoded(
                identity, code, len(request.payload), partial(decode, code, request.payload, generation)
            )
            if speaks != generation.number:
                self._engine.speak(connection, generation.number)
            reply = await self._answer(identity, code, asked, generation)
        except ShardError as error:
            _log.debug("request %d refused with %d: %s", code, error.status, error)
            tracing.refused(error.status)
            self._refuse(connection, speaks, generation, error)
        except Exception:
            _log.exception("request %d failed", code)
            self._refuse(connection, speaks, generation, ShardError(Status.ERROR))
        else:
            if reply is not None:
                self._engine.reply(connection, Status.OK, reply)

    async def _send_classic(self, connection: int, payload: bytes, user_id: int | None) -> None:
        """From one that is no earlier client after all."""
        self._engine.speak(connection, DIALECT_CLASSIC)
        sent, _ = read_send(LegacyReader(payload, 0), generations.PYTHON_0_6)
        request = SendMessages(sent.stream, sent.topic, sent.partitioning, sent.count, sent.records)
        identity = self._services.connections.identity(connection, user_id)
        await self._services.messages.send_messages(identity, request)
        self._engine.reply(connection, Status.OK)

    def _refuse(self, connection: int, speaks: int, generation: Generation, error: ShardError) -> None:
        if speaks in (DIALECT_CLASSIC, DIALECT_UNNAMED):
            self._engine.speak(connection, generation.number)
        body = b""
        if generation.error_body is ErrorBody.TEXT:
            text = str(error).encode()[:255]
            body = len(text).to_bytes(4, "little") + text
        self._engine.reply(connection, error.status, body, error.close)

    async def _answer(
        self, identity: Identity, code: int, request: LegacyRequest, generation: Generation
    ) -> bytes | None:
        """None: the engine answers."""
        if identity.user_id is None and code not in ALLOWED_WITHOUT_LOGIN:
            raise ShardError(Status.UNAUTHENTICATED)
        command = self._table(generation).get(code)
        if command is None:
            raise ShardError(Status.INVALID_COMMAND, f"unknown command code {code}")
        if generation.missing_is_error:
            self._require_there(request)
        value: Any = await command.execute(identity, request)
        if isinstance(request, OffsetRequest) and code == Code.GET_CONSUMER_OFFSET:
            return self._offset(generation, request, value)
        if value is None and generation.missing_is_error:
            _raise_missing(request)
        return await self._execution.encoded(command, value)

    def _table(self, generation: Generation) -> Commands:
        table = self._tables.get(generation.number)
        if table is None:
            table = self._tables[generation.number] = legacy_commands(self._services, generation)
        return table

    def _require_there(self, request: LegacyRequest) -> None:
        """1009, 2010, 5000 for questions that newer clients get an empty answer to."""
        state = self._metadata.state
        match request:
            case StreamRequest():
                base.stream_of(state, request.stream)
            case TopicRequest():
                base.topic_of(state, request.stream, request.topic)
            case GroupRequest():
                group_of(base.topic_of(state, request.stream, request.topic)[1], request.group)
            case _:
                pass

    def _offset(self, generation: Generation, request: OffsetRequest, value: ConsumerOffset | None) -> bytes:
        """Without an empty answer nothing stored is a stored 0."""
        if value is None and not generation.missing_is_error:
            return b""
        found = ConsumerOffset(request.partition or 0, 0, 0) if value is None else value
        return older.consumer_offset(generation, found, consumer_id(request.consumer))


def _raise_missing(request: LegacyRequest) -> None:
    if isinstance(request, UserRequest):
        raise ShardError(Status.RESOURCE_NOT_FOUND)
    if isinstance(request, GetClient):
        raise ShardError(Status.CLIENT_NOT_FOUND)


def is_classic_batch(payload: bytes) -> bool:
    """A batch whose first record has the header of classic clients: a login with the version of these was a hint."""
    if len(payload) < 4:
        return False
    batch = 4 + int.from_bytes(payload[:4], "little")
    count = int.from_bytes(payload[batch - 4 : batch], "little")
    first = batch + 16 * count
    if len(payload) < first + 64:
        return False
    headers, body = (int.from_bytes(payload[first + at : first + at + 4], "little") for at in (48, 52))
    return int.from_bytes(payload[batch + 4 : batch + 8], "little") == 64 + headers + body
