"""Extension commands (docs/extensions.md): who may ask, and figures that count exactly what happened."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from msgspec.structs import asdict

from shardd.protocol.bounds import GetPartitionBounds, TopicSelection
from shardd.protocol.extensions import ExtensionCode, ExtensionList, FigureKind, Metrics
from shardd.protocol.heartbeats import HeartbeatTimeout
from shardd.protocol.leases import LeaseFiles
from shardd.protocol.permissions import Permissions
from shardd.protocol.poll_requests import WaitingPoll
from shardd.protocol.positions import PollPosition, PositionHead, StorePosition
from shardd.protocol.primitives import Consumer, ConsumerKind, PollingKind, Reader
from shardd.protocol.producers import InitProducer, send_once_digest_head, send_once_head
from shardd.protocol.topic_change import ChangeTopic
from shardd.protocol.topic_settings import GetTopicSettings, SetTopicSettings
from shardd.protocol.unused_offsets import UnusedOffsets
from tests.support import wire
from tests.support.load import owner_of
from tests.support.wire import Wire
from tests.unit.services_harness import Workers

WAITING_POLL = WaitingPoll(
    Consumer(ConsumerKind.CONSUMER, 1), "nowhere", "nothing", 0, PollingKind.NEXT, 0, 10, True, 5
)

POLL_POSITION = PollPosition(**asdict(WAITING_POLL), bytes_max=1 << 20)
STORE_POSITION = StorePosition(Consumer(ConsumerKind.CONSUMER, 1), "nowhere", "nothing", 0, 5, incarnation=3, epoch=0)

MINE = ("sends", "messages_in", "polls", "frames", "bytes_in", "bytes_out", "forwarded")


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("data"), shards=2) as running:
        running.create_user("plain")
        running.create_user("reader", Permissions(read_servers=True))
        running.create_user("manager", Permissions(manage_servers=True))
        wire_ = running.connect()
        wire_.create_topic(wire_.create_stream("s"), "t", 8)
        yield running


def metrics(wire_: Wire) -> Metrics:
    return Metrics.read(Reader(wire_.request(ExtensionCode.GET_METRICS)))


def figures(wire_: Wire) -> list[dict[str, int]]:
    """By shard."""
    answer = metrics(wire_)
    names = [name for _, name in answer.names]
    return [dict(zip(names, each.values, strict=True)) for each in answer.shards]


def grown(before: list[dict[str, int]], after: list[dict[str, int]], name: str) -> list[int]:
    return [new[f"engine.{name}"] - old[f"engine.{name}"] for old, new in zip(before, after, strict=True)]


def test_the_list_tells_every_code(workers: Workers) -> None:
    listed = ExtensionList.read(Reader(workers.connect(name="plain", password="secret").request(0x5344_0000)))
    assert [(each.code, each.version, each.name) for each in listed.extensions] == [
        (0x5344_0000, 1, "list_extensions"),
        (0x5344_0001, 1, "get_metrics"),
        (0x5344_0002, 1, "announce_heartbeat"),
        (0x5344_0010, 4, "get_partition_bounds"),
        (0x5344_0012, 1, "lease_files"),
        (0x5344_0013, 1, "unused_offsets"),
        (0x5344_0015, 1, "send_once_digest"),
        (0x5344_0018, 1, "poll_and_wait"),
        (0x5344_0019, 1, "poll_position"),
        (0x5344_001A, 1, "store_position"),
        (0x5344_0020, 1, "set_topic_settings"),
        (0x5344_0021, 1, "get_topic_settings"),
        (0x5344_0023, 1, "change_topic"),
        (0x5344_0030, 1, "init_producer"),
        (0x5344_0031, 1, "send_once"),
    ]


def test_the_bytes_of_a_waiting_poll_are_read_as_written() -> None:
    assert WaitingPoll.read(Reader(WAITING_POLL.encode())) == WAITING_POLL
    assert PollPosition.read(Reader(POLL_POSITION.encode())) == POLL_POSITION
    assert StorePosition.read(Reader(STORE_POSITION.encode())) == STORE_POSITION
    head = PositionHead(1, 2, 3, 4, 5, 6, 7, True)
    assert PositionHead.read(Reader(head.encode())) == head


def test_nothing_without_a_login(workers: Workers) -> None:
    wire_ = workers.anonymous()
    selection = GetPartitionBounds((TopicSelection("nowhere", "nothing"),)).encode()
    payloads = {
        ExtensionCode.ANNOUNCE_HEARTBEAT: HeartbeatTimeout(1000).encode(),
        ExtensionCode.GET_PARTITION_BOUNDS: selection,
        ExtensionCode.LEASE_FILES: LeaseFiles("s", "t", 9, 0, 1).encode(),
        ExtensionCode.UNUSED_OFFSETS: UnusedOffsets("s", "t", 9, 0, 0, delete=False).encode(),
        ExtensionCode.POLL_AND_WAIT: WAITING_POLL.encode(),
        ExtensionCode.POLL_POSITION: POLL_POSITION.encode(),
        ExtensionCode.STORE_POSITION: STORE_POSITION.encode(),
        ExtensionCode.SET_TOPIC_SETTINGS: SetTopicSettings("nowhere", "nothing", (("ack", "durable"),)).encode(),
        ExtensionCode.GET_TOPIC_SETTINGS: GetTopicSettings("s", "nothing").encode(),
        ExtensionCode.CHANGE_TOPIC: ChangeTopic("s", "nothing", "other").encode(),
        ExtensionCode.INIT_PRODUCER: InitProducer(7).encode(),
        ExtensionCode.SEND_ONCE_DIGEST: send_once_digest_head(1, 0, 0, 7)
        + wire.batch("nowhere", "nothing", wire.to_partition(0), [wire.message(b"x")]),
        ExtensionCode.SEND_ONCE: send_once_head(1, 0, 0)
        + wire.batch("nowhere", "nothing", wire.to_partition(0), [wire.message(b"x")]),
    }
    assert {wire_.status(code, payloads.get(code, b"")) for code in ExtensionCode} == {40}
    wire_.login()
    answers = [wire_.status(code, payloads.get(code, b"")) for code in ExtensionCode]
    assert answers == [0, 0, 0, 1009, 3007, 3007, 1009, 1009, 1009, 1009, 1009, 2010, 2010, 20, 1009]


def test_leases_want_the_right_to_poll(workers: Workers) -> None:
    """Wherever the partition lives; 600 s at most."""
    for shard in (0, 1):
        for partition in range(4):
            lease = LeaseFiles("s", "t", partition, 0, 600).encode()
            assert workers.connect(shard).status(ExtensionCode.LEASE_FILES, lease) == 0
            assert workers.connect(shard, "plain", "secret").status(ExtensionCode.LEASE_FILES, lease) == 41
    long = LeaseFiles("s", "t", 0, 0, 601).encode()
    assert workers.connect().status(ExtensionCode.LEASE_FILES, long) == 4
    assert workers.connect().status(ExtensionCode.LEASE_FILES, long[:-1]) == 3


def test_codes_that_are_not_listed_are_unknown_commands(workers: Workers) -> None:
    wire_ = workers.connect()
    assert [wire_.status(code) for code in (0x5344_0003, 0x5344_00FF, 0x5344_0100, 0x5343_FFFF)] == [3] * 4
    wire_.ping()


def test_metrics_want_the_permission_of_get_stats(workers: Workers) -> None:
    for name, status in (("plain", 41), ("reader", 0), ("manager", 0)):
        wire_ = workers.connect(name=name, password="secret")
        assert wire_.status(wire.GET_STATS) == status
        assert wire_.status(ExtensionCode.GET_METRICS) == status


def test_figures_of_all_shards_come_from_any_of_them(workers: Workers) -> None:
    for shard in (0, 1):
        answer = metrics(workers.connect(shard))
        assert answer.shards_count == 2
        assert [each.shard for each in answer.shards] == [0, 1]
        assert {each.generation for each in answer.shards} == {1}
    kinds = {name: kind for kind, name in answer.names}
    assert len(kinds) == len(answer.names), "a name stands for one figure"
    assert kinds["engine.sends"] is kinds["process.cpu_us"] is kinds["recovery.partitions"] is FigureKind.COUNTER
    for name in ("engine.pool_used_bytes", "engine.links_out", "engine.partitions_dirty", "bus.requests_out",
                 "helpers.jobs", "passwords.jobs_waiting", "metadata.index", "process.resident_bytes"):  # fmt: skip
        assert kinds[name] is FigureKind.GAUGE


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("owner", [0, 1])
def test_sends_and_polls_are_counted_exactly(workers: Workers, shard: int, owner: int) -> None:
    """Where the connection is; the owner counts what it served for others."""
    partition = next(each for each in range(8) if owner_of(0, 0, each, 2) == owner)
    client, observer = workers.connect(shard), workers.connect(1 - shard)
    request = wire.frame(
        wire.SEND_MESSAGES, wire.batch("s", "t", wire.to_partition(partition), [wire.message(b"x" * 100)] * 3)
    )
    large = wire.frame(
        wire.SEND_MESSAGES, wire.batch("s", "t", wire.to_partition(partition), [wire.message(b"y" * 3_000_000)])
    )
    before = figures(observer)
    for _ in range(50):
        client.send_bytes(request)
        assert client.reply() == (0, b"")
    client.send_bytes(large)
    assert client.reply() == (0, b"")
    answer = client.poll("s", "t", partition, strategy=wire.POLL_LAST, count=10)
    after = figures(observer)
    mine = {name: grown(before, after, name)[shard] for name in MINE}
    poll = (
        wire.consumer() + wire.identifier("s") + wire.identifier("t") + wire.optional_partition(partition) + bytes(14)
    )
    assert mine == {
        "sends": 51,
        "messages_in": 151,
        "polls": 1,
        "frames": 52,
        "bytes_in": 50 * len(request) + len(large) + len(wire.frame(wire.POLL_MESSAGES, poll)),
        "bytes_out": 51 * 8 + 8 + 16 + sum(len(each.raw) for each in answer.messages),
        "forwarded": 52 if owner != shard else 0,
    }
    assert grown(before, after, "served_for_peers")[owner] == mine["forwarded"]
    assert grown(before, after, "messages_in")[1 - shard] == 0


def test_every_answered_request_is_in_the_histogram(workers: Workers) -> None:
    client, observer = workers.connect(0), workers.connect(1)
    before = metrics(observer).shards[0]
    for _ in range(40):
        client.ping()
    pipelined = 200
    client.send_bytes(wire.frame(wire.PING) * pipelined)
    for _ in range(pipelined):
        assert client.reply() == (0, b"")
    assert client.status(999) == 3
    client.send_bytes(struct.pack("<II", 0, 1))  # shorter than its own code
    assert client.reply() == (3, b"")
    after = metrics(observer).shards[0]
    assert sum(after.latency) - sum(before.latency) == 40 + pipelined + 2
    slow = sum(after.latency[26:]) - sum(before.latency[26:])
    assert slow == 0, "nothing of this took half a minute"
