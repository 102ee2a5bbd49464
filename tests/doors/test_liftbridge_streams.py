"""CreateStream, DeleteStream, PauseStream and SetStreamReadonly of Liftbridge on a real server: every row of its
tables, with statuses and texts."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from tests.doors.liftbridge_server import EndedError, LiftbridgeClient, LiftbridgeServer
from tests.support import wire
from tests.support.serving import Serving

INVALID, MISSING = "INVALID_ARGUMENT", "NOT_FOUND"
SERVER: Final = Serving(LiftbridgeServer)


@pytest.fixture
def client(server: LiftbridgeServer) -> Iterator[LiftbridgeClient]:
    with server.client() as connected:
        yield connected


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ({"name": "", "subject": ""}, (INVALID, "Name cannot be empty")),
        ({"name": "x", "subject": ""}, (INVALID, "Subject is invalid")),
        ({"name": "x", "subject": "a b"}, (INVALID, "Subject is invalid")),
        ({"name": "x", "subject": "a..b"}, (INVALID, "Subject is invalid")),
        ({"name": "__cursors", "subject": "a"}, (INVALID, "Stream is reserved")),
        ({"name": "__activity", "subject": "a"}, (INVALID, "Stream is reserved")),
        ({"name": "taken", "subject": "a", "replicationFactor": -2}, (INVALID, "Invalid replicationFactor -2")),
        (
            {"name": "taken", "subject": "a", "replicationFactor": 2},
            (INVALID, "Invalid replicationFactor 2, cluster size 1"),
        ),
        ({"name": "taken", "subject": "other"}, ("ALREADY_EXISTS", "stream already exists")),
    ],
)
def test_a_creation_is_refused_with_the_first_reason(
    client: LiftbridgeClient, request_: dict[str, Any], status: tuple[str, str]
) -> None:
    client.status("CreateStream", name="taken", subject="taken")
    assert client.status("CreateStream", **request_) == status


@pytest.mark.parametrize(
    "request_",
    [
        {"name": "crash", "subject": "crash", "partitions": -1},
        {"name": "with space", "subject": "crash"},
        {"name": ">", "subject": "crash.>", "partitions": 2},
        {"name": "crash", "subject": "crash", "cleanerInterval": {"value": -1}},
        {"name": "crash", "subject": "crash", "segmentMaxBytes": {"value": -1}},
    ],
)
def test_what_ends_a_liftbridge_server_is_refused(client: LiftbridgeClient, request_: dict[str, Any]) -> None:
    assert client.status("CreateStream", **request_)[0] == INVALID
    assert client.status("FetchMetadata") == ("OK", "")


def test_what_this_server_does_not_do_is_said(client: LiftbridgeClient) -> None:
    encrypted = client.status("CreateStream", name="no", subject="no", encryption={"value": True})
    assert encrypted == ("FAILED_PRECONDITION", "encryption: this server does not encrypt what it stores")
    compacted = client.status("CreateStream", name="no", subject="no", compactEnabled={"value": True})
    assert compacted == (INVALID, "compactEnabled: this server does not compact by key yet")
    client.create("no", compactEnabled={"value": False}, encryption={"value": False})


def test_a_stream_is_there_with_all_its_partitions_when_its_creation_is_answered(client: LiftbridgeClient) -> None:
    client.create("made", 4, subject="sub.made")
    [made] = client.call("FetchMetadata", streams=["made"]).streamMetadata
    assert (made.name, made.subject, sorted(made.partitions), made.error) == ("made", "sub.made", [0, 1, 2, 3], 0)
    assert made.creationTimestamp > 1_700_000_000 * 10**9
    assert client.publish("made", b"at once", partition=3).msgSubject == "sub.made.3"


def test_a_stream_is_a_topic_that_native_clients_read(server: LiftbridgeServer, client: LiftbridgeClient) -> None:
    client.create("both")
    client.publish("both", b"from liftbridge")
    with wire.connect(server.address) as tcp:
        polled = tcp.poll("liftbridge-default", "both", 0, count=10)
        assert [each.payload for each in polled.messages] == [b"from liftbridge"]
        tcp.send("liftbridge-default", "both", wire.to_partition(0), [wire.message(b"from tcp")])
    assert [each.value for each in client.read("both", 2)] == [b"from liftbridge", b"from tcp"]


def test_a_deletion(client: LiftbridgeClient) -> None:
    assert client.status("DeleteStream", name="__cursors") == (INVALID, "Stream is reserved")
    assert client.status("DeleteStream", name="nothing") == (MISSING, "stream does not exist")
    assert client.status("DeleteStream", name="") == (MISSING, "stream does not exist")
    client.create("gone")
    client.publish("gone", b"x")
    client.call("PauseStream", name="gone")
    client.call("DeleteStream", name="gone")
    [described] = client.call("FetchMetadata", streams=["gone"]).streamMetadata
    assert described.error == 1
    client.create("gone")
    assert client.publish("gone", b"anew").offset == 0


def test_a_deletion_ends_its_subscriptions(client: LiftbridgeClient) -> None:
    client.create("followed")
    with client.subscribe("followed") as subscription:
        client.call("DeleteStream", name="followed")
        assert subscription.end() == (MISSING, "commit log was deleted")


@pytest.mark.parametrize(
    ("method", "more"), [("PauseStream", {}), ("SetStreamReadonly", {"readonly": True})], ids=["pause", "readonly"]
)
def test_pause_and_readonly_of_what_is_not_there(client: LiftbridgeClient, method: str, more: dict[str, Any]) -> None:
    client.status("CreateStream", name="four", subject="four", partitions=4)
    assert client.status(method, name="nothing", **more) == (MISSING, "stream not found")
    assert client.status(method, name="nothing", partitions=[0], **more) == (MISSING, "stream does not exist")
    for partitions in ([0, 4], [-1]):
        refused = client.status(method, name="four", partitions=partitions, **more)
        assert refused == (MISSING, "partition does not exist")
    [four] = client.call("FetchMetadata", streams=["four"]).streamMetadata
    assert not any(each.paused or each.readonly for each in four.partitions.values())


def test_a_publish_resumes_its_partition_and_with_resume_all_every_one(client: LiftbridgeClient) -> None:
    client.create("paused", 3)

    def paused() -> list[int]:
        [described] = client.call("FetchMetadata", streams=["paused"]).streamMetadata
        return sorted(id_ for id_, each in described.partitions.items() if each.paused)

    client.call("PauseStream", name="paused")
    assert paused() == [0, 1, 2]
    client.call("PauseStream", name="paused")  # again
    assert client.publish("paused", b"wake", partition=1).offset == 0
    assert paused() == [0, 2]
    client.call("PauseStream", name="paused", partitions=[1], resumeAll=True)
    client.publish("paused", b"wake", partition=0)
    assert paused() == []
    times = client.partition("paused", 1).pauseTimestamps
    assert 0 < times.firstTimestamp < times.latestTimestamp


def test_a_native_send_is_stored_and_resumes(server: LiftbridgeServer, client: LiftbridgeClient) -> None:
    client.create("woken", 3)

    def paused() -> list[int]:
        [described] = client.call("FetchMetadata", streams=["woken"]).streamMetadata
        return sorted(id_ for id_, each in described.partitions.items() if each.paused)

    client.call("PauseStream", name="woken")
    with wire.connect(server.address) as tcp:
        tcp.send("liftbridge-default", "woken", wire.to_partition(1), [wire.message(b"native")])
        until(lambda: paused() == [0, 2])
        until(lambda: values(client, "woken", 1) == [b"native"])
        client.call("PauseStream", name="woken", partitions=[1], resumeAll=True)
        assert paused() == [0, 1, 2]
    os.kill(server.worker_pids()[1], signal.SIGKILL)  # who has opened them anew knows it, too
    until(lambda: native_send(server, 2))
    until(lambda: paused() == [])


def values(client: LiftbridgeClient, stream: str, partition: int) -> list[bytes]:
    """Of its first message; none while the door takes it for paused."""
    try:
        return [each.value for each in client.read(stream, 1, partition)]
    except EndedError as error:
        assert error.status == ("FAILED_PRECONDITION", "commit log was closed")
        return []


def native_send(server: LiftbridgeServer, partition: int) -> bool:
    """Whether it is taken: a worker may be on its way back."""
    try:
        with wire.connect(server.address) as tcp:
            tcp.send("liftbridge-default", "woken", wire.to_partition(partition), [wire.message(b"native")])
    except (wire.StatusError, OSError):
        return False
    return True


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_comes_by_subject_does_not_resume(client: LiftbridgeClient) -> None:
    client.create("asleep")
    client.call("PauseStream", name="asleep")
    assert client.status("PublishToSubject", subject="asleep", value=b"lost")[0] == "DEADLINE_EXCEEDED"
    assert client.publish("asleep", b"kept").offset == 0


def test_readonly_survives_pause_and_resume(client: LiftbridgeClient) -> None:
    client.create("kept-readonly")
    client.publish("kept-readonly", b"x")
    client.call("SetStreamReadonly", name="kept-readonly", readonly=True)
    client.call("SetStreamReadonly", name="kept-readonly", readonly=True)
    readonly = ("FAILED_PRECONDITION", "readonly partition: 0")
    assert client.status("Publish", stream="kept-readonly", value=b"x") == readonly
    client.call("PauseStream", name="kept-readonly")
    assert client.status("Publish", stream="kept-readonly", value=b"x") == readonly
    with client.subscribe("kept-readonly", startPosition=2, resume=True) as subscription:
        assert subscription.told() == ["E", 0, ("RESOURCE_EXHAUSTED", "Stop offset reached")]
    assert client.status("Publish", stream="kept-readonly", value=b"x") == readonly
    assert client.partition("kept-readonly").readonly
    client.call("SetStreamReadonly", name="kept-readonly", readonly=False)
    assert client.publish("kept-readonly", b"y").offset == 1


def test_native_producers_are_bound_by_readonly_too(server: LiftbridgeServer, client: LiftbridgeClient) -> None:
    client.create("native-readonly")
    client.call("SetStreamReadonly", name="native-readonly", readonly=True)
    with wire.connect(server.address) as tcp, pytest.raises(wire.StatusError) as refused:
        tcp.send("liftbridge-default", "native-readonly", wire.to_partition(0), [wire.message(b"x")])
    assert refused.value.status == 4010
