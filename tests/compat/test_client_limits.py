"""Released clients set limits of topics; the server shows them as they were set, and the clients see their effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardd.client import commands
from tests.support import clients
from tests.support.links import root_link
from tests.support.server import Server
from tests.support.venvs import CLIENT_VERSIONS

SCRIPT = Path(__file__).parent / "client_limits.py"
MESSAGES, GZIP, NEVER = 60, 2, 2**64 - 1
SETTINGS = {
    "SHARDD_SYSTEM_SEGMENT_SIZE": "10 KiB",
    "IGGY_DATA_MAINTENANCE_MESSAGES_CLEANER_ENABLED": "true",
    "IGGY_DATA_MAINTENANCE_MESSAGES_INTERVAL": "100 ms",
    "SHARDD_SYSTEM_PARTITION_SYNC_INTERVAL": "50 ms",
}

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_limits_that_a_client_sets_are_shown_and_hold(version: str, tmp_path: Path) -> None:
    with Server(tmp_path / "data", SETTINGS) as server:
        (seen,) = clients.run(version, SCRIPT, [server.address])
        everything = [MESSAGES, list(range(MESSAGES))]
        assert seen["after"]["plain"] == seen["after"]["packed"] == everything
        assert seen["before"]["plain"] == seen["before"]["packed"] == everything
        assert seen["after"]["expiring"] == [0, []]
        count, served = seen["after"]["small"]
        assert 0 < count < MESSAGES and served[-1] == MESSAGES - 1 and served == list(range(served[0], MESSAGES))
        with root_link(server.address) as connection:
            shown = {each.name: each for each in connection.call(commands.topics("limits"))}
        assert {name: (each.message_expiry_us, each.max_topic_size_bytes) for name, each in shown.items()} == {
            "plain": (NEVER, NEVER), "packed": (NEVER, NEVER), "expiring": (6_000_000, NEVER), "small": (NEVER, 50_000)
        }  # fmt: skip
        assert {name: each.compression for name, each in shown.items()} == {
            "plain": 1, "packed": GZIP, "expiring": 1, "small": 1
        }  # fmt: skip
