"""Nothing that was acknowledged over TLS is lost when workers die."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.server.test_tls import NAMES, TWO_SHARDS, logged_in
from tests.support import wire
from tests.support.certificates import Authority, settings
from tests.support.server import Server
from tests.support.tls_wire import client_context
from tests.support.worker_kills import PARTITIONS, Send, check_all_there, kill_workers_under_load

pytestmark = pytest.mark.io_engine


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.make(tmp_path)


def test_kills_of_workers_lose_nothing_acknowledged(authority: Authority, tmp_path: Path) -> None:
    env = settings(authority.sign("killed", names=NAMES))
    context = client_context(authority.certificate)
    with Server(tmp_path / "data", TWO_SHARDS | env) as server:
        with logged_in(server, context) as client:
            client.create_topic(client.create_stream("k"), "t", PARTITIONS)

        @contextmanager
        def connected() -> Iterator[Send]:
            with logged_in(server, context) as client:
                yield lambda partition, payload: client.send(
                    "k", "t", wire.to_partition(partition), [wire.message(payload)]
                )

        acknowledged = kill_workers_under_load(server, connected)
        with logged_in(server, context) as client:
            check_all_there(client, acknowledged)
