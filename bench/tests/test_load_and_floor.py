"""The load client against the floor server: what it counts is true, and what it must notice it notices."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from bench import together
from bench.lines import Line, Placement
from bench.native_build import NATIVE, build
from bench.targets import RING_FEATURES, Floor
from bench.wire import Wire, identifier
from shardd.protocol.codes import Code
from tests.support.built import make

RECORD_BYTES = 64 + 100


# the floor, the one on io_uring with what this kernel has, and as on the oldest kernel that it runs on
KINDS = {"epoll": None, "ring": (), "ring-of-5.19": RING_FEATURES}


@pytest.fixture(params=KINDS)
def floor(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Floor]:
    server = start(tmp_path / "floor", KINDS[request.param])
    yield server
    server.stop()


def start(directory: Path, without: Sequence[str] | None) -> Floor:
    try:
        return Floor(directory, [0], offsets=False, ring=without is not None, without=without or ())
    except RuntimeError as error:
        if without is None:
            raise
        pytest.skip(str(error))


@pytest.fixture
def telling(tmp_path: Path) -> Iterator[Floor]:
    """One that says where the first record of a poll is."""
    server = Floor(tmp_path / "telling", [0])
    yield server
    server.stop()


def load(port: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(build("load")), "--port", str(port), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def files(floor: Floor) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in floor.directory.iterdir()}


def test_histogram_reads_values_back() -> None:
    done = make(NATIVE, "test")
    assert done.returncode == 0, done.stderr


def test_every_counted_send_is_in_the_file(floor: Floor) -> None:
    done = load(floor.port, "--login", "--mode", "send", "--connections", "3", "--streams", "5,6,7", "--batch", "4",
                "--requests-each", "50")  # fmt: skip
    answer = json.loads(done.stdout)
    assert answer["requests"] == 150
    assert files(floor) == {f"{stream}-0.log": 50 * 4 * RECORD_BYTES for stream in (5, 6, 7)}
    assert 0 < answer["p50_us"] <= answer["p99_us"] <= answer["p999_us"] <= answer["max_us"]


def test_depth_keeps_the_count_and_checks_each_reply(floor: Floor) -> None:
    done = load(floor.port, "--mode", "send", "--connections", "3", "--depth", "7", "--requests-each", "50")
    answer = json.loads(done.stdout)
    assert (answer["depth"], answer["requests"]) == (7, 150)
    assert files(floor) == {"0-0.log": 150 * RECORD_BYTES}
    done = load(floor.port, "--mode", "poll", "--batch", "5", "--poll-messages", "150", "--depth", "32",
                "--requests", "500")  # fmt: skip
    assert json.loads(done.stdout)["requests"] == 500
    done = load(floor.port, "--mode", "poll", "--poll-messages", "150", "--depth", "4", "--requests", "20",
                "--verify-offsets")  # fmt: skip
    assert "another offset" in done.stderr, "the second reply is held against the second request"


def test_a_total_is_shared_by_threads_and_connections(floor: Floor) -> None:
    done = load(floor.port, "--mode", "send", "--connections", "6", "--threads", "3", "--requests", "1000")
    assert json.loads(done.stdout)["requests"] == 1000
    assert files(floor) == {"0-0.log": 1000 * RECORD_BYTES}


def test_frames_larger_than_the_socket_buffers(floor: Floor) -> None:
    done = load(floor.port, "--mode", "send", "--connections", "2", "--batch", "100", "--payload", "100000",
                "--requests-each", "2")  # fmt: skip
    assert json.loads(done.stdout)["requests"] == 4
    assert files(floor) == {"0-0.log": 4 * 100 * 100_064}
    done = load(floor.port, "--mode", "poll", "--connections", "2", "--batch", "100", "--payload", "100000",
                "--poll-messages", "400", "--requests", "8")  # fmt: skip
    assert json.loads(done.stdout)["requests"] == 8


def test_random_keys_reach_all_partitions(floor: Floor) -> None:
    load(floor.port, "--mode", "send", "--keyed", "--requests", "500")
    assert len(files(floor)) == 12
    assert sum(files(floor).values()) == 500 * RECORD_BYTES


def test_poll_of_missing_messages_fails(floor: Floor) -> None:
    load(floor.port, "--mode", "send", "--requests", "10")
    good = load(floor.port, "--mode", "poll", "--batch", "5", "--poll-messages", "10", "--requests", "20")
    assert good.returncode == 0
    bad = load(floor.port, "--mode", "poll", "--batch", "5", "--poll-messages", "15", "--requests", "20")
    assert bad.returncode == 1
    assert "polled bytes" in bad.stderr


def test_wrong_first_offset_is_noticed(floor: Floor) -> None:
    """The floor assigns no offsets: all its records carry 0, so the second poll must be refused."""
    load(floor.port, "--mode", "send", "--requests", "10")
    bad = load(floor.port, "--mode", "poll", "--poll-messages", "10", "--requests", "2", "--verify-offsets")
    assert bad.returncode == 1
    assert "another offset" in bad.stderr


def test_a_floor_that_says_offsets_says_the_right_ones(telling: Floor) -> None:
    load(telling.port, "--mode", "send", "--requests", "10")
    good = load(telling.port, "--mode", "poll", "--poll-messages", "10", "--requests", "30", "--verify-offsets")
    assert good.returncode == 0, good.stderr


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (struct.pack("<II", 41, 0), "status is not 0 (status 41"),
        (struct.pack("<II", 0, 4) + bytes(4), "carries a payload"),
        (struct.pack("<II", 0, 0) + bytes(8), "more bytes than the replies"),
        (b"", "closed a connection"),
    ],
)
def test_bad_reply_is_noticed(reply: bytes, words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(10)
                connection.recv(1 << 16)
                connection.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        done = load(listener.getsockname()[1], "--mode", "send", "--requests", "1")
        thread.join(10)
    assert done.returncode == 1
    assert words in done.stderr


def poll_request(stream: int, offset: int, count: int) -> bytes:
    """Of partition 0, by offset, without a group."""
    target = b"\x01" + identifier(1) + identifier(stream) + identifier(0) + b"\x01" + struct.pack("<I", 0)
    payload = target + b"\x01" + struct.pack("<QI", offset, count) + b"\x00"
    return struct.pack("<II", 4 + len(payload), Code.POLL_MESSAGES) + payload


def test_who_does_not_read_delays_nobody_and_loses_nothing(floor: Floor) -> None:
    """Its replies do not fit into the socket: they wait there, and so do its further requests."""
    load(floor.port, "--mode", "send", "--batch", "100", "--payload", "10000", "--requests", "1")
    polls, reply_bytes = 64, 8 + 16 + 100 * 10_064
    with socket.create_connection(("127.0.0.1", floor.port), timeout=20) as lazy:
        for _ in range(polls):
            lazy.sendall(poll_request(0, 0, 100))
        other = load(floor.port, "--mode", "poll", "--batch", "5", "--poll-messages", "100", "--payload", "10000",
                     "--requests", "50")  # fmt: skip
        assert json.loads(other.stdout)["requests"] == 50
        replies = lazy.makefile("rb")
        for _ in range(polls):
            reply = replies.read(reply_bytes)
            assert len(reply) == reply_bytes
            assert struct.unpack_from("<IIIQI", reply) == (0, reply_bytes - 8, 0, 99, 100)


def test_a_wrong_frame_ends_its_connection_and_nothing_of_it_is_left(floor: Floor) -> None:
    process = psutil.Process(floor.process_id)
    with Wire(floor.port):
        before = process.num_fds()
    for wrong in (struct.pack("<II", 0, 1), struct.pack("<II", 4, 999), struct.pack("<II", 2**32 - 1, 1)):
        for head in (0, 3):
            with socket.create_connection(("127.0.0.1", floor.port), timeout=20) as broken:
                broken.sendall(wrong[:head])
                time.sleep(0.01 if head else 0)
                broken.sendall(wrong[head:])
                assert broken.recv(1) == b""
    deadline = time.monotonic() + 20
    while process.num_fds() > before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("missing", RING_FEATURES)
def test_a_ring_without_one_feature_of_newer_kernels_serves_as_well(tmp_path: Path, missing: str) -> None:
    server = start(tmp_path / "floor", (missing,))
    try:
        assert missing not in server.features
        done = load(server.port, "--mode", "send", "--connections", "5", "--depth", "9", "--batch", "3", "--payload",
                    "3000", "--requests-each", "200")  # fmt: skip
        assert json.loads(done.stdout)["requests"] == 1000
        assert files(server) == {"0-0.log": 3000 * 3064}
        done = load(server.port, "--mode", "poll", "--connections", "5", "--batch", "100", "--payload", "3000",
                    "--poll-messages", "3000", "--depth", "9", "--requests", "300")  # fmt: skip
        assert json.loads(done.stdout)["requests"] == 300
    finally:
        server.stop()


def test_deleted_stream_leaves_no_file(floor: Floor) -> None:
    load(floor.port, "--mode", "send", "--requests", "10")
    floor.drop_streams([0])
    assert files(floor) == {}
    load(floor.port, "--mode", "send", "--requests", "3")
    assert files(floor) == {"0-0.log": 3 * RECORD_BYTES}


def test_producers_and_consumers_at_once_read_what_was_written(telling: Floor) -> None:
    line = Line("both", 10, 100, 4, Placement.HASH, 0.9, threads=2)
    answer = together.run(telling, line, 10, 1 << 20)
    assert files(telling) == {f"{stream}-0.log": 200 * 10 * RECORD_BYTES for stream in (1, 2)}
    assert answer["answered"] >= 400 + 400 and answer["p99_us"] >= answer["p50_us"] > 0
    assert answer["requests_per_s"] > 0
    together.drop(telling)
    assert not files(telling)


def test_what_the_server_chooses_goes_round_over_six_partitions(floor: Floor) -> None:
    load(floor.port, "--login", "--mode", "send", "--balanced", "--requests", "60")
    assert files(floor) == {f"0-{partition}.log": 10 * RECORD_BYTES for partition in range(6)}
