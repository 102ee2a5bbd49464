"""Cursors, consumer groups, metadata, health and reflection of Liftbridge on a real server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from shardd.protocol.liftbridge import api
from tests.doors.liftbridge_server import EndedError, LiftbridgeClient, LiftbridgeServer
from tests.support import wire
from tests.support.serving import Serving

PRECONDITION = "FAILED_PRECONDITION"
EPOCH_DIFFERS = (PRECONDITION, "client-provided group epoch differs from broker group epoch")
SERVER: Final = Serving(
    LiftbridgeServer, {"SHARDD_LIFTBRIDGE_GROUP_CONSUMER_TIMEOUT": "2 s", "SHARDD_LIFTBRIDGE_SERVER_ID": "srv1"}
)


@pytest.fixture
def client(server: LiftbridgeServer) -> Iterator[LiftbridgeClient]:
    with server.client() as connected:
        yield connected


# ---- cursors ----


def cursor(client: LiftbridgeClient, stream: str, id_: str, partition: int = 0) -> int:
    return int(client.call("FetchCursor", stream=stream, cursorId=id_, partition=partition).offset)


def test_cursors_are_what_was_set_last(client: LiftbridgeClient) -> None:
    assert cursor(client, "as", "c1") == -1
    for offset in (42, -7, 0, 2**63 - 1, -(2**63)):
        client.call("SetCursor", stream="as", cursorId="c1", offset=offset)
        assert cursor(client, "as", "c1") == offset
    assert cursor(client, "as", "c1", 1) == -1


def test_cursor_outlives_its_stream_and_may_be_set_before_it(client: LiftbridgeClient) -> None:
    client.call("SetCursor", stream="outlived", cursorId="c", offset=5)
    for offset in (6, 7):
        client.create("outlived")
        assert cursor(client, "outlived", "c") == offset - 1
        client.call("SetCursor", stream="outlived", cursorId="c", offset=offset)
        client.call("DeleteStream", name="outlived")
        assert cursor(client, "outlived", "c") == offset


def test_the_parts_of_a_cursor_do_not_run_into_each_other(client: LiftbridgeClient) -> None:
    client.call("SetCursor", stream="b", cursorId="x,a", offset=1)
    client.call("SetCursor", stream="a,b", cursorId="x", offset=2)
    assert (cursor(client, "b", "x,a"), cursor(client, "a,b", "x")) == (1, 2)


@pytest.mark.parametrize("method", ["SetCursor", "FetchCursor"])
def test_what_a_cursor_needs(client: LiftbridgeClient, method: str) -> None:
    assert client.status(method, cursorId="c") == ("INVALID_ARGUMENT", "No stream provided")
    assert client.status(method, stream="s") == ("INVALID_ARGUMENT", "No cursorId provided")


def test_a_cursor_is_a_record_that_everybody_can_read(client: LiftbridgeClient) -> None:
    client.call("SetCursor", stream="as", cursorId="c1", offset=42)
    newest = client.partition("__cursors").newestOffset
    with client.subscribe("__cursors", startPosition=1, startOffset=newest) as subscription:
        [record] = subscription.messages(1)
    assert (record.key, record.value.hex()) == (b"c1,as,0", "0a0261731a026331202a")
    assert record.subject == "liftbridge-default.cursors"


def test_cursors_outlive_the_door_and_the_server(tmp_path: Path) -> None:
    with LiftbridgeServer(tmp_path / "data", {"SHARDD_LIFTBRIDGE_CURSORS_PARTITIONS": "3"}) as server:
        with server.client() as client:
            for number in range(50):
                client.call("SetCursor", stream="s", cursorId=f"c{number % 20}", offset=number)
        door = server.door()
        door.kill()
        server.door(other_than=door.pid)
        with server.client() as client:
            assert [cursor(client, "s", f"c{number}") for number in range(20)] == [
                number + (40 if number < 10 else 20) for number in range(20)
            ]
        server.stop()
        server.start()
        with server.client() as client:
            assert cursor(client, "s", "c9") == 49 and cursor(client, "s", "c19") == 39


def test_without_cursors(tmp_path: Path) -> None:
    settings = {"SHARDD_LIFTBRIDGE_CURSORS_PARTITIONS": "0"}
    with LiftbridgeServer(tmp_path / "data", settings) as server, server.client() as client:
        refused = client.status("SetCursor", stream="s", cursorId="c")
        assert refused == ("INTERNAL", "Cursors stream does not exist")
        assert not client.call("FetchMetadata").streamMetadata


# ---- consumer groups ----


def epoch(client: LiftbridgeClient, group: str) -> int:
    [found] = client.call("FetchMetadata", groups=[group]).groupMetadata
    assert (found.error, found.coordinator) == (0, "srv1")
    return int(found.epoch)


def assigned(client: LiftbridgeClient, group: str, consumer: str) -> dict[str, list[int]]:
    """A member may leave between the two questions: then the epoch is asked again, as the clients do."""
    before = -1
    while True:
        now = epoch(client, group)
        assert now != before, "refused twice with one epoch"
        before = now
        try:
            said = client.call("FetchConsumerGroupAssignments", groupId=group, consumerId=consumer, epoch=now)
        except EndedError as error:
            if error.status != EPOCH_DIFFERS:
                raise
            continue
        return {each.stream: [*each.partitions] for each in said.assignments}


def test_partitions_move_as_members_come_and_go(client: LiftbridgeClient) -> None:
    """The worked example of Liftbridge's description."""
    client.create("cg1", 5)
    client.create("cg2", 2)
    joined = client.call("JoinConsumerGroup", groupId="cg", consumerId="c2", streams=["cg1", "cg2"])
    assert (joined.coordinator, joined.epoch) == ("srv1", 0)
    assert (joined.consumerTimeout, joined.coordinatorTimeout) == (2 * 10**9, 15 * 10**9)
    assert assigned(client, "cg", "c2") == {"cg1": [0, 1, 2, 3, 4], "cg2": [0, 1]}
    second = client.call("JoinConsumerGroup", groupId="cg", consumerId="c1", streams=["cg1"]).epoch
    assert second > 0
    assert assigned(client, "cg", "c1") == {"cg1": [0, 1, 2, 4]}
    assert assigned(client, "cg", "c2") == {"cg1": [3], "cg2": [0, 1]}
    assert client.call("JoinConsumerGroup", groupId="cg", consumerId="c3", streams=["cg1"]).epoch > second
    assert assigned(client, "cg", "c1") == {"cg1": [0, 2, 4]}
    assert assigned(client, "cg", "c3") == {"cg1": [1, 3]}
    client.call("LeaveConsumerGroup", groupId="cg", consumerId="c3")
    assert assigned(client, "cg", "c1") == {"cg1": [0, 1, 2, 4]}
    before = epoch(client, "cg")
    client.call("DeleteStream", name="cg1")
    deadline = time.monotonic() + 30
    while epoch(client, "cg") == before:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert assigned(client, "cg", "c1") == {}
    assert assigned(client, "cg", "c2") == {"cg2": [0, 1]}
    for consumer in ("c1", "c2"):
        client.call("LeaveConsumerGroup", groupId="cg", consumerId=consumer)
    [gone] = client.call("FetchMetadata", groups=["cg"]).groupMetadata
    assert gone.error == 1


