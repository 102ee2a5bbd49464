"""Stored offsets of one partition that the device does not give: requests in every way hear of it, members of a group
go on with the other partitions, retention takes nothing that they might not have passed, and `doctor` says the way out.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from shardd.log import layout
from shardd.log.imported import write_imported
from shardd.protocol.codes import Code
from tests.crash.fault_control import FaultControl
from tests.crash.faults import wait_until
from tests.doors.http_server import HttpServer
from tests.server.test_retention import ENV, NEXT, SECOND_US, SEGMENT_BYTES, after_runs, create_topic
from tests.server.test_sizes_win import set_setting
from tests.support import wire
from tests.support.server import ONE_SHARD
from tests.support.top import shard_figures
from tests.support.wire import Wire

CANNOT_READ: Final = 10002
STORED: Final = 17
MESSAGES: Final = 40  # of each partition
TOPIC: Final = wire.identifier("s") + wire.identifier("t")
GROUP: Final = b"\x02" + wire.identifier("g")
HELD = "SHARDD_SYSTEM_RETENTION_HELD_MAX"
SETTINGS: Final = ENV | ONE_SHARD | {"SHARDD_SYSTEM_IO_ENGINE": "epoll"}


class Unread:
    """`server` is to be started on what a stop has left; of partition 0 the stored offsets cannot be read."""

    def __init__(self, directory: Path, *, expiry_us: int = 0, size_bytes: int = 0, held_max: str = "1 h") -> None:
        self.control = FaultControl(directory)
        self.server = HttpServer(directory / "data", SETTINGS | {HELD: held_max} | self.control.environment)
        with self.server, wire.connect(self.server.address) as root:
            root.create_stream("s")
            create_topic(root, partitions=2, expiry_us=expiry_us, size_bytes=size_bytes)
            root.request(Code.CREATE_CONSUMER_GROUP, TOPIC + wire.str8("g"))
            for partition in range(2):
                send(root, partition)
                root.store_offset("s", "t", partition, STORED)
        self.partition = layout.partition_directory(directory / "data", 0, 0, 0)
        self.table = self.partition / layout.CONSUMER_OFFSETS

    def break_table(self) -> None:
        self.control.arm("read", "partitions/0/consumer-offsets$", 1, errno.EIO, for_ever=True)

    def doctor(self, *options: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "shardd", "doctor", "log", str(self.server.data_dir), *options]
        ended = subprocess.run(command, env=os.environ | self.control.environment, capture_output=True, check=False)
        return ended.returncode, (ended.stdout + ended.stderr).decode()


def send(root: Wire, partition: int, count: int = MESSAGES) -> None:
    for _ in range(count):
        root.send("s", "t", wire.to_partition(partition), [wire.message(b"x" * 936)])


def offsets(root: Wire, partition: int) -> list[int]:
    return [each.offset for each in root.poll("s", "t", partition, count=1000).messages]


@pytest.fixture
def unread(tmp_path: Path) -> Iterator[Unread]:
    left = Unread(tmp_path)
    yield left
    left.control.disarm()
    left.server.stop()


def test_unread_offsets_are_no_answer_over_http(unread: Unread) -> None:
    unread.break_table()
    with unread.server as server:
        http = server.root()
        path = "/streams/s/topics/t/consumer-offsets"
        refused = [
            http.get(f"{path}?consumer_id=1&partition_id=0"),
            http.put(path, {"consumer_id": 1, "partition_id": 0, "offset": 3}),
            http.delete(f"{path}/1?partition_id=0"),
            http.get("/streams/s/topics/t/messages?consumer_id=1&partition_id=0&kind=next"),
            http.get("/streams/s/topics/t/messages?consumer_id=1&partition_id=0&kind=offset&auto_commit=true"),
        ]
        assert [each.error for each in refused] == [(400, CANNOT_READ)] * len(refused)
        answer = http.done("GET", "/streams/s/topics/t/messages?consumer_id=1&partition_id=0&kind=offset&count=1000")
        assert answer["count"] == MESSAGES
        assert http.done("GET", f"{path}?consumer_id=1&partition_id=1")["stored_offset"] == STORED
        unread.control.disarm()
        wait_until(lambda: http.get(f"{path}?consumer_id=1&partition_id=0").status == 200, "it is not read again")
        assert http.done("GET", f"{path}?consumer_id=1&partition_id=0")["stored_offset"] == STORED
        assert http.delete(f"{path}/1?partition_id=0").status == 204


def test_a_member_that_joins_meanwhile_hears_it_and_reads_the_other_partition(unread: Unread) -> None:
    unread.break_table()
    with unread.server as server, wire.connect(server.address) as member:
        assert member.status(Code.JOIN_CONSUMER_GROUP, TOPIC + wire.identifier("g")) == 0
        heard: set[int] = set()
        read: list[int] = []
        for _ in range(8):
            try:
                polled = member.poll("s", "t", None, strategy=NEXT, count=5, auto_commit=True, who=GROUP)
                read += [each.offset for each in polled.messages]
                heard.add(0)
            except wire.StatusError as error:
                heard.add(error.status)
        assert heard == {0, CANNOT_READ}
        assert read == list(range(len(read))) and read  # of the other partition alone
        unread.control.disarm()
        place = GROUP + TOPIC + wire.optional_partition(0)
        wait_until(lambda: member.status(wire.GET_OFFSET, place) == 0, "it is not read again")
        assert [member.get_offset("s", "t", each, who=GROUP) for each in range(2)] == [None, read[-1]]


def test_expiry_holds_what_unread_offsets_may_not_have_passed_and_a_limit_does_not(tmp_path: Path) -> None:
    """As if all of them were behind the first message: what expires is held for `held_max`."""
    unread = Unread(tmp_path, expiry_us=2 * SECOND_US)
    unread.break_table()
    with unread.server as server, wire.connect(server.address) as root:
        wait_until(lambda: offsets(root, 1)[0] == STORED + 1, "nothing has expired")
        after_runs(server)
        assert offsets(root, 0) == list(range(1, MESSAGES))
        assert shard_figures(server.address)[0]["retention.held_partitions"] == 2
        set_setting(root, "partition_messages_max", "20")
        wait_until(lambda: offsets(root, 0) == list(range(MESSAGES - 20, MESSAGES)), "the limit does not win")
        unread.control.disarm()
        wait_until(lambda: status_of(root, 0) == 0, "stored offsets are not read again")
        assert root.get_offset("s", "t", 0) == STORED


def test_the_size_of_a_topic_wins_over_unread_offsets(tmp_path: Path) -> None:
    unread = Unread(tmp_path, size_bytes=10 * SEGMENT_BYTES)
    unread.break_table()
    with unread.server as server, wire.connect(server.address) as root:
        for _ in range(6):
            send(root, 0)
        wait_until(lambda: offsets(root, 0)[0] > STORED + 1, "what nobody may have passed is held against the size")
        assert status_of(root, 0) == CANNOT_READ
        unread.control.disarm()
        wait_until(lambda: status_of(root, 0) == 0, "stored offsets are not read again")
        assert root.get_offset("s", "t", 0) == STORED


def test_unread_offsets_hold_for_no_longer_than_held_max(tmp_path: Path) -> None:
    unread = Unread(tmp_path, expiry_us=2 * SECOND_US, held_max="1 s")
    unread.break_table()
    with unread.server as server, wire.connect(server.address) as root:
        wait_until(lambda: offsets(root, 0) == [], "what nobody may have passed is held for ever")
        assert status_of(root, 0) == CANNOT_READ


def status_of(root: Wire, partition: int) -> int:
    return root.status(wire.GET_OFFSET, wire.consumer() + TOPIC + wire.optional_partition(partition))


SAYS: Final = {
    "consumer-offsets": "`shardd offset update` stores one",
    "producers": "its producers begin a new epoch then",
    "incarnation": "a manifest says the same",
    "imported": "their times may fall anywhere",
    "00000000000000000000.index": "is made again by the next start",
    "00000000000000000000.log": "all else is served",
}


def test_doctor_names_each_unreadable_file_and_the_way_out_and_looks_at_the_others(unread: Unread) -> None:
    write_imported(unread.partition, 5)
    (unread.partition / layout.PRODUCERS).write_bytes(bytes(64))
    assert unread.doctor()[0] == 0
    for name, way_out in SAYS.items():
        unread.control.arm("read", f"partitions/0/{name}$", 1, errno.EIO, for_ever=True)
        status, said = unread.doctor()
        [line] = [each for each in said.splitlines() if "damage: " in each]
        assert status == 1 and name.removesuffix(".index") in line and "Input/output error" in line
        assert way_out in line and "partitions 2, segments 8," in said


def test_stored_offsets_are_given_up_as_doctor_says(unread: Unread) -> None:
    unread.break_table()
    assert "move the file to another place" in unread.doctor()[1]
    unread.table.rename(unread.server.data_dir.parent / "kept")
    with unread.server as server, wire.connect(server.address) as root:
        assert root.get_offset("s", "t", 0) is None and root.get_offset("s", "t", 1) == STORED
        root.store_offset("s", "t", 0, STORED)
        unread.control.disarm()
        assert root.get_offset("s", "t", 0) == STORED
    assert unread.doctor()[0] == 0
