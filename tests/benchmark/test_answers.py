"""The load engine believes no answer that does not add up, and waits for none without end."""

from __future__ import annotations

import contextlib
import mmap
import socket
import struct
import threading
import time

import pytest

from shardd.benchmark import _load
from shardd.benchmark.kinds import BY_NAME
from shardd.benchmark.options import Options, Span
from shardd.benchmark.plan import SLOT_START_NS, SLOT_STOP, make_plan

RECORD = bytes(40) + struct.pack("<QIIQ", 1, 0, 5, 0) + b"hello"


def polled(count: int, records: bytes) -> bytes:
    body = struct.pack("<IQI", 0, 0, count) + records
    return struct.pack("<II", 0, len(body)) + body


def answered(
    name: str,
    *answers: bytes,
    close: bool = True,
    cut: int = 0,
    dialect: int = 0,
    batches: int = 0,
    asked: list[bytes] | None = None,
) -> list[bytes]:
    """What one actor records that gets these answers, `cut` bytes at a time; what it asked is in `asked`."""
    count = batches or len(answers)
    options = Options(BY_NAME[name], 1, 1, 1, 1, 1, batch=Span(1, 1), message_size=Span(5, 5), batches=count)
    plan = make_plan(options)
    mine, theirs = socket.socketpair()
    slots = mmap.mmap(-1, mmap.PAGESIZE)
    view = memoryview(slots).cast("q")
    for at, value in enumerate(plan.slots()):
        view[at] = value
    view[SLOT_START_NS] = time.monotonic_ns()

    def serve() -> None:
        with contextlib.suppress(OSError):  # the client has had enough
            for answer in answers:
                request = theirs.recv(1 << 16)
                if not request:
                    return
                if asked is not None:
                    asked.append(request)
                for at in range(0, len(answer), cut or len(answer)):
                    theirs.sendall(answer[at : at + (cut or len(answer))])
            if close:
                theirs.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=serve)
    mine.setblocking(False)
    thread.start()
    try:
        packed = plan.packed(plan.actors[0], mine.fileno(), 0, 0, 0, dialect)
        found: list[bytes] = _load.run(slots, packed, b"hello", 0, 0, [None])[0]
        return found
    finally:
        mine.close()
        thread.join()
        theirs.close()


def test_right_answers_are_recorded() -> None:
    (records,) = answered("pinned-consumer", polled(1, RECORD), polled(2, RECORD * 2))
    flat = memoryview(records).cast("Q")
    assert (list(flat[3::7]), list(flat[5::7]), list(flat[6::7])) == ([1, 2], [5, 10], [69, 138])


@pytest.mark.parametrize("cut", [1, 7, 47, 100])
def test_answers_may_come_in_pieces(cut: int) -> None:
    (records,) = answered("pinned-consumer", polled(3, RECORD * 3), cut=cut)
    assert list(memoryview(records).cast("Q")[3::7]) == [3]


@pytest.mark.parametrize(
    ("name", "answer", "sentence"),
    [
        ("pinned-producer", struct.pack("<II", 6, 0), "refused a request .status 6"),
        ("pinned-producer", struct.pack("<II", 0, 1) + b"x", "has a payload"),
        ("pinned-consumer", struct.pack("<II", 0, 3) + b"abc", "is cut"),
        ("pinned-consumer", polled(2, RECORD), "not those that its head says"),
        ("pinned-consumer", polled(0, RECORD), "not those that its head says"),
        ("pinned-consumer", polled(1, RECORD[:-1]), "not those that its head says"),
        ("pinned-consumer", polled(1, RECORD + b"x"), "not those that its head says"),
        ("pinned-consumer", polled(1, bytes(48) + b"\xff" * 8 + bytes(8)), "not those that its head says"),
        ("pinned-consumer", struct.pack("<II", 0, 0xFFFFFFFF) + b"half", "closed a connection"),
        ("pinned-producer", b"\0", "closed a connection"),
        ("pinned-producer", struct.pack("<II", 0, 0) * 2, "more than the answers"),
    ],
)
def test_a_wrong_answer_ends_the_run_with_a_sentence(name: str, answer: bytes, sentence: str) -> None:
    with pytest.raises(RuntimeError, match=sentence):
        answered(name, answer)


