"""Mutated frames of every command against a running server; the long form is `make fuzz` (tests/fuzz/run.py).

`FUZZ_SEED` repeats a run as far as the order of the server's work allows, `FUZZ_FRAMES` sets its length.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import struct
import threading
from pathlib import Path
from typing import Final

import pytest

from shardd.config import units
from shardd.protocol import iggy09
from shardd.protocol.codes import Code
from shardd.protocol.extensions import ExtensionCode
from tests.fuzz import lanes
from tests.fuzz.fuzzer import Fuzzer, Report
from tests.fuzz.iggy09_lanes import Lane09
from tests.fuzz.iggy09_templates import TEMPLATES_09, Drawn
from tests.fuzz.lanes import FindingError, Lane, Totals
from tests.fuzz.mutator import Mutator, changes_root, corpus_frames
from tests.fuzz.settings import LOGIN_TIMEOUT, SETTINGS
from tests.fuzz.templates import TEMPLATES
from tests.fuzz.watch import Watch
from tests.support.iggy09 import CLIENT_ID
from tests.support.server import Server
from tests.support.serving import Serving

FRAMES = 40_000
SECONDS_MAX = 15.0
GROWTH_MAX_BYTES = 384 << 20
MINUTE_FRAMES = 1_000_000
READS_09 = {template.code for template in TEMPLATES_09} - set(iggy09.OPERATIONS.values())
SERVER: Final = Serving(env=SETTINGS)


def fuzz(server: Server, frames: int, seconds: float) -> Report:
    seed = int(os.environ.get("FUZZ_SEED", secrets.randbelow(2**32)))
    print(f"FUZZ_SEED={seed}")
    watch = Watch(server, GROWTH_MAX_BYTES)
    try:
        report = Fuzzer(server, seed, watch).run(frames, seconds)
    finally:
        watch.close()
    print(report)
    return report


def test_mutated_frames_of_every_command_are_answered_and_the_server_goes_on(own_server: Server) -> None:
    report = fuzz(own_server, int(os.environ.get("FUZZ_FRAMES", FRAMES)), SECONDS_MAX)
    totals = report.totals
    assert totals.statuses[0] > totals.frames // 100, "hardly any frame gets past the checks"
    assert len(totals.statuses) > 15, "the frames reach too few checks"
    assert {code for _, code, _ in totals.seen} >= set(Code)
    assert {operation for _, operation, _, _ in totals.seen_09} >= {*iggy09.OPERATIONS, iggy09.REGISTER}
    assert {code for _, operation, code, _ in totals.seen_09 if operation == iggy09.NON_REPLICATED} >= READS_09
    assert len({status for *_, status in totals.seen_09}) > 15
    assert totals.fenced > 0, "no connection has taken the session of another one"
    for role in ("root", "low", "anonymous"):  # which commands a role gets to in a short run is a matter of luck
        assert len({code for who, code, _ in totals.seen if who == role} & set(Code)) > len(Code) * 3 // 4, role


@pytest.mark.slow
def test_a_million_mutated_frames(own_server: Server) -> None:
    fuzz(own_server, MINUTE_FRAMES, 240.0)


def test_every_command_has_a_template_and_the_corpus_can_be_read() -> None:
    assert {template.code for template in TEMPLATES} == {*Code, *ExtensionCode}
    frames = corpus_frames()
    assert len(frames) > 100
    assert not any(map(changes_root, frames))
    for frame in frames:
        assert struct.unpack_from("<I", frame)[0] == len(frame) - 4


def test_a_seed_and_a_batch_give_the_same_frames_again() -> None:
    one, other = Mutator("1"), Mutator("2")
    for mutator in (one, other):
        mutator.restart("7/3/9")
    assert [one.next() for _ in range(500)] == [other.next() for _ in range(500)]


# ---- canaries: what is planted must be found ----


def test_a_worker_that_dies_during_the_run_is_found(own_server: Server) -> None:
    victim = own_server.worker_pids()[-1]
    watch = Watch(own_server, GROWTH_MAX_BYTES)
    killer = threading.Timer(1.0, os.kill, (victim, signal.SIGKILL))
    killer.start()
    try:
        with pytest.raises(FindingError) as found:
            Fuzzer(own_server, 1, watch).run(10**9, 60.0)
    finally:
        killer.join()
        watch.close()
        own_server.kill_supervisor()  # an orderly stop would wait for the successor
    assert "in work on all lanes:" in str(found.value)  # the frames that may have done it


def test_reports_in_the_log_and_growth_are_found(own_server: Server, tmp_path: Path) -> None:
    reports = tmp_path / "sanitizer"
    watch = Watch(own_server, GROWTH_MAX_BYTES, reports)
    watch.look()
    for line in ("==7==ERROR: AddressSanitizer: heap-use-after-free", "Traceback (most recent call last):"):
        with own_server.log_path.open("a") as log:
            log.write(f"{line}\n")
        with pytest.raises(FindingError, match="the log says"):
            watch.look()
    reports.with_name("sanitizer.7").write_text("runtime error: shift exponent 64 is too large")
    with pytest.raises(FindingError, match="a sanitizer reports"):
        watch.look()
    watch.close()
    watch = Watch(own_server, -1)
    with pytest.raises(FindingError, match="have grown"):
        watch.look()
    watch.close()


def test_an_unasked_40_is_found_and_no_lane_of_a_run_gets_one(tmp_path: Path) -> None:
    """A lane without a login rests until the slowest one has its answers, after batches of the same patience."""
    with Server(tmp_path / "data", env=SETTINGS | {"SHARDD_SERVER_LOGIN_TIMEOUT": "1 s"}) as server:
        lane = Lane(server.address, 0, "anonymous", 1, Mutator("1"), Totals())
        connection = lane.connect()
        connection.setblocking(True)
        connection.settimeout(30.0)
        lane.begin([struct.pack("<II", 4, Code.PING)])
        with pytest.raises(FindingError, match=r"an answer \(40\) too much"):
            while True:
                lane.read()
        lane.close()
    assert units.parse_duration_ms(LOGIN_TIMEOUT) / 1000 > 10 * lanes.ANSWER_TIMEOUT_S


def _answer(peer: socket.socket, answers: bytes, close: bool) -> None:
    """Takes what comes until the batch is whole, so that a close is no reset."""
    peer.settimeout(5.0)
    peer.recv(1 << 20)
    peer.sendall(answers)
    if close:
        peer.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("answers", "close", "sentence"),
    [
        (bytes(8) * 3, True, "the server closed the connection"),
        (struct.pack("<II", 3, 1) + b"x", False, "an error (3) with a payload"),
        (struct.pack("<II", 1, 0), False, "status 1"),
        (bytes(8) * (lanes.BATCH_FRAMES + 1), False, "too much"),
        (bytes(8) * 3, False, "no answer"),
    ],
)
def test_wrong_answers_are_found(answers: bytes, close: bool, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "ANSWER_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        lane = Lane(f"127.0.0.1:{listener.getsockname()[1]}", 0, "anonymous", 1, Mutator("1"), Totals())
        connection = lane.connect()
        peer, _ = listener.accept()
        with peer, pytest.raises(FindingError, match=sentence.replace("(", r"\(").replace(")", r"\)")):
            lane.begin([Mutator("1").next()] * lanes.BATCH_FRAMES)
            _answer(peer, answers, close)
            connection.setblocking(True)
            connection.settimeout(1.0)
            while not lane.read():
                lane.check_time()
        lane.close()


def _head_of_09(operation: int, number: int, size: int = 256, status: int = 0) -> bytes:
    answer = bytearray(size)
    struct.pack_into("<I", answer, 48, size)
    answer[60] = 8
    answer[160:176] = CLIENT_ID
    struct.pack_into("<Q", answer, 200, number)
    answer[208] = operation
    struct.pack_into("<I", answer, 216, status)
    return bytes(answer)


@pytest.mark.parametrize(
    "answer",
    [
        _head_of_09(2, 2),
        _head_of_09(3, 1),
        _head_of_09(2, 1, 257, 3),
        _head_of_09(2, 1, status=1),
        _head_of_09(2, 1).replace(CLIENT_ID, bytes(16)),
    ],
)
def test_wrong_answers_of_09_are_found(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        lane = Lane09(f"127.0.0.1:{listener.getsockname()[1]}", 0, "anonymous", 1, Mutator("1"), Totals())
        connection = lane.connect()
        peer, _ = listener.accept()
        with peer, pytest.raises(FindingError, match="a wrong answer"):
            lane.begin_drawn([Drawn(2, Code.PING, b"")])
            _answer(peer, answer, close=False)
            connection.setblocking(True)
            connection.settimeout(5.0)
            lane.read()
        lane.close()
