"""Power cuts of a real server, the short form of `make crash-power`. Without FUSE the cuts of the log layer alone are
made (native: test_partition_power.c, which `make test` runs anyway)."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.power import cuts
from tests.power.chain import kill_all
from tests.power.disk import Disk, why_not
from tests.support import wire
from tests.support.server import Server

REASON = why_not()
pytestmark = pytest.mark.skipif(
    REASON is not None,
    reason=f"{REASON}. Not run: power cuts of a whole server (metadata, stored offsets, purge, deleted segments, both "
    "I/O engines). The log layer alone: native/tests/test_partition_power.c",
)


def test_what_a_level_promises_survives_power_cuts(tmp_path: Path) -> None:
    seed = secrets.randbelow(2**32)
    print(f"seed {seed}")
    figures = cuts.run(tmp_path, 4, seed, ("durable", "written"), cuts.ENGINES, jobs=2, chain_cuts=2)
    assert not figures.findings, "\n".join(figures.findings)
    assert sum(figures.cuts.values()) >= 4


@pytest.mark.slow  # a minute; `make crash-power` does it in every run
def test_a_disk_whose_syncs_do_nothing_is_found_out(tmp_path: Path) -> None:
    found = cuts.canary(tmp_path, 1, "io_uring")
    assert found is not None


def test_a_sync_that_failed_once_acknowledges_nothing_afterwards(tmp_path: Path) -> None:
    """The kernel says EIO once and forgets that the pages never came to the device: the next sync would succeed."""
    settings = {"SHARDD_SYSTEM_PARTITION_ACK": "durable", "SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "1"}
    with Disk(tmp_path / "in", tmp_path / "mount", seed=1) as disk:
        server = Server(disk.mount / "data", settings)
        server.log_path = tmp_path / "server.log"
        server.start()
        try:
            with wire.connect(server.address) as connection:
                connection.create_topic(connection.create_stream("s"), "t", 1)
                for number in range(5):
                    connection.send("s", "t", wire.to_partition(0), [wire.message(b"acknowledged %d" % number)])
                disk.fail_syncs(1)
                for _ in range(3):
                    with pytest.raises(wire.StatusError):
                        connection.send("s", "t", wire.to_partition(0), [wire.message(b"refused" * 2000)])
                assert len(connection.poll("s", "t", 0, count=100).messages) == 5
            disk.cut(1, tmp_path / "out")
        finally:
            kill_all(server)
    with Server(tmp_path / "out" / "data", settings) as server, wire.connect(server.address) as connection:
        found = [message.payload for message in connection.read_all("s", "t", 0)]
        assert found[:5] == [b"acknowledged %d" % number for number in range(5)]
        connection.send("s", "t", wire.to_partition(0), [wire.message(b"next")])
