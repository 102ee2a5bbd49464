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


def answered(name: str, *answers: bytes, close: bool = True, cut: int = 0) -> list[bytes]:
    """What one actor records that gets these answers, `cut` bytes at a time."""
    options = Options(BY_NAME[name], 1, 1, 1, 1, 1, batch=Span(1, 1), message_size=Span(5, 5), batches=len(answers))
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
                if not theirs.recv(1 << 16):
                    return
                for at in range(0, len(answer), cut or len(answer)):
                    theirs.sendall(answer[at : at + (cut or len(answer))])
            if close:
                theirs.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=serve)
    mine.setblocking(False)
    thread.start()
    try:
        packed = plan.packed(plan.actors[0], mine.fileno(), 0, 0, 0)
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
