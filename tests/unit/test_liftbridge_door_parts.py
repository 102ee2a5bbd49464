"""Parts of the door for Liftbridge that need no server: credentials, cursors as records, places of groups, addresses,
how many may come in."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import pytest
from grpc import StatusCode

from shardd.doors.held_clients import SHOWN_CHARACTERS_MAX
from shardd.doors.liftbridge.activity import _some_of
from shardd.doors.liftbridge.activity import encoded as encoded_event
from shardd.doors.liftbridge.calls import Call, Crowd, address_of
from shardd.doors.liftbridge.clients import Credential, credential_of
from shardd.doors.liftbridge.connection_shares import ConnectionShares
from shardd.doors.liftbridge.cursor_table import Cursor
from shardd.doors.liftbridge.cursors import decoded, encoded, partition_of
from shardd.doors.liftbridge.members import Slots
from shardd.doors.liftbridge.partitions import PARTITIONS_OF_REQUEST, pieces
from shardd.doors.liftbridge.status import RpcError, rpc_error
from shardd.doors.links import WorkerLostError
from shardd.protocol.errors import ShardError, Status
from shardd.protocol.liftbridge import api_messages
from shardd.protocol.liftbridge.requests import ActivityOp, Event, StreamInfo
from tests.support.on_loop import on_loop


def basic(text: bytes) -> str:
    return "Basic " + base64.b64encode(text).decode()


def test_what_calls_show() -> None:
    assert credential_of(None) == credential_of([("other", "x")]) == Credential()
    assert credential_of([("Authorization", "bearer  abc ")]) == Credential(token="abc")
    assert credential_of([("authorization", basic(b"me:a:b"))]) == Credential(username="me", password="a:b")
    assert "a:b" not in repr(credential_of([("authorization", basic(b"me:a:b"))]))


@pytest.mark.parametrize(
    "value",
    ["", "Bearer", "Bearer ", "Digest x", basic(b"nocolon"), basic(b":empty"), basic(b"\xff:x"), "Basic ?", b"Bearer x",
     "Bearer " + "x" * SHOWN_CHARACTERS_MAX],
)  # fmt: skip
def test_what_is_no_credential(value: str | bytes) -> None:
    with pytest.raises(RpcError) as refused:
        credential_of([("authorization", value)])
    assert refused.value.code is StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    "cursor",
    [Cursor("as", 0, "c1"), Cursor("a,b", 7, "x"), Cursor("b", -1, "x,a"), Cursor("é", 9, "__group:g")],
)
@pytest.mark.parametrize("offset", [0, 42, -1, 2**63 - 1, -(2**63)])
def test_cursors_are_records_as_liftbridge_has_them(cursor: Cursor, offset: int) -> None:
    message = encoded(cursor, offset)
    assert decoded(message.value) == (cursor, offset)
    said = api_messages.SetCursorRequest(
        stream=cursor.stream, partition=cursor.partition, cursorId=cursor.id, offset=offset
    )
    assert message.value == said.SerializeToString()
    assert 0 <= partition_of(cursor, 3) < 3


def test_the_example_of_a_cursor() -> None:
    message = encoded(Cursor("as", 0, "c1"), 42)
    assert (message.key, message.value.hex()) == (b"c1,as,0", "0a0261731a026331202a")


@pytest.mark.parametrize("value", [b"", b"\xff\xff", b"\x0a\x01s"])
def test_what_is_no_cursor(value: bytes) -> None:
    assert decoded(value) is None


def test_of_a_group_the_newest_has_the_place() -> None:
    slots, woken = Slots(), []
    key = (1, 0, "g")
    first = slots.take(key, 5, lambda: woken.append("first"))
    assert slots.is_newer(key, 4) and not slots.is_newer(key, 5) and not slots.is_newer((2, 0, "g"), 0)
    second = slots.take(key, 5, lambda: woken.append("second"))
    assert first.lost and not second.lost and woken == ["first"]
    slots.leave(key, first)
    assert slots.is_newer(key, 4)
    slots.leave(key, second)
    assert not slots.is_newer(key, 0)


def test_addresses_of_peers() -> None:
    assert address_of("ipv4:127.0.0.1:5") == "127.0.0.1:5"
    assert address_of("ipv6:%5B::1%5D:5") == address_of("ipv6:[::1]:5") == "[::1]:5"


@dataclass
class Caller:
    owner: str
    gave_way: bool = False
    give_way: Callable[[], None] = lambda: None
    has_login: bool = True

    @property
    def host(self) -> str:
        return self.owner

    @property
    def address(self) -> str:
        return f"{self.host}:1"


class Shares:
    """What a crowd tells of addresses."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def refused(self, address: str) -> None:
        self.told.append(address)


