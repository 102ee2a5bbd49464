"""Messages over HTTP: what is sent is what is polled, in JSON and as batches; offsets and groups beside it."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from typing import Final

import pytest

from shardd.client.codec import decode_polled
from shardd.protocol.send_request import NewMessage, Partitioning, PartitioningKind, SendMessages
from tests.doors.http_server import HttpClient, HttpServer
from tests.support import wire
from tests.support.serving import Serving

BATCH = "application/vnd.shardd.batch"
TOPIC = "/streams/s/topics/t"
SERVER: Final = Serving(HttpServer)


@pytest.fixture
def root(server: HttpServer) -> Iterator[HttpClient]:
    client = server.root()
    for stream in client.done("GET", "/streams"):
        client.done("DELETE", f"/streams/{stream['id']}")
    client.done("POST", "/streams", {"name": "s"})
    client.done("POST", "/streams/s/topics", {"name": "t", "partitions_count": 3})
    yield client
    client.close()


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def to_partition(number: int) -> dict[str, str]:
    return {"kind": "partition_id", "value": b64(struct.pack("<I", number))}


def payloads(root: HttpClient, partition: int) -> list[bytes]:
    polled = root.done("GET", f"{TOPIC}/messages?partition_id={partition}&count=100")
    assert polled["count"] == len(polled["messages"])
    return [base64.b64decode(each["payload"]) for each in polled["messages"]]


def entry(kind: str, value: bytes) -> dict[str, str]:
    return {"kind": kind, "value": b64(value)}


def test_a_message_comes_back_as_it_was_sent(root: HttpClient) -> None:
    headers = [
        {"key": entry("string", b"k"), "value": entry("uint128", bytes(16))},
        {"key": entry("uint8", b"\1"), "value": entry("raw", b"\xff" * 255)},
    ]
    number = (1 << 128) - 1
    sent = [
        {"id": number, "payload": b64(b"first"), "user_headers": headers},
        {"id": "340282366920938463463374607431768211455", "payload": b64(b"\0\xff")},
        {"id": "ffffffff-ffff-ffff-ffff-ffffffffffff", "payload": b64(b"third"), "user_headers": None},
        {"id": 0, "payload": b64(b"4"), "user_headers": b64(b"nobody can read it")},
    ]
    assert root.post(f"{TOPIC}/messages", {"partitioning": to_partition(1), "messages": sent}).status == 201
    polled = root.done("GET", f"{TOPIC}/messages?partition_id=1&count=4")
    assert (polled["partition_id"], polled["current_offset"], polled["count"]) == (1, 3, 4)
    first, second, third, fourth = polled["messages"]
    assert [each["header"]["id"] for each in (first, second, third)] == [number] * 3
    assert fourth["header"]["id"] not in (0, number)
    assert first["header"].keys() == {
        "checksum", "id", "offset", "timestamp", "origin_timestamp", "user_headers_length", "payload_length",
        "reserved",
    }  # fmt: skip
    assert first["user_headers"] == headers
    assert "user_headers" not in second
    assert fourth["user_headers"] == b64(b"nobody can read it")
    assert [each["header"]["offset"] for each in polled["messages"]] == [0, 1, 2, 3]


def test_where_messages_go(root: HttpClient) -> None:
    for _ in range(3):
        root.done(
            "POST",
            f"{TOPIC}/messages",
            {"partitioning": {"kind": "balanced", "value": ""}, "messages": [{"payload": b64(b"b")}]},
        )
    assert [len(payloads(root, number)) for number in range(3)] == [1, 1, 1]
    for number in range(9):
        key = {"kind": "messages_key", "value": b64(b"key")}
        root.done("POST", f"{TOPIC}/messages", {"partitioning": key, "messages": [{"payload": b64(b"%d" % number)}]})
    assert sorted(len(payloads(root, number)) for number in range(3)) == [1, 1, 10]


def test_sends_that_are_refused(root: HttpClient) -> None:
    good = {"partitioning": to_partition(0), "messages": [{"payload": b64(b"x")}]}
    assert root.post(f"{TOPIC}/messages", good).status == 201
    for change, expected in (
        ({"unknown": 1}, 422), ({"partitioning": {"kind": "partition_id", "value": ""}}, (400, 4028)),
        ({"partitioning": {"kind": "messages_key", "value": ""}}, (400, 4028)),
        ({"partitioning": {"kind": "messages_key", "value": b64(b"k" * 256)}}, (400, 3)),
        ({"partitioning": {"kind": "partition_id", "value": b64(b"123")}}, (400, 3)),
        ({"partitioning": {"kind": "other", "value": ""}}, 422), ({"partitioning": to_partition(9)}, (404, 3007)),
        ({"partitioning": {"kind": "balanced"}}, 422), ({"messages": []}, (400, 4009)),
        ({"messages": [{"payload": "no base64!"}]}, 422), ({"messages": [{}]}, 422),
        ({"messages": [{"payload": "", "id": -1}]}, (400, 4)),
        ({"messages": [{"payload": "eA==", "id": "x"}]}, (400, 4)),
        ({"messages": [{"payload": "eA==", "id": 1 << 128}]}, (400, 4)),
        ({"messages": [{"payload": "eA==", "user_headers": "%"}]}, (400, 4)),
        ({"messages": [{"payload": "eA==", "user_headers": [{"key": entry("raw", b""), "value": entry("raw", b"x")}]}]},
         (400, 4)),
    ):  # fmt: skip
        answer = root.post(f"{TOPIC}/messages", {**good, **change})
        assert (answer.status if isinstance(expected, int) else answer.error) == expected, change
    assert root.post("/streams/s/topics/u/messages", good).error == (404, 2010)
    assert root.post("/streams/x/topics/t/messages", good).error == (404, 1009)
    assert payloads(root, 0) == [b"x"]


def test_ways_to_poll(root: HttpClient) -> None:
    sent = [{"payload": b64(b"%d" % number)} for number in range(20)]
    root.done("POST", f"{TOPIC}/messages", {"partitioning": to_partition(0), "messages": sent})
    path = f"{TOPIC}/messages?partition_id=0"

    def polled(query: str) -> list[bytes]:
        found = root.done("GET", f"{path}&{query}")["messages"]
        return [base64.b64decode(each["payload"]) for each in found]

    assert len(root.done("GET", f"{TOPIC}/messages")["messages"]) == 10
    assert polled("kind=offset&value=5&count=2") == [b"5", b"6"]
    assert polled("kind=first&count=1") == [b"0"]
    assert polled("kind=last&count=1") == [b"19"]
    assert polled("kind=timestamp&value=0&count=3") == [b"0", b"1", b"2"]
    assert polled("kind=offset&value=20") == []
    assert polled("kind=next&count=2&consumer_id=me&auto_commit=true") == [b"0", b"1"]
    assert polled("kind=next&count=2&consumer_id=me&auto_commit=true") == [b"2", b"3"]
    for query in ("kind=other", "count=x", "count=-1", "value=x", "auto_commit=2", "partition_id=x"):
        assert root.get(f"{path}&{query}").status == 400, query
    assert root.get(f"{TOPIC}/messages?partition_id=9").error == (404, 3007)
    assert root.get(f"{TOPIC}/messages?consumer_id=").error == (400, 6)


def test_a_large_poll_is_whole_and_any_json(root: HttpClient, server: HttpServer) -> None:
    with wire.connect(server.address) as tcp:
        for number in range(5):
            tcp.send("s", "t", wire.to_partition(0), [wire.message(b"%d" % number + b"x" * 1000)] * 1000)
    polled = root.done("GET", f"{TOPIC}/messages?partition_id=0&count=10000")
    assert [each["header"]["offset"] for each in polled["messages"]] == list(range(polled["count"]))
    assert polled["count"] == 5000


def test_batches_as_they_are_stored(root: HttpClient) -> None:
    to = Partitioning(PartitioningKind.PARTITION, 2)
    batch = SendMessages.of(0, 0, to, [NewMessage(b"%d" % number, b"h", number + 1) for number in range(50)])
    body = to.encode() + struct.pack("<I", batch.count) + batch.batch
    assert root.ask("POST", f"{TOPIC}/messages", body, {"Content-Type": BATCH}).status == 201
    answer = root.ask("GET", f"{TOPIC}/messages?partition_id=2&count=100", headers={"Accept": BATCH})
    assert (answer.status, answer.headers["content-type"]) == (200, BATCH)
    polled = decode_polled(answer.body)
    assert (polled.partition, polled.current_offset) == (2, 49)
    assert [(each.payload, each.id) for each in polled.messages] == [(b"%d" % n, n + 1) for n in range(50)]
    for broken in (b"\2", body[:-1], body[:20], b"\7\0" + body[2:], body[:6] + bytes(4) + body[10:], b"\2\1x" + body):
        assert root.ask("POST", f"{TOPIC}/messages", broken, {"Content-Type": BATCH}).status == 400
    assert len(payloads(root, 2)) == 50


def test_stored_offsets(root: HttpClient) -> None:
    sent = [{"payload": b64(b"x")}] * 5
    root.done("POST", f"{TOPIC}/messages", {"partitioning": to_partition(1), "messages": sent})
    path = f"{TOPIC}/consumer-offsets"
    assert root.get(f"{path}?consumer_id=7&partition_id=1").error == (404, 404)
    for consumer in (7, "me"):
        said = {"consumer_id": consumer, "partition_id": 1, "offset": 3}
        assert root.put(path, said).status == 204
        found = root.done("GET", f"{path}?consumer_id={consumer}&partition_id=1")
        assert found == {"partition_id": 1, "current_offset": 4, "stored_offset": 3}
        assert root.delete(f"{path}/{consumer}?partition_id=1").status == 204
        assert root.get(f"{path}?consumer_id={consumer}&partition_id=1").error == (404, 404)
    assert root.put(path, {"consumer_id": 7, "partition_id": 1, "offset": 99}).error == (400, 4100)
    assert root.put(path, {"consumer_id": 7, "offset": -1}).status == 422
    assert root.get("/streams/x/topics/t/consumer-offsets").error == (404, 1009)
    assert root.get("/streams/s/topics/x/consumer-offsets").error == (404, 2010)
    assert root.get(f"{path}?partition_id=9").error == (404, 404)


def test_consumer_groups(root: HttpClient, server: HttpServer) -> None:
    path = f"{TOPIC}/consumer-groups"
    assert root.done("GET", path) == []
    answer = root.post(path, {"name": "g"})
    assert answer.status == 201
    assert answer.json == {"id": 0, "name": "g", "partitions_count": 3, "members_count": 0, "members": []}
    assert root.post(path, {"name": "g"}).error == (400, 5004)
    with wire.connect(server.address) as tcp:
        tcp.request(604, wire.identifier("s") + wire.identifier("t") + wire.identifier("g"))
        found = root.done("GET", f"{path}/g")
        [member] = found["members"]
        assert (found["members_count"], member["partitions_count"], member["partitions"]) == (1, 3, [0, 1, 2])
        clients = root.done("GET", "/clients")
        [joined] = [each for each in clients if each["consumer_groups_count"] == 1]
        details = root.done("GET", f"/clients/{joined['client_id']}")
        assert details["consumer_groups"] == [{"stream_id": 0, "topic_id": 0, "group_id": 0}]
    assert [each["name"] for each in root.done("GET", path)] == ["g"]
    assert root.delete(f"{path}/0").status == 204
    assert root.get(f"{path}/g").error == (404, 5000)
    assert root.get("/streams/s/topics/x/consumer-groups").error == (404, 2010)
    assert root.get("/streams/x/topics/t/consumer-groups/g").error == (404, 1009)


@pytest.mark.parametrize("last", ["true", "false", "fsync=true", "fsync=false"])
def test_a_flush(root: HttpClient, last: str) -> None:
    assert root.get(f"{TOPIC}/messages/flush/0/{last}").status == 200
    assert root.get(f"{TOPIC}/messages/flush/0/x").status == 400
    assert root.get(f"{TOPIC}/messages/flush/9/{last}").error == (404, 3007)
