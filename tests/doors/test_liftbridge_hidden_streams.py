"""A stream that a user has no right to looks like a stream that does not exist, to every call of gRPC."""

from __future__ import annotations

from typing import Any, Final

import pytest

from shardd.protocol.liftbridge import api
from shardd.protocol.permissions import Permissions
from tests.doors.liftbridge_server import ROOT, Ended, EndedError, LiftbridgeClient, LiftbridgeServer
from tests.support.serving import Serving

HIDDEN: Final = ("hidden", "paused", "readonly", "checked")
MISSING: Final = "missing"
PARTITIONS: Final = 2
DENIED: Final = "PERMISSION_DENIED"
BARELY: Final = {"value": b"x" * ((1 << 20) - 200_001), "headers": {"h": bytes(200_000)}}  # with its envelope too large
QUESTIONS: Final[list[tuple[str, dict[str, Any]]]] = [
    ("CreateStream", {"name": "STREAM", "subject": "STREAM"}),
    ("DeleteStream", {"name": "STREAM"}),
    ("PauseStream", {"name": "STREAM"}),
    ("PauseStream", {"name": "STREAM", "partitions": [7]}),
    ("SetStreamReadonly", {"name": "STREAM", "partitions": [1], "readonly": True}),
    ("SetStreamReadonly", {"name": "STREAM", "partitions": [7], "readonly": True}),
    ("Subscribe", {"stream": "STREAM", "startPosition": 2}),
    ("Subscribe", {"stream": "STREAM", "startPosition": 2, "stopPosition": 1}),
    ("Subscribe", {"stream": "STREAM", "partition": 7}),
    ("Subscribe", {"stream": "STREAM", "resume": True}),
    ("Subscribe", {"stream": "STREAM", "consumer": {"groupId": "g", "consumerId": "c", "groupEpoch": 0}}),
    ("FetchMetadata", {"streams": ["STREAM"]}),
    ("FetchPartitionMetadata", {"stream": "STREAM"}),
    ("FetchPartitionMetadata", {"stream": "STREAM", "partition": 7}),
    ("Publish", {"stream": "STREAM", "value": b"x"}),
    ("Publish", {"stream": "STREAM", "value": b"x", "partition": 7}),
    ("Publish", {"stream": "STREAM", "value": b"x", "ackPolicy": 2}),
    ("Publish", {"stream": "STREAM", "value": b"x" * (2 << 20)}),
    ("Publish", {"stream": "STREAM", **BARELY}),
    ("PublishAsync", {"stream": "STREAM", **BARELY}),
    ("PublishToSubject", {"subject": "STREAM", **BARELY}),
    ("PublishAsync", {"stream": "STREAM", "value": b"x"}),
    ("PublishAsync", {"stream": "STREAM", "value": b"x", "partition": 7}),
    ("PublishAsync", {"stream": "STREAM", "value": b"x", "ackPolicy": 2}),
    ("PublishAsync", {"stream": "STREAM", "value": b"x" * (2 << 20)}),
    ("PublishToSubject", {"subject": "STREAM", "value": b"x"}),
    ("PublishToSubject", {"subject": "STREAM", "value": b"x", "ackPolicy": 2}),
    ("PublishToSubject", {"subject": "STREAM", "value": b"x" * (2 << 20)}),
    ("SetCursor", {"stream": "STREAM", "cursorId": "c"}),
    ("FetchCursor", {"stream": "STREAM", "cursorId": "c"}),
    ("JoinConsumerGroup", {"groupId": "mine", "consumerId": "new", "streams": ["STREAM"]}),
]


def fill(server: LiftbridgeServer) -> None:
    with server.client(ROOT) as root:
        for name in HIDDEN:
            checked: dict[str, Any] = {"optimisticConcurrencyControl": {"value": True}} if name == "checked" else {}
            root.create(name, PARTITIONS, **checked)
        root.publish("hidden", b"x")
        root.call("SetStreamReadonly", name="readonly", readonly=True)
        root.call("PauseStream", name="paused", resumeAll=False)
        root.call("JoinConsumerGroup", groupId="g", consumerId="c", streams=["hidden"])
    server.create_user("rightless", Permissions())
    server.create_user("manager", Permissions(manage_streams=True, send_messages=True))