@on_loop
async def test_one_address_has_its_share_of_a_crowd_and_gives_way_to_others() -> None:
    shares = Shares()
    crowd = Crowd("calls", 3, 2, cast(ConnectionShares, shares))
    ended = list[str]()

    async def stay(host: str) -> None:
        try:
            async with crowd.place(cast(Call, Caller(host))):
                await asyncio.Event().wait()
        except RpcError as error:
            assert error.code is StatusCode.UNAVAILABLE and str(error) == "too many calls at a time"
            ended.append(host)

    tasks = list[asyncio.Task[None]]()
    for host, expected in (("a", []), ("a", []), ("a", ["a"]), ("b", ["a"]), ("c", ["a", "a"]), ("b", ["a", "a", "b"])):
        tasks.append(asyncio.create_task(stay(host)))
        for _ in range(5):
            await asyncio.sleep(0)
        assert ended == expected, host
    assert shares.told == ["a:1"], "only the address that has its share"
    for task in tasks:
        task.cancel()
    assert await asyncio.gather(*tasks, return_exceptions=True) and ended == ["a", "a", "b"]


def test_questions_about_bounds_have_a_topic_once_and_so_many_partitions() -> None:
    streams = [StreamInfo(f"s{n}", "s", "", 0, n, n, 0, 0, {}) for n in range(3)]
    sizes = (10, 2 * PARTITIONS_OF_REQUEST + 5, 995)
    wanted = [(stream, tuple(range(size))) for stream, size in zip(streams, sizes, strict=True)]
    asked = [*pieces(wanted)]
    for piece in asked:
        assert sum(len(partitions) for _, partitions in piece) <= PARTITIONS_OF_REQUEST
        assert len({stream.name for stream, _ in piece}) == len(piece)
    found = [(stream.name, each) for piece in asked for stream, partitions in piece for each in partitions]
    assert found == [(stream.name, each) for stream, partitions in wanted for each in partitions]


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (WorkerLostError("x"), "UNAVAILABLE", "a part of the server is being restarted"),
        (ShardError(Status.UNAUTHENTICATED, "x"), "UNAUTHENTICATED", "no valid login"),
        (
            ShardError(Status.UNAUTHORIZED, "x"),
            "PERMISSION_DENIED",
            "The client is not authorized to call M on resource R",
        ),
        (ShardError(Status.TOPIC_ID_NOT_FOUND, "x"), "NOT_FOUND", "stream does not exist"),
        (ShardError(Status.PARTITION_NOT_FOUND, "x"), "NOT_FOUND", "partition does not exist"),
        (ShardError(Status.TOPIC_NAME_ALREADY_EXISTS, "x"), "ALREADY_EXISTS", "stream already exists"),
        (ShardError(Status.INVALID_CONFIGURATION, "why"), "INVALID_ARGUMENT", "why"),
        (ShardError(Status.TASK_TIMEOUT, "late"), "UNAVAILABLE", "late"),
        (ShardError(Status.IO_ERROR, "disk"), "INTERNAL", "disk"),
    ],
)
def test_what_workers_say_in_the_words_of_grpc(error: ShardError | WorkerLostError, code: str, text: str) -> None:
    said = rpc_error(error, "M", "R")
    assert (said.code.name, str(said)) == (code, text)


EVENTS = [
    (Event(1, ActivityOp.CREATE_STREAM, "s", (0, 1)), "createStreamOp", {"stream": "s", "partitions": [0, 1]}),
    (Event(2, ActivityOp.DELETE_STREAM, "s"), "deleteStreamOp", {"stream": "s"}),
    (
        Event(3, ActivityOp.PAUSE_STREAM, "s", (1, 0), True),
        "pauseStreamOp",
        {"stream": "s", "partitions": [0, 1], "resumeAll": True},
    ),
    (Event(4, ActivityOp.RESUME_STREAM, "s", (1,)), "resumeStreamOp", {"stream": "s", "partitions": [1]}),
    (
        Event(5, ActivityOp.SET_STREAM_READONLY, "s", (0,), True),
        "setStreamReadonlyOp",
        {"stream": "s", "partitions": [0], "readonly": True},
    ),
    (
        Event(6, ActivityOp.JOIN_CONSUMER_GROUP, group="g", consumer="c", names=("s", "s")),
        "joinConsumerGroupOp",
        {"groupId": "g", "consumerId": "c", "streams": ["s", "s"]},
    ),
    (
        Event(7, ActivityOp.LEAVE_CONSUMER_GROUP, flag=True, group="g", consumer="c"),
        "leaveConsumerGroupOp",
        {"groupId": "g", "consumerId": "c", "expired": True},
    ),
]


@pytest.mark.parametrize(("event", "field", "operation"), EVENTS)
def test_events_are_those_of_liftbridge(event: Event, field: str, operation: dict[str, object]) -> None:
    kind = api_messages.message_class("ActivityStreamEvent")
    expected = kind(id=event.id, op=int(event.op), **{field: operation})
    assert kind.FromString(encoded_event(event)) == expected


def test_all_events_of_a_record_are_written_at_once() -> None:
    def events(*ids: int) -> list[Event]:
        return [Event(number, ActivityOp.DELETE_STREAM, stream=f"s{at}") for at, number in enumerate(ids)]

    assert _some_of([]) == []
    assert len(_some_of(events(*range(1, 300)))) == 128
    of_one_record = events(*range(1, 101), *[101] * 400, 102)  # a namespace is deleted: an event for each stream
    assert [each.id for each in _some_of(of_one_record)][-1] == 101 and len(_some_of(of_one_record)) == 500
