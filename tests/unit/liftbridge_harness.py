"""Workers whose services serve Liftbridge's door, and what its tests ask of them."""

from __future__ import annotations

import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from shardd.metadata.liftbridge import find_liftbridge
from shardd.metadata.state import State
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.liftbridge import requests
from shardd.protocol.liftbridge.requests import StreamInfo
from shardd.protocol.permissions import Permissions
from shardd.protocol.send_request import NewMessage, Partitioning, PartitioningKind, SendMessages
from shardd.service.identity import Identity
from shardd.service.services import Services
from tests.unit.services_harness import Workers

Value = TypeVar("Value")
NAMESPACE = "liftbridge-default"
MILLISECONDS = 1000


class LiftbridgeWorkers(Workers):
    """Services are those of the shard that does not write the metadata."""

    def __init__(self, data: Path) -> None:
        settings = {
            "liftbridge.expose_native": "readwrite",
            "liftbridge.activity": "true",
            "liftbridge.anonymous_user": "guest",
        }
        super().__init__(data, shards=2, settings=settings)

    @property
    def services(self) -> Services:
        return self.context(1).services

    @property
    def state(self) -> State:
        return self.context(1).metadata.state

    @property
    def root(self) -> Identity:
        return Identity(0, self.root_ref().incarnation)

    def ask(self, work: Coroutine[Any, Any, Value]) -> Value:
        return self.call(work, 1)

    def refused(self, work: Coroutine[Any, Any, object]) -> Status:
        with pytest.raises(ShardError) as caught:
            self.ask(work)
        return caught.value.status

    def status_of(self, work: Coroutine[Any, Any, object]) -> int:
        try:
            self.ask(work)
        except ShardError as error:
            return error.status
        return 0

    def user(self, name: str, permissions: Permissions | None = None, *, active: bool = True) -> Identity:
        number = self.create_user(name, permissions, active=active)
        return Identity(number, self.context().metadata.state.users[number].incarnation)

    def make(self, name: str, partitions: int = 2, **settings: int | bool) -> StreamInfo:
        create = requests.CreateStream(name, f"in.{name}", "", partitions, settings)
        self.ask(self.services.liftbridge_streams.create_stream(self.root, create))
        return self.info(name)

    def info(self, name: str) -> StreamInfo:
        [found] = self.listed(self.root, name)
        return found

    def wait_for_paused(self, name: str, *partitions: int) -> None:
        """A message ends a pause a moment after it is stored."""
        deadline = time.monotonic() + 20
        while self.info(name).paused != partitions:
            assert time.monotonic() < deadline, self.info(name)
            time.sleep(0.01)

    def listed(self, identity: Identity, *names: str) -> list[StreamInfo]:
        asked = requests.ListStreams(names)
        return self.ask(self.services.liftbridge_streams.list_streams(identity, asked, lambda each: each))

    def topic_of(self, name: str) -> Any:
        found = find_liftbridge(self.state, name)
        assert found is not None
        return found[1]


@contextmanager
def liftbridge_workers(data: Path) -> Iterator[LiftbridgeWorkers]:
    with LiftbridgeWorkers(data) as running:
        running.ask(running.services.liftbridge_tasks.prepare(requests.Prepare()))
        yield running


def publishing(stream: StreamInfo, *values: bytes, partition: int = 0, **more: Any) -> requests.Publish:
    made = SendMessages.of(1, 1, Partitioning(PartitioningKind.PARTITION, 0), [NewMessage(value) for value in values])
    place = stream.stream_id, stream.topic_id, stream.incarnation, partition
    return requests.Publish(*place, made.count, made.batch, **more)
