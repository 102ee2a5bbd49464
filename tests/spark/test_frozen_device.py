"""A query while the device of the server stands still: one sentence within 30 s, and never rows left out. No Spark.

The device is a file system in user space that is stopped. One that `fsfreeze` freezes is synced by that, so everything
that was acknowledged is on the device."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardd.spark import durable
from shardd.spark.retry import SilentServerError
from tests.power import disk as forgetful
from tests.spark import direct
from tests.spark.support import Topic
from tests.support import wire
from tests.support.frozen_disk import FrozenDisk, mounted_disk
from tests.support.server import Server

TOLD_WITHIN_S = 30.0
TEST_S = 60.0
ENV = {"SHARDD_SYSTEM_PARTITION_SYNC_INTERVAL": "1 h", "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "1"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FrozenDisk]:
    with mounted_disk(tmp_path / "data") as mounted:
        yield mounted


def filled(server: Server, root: wire.Wire) -> Topic:
    root.create_topic(root.create_stream("s"), "rows", 2)
    topic = Topic(server, "s", root)
    for partition in range(2):
        topic.send(partition, 300)
    return topic


def test_a_query_on_a_device_that_stands_still_is_told_and_reads_all_behind_it(tmp_path: Path) -> None:
    reason = forgetful.why_not()
    if reason is not None:
        pytest.skip(reason)
    with (
        forgetful.Disk(tmp_path / "source", tmp_path / "data") as disk,
        Server(disk.mount, ENV) as server,
        wire.connect(server.address, timeout_s=TEST_S) as root,
    ):
        topic = filled(server, root)
        with disk.stand_still():
            began_s = time.monotonic()
            with pytest.raises((durable.NotDurableError, SilentServerError), match="device"):
                direct.everything(topic.options())
            took_s = time.monotonic() - began_s
        assert took_s < TOLD_WITHIN_S
        assert set(direct.everything(topic.options())) == topic.rows()


def test_a_query_on_a_frozen_file_system_reads_all_that_was_acknowledged(disk: FrozenDisk) -> None:
    with Server(disk.place, ENV) as server, wire.connect(server.address, timeout_s=TEST_S) as root:
        topic = filled(server, root)
        with disk.frozen():
            assert set(direct.everything(topic.options())) == topic.rows()
