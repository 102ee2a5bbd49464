"""What every command can cost at most on the server of `world`: each request that is asked, and where more than one
connection makes the case, what they do together."""

from __future__ import annotations

import base64
import http.client
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from immutables import Map

from shardd.protocol.bounds import PARTITIONS_MAX, GetPartitionBounds, TopicSelection
from shardd.protocol.codes import Code
from shardd.protocol.extensions import ExtensionCode
from shardd.protocol.permissions import Permissions, StreamPermissions, TopicPermissions, encode_permissions
from shardd.protocol.positions import PositionHead
from shardd.protocol.primitives import Reader
from shardd.protocol.producers import InitProducer, send_once_digest_head, send_once_head
from shardd.protocol.send_request import NewMessage, Partitioning, PartitioningKind, SendMessages
from shardd.protocol.topic_change import ChangeTopic
from shardd.protocol.topic_settings import GetTopicSettings, SetTopicSettings
from tests.bounded.world import MANY, NARROW, SECRET, SUBSCRIBED, TOPICS, WIDE, Size
from tests.doors.door_server import JsonWire
from tests.support import wire
from tests.support.commands import Command
from tests.support.commands import commands as usual_requests

MEMBER = wire.identifier(WIDE) + wire.identifier(0) + wire.identifier(0)
NO_COMMAND = 0
Act = Callable[["Asker"], None]


class Asker:
    """The connections of a battery: one of root, and the crowd. `metrics`: where the figures are told. `liftbridge`: a
    client of that door, as root."""

    def __init__(
        self, address: str, size: Size, crowd: list[wire.Wire], metrics: tuple[str, int], liftbridge: JsonWire
    ) -> None:
        self.root = wire.connect(address, timeout_s=120.0)
        self.size = size
        self.crowd = crowd
        self.metrics = metrics
        self.liftbridge = liftbridge

    def together(self, code: int, payload: bytes, count: int) -> None:
        """Asks on so many connections at the same time."""
        some = self.crowd[:count]
        for each in some:
            each.send_bytes(wire.frame(code, payload))
        statuses = {each.reply()[0] for each in some}
        if statuses - {0}:
            raise wire.StatusError(code, max(statuses))


@dataclass(frozen=True, slots=True)
class Question:
    """`about`: what makes it wide. `act`: instead of sending `payload` once."""

    code: int
    name: str
    about: str
    payload: bytes = b""
    act: Act | None = None

    def ask(self, asker: Asker) -> None:
        """StatusError when it is refused."""
        if self.act is not None:
            self.act(asker)
        else:
            asker.root.request(self.code, self.payload)


def questions(size: Size) -> Iterator[Question]:
    """Every command; those that take things away come last."""
    usual = {each.code: each for each in usual_requests("s0", "t")}
    yield from _reading(size)
    yield from liftbridge_questions(size)
    yield from _changing(size)
    yield from _members(size)
    yield Question(NO_COMMAND, "(metrics)", f"{size.topics} topics, {size.groups} groups", act=_scrape)
    yield from _taking_away(size)
    for code, each in usual.items():
        if code in _SMALL:
            yield _small(each)
    yield Question(Code.LOGOUT_USER, "LOGOUT_USER", "")


def liftbridge_questions(size: Size) -> Iterator[Question]:
    """Every command and task of that door."""
    streams = f"{size.topics + size.streams + size.many} streams"
    group = f"{size.liftbridge_members} members of {min(size.topics, SUBSCRIBED)} streams"
    names = [f"t{number}" for number in range(min(size.topics, SUBSCRIBED))]
    wide, asked = "wide/wide", {"subject": "new", "group": "", "partitions": 1000}
    member = {"group": "wide", "consumer": "new"}
    steps: list[tuple[str, str, dict[str, Any]]] = [
        ("liftbridge_list_streams", streams, {}),
        ("liftbridge_require_right", "1,000 names", {"right": "poll", "names": [*names, "none"]}),
        ("task:all_streams", streams, {}),
        ("task:all_groups", f"{size.liftbridge_groups} groups", {}),
        ("task:all_users", f"{size.users} users", {}),
        ("task:prepare", streams, {}),
        ("liftbridge_create_stream", "1,000 partitions", {"name": "new", **asked}),
        ("liftbridge_set_readonly", f"{size.wide} partitions", {"name": wide, "partitions": [], "readonly": True}),
        ("liftbridge_set_readonly", f"{size.wide} partitions", {"name": wide, "partitions": [], "readonly": False}),
        ("liftbridge_pause_stream", "500 runs", {"name": "new", "partitions": list(range(0, 1000, 2))}),
        ("task:tell_figures", "32 reasons", {"nats_messages": 1, "nats_lost": {f"r{n}": n for n in range(32)}}),
        ("task:pause_partitions", "1,000 partitions", {"name": "new", "partitions": list(range(1000))}),
        ("task:partition_ends", "1,000 partitions", {"name": "new", "partitions": list(range(1000))}),
        ("liftbridge_resume_stream", "1,000 partitions", {"name": "new", "partition": 1}),
        ("liftbridge_join_group", group, {**member, "streams": names}),
        ("liftbridge_get_groups", group, {"names": ["wide"]}),
        ("task:expire_member", group, {"group": "wide", "consumer": "nobody", "epoch": 0}),
        ("liftbridge_leave_group", group, member),
        ("task:publish", "1,024 messages", {"name": "__cursors", "partition": 0, **_messages(1_024)}),
        ("task:poll", "1,024 messages", {"name": "__cursors", "partition": 0, "offset": 0, "count": 1_024}),
        ("task:events", "", {"after_index": 0}),
        ("liftbridge_delete_stream", f"{size.liftbridge_groups} groups", {"name": "t0"}),
    ]
    for do, about, request in steps:
        yield Question(NO_COMMAND, do, about, act=partial(_ask_door, do, request))
    yield Question(NO_COMMAND, "liftbridge_publish", "1,024 messages", act=_publish)


