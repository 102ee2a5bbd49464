"""Records as subscribers of Liftbridge get them: what is encoded here is what protobuf decodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardd.doors.liftbridge.delivery import Frame, varint
from shardd.protocol.liftbridge import api_messages
from shardd.protocol.liftbridge.positions import NO_STOP
from shardd.protocol.liftbridge.records import RESERVED, LiftbridgeMessage, loaded, stored
from shardd.protocol.record_layout import RECORD_HEAD

Message = api_messages.Message
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=300)
MESSAGES = st.builds(
    LiftbridgeMessage,
    st.binary(max_size=2_000),
    st.binary(max_size=400),
    st.dictionaries(NAMES, st.binary(max_size=400), max_size=5),
    st.sampled_from(["", "in", "in.1", "other.subject", "x" * 300]),
    st.sampled_from(["", "reply", "r" * 300]),
)


def record(offset: int, timestamp_us: int, payload: bytes, headers: bytes = b"") -> bytes:
    head = RECORD_HEAD.pack(0, bytes(16), offset, timestamp_us, 0, len(headers), len(payload), 0)
    return head + payload + headers


@given(MESSAGES, st.integers(0, 2**62), st.integers(0, 2**52), st.integers(0, 1_000))
def test_a_message_is_what_was_published(
    message: LiftbridgeMessage, offset: int, timestamp_us: int, partition: int
) -> None:
    payload, headers = stored(message, "in.1", 1 << 20)
    frame = Frame("stream", partition, "in.1")
    found = frame.delivered(record(offset, timestamp_us, payload, headers), 1, offset, NO_STOP, 1 << 20)
    [encoded] = found.messages
    said = Message.FromString(encoded)
    expected = loaded(payload, headers, "in.1")
    own = {"subject": expected.subject.encode(), "reply": expected.reply_subject.encode()}
    kept = {name: value for name, value in message.headers.items() if name not in RESERVED}
    assert (said.offset, said.timestamp, said.stream, said.partition) == (
        offset,
        timestamp_us * 1_000,
        "stream",
        partition,
    )
    assert (said.key, said.value, said.subject) == (message.key, message.value, message.subject or "in.1")
    assert (said.replySubject, dict(said.headers)) == (message.reply_subject, kept | own)
    assert (said.ackInbox, said.correlationId, said.ackPolicy) == ("", "", 0)
    assert found.next_offset == offset + 1


@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers_are_those_of_protobuf(number: int) -> None:
    assert Message(offset=number).SerializeToString() == (b"\x08" + varint(number) if number else b"")


RECORDS = b"".join(record(offset, 1_000 + offset, b"%d" % offset) for offset in (3, 4, 7, 8))


@pytest.mark.parametrize(
    ("begin", "stop", "offsets", "following", "reached"),
    [
        (0, NO_STOP, [3, 4, 7, 8], 9, False),
        (4, NO_STOP, [4, 7, 8], 9, False),
        (3, 4, [3, 4], 5, True),
        (3, 5, [3, 4], 5, True),
        (3, 8, [3, 4, 7, 8], 9, True),
        (3, 9, [3, 4, 7, 8], 9, False),
        (3, 2, [], 3, True),
    ],
)
def test_a_stop_is_reached_also_when_it_has_no_record(
    begin: int, stop: int, offsets: list[int], following: int, reached: bool
) -> None:
    found = Frame("s", 0, "s").delivered(RECORDS, 4, begin, stop, 1 << 20)
    assert [Message.FromString(each).offset for each in found.messages] == offsets
    assert (found.next_offset, found.reached) == (following, reached)


def test_a_window_is_as_large_as_it_may_be() -> None:
    frame, size = Frame("s", 0, "s"), len(RECORDS) // 4
    some = frame.delivered(RECORDS, 4, 0, NO_STOP, 2 * size)
    assert (len(some.messages), some.next_offset, some.larger_bytes) == (2, 5, 0)
    none = frame.delivered(RECORDS, 4, 0, NO_STOP, size - 1)
    assert (none.messages, none.next_offset, none.larger_bytes) == ([], 0, size)


@given(st.binary(max_size=300), st.integers(1, 10))
def test_cut_records_are_an_error_and_nothing_else(data: bytes, count: int) -> None:
    cut = RECORDS[: len(RECORDS) - 1]
    with pytest.raises(ValueError):
        Frame("s", 0, "s").delivered(cut, 4, 0, NO_STOP, 1 << 20)
    try:
        Frame("s", 0, "s").delivered(data, count, 0, NO_STOP, 1 << 20)
    except ValueError as error:
        assert str(error) == "the records are cut"
