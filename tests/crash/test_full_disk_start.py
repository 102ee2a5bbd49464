"""A start on a disk without a free byte, the reserve used up: what a start only writes for later stops it never, and is
written when there is room."""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash

from shardd.log.layout import incoming_directory
from shardd.metadata.log_file import FILE_NAME, read_log
from shardd.metadata.reserve import RESERVE_NAME
from shardd.runtime.boot import boot_id
from shardd.worker.producers import FILE_NAME as BOOT_NAME
from tests.crash import faults
from tests.crash.test_disk_full import PARTITIONS, Sender, fill_to_the_last_byte, judge, small_disk
from tests.support import wire
from tests.support.checker import History
from tests.support.server import Server

__all__ = ["small_disk"]  # a fixture
BOOT = slice(16, 32)


def boot_in(data: Path) -> bytes:
    return (data / BOOT_NAME).read_bytes()[BOOT]


def reboot(data: Path) -> None:
    """The file is as another boot of the machine has left it."""
    body = (data / BOOT_NAME).read_bytes()[:16] + bytes(range(16))
    (data / BOOT_NAME).write_bytes(body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body)))


def lose_the_incoming_directory(data: Path) -> None:
    """As a directory of an earlier version has none."""
    shutil.rmtree(incoming_directory(data).parent)


def tear_the_metadata(data: Path) -> None:
    with (data / FILE_NAME).open("ab") as log:
        log.write(b"unfinished")


@pytest.mark.parametrize("change", [reboot, lose_the_incoming_directory, tear_the_metadata])
def test_a_start_without_a_free_byte_serves_everything(small_disk: Path, change: Callable[[Path], None]) -> None:
    history = History()
    server = Server(small_disk)
    with server, wire.connect(server.address) as connection:
        connection.create_topic(connection.create_stream("full"), "t", PARTITIONS)
        sender = Sender(connection, history)
        for _ in range(4 * PARTITIONS):
            assert sender.send() == 0
    change(small_disk)
    (small_disk / RESERVE_NAME).unlink()
    other = fill_to_the_last_byte(small_disk)
    server.spawn()
    try:
        faults.wait_until(lambda: server.log().count(", ready") == 2, "the server does not start")
        [*_, server.address] = re.findall(r" tcp (\S+), ready", server.log())
        assert not server.runtime_config.exists(), "there was room for a file"
        judge(server, history)
        if change is tear_the_metadata:
            assert "unfinished record" in server.log() and "not kept" in server.log()
        assert read_log(small_disk / FILE_NAME).tail == b""
        other.unlink()
        faults.wait_until((small_disk / RESERVE_NAME).exists, "the reserve is not made again")
        faults.wait_until(lambda: boot_in(small_disk) == boot_id(), "the boot is not written")
        faults.wait_until(server.runtime_config.exists, "the runtime configuration is not written")
        judge(server, history)
    finally:
        server.stop()
