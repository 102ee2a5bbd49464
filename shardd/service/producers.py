"""Producers whose batches are stored once (docs/extensions.md#producers): their ids and epochs, and their expiry."""

from __future__ import annotations

import logging

from shardd.engine import Engine
from shardd.metadata import Metadata
from shardd.metadata.commands import ExpireProducers, InitProducer
from shardd.metadata.producers import idle_producers
from shardd.protocol import producers
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.producers import ProducerEpoch
from shardd.runtime.channel import BusError
from shardd.security import ROOT_USER_ID
from shardd.service import base
from shardd.service.identity import Identity
from shardd.service.users import user_ref

_log = logging.getLogger(__name__)


class ProducerService:
    """Lives on the loop thread. `expiry_ms`: how long a producer may be idle."""

    def __init__(self, metadata: Metadata, engine: Engine, expiry_ms: int) -> None:
        self._metadata, self._engine = metadata, engine
        self._expiry_us = expiry_ms * 1000

    async def init_producer(self, identity: Identity, request: producers.InitProducer) -> ProducerEpoch:
        """20, 30, 5. When it is answered every shard refuses the epochs before."""
        user = self._metadata.state.users.get(identity.user)
        if user is None:
            raise ShardError(Status.UNAUTHORIZED)
        command = InitProducer(user_ref(user), request.producer, request.epoch, request.renew, self._engine.now_us())
        result = await base.submit(self._metadata, identity, command)
        made = result.state.users[user.id].producers[result.id]
        return ProducerEpoch(made.id, made.epoch, self._expiry_us)


async def expire_producers(metadata: Metadata, before_us: int) -> None:
    """Forgets those that were idle since then by the believed clock; one worker of the server does it."""
    if not idle_producers(metadata.state, before_us):
        return
    try:
        result = await metadata.submit(user_ref(metadata.state.users[ROOT_USER_ID]), ExpireProducers(before_us))
    except BusError as error:
        _log.warning("idle producers are not forgotten: %s", error)
        return
    if result.status != Status.OK:
        _log.warning("idle producers are not forgotten: status %d", result.status)
