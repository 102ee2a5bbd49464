"""Workers whose services serve Liftbridge's door, and what its tests ask of them."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from shardd.metadata.liftbridge import find_liftbridge
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


@contextmanager
def liftbridge_workers(data: Path) -> Iterator[Workers]:
    settings = {
        "liftbridge.expose_native": "readwrite",
        "liftbridge.activity": "true",
        "liftbridge.anonymous_user": "guest",
    }
    with Workers(data, shards=2, settings=settings) as running:
        running.call(services(running).liftbridge_tasks.prepare(requests.Prepare()), 1)
        yield running


def services(workers: Workers) -> Services:
    """Of the shard that does not write the metadata."""
    return workers.context(1).services


def ask(workers: Workers, work: Coroutine[Any, Any, Value]) -> Value:
    return workers.call(work, 1)


def refused(workers: Workers, work: Coroutine[Any, Any, object]) -> Status:
    with pytest.raises(ShardError) as caught:
        ask(workers, work)
    return caught.value.status


def status_of(workers: Workers, work: Coroutine[Any, Any, object]) -> int:
    try:
        ask(workers, work)
    except ShardError as error:
        return error.status
    return 0


def root(workers: Workers) -> Identity:
    return Identity(0, workers.root_ref().incarnation)


def user(workers: Workers, name: str, permissions: Permissions | None = None, *, active: bool = True) -> Identity:
    number = workers.create_user(name, permissions, active=active)
    return Identity(number, workers.context().metadata.state.users[number].incarnation)


def make(workers: Workers, name: str, partitions: int = 2, **settings: int | bool) -> StreamInfo:
    create = requests.CreateStream(name, f"in.{name}", "", partitions, settings)
    ask(workers, services(workers).liftbridge_streams.create_stream(root(workers), create))
    return info(workers, name)


def info(workers: Workers, name: str) -> StreamInfo:
    [found] = listed(workers, root(workers), name)
    return found


def listed(workers: Workers, identity: Identity, *names: str) -> list[StreamInfo]:
    work = services(workers).liftbridge_streams.list_streams(identity, requests.ListStreams(names), lambda each: each)
    return ask(workers, work)


def publishing(stream: StreamInfo, *values: bytes, partition: int = 0, **more: Any) -> requests.Publish:
    made = SendMessages.of(1, 1, Partitioning(PartitioningKind.PARTITION, 0), [NewMessage(value) for value in values])
    place = stream.stream_id, stream.topic_id, stream.incarnation, partition
    return requests.Publish(*place, made.count, made.batch, **more)


def topic_of(workers: Workers, name: str) -> Any:
    found = find_liftbridge(workers.context(1).metadata.state, name)
    assert found is not None
    return found[1]