def _ask_door(do: str, request: dict[str, Any], asker: Asker) -> None:
    asker.liftbridge.ask(do, request)


def _messages(count: int) -> dict[str, Any]:
    made = SendMessages.of(1, 1, Partitioning(PartitioningKind.PARTITION, 0), [NewMessage(bytes(100))] * count)
    return {"count": count, "batch": base64.b64encode(made.batch).decode()}


def _publish(asker: Asker) -> None:
    [stream] = asker.liftbridge.ask("liftbridge_list_streams", {"names": ["new"]})
    place = {field: stream[field] for field in ("stream_id", "topic_id", "incarnation")}
    asker.liftbridge.ask("liftbridge_publish", {**place, "partition": 0, **_messages(1_024)})


def _of(code: Code | ExtensionCode, about: str, payload: bytes = b"", act: Act | None = None) -> Question:
    return Question(int(code), code.name, about, payload, act)


# do not grow with anything: as everybody sends them
_SMALL = frozenset({Code.PING, Code.GET_CLUSTER_METADATA, Code.GET_ME, Code.FLUSH_UNSAVED_BUFFER})


def _small(command: Command) -> Question:
    return Question(command.code, command.name, "", command.payload)


def _at(stream: int, topic: int | None = None) -> bytes:
    return wire.identifier(stream) + (b"" if topic is None else wire.identifier(topic))


def _reader(partition: int = 0) -> bytes:
    return wire.consumer(1) + _at(NARROW, 0) + wire.optional_partition(partition)


def _poll(count: int) -> bytes:
    return _reader() + struct.pack("<BQIB", wire.POLL_FIRST, 0, count, 0)


def _reading(size: Size) -> Iterator[Question]:
    everything = f"{size.wide + 1000 * size.many} partitions"
    clients = f"{size.connections} clients"
    yield _of(Code.GET_STATS, everything)
    yield _of(Code.GET_STREAMS, f"{everything}, {size.streams} streams")
    yield _of(Code.GET_STREAM, f"{1000 * size.many} partitions", _at(MANY))
    yield _of(Code.GET_STREAM, f"{size.topics} topics", _at(TOPICS))
    yield _of(Code.GET_TOPIC, f"{size.wide} partitions", _at(WIDE, 0))
    yield _of(Code.GET_TOPICS, f"{1000 * size.many} partitions", _at(MANY))
    yield _of(Code.GET_TOPICS, f"{size.topics} topics", _at(TOPICS))
    yield _of(Code.GET_CLIENTS, clients)
    yield _of(Code.GET_CLIENT, clients, struct.pack("<I", 1))
    yield _of(Code.GET_USERS, f"{size.users} users")
    yield _of(Code.GET_USER, "", wire.identifier("u1"))
    yield _of(Code.GET_PERSONAL_ACCESS_TOKENS, f"{size.tokens} tokens")
    yield _of(Code.GET_CONSUMER_GROUPS, f"{size.groups} groups", _at(NARROW, 0))
    yield _of(Code.GET_CONSUMER_GROUP, f"{size.wide} partitions, no member", MEMBER)
    yield _of(Code.GET_CONSUMER_OFFSET, f"{size.offsets} offsets", _reader())
    yield _of(Code.GET_SNAPSHOT, "everything", bytes([2, 1, 100]))
    yield _of(ExtensionCode.LIST_EXTENSIONS, "")
    yield _of(ExtensionCode.GET_METRICS, "")
    some = TopicSelection(WIDE, 0, tuple(range(min(size.wide, PARTITIONS_MAX))))
    yield _of(ExtensionCode.GET_PARTITION_BOUNDS, f"{len(some.partitions)} partitions", bounds(some, segments=False))
    yield _of(ExtensionCode.GET_PARTITION_BOUNDS, "and their segments", bounds(some, segments=True))
    yield _of(ExtensionCode.GET_TOPIC_SETTINGS, "", GetTopicSettings(WIDE, 0).encode())


