"""A process dies while DELETE_SEGMENTS moves files away: what remains starts at the border of a segment, everything
behind it is there, and what was moved leaves the disk."""

from __future__ import annotations

import contextlib
import struct
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.crash import faults
from tests.support import load, wire
from tests.support.server import Server
from tests.support.serving import Serving

DELETE_SEGMENTS = 503
SEGMENTS = 300  # sealed ones; the active one holds a single message
ROUNDS_MAX = 10
SEGMENT_MESSAGES = 12
TOTAL = SEGMENTS * SEGMENT_MESSAGES + 1
BATCH_MESSAGES = 6  # the second one finds its segment full, goes into it all the same, and seals it
SETTINGS = {"SHARDD_SYSTEM_SEGMENT_SIZE": "5 KiB"}
# Kills as soon as the log file is gone. A process of its own, so that it runs beside the server.
KILLER = """
import os, sys, time
deadline = time.monotonic() + 20
while time.monotonic() < deadline:
    if not os.path.exists(sys.argv[1]):
        os.kill(int(sys.argv[2]), 9)
        sys.exit(0)
sys.exit(1)
"""


def payload(offset: int) -> bytes:
    return struct.pack("<Q", offset) * 120


SERVER: Final = Serving(env=SETTINGS)


def fill(server: Server, stream: str) -> int:
    """A stream with one partition of many segments; returns its id."""
    with wire.connect(server.address) as connection:
        found = connection.create_stream(stream)
        connection.create_topic(stream, "t", 1)
        for first in range(0, TOTAL - 1, BATCH_MESSAGES):
            batch = [wire.message(payload(offset)) for offset in range(first, first + BATCH_MESSAGES)]
            connection.send(stream, "t", wire.to_partition(0), batch)
        connection.send(stream, "t", wire.to_partition(0), [wire.message(payload(TOTAL - 1))])
        return found


def delete_and_kill(server: Server, stream: int, victim: int, log: Path) -> None:
    """Asks for a deletion of everything and kills `victim` when the log file is gone."""
    address = wire.identifier(stream) + wire.identifier(0) + struct.pack("<II", 0, 2**32 - 1)
    killer = subprocess.Popen([sys.executable, "-I", "-S", "-c", KILLER, str(log), str(victim)])
    try:
        with wire.connect(server.address) as connection, contextlib.suppress(OSError, wire.StatusError):
            connection.request(DELETE_SEGMENTS, address)
        assert killer.wait(30) == 0, "no deletion was seen"
    finally:
        killer.kill()
        killer.wait()
    faults.wait_until(lambda: not faults.is_running(victim), "the victim is gone")


def check(server: Server, stream: int) -> int:
    """The first offset that is left, after everything that must hold was looked at."""
    faults.wait_until_served(server.address, stream, 0, [0])
    with wire.connect(server.address) as connection:
        left = connection.read_all(stream, 0, 0)
        first = left[0].offset
        assert [item.offset for item in left] == list(range(first, TOTAL)), "everything behind the start is there"
        assert all(item.payload == payload(item.offset) for item in left)
        assert first % SEGMENT_MESSAGES == 0, "it starts where a segment starts"
        polled = connection.poll(stream, 0, 0, strategy=wire.POLL_FIRST, count=1)
        assert (polled.messages[0].offset, polled.current_offset) == (first, TOTAL - 1)
        (partition,) = connection.partitions(stream, 0)
        assert (partition.messages_count, partition.current_offset) == (TOTAL - first, TOTAL - 1)
        assert partition.segments_count == SEGMENTS + 1 - first // SEGMENT_MESSAGES
        connection.send(stream, 0, wire.to_partition(0), [wire.message(payload(TOTAL))])
        assert connection.poll(stream, 0, 0, value=TOTAL).messages[0].payload == payload(TOTAL)
    return first


def files_in_trash(data: Path) -> int:
    return sum(1 for _ in (data / "trash").iterdir()) if (data / "trash").exists() else 0


def test_segments_that_are_left_after_a_kill_are_whole(own_server: Server, tmp_path: Path) -> None:
    """Rounds: the worker that deletes, then the supervisor, which takes everyone with it."""
    starts: list[int] = []
    caught: set[bool] = set()  # whether the supervisor was the victim of a kill in the middle
    while len(starts) < 2 or (not caught and len(starts) < ROUNDS_MAX):
        stream = fill(own_server, f"s{len(starts)}")
        log = faults.log_path(tmp_path / "data", stream, 0, 0)
        workers, everyone = own_server.worker_pids(), len(starts) % 2 == 1
        if everyone:
            delete_and_kill(own_server, stream, own_server.pid, log)
            faults.wait_until(lambda pids=workers: not any(map(faults.is_running, pids)), "workers follow")  # type: ignore[misc]
            own_server.wait()
            own_server.start()
        else:
            delete_and_kill(own_server, stream, workers[load.owner_of(stream, 0, 0, len(workers))], log)
        starts.append(check(own_server, stream))
        if 0 < starts[-1] < TOTAL - 1:
            caught.add(everyone)
    assert caught, f"no kill fell into a deletion: {starts}"
    print(f"starts of what was left: {starts}")
    own_server.stop()
    own_server.start()  # a last look after an orderly stop: the same
    with wire.connect(own_server.address) as connection:
        for stream, start in enumerate(starts):
            assert connection.poll(stream, 0, 0, strategy=wire.POLL_FIRST, count=1).messages[0].offset == start
    faults.wait_until(lambda: files_in_trash(tmp_path / "data") == 0, "the trash is swept", timeout_s=60)
