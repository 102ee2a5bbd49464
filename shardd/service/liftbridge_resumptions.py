"""Ends the pause of partitions that have got messages of native clients. They are stored already; Liftbridge has that a
publish resumes. Its own door resumes before it publishes."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from shardd.metadata import Metadata
from shardd.metadata.commands import ResumeLiftbridgeStream
from shardd.metadata.liftbridge_runs import is_on
from shardd.protocol.errors import Status
from shardd.protocol.namespaces import partition_ids
from shardd.runtime.channel import BusError
from shardd.security import ROOT_USER_ID
from shardd.service import base
from shardd.service.users import user_ref

RETRY_S: Final = 0.5
_log = logging.getLogger(__name__)


class LiftbridgeResumptions:
    """Lives on the loop thread. One change of the metadata at a time, however many partitions wait."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._waiting: dict[int, None] = {}  # namespaces of partitions, each once, oldest first
        self._task: asyncio.Task[None] | None = None

    def add(self, namespace: int) -> None:
        """Of a partition that has got a message."""
        self._waiting[namespace] = None
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="resume partitions")

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while self._waiting:
                namespace = next(iter(self._waiting))
                if await self._resume(*partition_ids(namespace)):
                    self._waiting.pop(namespace)
                else:
                    await asyncio.sleep(RETRY_S)
        finally:
            self._task = None

    async def _resume(self, stream_id: int, topic_id: int, partition: int) -> bool:
        """False: it is to be tried again. What is gone, or not paused any more, is done."""
        state = self._metadata.state
        stream = state.streams.get(stream_id)
        topic = None if stream is None else stream.topics.get(topic_id)
        if stream is None or topic is None or topic.liftbridge is None or not is_on(topic.liftbridge.paused, partition):
            return True
        command = ResumeLiftbridgeStream(base.stream_ref(stream), base.topic_ref(topic), partition)
        try:
            result = await self._metadata.submit(user_ref(state.users[ROOT_USER_ID]), command)
        except BusError as error:
            _log.debug("a partition is resumed later: %s", error)
            return False
        if result.status != Status.OK:
            _log.debug("a partition is resumed later: status %d", result.status)
        return result.status == Status.OK