def test_group_calls_are_refused_with_the_first_reason(client: LiftbridgeClient) -> None:
    client.create("gs")
    refused: list[tuple[str, dict[str, Any], tuple[str, str]]] = [
        ("JoinConsumerGroup", {"consumerId": "c", "streams": ["gs"]}, ("INVALID_ARGUMENT", "No groupId provided")),
        ("JoinConsumerGroup", {"groupId": "g", "streams": ["gs"]}, ("INVALID_ARGUMENT", "No consumerId provided")),
        ("JoinConsumerGroup", {"groupId": "g", "consumerId": "c"}, ("INVALID_ARGUMENT", "No streams provided")),
        (
            "JoinConsumerGroup",
            {"groupId": "g", "consumerId": "c", "streams": ["gs", "nothing"]},
            (PRECONDITION, "stream does not exist"),
        ),
        ("LeaveConsumerGroup", {"groupId": "g"}, ("INVALID_ARGUMENT", "No consumerId provided")),
        (
            "LeaveConsumerGroup",
            {"groupId": "nothing", "consumerId": "c"},
            ("NOT_FOUND", "consumer group does not exist"),
        ),
        ("FetchConsumerGroupAssignments", {"groupId": ""}, ("INVALID_ARGUMENT", "No groupId provided")),
        (
            "FetchConsumerGroupAssignments",
            {"groupId": "nothing", "consumerId": "c"},
            ("NOT_FOUND", "consumer group does not exist"),
        ),
        (
            "ReportConsumerGroupCoordinator",
            {"groupId": "g", "consumerId": "c"},
            ("INVALID_ARGUMENT", "No coordinator provided"),
        ),
        (
            "ReportConsumerGroupCoordinator",
            {"groupId": "x", "consumerId": "c", "coordinator": "srv1"},
            (PRECONDITION, "No such consumer group x"),
        ),
    ]
    for method, fields, status in refused:
        assert client.status(method, **fields) == status, (method, fields)
    client.call("JoinConsumerGroup", groupId="g", consumerId="c", streams=["gs"])
    again = client.status("JoinConsumerGroup", groupId="g", consumerId="c", streams=["gs"])
    assert again == (PRECONDITION, "consumer is already a member of the consumer group")
    member = {"groupId": "g", "consumerId": "zz"}
    no_member = (PRECONDITION, "consumer is not a member of the consumer group")
    assert client.status("LeaveConsumerGroup", **member) == no_member
    assert client.status("FetchConsumerGroupAssignments", **member) == no_member
    stale = client.status("FetchConsumerGroupAssignments", **member, epoch=99)
    assert stale == (PRECONDITION, "client-provided group epoch differs from broker group epoch")
    assert client.status("ReportConsumerGroupCoordinator", **member, coordinator="srvX") == (
        PRECONDITION,
        "Coordinator generation mismatch, current coordinator: srv1 epoch: 0, got coordinator: srvX epoch: 0",
    )
    assert client.status("ReportConsumerGroupCoordinator", **member, coordinator="srv1") == (
        PRECONDITION,
        "Consumer zz is not a member of consumer group g",
    )
    reported = client.status("ReportConsumerGroupCoordinator", groupId="g", consumerId="c", coordinator="srv1")
    assert reported == (PRECONDITION, "No group coordinator candidates")


