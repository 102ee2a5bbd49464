"""Which shard may say what to which: real workers; what one of them sends is checked as if a client had sent it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from shardd.engine import owner
from shardd.groups import messages as group_messages
from shardd.groups.messages import GroupRef
from shardd.protocol.errors import Status
from shardd.protocol.namespaces import namespace
from shardd.runtime.channel import RemoteError
from shardd.service.partition_calls import Operation
from tests.unit.services_harness import Workers

SHARDS = 3


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("rights"), shards=SHARDS) as running:
        yield running


def ask(workers: Workers, sender: int, target: int, method: str, payload: Any) -> Any:
    """The answer; RemoteError with the refusal."""
    data = payload if isinstance(payload, bytes) else msgspec.msgpack.encode(payload)
    answer = workers.call(workers.context(sender).bus.request(target, method, data, 5.0), sender)
    return msgspec.msgpack.decode(answer) if answer else None


@pytest.mark.parametrize("method", ["metadata.apply", "metadata.resync", "group assignments"])
def test_only_shard_0_may_order_the_others(workers: Workers, method: str) -> None:
    with pytest.raises(RemoteError, match=f"shard 1 may not send {method}"):
        ask(workers, 1, 2, method, b"")


def test_a_shard_speaks_for_itself_only(workers: Workers) -> None:
    group = GroupRef(0, 0, 0, 1)
    join = group_messages.Join(group, "somebody", 2, 0)
    for question in (join, group_messages.Moved([group], "somebody", 2, 0), group_messages.Announce(2, [])):
        with pytest.raises(RemoteError, match="shard 1 speaks for shard 2"):
            ask(workers, 1, 0, "groups", question)
    assert ask(workers, 2, 0, "groups", join) == [Status.CONSUMER_GROUP_ID_NOT_FOUND, [], [], []]


def test_partitions_are_changed_only_under_their_own_name(workers: Workers) -> None:
    """A call names place, slot and incarnation; all three must be those of one partition that exists."""
    client = workers.connect()
    stream = client.create_stream("rights")
    client.create_topic(stream, "t", 24)
    state = workers.context().metadata.state
    (topic,) = state.streams[stream].topics.values()
    ours = [each for each in topic.partitions if owner(namespace(stream, topic.id, each.id), SHARDS) == 2]
    first, second = ours[:2]
    place = namespace(stream, topic.id, first.id)

    def status(packed: int, slot: int, incarnation: int) -> int:
        call = [Operation.DELETE_SEGMENTS, [packed, 2, slot, incarnation, state.index], 0, 0, False, 1]
        return int(ask(workers, 1, 2, "partition", call)[0])

    assert status(place, first.slot, first.incarnation) == Status.OK
    for wrong in (
        (place, second.slot, second.incarnation),
        (place, first.slot, first.incarnation + 1),
        (place + (1 << 19), first.slot, first.incarnation),
        (-place, first.slot, first.incarnation),
        (2**63, 2**62, 1),
    ):
        assert status(*wrong) == Status.PARTITION_NOT_FOUND


@pytest.mark.parametrize("method", ["metadata.hello", "metadata.submit", "groups", "partition"])
def test_what_cannot_be_read_is_refused_and_harms_nobody(workers: Workers, method: str) -> None:
    for garbage in (b"", b"\xc1", b"\x91" * 5_000, msgspec.msgpack.encode([2**63] * 8), b"\xdb\xff\xff\xff\xff"):
        with pytest.raises(RemoteError, match=f"{method} failed on shard 0"):
            ask(workers, 1, 0, method, garbage)
    workers.connect(1).create_stream(f"after {method}")
