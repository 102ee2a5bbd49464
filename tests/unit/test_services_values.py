"""Services are asked with an identity and answer with values: by callers without a connection and a protocol."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from shardd.protocol import account_requests, requests
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.replies import PartitionSummary, StreamSummary, TopicSummary
from shardd.service.identity import Identity
from shardd.service.services import Services
from tests.unit.services_harness import Workers

Value = TypeVar("Value")


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("data"), shards=2) as running:
        running.create_user("plain")
        yield running


@pytest.fixture
def services(workers: Workers) -> Services:
    """Of the shard that does not write the metadata."""
    return workers.context(1).services


def as_is(value: Value) -> Value:
    return value


def ask(workers: Workers, work: Coroutine[Any, Any, Value]) -> Value:
    return workers.call(work, 1)


def status_of(workers: Workers, work: Coroutine[Any, Any, object]) -> Status:
    with pytest.raises(ShardError) as caught:
        ask(workers, work)
    return caught.value.status


def root(workers: Workers) -> Identity:
    return Identity(0, workers.root_ref().incarnation)


def test_streams_topics_and_partitions_are_values(workers: Workers, services: Services) -> None:
    identity = root(workers)
    made = ask(workers, services.streams.create_stream(identity, requests.CreateStreamRequest("values")))
    assert (made.name, made.topics_count, made.size_bytes) == ("values", 0, 0)
    create = requests.CreateTopicRequest(made.id, 3, 1, 0, 0, 0, "tp")
    topic = ask(workers, services.topics.create_topic(identity, create, as_is))
    assert [(each.id, each.segments_count) for each in topic.partitions] == [(0, 0), (1, 0), (2, 0)]
    details = ask(workers, services.topics.get_topic(identity, requests.TopicRequest("values", "tp"), as_is))
    assert details is not None and details.topic == topic.topic
    assert all(isinstance(each, PartitionSummary) for each in details.partitions)
    [listed] = ask(workers, services.topics.get_topics(identity, requests.StreamRequest(made.id), as_is))
    assert isinstance(listed, TopicSummary) and listed.partitions_count == 3
    stream = ask(workers, services.streams.get_stream(identity, requests.StreamRequest("values"), as_is))
    assert stream is not None and isinstance(stream.stream, StreamSummary)
    assert stream.stream.topics_count == 1 and stream.topics == [listed]
    names = ask(workers, services.streams.get_streams(identity, requests.Empty(), lambda each: each.name))
    assert names == ["values"]
    ask(workers, services.streams.delete_stream(identity, requests.StreamRequest(made.id)))
    gone = services.streams.get_stream(identity, requests.StreamRequest(made.id), as_is)
    assert ask(workers, gone) is None


def test_refusals_are_errors_of_the_one_taxonomy(workers: Workers, services: Services) -> None:
    identity = root(workers)
    missing = services.topics.delete_topic(identity, requests.TopicRequest("nowhere", "tp"))
    assert status_of(workers, missing) is Status.STREAM_ID_NOT_FOUND
    user = workers.context(1).metadata.state.user_ids["plain"]
    incarnation = workers.context(1).metadata.state.users[user].incarnation
    plain = Identity(user, incarnation)
    create = services.streams.create_stream(plain, requests.CreateStreamRequest("forbidden"))
    assert status_of(workers, create) is Status.UNAUTHORIZED
    nobody = services.streams.create_stream(Identity(None), requests.CreateStreamRequest("forbidden"))
    assert status_of(workers, nobody) is Status.UNAUTHENTICATED


def test_an_identity_of_an_earlier_user_with_the_same_id_changes_nothing(workers: Workers, services: Services) -> None:
    earlier = Identity(0, workers.root_ref().incarnation + 1)
    create = services.streams.create_stream(earlier, requests.CreateStreamRequest("forbidden"))
    assert status_of(workers, create) is Status.UNAUTHORIZED
    assert "forbidden" not in workers.context(1).metadata.state.stream_ids


def test_what_needs_a_connection_is_refused_without_a_session(workers: Workers, services: Services) -> None:
    identity = root(workers)
    stream = ask(workers, services.streams.create_stream(identity, requests.CreateStreamRequest("groups")))
    create = requests.CreateTopicRequest(stream.id, 1, 1, 0, 0, 0, "tp")
    ask(workers, services.topics.create_topic(identity, create, as_is))
    made = ask(workers, services.groups.create_group(identity, requests.CreateGroupRequest(stream.id, 0, "cg")))
    group = requests.GroupRequest(stream.id, 0, made.id)
    assert status_of(workers, services.groups.join_group(identity, group)) is Status.STALE_CLIENT
    assert status_of(workers, services.system.get_me(identity, requests.Empty())) is Status.CLIENT_NOT_FOUND
    login = services.logins.login(Identity(None), requests.Login("iggy", "iggy", "", ""))
    assert status_of(workers, login) is Status.CLIENT_NOT_FOUND
    token = services.logins.login_with_token(Identity(None), account_requests.TokenLogin("x"))
    assert status_of(workers, token) is Status.CLIENT_NOT_FOUND
    ask(workers, services.logins.logout(identity, requests.Empty()))  # there is nothing to end