def test_who_is_silent_leaves_and_who_asks_stays(client: LiftbridgeClient) -> None:
    client.create("silent", 2)
    for consumer in ("alive", "dead"):
        client.call("JoinConsumerGroup", groupId="silent", consumerId=consumer, streams=["silent"])
    assert assigned(client, "silent", "alive") == {"silent": [0]}
    deadline = time.monotonic() + 30
    while assigned(client, "silent", "alive") != {"silent": [0, 1]}:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    client.call("JoinConsumerGroup", groupId="silent", consumerId="dead", streams=["silent"])


def test_groups_outlive_the_door_and_their_clocks_begin_anew(tmp_path: Path) -> None:
    with LiftbridgeServer(tmp_path / "data", {"SHARDD_LIFTBRIDGE_GROUP_CONSUMER_TIMEOUT": "3 s"}) as server:
        with server.client() as client:
            client.create("s")
            client.call("JoinConsumerGroup", groupId="g", consumerId="c", streams=["s"])
        door = server.door()
        door.kill()
        server.door(other_than=door.pid)
        with server.client() as client:
            again = client.status("JoinConsumerGroup", groupId="g", consumerId="c", streams=["s"])
            assert again[0] == PRECONDITION
            deadline = time.monotonic() + 30
            while client.status("JoinConsumerGroup", groupId="g", consumerId="c", streams=["s"])[0] != "OK":
                assert time.monotonic() < deadline
                time.sleep(0.2)


# ---- metadata ----


def test_metadata_names_one_broker_where_the_client_is(server: LiftbridgeServer, client: LiftbridgeClient) -> None:
    client.create("counted", 3)
    found = client.call("FetchMetadata")
    [broker] = found.brokers
    assert (broker.id, f"{broker.host}:{broker.port}") == ("srv1", server.liftbridge_address)
    there = {each.name: each for each in found.streamMetadata}
    assert {"__cursors", "counted"} <= there.keys() and "__activity" not in there
    assert broker.partitionCount == broker.leaderCount == sum(len(each.partitions) for each in there.values())
    assert there["__cursors"].subject == "liftbridge-default.cursors"
    client.call("PauseStream", name="counted", partitions=[0, 2])
    assert client.call("FetchMetadata").brokers[0].partitionCount == broker.partitionCount - 2


