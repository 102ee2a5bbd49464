"""Every request survives encode and decode; no payload makes decode raise anything but ShardError 3 or 4."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from immutables import Map

from shardd.protocol import account_requests as accounts
from shardd.protocol import requests
from shardd.protocol.catalogue import decode
from shardd.protocol.codes import Code
from shardd.protocol.command_entry import WireRequest
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.permissions import Permissions, StreamPermissions, TopicPermissions
from shardd.protocol.primitives import Consumer, ConsumerKind, PollingKind
from tests.support.generated import examples

u8 = st.integers(0, 2**8 - 1)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)


def fits(text: str) -> bool:
    return len(text.encode()) <= 255


encodable = st.characters(exclude_categories=["Cs"])
texts = st.text(encodable, max_size=80).filter(fits)
names = st.text(encodable, min_size=1, max_size=80).filter(fits)
identifiers = u32 | names
consumers = st.builds(Consumer, st.sampled_from(ConsumerKind), identifiers)
partitions = st.none() | u32
kinds = st.sampled_from(PollingKind)
booleans = st.booleans()
empty = st.just(requests.Empty())
stream = st.builds(requests.StreamRequest, identifiers)
topic = st.builds(requests.TopicRequest, identifiers, identifiers)
offset = st.builds(requests.OffsetRequest, consumers, identifiers, identifiers, partitions)
counted = st.builds(requests.PartitionsRequest, identifiers, identifiers, u32)
group = st.builds(requests.GroupRequest, identifiers, identifiers, identifiers)
user = st.builds(accounts.UserRequest, identifiers)
topic_rights = st.builds(TopicPermissions, *[booleans] * 4)
stream_rights = st.builds(
    StreamPermissions, *[booleans] * 6, topics=st.dictionaries(u32, topic_rights, max_size=2).map(Map)
)
rights = st.none() | st.builds(
    Permissions, *[booleans] * 10, streams=st.dictionaries(u32, stream_rights, max_size=2).map(Map)
)
some_types = st.lists(st.sampled_from([*accounts.SnapshotType][:-1]), max_size=4).map(tuple)
snapshot_types = some_types | st.just((accounts.SnapshotType.ALL,))

REQUESTS: dict[Code, st.SearchStrategy[WireRequest]] = {
    Code.PING: empty,
    Code.GET_STATS: empty,
    Code.GET_SNAPSHOT: st.builds(accounts.GetSnapshot, st.sampled_from(accounts.SnapshotCompression), snapshot_types),
    Code.GET_CLUSTER_METADATA: empty,
    Code.GET_ME: empty,
    Code.GET_CLIENT: st.builds(requests.GetClient, u32),
    Code.GET_CLIENTS: empty,
    Code.LOGIN_USER: st.builds(requests.Login, names, texts, texts, texts),
    Code.LOGOUT_USER: empty,
    Code.GET_USER: user,
    Code.GET_USERS: empty,
    Code.CREATE_USER: st.builds(accounts.CreateUserRequest, names, texts, u8, rights),
    Code.DELETE_USER: user,
    Code.UPDATE_USER: st.builds(accounts.UpdateUserRequest, identifiers, st.none() | names, st.none() | u8),
    Code.UPDATE_PERMISSIONS: st.builds(accounts.UpdatePermissionsRequest, identifiers, rights),
    Code.CHANGE_PASSWORD: st.builds(accounts.ChangePasswordRequest, identifiers, texts, texts),
    Code.GET_PERSONAL_ACCESS_TOKENS: empty,
    Code.CREATE_PERSONAL_ACCESS_TOKEN: st.builds(accounts.CreateTokenRequest, names, u64),
    Code.DELETE_PERSONAL_ACCESS_TOKEN: st.builds(accounts.DeleteTokenRequest, names),
    Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN: st.builds(accounts.TokenLogin, names),
    Code.POLL_MESSAGES: st.builds(
        requests.PollMessages, consumers, identifiers, identifiers, partitions, kinds, u64, u32, booleans
    ),
    Code.FLUSH_UNSAVED_BUFFER: st.builds(requests.FlushUnsavedBuffer, identifiers, identifiers, u32, booleans),
    Code.GET_CONSUMER_OFFSET: offset,
    Code.STORE_CONSUMER_OFFSET: st.builds(requests.StoreOffset, consumers, identifiers, identifiers, partitions, u64),
    Code.DELETE_CONSUMER_OFFSET: offset,
    Code.GET_STREAM: stream,
    Code.GET_STREAMS: empty,
    Code.CREATE_STREAM: st.builds(requests.CreateStreamRequest, names),
    Code.DELETE_STREAM: stream,
    Code.UPDATE_STREAM: st.builds(requests.UpdateStreamRequest, identifiers, names),
    Code.PURGE_STREAM: stream,
    Code.GET_TOPIC: topic,
    Code.GET_TOPICS: stream,
    Code.CREATE_TOPIC: st.builds(requests.CreateTopicRequest, identifiers, u32, u8, u64, u64, u8, names),
    Code.DELETE_TOPIC: topic,
    Code.UPDATE_TOPIC: st.builds(requests.UpdateTopicRequest, identifiers, identifiers, u8, u64, u64, u8, names),
    Code.PURGE_TOPIC: topic,
    Code.CREATE_PARTITIONS: counted,
    Code.DELETE_PARTITIONS: counted,
    Code.DELETE_SEGMENTS: st.builds(accounts.DeleteSegments, identifiers, identifiers, u32, u32),
    Code.GET_CONSUMER_GROUP: group,
    Code.GET_CONSUMER_GROUPS: topic,
    Code.CREATE_CONSUMER_GROUP: st.builds(requests.CreateGroupRequest, identifiers, identifiers, names),
    Code.DELETE_CONSUMER_GROUP: group,
    Code.JOIN_CONSUMER_GROUP: group,
    Code.LEAVE_CONSUMER_GROUP: group,
}


def test_every_served_code_is_covered() -> None:
    assert set(REQUESTS) == set(Code) - {Code.SEND_MESSAGES}


@pytest.mark.parametrize("code", REQUESTS)
@settings(max_examples=examples(40))  # of each
@given(data=st.data())
def test_round_trip(code: Code, data: st.DataObject) -> None:
    request = data.draw(REQUESTS[code])
    payload = request.encode()
    assert decode(code, payload) == request
    surplus = data.draw(st.binary(max_size=8))
    assert decode(code, payload + surplus) == request
    if payload:
        with pytest.raises(ShardError) as caught:
            decode(code, payload[: data.draw(st.integers(0, len(payload) - 1))])
        assert caught.value.status is Status.INVALID_COMMAND


@given(st.sampled_from(Code), st.binary(max_size=64))
def test_noise_is_refused_with_3_or_4(code: Code, payload: bytes) -> None:
    try:
        request = decode(code, payload)
    except ShardError as error:
        assert error.status in (Status.INVALID_COMMAND, Status.INVALID_FORMAT)
    else:
        assert decode(code, request.encode()) == request
