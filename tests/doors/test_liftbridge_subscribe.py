"""Subscribe of Liftbridge on a real server: the matrix of its own results (appendix A of its description), what ends a
subscription, groups, and clients that do not read."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import grpc
import psutil
import pytest

from shardd.doors.liftbridge.followers import AT_WORKERS_MAX
from shardd.protocol.account_requests import DeleteSegments
from shardd.protocol.codes import Code
from shardd.protocol.liftbridge import api, api_messages
from tests.doors.liftbridge_server import QUIET_S, LiftbridgeClient, LiftbridgeServer
from tests.support import wire
from tests.support.serving import Serving

NEW_ONLY, OFFSET, EARLIEST, LATEST, TIMESTAMP = range(5)
STOP_OFFSET, STOP_LATEST, STOP_TIMESTAMP = 1, 2, 3
REACHED: Final = ("RESOURCE_EXHAUSTED", "Stop offset reached")
READONLY_END: Final = ("RESOURCE_EXHAUSTED", "End of readonly partition")
CLOSED: Final = ("FAILED_PRECONDITION", "commit log was closed")
FUTURE_NS: Final = 4 * 10**18
TEN: Final = [*range(10)]


def before(stop: int, start: int) -> tuple[str, str]:
    return "INVALID_ARGUMENT", f"Stop offset is before start offset: {stop} < {start}"


SERVER: Final = Serving(LiftbridgeServer)


@pytest.fixture(scope="module")
def client(server: LiftbridgeServer) -> Iterator[LiftbridgeClient]:
    with server.client() as connected:
        yield connected


@pytest.fixture(scope="module")
def times(client: LiftbridgeClient) -> list[int]:
    """Of the messages of `ten`, which has offsets 0 to 9."""
    client.create("ten")
    return [client.publish("ten", b"m%d" % number).receptionTimestamp for number in TEN]


def told(client: LiftbridgeClient, stream: str, **fields: Any) -> list[Any]:
    subscription = client.subscribe(stream, **fields)
    try:
        return subscription.told()
    finally:
        subscription.__exit__(None, None, None)


EMPTY_ROWS: Final[list[tuple[dict[str, int], list[Any]]]] = [
    ({"startPosition": NEW_ONLY}, ["E", "waits"]),
    ({"startPosition": EARLIEST}, ["E", "waits"]),
    ({"startPosition": LATEST}, ["E", "waits"]),
    ({"startPosition": OFFSET, "startOffset": 5}, ["E", "waits"]),
    ({"startPosition": TIMESTAMP, "startTimestamp": 5}, ["E", "waits"]),
    ({"startPosition": TIMESTAMP, "startTimestamp": FUTURE_NS}, ["E", "waits"]),
    ({"startPosition": EARLIEST, "stopPosition": STOP_OFFSET, "stopOffset": 3}, ["E", "waits"]),
    ({"startPosition": EARLIEST, "stopPosition": STOP_LATEST}, [("RESOURCE_EXHAUSTED", "Stream is empty")]),
    (
        {"startPosition": EARLIEST, "stopPosition": STOP_TIMESTAMP, "stopTimestamp": 5},
        [
            (
                "INTERNAL",
                "Failed to lookup offset for timestamp: failed to find log segment for timestamp: EOF",
            )
        ],
    ),
]


@pytest.mark.parametrize(("fields", "result"), EMPTY_ROWS)
def test_the_matrix_of_an_empty_log(client: LiftbridgeClient, fields: dict[str, int], result: list[Any]) -> None:
    client.status("CreateStream", name="empty", subject="empty")
    assert told(client, "empty", **fields) == result


TEN_ROWS: Final[list[tuple[dict[str, int], list[Any]]]] = [
    ({"startPosition": EARLIEST}, ["E", *TEN, "waits"]),
    ({"startPosition": LATEST}, ["E", 9, "waits"]),
    ({"startPosition": OFFSET, "startOffset": 7}, ["E", 7, 8, 9, "waits"]),
    ({"startPosition": OFFSET, "startOffset": -1}, ["E", *TEN, "waits"]),
    ({"startPosition": 9}, [("INVALID_ARGUMENT", "Unknown StartPosition 9")]),
    ({"stopPosition": 9}, [("INVALID_ARGUMENT", "Unknown StopPosition 9")]),
    ({"startPosition": EARLIEST, "stopPosition": STOP_OFFSET, "stopOffset": 3}, ["E", 0, 1, 2, 3, REACHED]),
    ({"startPosition": OFFSET, "startOffset": 3, "stopPosition": STOP_OFFSET, "stopOffset": 3}, ["E", 3, REACHED]),
    ({"startPosition": OFFSET, "startOffset": 4, "stopPosition": STOP_OFFSET, "stopOffset": 3}, [before(3, 4)]),
    ({"startPosition": OFFSET, "startOffset": 9, "stopPosition": STOP_OFFSET, "stopOffset": -1}, ["E", 9, "waits"]),
    ({"startPosition": OFFSET, "startOffset": 7, "stopPosition": STOP_OFFSET, "stopOffset": -2}, [before(-2, 7)]),
    ({"startPosition": OFFSET, "startOffset": 7, "stopPosition": STOP_LATEST}, ["E", 7, 8, 9, REACHED]),
    ({"startPosition": NEW_ONLY, "stopPosition": STOP_LATEST}, [before(9, 10)]),
    ({"startPosition": OFFSET, "startOffset": 8, "stopPosition": STOP_OFFSET, "stopOffset": 14}, ["E", 8, 9, "waits"]),
    (
        {"startPosition": OFFSET, "startOffset": 7, "stopPosition": STOP_TIMESTAMP, "stopTimestamp": FUTURE_NS},
        ["E", 7, 8, 9, REACHED],
    ),
    (
        {"startPosition": EARLIEST, "stopPosition": STOP_TIMESTAMP, "stopTimestamp": 5},
        [("INTERNAL", "Failed to lookup offset for timestamp: timestamp is before the beginning of the log")],
    ),
    ({"startPosition": TIMESTAMP, "startTimestamp": 0}, ["E", *TEN, "waits"]),
    ({"startPosition": TIMESTAMP, "startTimestamp": -5}, ["E", *TEN, "waits"]),
    ({"startPosition": TIMESTAMP, "startTimestamp": FUTURE_NS}, ["E", "waits"]),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "result"), TEN_ROWS)
def test_the_matrix_of_ten_messages(
    client: LiftbridgeClient, times: list[int], fields: dict[str, int], result: list[Any]
) -> None:
    assert told(client, "ten", **fields) == result


def test_the_matrix_of_times(client: LiftbridgeClient, times: list[int]) -> None:
    at = times[4]
    for start, first in ((at, 4), (at + 1, 5)):
        assert told(client, "ten", startPosition=TIMESTAMP, startTimestamp=start) == ["E", *range(first, 10), "waits"]
    for stop, last in ((at, 4), (at + 1, 4), (at - 1, 3)):
        fields = {"startPosition": EARLIEST, "stopPosition": STOP_TIMESTAMP, "stopTimestamp": stop}
        assert told(client, "ten", **fields) == ["E", *range(last + 1), REACHED]


@pytest.mark.parametrize(
    "fields",
    [
        {"startPosition": NEW_ONLY},
        {"startPosition": OFFSET, "startOffset": 100},
        {"startPosition": TIMESTAMP, "startTimestamp": FUTURE_NS},
        {"startPosition": OFFSET, "startOffset": 2},
    ],
)
def test_what_is_published_after_the_empty_message_is_delivered(
    client: LiftbridgeClient, fields: dict[str, int]
) -> None:
    """Whatever its offset is."""
    name = f"live-{fields.get('startOffset', fields['startPosition'])}-{fields['startPosition']}"
    client.create(name)
    client.publish(name, b"old")
    client.publish(name, b"old")
    with client.subscribe(name, **fields) as subscription:
        client.publish(name, b"a")
        client.publish(name, b"b")
        assert [each.offset for each in subscription.messages(2)] == [2, 3]


@pytest.mark.parametrize(
    ("fields", "result"),
    [
        ({"startPosition": EARLIEST}, ["E", 0, 1, 2, REACHED]),
        ({"startPosition": LATEST}, ["E", 2, REACHED]),
        ({"startPosition": NEW_ONLY}, [before(2, 3)]),
        ({"startPosition": OFFSET, "startOffset": 3}, [before(2, 3)]),
        (
            {"startPosition": OFFSET, "startOffset": 3, "stopPosition": STOP_OFFSET, "stopOffset": 5},
            ["E", READONLY_END],
        ),
        (
            {"startPosition": EARLIEST, "stopPosition": STOP_OFFSET, "stopOffset": 9},
            ["E", 0, 1, 2, READONLY_END],
        ),
    ],
)
def test_the_matrix_of_a_readonly_partition(
    client: LiftbridgeClient, fields: dict[str, int], result: list[Any]
) -> None:
    if client.status("CreateStream", name="still", subject="still")[0] == "OK":
        for _ in range(3):
            client.publish("still", b"x")
        client.call("SetStreamReadonly", name="still", readonly=True)
    assert told(client, "still", **fields) == result


def test_a_readonly_partition_without_messages(client: LiftbridgeClient) -> None:
    client.create("still-empty")
    client.call("SetStreamReadonly", name="still-empty", readonly=True)
    for position in (EARLIEST, NEW_ONLY):
        assert told(client, "still-empty", startPosition=position) == ["E", READONLY_END]


def test_a_partition_that_becomes_readonly_ends_when_all_is_read(client: LiftbridgeClient) -> None:
    client.create("stilled")
    with client.subscribe("stilled") as subscription:
        client.publish("stilled", b"x")
        client.call("SetStreamReadonly", name="stilled", readonly=True)
        assert subscription.told() == ["E", 0, READONLY_END]


def test_the_matrix_of_a_paused_partition(client: LiftbridgeClient) -> None:
    client.create("asleep")
    for _ in range(3):
        client.publish("asleep", b"x")
    with client.subscribe("asleep") as subscription:
        client.call("PauseStream", name="asleep")
        assert subscription.told() == ["E", CLOSED]
    for position in (EARLIEST, NEW_ONLY):
        assert told(client, "asleep", startPosition=position) == ["E", CLOSED]
    assert told(client, "asleep", startPosition=EARLIEST, resume=True) == ["E", 0, 1, 2, "waits"]
    assert not client.partition("asleep").paused


def test_what_is_not_there(client: LiftbridgeClient, times: list[int]) -> None:
    missing = [("NOT_FOUND", "No such partition")]
    assert told(client, "nothing") == told(client, "") == missing
    assert told(client, "ten", partition=1) == told(client, "ten", partition=-1) == missing
    anonymous = [("INVALID_ARGUMENT", "Consumer id cannot be empty when group id is provided")]
    assert told(client, "nothing", consumer={"groupId": "g"}) == anonymous


def test_of_a_group_one_subscribes_to_a_partition(client: LiftbridgeClient, times: list[int]) -> None:
    def member(name: str, epoch: int) -> Any:
        return client.subscribe("ten", consumer={"groupId": "sg", "consumerId": name, "groupEpoch": epoch})

    with member("a", 5) as first:
        refused = ("FAILED_PRECONDITION", "Consumer is not currently assigned this partition")
        assert member("b", 4).told() == [refused]
        with member("b", 5) as second:
            assert first.end() == ("OK", "")
            with member("a", 6) as third:
                assert second.end() == ("OK", "")
                assert third.told() == ["E", "waits"]
    deadline = time.monotonic() + 30
    while (left := member("b", 0)).told() != ["E", "waits"]:  # the place is free when its call has ended
        left.__exit__(None, None, None)
        assert time.monotonic() < deadline
    left.__exit__(None, None, None)
    assert told(client, "ten", consumer={"consumerId": "x"}) == ["E", "waits"]


def test_what_a_native_producer_sends_comes_soon(server: LiftbridgeServer, client: LiftbridgeClient) -> None:
    client.create("native")
    with client.subscribe("native") as subscription, wire.connect(server.address) as tcp:
        tcp.send("liftbridge-default", "native", wire.to_partition(0), [wire.message(b"%d" % n) for n in range(3)])
        assert [each.value for each in subscription.messages(3)] == [b"0", b"1", b"2"]


def test_more_subscriptions_than_workers_wait_for_hear_of_native_messages(
    server: LiftbridgeServer, client: LiftbridgeClient
) -> None:
    client.create("crowded")
    subscriptions = [client.subscribe("crowded") for _ in range(AT_WORKERS_MAX + 50)]
    assert all(each.begun() for each in subscriptions)
    with wire.connect(server.address) as tcp:
        for number in range(3):
            tcp.send("liftbridge-default", "crowded", wire.to_partition(0), [wire.message(b"%d" % number)])
            assert {each.messages(number + 1)[-1].value for each in subscriptions} == {b"%d" % number}
    for each in subscriptions:
        each.__exit__(None, None, None)


def test_messages_larger_than_a_window(client: LiftbridgeClient) -> None:
    client.create("large")
    sizes = [10, 900_000, 300_000, 20, 1_000_000, 1]
    for size in sizes:
        client.publish("large", bytes(size))
    assert [len(each.value) for each in client.read("large", len(sizes))] == sizes


def test_many_messages_come_in_order(client: LiftbridgeClient) -> None:
    client.create("many")
    count = 5_000
    client.publish_async({"stream": "many", "value": b"%d" % number} for number in range(count))
    found = client.read("many", count)
    assert [each.offset for each in found] == [*range(count)] == [int(each.value) for each in found]


def test_whoever_does_not_read_costs_a_window(server: LiftbridgeServer, client: LiftbridgeClient) -> None:
    """64 subscriptions to 20 MB, none of which is read: others are served, and the door does not grow with them."""
    client.create("flood")
    client.publish_async({"stream": "flood", "value": bytes(20_000)} for _ in range(1_000))
    door = server.door()
    before_bytes = door.memory_info().rss
    request = api_messages.SubscribeRequest(stream="flood", startPosition=EARLIEST).SerializeToString()
    channels, calls = [], []
    try:
        for _ in range(64):
            channel: Any = grpc.insecure_channel(server.liftbridge_address, [("grpc.use_local_subchannel_pool", 1)])
            channels.append(channel)
            call = channel.unary_stream(f"/{api.SERVICE}/Subscribe")(request, wait_for_ready=True)
            next(iter(call))  # the empty message; the library reads no more before it is asked
            calls.append(call)
        time.sleep(2 * QUIET_S)
        assert door.memory_info().rss - before_bytes < 128 << 20
        assert client.publish("flood", b"served").offset == 1_000
    finally:
        for call in calls:
            call.cancel()
        for channel in channels:
            channel.close()


def test_a_deadline_ends_a_subscription_and_leaves_nothing(server: LiftbridgeServer, times: list[int]) -> None:
    door = psutil.Process(server.door().pid)
    with server.client() as client:
        request = api_messages.SubscribeRequest(stream="ten").SerializeToString()
        for _ in range(300):  # more than one address may have at a time
            call: Any = client.channel.unary_stream(f"/{api.SERVICE}/Subscribe")(request, timeout=0.02)
            with pytest.raises(grpc.RpcError) as ended:
                list(call)
            assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert told(client, "ten") == ["E", "waits"]
    assert door.is_running() and threading.active_count() < 100


def test_the_matrix_of_a_log_whose_beginning_is_gone(server: LiftbridgeServer, client: LiftbridgeClient) -> None:
    client.create("trimmed", segmentMaxBytes={"value": 1})
    with wire.connect(server.address) as tcp:
        first, count = 0, 0
        while not first:  # until a segment has been deleted: the active one stays
            client.publish_async({"stream": "trimmed", "value": bytes(900_000)} for _ in range(4))
            count += 4
            assert count < 100
            delete = DeleteSegments("liftbridge-default", "trimmed", 0, 1)
            tcp.request(Code.DELETE_SEGMENTS, delete.encode())
            first = client.read("trimmed", 1)[0].offset
    left = [*range(first, count)]
    for fields in ({"startPosition": EARLIEST}, {"startPosition": OFFSET, "startOffset": 1}):
        assert told(client, "trimmed", **fields) == ["E", *left, "waits"]
    stopped = {"startPosition": EARLIEST, "stopPosition": STOP_OFFSET, "stopOffset": first - 1}
    assert told(client, "trimmed", **stopped) == [before(first - 1, first)]