def test_metadata_has_an_entry_for_each_name_that_is_asked_for(client: LiftbridgeClient) -> None:
    client.create("known")
    found = client.call("FetchMetadata", streams=["known", "nothing", "known"], groups=["nothing", "nothing"])
    assert [(each.name, each.error) for each in found.streamMetadata] == [("known", 0), ("nothing", 1), ("known", 0)]
    assert [(each.groupId, each.error) for each in found.groupMetadata] == [("nothing", 1), ("nothing", 1)]


def test_metadata_of_a_partition(client: LiftbridgeClient) -> None:
    client.create("described", 2)
    for partition in (-1, 2):
        missing = client.status("FetchPartitionMetadata", stream="described", partition=partition)
        assert missing == ("NOT_FOUND", "partition not found")
    assert client.status("FetchPartitionMetadata", stream="nothing") == ("NOT_FOUND", "partition not found")
    empty = client.partition("described", 1)
    assert (empty.id, empty.leader, [*empty.replicas], [*empty.isr]) == (1, "srv1", ["srv1"], ["srv1"])
    assert (empty.highWatermark, empty.newestOffset) == (-1, -1)
    assert empty.messagesReceivedTimestamps.latestTimestamp == 0
    first = client.publish("described", b"x", partition=1).receptionTimestamp
    last = client.publish("described", b"x", partition=1).receptionTimestamp
    for described in (
        client.partition("described", 1),
        client.call("FetchMetadata", streams=["described"]).streamMetadata[0].partitions[1],
    ):
        assert (described.highWatermark, described.newestOffset) == (1, 1)
        received = described.messagesReceivedTimestamps
        assert (received.firstTimestamp, received.latestTimestamp) == (first, last)
    client.call("PauseStream", name="described", partitions=[1])
    paused = client.status("FetchPartitionMetadata", stream="described", partition=1)
    assert paused == (PRECONDITION, "The request should be sent to partition leader")


def test_metadata_of_many_partitions(client: LiftbridgeClient) -> None:
    for number in range(3):
        client.create(f"wide-{number}", 1_000)
    found = client.call("FetchMetadata", streams=[f"wide-{number}" for number in range(3)])
    assert [sorted(each.partitions) for each in found.streamMetadata] == [[*range(1_000)]] * 3
    for number in range(3):
        client.call("DeleteStream", name=f"wide-{number}")


def test_a_stream_that_was_made_natively_in_the_namespace(server: LiftbridgeServer, client: LiftbridgeClient) -> None:
    with wire.connect(server.address) as tcp:
        tcp.create_topic("liftbridge-default", "by-iggy", 2)
    deadline = time.monotonic() + 30
    while client.call("FetchMetadata", streams=["by-iggy"]).streamMetadata[0].error:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert client.publish("by-iggy", b"x", partition=1).msgSubject == "by-iggy.1"


# ---- health and reflection ----


def test_health(client: LiftbridgeClient) -> None:
    check = client.channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        health_pb2.HealthCheckRequest.SerializeToString,
        health_pb2.HealthCheckResponse.FromString,
    )
    for service in ("", api.SERVICE):
        assert check(health_pb2.HealthCheckRequest(service=service)).status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as ended:
        check(health_pb2.HealthCheckRequest(service="other"))
    assert (ended.value.code(), ended.value.details()) == (grpc.StatusCode.NOT_FOUND, "unknown service")


def test_reflection_shows_the_service_as_it_is(client: LiftbridgeClient) -> None:
    ask: Any = client.channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=api.SERVICE),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="grpc.health.v1.Health"),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="nothing"),
    ]
    services, own, health, nothing = ask(iter(requests))
    assert api.SERVICE in {each.name for each in services.list_services_response.service}
    [file] = own.file_descriptor_response.file_descriptor_proto
    [service] = descriptor_pb2.FileDescriptorProto.FromString(file).service
    assert [each.name for each in service.method] == [*api.METHODS]
    assert health.file_descriptor_response.file_descriptor_proto
    assert nothing.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


def test_an_unknown_method(client: LiftbridgeClient) -> None:
    with pytest.raises(grpc.RpcError) as ended:
        client.channel.unary_unary(f"/{api.SERVICE}/Nope")(b"")
    assert ended.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert ended.value.details() == "unknown method Nope for service proto.API"
