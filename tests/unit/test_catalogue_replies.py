"""The reply of each row reads what the classic table writes: a door that passes payloads shows what a service says."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardd.dispatch.classic.commands import command_table, door_table
from shardd.protocol import (
    access_tokens,
    account_replies,
    bounds,
    extensions,
    heartbeats,
    producers,
    replies,
    system_replies,
)
from shardd.protocol import topic_settings as of_topics
from shardd.protocol import unused_offsets as unused
from shardd.protocol.catalogue import COMMANDS
from shardd.protocol.codes import Code
from shardd.protocol.errors import ShardError
from shardd.protocol.extensions import DoorCode, ExtensionCode
from shardd.protocol.positions import PositionHead
from shardd.protocol.reply_forms import each, empty, one, raw
from shardd.service.bounds import TopicPartitions
from shardd.service.groups import NothingPolled
from shardd.service.messages import PolledMessages
from tests.property.test_protocol_round_trip import rights, u8, u32, u64
from tests.support.generated import examples
from tests.unit.test_catalogue import SERVICES

ENCODINGS: Final = {code: command.encode for code, command in (command_table(SERVICES) | door_table(SERVICES)).items()}
u16 = st.integers(0, 2**16 - 1)
f32 = st.floats(width=32, allow_nan=False)
flags = st.booleans()
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def some(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(values, max_size=3).map(tuple)


def same(value: Any) -> Any:
    return value


def pieces(values: Any) -> list[bytes]:
    """Services keep the entries of a list as they are written."""
    return [value.encode() for value in values]


def in_pieces(details: Any) -> Any:
    """Details of a stream or topic with its entries as they are written."""
    field = "topics" if isinstance(details, replies.StreamDetails) else "partitions"
    return msgspec.structs.replace(details, **{field: pieces(getattr(details, field))})


class Case(msgspec.Struct, frozen=True):
    """`values`: what a service finds, `kept`: in the form in which it returns them, `read`: as the reply has them."""

    values: st.SearchStrategy[Any]
    kept: Callable[[Any], Any] = same
    read: Callable[[Any], Any] = same


streams = st.builds(replies.StreamSummary, u32, u64, u32, u64, u64, names)
topics = st.builds(replies.TopicSummary, u32, u64, u32, u64, u8, u64, u8, u64, u64, names)
partitions = st.builds(replies.PartitionSummary, u32, u64, u32, u64, u64, u64)
groups = st.builds(replies.GroupSummary, u32, u32, u32, names)
members = st.builds(replies.GroupMemberSummary, u32, some(u32))
clients = st.builds(
    system_replies.ClientSummary,
    u32,
    st.none() | st.integers(0, 2**32 - 2),
    names,
    some(st.tuples(u32, u32, u32)),
    u8,
)
nodes = st.builds(system_replies.ClusterNode, names, names, u16, u16, u16, u16, u8, u8)
stats = st.builds(
    system_replies.ServerStats,
    *(u32, f32, f32, *[u64] * 8, *[u32] * 4, u64, u32, u32, *[names] * 5, u32, u32, u64, u64),
)
users = st.builds(account_replies.UserDetails, u32, u64, flags, names, rights)
tokens = st.builds(account_replies.TokenSummary, names, u64)
logged_in = st.builds(account_replies.LoggedIn, u32)
segments = st.builds(bounds.SegmentBounds, u64, u64, u64, flags, u8)
places = st.builds(bounds.PartitionBounds, u32, u32, u64, u64, u64, u64, u64, u64, some(segments))
unused_offsets = st.builds(unused.UnusedOffset, u8, u32, u64, u64, u32, u64, st.sampled_from(unused.Members))


@st.composite
def topic_details(draw: st.DrawFn) -> replies.TopicDetails[replies.PartitionSummary]:
    found = draw(st.lists(partitions, max_size=3))
    return replies.TopicDetails(msgspec.structs.replace(draw(topics), partitions_count=len(found)), found)


@st.composite
def metrics(draw: st.DrawFn) -> extensions.Metrics:
    kinds = draw(some(st.tuples(st.sampled_from(extensions.FigureKind), names)))
    figures, latency = (st.tuples(*[u64] * size) for size in (len(kinds), 2))
    shards = st.builds(extensions.ShardMetrics, u32, u32, u64, figures, latency)
    return extensions.Metrics(draw(u64), draw(u64), draw(u32), kinds, 2, draw(some(shards)))


def as_entry(client: system_replies.ClientSummary) -> system_replies.ClientEntry:
    count = len(client.memberships)
    return system_replies.ClientEntry(client.client_id, client.user_id, client.transport, client.address, count)


def entries(values: st.SearchStrategy[Any]) -> Case:
    return Case(st.lists(values, max_size=3), pieces)


def in_selection(topic: bounds.TopicBounds) -> TopicPartitions[bytes]:
    return TopicPartitions(topic.stream_id, topic.topic_id, topic.stream, topic.topic, pieces(topic.partitions))


def polled(value: PolledMessages) -> replies.PolledRecords:
    head = replies.PolledHead(value.partition, value.current_offset, value.count)
    return replies.PolledRecords(head, memoryview(value.records))


def without_rights(user: account_replies.UserDetails) -> account_replies.UserDetails:
    return msgspec.structs.replace(user, permissions=None)


def polled_range(value: PolledMessages) -> replies.PolledRange:
    found = polled(value)
    return replies.PolledRange(found.head, value.incarnation, value.first_offset, value.end, found.records)


ACCESS_TOKEN: Final = Case(st.builds(access_tokens.AccessToken, u32, names.map(lambda text: text * 20), u64))
POLLED: Final = Case(st.builds(PolledMessages, u32, u64, u32, st.binary(max_size=9)), read=polled)
CASES: Final[dict[int, Case]] = {
    Code.GET_STATS: Case(stats),
    Code.GET_SNAPSHOT: Case(st.binary(max_size=9)),
    Code.GET_CLUSTER_METADATA: Case(st.builds(system_replies.ClusterMetadata, names, st.lists(nodes, max_size=3))),
    Code.GET_ME: Case(clients),
    Code.GET_CLIENT: Case(st.none() | clients),
    Code.GET_CLIENTS: Case(st.lists(clients, max_size=3), pieces, lambda found: [as_entry(each) for each in found]),
    Code.GET_USER: Case(st.none() | users),
    Code.GET_USERS: entries(users.map(without_rights)),
    Code.CREATE_USER: Case(users),
    Code.LOGIN_USER: Case(logged_in),
    Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN: Case(logged_in),
    Code.GET_PERSONAL_ACCESS_TOKENS: entries(tokens),
    Code.CREATE_PERSONAL_ACCESS_TOKEN: Case(st.builds(account_replies.TokenSecret, names)),
    Code.POLL_MESSAGES: POLLED,
    Code.GET_CONSUMER_OFFSET: Case(st.none() | st.builds(replies.ConsumerOffset, u32, u64, u64)),
    Code.GET_STREAM: Case(
        st.none() | st.builds(replies.StreamDetails, streams, st.lists(topics, max_size=3)),
        lambda found: found and in_pieces(found),
    ),
    Code.GET_STREAMS: entries(streams),
    Code.CREATE_STREAM: Case(streams),
    Code.GET_TOPIC: Case(st.none() | topic_details(), lambda found: found and in_pieces(found)),
    Code.GET_TOPICS: entries(topics),
    Code.CREATE_TOPIC: Case(topic_details(), in_pieces),
    Code.GET_CONSUMER_GROUP: Case(st.none() | st.builds(replies.GroupDetails, groups, st.lists(members, max_size=3))),
    Code.GET_CONSUMER_GROUPS: entries(groups),
    Code.CREATE_CONSUMER_GROUP: Case(groups),
    ExtensionCode.LIST_EXTENSIONS: Case(
        st.builds(extensions.ExtensionList, names, some(st.builds(extensions.Extension, u32, u16, names)))
    ),
    ExtensionCode.GET_METRICS: Case(metrics()),
    ExtensionCode.ANNOUNCE_HEARTBEAT: Case(st.builds(heartbeats.HeartbeatTimeout, u32)),
    ExtensionCode.GET_PARTITION_BOUNDS: Case(
        some(st.builds(bounds.TopicBounds, u32, u32, names, names, some(places))),
        lambda found: [in_selection(each) for each in found],
    ),
    ExtensionCode.UNUSED_OFFSETS: Case(st.builds(unused.UnusedPage, u32, some(unused_offsets))),
    ExtensionCode.POLL_AND_WAIT: POLLED,
    ExtensionCode.POLL_POSITION: Case(st.just(NothingPolled()), read=lambda _: PositionHead()),
    ExtensionCode.GET_TOPIC_SETTINGS: Case(some(st.builds(of_topics.TopicSetting, names, names, flags))),
    ExtensionCode.INIT_PRODUCER: Case(st.builds(producers.ProducerEpoch, u64, u32, u64)),
}
CASES.update(
    {
        DoorCode.CREATE_ACCESS_TOKEN: ACCESS_TOKEN,
        DoorCode.REFRESH_ACCESS_TOKEN: ACCESS_TOKEN,
        DoorCode.WAIT_FOR_MESSAGES: Case(flags),
        DoorCode.POLL_RANGE: Case(
            st.builds(PolledMessages, u32, u64, u32, st.binary(max_size=9), u64, u64, u64), read=polled_range
        ),
    }
)
BY_THE_ENGINE: Final = (ExtensionCode.SEND_ONCE, ExtensionCode.SEND_ONCE_DIGEST)


def test_each_command_with_an_answer_has_a_case() -> None:
    empty_ones = {code for code, entry in COMMANDS.items() if entry.reply is empty}
    assert CASES.keys() | empty_ones | {*BY_THE_ENGINE} == COMMANDS.keys()
    assert not CASES.keys() & empty_ones


def read_by(reply: Callable[[Any], Any], code: int, value: Any) -> tuple[Any, Any]:
    """What `reply` reads of the answer of a command, and what it has to read."""
    case = CASES[code]
    payload = ENCODINGS[code](case.kept(value))
    assert reply(memoryview(payload)) == reply(payload)
    return reply(payload), case.read(value)


@pytest.mark.parametrize("code", CASES)
@settings(max_examples=examples(30))  # of each
@given(data=st.data())
def test_a_reply_reads_what_the_answer_says(code: int, data: st.DataObject) -> None:
    found, said = read_by(COMMANDS[code].reply, code, data.draw(CASES[code].values))
    assert found == said


@pytest.mark.parametrize("code", CASES)
@given(data=st.data())
@settings(max_examples=examples(10))
def test_a_cut_answer_is_refused_or_is_a_shorter_list(code: int, data: st.DataObject) -> None:
    case = CASES[code]
    payload = ENCODINGS[code](case.kept(data.draw(case.values)))
    if not payload:
        return
    try:
        COMMANDS[code].reply(payload[: data.draw(st.integers(0, len(payload) - 1))])
    except ShardError as error:
        assert error.status == 3


def test_commands_without_an_answer_write_nothing() -> None:
    for code in ENCODINGS.keys() - CASES.keys():
        assert ENCODINGS[code](None) == b"" and COMMANDS[code].reply(b"") is None


def test_a_member_without_the_partition_gets_zeros() -> None:
    zeros = replies.PolledRange(replies.PolledHead(0, 0, 0), 0, 0, 0, b"")
    assert COMMANDS[DoorCode.POLL_RANGE].reply(ENCODINGS[DoorCode.POLL_RANGE](NothingPolled())) == zeros


@pytest.mark.parametrize("code", BY_THE_ENGINE)
def test_a_reply_of_the_engine_is_read(code: int) -> None:
    payload = struct.pack("<B3xIQ", producers.ProducedKind.GAP, 7, 1 << 40)  # native/src/log/producers.h
    assert COMMANDS[code].reply(payload) == producers.Produced(producers.ProducedKind.GAP, 7, 1 << 40)


def test_a_wrong_reply_is_found() -> None:
    topic = replies.TopicSummary(1, 2, 0, 4, 5, 6, 7, 8, 9, "t")
    details: replies.TopicDetails[replies.PartitionSummary] = replies.TopicDetails(topic, [])
    found, said = read_by(each(replies.TopicSummary.read), Code.GET_TOPIC, details)
    assert found != said
    found, said = read_by(COMMANDS[Code.GET_STREAMS].reply, Code.GET_TOPIC, None)
    assert found != said
    found, said = read_by(raw, Code.CREATE_STREAM, replies.StreamSummary(1, 2, 3, 4, 5, "s"))
    assert found != said
    with pytest.raises(ShardError):
        one(replies.TopicDetails.read)(b"")
