"""Publish, PublishAsync and PublishToSubject of Liftbridge on a real server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import grpc
import pytest

from shardd.protocol.liftbridge import api, api_messages
from tests.doors.liftbridge_server import LiftbridgeClient, LiftbridgeServer
from tests.support import wire
from tests.support.serving import Serving

LEADER, ALL, NONE = 0, 1, 2
SERVER: Final = Serving(LiftbridgeServer)


@pytest.fixture
def client(server: LiftbridgeServer) -> Iterator[LiftbridgeClient]:
    with server.client() as connected:
        yield connected


def test_a_publish_is_refused_with_the_first_reason(client: LiftbridgeClient) -> None:
    client.create("refused")
    client.create("controlled", optimisticConcurrencyControl={"value": True})
    assert client.status("Publish") == ("INVALID_ARGUMENT", "no stream provided")
    assert client.status("Publish", stream="nothing") == ("NOT_FOUND", "no such stream: nothing")
    assert client.status("Publish", stream="refused", partition=1) == ("NOT_FOUND", "no such partition: 1")
    assert client.status("Publish", stream="refused", partition=-1) == ("NOT_FOUND", "no such partition: -1")
    assert client.status("Publish", stream="controlled", ackPolicy=NONE) == (
        "INVALID_ARGUMENT",
        "stream with concurrency control must have AckPolicy set",
    )
    assert client.status("Publish", stream="refused", value=bytes(2 << 20)) == (
        "INVALID_ARGUMENT",
        "message exceeds max replication size",
    )
    assert client.status("Publish", stream="refused", ackInbox="a b") == (
        "UNKNOWN",
        "failed to subscribe to ack inbox: nats: invalid subject",
    )
    assert client.status("Publish", stream="__cursors", value=b"x")[0] == "PERMISSION_DENIED"
    assert client.partition("refused").newestOffset == -1


def test_an_ack_says_where_a_message_is(client: LiftbridgeClient) -> None:
    client.create("acked", 2, subject="in.acked")
    before_ns = time.time_ns()
    ack = client.publish("acked", b"x", partition=1, ackInbox="my.inbox", correlationId="c-1", ackPolicy=ALL)
    assert (ack.stream, ack.partitionSubject, ack.msgSubject) == ("acked", "in.acked", "in.acked.1")
    assert (ack.offset, ack.ackInbox, ack.correlationId, ack.ackPolicy) == (0, "my.inbox", "c-1", ALL)
    assert before_ns - 10**9 < ack.receptionTimestamp <= ack.commitTimestamp and ack.ackError == 0
    [message] = client.read("acked", 1, 1)
    assert message.timestamp == ack.receptionTimestamp
    assert client.publish("acked").ackInbox.startswith("liftbridge-default.ack.")


def test_the_origin_time_is_that_of_the_message(server: LiftbridgeServer, client: LiftbridgeClient) -> None:
    """And a record without one, as they were stored before, has the time of the log all the same."""
    client.create("timed")
    one = client.publish("timed", b"one")
    [two] = client.publish_async([{"stream": "timed", "value": b"two"}])
    three = client.call("PublishToSubject", subject="timed", value=b"three").ack
    with wire.connect(server.address) as tcp:
        tcp.send("liftbridge-default", "timed", wire.to_partition(0), [wire.message(b"without")])
        polled = tcp.poll("liftbridge-default", "timed", 0).messages
    told = [each.receptionTimestamp for each in (one, two.ack, three)]
    assert [each.timestamp_us * 1_000 for each in polled[:3]] == told
    assert [each.origin_timestamp_us * 1_000 for each in polled] == [*told, 0]
    read = client.read("timed", 4)
    assert [each.timestamp for each in read] == [each.timestamp_us * 1_000 for each in polled]
    with client.subscribe("timed", startPosition=4, startTimestamp=read[3].timestamp) as found:
        assert found.messages(1)[0].value == b"without"


def test_everything_of_a_message_comes_back(client: LiftbridgeClient) -> None:
    client.create("whole", 2, subject="in.whole")
    headers = {"a": b"1", "empty": b"", "long": bytes(range(256)) * 2, "lb.x": b"ours", "subject": b"forged"}
    client.publish("whole", b"v", key=b"k" * 300, headers=headers, partition=1)
    client.publish("whole", b"", partition=1)
    client.publish("whole", bytes(1_000_000), partition=1)
    one, empty, long = client.read("whole", 3, 1)
    assert (one.key, one.value, one.stream, one.partition, one.subject) == (b"k" * 300, b"v", "whole", 1, "in.whole.1")
    assert dict(one.headers) == headers | {"subject": b"in.whole.1", "reply": b""}
    assert (one.replySubject, one.ackInbox, one.correlationId, one.ackPolicy) == ("", "", "", 0)
    assert (empty.value, dict(empty.headers)) == (b"", {"subject": b"in.whole.1", "reply": b""})
    assert len(long.value) == 1_000_000


def test_without_a_deadline_it_is_stored_and_nothing_is_acked(client: LiftbridgeClient) -> None:
    client.create("plain")
    for policy in (LEADER, ALL, NONE):
        response = client.call("Publish", timeout_s=None, stream="plain", value=b"x", ackPolicy=policy)
        assert response.ByteSize() == 0
    assert client.call("Publish", stream="plain", value=b"x", ackPolicy=NONE).ByteSize() == 0
    assert client.partition("plain").newestOffset == 3
    client.call("SetStreamReadonly", name="plain", readonly=True)
    refused = client.status("Publish", timeout_s=None, stream="plain", value=b"x")
    assert refused == ("FAILED_PRECONDITION", "readonly partition: 0")


def test_what_is_never_acked_is_stored_all_the_same(client: LiftbridgeClient) -> None:
    client.create("unacked", minIsr={"value": 2})
    assert client.status("Publish", stream="unacked", value=b"x", ackPolicy=7)[0] == "DEADLINE_EXCEEDED"
    assert client.status("Publish", stream="unacked", value=b"x", ackPolicy=ALL)[0] == "DEADLINE_EXCEEDED"
    assert client.publish("unacked", b"x").offset == 2


@pytest.mark.parametrize(("expected", "stored_at"), [(0, None), (5, None), (-2, None), (1, 1), (-1, 2)])
def test_expected_offsets(client: LiftbridgeClient, expected: int, stored_at: int | None) -> None:
    """In their order on a log that holds offset 0."""
    client.status("CreateStream", name="expecting", subject="expecting", optimisticConcurrencyControl={"value": True})
    if client.partition("expecting").newestOffset < 0:
        assert client.publish("expecting", b"first").offset == 0
    fields: dict[str, Any] = {"stream": "expecting", "value": b"x", "expectedOffset": expected}
    if stored_at is None:
        assert client.status("Publish", **fields) == ("UNKNOWN", "incorrect expected offset")
        [response] = client.publish_async([{**fields, "correlationId": "c"}])
        assert (response.asyncError.code, response.correlationId) == (5, "c")
    else:
        assert client.call("Publish", **fields).ack.offset == stored_at


def test_of_two_writers_one_loses_and_finds_its_place(client: LiftbridgeClient) -> None:
    client.create("raced", optimisticConcurrencyControl={"value": True})
    said = client.publish_async([{"stream": "raced", "value": b"%d" % n, "correlationId": str(n)} for n in range(2)])
    assert sorted(each.asyncError.code for each in said) == [0, 5]
    newest = client.partition("raced").newestOffset
    assert client.publish("raced", b"again", expectedOffset=newest + 1).offset == 1


def test_a_session_answers_each_request_once_in_the_order_of_its_partition(client: LiftbridgeClient) -> None:
    client.create("session", 2)
    count = 3_000
    said = client.publish_async(
        {"stream": "session", "value": b"%d" % n, "partition": n % 2, "correlationId": "one for all"}
        for n in range(count)
    )
    assert len(said) == count and all(each.correlationId == each.ack.correlationId == "one for all" for each in said)
    for partition in range(2):
        subject = "session.1" if partition else "session"
        offsets = [each.ack.offset for each in said if each.ack.msgSubject == subject]
        assert offsets == [*range(count // 2)]
    assert len({each.ack.ackInbox for each in said}) == 1
    values = [int(each.value) for each in client.read("session", count // 2, 1)]
    assert values == [*range(1, count, 2)]


def test_errors_of_a_session_name_their_request(client: LiftbridgeClient) -> None:
    client.create("mixed", 2)
    client.create("mixed-controlled", optimisticConcurrencyControl={"value": True})
    client.call("SetStreamReadonly", name="mixed", partitions=[1], readonly=True)
    said = client.publish_async(
        [
            {"stream": "mixed", "correlationId": "good"},
            {"stream": "", "correlationId": "empty"},
            {"stream": "nothing", "correlationId": "unknown"},
            {"stream": "mixed", "partition": 2, "correlationId": "partition"},
            {"stream": "mixed", "partition": 1, "correlationId": "readonly"},
            {"stream": "mixed-controlled", "ackPolicy": NONE, "correlationId": "policy"},
            {"stream": "mixed", "value": bytes(2 << 20), "correlationId": "large"},
            {"stream": "__cursors", "value": b"x", "correlationId": "reserved"},
            {"stream": "mixed", "ackPolicy": NONE, "correlationId": "silent"},
        ]
    )
    errors = {each.correlationId: (each.asyncError.code, each.asyncError.message) for each in said}
    assert errors == {
        "good": (0, ""),
        "empty": (2, "no such stream: "),
        "unknown": (2, "no such stream: nothing"),
        "partition": (2, "no such partition: 2"),
        "readonly": (4, "readonly partition: 1"),
        "policy": (1, "stream with concurrency control must have AckPolicy set"),
        "large": (1, "message exceeds max replication size"),
        "reserved": (7, "__cursors is written by the server only"),
    }
    assert all(each.HasField("ack") for each in said)
    assert client.partition("mixed").newestOffset == 1


def test_what_cannot_be_read_ends_a_session(client: LiftbridgeClient) -> None:
    call = client.channel.stream_stream(f"/{api.SERVICE}/PublishAsync")
    with pytest.raises(grpc.RpcError) as ended:
        [*call(iter([b"\xff\xff\xff"]), timeout=10)]
    assert ended.value.code() is grpc.StatusCode.INTERNAL


def test_unknown_fields_are_left_alone(client: LiftbridgeClient) -> None:
    client.create("newer")
    request = api_messages.PublishRequest(stream="newer", value=b"x").SerializeToString()
    client.call("Publish", raw=request + b"\xf8\x07\x01")
    assert client.partition("newer").newestOffset == 0


def test_a_message_gets_to_every_stream_on_its_subject(client: LiftbridgeClient) -> None:
    client.create("first", 2, subject="shared")
    client.create("second", 2, subject="shared")
    client.create("wild", subject="*.1")
    ack = client.publish("first", b"x", partition=1)
    assert (ack.stream, ack.msgSubject) == ("first", "shared.1")
    for stream, partition in (("first", 1), ("second", 1), ("wild", 0)):
        [message] = client.read(stream, 1, partition)
        assert (message.value, message.subject) == (b"x", "shared.1")
    assert client.partition("second", 0).newestOffset == -1


def test_of_a_queue_group_one_gets_a_message(client: LiftbridgeClient) -> None:
    for name in ("qa", "qb"):
        client.create(name, subject="queue", group="g")
    client.create("qc", subject="queue")
    for _ in range(20):
        client.call("PublishToSubject", subject="queue", value=b"x")
    got = {name: client.partition(name).newestOffset + 1 for name in ("qa", "qb", "qc")}
    assert got["qa"] + got["qb"] == 20 == got["qc"] and got["qa"] and got["qb"]
    assert client.publish("qa", b"x").stream == "qa"
    assert client.partition("qb").newestOffset + 1 == got["qb"]


def test_a_publish_to_a_subject(client: LiftbridgeClient) -> None:
    client.create("listens", subject="to.*")
    ack = client.call("PublishToSubject", subject="to.me", value=b"x", correlationId="c").ack
    assert (ack.stream, ack.partitionSubject, ack.msgSubject) == ("listens", "to.*", "to.me")
    assert (ack.offset, ack.correlationId) == (0, "c")
    assert client.call("PublishToSubject", timeout_s=None, subject="to.me", value=b"x").ByteSize() == 0
    assert client.call("PublishToSubject", subject="to.me", value=b"x", ackPolicy=NONE).ByteSize() == 0
    assert client.status("PublishToSubject", subject="nobody")[0] == "DEADLINE_EXCEEDED"
    assert client.status("PublishToSubject", timeout_s=None, subject="nobody") == ("OK", "")
    invalid = ("UNKNOWN", "failed to publish to NATS: nats: invalid subject")
    assert client.status("PublishToSubject", subject="") == invalid
    assert [each.subject for each in client.read("listens", 3)] == ["to.me"] * 3


def test_a_negative_ack_of_a_subject_is_an_answer(client: LiftbridgeClient) -> None:
    client.create("strict", optimisticConcurrencyControl={"value": True})
    assert client.call("PublishToSubject", subject="strict", value=b"x").ack.ackError == 0
    assert client.call("PublishToSubject", subject="strict", value=b"x").ack.ackError == 2
    assert client.partition("strict").newestOffset == 0


def test_nobody_writes_the_servers_own_streams(client: LiftbridgeClient) -> None:
    client.call("SetCursor", stream="s", cursorId="c", offset=1)
    before = client.partition("__cursors").newestOffset
    assert client.status("PublishToSubject", subject="liftbridge-default.cursors", value=b"x")[0] != "OK"
    assert client.partition("__cursors").newestOffset == before