SERVER: Final = Serving(LiftbridgeServer, {"SHARDD_LIFTBRIDGE_MAX_MESSAGE_SIZE": "1 MiB"}, fill=fill)


def answer(client: LiftbridgeClient, method: str, fields: dict[str, Any], stream: str) -> Ended:
    """What the call ends with, and its text without the name of the stream."""
    asked = {name: _named(value, stream) for name, value in fields.items()}
    try:
        if method == "Subscribe":
            with client.subscribe(**asked) as subscription:
                status, text = ("OK", "waits") if "waits" in subscription.told() else subscription.end()
        elif method == "PublishAsync":
            [response] = client.publish_async([asked])
            status, text = str(response.asyncError.code), response.asyncError.message
        elif method == "FetchMetadata":
            [seen] = client.call(method, **asked).streamMetadata
            status, text = str(seen.error), str(len(seen.partitions))
        else:
            status, text = client.status(method, **asked)
    except EndedError as error:
        status, text = error.status
    return status, text.replace(stream, "STREAM")


def _named(value: Any, stream: str) -> Any:
    if isinstance(value, list):
        return [_named(each, stream) for each in value]
    return stream if value == "STREAM" else value


def test_every_method_that_names_a_stream_is_asked() -> None:
    of_groups = {"LeaveConsumerGroup", "FetchConsumerGroupAssignments", "ReportConsumerGroupCoordinator"}
    assert {method for method, _ in QUESTIONS} == {*api.METHODS} - of_groups


@pytest.mark.parametrize(("method", "fields"), QUESTIONS)
def test_hidden_stream_is_asked_about_answer_is_that_of_a_missing_one(
    server: LiftbridgeServer, method: str, fields: dict[str, Any]
) -> None:
    with server.logged_in("rightless") as client:
        expected = answer(client, method, fields, MISSING)
        assert {stream: answer(client, method, fields, stream) for stream in HIDDEN} == dict.fromkeys(HIDDEN, expected)


@pytest.mark.parametrize(
    "method", ["LeaveConsumerGroup", "FetchConsumerGroupAssignments", "ReportConsumerGroupCoordinator"]
)
def test_hidden_group_is_asked_about_answer_is_that_of_a_missing_one(server: LiftbridgeServer, method: str) -> None:
    more = {"coordinator": "b", "epoch": 0} if method.startswith("Report") else {}
    heard = []
    with server.logged_in("rightless") as client:
        for group in ("no group", "g"):
            status, text = client.status(method, groupId=group, consumerId="c", **more)
            heard.append((status, text.replace(f"group {group}", "group GROUP")))
    assert heard[0] == heard[1]


def test_hidden_group_is_told_of_in_the_metadata_as_a_missing_one(server: LiftbridgeServer) -> None:
    with server.logged_in("rightless") as client:
        told = client.call("FetchMetadata", groups=["no group", "g"]).groupMetadata
    assert [each.groupId for each in told] == ["no group", "g"]
    assert len({(each.error, each.coordinator, each.epoch) for each in told}) == 1


def test_message_that_no_record_takes_sender_with_the_right_hears_why(server: LiftbridgeServer) -> None:
    """The control of the questions with a message that is too large only with its envelope."""
    with server.logged_in("manager") as client:
        assert client.status("Publish", stream="hidden", **BARELY)[0] == "INVALID_ARGUMENT"


def test_missing_stream_is_asked_about_with_the_right_it_is_not_found(server: LiftbridgeServer) -> None:
    """A user with a right to all streams still hears which ones do not exist."""
    with server.logged_in("manager") as client:
        for method, status in (
            ("DeleteStream", "NOT_FOUND"),
            ("PauseStream", "NOT_FOUND"),
            ("Publish", "NOT_FOUND"),
            ("FetchPartitionMetadata", "NOT_FOUND"),
            ("JoinConsumerGroup", "FAILED_PRECONDITION"),
        ):
            fields = next(fields for name, fields in QUESTIONS if name == method)
            assert answer(client, method, fields, MISSING)[0] == status, method
        with client.subscribe(MISSING) as subscription:
            assert subscription.end()[0] == "NOT_FOUND"