def bounds(selection: TopicSelection, *, segments: bool) -> bytes:
    return GetPartitionBounds((selection,), segments).encode()


def _changing(size: Size) -> Iterator[Question]:
    user, sizes = wire.identifier("u1"), b"\1" + bytes(16) + b"\0"
    block = permissions_block(size.entries)
    yield _of(Code.LOGIN_USER, f"{size.users} users", wire.str8("iggy") + wire.str8("iggy") + bytes(8))
    yield _of(Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, f"{size.tokens} tokens", wire.str8(SECRET))
    yield _of(Code.CREATE_USER, f"{size.entries} entries", wire.str8("many") + wire.str8("secret") + b"\1" + block)
    yield _of(Code.UPDATE_PERMISSIONS, f"{size.entries} entries", user + block)
    yield _of(Code.GET_USER, f"{size.entries} entries", user)
    yield _of(Code.GET_USERS, f"{size.users} users, two of them with {size.entries} entries")
    yield _of(Code.UPDATE_USER, "", user + b"\1" + wire.str8("renamed") + b"\1\2")
    yield _of(Code.CHANGE_PASSWORD, "", wire.identifier("many") + wire.str8("secret") + wire.str8("other"))
    yield _of(Code.DELETE_USER, f"{size.entries} entries", wire.identifier("many"))
    yield _of(Code.CREATE_PERSONAL_ACCESS_TOKEN, "the last one", act=_new_token)
    yield _of(Code.CREATE_STREAM, f"{size.streams} streams", wire.str8("new"))
    yield _of(Code.UPDATE_STREAM, f"{1000 * size.many} partitions", _at(MANY) + wire.str8("other"))
    created = struct.pack("<I", 1000) + sizes + wire.str8("new")
    yield _of(Code.CREATE_TOPIC, "1,000 partitions", _at(MANY) + created)
    yield _of(Code.UPDATE_TOPIC, f"{size.wide} partitions", _at(WIDE, 0) + sizes + wire.str8("other"))
    yield _of(ExtensionCode.SET_TOPIC_SETTINGS, f"{size.wide} partitions", _durable(WIDE, 0))
    yield _of(ExtensionCode.CHANGE_TOPIC, f"{size.wide} partitions", ChangeTopic(WIDE, 0, "another").encode())
    yield _of(ExtensionCode.SET_TOPIC_SETTINGS, f"{size.crowd} at once", act=_all_at_once)
    yield _of(Code.CREATE_CONSUMER_GROUP, f"{size.wide} partitions", _at(WIDE, 0) + wire.str8("g2"))
    yield _of(Code.CREATE_CONSUMER_GROUP, f"{size.groups} groups", _at(NARROW, 0) + wire.str8("new"))
    large = wire.batch(NARROW, 0, wire.to_partition(0), [wire.message(bytes(1_000_000))] * size.large)
    yield _of(Code.SEND_MESSAGES, f"{size.large} MB", large)
    yield _of(Code.POLL_MESSAGES, f"{size.large} MB", _poll(100))
    yield _of(ExtensionCode.ANNOUNCE_HEARTBEAT, "", struct.pack("<I", 60_000))
    yield _of(ExtensionCode.LEASE_FILES, "", _at(NARROW, 0) + struct.pack("<IQI", 0, 0, 600))
    yield _of(ExtensionCode.UNUSED_OFFSETS, "", _at(NARROW, 0) + struct.pack("<IIQB", 0, 0, 0, 0))
    yield _of(ExtensionCode.INIT_PRODUCER, "", InitProducer().encode())
    sent_once = wire.batch(NARROW, 0, wire.to_partition(0), [wire.message(bytes(1_000_000))] * 2)
    digested = send_once_digest_head(1, 0, 0, 7) + sent_once
    yield _of(ExtensionCode.SEND_ONCE_DIGEST, "2 MB of a stranger", digested)
    yield _of(ExtensionCode.SEND_ONCE, "2 MB of a stranger", send_once_head(1, 0, 0) + sent_once)
    yield _of(ExtensionCode.POLL_AND_WAIT, f"{size.large} MB", _poll(100) + struct.pack("<I", 1))
    yield _of(ExtensionCode.POLL_POSITION, f"{size.large} MB", _poll(100) + struct.pack("<II", 1, 0))
    small = wire.batch(NARROW, 0, wire.to_partition(1), [wire.message(b"")] * size.small)
    yield _of(Code.SEND_MESSAGES, f"{size.small} messages", small)
    yield _of(Code.STORE_CONSUMER_OFFSET, f"{size.offsets} offsets", _reader() + struct.pack("<Q", 0))
    yield _of(ExtensionCode.STORE_POSITION, f"{size.offsets} offsets", act=_store_position)


