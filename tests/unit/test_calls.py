"""Sends, polls and stored offsets of callers that are no connections, made inside real workers: what TCP clients see of
them, on partitions of both shards, at every level."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator

import pytest
from immutables import Map

from shardd.engine import twin
from shardd.metadata.state import Permissions, StreamPermissions
from shardd.protocol import requests
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.limits import POLLED_BYTES_MAX
from shardd.protocol.namespaces import namespace
from shardd.protocol.primitives import Consumer, ConsumerKind, Identifier, PollingKind
from shardd.protocol.requests import SendMessages
from shardd.protocol.send_request import NewMessage, Partitioning, PartitioningKind
from shardd.service.identity import Identity
from shardd.service.messages import PolledMessages
from tests.support import wire
from tests.support.wire import Wire
from tests.unit.calls_harness import LEVELS, workers_with_stream
from tests.unit.services_harness import Workers

PARTITIONS = 8
BALANCED = Partitioning(PartitioningKind.BALANCED)


def to(partition: int) -> Partitioning:
    return Partitioning(PartitioningKind.PARTITION, partition)


def by(key: bytes) -> Partitioning:
    return Partitioning(PartitioningKind.KEY, key=key)


class Caller:
    """Who makes calls inside one worker."""

    def __init__(self, workers: Workers, shard: int, user: int | None = 0, incarnation: int | None = None) -> None:
        self._workers, self._shard = workers, shard
        self._services = workers.context(shard).services
        if incarnation is None:
            known = workers.context(shard).metadata.state.users.get(user or 0)
            incarnation = 0 if known is None else known.incarnation
        self.identity = Identity(user, incarnation)

    def send(self, request: SendMessages) -> None:
        self._workers.call(self._services.messages.send_messages(self.identity, request), self._shard)

    def poll(self, request: requests.PollMessages) -> PolledMessages:
        polled = self._workers.call(self._services.messages.poll_messages(self.identity, request), self._shard)
        assert isinstance(polled, PolledMessages)
        return polled

    def store(self, request: requests.StoreOffset) -> None:
        assert self._workers.call(self._services.offsets.store_offset(self.identity, request), self._shard) is None


def polling(
    topic: Identifier,
    partition: int | None,
    *,
    kind: PollingKind = PollingKind.OFFSET,
    value: int = 0,
    count: int = 1000,
    auto_commit: bool = False,
    consumer: Identifier = 1,
) -> requests.PollMessages:
    who = Consumer(ConsumerKind.CONSUMER, consumer)
    return requests.PollMessages(who, "st", topic, partition, kind, value, count, auto_commit)


def storing(topic: Identifier, partition: int | None, offset: int, consumer: Identifier = 1) -> requests.StoreOffset:
    return requests.StoreOffset(Consumer(ConsumerKind.CONSUMER, consumer), "st", topic, partition, offset)


def status_of(call: object, *arguments: object) -> int:
    try:
        call(*arguments)  # type: ignore[operator]
    except ShardError as error:
        return error.status
    return 0


@pytest.fixture(scope="module", params=LEVELS)
def workers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with workers_with_stream(tmp_path_factory.mktemp("data"), request.param) as running:
        root = running.connect()
        for topic in ("both", "tcp", "keys", "turns", "offsets", "large", "guarded"):
            root.create_topic("st", topic, PARTITIONS)
        yield running


@pytest.fixture(params=[0, 1])
def shard(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def caller(workers: Workers, shard: int) -> Caller:
    return Caller(workers, shard)


@pytest.fixture
def root(workers: Workers, shard: int) -> Wire:
    return workers.connect(1 - shard)


def test_partitions_are_on_both_shards() -> None:
    assert {twin.owner(namespace(0, 0, partition), 2) for partition in range(PARTITIONS)} == {0, 1}


@pytest.mark.io_engine
@pytest.mark.parametrize("partition", range(PARTITIONS))
def test_what_is_sent_is_what_tcp_clients_and_callers_read(caller: Caller, root: Wire, partition: int) -> None:
    before = root.poll("st", "both", partition, count=1000).messages
    sent = [NewMessage(b"payload %d" % i, b"\x01" * i, id=7 + i, origin_timestamp_us=99) for i in range(5)]
    caller.send(SendMessages.of("st", "both", to(partition), sent))
    root.send("st", "both", wire.to_partition(partition), [wire.message(b"from tcp", b"hh", message_id=b"i" * 16)])
    polled = root.poll("st", "both", partition, count=1000)
    new = polled.messages[len(before) :]
    assert [(each.payload, each.headers, each.id, each.origin_timestamp_us) for each in new[:5]] == [
        (each.payload, each.user_headers, each.id.to_bytes(16, "little"), 99) for each in sent
    ]
    found = caller.poll(polling("both", partition))
    assert (found.partition, found.current_offset) == (partition, polled.current_offset)
    assert found.count == len(polled.messages)
    assert found.records == b"".join(each.raw for each in polled.messages)


def test_an_encoded_send_is_a_frame_of_the_wire(root: Wire) -> None:
    request = SendMessages.of("st", "tcp", by(b"key"), [NewMessage(b"a"), NewMessage(b"", b"h")])
    messages = [wire.message(b"a"), wire.message(b"", b"h")]
    assert request.encode() == wire.batch("st", "tcp", wire.to_key(b"key"), messages)
    assert root.status(wire.SEND_MESSAGES, request.encode()) == 0


def test_keys_lead_where_those_of_tcp_clients_lead(caller: Caller, root: Wire) -> None:
    def counts() -> list[int]:
        return [each.messages_count for each in root.partitions("st", "keys")]

    for number in range(20):
        key = b"key %d" % number
        before = counts()
        caller.send(SendMessages.of("st", "keys", by(key), [NewMessage(b"m")]))
        between = counts()
        root.send("st", "keys", wire.to_key(key), [wire.message(b"m")])
        after = counts()
        assert [b - a for a, b in zip(before, between, strict=True)] == [
            b - a for a, b in zip(between, after, strict=True)
        ]


def test_balanced_sends_take_turns_with_those_of_tcp_clients(caller: Caller, root: Wire) -> None:
    before = [each.messages_count for each in root.partitions("st", "turns")]
    for _ in range(PARTITIONS):
        caller.send(SendMessages.of("st", "turns", BALANCED, [NewMessage(b"m")]))
        root.send("st", "turns", wire.balanced(), [wire.message(b"m")])
    after = [each.messages_count for each in root.partitions("st", "turns")]
    assert [b - a for a, b in zip(before, after, strict=True)] == [2] * PARTITIONS


@pytest.mark.io_engine
@pytest.mark.parametrize("partition", [0, 1, 2, 3])
def test_offsets_are_those_of_tcp_clients(caller: Caller, root: Wire, partition: int) -> None:
    root.send("st", "offsets", wire.to_partition(partition), [wire.message(b"%d" % i) for i in range(10)])
    last = root.poll("st", "offsets", partition).current_offset
    caller.store(storing("offsets", partition, 3))
    assert root.get_offset("st", "offsets", partition) == 3
    following = caller.poll(polling("offsets", partition, kind=PollingKind.NEXT, count=2, auto_commit=True))
    assert [each.offset for each in wire.parse_messages(following.records)] == [4, 5]
    assert root.get_offset("st", "offsets", partition) == 5
    root.store_offset("st", "offsets", partition, 6)
    following = caller.poll(polling("offsets", partition, kind=PollingKind.NEXT, count=1))
    assert [each.offset for each in wire.parse_messages(following.records)] == [7]
    caller.store(storing("offsets", partition, 8, "by name"))
    assert root.get_offset("st", "offsets", partition, "by name") == 8
    assert root.get_offset("st", "offsets", partition, wire.consumer(twin.xxh32(b"by name"))) == 8
    assert status_of(caller.store, storing("offsets", partition, last + 1)) == Status.INVALID_OFFSET
    assert root.get_offset("st", "offsets", partition) == 6


def test_an_absent_partition_is_the_first_one(caller: Caller, root: Wire) -> None:
    root.send("st", "offsets", wire.to_partition(0), [wire.message(b"m")])
    assert caller.poll(polling("offsets", None)).records == caller.poll(polling("offsets", 0)).records
    caller.store(storing("offsets", None, 0, "absent"))
    assert root.get_offset("st", "offsets", 0, "absent") == 0


@pytest.mark.io_engine
@pytest.mark.parametrize("partition", [0, 1, 2, 3])
def test_a_poll_is_cut_to_fewer_messages_but_never_to_none(caller: Caller, root: Wire, partition: int) -> None:
    """By size; what is too large alone comes whole. Only what was in the answer is committed."""
    root.purge_topic("st", "large")
    huge = wire.message(b"h" * (POLLED_BYTES_MAX + 1))
    root.send("st", "large", wire.to_partition(partition), [huge])
    for _ in range(5):
        root.send("st", "large", wire.to_partition(partition), [wire.message(b"m" * 100_000) for _ in range(20)])
    first = caller.poll(polling("large", partition, kind=PollingKind.NEXT, auto_commit=True))
    assert (first.count, len(first.records)) == (1, len(huge))
    assert root.get_offset("st", "large", partition) == 0
    offsets = []
    while True:
        polled = caller.poll(polling("large", partition, kind=PollingKind.NEXT, auto_commit=True))
        if polled.count == 0:
            break
        assert len(polled.records) <= POLLED_BYTES_MAX
        found = [each.offset for each in wire.parse_messages(polled.records)]
        assert len(found) == polled.count
        assert root.get_offset("st", "large", partition) == found[-1]
        offsets += found
    assert offsets == list(range(1, 101))
    last = caller.poll(polling("large", partition, kind=PollingKind.LAST, count=1000))
    assert wire.parse_messages(last.records)[-1].offset == 100


# ---- refusals ----

GOOD = [wire.message(b"abc"), wire.message(b"defg")]
_INDEX = struct.pack("<IIQ", 0, 67, 0) + struct.pack("<IIQ", 0, 135, 0)


def changed(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


BATCHES = {
    "no messages": (0, b""),
    "only an index": (2, _INDEX),
    "index is cut": (2, _INDEX[:20]),
    "more than there are": (2**32 - 1, _INDEX + b"".join(GOOD)),
    "less than there are": (1, _INDEX + b"".join(GOOD)),
    "offset in the index": (2, changed(_INDEX, 0, b"\x01") + b"".join(GOOD)),
    "timestamp in the index": (2, changed(_INDEX, 24, b"\x01") + b"".join(GOOD)),
    "end behind the messages": (2, changed(_INDEX, 4, b"\xff\xff") + b"".join(GOOD)),
    "last end too small": (2, changed(_INDEX, 20, b"\x00") + b"".join(GOOD)),
    "payload too large": (1, struct.pack("<IIQ", 0, 64, 0) + changed(GOOD[0], 52, struct.pack("<I", 2**32 - 1))),
    "bytes are left": (2, _INDEX + b"".join(GOOD) + b"x"),
    "offset falls": (2, _INDEX + changed(GOOD[0], 24, b"\x09") + GOOD[1]),
    "reserved": (2, _INDEX + changed(GOOD[0], 56, b"\x01") + GOOD[1]),
    "good": (2, _INDEX + b"".join(GOOD)),
}


@pytest.mark.parametrize("topic", ["guarded", "none"])
@pytest.mark.parametrize("name", BATCHES)
def test_batches_get_the_status_that_tcp_clients_get(caller: Caller, root: Wire, name: str, topic: str) -> None:
    count, batch = BATCHES[name]
    request = SendMessages("st", topic, to(0), count, batch)
    expected = root.status(wire.SEND_MESSAGES, request.encode())
    assert status_of(caller.send, request) == expected
    assert (expected == 0) == (name == "good" and topic == "guarded")


@pytest.mark.parametrize("partitioning", [to(PARTITIONS), to(2**32 - 1), by(b""), BALANCED])
@pytest.mark.parametrize(("stream", "topic"), [("st", "guarded"), ("st", "none"), ("none", "guarded"), (77, 0)])
def test_addresses_get_the_status_that_tcp_clients_get(
    caller: Caller, root: Wire, stream: Identifier, topic: Identifier, partitioning: Partitioning
) -> None:
    request = SendMessages(stream, topic, partitioning, *BATCHES["good"])
    assert status_of(caller.send, request) == root.status(wire.SEND_MESSAGES, request.encode())
    poll = requests.PollMessages(
        Consumer(ConsumerKind.CONSUMER, 1), stream, topic, partitioning.partition, PollingKind.FIRST, 0, 1, False
    )
    assert status_of(caller.poll, poll) == root.status(wire.POLL_MESSAGES, poll.encode())
    store = requests.StoreOffset(poll.consumer, stream, topic, partitioning.partition, 2**64 - 1)
    assert status_of(caller.store, store) == root.status(wire.STORE_OFFSET, store.encode())


def test_numbers_that_no_wire_could_carry_are_refused(caller: Caller) -> None:
    for count, partition in ((-1, 0), (2**32, 0), (2, -1), (2, 2**32)):
        assert status_of(caller.send, SendMessages("st", "guarded", to(partition), count, BATCHES["good"][1])) == 3
    for wrong in (
        polling("guarded", -1),
        polling("guarded", 2**32),
        polling("guarded", 0, value=-1),
        polling("guarded", 0, value=2**64),
        polling("guarded", 0, count=2**32),
        polling("guarded", 0, consumer=2**32),
    ):
        assert status_of(caller.poll, wrong) == 3
    for offset, partition in ((-1, 0), (2**64, 0), (0, -1)):
        assert status_of(caller.store, storing("guarded", partition, offset)) == 3
    assert status_of(caller.send, SendMessages("st", "guarded", by(b"k" * 256), *BATCHES["good"])) == 3


def test_nobody_does_more_than_its_user_may(workers: Workers, shard: int) -> None:
    stream = workers.connect().streams()["st"]
    rights = {
        "sender": StreamPermissions(send_messages=True),
        "poller": StreamPermissions(poll_messages=True),
        "reader": StreamPermissions(read_stream=True),
    }
    users = {
        f"{name}{shard}": workers.create_user(f"{name}{shard}", Permissions(streams=Map({stream: each})))
        for name, each in rights.items()
    }
    send = SendMessages("st", "guarded", to(0), *BATCHES["good"])
    for name, user in users.items():
        caller, connection = Caller(workers, shard, user), workers.connect(shard, name, "secret")
        poll, store = polling("guarded", 0), storing("guarded", 0, 0)
        assert status_of(caller.send, send) == connection.status(wire.SEND_MESSAGES, send.encode())
        assert status_of(caller.poll, poll) == connection.status(wire.POLL_MESSAGES, poll.encode())
        assert status_of(caller.store, store) == connection.status(wire.STORE_OFFSET, store.encode())
    nobody = Caller(workers, shard, user=None)
    another = Caller(workers, shard, users[f"sender{shard}"], incarnation=1)  # its id was somebody else's
    gone = Caller(workers, shard, 999_999)
    found = Counter(status_of(each.send, send) for each in (nobody, another, gone))
    assert found == {Status.UNAUTHENTICATED: 1, Status.UNAUTHORIZED: 2}