def test_a_plan_that_makes_no_sense_is_refused() -> None:
    plan = make_plan(Options(BY_NAME["pinned-producer"], 1, 1, 1, 0, 1))
    good = plan.packed(plan.actors[0], 0, 0, 0, 0)
    fields = struct.unpack("<29Q", good)
    for at, value in (
        (13, 1 << 40),
        (9, 0),
        (12, 1 << 30),
        (20, 0),
        (20, 5000),
        (1, 0),
        (23, 4),
        (5, 4),
        (6, 0),
        (7, 101),
    ):
        wrong = [*fields]
        wrong[at] = value
        with pytest.raises(ValueError):
            _load.run(bytearray(64), struct.pack("<29Q", *wrong), b"x" * 1000, 0, 0, [None])
    for plans in (b"", good[:-1]):
        with pytest.raises(ValueError):
            _load.run(bytearray(64), plans, b"x" * 1000, 0, 0, [None])
    with pytest.raises(ValueError):
        _load.run(bytearray(16), good, b"x" * 1000, 0, 0, [None])


def test_a_run_that_was_stopped_ends() -> None:
    mine, theirs = socket.socketpair()
    slots = bytearray(4096)
    view = memoryview(slots).cast("q")
    plan = make_plan(Options(BY_NAME["pinned-producer"], 1, 1, 1, 0, 1))
    view[SLOT_STOP] = 1
    with mine, theirs, pytest.raises(RuntimeError, match="stopped"):
        _load.run(slots, plan.packed(plan.actors[0], mine.fileno(), 0, 0, 0), b"x" * 1000, 0, 0, [None])


# ---- members of a group in 0.9 ----

DIALECT_09, SYNC, POLL, NOT_OWNED = 3, 606, 100, 5009


def answer09(body: bytes = b"", status: int = 0) -> bytes:
    head = bytearray(256)
    struct.pack_into("<I", head, 48, 256 + len(body))
    head[60] = 8
    struct.pack_into("<I", head, 216, status)
    return bytes(head) + body


def assigned(*partitions: int) -> bytes:
    return answer09(struct.pack(f"<QI{len(partitions)}I", 1, len(partitions), *partitions))


def polled09() -> bytes:
    """One message of five bytes."""
    frame = bytes(36) + struct.pack("<I", 5) + bytes(8) + b"hello"
    batch = struct.pack("<QQQQQQI", 0, 0, 0, 1, 256 + len(frame), 0, 1) + bytes(204) + frame
    return answer09(struct.pack("<IQI", 0, 0, 1) + batch)


def questions(asked: list[bytes]) -> list[tuple[int, ...]]:
    """(code, partition) of polls, (code,) of others."""
    codes = [struct.unpack_from("<I", request, 196)[0] for request in asked]
    return [
        (code, struct.unpack_from("<I", request, len(request) - 18)[0]) if code == POLL else (code,)
        for code, request in zip(codes, asked, strict=True)
    ]


def test_a_member_of_09_polls_its_partitions_in_turn_and_asks_again_when_one_is_anothers() -> None:
    asked: list[bytes] = []
    fenced = answer09(struct.pack("<IQI", 0xFFFFFFFF, 0, 0))
    answers = [assigned(), assigned(4, 9), polled09(), answer09(status=NOT_OWNED)]
    answers += [assigned(9), fenced, assigned(7), polled09()]
    (records,) = answered("balanced-consumer-group", *answers, dialect=DIALECT_09, batches=2, asked=asked)
    assert list(memoryview(records).cast("Q")[3::7]) == [1, 1]
    expected = [(SYNC,), (SYNC,), (POLL, 4), (POLL, 9), (SYNC,), (POLL, 9), (SYNC,), (POLL, 7)]
    assert questions(asked) == expected


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (answer09(), "a member of a group is none"),
        (answer09(bytes(11)), "are cut"),
        (answer09(struct.pack("<QII", 1, 2, 4)), "not as many as the server says"),
        (answer09(status=40), "status 40"),
    ],
)
def test_a_wrong_assignment_ends_the_run_with_a_sentence(answer: bytes, sentence: str) -> None:
    with pytest.raises(RuntimeError, match=sentence):
        answered("balanced-consumer-group", answer, dialect=DIALECT_09)
