"""A partition that a start did not open goes like any other one when its topic is purged or deleted."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from shardd.log import layout
from tests.crash.fault_control import FaultControl
from tests.crash.faults import wait_until
from tests.server.test_message_deduplication import stored
from tests.server.test_retention import create_topic
from tests.support import wire
from tests.support.server import ONE_SHARD, Server

CANNOT_READ = 10002
PLACE = wire.identifier("s") + wire.identifier("t")


@pytest.mark.parametrize("change", ["purge", "delete"])
def test_topic_of_a_refused_partition_leaves_no_directory(tmp_path: Path, change: str) -> None:
    """The device does not give its marker, and no manifest tells the incarnation."""
    control = FaultControl(tmp_path)
    server = Server(tmp_path / "data", ONE_SHARD | {"SHARDD_SYSTEM_IO_ENGINE": "epoll"} | control.environment)
    with server, wire.connect(server.address) as root:
        root.create_stream("s")
        create_topic(root)
        root.send("s", "t", wire.to_partition(0), [wire.message(b"1")])
    directory = layout.partition_directory(server.data_dir, 0, 0, 0)
    for manifest in directory.glob("*.manifest"):
        manifest.unlink()
    control.arm("read", f"0/{layout.INCARNATION}$", 1, errno.EIO, for_ever=True)
    with server, wire.connect(server.address) as root:
        with pytest.raises(wire.StatusError, match=str(CANNOT_READ)):
            root.poll("s", "t", 0)
        if change == "purge":
            root.purge_topic("s", "t")
            root.send("s", "t", wire.to_partition(0), [wire.message(b"2")])
            assert stored(root) == [2]
        else:
            root.request(wire.DELETE_TOPIC, PLACE)
            wait_until(lambda: not directory.parents[1].exists(), "the directory of the topic stays")
        control.disarm()