def _members(size: Size) -> Iterator[Question]:
    what = f"{size.wide} partitions, {size.members} members"
    yield _of(Code.JOIN_CONSUMER_GROUP, what, act=_join)
    yield _of(Code.GET_CONSUMER_GROUP, what, MEMBER)
    yield _of(Code.GET_CONSUMER_GROUPS, what, _at(WIDE, 0))
    yield _of(Code.GET_CLIENTS, f"{size.connections} clients, {size.members} of them members")
    yield _of(Code.POLL_MESSAGES, f"as a member, {what}", act=_poll_as_member)
    more = _at(WIDE, 0) + struct.pack("<I", 1000)
    yield _of(Code.CREATE_PARTITIONS, what, more)
    yield _of(Code.DELETE_PARTITIONS, what, more)
    yield _of(Code.LEAVE_CONSUMER_GROUP, what, act=_leave)
    yield _of(Code.DELETE_CONSUMER_GROUP, what, MEMBER)


def _taking_away(size: Size) -> Iterator[Question]:
    yield _of(Code.DELETE_CONSUMER_OFFSET, f"{size.offsets} offsets", _reader())
    yield _of(Code.DELETE_SEGMENTS, "", _at(NARROW, 0) + struct.pack("<II", 0, 1))
    yield _of(Code.DELETE_PERSONAL_ACCESS_TOKEN, f"{size.tokens} tokens", wire.str8("t1"))
    yield _of(Code.PURGE_TOPIC, f"{size.wide} partitions", _at(WIDE, 0))
    yield _of(Code.PURGE_STREAM, f"{1000 * size.many} partitions", _at(MANY))
    yield _of(Code.DELETE_TOPIC, f"{size.wide} partitions", _at(WIDE, 0))
    yield _of(Code.DELETE_TOPIC, f"{size.groups} groups, {size.offsets} offsets", _at(NARROW, 0))
    yield _of(Code.DELETE_STREAM, f"{size.topics} topics", _at(TOPICS))
    yield _of(Code.DELETE_USER, f"one of {size.users}", wire.identifier("u2"))


def permissions_block(entries: int) -> bytes:
    """As CREATE_USER and UPDATE_PERMISSIONS have it: streams with topics, an entry each."""
    each = min(entries, 4000)
    topics = Map({number: TopicPermissions() for number in range(each - 1)})
    streams = Map({number: StreamPermissions(topics=topics) for number in range(entries // each)})
    return b"\1" + encode_permissions(Permissions(streams=streams))


def _all_at_once(asker: Asker) -> None:
    """Each waits for its turn at the metadata: so many tasks that the collector looks at."""
    asker.together(ExtensionCode.SET_TOPIC_SETTINGS, _durable("s0", "t"), asker.size.crowd)


def _durable(stream: int | str, topic: int | str) -> bytes:
    return SetTopicSettings(stream, topic, (("ack", "durable"),)).encode()


def _new_token(asker: Asker) -> None:
    asker.root.request(Code.DELETE_PERSONAL_ACCESS_TOKEN, wire.str8("t2"))
    asker.root.request(Code.CREATE_PERSONAL_ACCESS_TOKEN, wire.str8("new") + bytes(8))


def _scrape(asker: Asker) -> None:
    """All that the door for metrics asks of the workers."""
    connection = http.client.HTTPConnection(*asker.metrics, timeout=120)
    connection.request("GET", "/metrics")
    answer = connection.getresponse()
    assert answer.status == 200 and b"shardd_group_lag_messages" in answer.read()
    connection.close()


def _join(asker: Asker) -> None:
    for member in asker.crowd[: asker.size.members]:
        member.request(Code.JOIN_CONSUMER_GROUP, MEMBER)


def _leave(asker: Asker) -> None:
    for member in asker.crowd[: asker.size.members]:
        member.request(Code.LEAVE_CONSUMER_GROUP, MEMBER)


def _store_position(asker: Asker) -> None:
    answer = asker.root.request(ExtensionCode.POLL_POSITION, _poll(1) + struct.pack("<II", 1, 0))
    history = struct.pack("<QI", PositionHead.read(Reader(answer)).incarnation, 0)
    asker.root.request(ExtensionCode.STORE_POSITION, history + _reader() + struct.pack("<Q", 0))


def _poll_as_member(asker: Asker) -> None:
    for member in asker.crowd[: asker.size.members]:
        for _ in range(3):
            member.poll(WIDE, 0, None, strategy=wire.POLL_NEXT, who=wire.group(0))
