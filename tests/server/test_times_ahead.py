"""Partitions that carry times ahead of the clock, since a wrong one was believed, on a real server
(docs/adr/0135-times-that-are-ahead.md)."""

from __future__ import annotations

import time
from pathlib import Path

from msgspec.structs import replace

from shardd.log.manifest import encode_manifest, read_manifest
from shardd.log.segment_reader import segment_starts
from tests.server.test_clocks import DAY_S
from tests.server.test_message_deduplication import change, stored
from tests.server.test_message_deduplication import send as send_ids
from tests.server.test_retention import ENV, SECOND_US, create_topic, offsets, until
from tests.support import wire
from tests.support.server import Server
from tests.support.top import shard_figures
from tests.support.wall_clock import WallClock

BELIEVED = {"SHARDD_SYSTEM_RETENTION_CLOCK_JUMP_MAX": "0 s"}  # as if it were wrong for longer than any doubt
YEAR_S = 365 * DAY_S
EXPIRY_US = 5 * SECOND_US
TOLD = "1 partitions carry times ahead of the clock"


def send(root: wire.Wire) -> None:
    root.send("s", "t", wire.to_partition(0), [wire.message(b"x")])


def with_next_year(root: wire.Wire, clock: WallClock, expiry_us: int, **settings: str) -> None:
    """A message of now, one of next year, and the clock is right again."""
    root.create_stream("s")
    create_topic(root, expiry_us=expiry_us)
    if settings:
        assert change(root, **settings) == 0
    send(root)
    clock.set(YEAR_S)
    send(root)
    clock.set(0)


def counted(server: Server) -> list[int]:
    """By segment, as its manifest has it."""
    [directory] = server.data_dir.glob("streams/*/topics/*/partitions/0")
    manifests = [read_manifest(directory, start) for start in segment_starts(directory)]
    return [0 if each is None else each.counted_us for each in manifests]


def ahead(server: Server) -> int:
    return sum(row["retention.ahead_partitions"] for row in shard_figures(server.address))


def test_messages_behind_a_year_that_was_believed_expire_by_their_own_age_also_after_restarts(
    tmp_path: Path,
) -> None:
    clock = WallClock(tmp_path)
    server = Server(tmp_path / "data", ENV | clock.env | BELIEVED)
    with server, wire.connect(server.address) as root:
        with_next_year(root, clock, EXPIRY_US)
        until(lambda: offsets(root) == [], server)
        send(root)
        [found] = root.read_all("s", "t", 0)
        assert found.timestamp_us > time.time_ns() // 1000 + (YEAR_S - DAY_S) * SECOND_US, "timestamps never fall"
        until(lambda: TOLD in server.log(), server)
        until(lambda: ahead(server) == 1, server)
    for _ in range(2):
        with server, wire.connect(server.address) as root:
            until(lambda: offsets(root) == [], server)
            send(root)
            until(lambda: ahead(server) == 1, server)
    assert counted(server)[-1], "when its last segment was begun is known at the next start"


def test_segments_of_an_earlier_version_count_from_the_first_start_that_sees_them(tmp_path: Path) -> None:
    """Such a version has written no section of its own."""
    clock = WallClock(tmp_path)
    server = Server(tmp_path / "data", ENV | clock.env | BELIEVED)
    with server, wire.connect(server.address) as root:
        with_next_year(root, clock, 0, segment_age_max="60 s")
        until(lambda: len(counted(server)) > 2, server)  # what is further ahead than that is sealed at once
    [directory] = server.data_dir.glob("streams/*/topics/*/partitions/0")
    for start in segment_starts(directory):
        path = directory / f"{start:020}.manifest"
        manifest = read_manifest(directory, start)
        assert manifest is not None
        path.write_bytes(encode_manifest(replace(manifest, counted_us=0)))
    began_us = time.time_ns() // 1000
    with server, wire.connect(server.address):
        until(lambda: any(counted(server)[:-1]), server)
    first = counted(server)
    assert all(each == 0 or began_us <= each <= time.time_ns() // 1000 for each in first)
    with server, wire.connect(server.address) as root:
        until(lambda: ahead(server) == 1, server)
        assert counted(server)[: len(first) - 1] == first[:-1], "the second start changes nothing"
        assert len(offsets(root)) == 2


WINDOW_S = 8
IDS = {
    "IGGY_SYSTEM_MESSAGE_DEDUPLICATION_ENABLED": "true",
    "IGGY_SYSTEM_MESSAGE_DEDUPLICATION_MAX_ENTRIES": "1000",
    "IGGY_SYSTEM_MESSAGE_DEDUPLICATION_EXPIRY": f"{WINDOW_S} s",
}


def test_ids_with_such_times_are_known_from_the_sealing_on_for_their_window_also_after_a_start(tmp_path: Path) -> None:
    clock = WallClock(tmp_path)
    server = Server(tmp_path / "data", ENV | clock.env | BELIEVED | IDS)
    with server, wire.connect(server.address) as root:
        root.create_stream("s")
        create_topic(root)
        clock.set(YEAR_S)
        send_ids(root, [1])
        clock.set(0)
        assert change(root, segment_age_max="60 s") == 0
        until(lambda: len(counted(server)) > 1, server)  # what is further ahead than that is sealed at once
        sealed_by = time.monotonic()
    with server, wire.connect(server.address) as root:
        send_ids(root, [1, 2])
        knew = stored(root) == [1, 2]
        assert knew or time.monotonic() - sealed_by > WINDOW_S, "the start forgot the id"
    expired_at = time.monotonic() + WINDOW_S + 1
    until(lambda: time.monotonic() > expired_at, server)
    with server, wire.connect(server.address) as root:
        before = stored(root)
        send_ids(root, [1])
        assert stored(root) == [*before, 1], "the id is known for as long as the clock was ahead"
