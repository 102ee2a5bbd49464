"""`shardd doctor log` beside a server that removes segments, purges and deletes meanwhile: what is gone by right is not
told as lost, and what is lost is."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shardd.log import layout
from tests.crash.fault_control import HANG, FaultControl
from tests.server.test_message_deduplication import change
from tests.support import wire
from tests.support.server import ONE_SHARD, Server
from tests.support.stalls import wait_until

DELETE_SEGMENTS = 503
SMALL = {"SHARDD_SYSTEM_SEGMENT_SIZE": "512 B", "SHARDD_SYSTEM_PARTITION_SYNC_INTERVAL": "50 ms"}
SEGMENTS = 12
PLACE = wire.identifier("s") + wire.identifier("t")


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[tuple[Server, wire.Wire]]:
    with Server(tmp_path / "data", ONE_SHARD | SMALL) as server, wire.connect(server.address) as root:
        root.create_stream("s")
        root.create_topic("s", "t", 1)
        for _ in range(SEGMENTS):
            root.send("s", "t", wire.to_partition(0), [wire.message(bytes(500))])
        yield server, root


def partition_of(server: Server) -> Path:
    return layout.partition_directory(server.data_dir, 0, 0, 0)


def log_of(server: Server, number: int) -> Path:
    return sorted(partition_of(server).glob("*.log"))[number]


def delete_segments(root: wire.Wire, count: int) -> None:
    root.request(DELETE_SEGMENTS, PLACE + struct.pack("<II", 0, count))


def delete_topic(root: wire.Wire) -> None:
    root.request(wire.DELETE_TOPIC, PLACE)


def told_while(tmp_path: Path, server: Server, path: Path, change: Callable[[], None]) -> tuple[int, str]:
    """What the command says when `change` is made while its opening of this file hangs: the files are listed by
    then."""
    control = FaultControl(tmp_path)
    control.arm("open", f"{path.parent.name}/{path.name}$", 1, 0, how=HANG)
    command = [sys.executable, "-m", "shardd", "doctor", "log", str(server.data_dir)]
    with subprocess.Popen(
        command, env=os.environ | control.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        try:
            wait_until(lambda: control.has_failed_any, "the command opens the file")
            change()
        finally:
            control.disarm()
        said = running.communicate(timeout=120)[0]
    return running.returncode, said


def test_segments_that_are_deleted_meanwhile_are_not_told_as_lost(
    tmp_path: Path, filled: tuple[Server, wire.Wire]
) -> None:
    server, root = filled
    status, said = told_while(tmp_path, server, log_of(server, 1), lambda: delete_segments(root, 3))
    assert (status, "damage" in said.replace("damaged ranges 0", "")) == (0, False), said
    assert (
        f"segments {len(list(partition_of(server).glob('*.log'))) + 1}, damaged ranges 0" in said
    )  # the first was read


def test_a_log_that_is_gone_and_that_its_manifest_needs_is_told_as_lost(
    tmp_path: Path, filled: tuple[Server, wire.Wire]
) -> None:
    server, _ = filled
    lost = log_of(server, 1)
    wait_until(lambda: layout.segment_manifest(lost.parent, int(lost.stem)).exists(), "the segment is sealed")
    status, said = told_while(tmp_path, server, lost, lost.unlink)
    assert status == 1, said
    assert f"{lost} is gone since it was listed" in said, said


def test_a_partition_that_is_purged_meanwhile_is_looked_at_again(
    tmp_path: Path, filled: tuple[Server, wire.Wire]
) -> None:
    server, root = filled

    def purge() -> None:
        root.purge_topic("s", "t")
        root.send("s", "t", wire.to_partition(0), [wire.message(b"behind the purge")])

    status, said = told_while(tmp_path, server, log_of(server, 1), purge)
    assert status == 0 and "partition 0/0/0 has been listed, then purged, and is looked at again" in said, said
    assert "partitions 1, segments 1, damaged ranges 0" in said


def test_a_topic_that_is_deleted_meanwhile_costs_nothing(tmp_path: Path, filled: tuple[Server, wire.Wire]) -> None:
    server, root = filled
    status, said = told_while(tmp_path, server, log_of(server, 1), lambda: delete_topic(root))
    assert status == 0 and "partition 0/0/0 has been listed, then deleted or purged" in said, said
    assert "partitions 0, segments 1" in said


def test_a_segment_that_is_compressed_meanwhile_is_looked_at_again(
    tmp_path: Path, filled: tuple[Server, wire.Wire]
) -> None:
    server, root = filled
    log, starts = log_of(server, 1), len(list(partition_of(server).glob("*.log")))

    def compress() -> None:
        assert change(root, compression="zstd:1") == 0
        wait_until(lambda: not log.exists(), "the segment is compressed")

    status, said = told_while(tmp_path, server, log, compress)
    assert status == 0, said
    assert f"segments {starts}, damaged ranges 0" in said
