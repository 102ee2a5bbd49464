"""Released clients that speak other dialects than the classic one, on a server of two shards: one connection reads the
partitions of both."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from shardd.engine import owner
from shardd.protocol.namespaces import namespace
from tests.support import clients, wire
from tests.support.server import Server
from tests.support.serving import Serving

HERE = Path(__file__).parent
PARTITIONS = 6
VERSIONS = {"0.5.0": 1, "0.6.0": 0, "0.9.0": 0}  # what the first partition is called

pytestmark = pytest.mark.timeout(600)
SERVER: Final = Serving(env={"SHARDD_SYSTEM_SHARDING_CPU_ALLOCATION": "2", "SHARDD_TCP_SOCKET_MIGRATION": "false"})


@pytest.mark.parametrize("version", VERSIONS)
def test_one_connection_reads_the_partitions_of_both_shards(server: Server, version: str) -> None:
    stream = f"of-{version}"
    (seen,) = clients.run(version, HERE / "client_shards.py", [server.address, stream, str(VERSIONS[version])])
    assert seen["single"] == [[True] * PARTITIONS] * 3
    assert seen["whole"] == [True] * PARTITIONS
    with wire.connect(server.address) as connection:
        number = connection.streams()[stream]
    owners = [owner(namespace(number, 0, partition), 2) for partition in range(PARTITIONS)]
    assert 0 in owners and 1 in owners
