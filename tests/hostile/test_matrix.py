"""Twenty lines of the matrix of `make test-net`, without a look at the clock: beside each of them others go on, nothing
is killed, memory has its bound. Faults that are planted are found."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.hostile.crowd import allow_descriptors
from tests.hostile.matrix.judge import Bounds, Watch, judged
from tests.hostile.matrix.lines import (
    ATTACKS,
    DOORS,
    LINES,
    READER,
    ROLES,
    SHORT,
    SILENT,
    STRANGER,
    UNREAD,
    WITHOUT,
    Line,
)
from tests.hostile.matrix.target import MatrixServer
from tests.support.stalls import stopped
from tests.support.wide import wide_but

pytestmark = pytest.mark.usefixtures("hashes_as_served")

COUNT = 16
PLAIN = [line for line in SHORT if line.door != "https"]
SECURE = [line for line in SHORT if line.door == "https"]
STANDING_S = 3.0


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    allow_descriptors(4_096)
    with MatrixServer(tmp_path_factory.mktemp("m") / "data", [door for door in DOORS if door != "https"]) as server:
        yield Watch(server)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    with MatrixServer(tmp_path_factory.mktemp("s") / "data", ["https"]) as server:
        yield Watch(server)


def holds(watch: Watch, line: Line) -> None:
    measured = judged(watch, line, COUNT)
    print(line, measured.crowd, f"{measured.process_bytes >> 20} MiB, sockets {measured.kernel_bytes >> 10} KiB")
    assert not measured.findings


@pytest.mark.parametrize("line", PLAIN, ids=str)
def test_others_go_on_beside_each_line(plain: Watch, line: Line) -> None:
    holds(plain, line)


@pytest.mark.parametrize("line", SECURE, ids=str)
def test_others_go_on_beside_each_line_of_https(secure: Watch, line: Line) -> None:
    holds(secure, line)


@pytest.mark.parametrize("door", wide_but(["tcp", "wss"], ["tcp", "tls", "websocket", "wss", "iggy09"]))
def test_answers_that_strangers_do_not_read_cost_the_kernel_little(plain: Watch, door: str) -> None:
    """Many small ones: segments of half a small window cost several times what they hold."""
    holds(plain, Line(door, STRANGER, UNREAD))


def test_every_combination_is_a_line_or_has_a_reason() -> None:
    assert len(LINES) + len(WITHOUT) == len(DOORS) * len(ROLES) * len(ATTACKS)
    assert not set(LINES) & set(WITHOUT) and all(WITHOUT.values())
    assert len(SHORT) == 20 and set(SHORT) <= set(LINES)
    assert {line.door for line in SHORT} == {*DOORS}
    assert {line.role for line in SHORT} == {*ROLES}
    assert {line.attack for line in SHORT} == {*ATTACKS} - {SILENT}  # which the planted faults have


def test_memory_beyond_the_bound_is_found(secure: Watch) -> None:
    findings = judged(secure, Line("tcp", READER, UNREAD), COUNT, bounds=Bounds(kernel_bytes_each=0, process_bytes=0))
    assert any("KiB of answers" in said for said in findings.findings), findings
    assert any("processes have grown" in said for said in findings.findings), findings


def test_a_door_that_is_replaced_is_found(secure: Watch) -> None:
    os.kill(secure.server.pid_of("https"), signal.SIGSTOP)  # the supervisor kills it after 10 s
    findings = judged(secure, Line("https", STRANGER, SILENT), 1).findings
    assert "door http is another process" in findings, findings


def test_a_door_that_stands_still_is_found(secure: Watch) -> None:
    with stopped(secure.server, secure.server.pid_of("https")):
        findings = judged(secure, Line("https", STRANGER, SILENT), 1, bounds=Bounds(stall_s=STANDING_S)).findings
    assert any("a client at https has no answer" in said for said in findings), findings
