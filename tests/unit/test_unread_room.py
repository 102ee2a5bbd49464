"""Room for answers over HTTP that clients have not taken."""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from shardd.doors.unread import (
    ANSWER_BYTES,
    ANSWERS_BYTES_MAX,
    ANSWERS_OF_ADDRESS_BYTES_MAX,
    ENDS_AT_ONCE,
    FREE_BYTES,
    GRACE_S,
    LOOKS_MAX,
    OWNER,
    PIECE_BYTES,
    STEP_BYTES,
    UNREAD,
    Answers,
    CountedAnswers,
    Unread,
)
from tests.support.on_loop import on_loop

MIB: Final = 1 << 20
OF_SHARE: Final = ANSWERS_OF_ADDRESS_BYTES_MAX // ANSWER_BYTES


class Wire:
    """A transport whose client takes nothing. `unsent`: bytes that it keeps."""

    def __init__(self) -> None:
        self.unsent = 0
        self.closing = False

    def get_extra_info(self, _name: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.closing


class Crowd:
    """Connections of one door, and a clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.answers = Answers(lambda: self.now_s)
        self.gave_way: list[Unread] = []

    def connect(self, owner: object = "10.0.0.1", address: str = "10.0.0.1") -> tuple[Unread, Wire]:
        wire = Wire()
        transport = cast(asyncio.Transport, wire)

        def give_way() -> None:
            self.gave_way.append(made)

        made = Unread(self.answers, transport, FlowControl(transport), give_way)
        made.share = owner, address
        return made, wire

    def leave_unread(self, size: int, owner: object = "10.0.0.1", address: str = "10.0.0.1") -> Unread | None:
        """A connection that has been written so much; None: its answer has found no room."""
        made, wire = self.connect(owner, address)
        if not made.admit(size):
            return None
        made.pending, wire.unsent = 0, size
        return made


@on_loop
async def test_newcomer_to_a_full_share_takes_the_room_of_its_longest_reader() -> None:
    crowd = Crowd()
    readers = [crowd.leave_unread(8 * MIB) for _ in range(OF_SHARE)]
    assert crowd.leave_unread(MIB) is None and not crowd.gave_way, "they have come just now"
    crowd.now_s += 2 * GRACE_S
    assert crowd.leave_unread(MIB) is not None
    assert crowd.gave_way == readers[:1]


@on_loop
async def test_full_share_of_an_address_leaves_room_to_other_addresses_and_to_users() -> None:
    crowd = Crowd()
    for _ in range(OF_SHARE):
        assert crowd.leave_unread(8 * MIB)
    assert crowd.leave_unread(8 * MIB, "10.0.0.2", "10.0.0.2")
    assert crowd.leave_unread(8 * MIB, 7, "10.0.0.1")
    assert not crowd.gave_way


@on_loop
async def test_full_room_gives_way_to_an_owner_with_less() -> None:
    crowd = Crowd()
    for address in ("10.0.0.1", "10.0.0.2"):
        for _ in range(OF_SHARE):
            assert crowd.leave_unread(8 * MIB, address, address)
    assert crowd.leave_unread(MIB, "10.0.0.3", "10.0.0.3"), "also where the others renew theirs all the time"
    assert len(crowd.gave_way) == 1 and crowd.answers.used_bytes <= ANSWERS_BYTES_MAX


@on_loop
async def test_newcomer_finds_the_room_of_answers_that_their_clients_have() -> None:
    crowd = Crowd()
    for owner in (7, 8):
        for _ in range(OF_SHARE):
            reader, wire = crowd.connect(owner)
            assert reader.admit(8 * MIB)
            reader.pending = wire.unsent = 0
    assert crowd.leave_unread(MIB, 7), "in a full share"
    assert crowd.leave_unread(8 * MIB, 9) and not crowd.gave_way, "of another share"


@on_loop
async def test_client_that_has_everything_keeps_its_connection_when_its_room_is_taken() -> None:
    crowd = Crowd()
    for owner in range(LOOKS_MAX):
        assert crowd.leave_unread(ANSWERS_OF_ADDRESS_BYTES_MAX // LOOKS_MAX, owner)
    for _ in range(OF_SHARE):
        reader, wire = crowd.connect("most")
        assert reader.admit(8 * MIB)
        reader.pending = wire.unsent = 0
    assert crowd.leave_unread(MIB, "new")
    assert crowd.answers.used_bytes < ANSWERS_BYTES_MAX and not crowd.gave_way


@on_loop
async def test_reader_that_goes_on_does_not_end_for_a_newcomer() -> None:
    crowd = Crowd()
    pairs = [crowd.connect() for _ in range(OF_SHARE)]
    for reader, wire in pairs:
        assert reader.admit(8 * MIB)
        reader.pending, wire.unsent = 0, 8 * MIB
    crowd.now_s += 2 * GRACE_S
    for reader, wire in pairs[:-1]:
        wire.unsent -= STEP_BYTES
        reader.look(has_everything=False)
    assert crowd.leave_unread(8 * MIB) and crowd.gave_way == [pairs[-1][0]]
    assert crowd.leave_unread(8 * MIB) is None and len(crowd.gave_way) == 1


@on_loop
async def test_owner_with_most_gives_way_whatever_its_answers_have_turned_out_to_be() -> None:
    crowd = Crowd()
    small = [crowd.leave_unread(2 * MIB, 7) for _ in range(10)]
    large = [crowd.leave_unread(32 * MIB, 8, address) for address in ("10.0.0.1", "10.0.0.2")]
    assert not crowd.answers.shrink()
    assert all(small) and crowd.gave_way == large[1:]


@on_loop
async def test_answer_larger_than_all_room_is_written_alone() -> None:
    crowd = Crowd()
    large = crowd.leave_unread(2 * ANSWERS_BYTES_MAX)
    assert large is not None and crowd.answers.used_bytes == 2 * ANSWERS_BYTES_MAX
    assert crowd.leave_unread(MIB) is None
    large.leave()
    assert crowd.answers.used_bytes == 0 and crowd.leave_unread(MIB)


@on_loop
async def test_room_is_what_the_client_has_not_taken() -> None:
    crowd = Crowd()
    reader, wire = crowd.connect()
    assert reader.admit(MIB) and crowd.answers.used_bytes == MIB
    reader.pending, wire.unsent = 0, MIB // 2
    reader.look(has_everything=False)
    assert crowd.answers.used_bytes == MIB // 2
    assert reader.admit(MIB) and crowd.answers.used_bytes == MIB + MIB // 2
    reader.pending = wire.unsent = 0
    reader.look(has_everything=True)
    assert crowd.answers.used_bytes == 0


@on_loop
async def test_small_answers_that_pile_up_are_counted_by_looks() -> None:
    crowd = Crowd()
    readers = [crowd.connect() for _ in range(2 * ANSWERS_OF_ADDRESS_BYTES_MAX // MIB)]
    for _ in range(3):
        for reader, wire in readers:
            if reader not in crowd.gave_way:
                wire.unsent = MIB
                reader.look(has_everything=False)
        while crowd.answers.shrink():
            pass
    assert len(crowd.gave_way) == len(readers) // 2
    assert crowd.answers.used_bytes == ANSWERS_OF_ADDRESS_BYTES_MAX


@on_loop
async def test_few_connections_give_way_in_a_turn() -> None:
    crowd = Crowd()
    size = ANSWERS_BYTES_MAX // (4 * ENDS_AT_ONCE)
    pairs = [crowd.connect(owner) for owner in range(4 * ENDS_AT_ONCE)]
    for made, _ in pairs:
        assert made.admit(size)
    for made, wire in pairs:
        made.pending, wire.unsent = 0, 2 * size
        made.look(has_everything=False)
    for turn in (1, 2):
        assert crowd.answers.shrink() and len(crowd.gave_way) == turn * ENDS_AT_ONCE
    assert not crowd.answers.shrink() and len(crowd.gave_way) == 2 * ENDS_AT_ONCE
    assert crowd.answers.used_bytes == ANSWERS_BYTES_MAX


@on_loop
async def test_what_has_room_elsewhere_is_not_counted() -> None:
    crowd = Crowd()
    reader, wire = crowd.connect()
    reader.is_held, wire.unsent = True, 8 * MIB
    reader.look(has_everything=False)
    assert crowd.answers.used_bytes == 0


@on_loop
async def test_connection_that_changes_its_user_counts_for_the_last_one() -> None:
    crowd = Crowd()
    reader, wire = crowd.connect(7)
    assert reader.admit(MIB)
    reader.pending, wire.unsent, reader.share = 0, MIB, (8, "10.0.0.1")
    assert reader.admit(MIB) and crowd.answers.used_bytes == 2 * MIB
    assert crowd.leave_unread(ANSWER_BYTES, 7) and not crowd.gave_way


# ---- answers of an application ----


async def answered(
    crowd: Crowd, body: bytes, method: str = "GET", unread: Unread | None = None, fields: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """What is written of it."""
    written: list[dict[str, Any]] = []
    connection = unread or crowd.connect()[0]
    scope: dict[str, Any] = {"method": method, "client": ("10.0.0.1", 1), UNREAD: connection, **(fields or {})}

    async def application(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def send(message: Any) -> None:
        written.append(dict(message))

    await CountedAnswers(application)(scope, cast(Any, None), send)
    return written


@on_loop
async def test_large_answer_is_written_in_pieces_of_the_same_bytes() -> None:
    body = bytes(range(256)) * 300
    head, *pieces = await answered(Crowd(), body)
    assert head["status"] == 200
    assert b"".join(each["body"] for each in pieces) == body
    assert all(len(each["body"]) <= PIECE_BYTES and isinstance(each["body"], bytes) for each in pieces)
    assert [each["more_body"] for each in pieces] == [True] * (len(pieces) - 1) + [False]


@pytest.mark.parametrize(("body", "method"), [(b"pong", "GET"), (bytes(FREE_BYTES), "GET"), (bytes(MIB), "HEAD")])
@on_loop
async def test_small_answer_needs_no_room(body: bytes, method: str) -> None:
    crowd = Crowd()
    for _ in range(OF_SHARE):
        assert crowd.leave_unread(8 * MIB)
    head, rest = await answered(crowd, body, method)
    assert head["status"] == 200 and rest["body"] is body


@on_loop
async def test_answer_without_room_becomes_a_503() -> None:
    crowd = Crowd()
    for _ in range(OF_SHARE):
        assert crowd.leave_unread(8 * MIB)
    head, body = await answered(crowd, bytes(MIB))
    assert head["status"] == 503 and (b"retry-after", b"1") in head["headers"]
    assert b"not read" in body["body"]
    head, *_ = await answered(crowd, bytes(MIB), fields={OWNER: 7})
    assert head["status"] == 200, "a user has a share of its own"


@on_loop
async def test_answer_to_a_change_is_told_also_without_room() -> None:
    crowd = Crowd()
    for _ in range(OF_SHARE):
        assert crowd.leave_unread(8 * MIB)
    connection, _ = crowd.connect()
    head, *pieces = await answered(crowd, bytes(MIB), "POST", connection)
    assert head["status"] == 200 and sum(len(each["body"]) for each in pieces) == MIB
    assert connection.pending == 0


@on_loop
async def test_what_is_left_of_an_answer_with_room_elsewhere_counts_for_its_user() -> None:
    crowd = Crowd()
    connection, _ = crowd.connect("", "")
    connection.is_held = True
    await answered(crowd, bytes(MIB), unread=connection, fields={OWNER: 7})
    assert connection.share == (7, "10.0.0.1")


@on_loop
async def test_answer_to_a_connection_that_is_gone_keeps_no_room() -> None:
    crowd = Crowd()
    closing, wire = crowd.connect()
    wire.closing = True
    await answered(crowd, bytes(MIB), unread=closing)
    gone, _ = crowd.connect()
    gone.leave()
    await answered(crowd, bytes(MIB), unread=gone)
    assert crowd.answers.used_bytes == 0
